//! Random numbers that depend on the row, not on the order of rows.
//!
//! A task logs one seed. What a row draws is a pure function of that seed, the row's fingerprint,
//! its occurrence (how many equal rows came before it) and the position of the draw within the row,
//! so an attempt that receives its rows in another order draws the same numbers for each of them.
//!
//! The generator is SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number
//! Generators", OOPSLA 2014; constants of Vigna's public-domain reference,
//! <https://prng.di.unimi.it/splitmix64.c>): output `n` is a finalizer over `key + n * GOLDEN`. It
//! is not for cryptographic use.

/// 2^64 divided by the golden ratio, the increment of SplitMix64.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finalizer of SplitMix64 (variant 13 of Stafford's mixers): a bijection on 64 bits.
const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A counter-based generator keyed by (seed, row fingerprint, occurrence).
///
/// Its output is part of what replay reproduces: it must never change between versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowRng {
    seed: u64,
    key: u64,
    drawn: u64,
}

impl RowRng {
    /// A generator for the task's seed, standing before the first row.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { seed, key: mix(seed), drawn: 0 }
    }

    /// Starts the stream of one row. `occurrence` counts equal rows in this task from 0.
    pub const fn reset_row(&mut self, fingerprint: u64, occurrence: u64) {
        // Two rounds, so that neither word can be traded for the other: (a, b) and (b, a) differ.
        let row = mix(self.seed ^ mix(fingerprint.wrapping_add(GOLDEN)));
        self.key = mix(row.wrapping_add(occurrence.wrapping_mul(GOLDEN)).wrapping_add(1));
        self.drawn = 0;
    }

    /// The next 64 uniform bits of this row.
    pub const fn next_u64(&mut self) -> u64 {
        self.drawn = self.drawn.wrapping_add(1);
        mix(self.key.wrapping_add(self.drawn.wrapping_mul(GOLDEN)))
    }

    /// Fills `out` with uniform bytes. Draws whole words: `fill` of 3 bytes advances by one
    /// `next_u64`.
    pub fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            for (to, from) in chunk.iter_mut().zip(word) {
                *to = from;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(rng: &mut RowRng, fingerprint: u64, occurrence: u64) -> [u64; 3] {
        rng.reset_row(fingerprint, occurrence);
        [rng.next_u64(), rng.next_u64(), rng.next_u64()]
    }

    #[test]
    fn rows_in_another_order_draw_the_same_numbers() {
        let rows = [(7, 0), (9, 0), (7, 1), (u64::MAX, 0)];
        let mut first = RowRng::new(42);
        let drawn: Vec<_> = rows.iter().map(|&(f, o)| draw(&mut first, f, o)).collect();
        let mut second = RowRng::new(42);
        for (&(f, o), want) in rows.iter().zip(&drawn).rev() {
            assert_eq!(draw(&mut second, f, o), *want);
        }
    }

    #[test]
    fn seed_fingerprint_and_occurrence_each_matter() {
        let base = draw(&mut RowRng::new(1), 2, 3);
        assert_ne!(base, draw(&mut RowRng::new(0), 2, 3));
        assert_ne!(base, draw(&mut RowRng::new(1), 3, 2));
        assert_ne!(base, draw(&mut RowRng::new(1), 2, 4));
        assert_ne!(base, draw(&mut RowRng::new(2), 1, 3));
    }

    #[test]
    fn fill_is_the_words_in_little_endian_order() {
        let mut words = RowRng::new(5);
        let mut bytes = words.clone();
        let mut out = [0; 11];
        bytes.fill(&mut out);
        assert_eq!(out.get(..8), Some(words.next_u64().to_le_bytes().as_slice()));
        assert_eq!(out.get(8..), words.next_u64().to_le_bytes().get(..3));
        assert_eq!(bytes, words);
    }

    #[test]
    fn numbers_are_those_of_the_first_release() {
        let mut rng = RowRng::new(1);
        let numbers = [969_416_934_934_074_924, 1_425_995_865_349_084_648, 14_567_719_855_355_408_449];
        assert_eq!(draw(&mut rng, 2, 3), numbers);
    }

    #[test]
    fn outputs_are_those_of_the_published_splitmix64() {
        let mut rng = RowRng { seed: 0, key: 1_234_567, drawn: 0 };
        assert_eq!(
            [rng.next_u64(), rng.next_u64(), rng.next_u64()],
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn bits_are_balanced() {
        let mut rng = RowRng::new(99);
        let ones: u32 = (0..10_000)
            .map(|row| {
                rng.reset_row(row, 0);
                rng.next_u64().count_ones()
            })
            .sum();
        // 640,000 fair bits: mean 320,000, standard deviation 400; six of them.
        assert!((317_600..=322_400).contains(&ones), "{ones} ones");
    }
}
