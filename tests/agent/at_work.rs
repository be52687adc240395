//! Workers wait for longer than their patience if their agent gets on.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use clonos::edge::net::client::Client;

use super::world::*;

/// A worker's patience is six of these.
const IO_TIMEOUT_MS: u64 = 500;
const PATIENCE: Duration = Duration::from_millis(6 * IO_TIMEOUT_MS);
/// Segments that can be read only one after the other.
const SEGMENTS: usize = 24;
const EACH: Duration = Duration::from_millis(400);

fn segments(folder: &Path) -> Vec<PathBuf> {
    let entries = |folder: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for path in entries(&folder) {
            match path.is_dir() {
                true => folders.push(path),
                false if path.extension().is_some_and(|ending| ending == "seg") => found.push(path),
                false => {}
            }
        }
    }
    found
}

/// Puts pipes beside a segment. Whoever opens one waits until the other end is opened.
fn pipes_beside(segment: &Path) -> Vec<PathBuf> {
    let name = segment.file_name().unwrap().to_str().unwrap();
    let [of, _agent, app] = name.split('-').collect::<Vec<_>>()[..] else { panic!("{name}") };
    let pipes = (0..SEGMENTS).map(|agent| segment.with_file_name(format!("{of}-{agent:016x}-{app}")));
    let pipes: Vec<PathBuf> = pipes.collect();
    assert!(Command::new("mkfifo").args(&pipes).status().unwrap().success());
    pipes
}

#[test]
fn a_log_that_takes_long_to_be_read_from_the_folder_is_waited_for() {
    let mut at = PathBuf::new();
    let world = World::with(|config, folder| {
        config.io_timeout_ms = IO_TIMEOUT_MS;
        config.sharing_depth = 0;
        at = folder.path().join("checkpoint");
        config.checkpoint_dir = Some(at.display().to_string());
    });
    let own = world.process("own");
    let mut worker = Client::connect(&world.config, &own.socket).unwrap();
    let session = open(&mut worker, &task(0), 1, 1).session;
    append(&mut worker, session, &text("recorded")).unwrap();
    let pipes = pipes_beside(&segments(&at)[0]);
    let other = world.executor("other");
    own.kill();
    let slow = spawn(move || -> Vec<File> {
        let opened = |pipe: &PathBuf| {
            sleep(EACH);
            File::options().read(true).write(true).open(pipe).unwrap()
        };
        pipes.iter().map(opened).collect()
    });
    let began = Instant::now();
    let opened = open(&mut world.worker_of(&other), &task(0), 1, 2);
    assert_eq!(opened.prior, [text("recorded")]);
    assert!(began.elapsed() > 2 * PATIENCE, "it was read: {:?}", began.elapsed());
    assert_eq!(slow.join().unwrap().len(), SEGMENTS);
}
