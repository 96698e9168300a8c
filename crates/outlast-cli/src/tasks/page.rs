//! The page of a run: a lane for each member, steals as arrows, a table of counts and the command.
//! It is a single file, needs no network, and suits light and dark screens.

use super::TasksReport;
use super::timeline::{Doing, Lane, Move, Timeline};
use crate::report::page::Made;
use serde_json::json;
use std::fmt::Write;

const WIDTH: f64 = 1100.0;
/// The room for the names of the members.
const LEFT: f64 = 84.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
/// The distance of two lanes, and the height of one.
const STEP: f64 = 34.0;
const HEIGHT: f64 = 22.0;
/// How many arrows a figure shows at most; more cannot be told apart.
const MOVES_MAX: usize = 140;

/// The page, complete.
pub(super) fn html(report: &TasksReport, timeline: &Timeline) -> String {
    let title = format!("outlast tasks {}", report.program);
    let (class, verdict) = match report.ok {
        true => ("good", "the answer is right at every survivor".to_string()),
        false => ("bad", report.wrong.first().cloned().unwrap_or("the answer is wrong".into())),
    };
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{}</style>\n<main>\n\
         <p class=\"brand\"><b>outlast</b> &middot; tasks</p>\n\
         <h1>{} with n = {} on {} members</h1>\n<p class=\"verdict {class}\">{}</p>\n",
        include_str!("page.css"),
        report.program,
        report.n,
        report.members,
        escape(&verdict)
    );
    page += &facts(report);
    page += &lanes(report, timeline);
    if !report.deaths.is_empty() {
        page += &deaths(report);
    }
    page += &counts(report, timeline);
    let Made { date, machine, version, .. } = Made::now();
    let _ = write!(
        page,
        "<section>\n<h2>The command</h2>\n<pre>{}</pre>\n</section>\n\
         <footer>{} cores, {}, Linux {}; {date}; outlast {version}; the numbers of this page are \
         those of --json</footer>\n</main>\n\
         <div id=\"tip\"></div>\n<script>\n{}</script>\n</html>\n",
        command(&report.command),
        machine.cores,
        escape(&machine.processor),
        escape(&machine.kernel),
        include_str!("page.js")
    );
    page
}

fn facts(report: &TasksReport) -> String {
    let answer = report.answer.map_or("none".to_string(), grouped);
    let mut facts = vec![
        (answer, format!("the answer; {} is right", grouped(report.expected))),
        (
            format!("{:.2} s", report.seconds),
            format!("for the run; {:.2} s if no worker waited", report.ideal_seconds),
        ),
        (report.kills.to_string(), format!("deaths, {} survivors", report.survivors)),
        (grouped(report.moved), format!("tasks moved, of {} shared", grouped(report.shared))),
        (format!("{:.2} %", report.saving_share * 100.0), saving(report.beat_us)),
    ];
    if report.kills > 0 {
        facts.push((time(report.again_ms), "of work ran again, at most".into()));
    }
    if let Some(spread) = report.reopened_ms {
        facts.push((time(spread.max), "from a death until its last task was open again".into()));
    }
    let facts = facts.iter().map(|(value, meaning)| {
        format!("<div class=\"fact\"><b>{value}</b><span>{meaning}</span></div>\n")
    });
    format!("<div class=\"facts\">\n{}</div>\n", facts.collect::<String>())
}

/// What the share of saving is of. A beat at random forks has no length.
fn saving(beat_us: f64) -> String {
    let beat = match beat_us {
        0.0 => String::new(),
        beat_us => format!(", a beat each {:.2} ms", beat_us / 1e3),
    };
    format!("of the time for saving{beat}")
}

/// The figure with a lane for each member.
fn lanes(report: &TasksReport, timeline: &Timeline) -> String {
    let (began, ended) = (timeline.began_ns, timeline.ended_ns.max(timeline.began_ns + 1));
    let seconds = (ended - began) as f64 / 1e9;
    let width = WIDTH - LEFT - RIGHT;
    let x = |at_ns: u64| {
        LEFT + width * at_ns.clamp(began, ended).saturating_sub(began) as f64
            / (ended - began) as f64
    };
    let y = |member: usize| TOP + STEP * member as f64;
    let count = timeline.lanes.len();
    let bottom = y(count);
    // The size of a page does not grow with the members.
    let bins = (16_000 / count.max(1)).clamp(100, 500);
    let mut svg = String::new();
    let mut data = Vec::new();
    let tick = tick(seconds);
    for index in 0..=(seconds / tick) as u64 {
        let at = index as f64 * tick;
        let x = LEFT + width * at / seconds;
        let anchor = match x {
            _ if index == 0 => "start",
            x if x > LEFT + width - RIGHT => "end",
            _ => "middle",
        };
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom:.1}\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{} s</text>",
            bottom + 16.0,
            mark(at, tick),
        );
    }
    for (member, lane) in timeline.lanes.iter().enumerate() {
        let (y, end) = (y(member), x(lane.died_ns.unwrap_or(ended)));
        let shares = shares(lane, began, ended, bins);
        let dead = if lane.died_ns.is_some() { " dead" } else { "" };
        let _ = write!(
            svg,
            "<text class=\"name{dead}\" x=\"{:.1}\" y=\"{:.1}\">member {member}</text>\
             <rect class=\"lane\" x=\"{LEFT}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{HEIGHT}\" \
             rx=\"3\"/>\n<path class=\"run\" d=\"{}\"/>\n<path class=\"again\" d=\"{}\"/>\n",
            LEFT - 10.0,
            y + HEIGHT / 2.0 + 4.0,
            end - LEFT,
            area(&shares, y + HEIGHT, width, |_| 0.0, |share| share.0),
            area(&shares, y + HEIGHT, width, |share| share.0, |share| share.1),
        );
        if let Some(died_ns) = lane.died_ns {
            let lost = x(died_ns.saturating_sub(lane.lost_ns).max(began));
            let middle = y + HEIGHT / 2.0;
            let _ = writeln!(
                svg,
                "<rect class=\"lost\" x=\"{lost:.1}\" y=\"{y:.1}\" width=\"{:.1}\" \
                 height=\"{HEIGHT}\"/><line class=\"gone\" x1=\"{:.1}\" x2=\"{:.1}\" \
                 y1=\"{middle:.1}\" y2=\"{middle:.1}\"/><path class=\"cross\" \
                 d=\"M{:.1} {:.1}l9 9m0 -9l-9 9\"/>",
                (end - lost).max(3.0),
                end + 14.0,
                LEFT + width,
                end - 0.5,
                middle - 4.5,
            );
        }
        let died_s = lane.died_ns.map(|at| at.saturating_sub(began) as f64 / 1e9);
        let percent = |share: f64| (share * 100.0).round() as u64;
        let list: Vec<_> = shares.iter().map(|one| [percent(one.0), percent(one.1)]).collect();
        data.push(json!({ "name": format!("member {member}"), "bins": list, "died": died_s }));
    }
    let shown = chosen(&timeline.moves);
    for one in &shown {
        let text = format!(
            "member {} took a task of member {} at {:.3} s{}",
            one.to,
            one.from,
            one.at_ns.saturating_sub(began) as f64 / 1e9,
            if one.is_again { ", which a dead member had begun" } else { "" }
        );
        let middle = |member: u32| y(member as usize) + HEIGHT / 2.0;
        let (x, from, to) = (x(one.at_ns), middle(one.from), middle(one.to));
        let side = if to > from { -5.0 } else { 5.0 };
        let _ = writeln!(
            svg,
            "<path class=\"move{}\" data-text=\"{text}\" d=\"M{:.1} {from:.1}Q{:.1} {:.1} {x:.1} \
             {to:.1}m-3 {side}l3 {}l3 {side}\"/>",
            if one.is_again { " next" } else { "" },
            // Not over the names of the members.
            (x - 9.0).max(LEFT),
            x - 1.0,
            f64::midpoint(from, to),
            -side,
        );
    }
    let data = json!({
        "left": LEFT, "width": width, "top": TOP, "step": STEP, "seconds": seconds, "lanes": data,
    });
    let arrow =
        "<svg><path class=\"move\" style=\"opacity:1\" d=\"M1 12L17 2m-7 0l7 0l-4 6\"/></svg>";
    format!(
        "<section>\n<h2>The members over time</h2>\n\
         <p>A lane is filled as far as its worker ran tasks. {} of {} moves of a task have an \
         arrow, from the worker that shared the task to the worker that took it.</p>\n\
         <div class=\"legend\"><span><i style=\"background:var(--run)\"></i>runs tasks</span>\
         <span><i style=\"background:var(--again)\"></i>runs tasks that a dead worker had begun\
         </span><span><i style=\"background:var(--lost)\"></i>work that was lost with its worker \
         and ran again</span><span><i style=\"background:var(--lane)\"></i>waits</span>\
         <span>{arrow}a task moves</span></div>\n<div class=\"wide\"><svg class=\"lanes\" \
         viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" aria-label=\"What {} members did\" \
         data-lanes=\"{}\">\n{svg}<line class=\"at\" y1=\"{TOP}\" y2=\"{bottom:.1}\"/>\n\
         </svg></div>\n</section>\n",
        shown.len(),
        timeline.moves.len(),
        bottom + 24.0,
        report.members,
        escape(&data.to_string()),
    )
}

/// The shares of each bin of the time in which a worker ran tasks, and tasks of an earlier worker.
fn shares(lane: &Lane, began: u64, ended: u64, bins: usize) -> Vec<(f64, f64)> {
    let edge = |bin: usize| began + (u128::from(ended - began) * bin as u128 / bins as u128) as u64;
    let mut shares = vec![(0.0, 0.0); bins];
    let mut bin = 0;
    for &(from, to, doing) in &lane.spans {
        if doing == Doing::Waits {
            continue;
        }
        while bin + 1 < bins && edge(bin + 1) <= from {
            bin += 1;
        }
        for (index, share) in shares.iter_mut().enumerate().skip(bin) {
            let (low, high) = (edge(index), edge(index + 1));
            if low >= to {
                break;
            }
            let part =
                to.min(high).saturating_sub(from.max(low)) as f64 / (high - low).max(1) as f64;
            match doing {
                Doing::Again => share.1 += part,
                _ => share.0 += part,
            }
        }
    }
    shares
}

/// The outline of a share over time, above another share.
fn area(
    shares: &[(f64, f64)],
    bottom: f64,
    width: f64,
    below: impl Fn(&(f64, f64)) -> f64,
    share: impl Fn(&(f64, f64)) -> f64,
) -> String {
    let mut path = String::new();
    let wide = width / shares.len() as f64;
    let quantized = |one: &(f64, f64)| {
        let round = |value: f64| (value * 16.0).round() / 16.0 * HEIGHT;
        let height = round(share(one));
        // A short life of a task is seen all the same.
        let is_seen = height > 0.0 || share(one) == 0.0;
        (round(below(one)), if is_seen { height } else { HEIGHT / 8.0 })
    };
    let mut index = 0;
    while index < shares.len() {
        let (low, height) = quantized(&shares[index]);
        let same = shares[index..].iter().take_while(|one| quantized(one) == (low, height)).count();
        if height > 0.0 {
            let x = LEFT + wide * index as f64;
            let (top, across) = (bottom - low - height, wide * same as f64 + 0.3);
            let _ = write!(path, "M{x:.1} {top:.1}h{across:.1}v{height:.1}h-{across:.1}z");
        }
        index += same;
    }
    path
}

/// The moves that have an arrow: those of tasks of the dead first, the others at equal distances.
fn chosen(moves: &[Move]) -> Vec<Move> {
    let spread = |moves: Vec<Move>, most: usize| -> Vec<Move> {
        let every = moves.len().div_ceil(most.max(1)).max(1);
        moves.into_iter().step_by(every).collect()
    };
    let (again, first): (Vec<Move>, Vec<Move>) = moves.iter().partition(|one| one.is_again);
    let again = spread(again, MOVES_MAX / 2);
    [spread(first, MOVES_MAX - again.len()), again].concat()
}

/// The distance of marks on the axis of time: 1, 2 or 5 times a power of ten, 5 to 14 of them.
fn tick(seconds: f64) -> f64 {
    let power = 10f64.powf((seconds / 5.0).max(1e-9).log10().floor());
    let steps = [5.0, 2.0, 1.0].map(|step| step * power);
    steps.into_iter().find(|step| seconds / step >= 5.0).unwrap_or(power)
}

/// A mark on the axis of time, with the digits that the distance of the marks needs.
fn mark(at: f64, tick: f64) -> String {
    let digits = (-tick.log10()).ceil().max(0.0) as usize;
    format!("{at:.digits$}")
}

fn deaths(report: &TasksReport) -> String {
    let ms = |value: Option<f64>| value.map_or("-".to_string(), time);
    let rows = report.deaths.iter().map(|death| {
        vec![
            format!("member {}", death.member),
            format!("{:.2} s", death.at_s),
            death.step.clone().unwrap_or("kill -9".to_string()),
            ms(death.first_noticed_ms),
            death.reopened.to_string(),
            ms(death.reopened_ms),
            time(death.lost_ms),
        ]
    });
    let header = [
        "",
        "time of the run",
        "by",
        "first noticed after",
        "tasks opened again",
        "the last after",
        "work that ran again, at most",
    ];
    section("The deaths", "", &header, rows.collect(), None)
}

fn counts(report: &TasksReport, timeline: &Timeline) -> String {
    let (began, ended) = (timeline.began_ns, timeline.ended_ns);
    let share = |lane: &Lane| {
        let lived = lane.died_ns.unwrap_or(ended).saturating_sub(began).max(1);
        format!("{:.0} %", 100.0 * lane.running(began, ended) as f64 / lived as f64)
    };
    let rows =
        report.by_member.iter().zip(&timeline.lanes).enumerate().map(|(member, (one, lane))| {
            let numbers = [one.forks, one.shared, one.moved, one.reopened, one.again, one.found];
            let mut row = vec![format!("member {member}"), share(lane)];
            row.extend(numbers.map(grouped));
            row
        });
    let numbers =
        [report.forks, report.shared, report.moved, report.reopened, report.again, report.found];
    let mut sums = vec!["all".to_string(), String::new()];
    sums.extend(numbers.map(grouped));
    let header = [
        "",
        "ran tasks",
        "forks, about",
        "shared",
        "taken from others",
        "opened again",
        "run again",
        "outputs found",
    ];
    let text = "The counts of a dead member are as old as its last report, 200 ms at most. \
                Outputs found are those that an earlier life of a task had saved.";
    section("The counts", text, &header, rows.collect(), Some(sums))
}

fn section(
    title: &str,
    text: &str,
    header: &[&str],
    rows: Vec<Vec<String>>,
    sums: Option<Vec<String>>,
) -> String {
    let row = |cells: &[String]| {
        let cells: String = cells.iter().map(|cell| format!("<td>{}</td>", escape(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let header: String = header.iter().map(|cell| format!("<th>{cell}</th>")).collect();
    let rows: String = rows.iter().map(|cells| row(cells)).collect();
    let sums = sums.map_or(String::new(), |sums| format!("<tfoot>{}</tfoot>\n", row(&sums)));
    let text = if text.is_empty() { String::new() } else { format!("<p>{text}</p>\n") };
    format!(
        "<section>\n<h2>{title}</h2>\n{text}<div class=\"wide\"><table>\n<thead><tr>{header}</tr>\
         </thead>\n<tbody>\n{rows}</tbody>\n{sums}</table></div>\n</section>\n"
    )
}

/// A time in milliseconds, for people.
fn time(ms: f64) -> String {
    match ms {
        0.0..10.0 => format!("{ms:.2}\u{202f}ms"),
        10.0..1000.0 => format!("{ms:.1}\u{202f}ms"),
        _ => format!("{:.2}\u{202f}s", ms / 1e3),
    }
}

/// A number with a narrow space, at which no line breaks, after each three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// The command, with its options in elements of their own: no line breaks inside an option.
fn command(command: &str) -> String {
    let words = escape(command);
    let words = words.split(' ').map(|word| match word.starts_with("--") {
        true => format!("<span>{word}</span>"),
        false => word.to_string(),
    });
    words.collect::<Vec<_>>().join(" ")
}

fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_axes_have_round_marks() {
        assert_eq!(grouped(2_279_184), "2\u{202f}279\u{202f}184");
        assert_eq!(grouped(184), "184");
        for (seconds, marks) in [(0.9, 0.1), (3.0, 0.5), (12.0, 2.0), (60.0, 10.0)] {
            assert!((tick(seconds) - marks).abs() < 1e-9, "{seconds}: {}", tick(seconds));
        }
        for (index, tick, text) in [(3, 0.1, "0.3"), (7, 0.02, "0.14"), (2, 0.5, "1.0")] {
            assert_eq!(mark(f64::from(index) * tick, tick), text);
        }
        assert_eq!((mark(4.0, 2.0), mark(30.0, 10.0)), ("4".to_string(), "30".to_string()));
    }

    #[test]
    fn a_bin_has_the_share_of_its_time() {
        let lane =
            Lane { spans: vec![(0, 15, Doing::Runs), (15, 20, Doing::Again)], ..Lane::default() };
        assert_eq!(shares(&lane, 0, 40, 4), [(1.0, 0.0), (0.5, 0.5), (0.0, 0.0), (0.0, 0.0)]);
    }

    #[test]
    fn few_arrows_are_shown_and_those_of_the_dead_first() {
        let one = |at_ns: u64, is_again| Move { at_ns, from: 0, to: 1, is_again };
        let moves: Vec<Move> = (0..5_000).map(|at| one(at, at % 1_000 == 0)).collect();
        let shown = chosen(&moves);
        assert_eq!(shown.iter().filter(|one| one.is_again).count(), 5);
        assert!(shown.len() <= MOVES_MAX, "{}", shown.len());
    }

    #[test]
    fn a_command_breaks_between_its_options_and_a_beat_without_length_has_none() {
        let shown = command("outlast tasks fib --json \"a b\"");
        assert_eq!(shown, "outlast tasks fib <span>--json</span> &quot;a b&quot;");
        assert_eq!(saving(0.0), "of the time for saving");
        assert_eq!(saving(1_610.0), "of the time for saving, a beat each 1.61 ms");
    }

    #[test]
    fn a_page_stands_alone() {
        let report = TasksReport {
            program: "fib",
            command: "outlast tasks <fib>".to_string(),
            ..TasksReport::default()
        };
        let timeline =
            Timeline { ended_ns: 9, lanes: vec![Lane::default()], ..Timeline::default() };
        let page = html(&report, &timeline);
        assert!(page.contains("outlast tasks &lt;fib&gt;") && page.ends_with("</html>\n"));
        for foreign in ["http:", "https:", "src=", "@import", "url("] {
            assert!(!page.contains(foreign), "{foreign}");
        }
    }
}
