//! Proof that both sides hold the application's secret, without sending it, and that both encrypt or neither. The
//! server also says who it is: an agent that ended leaves its port to whoever comes next.
//!
//! ```text
//! server → client   "CLON" | version u32 | encrypts u8 | s: agent u64, nonce (32 bytes)
//! client → server   encrypts u8
//!
//! in clear          client → server   nonce c (32 bytes) | HMAC-SHA256(secret, "client" | s | c)
//!                   server → client   HMAC-SHA256(secret, "server" | c | s)
//!
//! encrypted         client → server   first message of the Noise handshake
//!                   server → client   second
//! ```
//!
//! Whether a side encrypts is its setting and never the other's word: what both say is there for the error of the
//! one that was set otherwise, and whoever changes it on its way gets errors alone. In clear, fresh nonces of both
//! sides keep an overheard exchange from being of use (RFC 2104 for the code). Encrypted, all that was said
//! before, the nonce too, is what Noise calls the prologue: a first message that was overheard opens no second
//! connection.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::records::{Handshake, Records, SHARE};
use super::stream::Wire;
use crate::agent::protocol::PROTOCOL_VERSION;
use crate::config::Credentials;
use crate::error::{Error, Result};
use crate::id::AgentId;

const MAGIC: [u8; 4] = *b"CLON";
const NONCE: usize = 32;
/// Who the server is, and its nonce: the proof is about both.
const SAID: usize = size_of::<u64>() + NONCE;
/// Magic and version, which every version begins with.
const HEAD: usize = 8;
const GREETING: usize = HEAD + 1 + SAID;

fn mac(secret: &[u8; 32], parts: [&[u8]; 3]) -> Result<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret)
        .map_err(|error| Error::Protocol { what: error.to_string() })?;
    for part in parts {
        mac.update(part);
    }
    Ok(mac)
}

fn nonce() -> Result<[u8; NONCE]> {
    let mut nonce = [0; NONCE];
    getrandom::fill(&mut nonce)
        .map_err(|error| Error::Io { context: "drawing a nonce".into(), message: error.to_string() })?;
    Ok(nonce)
}

fn refused(wire: &Wire) -> Error {
    Error::AuthRefused { peer: wire.peer.clone() }
}

/// The first word of the side that accepts.
pub(super) fn first_word(wire: &mut Wire) -> Result<[u8; HEAD]> {
    let mut head = [0; HEAD];
    wire.read_exact(&mut head)?;
    Ok(head)
}

/// The side that connected; who the other is, and what the connection is encrypted with, if it is.
pub(super) fn prove(
    wire: &mut Wire,
    head: [u8; HEAD],
    ours: &Credentials,
) -> Result<(AgentId, Option<Records>)> {
    let [m0, m1, m2, m3, version @ ..] = head;
    if [m0, m1, m2, m3] != MAGIC {
        return Err(refused(wire));
    }
    let version = u32::from_le_bytes(version);
    if version != PROTOCOL_VERSION {
        return Err(Error::UnsupportedVersion {
            what: format!("the agent {}", wire.peer),
            found: version,
            known: PROTOCOL_VERSION,
        });
    }
    let mut rest = [0; 1 + SAID];
    wire.read_exact(&mut rest)?;
    let [encrypts, theirs @ ..] = rest;
    wire.write_all(&[u8::from(ours.encrypt)])?;
    agreed(wire, encrypts, ours)?;
    let answered = if ours.encrypt {
        share_first(wire, &[&head[..], &rest].concat(), ours)
    } else {
        prove_in_clear(wire, &theirs, &ours.secret).map(|()| None)
    };
    let agent = theirs.first_chunk().map_or(0, |agent| u64::from_le_bytes(*agent));
    answered.map(|records| (AgentId(agent), records)).map_err(|error| match error {
        // A server that does not like our proof closes the connection.
        Error::AgentUnreachable { .. } => refused(wire),
        other => other,
    })
}

/// The side that accepted, which is `agent`; what the connection is encrypted with, if it is.
pub(super) fn verify(wire: &mut Wire, ours: &Credentials, agent: AgentId) -> Result<Option<Records>> {
    let mut said = [0; SAID];
    let (name, nonce) = said.split_at_mut(size_of::<u64>());
    name.copy_from_slice(&agent.0.to_le_bytes());
    nonce.copy_from_slice(&self::nonce()?);
    let mut greeting = Vec::with_capacity(GREETING);
    greeting.extend(MAGIC);
    greeting.extend(PROTOCOL_VERSION.to_le_bytes());
    greeting.push(u8::from(ours.encrypt));
    greeting.extend(said);
    wire.write_all(&greeting)?;
    let mut encrypts = [0];
    wire.read_exact(&mut encrypts)?;
    agreed(wire, encrypts[0], ours)?;
    if ours.encrypt {
        share_second(wire, &greeting, ours)
    } else {
        verify_in_clear(wire, &said, &ours.secret).map(|()| None)
    }
}

/// Refuses one who was set otherwise.
fn agreed(wire: &Wire, theirs: u8, ours: &Credentials) -> Result<()> {
    match theirs {
        0 | 1 if theirs == u8::from(ours.encrypt) => Ok(()),
        0 | 1 => Err(Error::EncryptionDiffers { peer: wire.peer.clone(), encrypts: ours.encrypt }),
        _ => Err(refused(wire)),
    }
}

/// Not the secret itself, with which the proof in clear is made.
fn key(secret: &[u8; 32]) -> Result<[u8; 32]> {
    Ok(mac(secret, [b"noise", &[], &[]])?.finalize().into_bytes().into())
}

fn share_first(wire: &mut Wire, before: &[u8], ours: &Credentials) -> Result<Option<Records>> {
    let mut handshake = Handshake::new(true, &key(&ours.secret)?, before)?;
    wire.write_all(&handshake.share()?)?;
    let mut theirs = [0; SHARE];
    wire.read_exact(&mut theirs)?;
    if !handshake.hear(&theirs) {
        return Err(refused(wire));
    }
    handshake.end().map(Some)
}

fn share_second(wire: &mut Wire, before: &[u8], ours: &Credentials) -> Result<Option<Records>> {
    let mut handshake = Handshake::new(false, &key(&ours.secret)?, before)?;
    let mut theirs = [0; SHARE];
    wire.read_exact(&mut theirs)?;
    if !handshake.hear(&theirs) {
        return Err(refused(wire));
    }
    wire.write_all(&handshake.share()?)?;
    handshake.end().map(Some)
}

fn prove_in_clear(wire: &mut Wire, theirs: &[u8; SAID], secret: &[u8; 32]) -> Result<()> {
    let ours = nonce()?;
    let mut answer = ours.to_vec();
    answer.extend(mac(secret, [b"client", theirs, &ours])?.finalize().into_bytes());
    wire.write_all(&answer)?;
    let mut proof = [0; 32];
    wire.read_exact(&mut proof)?;
    mac(secret, [b"server", &ours, theirs])?.verify_slice(&proof).map_err(|_| refused(wire))
}

fn verify_in_clear(wire: &mut Wire, ours: &[u8; SAID], secret: &[u8; 32]) -> Result<()> {
    let mut answer = [0; NONCE + 32];
    wire.read_exact(&mut answer)?;
    let (theirs, proof) = answer.split_at(NONCE);
    mac(secret, [b"client", ours, theirs])?.verify_slice(proof).map_err(|_| refused(wire))?;
    let ours_proof = mac(secret, [b"server", theirs, ours])?.finalize().into_bytes();
    wire.write_all(&ours_proof)
}
