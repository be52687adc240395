//! Who stands still for some seconds has lost nothing, and nobody waits for a slow disk who need not.

use std::io::Result;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use clonos::agent::registry::AGENT_SILENCE_MS_MAX;
use clonos::edge::agent::{Agent, AgentConfig, Role};
use clonos::edge::disk::segment::{FileSystem, RawFile, RealDisk};
use clonos::edge::net::client::Client;
use clonos::id::Epoch;

use crate::world::{World, append, close, eventually, open, opening, task, task_in, text};

/// Longer than an agent is silent before others go on without it.
const PAUSE: Duration = Duration::from_millis(AGENT_SILENCE_MS_MAX + 2_000);

#[test]
fn a_log_is_not_lost_while_all_who_have_it_stand_still() {
    let world = World::new();
    let (own, peer) = (world.process("own"), world.process("peer"));
    let mut worker = Client::connect(&world.config, &own.socket).unwrap();
    let session = open(&mut worker, &task(0), 1, 1).session;
    append(&mut worker, session, &text("recorded")).unwrap();
    let third = world.executor("third");
    own.signal("-STOP");
    peer.signal("-STOP");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // More than twice as long as who asks waits for those of whom the registry hears.
            std::thread::sleep(2 * PAUSE + Duration::from_secs(1));
            own.signal("-CONT");
            peer.signal("-CONT");
        });
        let opened = open(&mut world.worker_of(&third), &task(0), 1, 2);
        assert_eq!((opened.lost, opened.prior), (false, vec![text("recorded")]));
    });
    eventually("they were given up", || world.members().len() == 4);
}

/// A disk that removes segments when it is told to.
struct Slow {
    removes: Sender<()>,
    goes_on: Mutex<Receiver<()>>,
}

impl FileSystem for Slow {
    fn create(&self, path: &Path, mode: u32) -> Result<Arc<dyn RawFile>> {
        RealDisk.create(path, mode)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        if path.extension().is_some_and(|ending| ending == "seg") {
            let _nobody = self.removes.send(());
            // A test that has failed tells nobody.
            let _told = self.goes_on.lock().unwrap().recv_timeout(3 * PAUSE);
        }
        RealDisk.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        RealDisk.sync_dir(dir)
    }
}

#[test]
fn an_agent_beats_and_opens_tasks_while_its_disk_removes_what_was_committed() {
    let world = World::with(|config, folder| {
        config.checkpoint_dir = Some(folder.path().join("checkpoint").display().to_string());
    });
    let ((removes, begins), (lets, goes_on)) = (channel(), channel());
    let disk = Arc::new(Slow { removes, goes_on: Mutex::new(goes_on) });
    let (socket, role) = (world.folder.path().join("slow.sock"), Role::Executor { id: "slow".into() });
    let slow = Agent::start_on(disk, AgentConfig { session: world.config.clone(), role, socket }).unwrap();
    world.id_of(&slow);
    let named = |name: &str| task_in(Epoch::Named(name.into()), 0);
    let mut worker = world.worker_of(&slow);
    let session = open(&mut worker, &named("daily"), 1, 1).session;
    append(&mut worker, session, &text("recorded")).unwrap();
    close(&mut worker, session);
    let before = world.members().len();
    world.driver.commit_epoch("q", &named("daily").epoch).unwrap();
    begins.recv().unwrap();
    std::thread::sleep(PAUSE);
    assert_eq!(world.members().len(), before);
    let opened = world.worker_of(&slow).open(opening(&named("next"), 1, 2)).unwrap();
    assert!(!opened.lost);
    lets.send(()).unwrap();
    drop(lets);
}
