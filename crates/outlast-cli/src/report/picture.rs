//! Figures as a picture for documents: a single SVG without any other file. Its colours follow the
//! setting of the reader, light or dark, as those of a page do.

use super::figures::{Figure, GutterLabel};
use super::page::escape;
use std::fmt::Write;

/// The rules of pages, of which a picture takes those that figures need.
const CSS: &str = include_str!("page.css");

/// What the rules begin with that a picture takes.
const RULES: [&str; 9] =
    ["svg text", ".grid", ".kill", ".notice", ".curve", ".area", ".span", ".box", ".value"];

const WIDTH: f64 = 880.0;
const MARGIN: f64 = 20.0;
/// The room of a letter of a legend, with enough for wide fonts.
const LETTER: f64 = 6.8;
const LEGEND_ROW: f64 = 20.0;

/// Draws figures one above the other, each below its headline.
pub(crate) fn picture(title: &str, figures: &[(String, Figure)]) -> String {
    let mut svg = String::new();
    let mut top = MARGIN + 22.0;
    let _ =
        writeln!(svg, "<text class=\"title\" x=\"{MARGIN}\" y=\"{top}\">{}</text>", escape(title));
    top += 14.0;
    for (index, (headline, figure)) in figures.iter().enumerate() {
        top += 20.0;
        let _ = writeln!(
            svg,
            "<text class=\"value\" x=\"{MARGIN}\" y=\"{top}\">{}</text>",
            escape(headline)
        );
        // Figures of a kind have a legend in common.
        let entries = figure.legend.entries();
        let is_new = index == 0 || figures[index - 1].1.legend.entries() != entries;
        top += 12.0;
        if is_new && !entries.is_empty() {
            let mut x = MARGIN;
            for (mark, meaning) in &entries {
                let width = 24.0 + LETTER * meaning.chars().count() as f64 + 14.0;
                if x + width > WIDTH - MARGIN && x > MARGIN {
                    (x, top) = (MARGIN, top + LEGEND_ROW);
                }
                let _ = writeln!(
                    svg,
                    "<svg x=\"{x:.1}\" y=\"{top:.1}\" width=\"16\" height=\"14\" \
                     overflow=\"visible\">{mark}</svg><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                    x + 22.0,
                    top + 11.0,
                    escape(meaning)
                );
                x += width;
            }
            top += LEGEND_ROW;
        }
        let left = MARGIN + f64::from(figure.gutter.0);
        for GutterLabel { y, long, short, .. } in &figure.labels {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                left - 10.0,
                top + y + 4.0,
                escape(&format!("{long}{short}"))
            );
        }
        let _ = writeln!(
            svg,
            "<svg x=\"{left}\" y=\"{top:.1}\" width=\"{}\" height=\"{}\" \
             overflow=\"visible\">\n{}</svg>",
            WIDTH - MARGIN - left,
            figure.height,
            without_values(&figure.inner)
        );
        top += figure.height;
    }
    let height = top + MARGIN;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{}\">\n\
         <style>\n{}</style>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"10\" style=\"fill: var(--card)\"/>\n\
         {svg}</svg>\n",
        escape(title),
        style()
    )
}

/// The colours of pages, and the rules for the parts of figures.
fn style() -> String {
    let colours = CSS.split_once("\n* {").map_or("", |(colours, _)| colours);
    let rules = CSS.lines().filter(|line| RULES.iter().any(|rule| line.starts_with(rule)));
    let rules = rules.filter(|line| line.ends_with('}')).collect::<Vec<_>>().join("\n");
    format!(
        "{colours}\nsvg {{ font: 12px system-ui, -apple-system, \"Segoe UI\", Roboto, \
         \"DejaVu Sans\", sans-serif }}\n{rules}\n\
         .title {{ fill: var(--ink); font-size: 17px; font-weight: 600 }}\n"
    )
}

/// A figure without the values that a page shows under the pointer: a picture has no pointer.
fn without_values(inner: &str) -> String {
    let mut rest = inner;
    let mut kept = String::with_capacity(inner.len());
    while let Some(begin) = [" data-tip=\"", " data-values=\""]
        .into_iter()
        .filter_map(|attribute| rest.find(attribute).map(|at| (at, at + attribute.len())))
        .min()
    {
        kept.push_str(&rest[..begin.0]);
        // Quotes inside are escaped.
        let end = rest[begin.1..].find('"').map_or(rest.len(), |end| begin.1 + end + 1);
        rest = &rest[end..];
    }
    kept + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::figures::{Bar, Curve, bars, curves};

    #[test]
    fn a_picture_stands_alone_and_has_no_pointer() {
        let bar = Bar { name: "<a> \"b\"".into(), value: 3.0, text: "3 & more".into() };
        let line = Curve { name: "one of the lines".into(), points: vec![(1.0, 5.0), (2.0, 7.0)] };
        let figures = [
            ("first & <only>".to_string(), bars("a", &[bar])),
            ("second".to_string(), curves("b", "callers", "calls/s", &[line])),
        ];
        let picture = picture("<title>", &figures);
        assert!(!picture.contains("data-") && !picture.contains("url("), "{picture}");
        assert_eq!(picture.matches("http").count(), 1, "only its own name space: {picture}");
        for text in ["&lt;a&gt; &quot;b&quot;", "3 &amp; more", "one of the lines"] {
            assert!(picture.contains(text), "{text}: {picture}");
        }
        assert!(picture.contains("prefers-color-scheme: dark") && picture.contains(".curve {"));
        assert_eq!(picture.matches("<svg").count(), picture.matches("</svg>").count());
        assert!(!picture.contains("main {"), "rules of pages are left out: {picture}");
    }
}
