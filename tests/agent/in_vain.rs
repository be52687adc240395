//! Opens that come to nothing, and those of an agent that comes late.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::spawn;
use std::time::{Duration, Instant};

use clonos::agent::protocol::Request;
use clonos::config::SessionConfig;
use clonos::edge::agent::{Agent, AgentConfig, Role};
use clonos::edge::net::client::Client;
use clonos::id::{AgentId, Epoch};

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

/// Forwards to the driver, and keeps what is sent there.
fn overheard(driver: String) -> (String, Arc<Mutex<Vec<u8>>>) {
    let (listener, all) = (TcpListener::bind("127.0.0.1:0").unwrap(), Arc::<Mutex<Vec<u8>>>::default());
    let (addr, heard) = (listener.local_addr().unwrap().to_string(), Arc::clone(&all));
    spawn(move || {
        for client in listener.incoming() {
            let (mut client, mut server) = (client.unwrap(), TcpStream::connect(&driver).unwrap());
            let (mut back, mut answers) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            let heard = Arc::clone(&heard);
            spawn(move || {
                let mut buffer = vec![0; 1 << 16];
                while let Ok(read @ 1..) = client.read(&mut buffer) {
                    heard.lock().unwrap().extend(&buffer[..read]);
                    if server.write_all(&buffer[..read]).is_err() {
                        break;
                    }
                }
                server.shutdown(Shutdown::Both).ok();
            });
            spawn(move || {
                std::io::copy(&mut answers, &mut back).ok();
                back.shutdown(Shutdown::Both).ok();
            });
        }
    });
    (addr, all)
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
    let (driver_addr, heard) = overheard(world.driver.addr().to_owned());
    let session = SessionConfig { driver_addr, ..world.config.clone() };
    let socket = world.folder.path().join("late.sock");
    let late =
        Agent::start(AgentConfig { session, role: Role::Executor { id: "late".into() }, socket }).unwrap();
    let open = opening(&task(0), 1, 1);
    Client::connect(&world.config, late.socket()).unwrap().open(open.clone()).unwrap();
    let all = heard.lock().unwrap().clone();
    // Whatever its number is: what stands behind that in the message tells what it knows of.
    let asks = |commits_seen| {
        let ask = |agent| {
            postcard::to_allocvec(&Request::Grant { open: open.clone(), agent: AgentId(agent), commits_seen })
                .unwrap()
        };
        let (least, most) = (ask(0), ask(u64::MAX));
        let before = least.iter().zip(&most).take_while(|(a, b)| a == b).count();
        let behind = least[before + 1..].to_vec();
        let place = all.windows(before).position(|window| window == &least[..before]);
        place.is_some_and(|place| {
            let rest = &all[place + before..];
            (1..=10).any(|number| rest.get(number..number + behind.len()) == Some(behind.as_slice()))
        })
    };
    assert!(asks(COMMITS), "it asks as if it had missed commits");
}
