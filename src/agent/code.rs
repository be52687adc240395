//! Which function an operator is, and which of its uses asks.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// What a function does and what it holds, as a hash, and the Python version that made its bytecode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Code {
    /// The hash.
    pub fingerprint: u64,
    /// Major version in the upper byte, minor version in the lower.
    pub python: u16,
}

impl Code {
    /// The code that Python of `version`, such as "3.11", hashed to `fingerprint`.
    #[must_use]
    pub fn new(fingerprint: u64, version: &str) -> Self {
        let mut numbers = version.split('.').map(|number| number.parse::<u8>().unwrap_or(0));
        let (major, minor) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        Self { fingerprint, python: u16::from_be_bytes([major, minor]) }
    }

    /// Whether both may be one function: bytecode differs between versions of Python.
    #[must_use]
    pub const fn may_be(&self, other: &Self) -> bool {
        self.python != other.python || self.fingerprint == other.fingerprint
    }
}

/// One use of a causal function in the running program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Use {
    /// The function.
    pub code: Code,
    /// What the program calls this use; 0 if the operator has one use only.
    pub token: u64,
    /// Whether the user gave the operator its name: then other code under it is changed code.
    pub named: bool,
}

/// A use, and the operator that it is a use of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// Name of the operator.
    pub operator: Arc<str>,
    /// The use.
    pub used: Use,
    /// A hash over its arguments and the plan that it is asked over; of use in one process only.
    pub over: u64,
    /// A hash over what its arguments are made of, whichever rows of that; likewise.
    pub tables: u64,
    /// The plan that it is asked over, as a later process knows it.
    pub plan: Plan,
}

/// What a restarted program knows a plan by: hashes of what does not differ from process to process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Plan {
    /// Of the plan, the functions in it, and the files that it reads.
    pub exact: u32,
    /// Of the same without numbers, and with the names of the functions: what is left of a query that is
    /// asked of another day.
    pub shape: u32,
    /// Of the tables in it that the program made. The lower half is one of how they are cut.
    pub data: u32,
}

impl Plan {
    /// What stands for all micro-batches of a query, each of which has files and numbers of its own.
    #[must_use]
    pub const fn of_batch(self) -> Self {
        Self { exact: self.shape, data: 0, ..self }
    }

    /// Whether both are of one query, however its rows are cut. Tables that the program made can be compared
    /// where they are cut alike.
    #[must_use]
    pub const fn is_query(&self, other: &Self) -> bool {
        let same_tables = self.data == other.data || (self.data ^ other.data) & 0xffff != 0;
        self.exact == other.exact && self.shape == other.shape && same_tables
    }
}

/// The SQL execution that a task belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Execution {
    /// Its id.
    pub id: u64,
    /// Id of the execution that it is a part of; else its own.
    pub root: u64,
}
