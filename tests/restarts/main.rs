//! Programs that end anywhere and are started again on their checkpoint folder: with other numbers of partitions, in
//! other orders, beside one that was taken for dead, after names that were used before, on files whose last write was
//! torn. Real agents, sockets and files; an oracle remembers what anybody has seen. One seed is one story.
//!
//! `CLONOS_RESTART_SEEDS=5000 cargo test --test restarts` for long ones; `CLONOS_RESTART_SEED=17` shows one.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test; what is missing is a failure")]

#[path = "../simulator/dice.rs"]
mod dice;

mod chain;
mod life;
mod story;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use chain::Chain;
use story::Story;

const SEEDS: u64 = 50;
const AT_ONCE: usize = 8;
/// Stories that have found something.
const TOLD: [u64; 1] = [244];
const CHAINS_TOLD: [u64; 1] = [333];

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn a_row_has_one_answer_until_its_epoch_is_committed_and_another_one_then() {
    if let Some(seed) = number("CLONOS_RESTART_SEED") {
        let mut story = Story::new(seed);
        let told = story.tell();
        panic!("{}\n==> {told:?}", story.trace.join("\n"));
    }
    let (mut replayed, mut moved) = (0, 0);
    for seed in TOLD.into_iter().chain(0..number("CLONOS_RESTART_SEEDS").unwrap_or(SEEDS)) {
        let mut story = Story::new(seed);
        if let Err(why) = story.tell() {
            panic!("seed {seed}: {why}\n{}", story.trace.join("\n"));
        }
        replayed += story.replayed;
        moved += story.moved;
    }
    // Else nothing was tried.
    assert!(replayed > 1_000 && moved > 100, "{replayed} rows were replayed, {moved} of them elsewhere");
}

#[test]
fn what_a_consumer_has_shown_stays_as_it_was_until_its_epoch_is_committed() {
    if let Some(seed) = number("CLONOS_RESTART_SEED") {
        let mut chain = Chain::new(seed);
        let told = chain.tell();
        panic!("{}\n==> {told:?}", chain.trace.join("\n"));
    }
    // They wait for each other's time to run out, mostly.
    let (replayed, stale) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let seeds = CHAINS_TOLD.into_iter().chain(0..number("CLONOS_RESTART_SEEDS").unwrap_or(SEEDS));
    let seeds = Mutex::new(seeds);
    let next = || seeds.lock().unwrap().next();
    let tell = || {
        while let Some(seed) = next() {
            let mut chain = Chain::new(seed);
            if let Err(why) = chain.tell() {
                panic!("seed {seed}: {why}\n{}", chain.trace.join("\n"));
            }
            replayed.fetch_add(chain.replayed, Relaxed);
            stale.fetch_add(chain.stale, Relaxed);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(tell);
        }
    });
    // Else nothing was tried.
    let tried = (replayed.into_inner(), stale.into_inner());
    assert!(tried.0 > 200 && tried.1 > 2, "answers that were found, frames that were refused: {tried:?}");
}
