//! The course of a run of real processes: a lane for each member with its acknowledged writes, and
//! what kills and stops did to the other members.

use super::figures::{
    AXIS, GutterLabel, Series, axis_text, cross_mark, frame, plain, ticks, time, time_axis,
    values_attribute,
};
use super::page::{Section, Table, escape};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The course of a run. Times are on the clock that all processes of a machine share.
pub(crate) struct Timeline {
    pub(crate) begin_ns: u64,
    pub(crate) end_ns: u64,
    /// The lanes in the order of the members.
    pub(crate) lanes: Vec<Lane>,
    /// The deaths in their order.
    pub(crate) deaths: Vec<Death>,
    /// When a host was cut off.
    pub(crate) cut_ns: Option<u64>,
}

/// What a member did.
#[derive(Default)]
pub(crate) struct Lane {
    /// When its writes were acknowledged, in order.
    pub(crate) acked_ns: Vec<u64>,
    /// From when to when it was stopped.
    pub(crate) stops: Vec<(u64, u64)>,
}

/// A death and what it cost.
pub(crate) struct Death {
    pub(crate) member: u32,
    pub(crate) at_ns: u64,
    /// How the member died, such as `kill -9`.
    pub(crate) how: String,
    /// When each survivor noticed it.
    pub(crate) noticed_ns: BTreeMap<u32, u64>,
    /// When no replica was missing any more.
    pub(crate) complete_ns: Option<u64>,
}

/// A pause of a survivor that is at least so long is drawn over the whole run.
const STALL_MIN_NS: u64 = 3_000_000;
/// Into how many parts the time of a lane is divided.
const PARTS: usize = 240;
/// How many deaths are drawn on a scale of their own.
const CLOSE_UPS: usize = 8;

impl Timeline {
    /// The figures and tables of the run.
    pub(crate) fn sections(&self) -> Vec<Section> {
        let mut sections = vec![
            Section::new(
                "The run",
                "A lane for each member: how many of its writes were acknowledged, and when. \
                 Point at a lane or a mark for its values.",
            )
            .figure(&self.legend())
            .figure(&self.lanes_figure())
            .table(&self.members_table()),
            Section::new(
                "Acknowledged writes of all members",
                "The whole job goes on while members die.",
            )
            .figure(&self.rate_figure())
            .table(&self.rate_table()),
        ];
        if !self.deaths.is_empty() {
            let count = self.deaths.len();
            let text = match count > CLOSE_UPS {
                true => format!(
                    "Milliseconds around each kill; the first {CLOSE_UPS} of {count} are drawn. \
                     Each fine line is an acknowledged write."
                ),
                false => "Milliseconds around each kill. Each fine line is an acknowledged write."
                    .to_string(),
            };
            let mut section = Section::new("What each death cost", text).figure(&self.legend());
            for (number, death) in self.deaths.iter().enumerate().take(CLOSE_UPS) {
                section = section
                    .headline(&format!("{} of member {}", death.how, death.member))
                    .figure(&self.close_up(number));
            }
            sections.push(section.table(&self.deaths_table()));
        }
        sections
    }

    fn seconds(&self, at_ns: u64) -> f64 {
        (at_ns as f64 - self.begin_ns as f64) / 1e9
    }

    fn span_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.begin_ns).max(1)
    }

    /// The length of the run in seconds.
    fn length(&self) -> f64 {
        self.span_ns() as f64 / 1e9
    }

    fn death_of(&self, member: usize) -> Option<&Death> {
        self.deaths.iter().find(|death| death.member as usize == member)
    }

    fn labels(&self, height: f64) -> Vec<GutterLabel> {
        let label = |member: usize| GutterLabel {
            y: height * (member as f64 + 0.5),
            long: "member ".into(),
            short: member.to_string(),
            is_dead: self.death_of(member).is_some(),
        };
        (0..self.lanes.len()).map(label).collect()
    }

    fn legend(&self) -> String {
        let mut legend = String::from("<div class=\"legend\">");
        let mut add = |svg: &str, text: &str| {
            let _ = write!(legend, "<span><svg>{svg}</svg>{text}</span>");
        };
        add("<path class=\"rate\" d=\"M0 13V8L4 5L8 7L12 3L16 6V13Z\"/>", "acknowledged writes");
        add("<path class=\"kill\" d=\"M3 2L13 12M13 2L3 12\"/>", "death");
        add("<path class=\"notice\" d=\"M8 1L14 12H2Z\"/>", "a survivor notices");
        add("<rect class=\"stall\" y=\"1\" width=\"16\" height=\"12\" rx=\"2\"/>", "longest pause");
        add("<circle class=\"back\" cx=\"8\" cy=\"7\" r=\"5.5\"/>", "all replicas are back");
        if self.lanes.iter().any(|lane| !lane.stops.is_empty()) {
            add("<rect class=\"stop\" y=\"1\" width=\"16\" height=\"12\" rx=\"2\"/>", "stopped");
        }
        if self.cut_ns.is_some() {
            add("<path class=\"cut-line\" d=\"M8 0V14\"/>", "a host is cut off");
        }
        legend + "</div>\n"
    }

    /// Acknowledged writes for each second, in equal parts of the run.
    fn rates(&self, times_ns: impl Iterator<Item = u64>) -> Vec<f64> {
        let mut counts = vec![0u64; PARTS];
        for at_ns in times_ns.filter(|at_ns| (self.begin_ns..=self.end_ns).contains(at_ns)) {
            let part = (at_ns - self.begin_ns) as u128 * PARTS as u128 / self.span_ns() as u128;
            counts[(part as usize).min(PARTS - 1)] += 1;
        }
        let seconds = self.span_ns() as f64 / 1e9 / PARTS as f64;
        counts.into_iter().map(|count| count as f64 / seconds).collect()
    }

    fn lanes_figure(&self) -> String {
        let height = if self.lanes.len() > 24 { 20.0 } else { 32.0 };
        let part = |at_ns: u64| {
            let since = at_ns as f64 - self.begin_ns as f64;
            (since / self.span_ns() as f64).clamp(0.0, 1.0) * 100.0
        };
        let rates: Vec<Vec<f64>> =
            self.lanes.iter().map(|lane| self.rates(lane.acked_ns.iter().copied())).collect();
        let most = rates.iter().flatten().copied().fold(1.0, f64::max);
        let floor = height * self.lanes.len() as f64;
        let (from, to) = (0.0, self.length());
        let mut svg = time_axis(from, to, "s", floor);
        for (member, (lane, rates)) in self.lanes.iter().zip(&rates).enumerate() {
            let top = height * member as f64 + 2.0;
            let tall = height - 4.0;
            let end = self.death_of(member).map_or(100.0, |death| part(death.at_ns));
            let _ = writeln!(
                svg,
                "<rect class=\"life\" x=\"0\" y=\"{top}\" width=\"{end:.3}%\" height=\"{tall}\" \
                 rx=\"3\"/>"
            );
            if end < 100.0 {
                let middle = top + tall / 2.0;
                let _ = writeln!(
                    svg,
                    "<line class=\"after\" x1=\"{end:.3}%\" x2=\"100%\" y1=\"{middle}\" \
                     y2=\"{middle}\"/>"
                );
            }
            self.draw_stalls(&mut svg, member, top, tall, &part);
            let mut path = String::from("M0 1");
            for (place, rate) in rates.iter().enumerate() {
                let _ = write!(path, "V{:.3}H{}", 1.0 - 0.92 * rate / most, place + 1);
            }
            let _ = writeln!(
                svg,
                "<svg y=\"{top}\" width=\"100%\" height=\"{tall}\" viewBox=\"0 0 {PARTS} 1\" \
                 preserveAspectRatio=\"none\"><path class=\"rate\" d=\"{path}V1Z\"/></svg>"
            );
            let name = format!("member {member}");
            let _ = writeln!(
                svg,
                "<rect class=\"hit\" y=\"{top}\" width=\"100%\" height=\"{tall}\" {}/>",
                values_attribute(from, to, "s", &[(&name, rates, "writes/s")])
            );
            for &(stop_ns, resume_ns) in &lane.stops {
                let (begin, end) = (part(stop_ns), part(resume_ns));
                let text = format!(
                    "member {member} stopped for {}, from {:.3} s",
                    time(resume_ns.saturating_sub(stop_ns) as f64),
                    self.seconds(stop_ns)
                );
                let _ = writeln!(
                    svg,
                    "<rect class=\"stop\" x=\"{begin:.3}%\" y=\"{top}\" width=\"{:.3}%\" \
                     height=\"{tall}\" rx=\"2\" data-tip=\"{}\"/>",
                    (end - begin).max(0.1),
                    escape(&text)
                );
            }
        }
        self.draw_marks(&mut svg, height, floor, &part);
        let _ = writeln!(svg, "<line class=\"cross\" x1=\"0\" x2=\"0\" y1=\"0\" y2=\"{floor}\"/>");
        let label = "Acknowledged writes of each member over time, with deaths";
        frame(label, (92, 34), &self.labels(height), floor + AXIS, &svg)
    }

    /// The pauses of a survivor after deaths.
    fn draw_stalls(
        &self,
        svg: &mut String,
        member: usize,
        top: f64,
        tall: f64,
        part: &dyn Fn(u64) -> f64,
    ) {
        for (number, death) in self.deaths.iter().enumerate() {
            let Some((begin, end)) = self.pause(number, member) else { continue };
            if end - begin < STALL_MIN_NS {
                continue;
            }
            let text = format!(
                "member {member} paused for {} after the death of member {}",
                time((end - begin) as f64),
                death.member
            );
            let _ = writeln!(
                svg,
                "<rect class=\"stall\" x=\"{:.3}%\" y=\"{top}\" width=\"{:.3}%\" height=\"{tall}\" \
                 data-tip=\"{}\"/>",
                part(begin),
                (part(end) - part(begin)).max(0.15),
                escape(&text)
            );
        }
    }

    /// Deaths, the moments when all replicas were back, and the cut, over all lanes.
    fn draw_marks(&self, svg: &mut String, height: f64, floor: f64, part: &dyn Fn(u64) -> f64) {
        if let Some(cut_ns) = self.cut_ns {
            let at = part(cut_ns);
            let _ = writeln!(
                svg,
                "<line class=\"cut-line\" x1=\"{at:.3}%\" x2=\"{at:.3}%\" y1=\"0\" y2=\"{floor}\" \
                 data-tip=\"a host is cut off at {:.3} s\"/>",
                self.seconds(cut_ns)
            );
        }
        for death in &self.deaths {
            let at = part(death.at_ns);
            let y = height * (f64::from(death.member) + 0.5);
            let _ = writeln!(
                svg,
                "<line class=\"kill-line\" x1=\"{at:.3}%\" x2=\"{at:.3}%\" y1=\"0\" y2=\"{floor}\" \
                 opacity=\"0.5\" pointer-events=\"none\"/><g data-tip=\"{}\">{}</g>",
                escape(&self.describe(death)),
                cross_mark(at, y)
            );
        }
    }

    fn describe(&self, death: &Death) -> String {
        let since = |at_ns: Option<u64>| {
            at_ns.map_or("never".into(), |ns| time(ns.saturating_sub(death.at_ns) as f64))
        };
        let noticed = death.noticed_ns.values();
        format!(
            "{} of member {} at {:.3} s\nfirst noticed after {}\nnoticed by all after {}\n\
             all replicas back after {}",
            death.how,
            death.member,
            self.seconds(death.at_ns),
            since(noticed.clone().min().copied()),
            since(noticed.max().copied()),
            since(death.complete_ns)
        )
    }

    /// The longest time between two acknowledged writes of a member from this death until all
    /// replicas were back. Times in which the member was stopped do not count, and the dead have
    /// none.
    fn pause(&self, death: usize, member: usize) -> Option<(u64, u64)> {
        let death = &self.deaths[death];
        let until = death.complete_ns.max(death.noticed_ns.values().max().copied())?;
        if self.death_of(member).is_some_and(|own| own.at_ns <= until) {
            return None;
        }
        let lane = &self.lanes[member];
        let gaps = lane.acked_ns.windows(2).map(|pair| (pair[0], pair[1]));
        let meets = |&(begin, end): &(u64, u64)| end > death.at_ns && begin < until;
        let is_awake = |&(begin, end): &(u64, u64)| {
            !lane.stops.iter().any(|&(stop, resume)| stop < end && resume > begin)
        };
        gaps.filter(meets).filter(is_awake).max_by_key(|(begin, end)| end - begin)
    }

    fn rate_figure(&self) -> String {
        let all = self.lanes.iter().flat_map(|lane| lane.acked_ns.iter().copied());
        let marks =
            self.deaths.iter().map(|death| (self.seconds(death.at_ns), self.describe(death)));
        let series = Series {
            label: "Acknowledged writes of all members over time".into(),
            from: 0.0,
            to: self.length(),
            unit: "s",
            of: "writes/s",
            lines: vec![("all members".into(), self.rates(all))],
            marks: marks.collect(),
            ends: Vec::new(),
            most: None,
        };
        series.html()
    }

    /// The run between its deaths.
    fn rate_table(&self) -> Table {
        let mut table = Table::new(2, &["from", "to", "living members", "writes", "writes/s"]);
        let mut ends: Vec<u64> = self.deaths.iter().map(|death| death.at_ns).collect();
        ends.sort_unstable();
        ends.push(self.end_ns);
        let mut begin = self.begin_ns;
        for (dead, end) in ends.into_iter().enumerate() {
            let range = begin..end;
            let writes = self.lanes.iter().flat_map(|lane| &lane.acked_ns);
            let writes = writes.filter(|at_ns| range.contains(at_ns)).count();
            let seconds = end.saturating_sub(begin) as f64 / 1e9;
            if seconds > 0.0 {
                table.rows.push(vec![
                    format!("{:.3} s", self.seconds(begin)),
                    format!("{:.3} s", self.seconds(end)),
                    self.lanes.len().saturating_sub(dead).to_string(),
                    writes.to_string(),
                    format!("{:.0}", writes as f64 / seconds),
                ]);
            }
            begin = end;
        }
        table
    }

    /// The survivors around a death.
    fn close_up(&self, number: usize) -> String {
        let death = &self.deaths[number];
        let known = death.noticed_ns.values().max().copied();
        let last = death.complete_ns.max(known).unwrap_or(death.at_ns + 50_000_000);
        let after = last.saturating_sub(death.at_ns).clamp(1_000_000, 10_000_000_000);
        let (before, after) = (after as f64 * 0.12, after as f64 * 1.1);
        let span = before + after;
        let part = |at_ns: u64| (at_ns as f64 - death.at_ns as f64 + before) / span;
        let height = if self.lanes.len() > 24 { 18.0 } else { 24.0 };
        let floor = height * self.lanes.len() as f64;
        let mut svg = String::new();
        for value in ticks(-before / 1e6, after / 1e6, 5) {
            let place = (value * 1e6 + before) / span;
            let at = place * 100.0;
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{at:.3}%\" x2=\"{at:.3}%\" y1=\"0\" y2=\"{floor}\"/>"
            );
            svg.push_str(&axis_text(place, floor + 18.0, &format!("{} ms", plain(value))));
        }
        for (member, lane) in self.lanes.iter().enumerate() {
            let (top, tall) = (height * member as f64 + 2.0, height - 4.0);
            let end = self.death_of(member).map_or(1.0, |own| part(own.at_ns).clamp(0.0, 1.0));
            let _ = writeln!(
                svg,
                "<rect class=\"life\" x=\"0\" y=\"{top}\" width=\"{:.3}%\" height=\"{tall}\" \
                 rx=\"2\"/>",
                end * 100.0
            );
            if let Some((begin, end)) = self.pause(number, member) {
                let (from, to) = (part(begin).clamp(0.0, 1.0), part(end).clamp(0.0, 1.0));
                let text = format!("member {member} paused for {}", time((end - begin) as f64));
                let _ = writeln!(
                    svg,
                    "<rect class=\"stall\" x=\"{:.3}%\" y=\"{top}\" width=\"{:.3}%\" \
                     height=\"{tall}\" data-tip=\"{}\"/>",
                    from * 100.0,
                    (to - from) * 100.0,
                    escape(&text)
                );
            }
            // Writes that would be drawn at a place are drawn once.
            let mut path = String::new();
            let mut drawn = None;
            for &at_ns in &lane.acked_ns {
                let place = (part(at_ns) * 800.0).floor();
                if (0.0..=800.0).contains(&place) && drawn != Some(place as u32) {
                    drawn = Some(place as u32);
                    let _ = write!(path, "M{place} 0V1");
                }
            }
            let _ = writeln!(
                svg,
                "<svg y=\"{}\" width=\"100%\" height=\"{}\" viewBox=\"0 0 800 1\" \
                 preserveAspectRatio=\"none\" pointer-events=\"none\">\
                 <path class=\"tick\" d=\"{path}\"/></svg>",
                top + tall * 0.25,
                tall * 0.5
            );
            let middle = top + tall / 2.0;
            if let Some(&at_ns) = death.noticed_ns.get(&(member as u32)) {
                let text = format!(
                    "member {member} noticed after {}",
                    time(at_ns.saturating_sub(death.at_ns) as f64)
                );
                let _ = writeln!(
                    svg,
                    "<svg x=\"{:.3}%\" y=\"{middle}\" overflow=\"visible\"><path class=\"notice\" \
                     d=\"M0-6L6 5H-6Z\" data-tip=\"{}\"/></svg>",
                    part(at_ns) * 100.0,
                    escape(&text)
                );
            }
        }
        if let Some(at_ns) = death.complete_ns {
            let at = part(at_ns) * 100.0;
            let text = format!(
                "all replicas are back after {}",
                time(at_ns.saturating_sub(death.at_ns) as f64)
            );
            let _ = writeln!(
                svg,
                "<g data-tip=\"{}\"><line x1=\"{at:.3}%\" x2=\"{at:.3}%\" y1=\"0\" y2=\"{floor}\" \
                 style=\"stroke: var(--good)\" stroke-dasharray=\"4 3\"/><circle class=\"back\" \
                 cx=\"{at:.3}%\" cy=\"4\" r=\"6\"/></g>",
                escape(&text)
            );
        }
        let at = part(death.at_ns) * 100.0;
        let y = height * (f64::from(death.member) + 0.5);
        let _ = writeln!(
            svg,
            "<line class=\"kill-line\" x1=\"{at:.3}%\" x2=\"{at:.3}%\" y1=\"0\" y2=\"{floor}\"/>\
             <g data-tip=\"{}\">{}</g>",
            escape(&self.describe(death)),
            cross_mark(at, y)
        );
        let label = format!("Milliseconds around the death of member {}", death.member);
        let mut labels = self.labels(height);
        // A member that died later still lives here.
        for (member, label) in labels.iter_mut().enumerate() {
            label.is_dead = self.death_of(member).is_some_and(|own| own.at_ns <= death.at_ns);
        }
        frame(&label, (92, 34), &labels, floor + AXIS, &svg)
    }

    fn deaths_table(&self) -> Table {
        let mut table = Table::new(
            2,
            &[
                "member",
                "how",
                "at",
                "first noticed",
                "noticed by all",
                "longest pause of a survivor",
                "all replicas back",
            ],
        );
        for (number, death) in self.deaths.iter().enumerate() {
            let since = |at_ns: Option<u64>| {
                at_ns.map_or("never".into(), |ns| time(ns.saturating_sub(death.at_ns) as f64))
            };
            let pauses = (0..self.lanes.len()).filter_map(|member| self.pause(number, member));
            let longest = pauses.map(|(begin, end)| end - begin).max();
            table.rows.push(vec![
                death.member.to_string(),
                death.how.clone(),
                format!("{:.3} s", self.seconds(death.at_ns)),
                since(death.noticed_ns.values().min().copied()),
                since(death.noticed_ns.values().max().copied()),
                longest.map_or("".into(), |ns| time(ns as f64)),
                since(death.complete_ns),
            ]);
        }
        table
    }

    fn members_table(&self) -> Table {
        let has_stops = self.lanes.iter().any(|lane| !lane.stops.is_empty());
        let mut table = Table::new(1, &["member", "acknowledged writes", "longest pause", "end"]);
        if has_stops {
            table.header.push("stopped".into());
        }
        for (member, lane) in self.lanes.iter().enumerate() {
            let pause = lane.acked_ns.windows(2).map(|pair| pair[1] - pair[0]).max();
            let stopped: u64 = lane.stops.iter().map(|(from, to)| to.saturating_sub(*from)).sum();
            let end = match self.death_of(member) {
                Some(death) => format!("{} at {:.3} s", death.how, self.seconds(death.at_ns)),
                None => "finished".into(),
            };
            let mut row = vec![
                member.to_string(),
                lane.acked_ns.len().to_string(),
                pause.map_or("".into(), |ns| time(ns as f64)),
                end,
            ];
            if has_stops {
                row.push(if stopped == 0 { String::new() } else { time(stopped as f64) });
            }
            table.rows.push(row);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::page::Page;

    fn timeline() -> Timeline {
        let writes = |until: u64| (0..until).map(|number| 1_000 + number * 1_000_000).collect();
        let lane = |until| Lane { acked_ns: writes(until), stops: Vec::new() };
        let mut lanes = vec![lane(400), lane(1000), lane(1000)];
        // Member 1 pauses for 20 ms after the death, and member 2 is stopped over it.
        lanes[1].acked_ns.retain(|at_ns| !(400_500_000..420_000_000).contains(at_ns));
        lanes[2].acked_ns.retain(|at_ns| !(390_000_000..600_000_000).contains(at_ns));
        lanes[2].stops.push((390_000_000, 600_000_000));
        let death = Death {
            member: 0,
            at_ns: 400_000_000,
            how: "kill -9".into(),
            noticed_ns: [(1, 402_000_000), (2, 601_000_000)].into(),
            complete_ns: Some(640_000_000),
        };
        Timeline { begin_ns: 0, end_ns: 1_000_000_000, lanes, deaths: vec![death], cut_ns: None }
    }

    #[test]
    fn a_pause_is_the_longest_gap_after_a_death_of_a_member_that_was_awake() {
        let timeline = timeline();
        assert_eq!(timeline.pause(0, 0), None);
        assert_eq!(timeline.pause(0, 1), Some((400_001_000, 420_001_000)));
        assert_eq!(timeline.pause(0, 2).map(|(begin, end)| end - begin), Some(1_000_000));
    }

    #[test]
    fn rates_count_every_write_once() {
        let timeline = timeline();
        for lane in &timeline.lanes {
            let rates = timeline.rates(lane.acked_ns.iter().copied());
            let counted: f64 = rates.iter().map(|rate| rate / PARTS as f64).sum();
            assert!((counted - lane.acked_ns.len() as f64).abs() < 1e-6, "{counted}");
        }
    }

    #[test]
    fn odd_runs_give_figures() {
        let empty = Timeline {
            begin_ns: 5,
            end_ns: 5,
            lanes: vec![Lane::default()],
            deaths: Vec::new(),
            cut_ns: None,
        };
        let mut nobody_noticed = timeline();
        nobody_noticed.deaths[0].noticed_ns.clear();
        nobody_noticed.deaths[0].complete_ns = None;
        nobody_noticed.cut_ns = Some(1);
        let mut many = timeline();
        many.lanes.extend((0..125).map(|_| Lane::default()));
        for timeline in [empty, nobody_noticed, many, timeline()] {
            let page = Page::new("t", "l");
            let page = timeline.sections().into_iter().fold(page, Page::section);
            let html = page.html();
            assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
            assert!(html.contains("</html>"));
        }
    }
}
