//! Figures of measurements as plain SVG: both axes are logarithmic, colours suit light and dark
//! backgrounds, and the exact value of a point is shown under the pointer.

use crate::report::page::escape;
use std::fmt::Write;

/// A figure over a number, such as that of the members.
pub(crate) struct Figure {
    pub(crate) title: String,
    /// What the vertical axis shows.
    pub(crate) axis: String,
    /// What the horizontal axis counts.
    pub(crate) across: &'static str,
    pub(crate) lines: Vec<Curve>,
    /// Formats a value for people.
    pub(crate) show: fn(f64) -> String,
}

/// A contender: its name, and a value for each number on the horizontal axis.
pub(crate) struct Curve {
    pub(crate) name: String,
    pub(crate) points: Vec<(usize, f64)>,
}

const HEIGHT: f64 = 520.0;
const LEFT: f64 = 96.0;
/// The width of the field of the curves. The names of the curves are at its right.
const FIELD: f64 = 494.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 60.0;

/// Colours on light and on dark backgrounds, and strokes. Colour-blind people can tell both apart.
const STROKES: [(&str, &str, &str); 7] = [
    ("#0b62a8", "#6cb6ff", ""),
    ("#b3410e", "#ff9d5c", "7 4"),
    ("#12774a", "#5ed29b", "2 3"),
    ("#8a2f86", "#e39be0", "10 3 2 3"),
    ("#7a6200", "#e0c44c", "4 2"),
    ("#4a4f57", "#b9c0c9", "1 4"),
    ("#a3123a", "#ff8fa8", "12 4"),
];

impl Figure {
    pub(crate) fn svg(&self) -> String {
        // The room of a letter of the names, with enough room for the widest fonts.
        const LETTER: f64 = 8.0;
        let longest = self.lines.iter().map(|line| line.name.chars().count()).max().unwrap_or(0);
        let right = LEFT + FIELD;
        let width = (right + 62.0 + LETTER * longest as f64).max(880.0);
        let points =
            || self.lines.iter().flat_map(|line| &line.points).filter(|(_, value)| *value > 0.0);
        let members_min = points().map(|(members, _)| *members).min().unwrap_or(1) as f64;
        let members_max = points().map(|(members, _)| *members).max().unwrap_or(1) as f64;
        let low = points().map(|(_, value)| *value).fold(f64::INFINITY, f64::min);
        let high = points().map(|(_, value)| *value).fold(0.0, f64::max);
        let (low, high) = if low <= high { (low, high) } else { (1.0, 10.0) };
        // The axis covers whole decades.
        let (bottom, top) =
            (low.log10().floor(), high.log10().ceil().max(low.log10().floor() + 1.0));
        let span = (members_max / members_min).log2().max(1.0);
        let x = |members: f64| LEFT + FIELD * (members / members_min).log2() / span;
        let y = |value: f64| {
            HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value.log10() - bottom) / (top - bottom)
        };

        let mut svg = String::new();
        let mut add = |text: std::fmt::Arguments<'_>| {
            let _ = svg.write_fmt(text);
            svg.push('\n');
        };
        add(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {HEIGHT}\" \
             width=\"{width}\" height=\"{HEIGHT}\" role=\"img\" \
             font-family=\"system-ui, sans-serif\" font-size=\"13\">"
        ));
        add(format_args!("<title>{}</title>", escape(&self.title)));
        add(format_args!("<style>"));
        add(format_args!(
            ".ground {{ fill: #ffffff }} text {{ fill: #1d2126 }} .grid {{ stroke: #d5d9de }}"
        ));
        for (index, (light, _, dashes)) in STROKES.iter().enumerate() {
            add(format_args!(
                ".line{index} {{ stroke: {light}; stroke-dasharray: {} }} \
                 .dot{index} {{ fill: {light} }}",
                if dashes.is_empty() { "none" } else { dashes }
            ));
        }
        add(format_args!("@media (prefers-color-scheme: dark) {{"));
        add(format_args!(
            ".ground {{ fill: #15181c }} text {{ fill: #e4e7eb }} .grid {{ stroke: #3a4048 }}"
        ));
        for (index, (_, dark, _)) in STROKES.iter().enumerate() {
            add(format_args!(".line{index} {{ stroke: {dark} }} .dot{index} {{ fill: {dark} }}"));
        }
        add(format_args!("}}"));
        add(format_args!("</style>"));
        add(format_args!("<rect class=\"ground\" width=\"{width}\" height=\"{HEIGHT}\"/>"));
        add(format_args!(
            "<text x=\"{LEFT}\" y=\"30\" font-size=\"17\" font-weight=\"600\">{}</text>",
            escape(&self.title)
        ));

        let floor = HEIGHT - BOTTOM;
        // If there are few decades, there is room for steps between them.
        let steps: &[f64] = if top - bottom <= 3.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let decades = bottom as i32..=top as i32;
        let values =
            decades.flat_map(|decade| steps.iter().map(move |step| step * 10f64.powi(decade)));
        for value in values.filter(|value| *value <= 10f64.powf(top) * 1.001) {
            let at = y(value);
            add(format_args!("<path class=\"grid\" d=\"M{LEFT} {at:.1}H{right}\"/>"));
            let label = escape(&(self.show)(value));
            add(format_args!(
                "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                LEFT - 8.0,
                at + 4.0
            ));
        }
        let mut ticks: Vec<usize> = points().map(|(members, _)| *members).collect();
        ticks.sort_unstable();
        ticks.dedup();
        for members in ticks {
            let at = x(members as f64);
            add(format_args!("<path class=\"grid\" d=\"M{at:.1} {TOP}V{floor}\"/>"));
            add(format_args!(
                "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{members}</text>",
                floor + 20.0
            ));
        }
        let middle = (LEFT + right) / 2.0;
        add(format_args!(
            "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - 16.0,
            escape(self.across)
        ));
        let middle = (TOP + floor) / 2.0;
        add(format_args!(
            "<text transform=\"translate(20 {middle}) rotate(-90)\" \
             text-anchor=\"middle\">{}</text>",
            escape(&self.axis)
        ));

        for (index, line) in self.lines.iter().enumerate() {
            let stroke = index % STROKES.len();
            // Points of later curves are smaller, so that points below them can be seen where
            // curves meet.
            let radius = (7.0 - 1.5 * index as f64).max(2.5);
            let drawn: Vec<&(usize, f64)> =
                line.points.iter().filter(|(_, value)| *value > 0.0).collect();
            let path: Vec<String> = drawn
                .iter()
                .map(|(members, value)| format!("{:.1} {:.1}", x(*members as f64), y(*value)))
                .collect();
            if !path.is_empty() {
                add(format_args!(
                    "<path class=\"line{stroke}\" fill=\"none\" stroke-width=\"2\" d=\"M{}\"/>",
                    path.join("L")
                ));
            }
            for (members, value) in drawn {
                add(format_args!(
                    "<circle class=\"dot{stroke}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius}\">\
                     <title>{}: {} with {members} {}</title></circle>",
                    x(*members as f64),
                    y(*value),
                    escape(&line.name),
                    escape(&(self.show)(*value)),
                    escape(self.across)
                ));
            }
            let (from, to, at) = (right + 16.0, right + 46.0, TOP + 14.0 + 24.0 * index as f64);
            add(format_args!(
                "<path class=\"line{stroke}\" fill=\"none\" stroke-width=\"2\" \
                 d=\"M{from} {at}H{to}\"/>"
            ));
            add(format_args!(
                "<text x=\"{}\" y=\"{}\">{}</text>",
                to + 8.0,
                at + 4.0,
                escape(&line.name)
            ));
        }
        add(format_args!("</svg>"));
        svg
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_values_give_a_figure() {
        let show = |value: f64| value.to_string();
        let line = |points: &[(usize, f64)]| Curve {
            name: "a < b & \"c\"".into(),
            points: points.to_vec(),
        };
        for points in
            [&[][..], &[(2, 0.0)], &[(2, 5.0)], &[(2, 10.0), (2, 10.0)], &[(2, 1.0), (4096, 1e9)]]
        {
            let (title, axis) = ("<t>".into(), "&".into());
            let figure = Figure { title, axis, across: "members", lines: vec![line(points)], show };
            let svg = figure.svg();
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            assert!(
                svg.contains("&lt;t&gt;") && svg.contains("a &lt; b &amp; &quot;c&quot;"),
                "{svg}"
            );
        }
    }
}
