//! A parameter sweep: for each of many parameters a loop of many steps, and of all results the
//! best. Each loop saves its state now and then, so that a death repeats a part of a loop only. The
//! result is, bit for bit, that of a run without deaths.
//!
//! Run it with `cargo run --release --example sweep -p outlast-tasks`.

mod support;

use outlast_tasks::{Cx, Options, Sum, Task};
use serde::{Deserialize, Serialize};

const PARAMETERS: u32 = 64;
const STEPS: u32 = 20_000;

/// The best result so far: the least energy, and the parameter that gives it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Best {
    energy: f64,
    parameter: u32,
}

impl Sum for Best {
    fn zero() -> Best {
        Best { energy: f64::INFINITY, parameter: u32::MAX }
    }

    fn add(self, other: Best) -> Best {
        if other.energy < self.energy { other } else { self }
    }
}

/// An oscillator with this damping.
#[derive(Clone, Serialize, Deserialize)]
struct Damped(u32);

impl Damped {
    /// A step of the oscillator: from its step, place and speed to the next.
    fn step(&self, (step, place, speed): (u32, f64, f64)) -> (u32, f64, f64) {
        let damping = 0.05 * f64::from(self.0);
        let speed = speed - 0.001 * (place + damping * speed);
        (step + 1, place + 0.001 * speed, speed)
    }

    fn best(&self, (_, place, speed): (u32, f64, f64)) -> Best {
        Best { energy: place * place + speed * speed, parameter: self.0 }
    }

    fn alone(&self) -> Best {
        let last = (0..STEPS).fold((0, 1.0, 0.0), |state, _| self.step(state));
        self.best(last)
    }
}

impl Task for Damped {
    const NAME: &'static str = "damped";
    type Output = Best;

    fn run(self, cx: &mut Cx<'_>) -> Best {
        // The next life of the loop goes on where an earlier life has saved.
        let mut state: (u32, f64, f64) = cx.restore().unwrap_or((0, 1.0, 0.0));
        while state.0 < STEPS {
            state = self.step(state);
            cx.save(&state);
        }
        self.best(state)
    }
}

#[derive(Clone, Serialize, Deserialize)]
struct Sweep;

impl Task for Sweep {
    const NAME: &'static str = "sweep";
    type Output = Best;

    fn run(self, cx: &mut Cx<'_>) -> Best {
        let all: Vec<Damped> = (0..PARAMETERS).map(Damped).collect();
        cx.sum(&all)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let alone = (0..PARAMETERS).map(|one| Damped(one).alone()).fold(Best::zero(), Best::add);
    support::run_members(
        |tasks| {
            let best = tasks.run(Sweep)?;
            if best.energy.to_bits() != alone.energy.to_bits() {
                return Err(format!("{best:?} should be {alone:?}").into());
            }
            Ok((best.parameter.into(), alone.parameter.into()))
        },
        Options::new().sums::<Damped>().task::<Sweep>(),
    )
}
