//! Proof that both sides hold the application's secret, without sending it.
//!
//! ```text
//! server → client   "CLON" | version u32 | nonce s (32 bytes)
//! client → server   nonce c (32 bytes) | HMAC-SHA256(secret, "client" | s | c)
//! server → client   HMAC-SHA256(secret, "server" | c | s)
//! ```
//!
//! Fresh nonces of both sides keep an overheard exchange from being of use (RFC 2104 for the code).

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::messages::Connection;
use crate::agent::protocol::PROTOCOL_VERSION;
use crate::error::{Error, Result};

const MAGIC: [u8; 4] = *b"CLON";
const NONCE: usize = 32;

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

fn refused(connection: &Connection) -> Error {
    Error::AuthRefused { peer: connection.peer().to_owned() }
}

/// What the side that accepted says first.
pub(super) fn hello(connection: &mut Connection) -> Result<[u8; 8 + NONCE]> {
    let mut hello = [0; 8 + NONCE];
    connection.read_exact(&mut hello)?;
    Ok(hello)
}

/// The side that connected.
pub(super) fn prove(connection: &mut Connection, hello: &[u8; 8 + NONCE], secret: &[u8; 32]) -> Result<()> {
    let (head, theirs) = hello.split_at(8);
    let (magic, version) = head.split_at(4);
    if magic != MAGIC {
        return Err(refused(connection));
    }
    let version = version.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    if version != PROTOCOL_VERSION {
        return Err(Error::UnsupportedVersion {
            what: format!("the agent {}", connection.peer()),
            found: version,
            known: PROTOCOL_VERSION,
        });
    }
    let ours = nonce()?;
    let mut answer = ours.to_vec();
    answer.extend(mac(secret, [b"client", theirs, &ours])?.finalize().into_bytes());
    connection.write_all(&answer)?;
    let mut proof = [0; 32];
    connection.read_exact(&mut proof).map_err(|error| match error {
        // A server that does not like our proof closes the connection.
        Error::AgentUnreachable { .. } => refused(connection),
        other => other,
    })?;
    mac(secret, [b"server", &ours, theirs])?.verify_slice(&proof).map_err(|_| refused(connection))
}

/// The side that accepted.
pub(super) fn verify(connection: &mut Connection, secret: &[u8; 32]) -> Result<()> {
    let ours = nonce()?;
    let mut hello = MAGIC.to_vec();
    hello.extend(PROTOCOL_VERSION.to_le_bytes());
    hello.extend(ours);
    connection.write_all(&hello)?;
    let mut answer = [0; NONCE + 32];
    connection.read_exact(&mut answer)?;
    let (theirs, proof) = answer.split_at(NONCE);
    mac(secret, [b"client", &ours, theirs])?.verify_slice(proof).map_err(|_| refused(connection))?;
    let ours_proof = mac(secret, [b"server", theirs, &ours])?.finalize().into_bytes();
    connection.write_all(&ours_proof)
}
