//! Determinants: the recorded outcomes of nondeterministic events, and the blocks they travel in.
//!
//! ```text
//! block        "CB" | version u8 = 1 | flags u8 | body length u32 | count u32 | crc32 u32 | body
//! determinant  kind u8 | fields
//! ```
//!
//! Integers of fixed size are little-endian; `v` below is an unsigned LEB128 varint, `z` a zigzag varint,
//! `bytes` a varint length and that many bytes. The checksum covers flags, count and body.
//!
//! | kind | name | fields |
//! |---|---|---|
//! | 1 | Header | format `v`, mode u8, code u64, python `bytes`, label `bytes`, stage `v`, app u64 |
//! | 2 | Time | nanoseconds since 1970 `z`, less those of the Time before it in the block |
//! | 3 | Seed | u64 |
//! | 4 | Results | flags u8 (bit 0: all fingerprints are equal, and only one stands here), rows `v`, u64 each, Arrow IPC `bytes` |
//! | 5 | Call | name u64, ok u8, value `bytes` |
//! | 6 | Row | fingerprint u64; what follows belongs to this row |
//! | 7 | Input | rows `v`, fingerprint u64; a batch of a partition was taken |
//! | 8 | `EpochMark` | |
//! | 9 | Order | channel `v`, frames `v`, version u64; so many frames of this channel were taken next |
//! | 10 | | reserved for timers |
//! | 11 | Output | round `v`; what stands before in this block led to this round of frames |
//! | 12 | Resume | segment `v`; what follows goes on with this row segment of an earlier generation |
//! | 13 | `TimeAgain` | count `v`; the Time before came so many times more |
//! | 14 | Rows | `bytes`: per row of the Results after it, its number in the input, `z`, less the one before |
//! | 15 | Service | name u64, text `bytes`; what people call the service of this name |
//! | 16 | Marks | `bytes`: per row of the Results after it, u64; what can be seen of it besides arguments, 0: nothing |

mod block;
pub(crate) mod codec;
mod fingerprint;
mod fingerprint_map;
mod kind;
mod results;
mod rows;

#[cfg(test)]
mod tests;

pub use block::{BLOCK_HEADER_BYTES, BlockBuilder, BlockReader};
pub use fingerprint::{batch_fingerprint, bytes_fingerprint, row_fingerprints};
pub(crate) use fingerprint_map::FingerprintMap;
pub use kind::{Determinant, FORMAT, Fingerprints};
pub use results::{decode_results, encode_results};
pub use rows::{encode_marks, encode_row_numbers, marks, row_numbers};
