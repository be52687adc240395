//! Opens that come to nothing, and those of an agent that comes late.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clonos::agent::protocol::Request;
use clonos::config::SessionConfig;
use clonos::edge::agent::{Agent, AgentConfig, Role};
use clonos::edge::net::client::Client;
use clonos::id::Epoch;

use crate::line::{Talk, line};
use crate::world::{World, append, close, numbered, open, open_as, opening, task, task_in, text};

const MIB: u64 = 1 << 20;

#[test]
fn a_task_is_free_again_after_an_open_that_failed_behind_its_grant() {
    let world = World::with(|config, _| config.sharing_depth = 0);
    let mut here = world.worker();
    let first = open(&mut here, &task(0), 1, 1);
    append(&mut here, first.session, &numbered(0, 2 * MIB as usize)).unwrap();
    close(&mut here, first.session);
    let mut session = world.config.clone();
    session.memory_bytes = MIB;
    let socket = world.folder.path().join("small.sock");
    let role = Role::Executor { id: "small".into() };
    let small = Agent::start(AgentConfig { session, role, socket }).unwrap();
    let mut on_small = world.worker_of(&small);
    let refused = open_as(&mut on_small, &task(0), 2, 2).unwrap_err();
    assert_eq!(refused.condition(), "MEMORY_BUDGET");
    // An attempt of another stage does not wait for the end of one that never began.
    let began = Instant::now();
    assert_eq!(open(&mut here, &task(0), 3, 3).prior.len(), 1);
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

#[test]
fn an_agent_that_comes_late_carries_out_no_commits_that_were_before_it() {
    const COMMITS: u64 = 300;
    let world = World::new();
    let mut here = world.worker();
    for number in 0..COMMITS {
        let named = Epoch::Named(format!("epoch {number}"));
        let opened = open(&mut here, &task_in(named.clone(), 0), 1, number);
        append(&mut here, opened.session, &text("a")).unwrap();
        close(&mut here, opened.session);
        world.driver.commit_epoch("q", &named).unwrap();
    }
    let heard = Arc::<Mutex<Vec<u64>>>::default();
    let hears = Arc::clone(&heard);
    let asked = move |_: &Talk, request: &Request| {
        if let Request::Grant { commits_seen, .. } = request {
            hears.lock().unwrap().push(*commits_seen);
        }
        true
    };
    let driver_addr = line(world.driver.addr(), asked, |_| true);
    let session = SessionConfig { driver_addr, ..world.config.clone() };
    let socket = world.folder.path().join("late.sock");
    let late =
        Agent::start(AgentConfig { session, role: Role::Executor { id: "late".into() }, socket }).unwrap();
    let open = opening(&task(0), 1, 1);
    Client::connect(&world.config, late.socket()).unwrap().open(open).unwrap();
    assert_eq!(*heard.lock().unwrap(), [COMMITS], "it asks as if it had missed commits");
}
