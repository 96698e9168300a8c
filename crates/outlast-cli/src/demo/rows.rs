//! A row for each member: how many of its writes were acknowledged over time, and how it ended. On
//! a terminal the rows are drawn again and again while the members write.

use crate::terminal::{has_blocks, level, wants_colours};
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;

/// The least and the most parts of time in a row.
const CELLS: std::ops::RangeInclusive<usize> = 8..=48;
/// Columns of a row besides its parts of time: the member, its writes, and its end.
const NAME: usize = "member 12  ".len();
const WRITES: usize = "  123456 writes".len();
const END: usize = "  killed".len();
/// A terminal of unknown width.
const COLUMNS: usize = 80;

/// How rows are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Style {
    columns: usize,
    has_colours: bool,
    has_blocks: bool,
}

impl Style {
    /// The style of the terminal, or of a file if it is none.
    pub(super) fn of(terminal: &(impl IsTerminal + std::os::fd::AsFd)) -> Style {
        let size = rustix::termios::tcgetwinsize(terminal).ok();
        let columns = size.map_or(0, |size| usize::from(size.ws_col));
        Style {
            columns: if columns == 0 { COLUMNS } else { columns },
            has_colours: terminal.is_terminal() && wants_colours(|name| std::env::var(name).ok()),
            has_blocks: has_blocks(|name| std::env::var(name).ok()),
        }
    }

    /// How many parts of time fit into a row.
    fn cells(self) -> usize {
        let room = self.columns.saturating_sub(NAME + WRITES + 1);
        let room = if self.shows_end() { room.saturating_sub(END) } else { room };
        room.clamp(*CELLS.start(), *CELLS.end())
    }

    /// Whether there is room for words on the end of a member.
    fn shows_end(self) -> bool {
        self.columns > NAME + WRITES + END + 16
    }
}

/// What the rows show.
#[derive(Default)]
pub(super) struct Rows {
    /// For each member, when its writes were acknowledged, since the beginning. A live view knows
    /// only how many there were at a few moments: each entry is a moment and a number of writes.
    pub(super) writes: Vec<Vec<(Duration, u64)>>,
    /// When members were killed.
    pub(super) kills: BTreeMap<u32, Duration>,
    /// From when to when replicas were missing; `None` if they still are.
    pub(super) repairs: Vec<(Duration, Option<Duration>)>,
    /// How long the rows are.
    pub(super) length: Duration,
}

impl Rows {
    /// Records how many writes of each member are acknowledged at a moment.
    pub(super) fn record(&mut self, now: Duration, acked: &[u64]) {
        self.writes.resize(acked.len(), Vec::new());
        for (writes, &acked) in self.writes.iter_mut().zip(acked) {
            let before: u64 = writes.iter().map(|(_, count)| count).sum();
            if acked > before {
                writes.push((now, acked - before));
            }
        }
    }

    /// The rows as text, a line for each member.
    pub(super) fn lines(&self, style: Style) -> Vec<String> {
        let cells = style.cells();
        let cell = |at: Duration| {
            let part = at.as_secs_f64() / self.length.as_secs_f64().max(1e-9);
            ((part * cells as f64) as usize).min(cells - 1)
        };
        let counts = |writes: &Vec<(Duration, u64)>| {
            let mut counts = vec![0; cells];
            writes.iter().for_each(|(at, count)| counts[cell(*at)] += count);
            counts
        };
        let counts: Vec<Vec<u64>> = self.writes.iter().map(counts).collect();
        let most = counts.iter().flatten().copied().max().unwrap_or(0).max(1);
        let is_repairing = |place: usize| {
            let is_in = |(from, to): &(Duration, Option<Duration>)| {
                let to = to.map_or(cells, |to| cell(to) + 1);
                (cell(*from)..to).contains(&place)
            };
            self.repairs.iter().any(is_in)
        };
        let row = |(member, counts): (usize, &Vec<u64>)| {
            let killed = self.kills.get(&(member as u32));
            let mut bar = String::new();
            for (place, &count) in counts.iter().enumerate() {
                let (colour, text) = match killed.map(|at| cell(*at)) {
                    Some(end) if place == end => (RED, if style.has_blocks { '✗' } else { 'x' }),
                    Some(end) if place > end => (DIM, if style.has_blocks { '·' } else { ' ' }),
                    _ if is_repairing(place) => (YELLOW, level(count, most, style.has_blocks)),
                    _ => (CYAN, level(count, most, style.has_blocks)),
                };
                paint(&mut bar, style, colour, text);
            }
            let acked: u64 = self.writes[member].iter().map(|(_, count)| count).sum();
            let end = match (killed.is_some() && style.shows_end(), style.has_colours) {
                (true, true) => format!("  {RED}killed{PLAIN}"),
                (true, false) => "  killed".to_string(),
                (false, _) => String::new(),
            };
            let bar = if style.has_colours { format!("{bar}{PLAIN}") } else { bar };
            format!("member {member:<2}  {bar}  {acked:>6} writes{end}")
        };
        counts.iter().enumerate().map(row).collect()
    }
}

const RED: &str = "\x1b[31m";
const YELLOW: &str = "\x1b[33m";
const CYAN: &str = "\x1b[36m";
const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// Adds a character, with a change of the colour where it changes.
fn paint(bar: &mut String, style: Style, colour: &str, text: char) {
    let last = bar.rfind('\x1b').map(|begin| &bar[begin..]);
    if style.has_colours && !last.is_some_and(|last| last.starts_with(colour)) {
        bar.push_str(PLAIN);
        bar.push_str(colour);
    }
    bar.push(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN_STYLE: Style = Style { columns: 80, has_colours: false, has_blocks: true };

    fn rows() -> Rows {
        let mut rows = Rows { length: Duration::from_secs(4), ..Rows::default() };
        for step in 1..=400u64 {
            let now = Duration::from_millis(step * 10 - 5);
            rows.record(now, &[step * 10, step.min(120) * 10, step * 5]);
        }
        rows.kills.insert(1, Duration::from_millis(1210));
        rows.repairs.push((Duration::from_millis(1210), Some(Duration::from_millis(1300))));
        rows
    }

    #[test]
    fn a_row_counts_all_writes_and_shows_a_death() {
        let lines = rows().lines(PLAIN_STYLE);
        assert_eq!(lines.len(), 3);
        assert!(lines[0].starts_with("member 0   ███") && lines[0].ends_with("  4000 writes"));
        assert!(lines[1].contains("█✗·") && lines[1].ends_with("  1200 writes  killed"));
        assert!(lines[2].contains("▄▄▄") && !lines[2].contains('\x1b'), "{lines:?}");
    }

    #[test]
    fn rows_fit_into_every_terminal() {
        for columns in [40, 53, 60, 61, 80, 200] {
            for (has_colours, has_blocks) in [(false, false), (false, true), (true, true)] {
                let style = Style { columns, has_colours, has_blocks };
                for line in rows().lines(style) {
                    let mut width = 0;
                    let mut is_code = false;
                    for c in line.chars() {
                        match (is_code, c) {
                            (_, '\x1b') => is_code = true,
                            (true, 'm') => is_code = false,
                            (true, _) => {}
                            (false, _) => width += 1,
                        }
                    }
                    assert!(width <= columns, "{width} of {columns}: {line}");
                    assert_eq!(line.contains('\x1b'), has_colours, "{line:?}");
                    assert_eq!(line.is_ascii(), !has_blocks, "{line:?}");
                }
            }
        }
    }

    #[test]
    fn rows_without_any_write_are_empty() {
        let mut rows = Rows::default();
        assert!(rows.lines(PLAIN_STYLE).is_empty());
        rows.record(Duration::ZERO, &[0, 0]);
        assert_eq!(rows.lines(PLAIN_STYLE).len(), 2);
    }
}
