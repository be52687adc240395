//! Keyed state among agents: who holds which range, which version counts, and what is said of it.
//!
//! ```text
//! messages   worker to agent
//! holders    agent to agent: what is asked of whoever holds ranges
//! holdings   what an agent holds
//! asking     agent to registry
//! registry   what the registry knows
//! ```

pub mod asking;
pub mod holders;
pub mod holdings;
pub mod messages;
pub mod registry;
