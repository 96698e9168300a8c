//! What `outlast top` draws: the job, a row for each member, and what happened. It fits into every
//! terminal from 40 columns on: a narrow terminal gets fewer columns, a low terminal fewer parts.

use super::course::{Event, MemberRow, Moment, State, Times};
use crate::quantity::human_bytes;
use crate::terminal::level;
use ratatui::Frame;
use ratatui::style::{Color, Modifier, Style as CellStyle};
use ratatui::text::{Line, Span};
use std::cmp::Ordering;
use std::time::Duration;

/// The width of the history of a member: at least, and at most.
const HISTORY: (usize, usize) = (8, 32);

/// What the terminal can show.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    pub(super) has_colours: bool,
    pub(super) has_blocks: bool,
}

/// A column of the table, in the order in which columns are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Column {
    Member,
    Pid,
    State,
    Cpu,
    Operations,
    History,
    PutP50,
    PutP99,
    GetP50,
    GetP99,
    Transactions,
    Missing,
    Memory,
    Resident,
    Domain,
}

/// The columns, the most important first: a narrow terminal shows only the first of them.
const BY_IMPORTANCE: [Column; 15] = [
    Column::Member,
    Column::State,
    Column::Operations,
    Column::Cpu,
    Column::Missing,
    Column::Memory,
    Column::History,
    Column::PutP99,
    Column::GetP99,
    Column::Pid,
    Column::Transactions,
    Column::PutP50,
    Column::GetP50,
    Column::Domain,
    Column::Resident,
];

impl Column {
    fn title(self) -> &'static str {
        match self {
            Column::Member => "member",
            Column::Pid => "pid",
            Column::State => "state",
            Column::Cpu => "cpu",
            Column::Operations => "ops/s",
            Column::History => "",
            Column::PutP50 => "put p50",
            Column::PutP99 => "put p99",
            Column::GetP50 => "get p50",
            Column::GetP99 => "get p99",
            Column::Transactions => "tx/s",
            Column::Missing => "missing",
            Column::Memory => "memory",
            Column::Resident => "resident",
            Column::Domain => "domain",
        }
    }

    fn width(self) -> usize {
        match self {
            Column::Member => 6,
            Column::Pid => 8,
            Column::State => 8,
            Column::Cpu => 5,
            Column::Operations => 6,
            Column::History => HISTORY.0,
            Column::PutP50 | Column::PutP99 | Column::GetP50 | Column::GetP99 => 7,
            Column::Transactions => 6,
            Column::Missing => 7,
            Column::Memory | Column::Resident => 9,
            Column::Domain => 14,
        }
    }

    fn is_text(self) -> bool {
        matches!(self, Column::State | Column::History | Column::Domain)
    }

    /// The content of a row in this column.
    fn cell(self, row: &MemberRow) -> String {
        let rate = |value: Option<f64>| value.map_or("-".into(), rate);
        let times = |times: Option<Times>, of: fn(Times) -> f64| {
            times.map_or("-".into(), |times| us(of(times)))
        };
        match self {
            Column::Member => row.member.to_string(),
            Column::Pid => row.pid.map_or("-".into(), |pid| pid.to_string()),
            Column::State if row.is_frozen => "frozen".into(),
            Column::State => row.state.name().into(),
            Column::Cpu => row.cpu.map_or("-".into(), |cpu| format!("{:.0} %", cpu * 100.0)),
            Column::Operations => rate(row.operations_per_s),
            Column::History => String::new(),
            Column::PutP50 => times(row.put, |times| times.p50_us),
            Column::PutP99 => times(row.put, |times| times.p99_us),
            Column::GetP50 => times(row.get, |times| times.p50_us),
            Column::GetP99 => times(row.get, |times| times.p99_us),
            Column::Transactions => rate(row.transactions_per_s),
            Column::Missing if !row.state.is_living() => "-".into(),
            Column::Missing => row.replicas_missing.to_string(),
            Column::Memory | Column::Resident if !row.state.is_living() => "-".into(),
            Column::Memory => human_bytes(row.segment_bytes),
            Column::Resident => human_bytes(row.resident_bytes),
            Column::Domain => row.domain.clone(),
        }
    }

    /// The order of two rows by this column: the greatest first, except for names.
    pub(super) fn order(self, a: &MemberRow, b: &MemberRow) -> Ordering {
        let number = |a: Option<f64>, b: Option<f64>| {
            b.unwrap_or(-1.0).partial_cmp(&a.unwrap_or(-1.0)).unwrap_or(Ordering::Equal)
        };
        let times =
            |a: Option<Times>, b: Option<Times>, of: fn(Times) -> f64| number(a.map(of), b.map(of));
        let order = match self {
            Column::Member | Column::Pid | Column::History => Ordering::Equal,
            Column::State => a.state.cmp(&b.state),
            Column::Cpu => number(a.cpu, b.cpu),
            Column::Operations => number(a.operations_per_s, b.operations_per_s),
            Column::PutP50 => times(a.put, b.put, |times| times.p50_us),
            Column::PutP99 => times(a.put, b.put, |times| times.p99_us),
            Column::GetP50 => times(a.get, b.get, |times| times.p50_us),
            Column::GetP99 => times(a.get, b.get, |times| times.p99_us),
            Column::Transactions => number(a.transactions_per_s, b.transactions_per_s),
            Column::Missing => b.replicas_missing.cmp(&a.replicas_missing),
            Column::Memory => b.segment_bytes.cmp(&a.segment_bytes),
            Column::Resident => b.resident_bytes.cmp(&a.resident_bytes),
            Column::Domain => a.domain.cmp(&b.domain),
        };
        order.then(a.member.cmp(&b.member))
    }
}

/// The columns that rows can be sorted by, in the order of the key `s`.
pub(super) const SORTS: [Column; 8] = [
    Column::Member,
    Column::State,
    Column::Operations,
    Column::Cpu,
    Column::PutP99,
    Column::GetP99,
    Column::Missing,
    Column::Memory,
];

/// What the user has chosen by keys.
#[derive(Clone, Debug, Default)]
pub(super) struct Choice {
    /// The place of the column in [`SORTS`].
    pub(super) sort: usize,
    pub(super) is_reversed: bool,
    /// Rows with this text in their number, state or domain are shown.
    pub(super) filter: String,
    pub(super) is_typing: bool,
    pub(super) is_paused: bool,
    pub(super) shows_help: bool,
    /// How many rows are scrolled out at the top.
    pub(super) scroll: usize,
}

impl Choice {
    /// The rows to be shown, in order.
    pub(super) fn rows<'a>(&self, members: &'a [MemberRow]) -> Vec<&'a MemberRow> {
        let wanted = self.filter.to_lowercase();
        let is_shown = |row: &&MemberRow| {
            let number = row.member.to_string();
            let has = |text: &str| text.to_lowercase().contains(&wanted);
            wanted.is_empty() || number == wanted || has(row.state.name()) || has(&row.domain)
        };
        let mut rows: Vec<&MemberRow> = members.iter().filter(is_shown).collect();
        let column = SORTS[self.sort % SORTS.len()];
        rows.sort_by(|a, b| column.order(a, b));
        if self.is_reversed {
            rows.reverse();
        }
        rows
    }
}

/// What is drawn.
pub(super) struct Screen<'a> {
    pub(super) moment: Option<&'a Moment>,
    pub(super) events: Vec<&'a Event>,
    pub(super) choice: &'a Choice,
    pub(super) style: Style,
    /// How many jobs run.
    pub(super) jobs: usize,
}

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, screen: &Screen<'_>) {
    let area = frame.area();
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    let lines = lines(screen, width, height);
    let buffer = frame.buffer_mut();
    for (y, line) in (0..area.height).zip(&lines) {
        buffer.set_line(area.x, area.y + y, line, area.width);
    }
}

fn lines(screen: &Screen<'_>, width: usize, height: usize) -> Vec<Line<'static>> {
    let footer = footer(screen, width);
    let room = height.saturating_sub(1);
    let mut lines = match screen.moment {
        _ if screen.choice.shows_help => help(screen.style),
        None => vec![
            Line::from(bold(" outlast top", screen.style)),
            Line::default(),
            Line::from(" no job of this user runs; waiting for one"),
        ],
        Some(moment) => job(screen, moment, width, room),
    };
    lines.resize(room, Line::default());
    lines.push(footer);
    lines
}

/// The job: its head, the table, and the events.
fn job(screen: &Screen<'_>, moment: &Moment, width: usize, room: usize) -> Vec<Line<'static>> {
    let mut lines = head(screen, moment, width);
    if room < lines.len() + 4 {
        lines.truncate(room.saturating_sub(4).max(1));
    } else {
        lines.push(Line::default());
    }
    let rows = screen.choice.rows(&moment.members);
    let left = room.saturating_sub(lines.len() + 1);
    // Events get what the rows do not need, and a third of the room in any case.
    let events = screen.events.len() + 1;
    let for_events = events.min(left.saturating_sub(rows.len() + 1).max(left / 3));
    let for_events = if for_events < 2 { 0 } else { for_events };
    let for_rows = left.saturating_sub(if for_events > 0 { for_events + 1 } else { 0 });
    lines.extend(table(screen, &rows, width, for_rows));
    if for_events > 0 {
        lines.push(Line::default());
        lines.push(Line::from(dim(" what happened", screen.style)));
        let shown = screen.events.iter().rev().take(for_events - 1).rev();
        lines.extend(shown.map(|event| told(event, screen.style)));
    }
    lines
}

fn told(event: &Event, style: Style) -> Line<'static> {
    let mark = match (event.is_bad, style.has_blocks) {
        (true, true) => "✗",
        (true, false) => "x",
        (false, true) => "·",
        (false, false) => "-",
    };
    let colour = if event.is_bad { Color::Red } else { Color::Green };
    let at = Duration::from_secs_f64(event.at_s.max(0.0));
    Line::from(vec![
        dim(&format!(" {:>8}  ", age(at)), style),
        coloured(mark, colour, style),
        Span::raw(format!(" {}", event.what)),
    ])
}

/// The lines on the whole job.
fn head(screen: &Screen<'_>, moment: &Moment, width: usize) -> Vec<Line<'static>> {
    let style = screen.style;
    let dot = if style.has_blocks { " · " } else { " - " };
    let state = match (moment.has_ended, screen.choice.is_paused) {
        (true, _) => "ended",
        (false, true) => "paused",
        (false, false) => "up",
    };
    let up = format!("{state} {}", age(Duration::from_secs_f64(moment.age_s)));
    let mut first = vec![bold(&format!(" job {}", moment.job), style), Span::raw(dot)];
    first.push(if state == "up" { Span::raw(up) } else { coloured(&up, Color::Yellow, style) });
    let used: usize = first.iter().map(Span::width).sum();
    let room = width.saturating_sub(used + 4);
    if room > 8 {
        first.push(dim(&format!("{dot}{}", cut(&moment.command, room - 3)), style));
    }
    let mut members = vec![Span::raw(" ")];
    let mut count = |count: usize, name: &str, colour: Option<Color>| {
        if count > 0 {
            let text = format!("{count} {name}  ");
            members.push(match colour {
                Some(colour) => coloured(&text, colour, style),
                None => dim(&text, style),
            });
        }
    };
    count(moment.running, "running", Some(Color::Green));
    count(moment.stopped, "stopped", Some(Color::Yellow));
    count(moment.dead, "dead", Some(Color::Red));
    count(moment.left, "left", None);
    count(moment.absent, "elsewhere", None);
    if moment.is_frozen {
        members.push(coloured("writes frozen", Color::Cyan, style));
    }
    let rate_of = rate(moment.operations_per_s);
    let mut work = vec![Span::raw(" "), bold(&rate_of, style), dim(" operations/s", style)];
    let mut fact = |name: &str, value: String| {
        work.push(dim(&format!("   {name} "), style));
        work.push(Span::raw(value));
    };
    fact("memory", human_bytes(moment.segment_bytes));
    if moment.transactions_per_s > 0.0 || moment.transactions_open > 0 {
        fact("transactions/s", rate(moment.transactions_per_s));
    }
    let latency = |times: Times| format!("{} / {}", us(times.p50_us), us(times.p99_us));
    if let Some(put) = moment.put {
        fact("put p50 / p99", latency(put));
    }
    if let Some(get) = moment.get {
        fact("get", latency(get));
    }
    if moment.snapshots > 0 {
        fact("snapshots", moment.snapshots.to_string());
    }
    vec![Line::from(first), Line::from(members), Line::from(work), repair(moment, width, style)]
}

/// The line on replicas and repair.
fn repair(moment: &Moment, width: usize, style: Style) -> Line<'static> {
    let replicas = match moment.replicas {
        0 => return Line::from(dim(" no store is open", style)),
        1 => " 1 replica of each value".into(),
        count => format!(" {count} replicas of each value"),
    };
    let Some(progress) = moment.repair_progress else {
        let made = match moment.replicas_repaired {
            0 => String::new(),
            made => format!("; {made} made again"),
        };
        let well = if moment.has_ended { "" } else { ", none missing" };
        return Line::from(vec![
            dim(&replicas, style),
            coloured(well, Color::Green, style),
            dim(&made, style),
        ]);
    };
    let missing = match moment.replicas_missing {
        0 => "looking for missing replicas".into(),
        missing => format!("{missing} missing"),
    };
    let text = format!(" repair {:>3.0} % ", progress * 100.0);
    let room = width.saturating_sub(text.chars().count() + missing.chars().count() + 3).min(40);
    let (full, empty) = if style.has_blocks { ("█", "░") } else { ("#", ".") };
    let done = (progress * room as f64).round() as usize;
    Line::from(vec![
        coloured(&text, Color::Yellow, style),
        coloured(&full.repeat(done), Color::Yellow, style),
        dim(&empty.repeat(room.saturating_sub(done)), style),
        Span::raw(format!(" {missing}")),
    ])
}

/// The columns that fit, each with its width.
pub(super) fn columns(width: usize, rows: &[&MemberRow]) -> Vec<(Column, usize)> {
    let has_domain = rows.iter().any(|row| !row.domain.is_empty());
    let mut left = width;
    let mut chosen = Vec::new();
    for column in BY_IMPORTANCE {
        let needed = column.width() + 1;
        if needed <= left && (column != Column::Domain || has_domain) {
            left -= needed;
            chosen.push((column, column.width()));
        }
    }
    chosen.sort_unstable();
    for (column, width) in &mut chosen {
        if *column == Column::History {
            *width = (*width + left).min(HISTORY.1);
        }
    }
    chosen
}

fn table(
    screen: &Screen<'_>,
    rows: &[&MemberRow],
    width: usize,
    room: usize,
) -> Vec<Line<'static>> {
    let style = screen.style;
    let columns = columns(width, rows);
    let sort = SORTS[screen.choice.sort % SORTS.len()];
    let title = |&(column, width): &(Column, usize)| {
        let text = pad(column.title(), width, column.is_text());
        let head = if column == sort { bold(&text, style) } else { dim(&text, style) };
        [Span::raw(" "), head]
    };
    let mut lines = vec![Line::from_iter(columns.iter().flat_map(title))];
    let most = rows.iter().flat_map(|row| row.history.iter().copied()).max().unwrap_or(0).max(1);
    let scroll = screen.choice.scroll.min(rows.len().saturating_sub(room));
    for row in rows.iter().skip(scroll).take(room) {
        let cell = |&(column, width): &(Column, usize)| {
            let cell = match column {
                Column::History => history(row, width, most, style),
                _ => painted(column, row, &pad(&column.cell(row), width, column.is_text()), style),
            };
            [Span::raw(" "), cell]
        };
        lines.push(Line::from_iter(columns.iter().flat_map(cell)));
    }
    if rows.is_empty() {
        lines.push(Line::from(dim(" no member matches the filter", style)));
    }
    lines
}

/// The operations a second of a member over time.
fn history(row: &MemberRow, width: usize, most: u64, style: Style) -> Span<'static> {
    let shown = &row.history[row.history.len().saturating_sub(width)..];
    let bar: String = shown.iter().map(|&rate| level(rate, most, style.has_blocks)).collect();
    coloured(&pad(&bar, width, false), Color::Cyan, style)
}

fn painted(column: Column, row: &MemberRow, text: &str, style: Style) -> Span<'static> {
    let colour = match (column, row.state) {
        (Column::State, _) if row.is_frozen => Color::Cyan,
        (Column::State, State::Running) => Color::Green,
        (Column::State, State::Stopped | State::Silent | State::Joining) => Color::Yellow,
        (Column::State, State::Dead | State::Ended) => Color::Red,
        (Column::Missing, _) if row.replicas_missing > 0 => Color::Yellow,
        (_, state) if !state.is_living() => return dim(text, style),
        _ => return Span::raw(text.to_string()),
    };
    coloured(text, colour, style)
}

fn footer(screen: &Screen<'_>, width: usize) -> Line<'static> {
    let (choice, style) = (screen.choice, screen.style);
    if choice.is_typing {
        return Line::from(vec![
            bold(" filter: ", style),
            Span::raw(format!("{}_", choice.filter)),
            dim("  Enter keeps it, Esc clears it", style),
        ]);
    }
    let sort = SORTS[choice.sort % SORTS.len()].title();
    let reversed = if choice.is_reversed { ", reversed" } else { "" };
    let filter = match choice.filter.as_str() {
        "" => "filter".to_string(),
        filter => format!("filter: {filter}"),
    };
    let mut keys = vec![
        ("q", "quit".to_string()),
        ("s", format!("sort: {sort}{reversed}")),
        ("/", filter),
        ("?", "help".to_string()),
    ];
    if screen.jobs > 1 {
        keys.insert(1, ("Tab", format!("next of {} jobs", screen.jobs)));
    }
    let mut spans = Vec::new();
    let mut used = 0;
    for (key, what) in keys {
        let needed = key.chars().count() + what.chars().count() + 3;
        if used + needed <= width {
            used += needed;
            spans.extend([Span::raw(" "), bold(key, style), dim(&format!(" {what} "), style)]);
        }
    }
    Line::from(spans)
}

fn help(style: Style) -> Vec<Line<'static>> {
    let keys = [
        ("q, Esc, Ctrl-C", "quit"),
        ("s", "sort by the next column"),
        ("r", "reverse the order"),
        ("/", "filter: dead, 3, rack1"),
        ("Tab", "the next job"),
        ("p, Space", "pause"),
        ("Up, Down, PgUp, PgDn", "scroll"),
        ("?", "close this page"),
    ];
    let mut lines = vec![Line::from(bold(" outlast top", style)), Line::default()];
    lines.extend(keys.map(|(key, what)| {
        Line::from(vec![bold(&format!(" {key:<14} "), style), Span::raw(what.to_string())])
    }));
    lines.push(Line::default());
    lines.extend(
        [
            " ops/s    operations a second: a put or",
            "          get is one, others are more",
            " missing  replicas to be made again, as",
            "          far as the primary knows",
            " memory   what the member lends the job",
            " silent   its background does not run",
        ]
        .map(|text| Line::from(dim(text, style))),
    );
    lines
}

fn bold(text: &str, style: Style) -> Span<'static> {
    let modifier = if style.has_colours { Modifier::BOLD } else { Modifier::empty() };
    Span::styled(text.to_string(), CellStyle::new().add_modifier(modifier))
}

fn dim(text: &str, style: Style) -> Span<'static> {
    let modifier = if style.has_colours { Modifier::DIM } else { Modifier::empty() };
    Span::styled(text.to_string(), CellStyle::new().add_modifier(modifier))
}

fn coloured(text: &str, colour: Color, style: Style) -> Span<'static> {
    let cell = CellStyle::new();
    Span::styled(text.to_string(), if style.has_colours { cell.fg(colour) } else { cell })
}

/// A text of exactly this width.
fn pad(text: &str, width: usize, is_left: bool) -> String {
    let text = cut(text, width);
    let blanks = " ".repeat(width.saturating_sub(text.chars().count()));
    if is_left { text + &blanks } else { blanks + &text }
}

/// A text of at most this width.
fn cut(text: &str, width: usize) -> String {
    match text.chars().count() <= width {
        true => text.to_string(),
        false => {
            text.chars().take(width.saturating_sub(2)).chain("..".chars()).take(width).collect()
        }
    }
}

/// A rate in at most six characters.
pub(super) fn rate(value: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.into_iter().find(|(unit, _)| value >= *unit * 0.9995) {
        Some((unit, name)) if value / unit >= 99.95 => format!("{:.0} {name}", value / unit),
        Some((unit, name)) => format!("{:.1} {name}", value / unit),
        None => format!("{value:.0}"),
    }
}

/// A number of microseconds, as [`time`] shows it.
fn us(value: f64) -> String {
    time(Duration::from_nanos((value * 1e3) as u64))
}

/// A short time with its unit, in at most seven characters.
pub(super) fn time(time: Duration) -> String {
    let ns = time.as_nanos() as f64;
    let (value, unit) = match ns {
        ..1e3 => (ns, "ns"),
        ..1e6 => (ns / 1e3, "us"),
        ..1e9 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    };
    if value < 9.95 && ns >= 1e3 {
        format!("{value:.1} {unit}")
    } else {
        format!("{value:.0} {unit}")
    }
}

/// How long a job runs.
pub(super) fn age(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{:.1} s", time.as_secs_f64()),
        60..3600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d {:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::super::course::Course;
    use super::super::course::tests::{kill, observation};
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    const PLAIN: Style = Style { has_colours: false, has_blocks: true };

    /// A job of three members, of which the second has died.
    fn course() -> Course {
        let mut course = Course::new(4711, "./simulation --steps 100 input.toml".into());
        course.add(observation(0, &[0, 0, 0]));
        let mut look = observation(1000, &[1500, 900, 2_500_000]);
        kill(&mut look, 1);
        course.add(look);
        course
    }

    fn drawn(
        course: &Course,
        choice: &Choice,
        style: Style,
        size: (u16, u16),
    ) -> Terminal<TestBackend> {
        let moment = course.moment();
        let events = course.events.iter().collect();
        let screen = Screen { moment: moment.as_ref(), events, choice, style, jobs: 2 };
        let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).expect("a terminal");
        terminal.draw(|frame| draw(frame, &screen)).expect("drawn");
        terminal
    }

    fn text(terminal: &Terminal<TestBackend>) -> Vec<String> {
        let buffer = terminal.backend().buffer();
        let rows = buffer.content().chunks(usize::from(buffer.area.width).max(1));
        let row = |cells: &[ratatui::buffer::Cell]| {
            cells.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_string()
        };
        rows.map(row).collect()
    }

    #[test]
    fn a_job_is_drawn_with_its_members_and_events() {
        let lines = text(&drawn(&course(), &Choice::default(), PLAIN, (100, 20)));
        let all = lines.join("\n");
        assert!(lines[0].starts_with(" job 4711 · up 6.0 s · ./simulation --steps 100"), "{all}");
        assert_eq!(lines[1].trim(), "2 running  1 dead", "{all}");
        assert!(lines[2].starts_with(" 2.5 M operations/s   memory 2.0 MiB"), "{all}");
        assert!(lines[3].starts_with(" repair   0 % ░░░"), "{all}");
        let row = |member: &str| {
            let row = lines.iter().skip(5).find(|line| line.trim_start().starts_with(member));
            row.unwrap_or_else(|| panic!("member {member}: {all}")).clone()
        };
        assert!(row("0 ").contains("running") && row("0 ").contains("1.5 k"), "{all}");
        assert!(row("1 ").contains("dead") && row("1 ").contains('-'), "{all}");
        assert!(row("2 ").contains("2.5 M") && row("2 ").contains('█'), "{all}");
        assert!(lines.iter().any(|line| line.ends_with("✗ member 1 died")), "{all}");
        assert!(lines[19].contains("q quit") && lines[19].contains("next of 2 jobs"), "{all}");
    }

    #[test]
    fn every_size_of_terminal_is_drawn() {
        for width in [1, 10, 39, 40, 53, 80, 132, 250] {
            for height in [1, 2, 3, 5, 8, 24, 60] {
                for style in [PLAIN, Style { has_colours: true, has_blocks: false }] {
                    let mut choice = Choice { scroll: 99, ..Choice::default() };
                    let lines = text(&drawn(&course(), &choice, style, (width, height)));
                    assert_eq!(lines.len(), usize::from(height));
                    let is_plain = lines.iter().all(|line| line.is_ascii());
                    assert!(style.has_blocks || is_plain, "{lines:?}");
                    choice.shows_help = true;
                    drawn(&course(), &choice, style, (width, height));
                }
            }
        }
        let lines = text(&drawn(&course(), &Choice::default(), PLAIN, (40, 24)));
        for word in ["member", "state", "ops/s", "cpu", "missing", "running", "dead", "quit"] {
            assert!(lines.iter().any(|line| line.contains(word)), "{word}: {lines:#?}");
        }
    }

    #[test]
    fn help_fits_into_40_columns() {
        let width = |line: &Line<'_>| line.width();
        assert!(help(PLAIN).iter().map(width).max() <= Some(40));
    }

    #[test]
    fn colours_are_used_only_where_they_are_wanted() {
        let has_colours = |style: Style| {
            let terminal = drawn(&course(), &Choice::default(), style, (80, 24));
            let cells = terminal.backend().buffer().content();
            cells.iter().any(|cell| cell.fg != Color::Reset || !cell.modifier.is_empty())
        };
        assert!(has_colours(Style { has_colours: true, has_blocks: true }));
        assert!(!has_colours(PLAIN));
    }

    #[test]
    fn rows_are_sorted_and_filtered() {
        let moment = course().moment().expect("looks");
        let shown = |choice: &Choice| {
            choice.rows(&moment.members).iter().map(|row| row.member).collect::<Vec<_>>()
        };
        let mut choice = Choice::default();
        assert_eq!(shown(&choice), [0, 1, 2]);
        choice.is_reversed = true;
        assert_eq!(shown(&choice), [2, 1, 0]);
        choice = Choice { sort: 2, ..Choice::default() };
        assert_eq!(shown(&choice), [2, 0, 1], "by operations a second");
        choice = Choice { sort: 1, ..Choice::default() };
        assert_eq!(shown(&choice), [1, 0, 2], "the dead first");
        for (filter, members) in [("dead", &[1][..]), ("2", &[2]), ("RUN", &[0, 2]), ("x", &[])] {
            choice = Choice { filter: filter.into(), ..Choice::default() };
            assert_eq!(shown(&choice), members, "{filter}");
        }
        let lines = text(&drawn(&course(), &choice, PLAIN, (80, 24)));
        assert!(lines.iter().any(|line| line.contains("no member matches")), "{lines:?}");
    }

    #[test]
    fn numbers_are_short() {
        let rates = [0.0, 999.4, 999.9, 12_340.0, 123_456.0, 2.5e6, 9.99e8];
        let texts = rates.map(rate);
        assert_eq!(texts, ["0", "999", "1.0 k", "12.3 k", "123 k", "2.5 M", "999 M"]);
        let times = [850, 1200, 34_000, 340_000, 1_250_000, 2_300_000_000];
        let texts = times.map(|ns| time(Duration::from_nanos(ns)));
        assert_eq!(texts, ["850 ns", "1.2 us", "34 us", "340 us", "1.2 ms", "2.3 s"]);
        let ages = [3, 75, 7500, 200_000].map(|s| age(Duration::from_secs(s)));
        assert_eq!(ages, ["3.0 s", "1m 15s", "2h 05m", "2d 07h"]);
    }
}
