//! How often to save, and what saving and going back cost.

/// The time in seconds between two saves that loses the least time, as of Daly (2006), for a save
/// that takes `save_s` and a job of which an element fails every `mtbf_s` seconds on average.
pub fn daly_interval(save_s: f64, mtbf_s: f64) -> f64 {
    if save_s >= 2.0 * mtbf_s {
        return mtbf_s;
    }
    let part = save_s / (2.0 * mtbf_s);
    (2.0 * save_s * mtbf_s).sqrt() * (1.0 + part.sqrt() / 3.0 + part / 9.0) - save_s
}

/// The time that is added to a program that saves every `interval_s` seconds, as a fraction of its
/// own time: saves, work that is done again after a failure, and `back_s` seconds for each failure.
/// Failures are exponential, and may come while the program goes back.
pub fn overhead(interval_s: f64, save_s: f64, back_s: f64, mtbf_s: f64) -> f64 {
    mtbf_s * (back_s / mtbf_s).exp() * ((interval_s + save_s) / mtbf_s).exp_m1() / interval_s - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_as_daly_printed() {
        for (mtbf_min, printed_min) in [(24.0 * 60.0, 116.7), (6.0 * 60.0, 56.7), (15.0, 9.1)] {
            let interval_min = daly_interval(300.0, mtbf_min * 60.0) / 60.0;
            assert!((interval_min - printed_min).abs() < 0.05, "{interval_min} {printed_min}");
        }
        assert_eq!(daly_interval(300.0, 100.0), 100.0, "a save takes longer than anything lives");
    }

    #[test]
    fn no_other_interval_costs_clearly_less() {
        for (save_s, mtbf_s) in [(1.0, 3600.0), (300.0, 21600.0), (60.0, 900.0)] {
            let best = daly_interval(save_s, mtbf_s);
            let cost = overhead(best, save_s, 10.0, mtbf_s);
            for other in [0.25, 0.5, 0.8, 1.25, 2.0, 4.0] {
                let cost_of_other = overhead(best * other, save_s, 10.0, mtbf_s);
                assert!(cost <= cost_of_other * 1.001, "{save_s} {mtbf_s} {other}");
            }
        }
    }
}
