//! What the table of `per="value"` costs per question, when all are distinct.

use std::hint::black_box;
use std::time::Instant;

use clonos::agent::values::{Asker, Standing, Values};
use clonos::id::{AgentId, LogOffset};

const QUESTIONS: u64 = 1_000_000;
const BATCH: usize = 10_000;
const ROUNDS: usize = 9;

fn main() {
    let questions: Vec<u64> = (0..QUESTIONS).map(mixed).collect();
    let mut seconds: Vec<(f64, f64)> = (0..ROUNDS).map(|_| round(&questions)).collect();
    seconds.sort_by(|a, b| (a.0 + a.1).total_cmp(&(b.0 + b.1)));
    let nanos = |seconds: f64| seconds / QUESTIONS as f64 * 1e9;
    for (ask, answered) in seconds {
        println!("ask {:.0} ns, answered {:.0} ns", nanos(ask), nanos(answered));
    }
}

fn round(questions: &[u64]) -> (f64, f64) {
    let mut values = Values::new();
    let (mut ask, mut answered) = (0.0, 0.0);
    for (number, batch) in (0_u64..).zip(questions.chunks(BATCH)) {
        let asker = Asker { agent: AgentId(number % 2), connection: number % 2 };
        let begun = Instant::now();
        let standing = values.ask(asker, batch, BATCH, number, |_| true);
        ask += begun.elapsed().as_secs_f64();
        assert!(standing.iter().all(|standing| *standing == Standing::Yours));
        let begun = Instant::now();
        assert!(values.answered(Some(asker), LogOffset(number), batch).is_empty());
        answered += begun.elapsed().as_secs_f64();
    }
    black_box(&values);
    (ask, answered)
}

/// A fingerprint of its own for each number.
fn mixed(number: u64) -> u64 {
    let mixed =
        (number ^ (number >> 30)).wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
