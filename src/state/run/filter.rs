//! Which keys a chunk cannot have: so most runs are not looked into for a key that they do not have.
//!
//! A Bloom filter whose bits for one key are in one line of the processor's cache; one key in a hundred or so is
//! taken to be there though it is not.

/// Bits for each key.
const BITS: usize = 10;
/// Words of a line.
const LINE: usize = 8;
/// Bits that are set for a key.
const SET: u32 = 6;

/// The filters of all chunks of a run, one behind the other.
#[derive(Debug, Default)]
pub(super) struct Filters {
    words: Vec<u64>,
    /// Where the lines of each chunk end.
    ends: Vec<u32>,
}

impl Filters {
    /// Adds the filter of the next chunk, whose keys have these heads.
    pub(super) fn push(&mut self, heads: &[u64]) {
        let lines = (heads.len() * BITS).div_ceil(64 * LINE);
        let first = self.words.len();
        self.words.resize(first + lines * LINE, 0);
        let words = self.words.get_mut(first..).unwrap_or_default();
        for head in heads {
            let hash = mixed(*head);
            let line = words.get_mut(line_of(hash, lines)..).unwrap_or_default();
            for (word, bit) in bits(hash) {
                if let Some(word) = line.get_mut(word) {
                    *word |= bit;
                }
            }
        }
        self.ends.push(u32::try_from(self.words.len() / LINE).unwrap_or(u32::MAX));
    }

    /// Whether a key with this head may be in a chunk.
    pub(super) fn may_have(&self, chunk: usize, head: u64) -> bool {
        let end = self.ends.get(chunk).map_or(0, |end| *end as usize);
        let first =
            chunk.checked_sub(1).and_then(|before| self.ends.get(before)).map_or(0, |end| *end as usize);
        let hash = mixed(head);
        let at = first * LINE + line_of(hash, end - first);
        let line = self.words.get(at..).unwrap_or_default();
        bits(hash).all(|(word, bit)| line.get(word).is_none_or(|word| word & bit != 0))
    }

    /// Makes room for as much as others have together.
    pub(super) fn reserve<'a>(&mut self, others: impl Iterator<Item = &'a Self> + Clone) {
        // With as many chunks that are not whole, each of which may begin a line.
        let words = others.clone().map(|other| other.words.len()).sum();
        self.words.reserve_exact(words);
        self.ends.reserve_exact(others.map(|other| other.ends.len()).sum());
    }

    /// There will be no more.
    pub(super) fn shrink(&mut self) {
        self.words.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    /// Bytes of memory it takes.
    pub(super) const fn bytes(&self) -> usize {
        self.words.capacity() * size_of::<u64>() + self.ends.capacity() * size_of::<u32>()
    }
}

/// Keys of a chunk begin alike, so what they begin with says little.
const fn mixed(head: u64) -> u64 {
    let mixed = (head ^ (head >> 32)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb)
}

/// First word of a key's line among those of its chunk.
const fn line_of(hash: u64, lines: usize) -> usize {
    (((hash >> 32) * lines as u64) >> 32) as usize * LINE
}

/// Words in the line, and bits in them.
fn bits(hash: u64) -> impl Iterator<Item = (usize, u64)> {
    // The bits that choose the line are the highest; nine for each of these are taken from the rest.
    let rest = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..SET).map(move |number| {
        let nine = rest >> (64 - 9 * (number + 1)) & 511;
        ((nine >> 6) as usize, 1 << (nine & 63))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_has_what_was_put_there_and_little_else() {
        let head = |number: u64| 7 << 56 | mixed(number) >> 8;
        let mut filters = Filters::default();
        for chunk in 0..3 {
            let heads: Vec<u64> = (chunk * 1_000..(chunk + 1) * 1_000).map(head).collect();
            filters.push(&heads);
        }
        filters.push(&[]);
        for chunk in 0..3_u64 {
            let has = |number: &u64| filters.may_have(chunk as usize, head(*number));
            assert!((chunk * 1_000..(chunk + 1) * 1_000).all(|number| has(&number)));
            let others = (10_000..20_000).filter(has).count();
            assert!(others < 400, "{others} of 10000");
        }
    }
}
