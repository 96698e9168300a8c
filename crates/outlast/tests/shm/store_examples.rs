//! The programs of `examples/rust/store` and `examples/rust/protect` as processes: each without a
//! death, and with each of its members killed in the middle.

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

#[test]
fn stencil() {
    // The program compares the sum with what it computes without seats.
    check("stencil", 4, 243_916, |_| vec![(" takes up seat ", 4), (" at step 20\n", 4)]);
}

#[test]
fn table() {
    // The program compares the sum with that of all words which it inserts.
    check("table", 4, 725_340, |_| vec![(" takes up seat ", 4), (" at insert 200\n", 4)]);
}

#[test]
fn transform() {
    // The program compares the sum with what it computes without seats.
    check("transform", 4, 24_738_011, |_| vec![(" takes up seat ", 4), (" at step 10\n", 4)]);
}
