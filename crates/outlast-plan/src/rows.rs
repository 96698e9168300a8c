//! How members are dealt into sets.
//!
//! The D domains of the level `apart` make ⌊D/n⌋ rows of at least n domains. Row r has every
//! ⌊D/n⌋-th domain from r on, so that the domains of a row are far apart in the levels above. The
//! i-th members of the domains of a row are a set. Rows, not random groups: fewer combinations of
//! domains are deadly.

/// The rows into which a number of domains is dealt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    domains: u64,
    rows: u64,
}

impl Rows {
    /// Deals so many domains into rows of at least `set`.
    ///
    /// # Panics
    ///
    /// If there are fewer domains than a row needs.
    pub fn new(domains: u64, set: u64) -> Rows {
        assert!(set > 0 && domains >= set, "a row needs {set} domains");
        Rows { domains, rows: domains / set }
    }

    /// The number of rows.
    pub fn len(&self) -> u64 {
        self.rows
    }

    /// Whether there is no row, which never happens.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// The domains of a row, ascending.
    pub fn row(&self, row: u64) -> impl Iterator<Item = u64> + use<> {
        (row..self.domains).step_by(self.rows as usize)
    }

    /// How many domains a row has.
    pub fn row_len(&self, row: u64) -> u64 {
        (self.domains - row).div_ceil(self.rows)
    }

    /// The row of a domain.
    pub fn row_of(&self, domain: u64) -> u64 {
        domain % self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_domain_is_in_a_row_and_no_row_is_short() {
        for (domains, set) in [(8, 8), (256, 8), (20, 8), (23, 3), (7, 2)] {
            let rows = Rows::new(domains, set);
            let mut seen = vec![false; domains as usize];
            for row in 0..rows.len() {
                assert!(rows.row_len(row) >= set);
                assert_eq!(rows.row(row).count() as u64, rows.row_len(row));
                for domain in rows.row(row) {
                    assert_eq!(rows.row_of(domain), row);
                    assert!(!std::mem::replace(&mut seen[domain as usize], true));
                }
            }
            assert!(seen.iter().all(|seen| *seen));
        }
    }
}
