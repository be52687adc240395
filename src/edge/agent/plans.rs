//! What the driver is asked of Spark's plans.

use crate::agent::protocol::{Borders, Execution, OpenTask, Placed};
use crate::id::Partition;

/// What Spark's plans tell.
pub struct Plans {
    /// The uses of causal functions in the plan of an execution, in their order there, if known.
    pub uses: Box<dyn Fn(Execution) -> Option<Vec<Placed>> + Send + Sync>,
    /// By what the rows of a use are cut into the tasks of its stage.
    pub borders: Box<dyn Fn(&OpenTask) -> Cut + Send + Sync>,
}

/// How the rows of a use are cut into the tasks of a stage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cut {
    /// By what.
    pub borders: Borders,
    /// Which tasks they are, if the use stands in one side of a union.
    pub side: Option<Side>,
}

/// Tasks of a stage that compute one side of a union: what they record is named as if the side stood alone, where
/// other queries of the epoch find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Side {
    /// The first of them.
    pub first: u32,
    /// How many there are.
    pub tasks: u32,
}

impl Side {
    /// The place of a task of the stage in the side.
    pub(super) fn place(self, task: Partition) -> Option<Partition> {
        task.0.checked_sub(self.first).filter(|place| *place < self.tasks).map(Partition)
    }
}

impl Plans {
    /// Where no Spark can be asked.
    #[must_use]
    pub fn unknown() -> Self {
        Self { uses: Box::new(|_| None), borders: Box::new(|_| Cut::default()) }
    }
}
