//! What the workers did over time, from the events that they have recorded.
//!
//! Events lie in memory of the command (see [`crate::control`]), so the dead have a lane as well.

use outlast::MemberId;
use outlast_tasks::Event;
use std::collections::BTreeMap;
use std::time::Duration;

/// The bytes of a recorded event.
pub(super) const EVENT_LEN: usize = 24;

/// An event with the time at which it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Recorded {
    pub(super) at_ns: u64,
    pub(super) event: Event,
}

impl Recorded {
    /// The bytes of the event; `None` for kinds of events that no report shows.
    pub(super) fn encode(&self) -> Option<[u8; EVENT_LEN]> {
        let (kind, flag, member, value) = match self.event {
            Event::Waits => (0, false, 0, 0),
            Event::Runs { is_again } => (1, is_again, 0, 0),
            Event::Moved { from, is_again } => (2, is_again, from.0, 0),
            Event::Reopened { dead } => (3, false, dead.0, 0),
            Event::Exposed { unsaved } => (4, false, 0, unsaved.as_nanos() as u64),
            _ => return None,
        };
        let mut bytes = [0; EVENT_LEN];
        bytes[..8].copy_from_slice(&self.at_ns.to_le_bytes());
        bytes[8] = kind;
        bytes[9] = u8::from(flag);
        bytes[12..16].copy_from_slice(&member.to_le_bytes());
        bytes[16..].copy_from_slice(&value.to_le_bytes());
        Some(bytes)
    }

    fn decode(bytes: &[u8]) -> Option<Recorded> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let member = MemberId((word(8)? >> 32) as u32);
        let is_again = bytes.get(9) == Some(&1);
        let event = match bytes.get(8)? {
            0 => Event::Waits,
            1 => Event::Runs { is_again },
            2 => Event::Moved { from: member, is_again },
            3 => Event::Reopened { dead: member },
            4 => Event::Exposed { unsaved: Duration::from_nanos(word(16)?) },
            _ => return None,
        };
        Some(Recorded { at_ns: word(0)?, event })
    }

    /// The events in these bytes. A member that died inside a write may have left a part.
    pub(super) fn decode_all(bytes: &[u8]) -> Vec<Recorded> {
        bytes.chunks_exact(EVENT_LEN).filter_map(Recorded::decode).collect()
    }
}

/// What a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    Waits,
    Runs,
    /// It runs a task that an earlier worker had begun.
    Again,
}

/// A worker over time.
#[derive(Clone, Debug, Default)]
pub(super) struct Lane {
    /// From, to, and what the worker did, in order and without gaps.
    pub(super) spans: Vec<(u64, u64, Doing)>,
    pub(super) died_ns: Option<u64>,
    /// The work that was lost with the worker, at most.
    pub(super) lost_ns: u64,
}

impl Lane {
    fn new(events: &[Recorded], began: u64, ended: u64, died_ns: Option<u64>) -> Lane {
        let end = died_ns.unwrap_or(ended).clamp(began, ended);
        let mut spans = Vec::new();
        let (mut since, mut doing) = (began, Doing::Waits);
        let mut exposed = (began, 0);
        for Recorded { at_ns, event } in events {
            let now = match event {
                Event::Waits => Doing::Waits,
                Event::Runs { is_again: false } => Doing::Runs,
                Event::Runs { is_again: true } => Doing::Again,
                Event::Exposed { unsaved } => {
                    exposed = (*at_ns, unsaved.as_nanos() as u64);
                    continue;
                }
                _ => continue,
            };
            let at = (*at_ns).clamp(since, end);
            if at > since {
                spans.push((since, at, doing));
            }
            (since, doing) = (at, now);
        }
        if end > since {
            spans.push((since, end, doing));
        }
        let mut lane = Lane { spans, died_ns, lost_ns: 0 };
        if died_ns.is_some() {
            lane.lost_ns = exposed.1 + lane.running(exposed.0, end);
        }
        lane
    }

    /// The time between two moments in which the worker ran tasks.
    pub(super) fn running(&self, from: u64, to: u64) -> u64 {
        self.time(from, to, |doing| doing != Doing::Waits)
    }

    /// The time between two moments in which the worker did this.
    pub(super) fn time(&self, from: u64, to: u64, is_meant: impl Fn(Doing) -> bool) -> u64 {
        let meant = self.spans.iter().filter(|span| is_meant(span.2));
        meant.map(|span| span.1.min(to).saturating_sub(span.0.max(from))).sum()
    }
}

/// A task that moved from a worker to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) at_ns: u64,
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) is_again: bool,
}

/// All workers over time.
#[derive(Clone, Debug, Default)]
pub(super) struct Timeline {
    pub(super) began_ns: u64,
    pub(super) ended_ns: u64,
    pub(super) lanes: Vec<Lane>,
    pub(super) moves: Vec<Move>,
    /// By dead member: when tasks that it held were opened again.
    pub(super) reopened: BTreeMap<u32, Vec<u64>>,
}

impl Timeline {
    /// The events of each member, the time of the run, and the times of the deaths.
    pub(super) fn new(
        events: &[Vec<Recorded>],
        (began_ns, ended_ns): (u64, u64),
        deaths: &BTreeMap<u32, u64>,
    ) -> Timeline {
        let lane = |(member, events): (usize, &Vec<Recorded>)| {
            Lane::new(events, began_ns, ended_ns, deaths.get(&(member as u32)).copied())
        };
        let lanes = events.iter().enumerate().map(lane).collect();
        let mut timeline = Timeline { began_ns, ended_ns, lanes, ..Timeline::default() };
        for (to, events) in events.iter().enumerate() {
            for Recorded { at_ns, event } in events {
                match event {
                    Event::Moved { from, is_again } => timeline.moves.push(Move {
                        at_ns: *at_ns,
                        from: from.0,
                        to: to as u32,
                        is_again: *is_again,
                    }),
                    Event::Reopened { dead } => {
                        timeline.reopened.entry(dead.0).or_default().push(*at_ns);
                    }
                    _ => {}
                }
            }
        }
        timeline.moves.sort_by_key(|one| one.at_ns);
        timeline
    }

    /// The milliseconds from each death to each opening of a task that the dead member held, in
    /// ascending order.
    pub(super) fn reopened_ms(&self) -> Vec<f64> {
        let since = |(dead, at): (&u32, &Vec<u64>)| {
            let died_ns = self.lanes.get(*dead as usize).and_then(|lane| lane.died_ns);
            let since = |died: u64| at.iter().map(move |at| at.saturating_sub(died) as f64 / 1e6);
            died_ns.map_or(Vec::new(), |died| since(died).collect())
        };
        let mut all: Vec<f64> = self.reopened.iter().flat_map(since).collect();
        all.sort_by(f64::total_cmp);
        all
    }

    /// The work that was lost with the dead, at most, in milliseconds.
    pub(super) fn lost_ms(&self) -> f64 {
        self.lanes.iter().map(|lane| lane.lost_ns).sum::<u64>() as f64 / 1e6
    }

    /// How long the work would have taken had all workers run all the time while they lived, and
    /// had no work been lost.
    pub(super) fn ideal_seconds(&self) -> f64 {
        let running = self.lanes.iter().map(|lane| lane.running(self.began_ns, self.ended_ns));
        let lost: u64 = self.lanes.iter().map(|lane| lane.lost_ns).sum();
        let mut work = running.sum::<u64>().saturating_sub(lost);
        let mut deaths: Vec<u64> = self.lanes.iter().filter_map(|lane| lane.died_ns).collect();
        deaths.sort_unstable();
        let mut living = self.lanes.len() as u64;
        let mut now = self.began_ns;
        for died in deaths {
            let passed = died.saturating_sub(now);
            if work <= passed * living {
                break;
            }
            work -= passed * living;
            now = now.max(died);
            living -= 1;
        }
        (now - self.began_ns + work / living.max(1)) as f64 / 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(at_ns: u64, event: Event) -> Recorded {
        Recorded { at_ns, event }
    }

    #[test]
    fn events_survive_their_bytes() {
        let all = [
            at(1, Event::Waits),
            at(2, Event::Runs { is_again: true }),
            at(3, Event::Moved { from: MemberId(7), is_again: false }),
            at(4, Event::Reopened { dead: MemberId(60) }),
            at(u64::MAX, Event::Exposed { unsaved: Duration::from_nanos(5) }),
        ];
        let bytes: Vec<u8> = all.iter().flat_map(|one| one.encode().expect("known")).collect();
        assert_eq!(Recorded::decode_all(&bytes), all);
        assert_eq!(Recorded::decode_all(&bytes[..bytes.len() - 1]).len(), all.len() - 1);
    }

    #[test]
    fn a_death_costs_what_was_exposed_and_what_ran_since() {
        let events = vec![
            vec![
                at(100, Event::Runs { is_again: false }),
                at(300, Event::Exposed { unsaved: Duration::from_nanos(50) }),
                at(320, Event::Waits),
                at(340, Event::Runs { is_again: true }),
            ],
            vec![at(100, Event::Runs { is_again: false })],
        ];
        let timeline = Timeline::new(&events, (100, 1100), &BTreeMap::from([(0, 400)]));
        assert_eq!(timeline.lanes[0].lost_ns, 50 + 20 + 60);
        assert_eq!(timeline.lanes[0].time(100, 1100, |doing| doing == Doing::Again), 60);
        // 280 ns and 1000 ns of running, 130 ns of it lost: 2 workers for 300 ns, then 1.
        assert_eq!(timeline.ideal_seconds(), (300.0 + 550.0) / 1e9);
    }

    #[test]
    fn the_opening_of_tasks_counts_from_the_death() {
        let opened = at(2_000_000, Event::Reopened { dead: MemberId(0) });
        let events = vec![Vec::new(), vec![opened]];
        let timeline = Timeline::new(&events, (0, 9_000_000), &BTreeMap::from([(0, 500_000)]));
        assert_eq!(timeline.reopened_ms(), [1.5]);
    }
}
