//! The terminal of `outlast top`: reads keys, looks at the job, and draws.
//!
//! The terminal is as before when the view is dropped, also after a panic or a signal.

use super::screen::{self, Choice, SORTS, Screen, Style};
use super::{Watch, running_jobs};
use crate::terminal::{has_blocks, wants_colours};
use anyhow::Context;
use outlast::observe::ObservedJob;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The time between two looks, unless the user wants a shorter one.
pub(super) const INTERVAL: Duration = Duration::from_millis(250);
/// How long the view waits for a key before it looks whether anything is due.
const KEY_WAIT: Duration = Duration::from_millis(50);
/// How often the view looks for other jobs.
const SEARCH_INTERVAL: Duration = Duration::from_secs(1);
/// How many rows a page is.
const PAGE: usize = 10;

/// A view of a job in this terminal.
pub(crate) struct View {
    terminal: DefaultTerminal,
    style: Style,
    interval: Duration,
    choice: Choice,
    watch: Option<Watch>,
    /// The process whose job is to be watched; any job if there is none.
    process: Option<u32>,
    /// The numbers of all jobs that run.
    jobs: Vec<u64>,
    looked: Option<Instant>,
    searched: Option<Instant>,
    is_changed: bool,
    /// Whether the keys come from the standard input.
    is_input_terminal: bool,
}

/// What the user wants after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    GoOn,
    /// To see no more of it.
    Quit,
    /// To end the command.
    Interrupt,
}

/// Catches the signals that end a command, so that the terminal is restored before. Returns the
/// flag that they set.
pub(crate) fn catch_signals() -> anyhow::Result<Arc<AtomicBool>> {
    let is_asked_to_end = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, is_asked_to_end.clone()).context("catching signals")?;
    }
    Ok(is_asked_to_end)
}

impl View {
    /// Opens the view of the job of a process, as soon as the process has joined it.
    pub(crate) fn of_process(process: u32) -> anyhow::Result<View> {
        let mut view = View::open(None, INTERVAL)?;
        view.process = Some(process);
        Ok(view)
    }

    /// Opens the view of a job, or of the next job that starts.
    pub(super) fn open(job: Option<ObservedJob>, interval: Duration) -> anyhow::Result<View> {
        let variable = |name: &str| std::env::var(name).ok();
        let style =
            Style { has_colours: wants_colours(variable), has_blocks: has_blocks(variable) };
        let terminal = ratatui::try_init().context("preparing the terminal")?;
        Ok(View {
            terminal,
            style,
            interval,
            choice: Choice::default(),
            watch: job.map(Watch::new),
            process: None,
            jobs: Vec::new(),
            looked: None,
            searched: None,
            is_changed: true,
            is_input_terminal: std::io::stdin().is_terminal(),
        })
    }

    /// Shows the job until the user quits.
    pub(super) fn run(mut self, is_asked_to_end: &AtomicBool) -> anyhow::Result<()> {
        while self.tick()? == Wish::GoOn && !is_asked_to_end.load(Ordering::Relaxed) {
            self.wait_for_key()?;
        }
        Ok(())
    }

    /// Reads the keys that were pressed, looks if it is time, and draws if anything has changed.
    pub(crate) fn tick(&mut self) -> anyhow::Result<Wish> {
        if self.is_hung_up()? {
            return Ok(Wish::Interrupt);
        }
        while event::poll(Duration::ZERO).context("looking for a key")? {
            self.is_changed = true;
            if let Event::Key(key) = event::read().context("reading a key")?
                && key.kind != KeyEventKind::Release
            {
                let wish = self.press(key)?;
                if wish != Wish::GoOn {
                    return Ok(wish);
                }
            }
        }
        let is_due =
            |last: Option<Instant>, interval| last.is_none_or(|at| at.elapsed() >= interval);
        if is_due(self.searched, SEARCH_INTERVAL) {
            self.searched = Some(Instant::now());
            let found = running_jobs()?;
            self.jobs = found.iter().map(ObservedJob::id).collect();
            if self.watch.is_none() {
                let is_wanted = |job: &ObservedJob| {
                    self.process.is_none_or(|process| job.processes().contains(&process))
                };
                self.watch = found.into_iter().rfind(is_wanted).map(Watch::new);
            }
        }
        if is_due(self.looked, self.interval) && !self.choice.is_paused {
            self.looked = Some(Instant::now());
            if let Some(watch) = &mut self.watch {
                watch.look()?;
            }
            self.is_changed = true;
        }
        if std::mem::take(&mut self.is_changed) {
            self.draw()?;
        }
        Ok(Wish::GoOn)
    }

    /// Waits for a key, for a short time. The view does not let crossterm wait: if the terminal
    /// goes away meanwhile, crossterm reads its end again and again and never returns.
    fn wait_for_key(&self) -> anyhow::Result<()> {
        if !self.is_input_terminal {
            std::thread::sleep(KEY_WAIT);
            return Ok(());
        }
        events_of_input(PollFlags::IN, KEY_WAIT).context("waiting for a key")?;
        Ok(())
    }

    /// Whether the terminal has gone away.
    fn is_hung_up(&self) -> anyhow::Result<bool> {
        let events = events_of_input(PollFlags::empty(), Duration::ZERO);
        let events = events.context("looking at the terminal")?;
        Ok(self.is_input_terminal && events.contains(PollFlags::HUP))
    }

    /// Adds an event of the command that runs the job.
    pub(crate) fn note(&mut self, text: &str) {
        if let Some(watch) = &mut self.watch {
            watch.course.note(text.to_string(), false);
            self.is_changed = true;
        }
    }

    fn draw(&mut self) -> anyhow::Result<()> {
        let moment = self.watch.as_ref().and_then(|watch| watch.course.moment());
        let events = self.watch.iter().flat_map(|watch| watch.course.events.iter()).collect();
        let screen = Screen {
            moment: moment.as_ref(),
            events,
            choice: &self.choice,
            style: self.style,
            jobs: self.jobs.len(),
        };
        self.terminal.draw(|frame| screen::draw(frame, &screen)).context("drawing")?;
        Ok(())
    }

    fn press(&mut self, key: KeyEvent) -> anyhow::Result<Wish> {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if is_control && matches!(key.code, KeyCode::Char('c')) {
            return Ok(Wish::Interrupt);
        }
        let rows = self.watch.as_ref().and_then(|watch| watch.course.moment());
        let rows = rows.map_or(0, |moment| moment.members.len());
        if key.code == KeyCode::Tab && !self.choice.is_typing {
            self.show_next()?;
            return Ok(Wish::GoOn);
        }
        Ok(if self.choice.press(key.code, rows) { Wish::GoOn } else { Wish::Quit })
    }

    /// Shows the next job.
    fn show_next(&mut self) -> anyhow::Result<()> {
        let shown = self.watch.as_ref().and_then(|watch| watch.course.moment()).map(|m| m.job);
        let mut found = running_jobs()?;
        let place = found.iter().position(|job| Some(job.id()) == shown);
        if found.is_empty() || (found.len() == 1 && place.is_some()) {
            return Ok(());
        }
        let next = place.map_or(0, |place| (place + 1) % found.len());
        self.watch = Some(Watch::new(found.swap_remove(next)));
        (self.choice.scroll, self.looked, self.is_changed) = (0, None, true);
        Ok(())
    }
}

/// Waits for events of the standard input, and returns the events that have come.
fn events_of_input(events: PollFlags, wait: Duration) -> anyhow::Result<PollFlags> {
    let input = std::io::stdin();
    let mut input = [PollFd::new(&input, events)];
    match poll(&mut input, Some(&Timespec::try_from(wait)?)) {
        // A signal ends the wait.
        Ok(_) | Err(Errno::INTR) => Ok(input[0].revents()),
        Err(error) => Err(error.into()),
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = ratatui::try_restore();
    }
}

impl Choice {
    /// Acts on a key, in a table of so many rows. Returns whether the view goes on.
    fn press(&mut self, key: KeyCode, rows: usize) -> bool {
        if self.is_typing {
            match key {
                KeyCode::Enter => self.is_typing = false,
                KeyCode::Esc => (self.filter, self.is_typing) = (String::new(), false),
                KeyCode::Backspace => drop(self.filter.pop()),
                KeyCode::Char(c) if self.filter.len() < 32 => self.filter.push(c),
                _ => {}
            }
            return true;
        }
        let last = rows.saturating_sub(1);
        match key {
            KeyCode::Char('?' | 'h') => self.shows_help = !self.shows_help,
            KeyCode::Esc if self.shows_help => self.shows_help = false,
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('s') => self.sort = (self.sort + 1) % SORTS.len(),
            KeyCode::Char('S') => self.sort = (self.sort + SORTS.len() - 1) % SORTS.len(),
            KeyCode::Char('r') => self.is_reversed = !self.is_reversed,
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('/' | 'f') => (self.is_typing, self.scroll) = (true, 0),
            KeyCode::Down | KeyCode::Char('j') => self.scroll = (self.scroll + 1).min(last),
            KeyCode::Up | KeyCode::Char('k') => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::PageDown => self.scroll = (self.scroll + PAGE).min(last),
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(PAGE),
            KeyCode::Home => self.scroll = 0,
            KeyCode::End => self.scroll = last,
            _ => {}
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_filter_scroll_and_quit() {
        let mut choice = Choice::default();
        assert!(choice.press(KeyCode::Char('s'), 3) && choice.sort == 1);
        assert!(choice.press(KeyCode::Char('S'), 3) && choice.sort == 0);
        assert!(choice.press(KeyCode::Char('r'), 3) && choice.is_reversed);
        for _ in 0..5 {
            assert!(choice.press(KeyCode::Down, 3));
        }
        assert_eq!(choice.scroll, 2);
        assert!(choice.press(KeyCode::Char('/'), 3));
        for key in "dqx".chars() {
            assert!(choice.press(KeyCode::Char(key), 3), "q is a letter of the filter");
        }
        assert!(choice.press(KeyCode::Backspace, 3) && choice.press(KeyCode::Enter, 3));
        assert_eq!((choice.filter.as_str(), choice.is_typing, choice.scroll), ("dq", false, 0));
        assert!(choice.press(KeyCode::Char('/'), 3) && choice.press(KeyCode::Esc, 3));
        assert!(choice.filter.is_empty() && !choice.is_typing);
        assert!(choice.press(KeyCode::Char('?'), 3) && choice.shows_help);
        assert!(choice.press(KeyCode::Esc, 3) && !choice.shows_help);
        assert!(!choice.press(KeyCode::Esc, 3) && !choice.press(KeyCode::Char('q'), 3));
        assert!(choice.press(KeyCode::Down, 0) && choice.scroll == 0);
    }
}
