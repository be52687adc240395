//! Logs that frames name instead of bringing them: they are published while their task runs, and what rode in
//! the first frames does not stand for them.

use std::time::Duration;

use clonos::agent::protocol::{Ending, OpenTask, Opened, Reply, Request, Sent};
use clonos::edge::net::Connection;
use clonos::edge::net::client::Client;
use clonos::error::Result;
use clonos::frame::Group;
use clonos::id::{AgentId, LogOffset, TaskId};
use clonos::task::Summary;

use crate::world::{World, append, close, eventually, opening, restarted, task, text};

fn inside(task: &TaskId, attempt: u64) -> OpenTask {
    OpenTask { inside: true, ..opening(task, 1, attempt) }
}

/// Keeps a block that rides in frames.
fn keep(worker: &mut Client, session: u64, block: &str) {
    let kept = worker.start(&Request::Keep { session, block: text(block) }).unwrap();
    worker.wait(kept).unwrap();
}

/// A consumer on `worker`'s agent takes a frame with which a piece of the log came.
fn absorb(worker: &mut Client, consumer: u32, sender: &TaskId, block: &str) -> Result<()> {
    let session =
        worker.open(inside(&TaskId { operator: "g".into(), ..task(consumer) }, 50)).unwrap().session;
    let group = Group {
        operator: sender.operator.to_string(),
        partition: sender.partition,
        hops: 1,
        from: LogOffset::START,
        blocks: vec![text(block)],
    };
    let absorbed = worker.start(&Request::Absorb { session, groups: vec![group] }).unwrap();
    worker.wait(absorbed).unwrap();
    let visible = worker.start(&Request::Commit { session }).unwrap();
    worker.wait(visible).map(drop)
}

#[test]
fn what_frames_name_outlives_the_agent_of_its_task() {
    let world = World::new();
    let own = world.process("own");
    let _peer = world.process("peer");
    let mut worker = Client::connect(&world.config, &own.socket).unwrap();
    let session = worker.open(inside(&task(0), 1)).unwrap().session;
    keep(&mut worker, session, "rides");
    append(&mut worker, session, &text("named")).unwrap();
    // Were it kept here alone, a copy without it would count.
    keep(&mut worker, session, "behind it");
    close(&mut worker, session);
    own.kill();
    let again = world.worker().open(inside(&task(0), 2)).unwrap();
    assert_eq!(again.prior, ["rides", "named", "behind it"].map(text));
    assert!(!again.lost);
}

#[test]
fn what_an_attempt_replays_and_names_is_published_by_it() {
    let world = World::new();
    let own = world.process("own");
    let _peer = world.process("peer");
    let mut worker = Client::connect(&world.config, &own.socket).unwrap();
    let session = worker.open(inside(&task(0), 1)).unwrap().session;
    keep(&mut worker, session, "rides");
    // Its worker died when the agent had the next block, and nobody else did.
    keep(&mut worker, session, "was to be named");
    drop(worker);
    let mut worker = Client::connect(&world.config, &own.socket).unwrap();
    let again = worker.open(inside(&task(0), 2)).unwrap();
    let both = ["rides", "was to be named"].map(text);
    assert_eq!(again.prior, both);
    // It has nothing to add.
    append(&mut worker, again.session, &text("")).unwrap();
    close(&mut worker, again.session);
    own.kill();
    let third = world.worker().open(inside(&task(0), 3)).unwrap();
    assert!(!third.lost && third.prior == both);
}

#[test]
fn what_is_found_of_a_published_log_is_published_again() {
    let world = World::new();
    let first = world.process("first");
    let second = world.process("second");
    let mut worker = Client::connect(&world.config, &first.socket).unwrap();
    let session = worker.open(inside(&task(0), 1)).unwrap().session;
    append(&mut worker, session, &text("named")).unwrap();
    first.kill();
    let mut worker = Client::connect(&world.config, &second.socket).unwrap();
    let session = worker.open(inside(&task(0), 2)).unwrap().session;
    keep(&mut worker, session, "later");
    second.kill();
    let again = world.worker().open(inside(&task(0), 3)).unwrap();
    assert_eq!((again.prior, again.lost), (["named", "later"].map(text).to_vec(), false));
}

/// So many that some have their copy on the agent that is lost: it is on one of three, whichever their names say.
const PARTITIONS: u32 = 32;

/// A log that an attempt began to publish on one agent, and the next went on with on another; then that one and its
/// peer are lost.
fn published_twice(world: &World) -> Vec<Opened> {
    let (first, second, third) = (world.process("first"), world.process("second"), world.process("third"));
    let mut one = Client::connect(&world.config, &first.socket).unwrap();
    let mut two = Client::connect(&world.config, &second.socket).unwrap();
    for partition in 0..PARTITIONS {
        let session = one.open(inside(&task(partition), 1)).unwrap().session;
        append(&mut one, session, &text("named")).unwrap();
        one.close(session, Summary::default(), Ending::default()).unwrap();
        let session = two.open(inside(&task(partition), 2)).unwrap().session;
        append(&mut two, session, &text("later")).unwrap();
        close(&mut two, session);
    }
    second.kill();
    third.kill();
    let mut worker = world.worker();
    let mut open = |partition| {
        let mut found = None;
        eventually("it is known who is dead", || {
            found = worker.open(inside(&task(partition), 3)).ok();
            found.is_some()
        });
        found.unwrap()
    };
    let found = (0..PARTITIONS).map(&mut open).collect();
    drop(first);
    found
}

#[test]
fn what_an_earlier_attempt_published_elsewhere_is_not_the_log() {
    let world = World::with(|config, _| config.sharing_depth = 1);
    let found = published_twice(&world);
    // More was lost than the depth covers. It is found whole where the driver had a copy, else it is said.
    assert!(found.iter().any(|opened| opened.lost));
    assert!(found.iter().all(|opened| opened.lost || opened.prior == ["named", "later"].map(text)));
}

#[test]
fn nor_does_it_hide_what_the_checkpoint_folder_has() {
    let world = World::with(|config, folder| {
        config.checkpoint_dir = Some(folder.path().join("checkpoint").display().to_string());
        config.sharing_depth = 1;
    });
    for opened in published_twice(&world) {
        assert!(!opened.lost && opened.prior == ["named", "later"].map(text));
    }
}

#[test]
fn what_rode_in_frames_is_not_taken_for_the_log() {
    let world = World::new();
    let (own, peer) = (world.process("own"), world.process("peer"));
    let mut worker = Client::connect(&world.config, &own.socket).unwrap();
    let session = worker.open(inside(&task(0), 1)).unwrap().session;
    keep(&mut worker, session, "rides");
    append(&mut worker, session, &text("named")).unwrap();
    close(&mut worker, session);
    // The driver's agent comes last among peers: it has what consumers there absorb, and no more.
    let mut consumer = world.worker();
    absorb(&mut consumer, 0, &task(0), "rides").unwrap();
    own.kill();
    peer.kill();
    let mut survivor = world.worker();
    eventually("the dead are known", || match survivor.open(inside(&task(0), 2)) {
        Ok(again) => {
            assert!(again.lost && again.prior.is_empty(), "a part was taken for the log: {:?}", again.prior);
            true
        }
        Err(_) => false,
    });
}

#[test]
fn what_a_fenced_attempt_wrote_does_not_overrule_what_rode_later() {
    let world = World::with(|config, folder| {
        config.checkpoint_dir = Some(folder.path().join("checkpoint").display().to_string());
    });
    let (own, peer) = (world.process("own"), world.process("peer"));
    let mut worker = Client::connect(&world.config, &own.socket).unwrap();
    let fenced = worker.open(inside(&task(0), 1)).unwrap().session;
    // The next attempt begins on an agent that nobody hears of again.
    let mut driver =
        Connection::tcp(world.driver.addr(), &world.config.credentials(), Duration::from_secs(5)).unwrap();
    let open = inside(&task(0), 2);
    driver
        .write(&Request::Grant { open, sent: Sent { by: AgentId(999), number: 0 }, commits_seen: 0 })
        .unwrap();
    assert!(matches!(driver.read::<Reply>().unwrap(), Reply::Granted(_)));
    append(&mut worker, fenced, &text("in the folder, and refused")).unwrap_err();
    own.kill();
    peer.kill();
    let next = world.process("next");
    let mut worker = Client::connect(&world.config, &next.socket).unwrap();
    let mut opened = None;
    eventually("the dead are known", || {
        opened = worker.open(inside(&task(0), 3)).ok();
        opened.is_some()
    });
    let opened = opened.unwrap();
    assert!(opened.prior.is_empty() && !opened.lost);
    keep(&mut worker, opened.session, "rides");
    close(&mut worker, opened.session);
    absorb(&mut world.worker(), 0, &task(0), "rides").unwrap();
    next.kill();
    let (driver, config) = restarted(&world);
    let mut worker = Client::connect(&config, driver.socket()).unwrap();
    let last = worker.open(inside(&task(0), 4)).unwrap();
    assert_eq!(last.prior, [text("rides")]);
}
