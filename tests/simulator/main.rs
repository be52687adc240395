//! A simulator of whole clusters (no Spark, no sockets, no clock): the state machines of the core, driven through
//! random jobs, failures and orders of events, watched by an oracle. One seed is one job; a seed always
//! does the same.
//!
//! `CLONOS_SIM_SEEDS=100000 cargo test --test simulator` is the nightly setting;
//! `CLONOS_SIM_SEED=17 cargo test --test simulator -- --nocapture one_seed` shows one.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

mod attempt;
mod cluster;
mod copying;
mod dice;
mod discarding;
mod host;
mod job;
mod keyed;
mod late;
mod mutation;
mod repairing;
mod sharing;
mod shuffle;
mod silence;
mod uses;

use clonos::exchange::RIDING_BYTES_MAX;
use dice::Dice;
use host::Room;
use job::{Job, Outcome};
pub(crate) use mutation::Mutation;

const SEEDS: u64 = 2_000;
/// Lines of a failing job's story that are shown.
const TRACE_MAX: usize = 200;

/// Messages and bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Count {
    pub(crate) agent: u64,
    pub(crate) registry: u64,
    pub(crate) frames: u64,
    pub(crate) piggyback: u64,
    /// Bytes of logs from one agent to another.
    pub(crate) copied: u64,
}

/// One job.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    pub(crate) seed: u64,
    pub(crate) hosts: usize,
    pub(crate) depth: usize,
    /// Tasks of each stage.
    pub(crate) tasks: Vec<usize>,
    pub(crate) crashes: usize,
    /// Turns between crashes, on average.
    pub(crate) calm: usize,
    /// Bytes of determinants that ride in a task's frames.
    pub(crate) riding: u64,
    /// How often the epoch's name is used, each time after the commit of the time before.
    pub(crate) uses: u64,
    pub(crate) room: Room,
    /// Whether inner tasks commit what they absorbed, as with a checkpoint.
    pub(crate) commits: bool,
    /// How long the silence of an agent is borne that alone has something.
    pub(crate) borne_ms: u64,
    pub(crate) mutation: Mutation,
    pub(crate) traced: bool,
}

impl Setting {
    /// A job in which no more is lost than the sharing depth covers.
    fn bounded(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let depth = dice.between(1, 3);
        let stages = dice.between(2, 4);
        Self {
            seed,
            depth,
            hosts: dice.between(depth + 2, 7),
            tasks: (0..stages).map(|_| dice.between(1, 4)).collect(),
            crashes: dice.between(0, depth),
            calm: dice.between(20, 150),
            riding: [0, 100, 400, u64::MAX][dice.below(4)],
            uses: [1, 1, 1, 2, 3][dice.below(5)],
            room: [
                Room::PLENTY,
                Room { memory: 4_000, refused: 2, seed },
                Room { memory: 600, refused: 5, seed },
            ][dice.below(3)],
            commits: dice.chance(50),
            borne_ms: [0, 20_000][dice.below(2)],
            mutation: Mutation::None,
            traced: false,
        }
    }

    /// A job in which more may be lost.
    fn beyond(seed: u64) -> Self {
        let bounded = Self::bounded(seed);
        Self { crashes: bounded.depth + 1 + (seed % 3) as usize, ..bounded }
    }
}

fn run(setting: &Setting) -> Result<Outcome, String> {
    match Job::new(setting.clone()).run() {
        Err(reported) if reported.starts_with("REPORTED") => Ok(Outcome::Reported(reported)),
        ended => ended,
    }
}

/// Makes a failing job smaller as long as it fails, and tells its story.
fn shrunk(failing: &Setting) -> String {
    let mut smallest = failing.clone();
    let mut tries = 0;
    while tries < 60 {
        tries += 1;
        let mut smaller = smallest.clone();
        let mut dice = Dice::new(tries);
        match tries % 4 {
            0 if smaller.tasks.len() > 2 => drop(smaller.tasks.pop()),
            1 if smaller.hosts > smaller.depth + 2 => smaller.hosts -= 1,
            2 if smaller.crashes > 0 => smaller.crashes -= 1,
            _ => {
                let stage = dice.below(smaller.tasks.len());
                smaller.tasks[stage] = (smaller.tasks[stage] - 1).max(1);
            }
        }
        let reports = smaller.crashes > smaller.depth;
        if run(&smaller).is_ok_and(|ran| reports || ran == Outcome::Good) {
            continue;
        }
        smallest = smaller;
    }
    let mut job = Job::new(Setting { traced: true, ..smallest.clone() });
    let why = job.run();
    // A job that goes nowhere takes millions of lines to do so.
    job.trace.truncate(TRACE_MAX);
    format!("{smallest:?}\n{}\n==> {why:?}", job.trace.join("\n"))
}

fn seeds() -> u64 {
    std::env::var("CLONOS_SIM_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS)
}

fn all_good(setting: impl Fn(u64) -> Setting) -> (u64, u64) {
    let (mut good, mut reported) = (0, 0);
    for seed in 0..seeds() {
        let setting = setting(seed);
        match run(&setting) {
            Ok(Outcome::Good) => good += 1,
            Ok(Outcome::Reported(_)) if setting.crashes > setting.depth => reported += 1,
            Ok(Outcome::Reported(why)) => panic!("seed {seed}: {why}\n{}", shrunk(&setting)),
            Err(why) => panic!("seed {seed}: {why}\n{}", shrunk(&setting)),
        }
    }
    (good, reported)
}

#[test]
fn within_the_sharing_depth_every_job_completes_as_one_run() {
    let (good, reported) = all_good(Setting::bounded);
    assert_eq!((good, reported), (seeds(), 0));
}

#[test]
fn beyond_it_a_job_is_consistent_or_says_that_it_is_not() {
    let (good, reported) = all_good(Setting::beyond);
    assert!(good > 0 && good + reported == seeds(), "{good} good, {reported} reported");
}

#[test]
fn thousands_of_tasks_and_agents() {
    let setting = Setting {
        hosts: 1_000,
        tasks: vec![20, 1_000, 10],
        depth: 1,
        crashes: 1,
        calm: 2_000,
        riding: RIDING_BYTES_MAX,
        ..Setting::bounded(5)
    };
    let mut job = Job::new(setting);
    assert_eq!(job.run(), Ok(Outcome::Good));
    // However many hosts there are: what would be too much is named.
    let (count, tasks) = (job.cluster.count, 20 + 1_000 + 10);
    assert!((count.piggyback + count.copied) / tasks < 100_000, "{count:?}");
}

#[test]
fn a_seed_always_does_the_same() {
    for seed in 0..100 {
        let story = || {
            let mut job = Job::new(Setting { traced: true, ..Setting::beyond(seed) });
            let ended = job.run();
            (ended, job.trace)
        };
        assert_eq!(story(), story(), "seed {seed}");
    }
}

#[test]
fn one_seed() {
    let Ok(seed) = std::env::var("CLONOS_SIM_SEED") else { return };
    let seed = seed.parse().unwrap();
    let beyond = std::env::var("CLONOS_SIM_BEYOND").is_ok();
    let setting = if beyond { Setting::beyond(seed) } else { Setting::bounded(seed) };
    let setting = Setting { traced: true, ..setting };
    let mut job = Job::new(setting.clone());
    let ended = job.run();
    println!("{setting:?}\n{}\n==> {ended:?}", job.trace.join("\n"));
}

/// The first seed that fails.
fn first(fails: impl FnMut(&u64) -> bool) -> Option<u64> {
    (0..20 * SEEDS).find(fails).inspect(|seed| println!("seed {seed}"))
}

/// As [`noticed`], of jobs that lose more than they are ready for.
fn noticed_beyond(mutation: Mutation) -> u64 {
    let fails = |seed: &u64| {
        let setting = Setting { mutation, ..Setting::beyond(*seed) };
        // The fewer there are, the sooner one is lost with all that knew it.
        let setting = match mutation {
            Mutation::LostIsNew => {
                Setting { depth: 1, hosts: 4, crashes: 3, calm: 40, tasks: vec![3, 3], ..setting }
            }
            _ => setting,
        };
        std::panic::catch_unwind(|| run(&setting)).map_or(true, |ran| ran.is_err())
    };
    first(fails).unwrap_or_else(|| panic!("nobody notices {mutation:?}"))
}

/// How many of the first seeds it takes until the oracle notices.
fn noticed(mutation: Mutation) -> u64 {
    let fails = |seed: &u64| {
        let bounded = Setting::bounded(*seed);
        // Copies are given to others only of what rides.
        let riding = if mutation == Mutation::NoSpread { u64::MAX } else { bounded.riding };
        let setting = Setting { mutation, riding, ..bounded };
        let (crashes, calm) = (setting.depth, 40);
        // The fewer there are, the sooner the same task raises, sends, is taken in, and is lost.
        let setting = match mutation {
            Mutation::KeptBehindPublished => Setting {
                depth: 1,
                hosts: 3,
                crashes: 1,
                calm: 60,
                tasks: vec![2, 2],
                riding: 400,
                ..setting
            },
            Mutation::NobodyHasCopies | Mutation::FirstAnswer => {
                Setting { hosts: setting.depth + 2, crashes, calm: 25, ..setting }
            }
            _ => Setting { crashes, calm, ..setting },
        };
        std::panic::catch_unwind(|| run(&setting)).map_or(true, |ran| !matches!(ran, Ok(Outcome::Good)))
    };
    first(fails).unwrap_or_else(|| panic!("nobody notices {mutation:?}"))
}

#[test]
fn the_oracle_notices_that_absorbing_is_skipped() {
    noticed(Mutation::SkipAbsorb);
}

#[test]
fn the_oracle_notices_that_output_does_not_wait() {
    noticed(Mutation::SkipShare);
}

#[test]
fn the_oracle_notices_that_older_attempts_are_not_fenced() {
    noticed(Mutation::NoFence);
}

#[test]
fn the_oracle_notices_that_order_is_ignored() {
    noticed(Mutation::IgnoreOrder);
}

#[test]
fn the_oracle_notices_that_half_an_input_is_accepted() {
    noticed(Mutation::AcceptCut);
}

#[test]
fn the_oracle_notices_a_sharing_depth_that_is_too_short() {
    noticed(Mutation::ShortDepth);
}

#[test]
fn the_oracle_notices_that_stale_frames_are_taken() {
    noticed(Mutation::NoConfirmation);
}

#[test]
fn the_oracle_notices_that_a_block_is_stable_before_what_it_depends_on() {
    noticed(Mutation::OwnBlockFirst);
}

#[test]
fn the_oracle_notices_that_sender_and_consumer_die_together() {
    noticed(Mutation::NoSpread);
}

#[test]
fn the_oracle_notices_early_truncation() {
    noticed(Mutation::TruncateEarly);
}

#[test]
fn the_oracle_notices_that_slow_is_taken_for_dead() {
    noticed(Mutation::SlowIsDead);
}

#[test]
fn the_oracle_notices_that_a_pause_of_the_driver_is_taken_for_silence() {
    noticed(Mutation::PauseIsSilence);
}

#[test]
fn the_oracle_notices_that_late_requests_take_something_back() {
    noticed(Mutation::LateIsNew);
}

#[test]
fn the_oracle_notices_that_what_was_not_answered_counts_as_there() {
    noticed(Mutation::SentIsThere);
}

#[test]
fn the_oracle_notices_that_a_repeated_open_is_another() {
    noticed(Mutation::RetryIsAnother);
}

#[test]
fn the_oracle_notices_that_a_shorter_copy_is_gone_on_with() {
    noticed(Mutation::ShortestCopy);
}

#[test]
fn the_oracle_notices_that_the_first_answer_decides() {
    noticed(Mutation::FirstAnswer);
}

#[test]
fn the_oracle_notices_that_nothing_is_copied() {
    noticed(Mutation::NoCopies);
}

#[test]
fn the_oracle_notices_that_holders_are_not_known() {
    noticed(Mutation::UnknownHolders);
}

#[test]
fn the_oracle_notices_that_a_replaced_peer_still_counts() {
    noticed_beyond(Mutation::OldPeersCount);
}

#[test]
fn the_oracle_notices_that_a_log_is_begun_anew() {
    noticed(Mutation::BeginsAnew);
}

#[test]
fn the_oracle_notices_that_the_dead_go_on() {
    noticed(Mutation::DeadGoesOn);
}

#[test]
fn the_oracle_notices_that_consumers_do_not_count() {
    noticed(Mutation::ConsumersDoNotCount);
}

#[test]
fn the_oracle_notices_that_stale_copies_count() {
    noticed(Mutation::StaleCounts);
}

#[test]
fn the_oracle_notices_that_a_lost_log_is_taken_for_new() {
    noticed_beyond(Mutation::LostIsNew);
}

#[test]
fn the_oracle_notices_that_nobody_has_what_frames_name() {
    noticed(Mutation::NamedIsKept);
}

#[test]
fn the_oracle_notices_that_nobody_takes_what_is_shared() {
    noticed(Mutation::NobodyHasCopies);
}

#[test]
fn the_oracle_notices_that_lost_copies_are_not_made_anew() {
    noticed(Mutation::NothingIsRepaired);
}

#[test]
fn the_oracle_notices_that_what_follows_a_published_log_is_not() {
    noticed(Mutation::KeptBehindPublished);
}

#[test]
#[ignore = "prints a table for docs/exchange.md"]
fn message_table() {
    println!(
        "| hosts | to agents | to the registry | frames | riding bytes | copied bytes |\n|---|---|---|---|---|---|"
    );
    for hosts in [1, 10, 100, 1_000] {
        let tasks = vec![hosts; 3];
        let (calm, riding) = (usize::MAX / 8, RIDING_BYTES_MAX);
        let setting = Setting { hosts, tasks, depth: 1, crashes: 0, calm, riding, ..Setting::bounded(1) };
        let mut job = Job::new(setting);
        assert_eq!(job.run(), Ok(Outcome::Good));
        let count = job.cluster.count;
        let per_task = |n: u64| n as f64 / (3 * hosts) as f64;
        let (agent, registry) = (per_task(count.agent), per_task(count.registry));
        let (frames, riding, copied) =
            (per_task(count.frames), per_task(count.piggyback), per_task(count.copied));
        println!("| {hosts} | {agent:.1} | {registry:.1} | {frames:.1} | {riding:.0} | {copied:.0} |");
    }
}

#[test]
fn the_oracle_notices_that_older_uses_of_a_name_count() {
    noticed(Mutation::OlderUsesCount);
}

#[test]
fn the_oracle_notices_that_what_a_full_disk_refused_is_lost() {
    noticed(Mutation::RefusedIsWritten);
}

#[test]
fn logs_leave_memory_and_are_read_back() {
    for seed in 0..50 {
        let setting = Setting { room: Room { memory: 600, refused: 5, seed }, ..Setting::bounded(seed) };
        let mut job = Job::new(setting);
        assert_eq!(job.run(), Ok(Outcome::Good), "seed {seed}");
        assert!(job.cluster.hosts.iter().any(host::Host::has_spilled), "seed {seed}");
    }
}
