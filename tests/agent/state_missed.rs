//! A holder that did not get what was decided, and is there all the same: it is given all of it anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use clonos::agent::protocol::{Reply, Request};
use clonos::agent::state::asking::{Done, FromRegistry, ToRegistry};
use clonos::agent::state::holders::{Answer, Asked, Part, ToHolder};
use clonos::config::SessionConfig;
use clonos::edge::agent::{Agent, AgentConfig, Role};
use clonos::id::Epoch;
use clonos::state::Version;

use crate::line::{Talk, line};
use crate::state_lost::figures;
use crate::states::{Counting, all_are, count_all, counters, in_partition};
use crate::world::{Peer, World, eventually, open_as, task_in};

/// Of an epoch's delta one of two holders hears nothing, as messages to it are lost, though not those from it.
fn decide_without(world: &World, epoch: u64, (partition, partitions): (u32, u32), deaf: usize) {
    let mut worker = world.worker();
    let task = task_in(Epoch::Batch(epoch), partition);
    let opened = open_as(&mut worker, &task, 100 + partitions, 9_000).unwrap();
    let (session, generation) = (opened.session, opened.generation);
    let counting = Counting::begin_in(&mut worker, session, epoch, (partition, partitions)).unwrap();
    let counters = in_partition(0..200, partition, partitions).into_iter().map(|number| (number, epoch + 1));
    let delta = counting.delta(&counters.collect(), 0);
    let mut registry = Peer::of(world, world.driver.addr());
    let asked = ToRegistry::Where { task: task.clone(), generation, partition, partitions };
    let FromRegistry::Located(located) = tell(&mut registry, asked) else { panic!("it is restored") };
    let deaf = located.holders[deaf].agent.id;
    let mut held = Vec::new();
    for holding in located.holders.iter().filter(|holding| holding.agent.id != deaf) {
        let (state, life) = (located.state.clone(), located.life);
        let asked = ToRegistry::Points { state: state.clone(), life, after: Version(Some(epoch - 2)) };
        let FromRegistry::Points(points) = tell(&mut registry, asked) else {
            panic!("nothing was committed")
        };
        let mut holder = Peer::of(world, &holding.agent.addr);
        let mut ask = |asked| {
            let asked = ToHolder { state: state.clone(), life, asked };
            holder.ask(&Request::StateHolder(Box::new(asked)))
        };
        ask(Asked::Advance { points });
        let ranges = holding.ready;
        let part = Part { epoch, base: delta.base, partition, generation, ranges };
        let piece = delta.of(&ranges).unwrap().encode();
        let told = ask(Asked::Hold { by: deaf, upload: 1, at: 0, piece, part: Some(part) });
        assert!(matches!(told, Reply::StateHolder(Answer::Held)), "{told:?}");
        held.push((holding.agent.id, located.as_of, ranges));
    }
    let (life, base, fingerprint, silent) = (located.life, delta.base, delta.fingerprint(), vec![deaf]);
    let (bytes, catalog, due_ms) = (1, None, None);
    let done = Done {
        task,
        generation,
        partition,
        partitions,
        life,
        base,
        fingerprint,
        bytes,
        catalog,
        due_ms,
        held,
        silent,
    };
    assert!(matches!(tell(&mut registry, ToRegistry::Done(done)), FromRegistry::Counts));
}

fn tell(registry: &mut Peer, told: ToRegistry) -> FromRegistry {
    match registry.ask(&Request::StateRegistry(Box::new(told))) {
        Reply::StateRegistry(answer) => answer,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_holder_that_missed_a_delta_is_given_what_it_lacks_and_keeps_what_it_has() {
    // Of one partition, then of each another holder: of either a half is nowhere else.
    for deaf in [&[0][..], &[0, 1]] {
        let world = World::new();
        let _executors = [world.executor("one"), world.executor("two")];
        let mut worker = world.worker();
        for epoch in 0..2 {
            count_all(&mut worker, epoch, 2, 0..200).unwrap();
        }
        for (partition, of) in (0..).zip(deaf) {
            decide_without(&world, 2, (partition, u32::try_from(deaf.len()).unwrap()), *of);
        }
        for epoch in 3..6 {
            count_all(&mut worker, epoch, 2, 0..200).unwrap();
        }
        eventually("all ranges have their copies", || {
            let figures = figures(&world);
            figures.copies == 2 && figures.joining == 0
        });
        assert_eq!(counters(&mut worker, 6, 3, 0..200).unwrap(), all_are(0..200, 6));
    }
}

#[test]
fn the_registry_hears_that_a_holder_lacks_a_delta_though_it_was_told_in_vain_at_first() {
    let world = World::with(|config, _| config.io_timeout_ms = 1_000);
    let told = Arc::new(AtomicUsize::new(0));
    let _executors = ["one", "two"].map(|name| {
        let told = Arc::clone(&told);
        let asked = move |_: &Talk, request: &Request| match request {
            Request::StateRegistry(asked) if matches!(**asked, ToRegistry::Lacks { .. }) => {
                told.fetch_add(1, Ordering::SeqCst) > 0
            }
            _ => true,
        };
        let driver_addr = line(world.driver.addr(), asked, |_| true);
        let session = SessionConfig { driver_addr, ..world.config.clone() };
        let socket = world.folder.path().join(format!("{name}.sock"));
        Agent::start(AgentConfig { session, role: Role::Executor { id: name.into() }, socket }).unwrap()
    });
    let mut worker = world.worker();
    for epoch in 0..2 {
        count_all(&mut worker, epoch, 2, 0..200).unwrap();
    }
    decide_without(&world, 2, (0, 1), 0);
    // Whoever runs into it is tried again, as Spark does.
    let again = || count_all(&mut world.worker(), 3, 2, 0..200).is_ok();
    eventually("the epoch comes to its end", again);
    eventually("all ranges have their copies", || {
        let figures = figures(&world);
        figures.copies == 2 && figures.joining == 0
    });
    eventually("what was told in vain is told again", || told.load(Ordering::SeqCst) > 1);
    assert_eq!(counters(&mut worker, 4, 3, 0..200).unwrap(), all_are(0..200, 4));
}
