//! Which rows of its source a query has a function see, and in which order.

use serde::{Deserialize, Serialize};

/// What is known of how rows are chosen that come to a function, and of their order.
///
/// The lowest bit says that they come in the order of their source, each time. Those above are a hash of what is below the
/// function: the filters, joins and limits that choose rows, not the columns that are read of them. A hash of 0 is not known.
/// The highest bit is that of a function which several stages of its query ask, to which other rows come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Choice(pub u16);

/// How two choices compare. Of several, the first of these holds of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Chosen {
    /// Other rows.
    Otherwise,
    /// One of the two is not known.
    Unknown,
    /// The same rows.
    Alike,
    /// The same rows, in the order of their source.
    InOrder,
}

impl Choice {
    /// Of a query that does not tell.
    pub const UNKNOWN: Self = Self(0);
    /// In the hash of a function that several stages ask.
    const SEVERAL: u16 = 1 << 14;

    const fn hash(self) -> u16 {
        (self.0 >> 1) & (Self::SEVERAL - 1)
    }

    /// It says nothing of the rows: which stages ask a function may be known better once Spark has run them.
    const fn is_of_several(self) -> bool {
        (self.0 >> 1) & Self::SEVERAL != 0
    }

    /// Whether both are known, and those of two queries.
    pub(crate) const fn is_another(self, with: Self) -> bool {
        self.hash() != 0 && with.hash() != 0 && self.hash() != with.hash()
    }

    /// `same_stage`: both are of one, so of one place.
    pub(super) const fn compare(self, with: Self, same_stage: bool) -> Chosen {
        match (self.hash(), with.hash()) {
            (0, _) | (_, 0) => Chosen::Unknown,
            (ours, theirs) if ours != theirs => Chosen::Otherwise,
            _ if (self.is_of_several() || with.is_of_several()) && !same_stage => Chosen::Otherwise,
            _ if self.0 & with.0 & 1 == 1 => Chosen::InOrder,
            _ => Chosen::Alike,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_compare_where_both_are_known() {
        for (one, other, chosen) in [
            (4, 4, Chosen::Alike),
            (5, 4, Chosen::Alike),
            (5, 5, Chosen::InOrder),
            (5, 7, Chosen::Otherwise),
            (4, 7, Chosen::Otherwise),
            (0, 4, Chosen::Unknown),
            (1, 5, Chosen::Unknown),
            (1, 1, Chosen::Unknown),
        ] {
            for same_stage in [false, true] {
                assert_eq!(Choice(one).compare(Choice(other), same_stage), chosen);
                assert_eq!(Choice(other).compare(Choice(one), same_stage), chosen);
            }
        }
        let several = Choice(u16::MAX);
        assert_eq!(several.compare(several, true), Chosen::InOrder);
        assert_eq!(several.compare(several, false), Chosen::Otherwise);
        assert_eq!(several.compare(Choice(5), true), Chosen::Otherwise);
        let one = Choice(u16::MAX >> 1);
        assert!(!several.is_another(one) && several.is_another(Choice(5)));
        assert_eq!(several.compare(one, true), Chosen::InOrder);
        assert_eq!(one.compare(several, false), Chosen::Otherwise);
    }
}
