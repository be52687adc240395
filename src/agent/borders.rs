//! By what the rows of a function are cut into the tasks of a stage.

use serde::{Deserialize, Serialize};

use crate::task::Choice;

/// Hashes of what decides which rows come to which task, as Spark runs the stage: the files and how they are packed, by
/// what rows are shuffled, and which of these partitions a task reads.
///
/// The lowest bit says whether rows may be elsewhere though all that is the same. The 16 bits above are the rows'
/// [`Choice`], the next 15 a hash in which columns go by their names, the upper half one in which two columns of one name are
/// two. A hash of 0 is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Borders(pub u64);

/// Where the hashes are.
const HASHES: [u64; 2] = [0xfffe_0000, 0xffff_ffff_0000_0000];

impl Borders {
    /// Of a Spark that does not tell.
    pub const UNKNOWN: Self = Self(0);

    /// Whether rows may be in other partitions each time, though all that is known of their borders is the same:
    /// `repartition(n)` deals rows as they come.
    #[must_use]
    pub const fn deals(self) -> bool {
        self.0 & 1 == 1
    }

    /// By what the rows are chosen that come to the function.
    #[must_use]
    pub const fn choice(self) -> Choice {
        Choice((self.0 >> 1 & 0xffff) as u16)
    }

    /// Whether rows are cut otherwise, as far as that is known of both.
    #[must_use]
    pub fn are_others(self, than: Self) -> bool {
        HASHES.iter().any(|hash| {
            let (ours, theirs) = (self.0 & hash, than.0 & hash);
            ours != theirs && ours != 0 && theirs != 0
        })
    }

    /// Whether rows are known to be cut alike.
    #[must_use]
    pub fn are_those(self, of: Self) -> bool {
        self != Self::UNKNOWN && of != Self::UNKNOWN && !self.are_others(of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borders_are_compared_as_far_as_both_are_known() {
        let of = |place: u64, name: u64| Borders(place << 32 | name << 17);
        for (one, other, are_those) in [
            (of(0, 4), of(3, 4), true),
            (of(3, 4), of(3, 4), true),
            (of(2, 4), of(3, 4), false),
            (of(0, 5), of(3, 4), false),
            (of(0, 5), of(0, 4), false),
        ] {
            assert_eq!((one.are_those(other), one.are_others(other)), (are_those, !are_those));
            assert_eq!((other.are_those(one), other.are_others(one)), (are_those, !are_those));
            let deals = Borders(one.0 | 1);
            assert!(deals.deals() && !one.deals() && deals.are_those(other) == are_those);
            let chosen = Borders(one.0 | 0x1_fffe);
            assert_eq!((chosen.choice(), chosen.are_those(other)), (Choice(0xffff), are_those));
        }
        for known in [of(3, 4), Borders::UNKNOWN] {
            assert!(!known.are_others(Borders::UNKNOWN) && !known.are_those(Borders::UNKNOWN));
        }
    }
}
