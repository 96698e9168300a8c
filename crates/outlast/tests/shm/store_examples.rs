//! The programs of `examples/rust/store` as processes: each without a death, and with each of its
//! members killed in the middle.

use crate::rma::examples::check;

#[test]
fn checkpoint() {
    let state = |number: u64| {
        (0..200u64).fold(number, |state, step| state.wrapping_mul(31).wrapping_add(step))
    };
    let sum = (0..4).map(state).fold(0, u64::wrapping_add);
    check("checkpoint", 4, sum, |_| vec![(" adopts slice ", 1), (" at step 100\n", 1)]);
}

#[test]
fn task_queue() {
    let sum = (0..40).map(|task| task * task).sum();
    check("task_queue", 4, sum, |_| vec![(" returns task ", 1)]);
}
