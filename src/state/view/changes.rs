//! What a task changes: operations in the order of what the program did, then entries in theirs.

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::state::entries::{Entries, EntriesBuilder, Op};
use crate::state::key::{EntryKey, KeyPrefix, Slot, element};

/// Bytes of an entry, about: each travels in one message, and what cannot be read must not be written.
const ENTRY_BYTES_MAX: usize = if cfg!(test) { 64 << 10 } else { 128 << 20 };

/// What the program wrote, as bytes.
pub(super) enum Written {
    Put { sub: Bytes, value: Bytes },
    Delete { sub: Bytes },
    Clear,
}

/// Refuses what is too large of what was written to a variable.
pub(super) fn check_sizes<'a>(
    variable: &str,
    written: impl Iterator<Item = (&'a KeyPrefix, &'a Written)>,
) -> Result<()> {
    let bytes = |(key, what): (&KeyPrefix, &Written)| {
        let below = match what {
            Written::Put { sub, value } => sub.len() + value.len(),
            Written::Delete { sub } => sub.len(),
            Written::Clear => 0,
        };
        key.as_bytes().len() + below
    };
    match written.map(bytes).max() {
        Some(bytes) if bytes > ENTRY_BYTES_MAX => Err(Error::Misuse {
            what: format!(
                "a value of state variable {variable:?} takes {bytes} bytes with its keys, and {ENTRY_BYTES_MAX} are the \
                 most: keep it in pieces, as a list or a map"
            ),
        }),
        _ => Ok(()),
    }
}

/// What becomes of a slot of a key, or of something below it.
#[derive(Debug, Clone)]
pub(super) enum Change {
    Put {
        sub: Bytes,
        value: Bytes,
        expires_ms: i64,
    },
    /// Another element of a list.
    Append {
        value: Bytes,
        expires_ms: i64,
    },
    Delete {
        sub: Bytes,
    },
    Clear,
}

/// All that was changed, in the order in which it was.
#[derive(Debug, Default)]
pub(super) struct Changes(Vec<(u32, Slot, Change)>);

impl Changes {
    pub(super) fn push(&mut self, changes: impl Iterator<Item = (u32, Slot, Change)>) {
        self.0.extend(changes);
    }

    /// What that comes to, by key, slot and place: the last one counts, and nothing before a clear.
    pub(super) fn into_entries(self, prefixes: &[KeyPrefix], epoch: u64) -> Entries {
        let mut ranks = vec![0_u32; prefixes.len()];
        let mut order: Vec<(&KeyPrefix, usize)> = prefixes.iter().zip(0..).collect();
        order.sort_unstable();
        for ((_, number), rank) in order.into_iter().zip(0..) {
            if let Some(place) = ranks.get_mut(number) {
                *place = rank;
            }
        }
        let mut changes = self.0;
        let rank = |key: u32| ranks.get(key as usize).copied().unwrap_or(0);
        changes.sort_by_key(|(key, slot, _)| (rank(*key), *slot));
        let mut out = EntriesBuilder::new();
        for of_slot in changes.chunk_by(|one, other| (one.0, one.1) == (other.0, other.1)) {
            let Some((key, slot, _)) = of_slot.first() else { continue };
            if let Some(prefix) = prefixes.get(*key as usize) {
                write_slot(&mut out, prefix, *slot, of_slot, epoch);
            }
        }
        out.finish()
    }
}

fn write_slot(
    out: &mut EntriesBuilder,
    prefix: &KeyPrefix,
    slot: Slot,
    changes: &[(u32, Slot, Change)],
    epoch: u64,
) {
    let cleared = changes.iter().rposition(|(.., change)| matches!(change, Change::Clear));
    let rest = changes.get(cleared.map_or(0, |place| place + 1)..).unwrap_or_default();
    if cleared.is_some() {
        out.push(&EntryKey::new(prefix, slot, &[]), &Op::Clear);
    }
    let mut sequence = 0_u64;
    let mut entries: Vec<(Bytes, Option<Op>)> = Vec::with_capacity(rest.len());
    for (.., change) in rest {
        entries.push(match change.clone() {
            Change::Put { sub, value, expires_ms } => (sub, Some(Op::Put { expires_ms, value })),
            Change::Append { value, expires_ms } => {
                let sub = element(epoch, sequence);
                sequence += 1;
                (sub, Some(Op::Put { expires_ms, value }))
            }
            // It is gone with all of its slot.
            Change::Delete { sub } => (sub, cleared.is_none().then_some(Op::Delete)),
            Change::Clear => continue,
        });
    }
    entries.sort_by(|one, other| one.0.cmp(&other.0));
    for same in entries.chunk_by(|one, other| one.0 == other.0) {
        if let Some((sub, Some(op))) = same.last() {
            out.push(&EntryKey::new(prefix, slot, sub), op);
        }
    }
}
