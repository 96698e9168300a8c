//! The sim engine: coroutines in one thread.

use super::{
    Activity, Bell, Done, Engine, Epoch, Fault, MemberId, Message, Operation, Pending, Port, Result, Time,
    View,
};
use std::time::Duration;

/// A member on the sim engine.
pub struct Sim;

#[allow(unused_variables)]
impl Engine for Sim {
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
