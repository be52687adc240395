//! Programs that end anywhere and are started again on their checkpoint folder: with other numbers of partitions, in
//! other orders, beside one that was taken for dead, after names that were used before, on files whose last write was
//! torn. Real agents, sockets and files; an oracle remembers what anybody has seen. One seed is one story.
//!
//! `CLONOS_RESTART_SEEDS=5000 cargo test --test restarts` for long ones; `CLONOS_RESTART_SEED=17` shows one.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test; what is missing is a failure")]

#[path = "../simulator/dice.rs"]
mod dice;

mod alike;
mod chain;
mod faults;
mod keeping;
mod life;
mod story;

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use alike::Alike;
use chain::Chain;
use keeping::Keeper;
use story::Story;

const SEEDS: u64 = 50;
const AT_ONCE: usize = 8;
/// Stories that have found something.
const TOLD: [u64; 2] = [244, 699];
const CHAINS_TOLD: [u64; 1] = [333];
const ALIKE_TOLD: [u64; 3] = [951, 968, 2343];

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn seeds() -> Range<u64> {
    0..number("CLONOS_RESTART_SEEDS").unwrap_or(SEEDS)
}

/// Tells stories beside each other: they wait for each other's time to run out, mostly.
fn each(seeds: impl Iterator<Item = u64> + Send, tell: impl Fn(u64) + Sync) {
    let seeds = Mutex::new(seeds);
    let next = || seeds.lock().unwrap().next();
    let tell = || {
        while let Some(seed) = next() {
            tell(seed);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(tell);
        }
    });
}

#[test]
fn a_row_has_one_answer_until_its_epoch_is_committed_and_another_one_then() {
    if let Some(seed) = number("CLONOS_RESTART_SEED") {
        let mut story = Story::new(seed);
        let told = story.tell();
        panic!("{}\n==> {told:?}", story.trace.join("\n"));
    }
    let [replayed, moved, disk] = [const { AtomicUsize::new(0) }; 3];
    each(TOLD.into_iter().chain(seeds()), |seed| {
        let mut story = Story::new(seed);
        if let Err(why) = story.tell() {
            panic!("seed {seed}: {why}\n{}", story.trace.join("\n"));
        }
        replayed.fetch_add(story.replayed as usize, Relaxed);
        moved.fetch_add(story.moved as usize, Relaxed);
        disk.fetch_add(story.disk_faults, Relaxed);
    });
    // Else nothing was tried.
    let tried = (replayed.into_inner(), moved.into_inner(), disk.into_inner());
    assert!(
        tried.0 > 1_000 && tried.1 > 100 && tried.2 > 20,
        "replayed, of them elsewhere, faults: {tried:?}"
    );
}

#[test]
fn each_of_several_rows_with_equal_arguments_keeps_an_answer_of_its_own() {
    if let Some(seed) = number("CLONOS_RESTART_SEED") {
        let mut alike = Alike::new(seed);
        let told = alike.tell();
        panic!("{}\n==> {told:?}", alike.trace.join("\n"));
    }
    let (replayed, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    each(ALIKE_TOLD.into_iter().chain(seeds()), |seed| {
        let mut alike = Alike::new(seed);
        if let Err(why) = alike.tell() {
            panic!("seed {seed}: {why}\n{}", alike.trace.join("\n"));
        }
        replayed.fetch_add(alike.replayed as usize, Relaxed);
        refused.fetch_add(alike.refused, Relaxed);
    });
    // Else nothing was tried, or everything refused.
    let tried = (replayed.into_inner(), refused.into_inner());
    assert!(tried.0 > 1_000 && tried.1 > 5, "replayed, refused: {tried:?}");
}

#[test]
fn what_a_consumer_has_shown_stays_as_it_was_until_its_epoch_is_committed() {
    if let Some(seed) = number("CLONOS_RESTART_SEED") {
        let mut chain = Chain::new(seed);
        let told = chain.tell();
        panic!("{}\n==> {told:?}", chain.trace.join("\n"));
    }
    let (replayed, stale) = (AtomicUsize::new(0), AtomicUsize::new(0));
    each(CHAINS_TOLD.into_iter().chain(seeds()), |seed| {
        let mut chain = Chain::new(seed);
        if let Err(why) = chain.tell() {
            panic!("seed {seed}: {why}\n{}", chain.trace.join("\n"));
        }
        replayed.fetch_add(chain.replayed, Relaxed);
        stale.fetch_add(chain.stale, Relaxed);
    });
    // Else nothing was tried.
    let tried = (replayed.into_inner(), stale.into_inner());
    assert!(tried.0 > 200 && tried.1 > 2, "answers that were found, frames that were refused: {tried:?}");
}

#[test]
fn an_epoch_reads_what_the_one_before_it_decided_and_decides_the_same_if_it_runs_again() {
    if let Some(seed) = number("CLONOS_RESTART_SEED") {
        let mut keeper = Keeper::new(seed);
        let told = keeper.tell();
        panic!("{}\n==> {told:?}", keeper.trace.join("\n"));
    }
    let [replayed, went_back, lost, disk] = [const { AtomicUsize::new(0) }; 4];
    each(seeds(), |seed| {
        let mut keeper = Keeper::new(seed);
        if let Err(why) = keeper.tell() {
            panic!("seed {seed}: {why}\n{}", keeper.trace.join("\n"));
        }
        replayed.fetch_add(keeper.replayed as usize, Relaxed);
        went_back.fetch_add(keeper.went_back, Relaxed);
        lost.fetch_add(keeper.lost, Relaxed);
        disk.fetch_add(keeper.disk_faults, Relaxed);
    });
    // Else nothing was tried.
    let tried = [replayed, went_back, lost, disk].map(AtomicUsize::into_inner);
    let least = [500, 10, 5, 20];
    assert!(
        tried.iter().zip(least).all(|(n, least)| *n > least),
        "replayed, went back, lost, faults: {tried:?}"
    );
}
