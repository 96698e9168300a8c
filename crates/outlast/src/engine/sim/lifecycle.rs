//! Stops and deaths of members, and how the other members learn of them.
//!
//! On the memory link there is a single view: a death enters it at some moment for all members
//! (`log_death`). On the network link each member has a view of its own: it receives notices
//! (`spread`), and messages, requests and answers carry the view of their sender (`adopt`).

use super::options::{Action, Link};
use super::world::{Event, Knowledge, Life, Member, World, nanos};
use crate::engine::{Epoch, Fault, MemberId, Result, View};
use std::rc::Rc;

/// In larger jobs, a member learns of all deaths that it does not know yet by a single notice.
const NOTICES_APART_MAX: usize = 256;

impl World {
    // ---- Faults.

    pub(super) fn strike_at_step(&mut self, member: u32) {
        let steps = self.members[member as usize].counters.steps;
        while let Some(&(step, action)) = self.members[member as usize].step_faults.last() {
            if step > steps {
                break;
            }
            self.members[member as usize].step_faults.pop();
            self.strike(action);
        }
        self.members[member as usize].sort_step_faults();
    }

    pub(super) fn strike(&mut self, action: Action) {
        match action {
            Action::Kill(member) => self.kill(member.0),
            Action::Stop(member) => {
                self.stop(member.0);
            }
            Action::Resume(member) => self.resume(member.0),
            Action::StopFor(member, pause) => {
                if self.stop(member.0) {
                    let time = self.now.saturating_add(nanos(pause));
                    self.push(time, Event::Resume { member: member.0 });
                }
            }
        }
    }

    pub(super) fn inject(&mut self, member: u32, fault: Fault) -> Result<()> {
        match fault {
            Fault::Kill(target) | Fault::Stop(target) | Fault::Resume(target) => {
                self.check_member(target)?
            }
            Fault::DieAtStep(_) | Fault::StopAtStep(_) => {}
        }
        let state = &mut self.members[member as usize];
        let steps = state.counters.steps;
        match fault {
            Fault::Kill(target) => self.kill(target.0),
            Fault::Stop(target) => {
                self.stop(target.0);
            }
            Fault::Resume(target) => self.resume(target.0),
            Fault::DieAtStep(n) => {
                state.step_faults.push((steps.saturating_add(n), Action::Kill(MemberId(member))));
                state.sort_step_faults();
            }
            Fault::StopAtStep(n) => {
                state.step_faults.push((steps.saturating_add(n), Action::Stop(MemberId(member))));
                state.sort_step_faults();
            }
        }
        Ok(())
    }

    fn kill(&mut self, member: u32) {
        if self.members[member as usize].runs {
            if self.members[member as usize].life == Life::Living {
                self.kills += 1;
            }
            self.tell(member, |_| "is killed".to_string());
            self.die(member);
        }
    }

    fn stop(&mut self, member: u32) -> bool {
        let state = &mut self.members[member as usize];
        if !state.runs || state.stopped {
            return false;
        }
        state.stopped = true;
        self.stops += 1;
        self.note(0x73_746F_7000 ^ u64::from(member));
        self.tell(member, |_| "is stopped".to_string());
        true
    }

    pub(super) fn resume(&mut self, member: u32) {
        let state = &mut self.members[member as usize];
        if !state.runs || !state.stopped {
            return;
        }
        state.stopped = false;
        let held = std::mem::take(&mut state.held);
        self.note(0x676F_2000 ^ u64::from(member));
        self.tell(member, |_| "goes on".to_string());
        self.release(held);
    }

    /// Dispatches, in order, the events that were held at a stopped member.
    fn release(&mut self, held: Vec<(u64, Event)>) {
        for (time, event) in held {
            if let Event::Run { .. } = event {
                let later = self.now + self.wake_time();
                self.push(later, event);
            } else {
                self.dispatch(time, event);
            }
        }
    }

    /// The process of a member ends, for any reason.
    pub(super) fn die(&mut self, member: u32) {
        let now = self.now;
        let state = &mut self.members[member as usize];
        if !state.runs {
            return;
        }
        let was_living = state.life == Life::Living;
        state.runs = false;
        state.stopped = false;
        state.died_at = now;
        if was_living {
            state.life = Life::Dead;
        }
        self.running -= 1;
        self.note(0x6469_6500 ^ u64::from(member) ^ now << 20);
        let state = &mut self.members[member as usize];
        self.reap.extend_from_slice(&state.activities);
        let held = std::mem::take(&mut state.held);
        self.stop_serving(member);
        self.release(held);
        if was_living {
            if self.link == Link::Memory {
                let time = now + self.detection_time();
                self.push(time, Event::Logged { dead: member });
            } else {
                self.spread(member, true);
            }
        }
    }

    /// Takes from a member that left or died its messages, its requests and, on the network link,
    /// its segment, unless other members map it.
    fn stop_serving(&mut self, member: u32) {
        let has_mates = self.has_mates(member);
        let state = &mut self.members[member as usize];
        state.inbox = Default::default();
        state.unreceived.clear();
        if self.link == Link::Network && !has_mates {
            state.segment.clear();
        }
        let senders = std::mem::take(&mut state.senders);
        for request in self.sent(member) {
            self.abandon(request);
        }
        for (slot, generation) in senders {
            self.signal(slot, generation);
        }
    }

    // ---- Views.

    /// What a member knows of deaths.
    #[inline]
    pub(super) fn knowledge(&self, member: u32) -> &Rc<Knowledge> {
        &self.knowledge[self.view_of[member as usize]]
    }

    /// Whether a member maps the memory of another member and shares its view.
    pub(super) fn are_mates(&self, member: u32, other: u32) -> bool {
        let node = self.view_of[member as usize];
        self.view_of.get(other as usize).is_some_and(|&other| other == node)
    }

    /// Whether the network link has further members on the node of this member.
    pub(super) fn has_mates(&self, member: u32) -> bool {
        self.has_mates[member as usize]
    }

    pub(super) fn epoch(&self, member: u32) -> Epoch {
        Epoch(self.knowledge(member).epoch)
    }

    pub(super) fn knows_dead(&self, member: u32, target: u32) -> bool {
        let knowledge = self.knowledge(member);
        knowledge.epoch != 0 && knowledge.dead.contains(MemberId(target))
    }

    pub(super) fn view(&self, member: u32) -> View {
        let knowledge = self.knowledge(member);
        View::new(self.regulars, self.spares, knowledge.dead.clone(), knowledge.left.clone())
    }

    /// Enters deaths into a view; returns whether any was new.
    fn enter(&mut self, view: usize, dead: &[u32]) -> bool {
        if dead.iter().all(|&member| self.knowledge[view].dead.contains(MemberId(member))) {
            return false;
        }
        let knowledge = Rc::make_mut(&mut self.knowledge[view]);
        for &member in dead {
            if knowledge.dead.insert(MemberId(member)) {
                knowledge.epoch += 1;
                if self.members[member as usize].life == Life::Left {
                    knowledge.left.insert(MemberId(member));
                }
            }
        }
        true
    }

    /// The memory link: a death enters the view of all members at a single moment; then the bells
    /// ring, each at its own time.
    pub(super) fn log_death(&mut self, dead: u32) {
        self.deliver_published(dead);
        if !self.enter(0, &[dead]) {
            return;
        }
        self.death_order.push(MemberId(dead));
        let state = &mut self.members[dead as usize];
        let segment = std::mem::take(&mut state.segment);
        if self.keeps_dead_segments {
            state.dead_segment = segment;
        }
        self.note(u64::from(dead));
        self.tell(dead, |world| {
            let how = if world.members[dead as usize].life == Life::Left {
                "to have left"
            } else {
                "to be dead"
            };
            format!("is known {how}: epoch {}", world.knowledge[0].epoch)
        });
        for member in 0..self.members.len() {
            let state = &mut self.members[member];
            if state.life == Life::Living && !state.ring_is_due {
                state.ring_is_due = true;
                let time = self.now + self.wake_time();
                self.push(time, Event::Ring { to: member as u32, for_view: true });
            }
        }
    }

    /// The network link: the notice of a death goes to each member.
    fn spread(&mut self, dead: u32, by_detection: bool) {
        for member in 0..self.members.len() {
            if member == dead as usize || self.members[member].life != Life::Living {
                continue;
            }
            if self.members.len() > NOTICES_APART_MAX {
                self.members[member].notices.push(dead);
                if self.members[member].notices.len() > 1 {
                    continue;
                }
            }
            let time =
                self.now + if by_detection { self.detection_time() } else { self.wake_time() };
            let to = member as u32;
            let together = self.members.len() > NOTICES_APART_MAX;
            self.push(
                time,
                if together { Event::Notices { to } } else { Event::Notice { to, dead } },
            );
        }
    }

    /// The network link: a member learns of deaths, and with it all members of its node.
    pub(super) fn learn_deaths(&mut self, member: u32, dead: &[u32]) {
        let view = self.view_of[member as usize];
        if self.members[member as usize].life != Life::Living || !self.enter(view, dead) {
            return;
        }
        self.know_deaths(view, dead);
    }

    /// The members of a node go on with a view that has changed.
    fn know_deaths(&mut self, view: usize, dead: &[u32]) {
        for member in 0..self.members.len() {
            if self.view_of[member] != view || self.members[member].life != Life::Living {
                continue;
            }
            let member = member as u32;
            for &dead in dead {
                self.note(u64::from(member) << 32 | u64::from(dead));
            }
            self.tell(member, |world| {
                let knowledge = world.knowledge(member);
                format!("learns of deaths: {} dead, epoch {}", knowledge.dead, knowledge.epoch)
            });
            self.fail_requests(member, dead);
            self.ring(member);
        }
    }

    /// A member merges the view of another member into its own.
    pub(super) fn adopt(&mut self, member: u32, other: &Rc<Knowledge>) {
        let mine = self.knowledge(member);
        if self.link == Link::Memory || other.epoch == 0 || Rc::ptr_eq(mine, other) {
            return;
        }
        if **mine == **other {
            // Sharing makes the next comparison cheap.
            self.knowledge[self.view_of[member as usize]] = other.clone();
            return;
        }
        let news: Vec<u32> = other
            .dead
            .iter()
            .filter(|&dead| !mine.dead.contains(dead))
            .map(|dead| dead.0)
            .collect();
        if !news.is_empty() {
            self.learn_deaths(member, &news);
        }
    }

    pub(super) fn leave(&mut self, member: u32) {
        self.members[member as usize].life = Life::Left;
        self.members[member as usize].died_at = self.now;
        self.stop_serving(member);
        if self.link == Link::Memory {
            self.log_death(member);
        } else {
            let view = self.view_of[member as usize];
            if self.enter(view, &[member]) && self.has_mates(member) {
                self.know_deaths(view, &[member]);
            }
            self.spread(member, false);
        }
        self.ring(member);
    }

    pub(super) fn fence(&mut self, target: u32) {
        if self.members[target as usize].life == Life::Living {
            self.kill(target);
        }
    }

    pub(super) fn has_ended(&self, member: u32) -> bool {
        self.outcome.is_some() || self.members[member as usize].life != Life::Living
    }
}

impl Member {
    /// Puts the next fault last and records when it is due.
    pub(super) fn sort_step_faults(&mut self) {
        self.step_faults.sort_by_key(|&(step, _)| std::cmp::Reverse(step));
        self.next_fault_step = self.step_faults.last().map_or(u64::MAX, |&(step, _)| step);
    }
}
