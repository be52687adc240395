//! What crosses between hosts, encrypted: the records of a Noise connection.
//!
//! `NNpsk0` with a key made of the application's secret, so whoever ends the handshake holds it; the keys of the
//! connection come from fresh Diffie-Hellman shares, so a secret that is learnt later opens nothing that was
//! recorded. A record is its length (u16, little-endian) and as many bytes, 16 of them the tag. Records have no
//! numbers of their own: both sides count, so one that was changed, left out, repeated or moved is none.

use snow::{Builder, HandshakeState, TransportState};

use super::stream::Wire;
use crate::error::{Error, Result};

/// AES-GCM: no processor that Spark runs on lacks instructions for it.
const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
/// Either message of the handshake: a share and a tag.
pub(super) const SHARE: usize = 32 + TAG;
const TAG: usize = 16;
/// Bytes of a record's length.
const HEAD: usize = 2;
/// Largest record without its length, as Noise has it.
const RECORD_MAX: usize = 65_535;
const PLAIN_MAX: usize = RECORD_MAX - TAG;
/// Records are written together up to about so many bytes.
const WRITTEN_AT_ONCE: usize = 4 * (HEAD + RECORD_MAX);
/// After so many records in one direction it has another key: AES-GCM is not for any amount under one.
const RECORDS_PER_KEY: u64 = if cfg!(test) { 8 } else { 1 << 22 };

/// A handshake that has begun.
pub(super) struct Handshake(HandshakeState);

impl Handshake {
    /// `before` is all that both sides have said: if one has heard something else, nothing comes of it.
    pub(super) fn new(connects: bool, key: &[u8; 32], before: &[u8]) -> Result<Self> {
        let pattern = PATTERN.parse().map_err(unusual)?;
        let builder = Builder::new(pattern).psk(0, key).and_then(|builder| builder.prologue(before));
        let builder = builder.map_err(unusual)?;
        let begun = if connects { builder.build_initiator() } else { builder.build_responder() };
        Ok(Self(begun.map_err(unusual)?))
    }

    pub(super) fn share(&mut self) -> Result<[u8; SHARE]> {
        let mut share = [0; SHARE];
        self.0.write_message(&[], &mut share).map_err(unusual)?;
        Ok(share)
    }

    /// Whether the other side's share is of somebody who holds the key and heard the same.
    pub(super) fn hear(&mut self, share: &[u8; SHARE]) -> bool {
        self.0.read_message(share, &mut []).is_ok()
    }

    pub(super) fn end(self) -> Result<Records> {
        let noise = self.0.into_transport_mode().map_err(unusual)?;
        let (came, opened, outgoing) = (vec![0; HEAD + RECORD_MAX], Vec::new(), Vec::new());
        Ok(Records { noise, came, from: 0, to: 0, opened, at: 0, outgoing })
    }
}

/// Both directions of an encrypted connection.
pub(super) struct Records {
    noise: TransportState,
    /// Read ahead; from `from` to `to` stands what was not opened yet.
    came: Vec<u8>,
    from: usize,
    to: usize,
    /// A record that was asked for in part; from `at` on it is left.
    opened: Vec<u8>,
    at: usize,
    outgoing: Vec<u8>,
}

impl Records {
    pub(super) fn write_all(&mut self, wire: &mut Wire, bytes: &[u8]) -> Result<()> {
        let mut filled = 0;
        for part in bytes.chunks(PLAIN_MAX) {
            let end = filled + HEAD + part.len() + TAG;
            if self.outgoing.len() < end {
                self.outgoing.resize(end, 0);
            }
            let record = self.outgoing.get_mut(filled..end).unwrap_or_default();
            let (head, record) = record.split_at_mut(HEAD);
            head.copy_from_slice(&u16::try_from(part.len() + TAG).unwrap_or(u16::MAX).to_le_bytes());
            self.noise.write_message(part, record).map_err(unusual)?;
            if self.noise.sending_nonce().is_multiple_of(RECORDS_PER_KEY) {
                self.noise.rekey_outgoing();
            }
            filled = end;
            if filled >= WRITTEN_AT_ONCE {
                wire.write_all(self.outgoing.get(..filled).unwrap_or_default())?;
                filled = 0;
            }
        }
        wire.write_all(self.outgoing.get(..filled).unwrap_or_default())
    }

    pub(super) fn read_exact(&mut self, wire: &mut Wire, mut buffer: &mut [u8]) -> Result<()> {
        while !buffer.is_empty() {
            let left = self.opened.get(self.at..).unwrap_or_default();
            let read = if left.is_empty() {
                self.open_next(wire, buffer)?
            } else {
                let read = left.len().min(buffer.len());
                let (out, left) = (buffer.get_mut(..read), left.get(..read));
                out.unwrap_or_default().copy_from_slice(left.unwrap_or_default());
                self.at += read;
                read
            };
            buffer = buffer.get_mut(read..).unwrap_or_default();
        }
        Ok(())
    }

    /// Waits, as long as `go_on`, until something has come.
    pub(super) fn wait(&mut self, wire: &mut Wire, go_on: impl Fn() -> bool) -> Result<()> {
        if self.at == self.opened.len() && self.from == self.to {
            (self.from, self.to) = (0, 0);
            self.to = wire.read_begun(&mut self.came, go_on)?;
        }
        Ok(())
    }

    /// Opens the next record: into `buffer` if it goes there, else it is kept. How much of `buffer` is filled.
    fn open_next(&mut self, wire: &mut Wire, buffer: &mut [u8]) -> Result<usize> {
        let len = self.next_len(wire)?;
        let at = self.from + HEAD;
        let record = self.came.get(at..at + len).unwrap_or_default();
        // The library's scratch space is the end of where it opens.
        let is_direct = buffer.len() >= len;
        if !is_direct {
            self.opened.resize(len, 0);
        }
        let opened = self.noise.read_message(record, if is_direct { buffer } else { &mut self.opened });
        let Ok(opened) = opened else {
            self.opened.clear();
            self.at = 0;
            // Nothing that follows can be known to be what was sent.
            wire.stream.shutdown();
            return Err(Error::AgentUnreachable {
                agent: wire.peer.clone(),
                reason:
                    "what came is not what was sent: it was changed, cut, repeated or left out on its way"
                        .to_owned(),
            });
        };
        if self.noise.receiving_nonce().is_multiple_of(RECORDS_PER_KEY) {
            self.noise.rekey_incoming();
        }
        self.from = at + len;
        self.at = 0;
        self.opened.truncate(if is_direct { 0 } else { opened });
        Ok(if is_direct { opened } else { 0 })
    }

    /// Length of the next record, once all of it has come.
    fn next_len(&mut self, wire: &mut Wire) -> Result<usize> {
        loop {
            let came = self.came.get(self.from..self.to).unwrap_or_default();
            if let Some((head, rest)) = came.split_first_chunk::<HEAD>() {
                let len = usize::from(u16::from_le_bytes(*head));
                if rest.len() >= len {
                    return Ok(len);
                }
            }
            self.came.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
            self.to += wire.read_some(self.came.get_mut(self.to..).unwrap_or_default())?;
        }
    }
}

impl std::fmt::Debug for Records {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Records").finish_non_exhaustive()
    }
}

/// Of a state that no peer can bring about.
fn unusual(error: impl std::fmt::Display) -> Error {
    Error::Protocol { what: format!("encryption: {error}") }
}
