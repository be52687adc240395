//! Programs that end anywhere and are started again on their checkpoint folder: with other numbers of partitions, in
//! other orders, beside one that was taken for dead, after names that were used before, on files whose last write was
//! torn. Real agents, sockets and files; an oracle remembers what anybody has seen. One seed is one story.
//!
//! `CLONOS_RESTART_SEEDS=5000 cargo test --test restarts` for long ones; `CLONOS_RESTART_SEED=17` shows one.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test; what is missing is a failure")]

#[path = "../simulator/dice.rs"]
mod dice;
mod life;
mod story;

use story::Story;

const SEEDS: u64 = 50;
/// Stories that have found something.
const TOLD: [u64; 1] = [244];

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
