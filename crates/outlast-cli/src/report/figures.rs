//! Figures of a page: values over time, latencies of contenders, and counts.
//!
//! Horizontal positions are percentages and vertical positions are pixels, so that a figure fits
//! into every width and its text keeps its size.

use super::page::escape;
use std::fmt::Write;

/// The room for the labels of the horizontal axis.
pub(super) const AXIS: f64 = 26.0;

/// Values over time, one line for each contender.
pub(crate) struct Series {
    pub(crate) label: String,
    /// The first and the last moment, and their unit.
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) unit: &'static str,
    /// What the values are, such as `writes/s`.
    pub(crate) of: &'static str,
    /// Names and values; the values of a line are spread evenly over the time.
    pub(crate) lines: Vec<(String, Vec<f64>)>,
    /// Moments to mark, such as kills.
    pub(crate) marks: Vec<(f64, String)>,
    /// Moments at which what a mark began is over, such as repairs.
    pub(crate) ends: Vec<(f64, String)>,
    /// The end of the vertical axis, where figures are compared; lines above it are cut off.
    pub(crate) most: Option<f64>,
}

/// A contender of a figure of latencies, in nanoseconds.
pub(crate) struct Latency {
    pub(crate) name: String,
    /// The quartiles and the median.
    pub(crate) p25: f64,
    pub(crate) p50: f64,
    pub(crate) p75: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
    /// A remark behind the median, such as its ratio to the floor.
    pub(crate) remark: String,
    /// Which of the colours it has.
    pub(crate) colour: usize,
}

/// How many colours there are for lines and contenders.
pub(crate) const COLOURS: usize = 7;

/// Round numbers from `low` to `high`, about `count` of them.
pub(super) fn ticks(low: f64, high: f64, count: usize) -> Vec<f64> {
    if high.partial_cmp(&low) != Some(std::cmp::Ordering::Greater) {
        return vec![low];
    }
    let rough = (high - low) / count.max(1) as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    let step = step.into_iter().find(|step| *step >= rough * 0.999).unwrap_or(10.0 * power);
    let first = (low / step - 1e-9).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    (first..=last.min(first + 50)).map(|number| number as f64 * step).collect()
}

/// A number without needless digits.
pub(super) fn plain(value: f64) -> String {
    let text = match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    };
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text,
    }
}

/// A number with a letter for thousands and millions.
pub(crate) fn short(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{}\u{a0}M", plain(value / 1e6)),
        value if value >= 1e4 => format!("{}\u{a0}k", plain(value / 1e3)),
        value => plain(value),
    }
}

/// A time in a fitting unit.
pub(crate) fn time(ns: f64) -> String {
    match ns {
        ns if ns >= 1e9 => format!("{}\u{a0}s", plain(ns / 1e9)),
        ns if ns >= 1e6 => format!("{}\u{a0}ms", plain(ns / 1e6)),
        ns if ns >= 1e3 => format!("{}\u{a0}µs", plain(ns / 1e3)),
        ns => format!("{}\u{a0}ns", plain(ns)),
    }
}

/// A text at a place of the horizontal axis, which never sticks out at the ends.
pub(super) fn axis_text(part: f64, y: f64, text: &str) -> String {
    let anchor = match part {
        part if part < 0.05 => "start",
        part if part > 0.95 => "end",
        _ => "middle",
    };
    format!(
        "<text x=\"{:.3}%\" y=\"{y}\" text-anchor=\"{anchor}\">{}</text>\n",
        part * 100.0,
        escape(text)
    )
}

/// The lines and labels of a linear horizontal axis.
pub(super) fn time_axis(from: f64, to: f64, unit: &str, floor: f64) -> String {
    let mut svg = String::new();
    for value in ticks(from, to, 5) {
        let part = (value - from) / (to - from);
        let at = part * 100.0;
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{at:.3}%\" x2=\"{at:.3}%\" y1=\"0\" y2=\"{floor}\"/>"
        );
        svg.push_str(&axis_text(part, floor + 18.0, &format!("{} {unit}", plain(value))));
    }
    svg
}

/// A label at the left of a figure: its vertical place, its first part, which narrow screens leave
/// out, and the rest.
pub(super) struct GutterLabel {
    pub(super) y: f64,
    pub(super) long: String,
    pub(super) short: String,
    pub(super) is_dead: bool,
}

/// A figure with labels at its left, in as many pixels on wide and on narrow screens.
pub(super) fn frame(
    label: &str,
    gutter: (u32, u32),
    labels: &[GutterLabel],
    height: f64,
    inner: &str,
) -> String {
    let mut html = format!(
        "<div class=\"plot\" style=\"--gutter: {}px; --narrow: {}px\"><div class=\"gutter\">",
        gutter.0, gutter.1
    );
    for GutterLabel { y, long, short, is_dead } in labels {
        let class = if *is_dead { " class=\"dead\"" } else { "" };
        let _ = write!(
            html,
            "<span{class} style=\"top: {y:.1}px\"><span class=\"long\" \
             style=\"position: static\">{}</span>{}</span>",
            escape(long),
            escape(short)
        );
    }
    let _ = write!(
        html,
        "</div>\n<svg height=\"{height}\" role=\"img\" aria-label=\"{}\">\n{inner}</svg></div>\n",
        escape(label)
    );
    html
}

/// The gutter of figures with values at their left.
const WITH_VALUES: (u32, u32) = (58, 50);
/// The gutter of figures that name their rows inside.
const WITHOUT: (u32, u32) = (4, 0);

/// A figure, for a page or as a picture of its own.
pub(crate) struct Figure {
    pub(super) label: String,
    pub(super) legend: Legend,
    pub(super) gutter: (u32, u32),
    pub(super) labels: Vec<GutterLabel>,
    pub(super) height: f64,
    pub(super) inner: String,
}

/// What explains the marks of a figure.
pub(super) enum Legend {
    None,
    /// The names of lines, in the order of their colours.
    Lines(Vec<String>),
    Latencies,
}

impl Figure {
    fn plain(label: &str, legend: Legend, height: f64, inner: String) -> Figure {
        let (label, labels) = (label.to_string(), Vec::new());
        Figure { label, legend, gutter: WITHOUT, labels, height, inner }
    }

    /// The figure for a page, with its legend.
    pub(crate) fn html(&self) -> String {
        let frame = frame(&self.label, self.gutter, &self.labels, self.height, &self.inner);
        self.legend.html() + &frame
    }
}

impl Legend {
    /// A mark of 16 by 14 pixels with its meaning, for each thing to explain.
    pub(super) fn entries(&self) -> Vec<(String, String)> {
        match self {
            Legend::None => Vec::new(),
            Legend::Lines(names) => {
                let line = |(index, name): (usize, &String)| {
                    let mark = format!(
                        "<line x1=\"0\" x2=\"16\" y1=\"7\" y2=\"7\" stroke-width=\"3\" \
                         style=\"stroke: var(--s{})\"/>",
                        index % COLOURS
                    );
                    (mark, name.clone())
                };
                names.iter().enumerate().map(line).collect()
            }
            Legend::Latencies => LATENCY_MARKS
                .map(|(mark, meaning)| (mark.to_string(), meaning.to_string()))
                .to_vec(),
        }
    }

    fn html(&self) -> String {
        let entries = self.entries();
        if entries.is_empty() {
            return String::new();
        }
        let entry = |(mark, meaning): &(String, String)| {
            format!("<span><svg>{mark}</svg>{}</span>", escape(meaning))
        };
        let entries = entries.iter().map(entry).collect::<String>();
        format!("<div class=\"legend\">{entries}</div>\n")
    }
}

/// The marks of a row of latencies.
const LATENCY_MARKS: [(&str, &str); 3] = [
    (
        "<g style=\"stroke: var(--s5); fill: var(--s5)\"><rect class=\"box\" y=\"2\" width=\"16\" \
         height=\"10\" rx=\"2\"/><line x1=\"8\" x2=\"8\" y1=\"0\" y2=\"14\" \
         stroke-width=\"3\"/></g>",
        "median and quartiles",
    ),
    (
        "<line x1=\"1\" x2=\"15\" y1=\"7\" y2=\"7\" class=\"span\" style=\"stroke: var(--s5)\"/>",
        "to p99",
    ),
    (
        "<line x1=\"0\" x2=\"11\" y1=\"7\" y2=\"7\" opacity=\"0.5\" style=\"stroke: var(--s5)\"/>\
         <circle cx=\"12\" cy=\"7\" r=\"3\" opacity=\"0.7\" style=\"fill: var(--s5)\"/>",
        "to p99.9 and the longest",
    ),
];

/// The attribute with the values that the page shows under the pointer.
pub(super) fn values_attribute(
    from: f64,
    to: f64,
    unit: &str,
    lines: &[(&str, &[f64], &str)],
) -> String {
    let rounded =
        |values: &[f64]| values.iter().map(|value| (value * 10.0).round() / 10.0).collect();
    let lines: Vec<(&str, Vec<f64>, &str)> =
        lines.iter().map(|(name, values, of)| (*name, rounded(values), *of)).collect();
    let json = serde_json::json!({ "from": from, "to": to, "unit": unit, "lines": lines });
    format!("data-values=\"{}\"", escape(&json.to_string()))
}

impl Series {
    pub(crate) fn html(&self) -> String {
        self.figure().html()
    }

    pub(crate) fn figure(&self) -> Figure {
        const HEIGHT: f64 = 200.0;
        let values = self.lines.iter().flat_map(|(_, values)| values).copied();
        let most =
            values.filter(|value| value.is_finite()).fold(0.0, f64::max).clamp(1e-9, 1e300) * 1.06;
        let most = self.most.unwrap_or(most);
        let y = |value: f64| HEIGHT - HEIGHT * (value / most).clamp(0.0, 1.0);
        let mut svg = time_axis(self.from, self.to, self.unit, HEIGHT);
        let mut labels = Vec::new();
        for value in ticks(0.0, most, 4) {
            let at = y(value);
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"0\" x2=\"100%\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>"
            );
            let short = short(value);
            labels.push(GutterLabel { y: at, long: String::new(), short, is_dead: false });
        }
        for (index, (_, values)) in self.lines.iter().enumerate() {
            let colour = format!("var(--s{})", index % COLOURS);
            let points: Vec<String> = values
                .iter()
                .enumerate()
                .map(|(place, &value)| format!("{:.1} {:.2}", place as f64 + 0.5, y(value)))
                .collect();
            let (Some(first), Some(last)) = (points.first(), points.last()) else { continue };
            let count = values.len();
            let _ = write!(
                svg,
                "<svg width=\"100%\" height=\"{HEIGHT}\" viewBox=\"0 0 {count} {HEIGHT}\" \
                 preserveAspectRatio=\"none\">"
            );
            if self.lines.len() == 1 {
                let (begin, end) = (first.split(' ').next(), last.split(' ').next());
                let _ = write!(
                    svg,
                    "<path class=\"area\" style=\"fill: {colour}\" \
                     d=\"M{} {HEIGHT}L{}L{} {HEIGHT}Z\"/>",
                    begin.unwrap_or("0"),
                    points.join("L"),
                    end.unwrap_or("0")
                );
            }
            let _ = writeln!(
                svg,
                "<path class=\"curve\" style=\"stroke: {colour}\" d=\"M{}\"/></svg>",
                points.join("L")
            );
        }
        let lines: Vec<(&str, &[f64], &str)> = self
            .lines
            .iter()
            .map(|(name, values)| (name.as_str(), values.as_slice(), self.of))
            .filter(|(_, values, _)| !values.is_empty())
            .collect();
        let _ = writeln!(
            svg,
            "<line class=\"cross\" x1=\"0\" x2=\"0\" y1=\"0\" y2=\"{HEIGHT}\"/>\
             <rect class=\"hit\" width=\"100%\" height=\"{HEIGHT}\" {}/>",
            values_attribute(self.from, self.to, self.unit, &lines)
        );
        for (moment, text) in &self.marks {
            let at = (moment - self.from) / (self.to - self.from) * 100.0;
            let _ = writeln!(
                svg,
                "<g data-tip=\"{}\"><line class=\"kill-line\" x1=\"{at:.3}%\" x2=\"{at:.3}%\" \
                 y1=\"0\" y2=\"{HEIGHT}\"/>{}</g>",
                escape(text),
                cross_mark(at, 7.0)
            );
        }
        for (moment, text) in &self.ends {
            let at = (moment - self.from) / (self.to - self.from) * 100.0;
            let _ = writeln!(
                svg,
                "<g data-tip=\"{}\"><circle class=\"back\" cx=\"{at:.3}%\" cy=\"9\" r=\"6\"/></g>",
                escape(text)
            );
        }
        let _ = writeln!(
            svg,
            "<line class=\"axis\" x1=\"0\" x2=\"100%\" y1=\"{HEIGHT}\" y2=\"{HEIGHT}\"/>"
        );
        let names = self.lines.iter().map(|(name, _)| name.clone()).collect();
        let legend = if self.lines.len() > 1 { Legend::Lines(names) } else { Legend::None };
        let label = self.label.clone();
        Figure { label, legend, gutter: WITH_VALUES, labels, height: HEIGHT + AXIS, inner: svg }
    }
}

/// The mark of a death at a place in percent.
pub(super) fn cross_mark(at: f64, y: f64) -> String {
    format!(
        "<svg x=\"{at:.3}%\" y=\"{y}\" overflow=\"visible\"><rect class=\"hit\" x=\"-9\" y=\"-9\" \
         width=\"18\" height=\"18\"/><path class=\"kill\" d=\"M-5-5L5 5M5-5L-5 5\"/></svg>"
    )
}

/// Latencies on a logarithmic axis: a row for each contender, with its name above it.
pub(crate) fn latencies(label: &str, rows: &[Latency]) -> Figure {
    const ROW: f64 = 46.0;
    let all = rows.iter().flat_map(|row| [row.p25, row.p50, row.p99, row.p999, row.max]);
    let positive = all.filter(|value| *value > 0.0 && value.is_finite());
    let (low, high) =
        positive.fold((f64::INFINITY, 0f64), |(low, high), v| (low.min(v), high.max(v)));
    let (low, high) = if low <= high { (low, high) } else { (1.0, 10.0) };
    let (from, to) = (low.log10().floor(), high.log10().ceil().max(low.log10().floor() + 1.0));
    let x = |ns: f64| (ns.max(low).log10() - from) / (to - from);
    let floor = ROW * rows.len() as f64 + 4.0;
    let mut svg = String::new();
    let decades = (to - from) as i32;
    let every = (decades + 4) / 5;
    for decade in 0..=decades {
        let part = f64::from(decade) / f64::from(decades);
        let at = part * 100.0;
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{at:.3}%\" x2=\"{at:.3}%\" y1=\"0\" y2=\"{floor}\"/>"
        );
        if decade % every.max(1) == 0 {
            let value = 10f64.powf(from + f64::from(decade));
            svg.push_str(&axis_text(part, floor + 18.0, &time(value)));
        }
    }
    for (index, row) in rows.iter().enumerate() {
        let (top, y) = (ROW * index as f64 + 16.0, ROW * index as f64 + 32.0);
        let colour = format!("var(--s{})", row.colour % COLOURS);
        let remark =
            if row.remark.is_empty() { String::new() } else { format!("  ({})", row.remark) };
        let values = format!(
            "{}\np25 {}\np50 {}\np75 {}\np99 {}\np99.9 {}\nmax {}",
            row.name,
            time(row.p25),
            time(row.p50),
            time(row.p75),
            time(row.p99),
            time(row.p999),
            time(row.max)
        );
        let [p25, p50, p75] = [row.p25, row.p50, row.p75].map(|ns| x(ns) * 100.0);
        let [p99, p999, max] = [row.p99, row.p999, row.max].map(|ns| x(ns) * 100.0);
        let _ = write!(
            svg,
            "<g data-tip=\"{}\"><text class=\"value\" x=\"0\" y=\"{top}\">{}</text>\
             <text x=\"100%\" y=\"{top}\" text-anchor=\"end\">{}</text>\
             <rect class=\"hit\" x=\"0\" y=\"{}\" width=\"100%\" height=\"{ROW}\"/>",
            escape(&values),
            escape(&row.name),
            escape(&format!("{}{remark}", time(row.p50))),
            ROW * index as f64
        );
        if row.p50 > 0.0 {
            let (top, width) = (y - 7.0, (p75 - p25).max(0.2));
            let _ = write!(
                svg,
                "<g style=\"stroke: {colour}; fill: {colour}\">\
                 <line x1=\"{p75:.3}%\" x2=\"{max:.3}%\" y1=\"{y}\" y2=\"{y}\" \
                 stroke-width=\"1.5\" opacity=\"0.45\"/>\
                 <line class=\"span\" x1=\"{p75:.3}%\" x2=\"{p99:.3}%\" y1=\"{y}\" y2=\"{y}\"/>\
                 <rect class=\"box\" x=\"{p25:.3}%\" y=\"{top}\" width=\"{width:.3}%\" \
                 height=\"14\" rx=\"2\"/>\
                 <line x1=\"{p50:.3}%\" x2=\"{p50:.3}%\" y1=\"{}\" y2=\"{}\" \
                 stroke-width=\"4\"/>\
                 <circle cx=\"{p999:.3}%\" cy=\"{y}\" r=\"3.5\" opacity=\"0.7\"/>\
                 <circle cx=\"{max:.3}%\" cy=\"{y}\" r=\"2.5\" opacity=\"0.55\"/></g>",
                y - 9.0,
                y + 9.0
            );
        }
        svg.push_str("</g>\n");
    }
    let height = floor + AXIS;
    Figure::plain(label, Legend::Latencies, height, svg)
}

/// A contender over a number: for each number a value.
pub(crate) struct Curve {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Values over a number, such as calls a second over callers; both axes are logarithmic.
pub(crate) fn curves(label: &str, across: &str, of: &str, lines: &[Curve]) -> Figure {
    const HEIGHT: f64 = 280.0;
    let points = || lines.iter().flat_map(|line| &line.points).filter(|(_, value)| *value > 0.0);
    let mut numbers: Vec<f64> = points().map(|(number, _)| *number).collect();
    numbers.sort_unstable_by(f64::total_cmp);
    numbers.dedup();
    let (first, last) =
        (numbers.first().copied().unwrap_or(1.0), numbers.last().copied().unwrap_or(1.0));
    let low = points().map(|(_, value)| *value).fold(f64::INFINITY, f64::min);
    let high = points().map(|(_, value)| *value).fold(0.0, f64::max);
    let (low, high) = if low <= high { (low, high) } else { (1.0, 10.0) };
    let bottom = low.log10().floor();
    let top = high.log10().ceil().max(bottom + 1.0);
    let span = (last / first).log2();
    // The ends are not at the borders, so that no point is cut in two.
    let x = |number: f64| match span > 0.0 {
        true => 3.0 + 94.0 * (number / first).log2() / span,
        false => 50.0,
    };
    let y = |value: f64| HEIGHT - HEIGHT * (value.max(low).log10() - bottom) / (top - bottom);
    let mut svg = String::new();
    let mut labels = Vec::new();
    for decade in bottom as i32..=top as i32 {
        let value = 10f64.powi(decade);
        let at = y(value).max(0.0);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"0\" x2=\"100%\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>"
        );
        labels.push(GutterLabel {
            y: at,
            long: String::new(),
            short: short(value),
            is_dead: false,
        });
    }
    for (index, number) in numbers.iter().enumerate() {
        let at = x(*number);
        let unit = if index + 1 == numbers.len() { format!(" {across}") } else { String::new() };
        svg.push_str(&axis_text(at / 100.0, HEIGHT + 18.0, &format!("{}{unit}", plain(*number))));
    }
    for (index, line) in lines.iter().enumerate() {
        let colour = format!("var(--s{})", index % COLOURS);
        let drawn: Vec<(f64, f64)> =
            line.points.iter().copied().filter(|(_, value)| *value > 0.0).collect();
        for pair in drawn.windows(2) {
            let _ = writeln!(
                svg,
                "<line class=\"curve\" style=\"stroke: {colour}\" x1=\"{:.3}%\" x2=\"{:.3}%\" \
                 y1=\"{:.2}\" y2=\"{:.2}\"/>",
                x(pair[0].0),
                x(pair[1].0),
                y(pair[0].1),
                y(pair[1].1)
            );
        }
        for (number, value) in drawn {
            let text = format!("{}\n{} {across}\n{} {of}", line.name, plain(number), short(value));
            let _ = writeln!(
                svg,
                "<g data-tip=\"{}\"><circle class=\"hit\" cx=\"{1:.3}%\" cy=\"{2:.2}\" r=\"11\"/>\
                 <circle style=\"fill: {colour}\" cx=\"{1:.3}%\" cy=\"{2:.2}\" r=\"4.5\"/></g>",
                escape(&text),
                x(number),
                y(value)
            );
        }
    }
    let _ = writeln!(
        svg,
        "<line class=\"axis\" x1=\"0\" x2=\"100%\" y1=\"{HEIGHT}\" y2=\"{HEIGHT}\"/>"
    );
    let legend = Legend::Lines(lines.iter().map(|line| line.name.clone()).collect());
    let (label, height) = (label.to_string(), HEIGHT + AXIS);
    Figure { label, legend, gutter: WITH_VALUES, labels, height, inner: svg }
}

/// A contender with a single value.
pub(crate) struct Bar {
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) text: String,
}

/// A bar for each contender, with its name above it.
pub(crate) fn bars(label: &str, rows: &[Bar]) -> Figure {
    const ROW: f64 = 42.0;
    let most = rows.iter().map(|row| row.value).fold(1e-9, f64::max);
    let mut svg = String::new();
    for (index, row) in rows.iter().enumerate() {
        let top = ROW * index as f64;
        let _ = writeln!(
            svg,
            "<g data-tip=\"{}\"><rect class=\"hit\" y=\"{top}\" width=\"100%\" height=\"{ROW}\"/>\
             <text class=\"value\" x=\"0\" y=\"{}\">{}</text>\
             <text x=\"100%\" y=\"{1}\" text-anchor=\"end\">{}</text>\
             <rect x=\"0\" y=\"{}\" width=\"{:.3}%\" height=\"12\" rx=\"3\" \
             style=\"fill: var(--s{})\"/></g>",
            escape(&format!("{}\n{}", row.name, row.text)),
            top + 16.0,
            escape(&row.name),
            escape(&row.text),
            top + 22.0,
            (row.value / most * 100.0).max(0.3),
            index % COLOURS
        );
    }
    Figure::plain(label, Legend::None, ROW * rows.len().max(1) as f64 + 6.0, svg)
}

/// A range of a figure of counts: its beginning, its whole name, and a count for each group.
pub(crate) struct Range {
    pub(crate) begin: String,
    pub(crate) name: String,
    pub(crate) counts: Vec<u64>,
}

/// How often values fall into ranges, as columns. A group has a name and a colour.
pub(crate) fn columns(label: &str, groups: &[(&str, &str)], ranges: &[Range]) -> String {
    const HEIGHT: f64 = 180.0;
    let most = ranges.iter().map(|range| range.counts.iter().sum::<u64>()).max().unwrap_or(0);
    let most = most.max(1) as f64 * 1.05;
    let mut labels = Vec::new();
    let mut svg = String::new();
    for value in ticks(0.0, most, 4).into_iter().filter(|value| value.fract() == 0.0) {
        let y = HEIGHT - HEIGHT * value / most;
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"0\" x2=\"100%\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>"
        );
        let short = short(value);
        labels.push(GutterLabel { y, long: String::new(), short, is_dead: false });
    }
    let width = 100.0 / ranges.len().max(1) as f64;
    let every = ranges.len().div_ceil(5).max(1);
    for (index, Range { begin, name, counts }) in ranges.iter().enumerate() {
        let x = index as f64 * width;
        let mut text = name.clone();
        groups.iter().zip(counts).for_each(|((group, _), count)| {
            let _ = write!(text, "\n{group}: {count}");
        });
        let _ = write!(svg, "<g data-tip=\"{}\">", escape(&text));
        let mut top = HEIGHT;
        for ((_, colour), &count) in groups.iter().zip(counts) {
            let height = HEIGHT * count as f64 / most;
            top -= height;
            let _ = write!(
                svg,
                "<rect x=\"{:.3}%\" y=\"{top:.2}\" width=\"{:.3}%\" height=\"{height:.2}\" \
                 style=\"fill: var({colour})\"/>",
                x + width * 0.08,
                width * 0.84
            );
        }
        let _ = writeln!(
            svg,
            "<rect class=\"hit\" x=\"{x:.3}%\" y=\"0\" width=\"{width:.3}%\" \
             height=\"{HEIGHT}\"/></g>"
        );
        if index % every == 0 {
            let _ = write!(
                svg,
                "<text x=\"{:.3}%\" y=\"{}\">{}</text>",
                x + width * 0.08,
                HEIGHT + 18.0,
                escape(begin)
            );
        }
    }
    let _ = writeln!(
        svg,
        "<line class=\"axis\" x1=\"0\" x2=\"100%\" y1=\"{HEIGHT}\" y2=\"{HEIGHT}\"/>"
    );
    let mut html = String::from("<div class=\"legend\">");
    for (group, colour) in groups {
        let _ = write!(
            html,
            "<span><svg><rect width=\"14\" height=\"14\" rx=\"3\" style=\"fill: var({colour})\"/>\
             </svg>{}</span>",
            escape(group)
        );
    }
    html + "</div>\n" + &frame(label, WITH_VALUES, &labels, HEIGHT + AXIS, &svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks(0.0, 4.1, 5), [0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(ticks(-15.0, 100.0, 5), [0.0, 50.0, 100.0]);
        for (low, high) in [(0.0, 1e-9), (0.0, 1e12), (5.0, 5.0), (-3.0, 7e5)] {
            assert!(ticks(low, high, 5).len() <= 8, "{low} to {high}");
        }
    }

    #[test]
    fn odd_values_give_a_figure() {
        for values in [vec![], vec![0.0], vec![1.0, f64::MAX], vec![3.0; 400]] {
            let series = Series {
                label: "<l>".into(),
                from: 0.0,
                to: 1.0,
                unit: "s",
                of: "writes/s",
                lines: vec![("a & b".into(), values.clone()), ("c".into(), values)],
                marks: vec![(0.5, "a \"kill\"".into())],
                ends: vec![(0.6, "<back>".into())],
                most: None,
            };
            let html = series.html();
            assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
            assert!(html.contains("&lt;l&gt;") && html.contains("a &quot;kill&quot;"), "{html}");
        }
        for ns in [0.0, 1.0, 5.0, 1e12] {
            let row = Latency {
                name: "<put>".into(),
                p25: ns / 2.0,
                p50: ns,
                p75: ns,
                p99: ns,
                p999: ns,
                max: ns * 2.0,
                remark: String::new(),
                colour: 9,
            };
            let html = latencies("l", &[row]).html();
            assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
        }
        assert!(!latencies("l", &[]).html().contains("NaN"));
        assert!(!columns("l", &[("a", "--s0")], &[]).contains("NaN"));
        for points in [vec![], vec![(1.0, 0.0)], vec![(4.0, 7.0)], vec![(1.0, 1e9), (64.0, 2.0)]] {
            let line = Curve { name: "<a>".into(), points };
            let html = curves("l", "callers", "calls/s", &[line]).html();
            assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
            assert!(html.contains("&lt;a&gt;"), "{html}");
        }
        for value in [0.0, 1.0, 1e12] {
            let bar = Bar { name: "<b>".into(), value, text: "t".into() };
            let html = bars("l", &[bar]).html();
            assert!(!html.contains("NaN") && html.contains("&lt;b&gt;"), "{html}");
        }
        assert!(!bars("l", &[]).html().contains("NaN"));
    }
}
