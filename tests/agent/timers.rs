//! When the first timer of an operator is due: what the driver's agent tells the source that has Spark begin a batch.

use clonos::agent::state::messages::{AboutTimers, FirstDue};
use clonos::config::SessionConfig;
use clonos::edge::net::client::Client;
use clonos::id::Epoch;
use clonos::state::{EntriesBuilder, EntryKey, Op, Version};

use crate::states::{Counting, in_partition, key};
use crate::world::{World, close, start_driver};

/// A key's timer, and whether it is registered or gone.
type Change = (u64, i64, bool);

/// The first timer of operator `f` in query `q` that is due by a watermark, and the version that has it.
fn due_by(worker: &mut Client, epoch: u64, watermark_ms: i64) -> Option<(i64, Option<u64>)> {
    let reader = format!("q/{epoch}/{watermark_ms}");
    due(worker, AboutTimers { reader, operator: "f".into(), by_watermark: true, until_ms: None })
}

fn due(worker: &mut Client, about: AboutTimers) -> Option<(i64, Option<u64>)> {
    let first = worker.timer_due(about).unwrap();
    first.map(|FirstDue { version, due_ms }| (due_ms.unwrap(), version.0))
}

/// Runs a task of two.
fn change(worker: &mut Client, epoch: u64, partition: u32, changes: &[Change]) {
    let task = Counting::begin(worker, epoch, partition, 2).unwrap();
    let own = changes.iter().filter(|(n, ..)| in_partition([*n], partition, 2) == [*n]);
    let timer = |(n, at, is_put): &Change| {
        let put = Op::Put { expires_ms: 0, value: bytes::Bytes::new() };
        (EntryKey::timer(&key(*n), *at), if *is_put { put } else { Op::Delete })
    };
    let mut timers: Vec<(EntryKey, Op)> = own.map(timer).collect();
    timers.sort_by(|a, b| a.0.cmp(&b.0));
    let mut entries = EntriesBuilder::new();
    timers.iter().for_each(|(key, op)| entries.push(key, op));
    let mut delta = task.delta(&std::collections::BTreeMap::new(), 0);
    delta.entries = entries.finish();
    task.write_delta(worker, &delta).unwrap();
    close(worker, task.session);
}

fn change_all(worker: &mut Client, epoch: u64, changes: &[Change]) {
    (0..2).for_each(|partition| change(worker, epoch, partition, changes));
}

fn many() -> Vec<Change> {
    (0..2_000).map(|n| (n, 100 + i64::try_from(n).unwrap(), true)).collect()
}

#[test]
fn the_driver_knows_the_first_timer_once_all_tasks_of_an_epoch_have_told_theirs() {
    let world = World::new();
    let mut worker = world.worker();
    let first = |worker: &mut Client| due_by(worker, 9, i64::MAX);
    change_all(&mut worker, 0, &[]);
    assert_eq!(first(&mut worker), None);
    let timers = many();
    change(&mut worker, 1, 0, &timers);
    assert_eq!(first(&mut worker), None, "one task is not done");
    change(&mut worker, 1, 1, &timers);
    assert_eq!(first(&mut worker), Some((100, Some(1))), "whoever asks begins the next one");
    world.driver.commit_epoch("q", &Epoch::Batch(1)).unwrap();
    assert_eq!(first(&mut worker), Some((100, Some(1))));
    // As when timers fire: the first thousand are gone, one comes before what is left.
    let fired: Vec<Change> = timers[..1_000].iter().map(|(n, at, _)| (*n, *at, false)).collect();
    change_all(&mut worker, 2, &fired);
    assert_eq!(first(&mut worker), Some((1_100, Some(2))));
    change_all(&mut worker, 3, &[(5_000, 700, true)]);
    assert_eq!(first(&mut worker), Some((700, Some(3))));
}

#[test]
fn a_timer_is_due_when_its_time_has_come_and_no_earlier() {
    let world = World::new();
    let mut worker = world.worker();
    change_all(&mut worker, 0, &[(1, 500, true), (2, i64::MAX, true)]);
    assert_eq!(due_by(&mut worker, 1, 499), None);
    assert_eq!(due_by(&mut worker, 1, 500), Some((500, Some(0))));
    let by_clock = |reader: &str, operator: &str, until_ms| AboutTimers {
        reader: reader.into(),
        operator: operator.into(),
        by_watermark: false,
        until_ms,
    };
    assert_eq!(due(&mut worker, by_clock("q/1/0", "f", None)), Some((500, Some(0))));
    assert_eq!(due(&mut worker, by_clock("q/1/0", "f", Some(499))), None, "not waited for");
    assert_eq!(due(&mut worker, by_clock("q/1/0", "g", None)), None, "of another operator");
    assert_eq!(due(&mut worker, by_clock("other/1/0", "f", None)), None, "of another query");
    assert_eq!(due(&mut worker, by_clock("nobody's", "f", None)), None, "its query has had no batch");
    change_all(&mut worker, 1, &[(1, 500, false)]);
    assert_eq!(due(&mut worker, by_clock("q/1/0", "f", None)), None, "the other one is years away");
}

#[test]
fn after_a_restart_the_folder_tells_before_any_task_has_asked() {
    for epochs in [3, 40] {
        let world = World::with(|config, folder| {
            config.checkpoint_dir = Some(folder.path().join("checkpoint").display().to_string());
        });
        let mut worker = world.worker();
        change_all(&mut worker, 0, &many());
        (1..epochs).for_each(|epoch| {
            change_all(&mut worker, epoch, &[(epoch - 1, 99 + i64::try_from(epoch).unwrap(), false)])
        });
        // The last one was cut short.
        change(&mut worker, epochs, 1, &[(5_000, 7, true), (5_001, 7, true), (5_002, 7, true)]);
        world.driver.stop();
        let config = SessionConfig { app_id: "app-next".into(), ..world.config.clone() };
        let (driver, config) = start_driver(config, world.folder.path().join("next.sock"));
        let mut worker = Client::connect(&config, driver.socket()).unwrap();
        let expected = 99 + i64::try_from(epochs).unwrap();
        for _ in 0..2 {
            assert_eq!(due_by(&mut worker, epochs, i64::MAX), Some((expected, Some(epochs - 1))));
            assert_eq!(due_by(&mut worker, epochs, expected - 1), None);
        }
        // A task has asked, and goes on with it.
        let task = Counting::begin(&mut worker, epochs, 0, 2).unwrap();
        assert_eq!(task.version, Version(Some(epochs - 1)));
        close(&mut worker, task.session);
        assert_eq!(due_by(&mut worker, epochs, i64::MAX), Some((expected, Some(epochs - 1))));
        change_all(&mut worker, epochs, &[(5_003, 3, true)]);
        assert_eq!(due_by(&mut worker, epochs + 1, i64::MAX), Some((3, Some(epochs))));
    }
}

#[test]
fn a_query_that_goes_back_has_the_timers_of_then() {
    let world = World::with(|config, folder| {
        config.checkpoint_dir = Some(folder.path().join("checkpoint").display().to_string());
    });
    let mut worker = world.worker();
    let first = |worker: &mut Client, epoch| due_by(worker, epoch, i64::MAX);
    // Each epoch's timer comes before those of the epochs before it.
    let changes = |epoch: u64| [(epoch, 100 - i64::try_from(epoch).unwrap(), true)];
    (0..5).for_each(|epoch| change_all(&mut worker, epoch, &changes(epoch)));
    world.driver.commit_epoch("q", &Epoch::Batch(3)).unwrap();
    assert_eq!(first(&mut worker, 5), Some((96, Some(4))));
    world.driver.begin_run("q", None);
    assert_eq!(first(&mut worker, 5), Some((96, Some(4))), "it goes on");
    assert_eq!(first(&mut worker, 4), Some((97, Some(3))), "the last epoch is run again");
    assert_eq!(first(&mut worker, 2), Some((99, Some(1))), "two that were committed are run again");
    change_all(&mut worker, 2, &[(7, 50, true)]);
    assert_eq!(first(&mut worker, 3), Some((50, Some(2))));
    // Once more: what the folder has of then is not what it had before.
    world.driver.begin_run("q", None);
    assert_eq!(first(&mut worker, 3), Some((50, Some(2))));
    change_all(&mut worker, 3, &[(7, 50, false)]);
    assert_eq!(first(&mut worker, 4), Some((99, Some(3))));
    world.driver.commit_epoch("q", &Epoch::Batch(3)).unwrap();
    world.driver.begin_run("q", None);
    assert_eq!(first(&mut worker, 3), Some((50, Some(2))));
}
