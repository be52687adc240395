//! What fits into an address space that somebody has limited, as PySpark does that of its workers.

/// Address space of an agent that holds nothing: Python, libraries, stacks, what allocators have put aside.
const ADDRESSES_BESIDE: u64 = 384 << 20;
/// Pages that are given back keep their addresses for a while, and what is allocated together is reserved in advance.
const ADDRESSES_PER_BYTE: u64 = 3;
/// Less is no agent.
const HELD_MIN: u64 = 16 << 20;

/// How many of the bytes that an agent may have in memory fit into an address space; 0 if no agent does.
#[must_use]
pub fn memory_within(addresses: u64, memory_bytes: u64) -> u64 {
    let room = addresses.saturating_sub(ADDRESSES_BESIDE) / ADDRESSES_PER_BYTE;
    if room < HELD_MIN { 0 } else { memory_bytes.min(room) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_has_what_fits_into_its_addresses() {
        let mib = |count: u64| count << 20;
        assert_eq!(memory_within(mib(8_000), mib(512)), mib(512));
        assert_eq!(memory_within(mib(984), mib(512)), mib(200));
        assert_eq!(memory_within(mib(256), mib(512)), 0);
    }
}
