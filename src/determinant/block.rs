//! Blocks: what one publish makes, checksummed as a whole.

use bytes::Bytes;

use super::codec::{Fields, corrupt, put_bytes, put_varint, put_zigzag};
use super::kind::{Determinant, FORMAT, Fingerprints};
use crate::error::{Error, Result};

const MAGIC: [u8; 2] = *b"CB";
const VERSION: u8 = 1;
/// Bytes before a block's body.
pub const BLOCK_HEADER_BYTES: usize = 16;
const HEADER_KIND: u8 = 1;
const EQUAL_FINGERPRINTS: u8 = 1;
/// Rows of one batch: a bound on what a hostile block can make a reader allocate.
const ROWS_MAX: usize = 1 << 26;

/// Collects determinants; [`BlockBuilder::finish`] makes a block of them.
#[derive(Debug)]
pub struct BlockBuilder {
    /// Room for the header, then the body so far.
    buffer: Vec<u8>,
    count: u32,
    last_time: i64,
    /// Whether the last determinant is a reading of the clock.
    after_time: bool,
    /// How often that reading came again.
    again: u32,
}

impl Default for BlockBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl BlockBuilder {
    /// An empty builder.
    #[must_use]
    pub fn new() -> Self {
        Self { buffer: vec![0; BLOCK_HEADER_BYTES], count: 0, last_time: 0, after_time: false, again: 0 }
    }

    /// Whether nothing was pushed since the last block.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Length in bytes of the block so far.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Appends a determinant.
    ///
    /// # Errors
    /// [`Error::Misuse`] for `Results` whose fingerprints do not match their number of rows.
    pub fn push(&mut self, determinant: &Determinant<'_>) -> Result<()> {
        if let Determinant::Time { unix_ns } = *determinant {
            self.push_time(unix_ns);
            return Ok(());
        }
        self.end_times();
        let out = &mut self.buffer;
        match *determinant {
            Determinant::Header { .. } => put_header(out, determinant),
            Determinant::Choice { choice } => {
                out.push(19);
                put_varint(out, choice.into());
            }
            // Handled above.
            Determinant::Time { .. } => return Ok(()),
            Determinant::TimeAgain { count } => put_again(out, count),
            Determinant::Seed { seed } => {
                out.push(3);
                out.extend_from_slice(&seed.to_le_bytes());
            }
            Determinant::Results { fingerprints, arrow } => {
                let mut numbers = Vec::new();
                fingerprints.extend_into(&mut numbers);
                return self.push_results(&numbers, arrow);
            }
            Determinant::Call { name, ok, value } => {
                out.push(5);
                out.extend_from_slice(&name.to_le_bytes());
                out.push(ok.into());
                put_bytes(out, value);
            }
            Determinant::Service { name, text } => {
                out.push(15);
                out.extend_from_slice(&name.to_le_bytes());
                put_bytes(out, text.as_bytes());
            }
            Determinant::Row { fingerprint } => {
                out.push(6);
                out.extend_from_slice(&fingerprint.to_le_bytes());
            }
            Determinant::Input { rows, fingerprint } => {
                out.push(7);
                put_varint(out, rows.into());
                out.extend_from_slice(&fingerprint.to_le_bytes());
            }
            Determinant::EpochMark => out.push(8),
            Determinant::Order { channel, frames, version } => {
                self.push_order(channel, frames, version);
                return Ok(());
            }
            Determinant::Output { round } => {
                self.push_output(round);
                return Ok(());
            }
            Determinant::Resume { segment } => {
                out.push(12);
                put_varint(out, segment.into());
            }
            Determinant::Rows { numbers } => put_of_rows(out, 14, numbers),
            Determinant::Marks { marks } => put_of_rows(out, 16, marks),
            Determinant::Copies { places } => put_of_rows(out, 17, places),
            Determinant::OfOtherUses { places } => put_of_rows(out, 18, places),
        }
        self.count += 1;
        Ok(())
    }

    /// Appends a reading of the clock: the hot path of `clonos.time()`. The same reading again only counts.
    #[inline]
    pub fn push_time(&mut self, unix_ns: i64) {
        if self.after_time && unix_ns == self.last_time && self.again < u32::MAX {
            self.again += 1;
            return;
        }
        self.end_times();
        self.after_time = true;
        self.buffer.push(2);
        put_zigzag(&mut self.buffer, unix_ns.wrapping_sub(self.last_time));
        self.last_time = unix_ns;
        self.count += 1;
    }

    /// Appends a run of frames: channel, how many, and the sender's version.
    pub fn push_order(&mut self, channel: u32, frames: u32, version: u64) {
        self.end_times();
        self.buffer.push(9);
        put_varint(&mut self.buffer, channel.into());
        put_varint(&mut self.buffer, frames.into());
        self.buffer.extend_from_slice(&version.to_le_bytes());
        self.count += 1;
    }

    /// Notes that what stands before in this block led to a round of frames.
    pub fn push_output(&mut self, round: u32) {
        self.end_times();
        self.buffer.push(11);
        put_varint(&mut self.buffer, round.into());
        self.count += 1;
    }

    /// Writes how often the last reading came again, before anything else is written.
    #[inline]
    fn end_times(&mut self) {
        self.after_time = false;
        if self.again > 0 {
            put_again(&mut self.buffer, self.again);
            self.count += 1;
            self.again = 0;
        }
    }

    /// Appends results without building a [`Determinant`] first.
    ///
    /// # Errors
    /// [`Error::Misuse`] if there are more than `u32::MAX` bytes of them.
    pub fn push_results(&mut self, fingerprints: &[u64], arrow: &[u8]) -> Result<()> {
        if arrow.len() + 8 * fingerprints.len() > u32::MAX as usize / 2 {
            return Err(Error::Misuse { what: "a batch of more than 2 GiB cannot be recorded".into() });
        }
        self.end_times();
        let equal = fingerprints.split_first().is_some_and(|(first, rest)| rest.iter().all(|f| f == first));
        let out = &mut self.buffer;
        out.push(4);
        out.push(if equal { EQUAL_FINGERPRINTS } else { 0 });
        put_varint(out, fingerprints.len() as u64);
        let kept = if equal { fingerprints.get(..1).unwrap_or_default() } else { fingerprints };
        out.reserve(8 * kept.len() + arrow.len() + 16);
        for fingerprint in kept {
            out.extend_from_slice(&fingerprint.to_le_bytes());
        }
        put_bytes(out, arrow);
        self.count += 1;
        Ok(())
    }

    /// The block, and an empty builder again.
    #[must_use]
    pub fn finish(&mut self) -> Bytes {
        self.end_times();
        let mut block = std::mem::replace(&mut self.buffer, vec![0; BLOCK_HEADER_BYTES]);
        let (count, flags) = (self.count, 0_u8);
        self.count = 0;
        self.last_time = 0;
        if let Some((header, body)) = block.split_first_chunk_mut::<BLOCK_HEADER_BYTES>() {
            let len = u32::try_from(body.len()).unwrap_or(u32::MAX);
            let (head, crc) = header.split_at_mut(12);
            let [l0, l1, l2, l3] = len.to_le_bytes();
            let [c0, c1, c2, c3] = count.to_le_bytes();
            let [m0, m1] = MAGIC;
            head.copy_from_slice(&[m0, m1, VERSION, flags, l0, l1, l2, l3, c0, c1, c2, c3]);
            crc.copy_from_slice(&checksum(flags, count, body).to_le_bytes());
        }
        Bytes::from(block)
    }
}

/// What is said of the results that come next.
fn put_of_rows(out: &mut Vec<u8>, kind: u8, of_rows: &[u8]) {
    out.push(kind);
    put_bytes(out, of_rows);
}

fn put_header(out: &mut Vec<u8>, header: &Determinant<'_>) {
    let Determinant::Header { format, mode, code, python, label, stage, app } = *header else { return };
    out.push(HEADER_KIND);
    put_varint(out, format.into());
    out.push(mode);
    out.extend_from_slice(&code.to_le_bytes());
    put_bytes(out, python.as_bytes());
    put_bytes(out, label.as_bytes());
    put_varint(out, stage.into());
    out.extend_from_slice(&app.to_le_bytes());
}

fn put_again(out: &mut Vec<u8>, count: u32) {
    out.push(13);
    put_varint(out, count.into());
}

fn checksum(flags: u8, count: u32, body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&[flags]);
    hasher.update(&count.to_le_bytes());
    hasher.update(body);
    hasher.finalize()
}

/// Reads the determinants of a block whose checksum held.
#[derive(Debug, Clone)]
pub struct BlockReader<'a> {
    fields: Fields<'a>,
    left: u32,
    last_time: i64,
}

impl<'a> BlockReader<'a> {
    /// Checks header and checksum.
    ///
    /// # Errors
    /// [`Error::CorruptBlock`] or [`Error::UnsupportedVersion`].
    pub fn new(block: &'a Bytes) -> Result<Self> {
        let (header, body) = block
            .split_first_chunk::<BLOCK_HEADER_BYTES>()
            .ok_or_else(|| corrupt("a block's header is cut off"))?;
        let [m0, m1, version, flags, l0, l1, l2, l3, c0, c1, c2, c3, k0, k1, k2, k3] = *header;
        if [m0, m1] != MAGIC {
            return Err(corrupt("a block does not start with its magic bytes"));
        }
        if version != VERSION {
            return Err(Error::UnsupportedVersion {
                what: "a block".into(),
                found: version.into(),
                known: VERSION.into(),
            });
        }
        if flags != 0 {
            return Err(corrupt("a block's flags are unknown"));
        }
        let count = u32::from_le_bytes([c0, c1, c2, c3]);
        if u32::from_le_bytes([l0, l1, l2, l3]) as usize != body.len() {
            return Err(corrupt("a block's length is not the one it states"));
        }
        if u32::from_le_bytes([k0, k1, k2, k3]) != checksum(flags, count, body) {
            return Err(corrupt("a block's checksum does not match"));
        }
        Ok(Self { fields: Fields::new(body), left: count, last_time: 0 })
    }

    /// The code and the Python version that a block's header tells, if it begins with one.
    #[must_use]
    pub fn opening(block: &'a Bytes) -> Option<(u64, &'a str)> {
        // A look at the kind first: most blocks begin with something else, and need no check then.
        if block.get(BLOCK_HEADER_BYTES) != Some(&HEADER_KIND) {
            return None;
        }
        match Self::new(block).ok()?.next()?.ok()? {
            Determinant::Header { code, python, .. } => Some((code, python)),
            _ => None,
        }
    }

    fn read(&mut self) -> Result<Determinant<'a>> {
        let fields = &mut self.fields;
        Ok(match fields.byte()? {
            HEADER_KIND => Self::header(fields)?,
            2 => {
                self.last_time = self.last_time.wrapping_add(fields.zigzag()?);
                Determinant::Time { unix_ns: self.last_time }
            }
            3 => Determinant::Seed { seed: fields.fixed()? },
            4 => Self::results(fields)?,
            5 => {
                let (name, ok, value) = (fields.fixed()?, fields.byte()?, fields.bytes()?);
                if ok > 1 {
                    return Err(corrupt("a call neither returned nor raised"));
                }
                Determinant::Call { name, ok: ok != 0, value }
            }
            6 => Determinant::Row { fingerprint: fields.fixed()? },
            7 => Determinant::Input { rows: fields.small()?, fingerprint: fields.fixed()? },
            8 => Determinant::EpochMark,
            9 => Determinant::Order {
                channel: fields.small()?,
                frames: fields.small()?,
                version: fields.fixed()?,
            },
            11 => Determinant::Output { round: fields.small()? },
            13 => Determinant::TimeAgain { count: fields.small()? },
            14 => Determinant::Rows { numbers: fields.bytes()? },
            15 => Determinant::Service { name: fields.fixed()?, text: fields.text()? },
            16 => Determinant::Marks { marks: fields.bytes()? },
            17 => Determinant::Copies { places: fields.bytes()? },
            18 => Determinant::OfOtherUses { places: fields.bytes()? },
            19 => Determinant::Choice { choice: fields.small()? },
            12 => Determinant::Resume { segment: fields.small()? },
            kind => return Err(corrupt(&format!("kind {kind} of determinant is unknown"))),
        })
    }

    fn header(fields: &mut Fields<'a>) -> Result<Determinant<'a>> {
        let format = fields.small::<u16>()?;
        if format > FORMAT {
            return Err(Error::UnsupportedVersion {
                what: "a causal log".into(),
                found: format.into(),
                known: FORMAT.into(),
            });
        }
        Ok(Determinant::Header {
            format,
            mode: fields.byte()?,
            code: fields.fixed()?,
            python: fields.text()?,
            label: fields.text()?,
            stage: fields.small()?,
            app: fields.fixed()?,
        })
    }

    fn results(fields: &mut Fields<'a>) -> Result<Determinant<'a>> {
        let equal = fields.byte()? & EQUAL_FINGERPRINTS != 0;
        let rows = fields.small::<u32>()? as usize;
        if rows > ROWS_MAX {
            return Err(corrupt("more rows than a batch can have"));
        }
        let kept = if equal { rows.min(1) } else { rows };
        let raw = fields.raw(kept.checked_mul(8).ok_or_else(|| corrupt("too many rows"))?)?;
        Ok(Determinant::Results { fingerprints: Fingerprints { rows, raw }, arrow: fields.bytes()? })
    }
}

impl<'a> Iterator for BlockReader<'a> {
    type Item = Result<Determinant<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            if self.fields.is_empty() {
                return None;
            }
            self.fields = Fields::new(&[]);
            return Some(Err(corrupt("bytes follow a block's last determinant")));
        }
        self.left -= 1;
        let read = self.read();
        if read.is_err() {
            self.left = 0;
            self.fields = Fields::new(&[]);
        }
        Some(read)
    }
}
