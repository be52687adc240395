//! Agents, workers and the registry over real sockets, with threads and with processes that are killed.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test; what is missing is a failure")]
#![allow(unreachable_pub, reason = "modules of one test program")]

mod at_work;
mod budget;
mod compared;
mod crossing;
mod crowd;
mod cuts;
mod declared_dead;
mod disputed;
mod doubtful;
mod failures;
mod heap;
mod hostile;
mod in_vain;
mod leaving;
mod life;
mod line;
mod lost_answers;
mod memory;
mod naming;
mod pauses;
mod pooling;
mod pooling_lost;
mod process;
mod reopened;
mod restart;
mod sharing;
mod shown;
mod silence;
mod state;
mod state_lost;
mod state_memory;
mod state_missed;
mod state_restart;
mod state_saved;
mod states;
mod timers;
mod unreadable;
mod upstream;
mod values;
mod world;
