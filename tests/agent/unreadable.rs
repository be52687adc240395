//! Copies that cannot be read: nothing is lost while another can.

use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use clonos::edge::agent::{Agent, AgentConfig, Role};
use clonos::edge::disk::segment::{FileSystem, RawFile, RealDisk};

use crate::world::{World, append, close, numbered, open, open_as, task};

const BLOCKS: u64 = 40;
const BLOCK_BYTES: usize = 100_000;

/// A disk of which nothing can be read while it is told so.
#[derive(Clone, Default)]
struct Blind(Arc<AtomicBool>);

struct BlindFile(Arc<dyn RawFile>, Blind);

impl FileSystem for Blind {
    fn create(&self, path: &Path, mode: u32) -> io::Result<Arc<dyn RawFile>> {
        Ok(Arc::new(BlindFile(RealDisk.create(path, mode)?, self.clone())))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.sync_dir(dir)
    }
}

impl RawFile for BlindFile {
    fn write_at(&self, pieces: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.0.write_at(pieces, offset)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        if self.1.0.load(Relaxed) { Err(io::Error::other("blind")) } else { self.0.read_at(buffer, offset) }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

/// Three agents, all of which have spilled most of the log of the first task.
fn spilled(world: &World) -> Vec<(Agent, Blind)> {
    let start = |name: &str| {
        let (disk, role) = (Blind::default(), Role::Executor { id: name.to_owned() });
        let socket = world.folder.path().join(format!("{name}.sock"));
        let config = AgentConfig { session: world.config.clone(), role, socket };
        (Agent::start_on(Arc::new(disk.clone()), config).unwrap(), disk)
    };
    let agents: Vec<_> = ["a", "b", "c"].into_iter().map(start).collect();
    let mut worker = world.worker_of(&agents[0].0);
    let opened = open(&mut worker, &task(0), 1, 1);
    for number in 0..BLOCKS {
        append(&mut worker, opened.session, &numbered(number, BLOCK_BYTES)).unwrap();
    }
    close(&mut worker, opened.session);
    agents
}

fn world() -> World {
    World::with(|config, _| (config.memory_bytes, config.sharing_depth) = (1 << 20, 2))
}

fn is_whole(prior: &[bytes::Bytes]) -> bool {
    prior.len() as u64 == BLOCKS
        && prior.iter().enumerate().all(|(n, block)| *block == numbered(n as u64, BLOCK_BYTES))
}

#[test]
fn a_log_is_taken_over_from_the_holder_that_can_read_it() {
    for sees in 0..3 {
        let world = world();
        let agents = spilled(&world);
        for (at, (_, disk)) in agents.iter().enumerate() {
            disk.0.store(at != sees, Relaxed);
        }
        let mut worker = world.worker();
        let opened = open(&mut worker, &task(0), 1, 2);
        assert!(!opened.lost && is_whole(&opened.prior), "agent {sees} has it");
    }
}

#[test]
fn an_agent_whose_own_copy_cannot_be_read_asks_the_others_next_time() {
    let world = world();
    let agents = spilled(&world);
    agents[0].1.0.store(true, Relaxed);
    let mut worker = world.worker_of(&agents[0].0);
    assert!(open_as(&mut worker, &task(0), 1, 2).is_err());
    // It writes what it takes over to its disk, and reads from there again.
    agents[0].1.0.store(false, Relaxed);
    let opened = open(&mut worker, &task(0), 1, 3);
    assert!(!opened.lost && is_whole(&opened.prior));
}

#[test]
fn what_no_holder_can_read_is_an_error_and_lost_when_it_is_opened_again() {
    let world = world();
    let agents = spilled(&world);
    agents.iter().for_each(|(_, disk)| disk.0.store(true, Relaxed));
    let mut worker = world.worker();
    assert!(open_as(&mut worker, &task(0), 1, 2).is_err());
    assert!(open(&mut worker, &task(0), 1, 3).lost);
}
