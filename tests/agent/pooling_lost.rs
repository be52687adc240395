//! Logs that are lost, or begun anew, where another number of tasks looks for their rows.

use clonos::agent::protocol::Reply;
use clonos::agent::registry::AGENT_SILENCE_MS_MAX;
use clonos::edge::net::client::Client;
use clonos::error::Error;

use crate::pooling::{found, opening_of, rows, told};
use crate::reopened::fail;
use crate::silence::{replicated, says};
use crate::world::{APP, Peer, World, append, close, open, task};

/// Of a process that was killed nobody here hears that it has ended, as from Spark.
fn soon_lost() -> World {
    World::with(|config, _| (config.sharing_depth, config.network_timeout_ms) = (0, AGENT_SILENCE_MS_MAX))
}

#[test]
fn rows_of_a_log_that_is_lost_are_not_taken_for_new_ones() {
    let world = soon_lost();
    let holder = world.process("a");
    let mut worker = Client::connect(&world.config, &holder.socket).unwrap();
    let lost = open(&mut worker, &task(9), 110, 1);
    append(&mut worker, lost.session, &rows(1..2, "lost")).unwrap();
    holder.kill();
    let mut worker = world.worker();
    let kept = open(&mut worker, &task(8), 110, 2);
    append(&mut worker, kept.session, &rows(2..3, "kept")).unwrap();
    fail(&mut worker, kept.session);
    open(&mut worker, &task(0), 102, 20);
    for _ in 0..2 {
        let error = found(&mut worker, 0, 1..3).unwrap_err();
        assert!(matches!(&error, Error::CausalLogLost { task: lost } if *lost == task(9)), "{error}");
    }
    // The task whose own log it was has been told of that when it was opened.
    let own = open(&mut worker, &task(9), 102, 21);
    assert!(own.lost);
    assert_eq!(found(&mut worker, 9, 1..3).unwrap(), told(&[(2, "kept")]));
}

#[test]
fn what_is_recorded_in_the_place_of_a_lost_log_does_not_pass_for_it() {
    let world = soon_lost();
    let holder = world.process("a");
    let mut worker = Client::connect(&world.config, &holder.socket).unwrap();
    let lost = open(&mut worker, &task(1), 110, 1);
    append(&mut worker, lost.session, &rows(1..2, "lost")).unwrap();
    holder.kill();
    let mut worker = world.worker();
    let kept = open(&mut worker, &task(8), 110, 2);
    append(&mut worker, kept.session, &rows(2..3, "kept")).unwrap();
    fail(&mut worker, kept.session);
    // By a stage with another number of tasks.
    let own = open(&mut worker, &task(1), 102, 20);
    assert!(own.lost);
    append(&mut worker, own.session, &rows(1..2, "of the new layout")).unwrap();
    close(&mut worker, own.session);
    open(&mut worker, &task(0), 102, 21);
    assert_eq!(found(&mut worker, 0, 1..3).unwrap(), told(&[(2, "kept")]));
}

#[test]
fn a_log_that_was_begun_anew_since_it_was_read_is_read_anew() {
    let world = World::with(|config, _| config.sharing_depth = 0);
    let holder = world.process("a");
    let mut worker = Client::connect(&world.config, &holder.socket).unwrap();
    let first = worker.open(opening_of(APP + 1, 9, 110)).unwrap();
    append(&mut worker, first.session, &rows(1..2, "lost")).unwrap();
    let mut other = world.worker();
    open(&mut other, &task(0), 102, 20);
    assert_eq!(found(&mut other, 0, 1..2).unwrap(), told(&[(1, "lost")]));
    holder.kill();
    let mut worker = world.worker();
    let second = worker.open(opening_of(APP + 2, 9, 110)).unwrap();
    assert!(second.lost);
    // It is as long as what was read.
    append(&mut worker, second.session, &rows(1..2, "anew")).unwrap();
    open(&mut other, &task(1), 102, 21);
    assert_eq!(found(&mut other, 1, 1..2).unwrap(), told(&[(1, "anew")]));
}

#[test]
fn a_log_that_is_lost_is_not_an_empty_one() {
    let world = World::with(|config, _| config.sharing_depth = 0);
    let holder = world.executor("holder");
    let mut worker = world.worker();
    let recorded = open(&mut worker, &task(0), 110, 1);
    append(&mut worker, recorded.session, &rows(1..2, "recorded")).unwrap();
    close(&mut worker, recorded.session);
    // The one holder that is left was being sent all of it, and has a part.
    assert!(matches!(
        Peer::of(&world, holder.addr()).ask(&replicated(recorded.generation, false, 1)),
        Reply::Done
    ));
    says(&world, recorded.generation, world.id_of(&holder), 1);
    assert!(open(&mut world.worker_of(&holder), &task(0), 110, 2).lost);
    open(&mut worker, &task(1), 102, 20);
    let error = found(&mut worker, 1, 1..2).unwrap_err();
    assert!(matches!(&error, Error::CausalLogLost { task: lost } if *lost == task(0)), "{error}");
}
