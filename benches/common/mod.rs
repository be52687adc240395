//! What benchmarks of agents share.

use clonos::edge::agent::{Plans, Role};

/// A driver's agent on this machine; no Spark stands behind it.
pub(crate) fn driver() -> Role {
    Role::Driver {
        bind_host: "127.0.0.1".into(),
        port: 0,
        stages: Box::new(|_| None),
        was_lost: Box::new(|_, _| false),
        plans: Plans::unknown(),
        clocks: Box::new(|_, _| Err("no batch has times here".into())),
        next_batches: Box::new(|_| None),
    }
}
