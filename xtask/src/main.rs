//! `cargo xtask`: the one tool for working on Outlast.

fn main() {}
