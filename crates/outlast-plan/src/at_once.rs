//! The chance of a loss if a number of elements fail at once.

use crate::deadly::choose;
use crate::rows::Rows;
use num_bigint::BigUint;

/// The chance that data is lost if `failed` of the domains of some rows fail at once.
///
/// Of C(D, x) ways to choose the failed domains, the coefficient of z^x in the product of
/// Σ_{i≤m} C(n, i) z^i over all rows are safe. Both are computed in whole numbers, so a chance that
/// is close to 0 is as exact as any other.
pub fn loss_at_once(rows: Rows, lose: u64, failed: u64) -> f64 {
    let degree = failed as usize;
    let mut lengths = std::collections::BTreeMap::new();
    let mut domains = 0;
    for row in 0..rows.len() {
        *lengths.entry(rows.row_len(row)).or_insert(0u64) += 1;
        domains += rows.row_len(row);
    }
    if failed > domains {
        return 1.0;
    }
    let mut safe = vec![BigUint::from(1u8)];
    for (length, count) in lengths {
        let row: Vec<BigUint> =
            (0..=lose.min(length)).map(|i| BigUint::from(choose(length, i))).collect();
        safe = product(&safe, &power(row, count, degree), degree);
    }
    let safe = safe.get(degree).cloned().unwrap_or_default();
    let mut all = BigUint::from(1u8);
    for i in 0..failed {
        all = all * (domains - i) / (i + 1);
    }
    ratio(&(&all - safe), &all)
}

/// A power of a polynomial, up to a degree.
fn power(mut base: Vec<BigUint>, mut exponent: u64, degree: usize) -> Vec<BigUint> {
    let mut result = vec![BigUint::from(1u8)];
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = product(&result, &base, degree);
        }
        exponent >>= 1;
        if exponent > 0 {
            base = product(&base, &base, degree);
        }
    }
    result
}

fn product(a: &[BigUint], b: &[BigUint], degree: usize) -> Vec<BigUint> {
    let mut result = vec![BigUint::ZERO; (a.len() + b.len() - 1).min(degree + 1)];
    for (i, x) in a.iter().enumerate().take(degree + 1) {
        for (j, y) in b.iter().enumerate().take(degree + 1 - i) {
            result[i + j] += x * y;
        }
    }
    result
}

/// The quotient of two whole numbers of any size.
fn ratio(part: &BigUint, whole: &BigUint) -> f64 {
    // 64 more bits than the quotient's exponent takes are enough for all digits of an f64.
    let shift = (whole.bits() + 64).saturating_sub(part.bits());
    let quotient = (part << shift) / whole;
    let digits = quotient.iter_u64_digits().fold((0.0, 1.0), |(sum, scale), digit| {
        (sum + digit as f64 * scale, scale * 2f64.powi(64))
    });
    digits.0 * 2f64.powf(-(shift as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_thousand_nodes_with_three_copies_are_lost_as_printed() {
        // Copysets (2013): 5000 nodes, 3 copies in rows, 1 % of the nodes fail: 0.15 %.
        let loss = loss_at_once(Rows::new(5000, 3), 2, 50);
        assert!((0.001_55..0.001_59).contains(&loss), "{loss}");
    }

    #[test]
    fn chances_at_once_are_those_of_a_look_at_every_choice() {
        for (domains, set, lose) in [(12, 4, 1), (12, 4, 2), (13, 4, 2), (11, 3, 1), (10, 10, 3)] {
            let rows = Rows::new(domains, set);
            for failed in 0..=domains {
                let (mut all, mut lost) = (0, 0);
                for bits in
                    (0u64..1 << domains).filter(|bits| u64::from(bits.count_ones()) == failed)
                {
                    all += 1;
                    let is_lost = (0..rows.len()).any(|row| {
                        rows.row(row).filter(|domain| bits >> domain & 1 == 1).count() as u64 > lose
                    });
                    lost += u64::from(is_lost);
                }
                let expected = lost as f64 / all as f64;
                let computed = loss_at_once(rows, lose, failed);
                assert!((computed - expected).abs() < 1e-12, "{computed} {expected}");
            }
        }
        assert_eq!(loss_at_once(Rows::new(8, 4), 1, 9), 1.0);
    }
}
