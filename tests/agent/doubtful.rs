//! Commits of which it is not known whether they were carried out.

use std::fs;
use std::path::{Path, PathBuf};

use clonos::id::{Epoch, TaskId};

use crate::reopened::world;
use crate::world::{World, append, close, open, task_in, text};

fn epoch() -> Epoch {
    Epoch::Named("daily".to_owned())
}

fn claims(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| if path.is_dir() { claims(&path) } else { vec![path] })
        .filter(|path| is_claim(path))
        .collect()
}

fn is_claim(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "claim")
}

/// Publishes an answer, and has its commit fail, as the folder refuses to give up another claim before it.
fn failed_commit(world: &World, task: &TaskId) -> PathBuf {
    let mut worker = world.worker();
    let first = open(&mut worker, task, 1, 1);
    append(&mut worker, first.session, &text("first")).unwrap();
    close(&mut worker, first.session);
    let claim = claims(&world.folder.path().join("checkpoint")).remove(0);
    let (_, used) = claim.file_name().unwrap().to_str().unwrap().split_once('-').unwrap();
    let older = claim.with_file_name(format!("0000000000000000-{used}"));
    fs::create_dir(&older).unwrap();
    world.driver.commit_epoch("q", &epoch()).unwrap_err();
    fs::remove_dir(older).unwrap();
    assert!(claim.exists());
    claim
}

#[test]
fn what_was_not_carried_out_is_found() {
    let (world, task) = (world(true), task_in(epoch(), 0));
    failed_commit(&world, &task);
    let mut worker = world.worker();
    let again = open(&mut worker, &task, 2, 2);
    assert_eq!(again.prior, [text("first")]);
    append(&mut worker, again.session, &text("second")).unwrap();
    close(&mut worker, again.session);
    world.driver.commit_epoch("q", &epoch()).unwrap();
    assert!(open(&mut worker, &task, 3, 3).prior.is_empty());
}

#[test]
fn what_was_carried_out_though_no_answer_came_is_over() {
    let (world, task) = (world(true), task_in(epoch(), 0));
    // That is what a store leaves of which the answer is lost.
    fs::remove_file(failed_commit(&world, &task)).unwrap();
    let mut worker = world.worker();
    let next = open(&mut worker, &task, 2, 2);
    assert!(next.prior.is_empty());
    append(&mut worker, next.session, &text("of the next use")).unwrap();
    close(&mut worker, next.session);
    assert_eq!(open(&mut worker, &task, 3, 3).prior, [text("of the next use")]);
}

#[test]
fn it_may_be_committed_again() {
    let (world, task) = (world(true), task_in(epoch(), 0));
    fs::remove_file(failed_commit(&world, &task)).unwrap();
    world.driver.commit_epoch("q", &epoch()).unwrap();
    assert!(open(&mut world.worker(), &task, 2, 2).prior.is_empty());
}
