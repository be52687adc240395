//! Guarantee 6 for keyed state: however much there is, an agent takes what it was given and a little besides.

use std::collections::BTreeMap;
use std::thread;

use clonos::edge::net::client::Client;

use crate::states::{Counting, in_partition};
use crate::world::{AgentProcess, World, close};

const MEMORY: u64 = 16 << 20;
/// What an agent takes besides, as for logs.
const BESIDES: u64 = 14 << 20;
const KEYS: u64 = 300_000;
const PADDING: usize = 40;
const PARTITIONS: u32 = 4;

/// Counts all keys once more, as the tasks of an epoch on two agents.
fn count(world: &World, agents: &[AgentProcess; 2], epoch: u64) {
    thread::scope(|scope| {
        for (first, agent) in (0..).zip(agents) {
            scope.spawn(move || {
                let mut worker = Client::connect(&world.config, &agent.socket).unwrap();
                for partition in (first..PARTITIONS).step_by(agents.len()) {
                    let task = Counting::begin(&mut worker, epoch, partition, PARTITIONS).unwrap();
                    let mut counters = BTreeMap::new();
                    let numbers = in_partition(0..KEYS, partition, PARTITIONS);
                    for some in numbers.chunks(20_000) {
                        counters.extend(task.read(&mut worker, some).unwrap());
                    }
                    assert_eq!(counters.len(), if epoch == 0 { 0 } else { numbers.len() });
                    assert!(counters.values().all(|count| *count == epoch));
                    let after: BTreeMap<u64, u64> =
                        numbers.into_iter().map(|number| (number, epoch + 1)).collect();
                    task.write_delta(&mut worker, &task.delta(&after, PADDING)).unwrap();
                    close(&mut worker, task.session);
                }
            });
        }
    });
}

#[test]
fn state_of_many_keys_is_kept_inside_the_memory_that_was_set() {
    let world = World::with(|config, _| {
        config.memory_bytes = MEMORY;
        config.io_timeout_ms = 30_000;
    });
    let agents = [world.process("one"), world.process("two")];
    // Each epoch touches all, so the deltas of its tasks are larger than the memory that state may take.
    (0..3).for_each(|epoch| count(&world, &agents, epoch));
    let most = agents.each_ref().map(AgentProcess::heap_most);
    assert!(most.iter().all(|bytes| *bytes <= MEMORY + BESIDES), "{most:?}");
}
