//! Reports in a real browser: no error, everything is drawn, values appear under the pointer, and
//! nothing is cut off at 1280 and at 400 pixels, light and dark.
//!
//! It needs Chromium, from CHROMIUM or the PATH; `cargo xtask test` installs it. A single report is
//! enough there; with the feature `all-reports` every kind of report is looked at.

mod common;

use common::outlast;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

/// A page that holds the report twice, in frames of two widths, and looks at what the browser made
/// of it. Frames and their outer page have a common origin.
const HARNESS: &str = r#"<!doctype html><meta charset="utf-8"><pre id="found"></pre><script>
const widths = [1280, 400];
const look = (width, frame) => {
  const page = frame.contentDocument, root = page.documentElement, found = { width };
  found.dark = frame.contentWindow.matchMedia("(prefers-color-scheme: dark)").matches;
  found.ground = frame.contentWindow.getComputedStyle(page.body).backgroundColor;
  found.over = root.scrollWidth - root.clientWidth;
  found.cut = [];
  let drawn = 0;
  for (const one of page.querySelectorAll("svg text, th, td, dd, .fact b, .gutter > span, h1, p")) {
    const box = one.getBoundingClientRect();
    if (box.width === 0) continue;
    drawn += 1;
    // What can be scrolled into sight is not cut off.
    if (one.closest(".wide") && page.defaultView.getComputedStyle(one.closest(".wide")).overflowX === "auto")
      continue;
    if (box.left < -0.5 || box.right > root.clientWidth + 0.5 || box.height === 0)
      found.cut.push(one.textContent + " " + box.left + " " + box.right);
  }
  for (const plot of page.querySelectorAll(".plot")) {
    const texts = [...plot.querySelectorAll("text")].map((one) => one.getBoundingClientRect());
    for (const a of texts) for (const b of texts)
      if (a !== b && Math.abs(a.top - b.top) < 4 && a.left < b.left && a.right > b.left + 1)
        found.cut.push("texts overlap at " + b.left);
  }
  found.drawn = drawn;
  found.empty = [...page.querySelectorAll(".plot > svg, svg.lanes")].filter((svg) => {
    const box = svg.getBoundingClientRect();
    return box.width < 100 || box.height < 20 || svg.querySelectorAll("text, rect, line, path, circle").length < 3;
  }).length;
  found.plots = page.querySelectorAll(".plot > svg, svg.lanes").length;
  found.tips = [];
  for (const kind of ["[data-tip]", "[data-values]", "[data-lanes]"]) {
    const mark = page.querySelector(kind);
    if (!mark) continue;
    const box = mark.getBoundingClientRect(), Event = frame.contentWindow.PointerEvent;
    mark.dispatchEvent(new Event("pointermove", {
      bubbles: true, clientX: box.left + box.width / 2, clientY: box.top + box.height / 2,
    }));
    const tip = page.getElementById("tip"), place = tip.getBoundingClientRect();
    if (tip.hidden || place.left < 0 || place.right > root.clientWidth) found.cut.push("the tip");
    found.tips.push(tip.textContent);
  }
  return found;
};
const found = [];
for (const width of widths) {
  const frame = document.createElement("iframe");
  frame.style.cssText = `border: 0; width: ${width}px; height: 3000px`;
  frame.srcdoc = REPORT;
  frame.onload = () => {
    try { found.push(look(width, frame)); } catch (error) { found.push({ error: String(error) }); }
    document.getElementById("found").textContent = JSON.stringify(found);
  };
  document.body.append(frame);
}
</script>"#;

fn chromium() -> String {
    std::env::var("CHROMIUM").unwrap_or_else(|_| "chromium".into())
}

/// Opens a page in the browser, and returns what the harness found and what the browser reported.
fn open(folder: &Path, report: &str, is_dark: bool) -> (Vec<Value>, String) {
    // In a script, `</` would end the script.
    let text = serde_json::to_string(report).expect("a string").replace("</", "<\\/");
    let text = text.replace("<!--", "<\\u0021--");
    let harness = folder.join("harness.html");
    std::fs::write(&harness, HARNESS.replace("REPORT", &text)).expect("written");
    let run = Command::new("timeout")
        .args(["60", &chromium(), "--headless=new", "--no-sandbox", "--disable-gpu"])
        .args(["--disable-dev-shm-usage", "--no-first-run", "--enable-logging=stderr"])
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .arg(format!("--blink-settings=preferredColorScheme={}", u8::from(!is_dark)))
        .args(["--window-size=1400,3000", "--virtual-time-budget=4000", "--dump-dom"])
        .arg(format!("file://{}", harness.display()))
        .stdin(Stdio::null())
        .output()
        .expect("Chromium starts; install it with `apt-get install chromium`");
    let (dom, said) =
        (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr).into_owned());
    let found =
        dom.split_once("<pre id=\"found\">").and_then(|(_, rest)| rest.split_once("</pre>"));
    let found = found.unwrap_or_else(|| panic!("{:?}: {said}", run.status)).0;
    let found = found.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    (serde_json::from_str(&found).unwrap_or_else(|error| panic!("{error}: {found} {said}")), said)
}

/// Runs a command with a report, and looks at the report in the browser.
fn look(name: &str, arguments: &[&str]) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(format!("{name}.html"));
    let report = ["--report", path.to_str().expect("a plain path")];
    let run = outlast(&[arguments, &report].concat());
    assert_eq!(run.code(), 0, "{run:?}");
    let page = std::fs::read_to_string(path).expect("the report was written");
    for is_dark in [false, true] {
        let (found, said) = open(folder.path(), &page, is_dark);
        assert!(!said.contains("CONSOLE"), "{name}: {said}");
        assert_eq!(found.len(), 2, "{name}: {found:?}");
        for found in found {
            assert_eq!(found["dark"], is_dark, "{name}: {found}");
            assert_eq!(found["ground"] == "rgb(15, 18, 22)", is_dark, "{name}: {found}");
            assert!(found["over"].as_i64() <= Some(0), "{name} is too wide: {found}");
            assert_eq!(found["cut"].as_array().map(Vec::len), Some(0), "{name}: {found}");
            assert_eq!(found["empty"], 0, "{name}: {found}");
            assert!(found["plots"].as_u64() >= Some(1), "{name}: {found}");
            assert!(found["drawn"].as_u64() >= Some(20), "{name}: {found}");
            let tips = found["tips"].as_array().expect("a list");
            assert!(!tips.is_empty() && tips.iter().all(|tip| tip != ""), "{name}: {found}");
        }
    }
}

#[test]
fn the_report_of_the_demo_is_whole_in_a_browser() {
    look("demo", &["demo"]);
}

#[cfg(feature = "all-reports")]
#[test]
fn all_reports_are_whole_in_a_browser() {
    for (name, arguments) in [
        ("chaos", &["chaos", "--kills", "2", "--stops", "2", "--seconds", "2"][..]),
        ("sim", &["sim", "--seeds", "0..10", "--kills", "2"]),
        ("tasks", &["tasks", "nqueens", "--n", "11", "--kills", "1", "--seed", "2"]),
        ("bench", &["bench", "put", "--seconds", "0.2"]),
        ("growth", &["bench", "growth", "--members", "2,4", "--simulated", "4,8,16"]),
        ("all", &["bench", "all", "--seconds", "0.2", "--parts", "throughput,memory,mixed"]),
        ("failure", &["bench", "failure", "--seconds", "3", "--kills", "2"]),
    ] {
        look(name, arguments);
    }
}
