//! The shm engine: processes of one machine.

use super::{
    Activity, Bell, Done, Engine, Epoch, Fault, MemberId, Message, Operation, Pending, Port, Result, Time,
    View,
};
use crate::{JoinError, JoinOptions};
use std::time::Duration;

/// A member on the shm engine.
pub struct Shm;

#[allow(unused_variables)]
impl Shm {
    pub(crate) fn attach(options: &JoinOptions) -> std::result::Result<Shm, JoinError> {
        unimplemented!()
    }
    pub(crate) fn start_background(
        &self,
        body: Box<dyn FnOnce() + Send>,
    ) -> std::result::Result<(), JoinError> {
        unimplemented!()
    }
    pub(crate) fn wait_for_all(&self) -> std::result::Result<(), JoinError> {
        unimplemented!()
    }
}

#[allow(unused_variables)]
impl Engine for Shm {
    fn me(&self) -> MemberId {
        unimplemented!()
    }
    fn members(&self) -> usize {
        unimplemented!()
    }
    fn domain(&self, member: MemberId) -> Result<String> {
        unimplemented!()
    }
    fn epoch(&self) -> Epoch {
        unimplemented!()
    }
    fn view(&self) -> View {
        unimplemented!()
    }
    fn fence(&self, member: MemberId, until: Time) -> Result<()> {
        unimplemented!()
    }
    fn has_ended(&self) -> bool {
        unimplemented!()
    }
    fn leave(&self) -> Result<()> {
        unimplemented!()
    }
    fn segment_len(&self, target: MemberId) -> Result<u64> {
        unimplemented!()
    }
    fn grow(&self, len: u64) -> Result<()> {
        unimplemented!()
    }
    fn start(&self, at: Epoch, target: MemberId, operation: Operation<'_>) -> Pending {
        unimplemented!()
    }
    fn poll(&self, pending: &mut Pending) -> Option<Result<Done>> {
        unimplemented!()
    }
    fn send(&self, to: MemberId, port: Port, bytes: &[u8]) -> Result<()> {
        unimplemented!()
    }
    fn receive(&self, port: Port) -> Option<Message> {
        unimplemented!()
    }
    fn now(&self) -> Time {
        unimplemented!()
    }
    fn time_limit(&self) -> Duration {
        unimplemented!()
    }
    fn bell(&self) -> Bell {
        unimplemented!()
    }
    fn park(&self, seen: Bell, until: Time) {
        unimplemented!()
    }
    fn ring(&self, member: MemberId) -> Result<()> {
        unimplemented!()
    }
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> Result<Activity> {
        unimplemented!()
    }
    fn inject(&self, fault: Fault) -> Result<()> {
        unimplemented!()
    }
}

/// The memory of a job, as its launcher makes it. It has no name: it is gone with the last process that maps it.
pub struct JobMemory;

#[allow(unused_variables)]
impl JobMemory {
    /// Makes the memory of a job of `regulars` members and `spares` further ones; `segment_limit` bounds the
    /// segment of each member in bytes (by default half the available memory, divided by the members).
    pub fn create(
        regulars: usize,
        spares: usize,
        segment_limit: Option<u64>,
    ) -> std::result::Result<JobMemory, JoinError> {
        unimplemented!()
    }

    /// Prepares a command so that the process it starts can join as `member`. With `die_with_launcher` the process
    /// is killed when the thread that started it ends.
    pub fn prepare(&self, command: &mut std::process::Command, member: MemberId, die_with_launcher: bool) {
        unimplemented!()
    }

    /// Says that the process of `member` has ended, seen by the launcher who waited for it. A member that did not
    /// leave is thereby dead, also one that had not joined yet.
    pub fn process_ended(&self, member: MemberId) {
        unimplemented!()
    }

    /// Whether `member` has joined the job, now or in the past.
    pub fn has_joined(&self, member: MemberId) -> bool {
        unimplemented!()
    }

    /// What the members of the job know.
    pub fn view(&self) -> View {
        unimplemented!()
    }
}
