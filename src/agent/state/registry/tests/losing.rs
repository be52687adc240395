//! What is lost with agents and with queries that begin anew, and what is not.

use super::*;

#[test]
fn a_death_costs_nothing_while_others_have_it_and_then_the_state() {
    let (mut states, agents) = (states(2, false), Agents::new(3));
    decide(&mut states, &agents, 0);
    agents.kill(&mut states, 1);
    assert!(copies(&mut states, &agents).iter().all(|copies| (1..=2).contains(copies)));
    for agent in [2, 3] {
        while !joins(&mut states, &agents, agent).is_empty() {
            join_all(&mut states, &agents, agent);
        }
    }
    assert_eq!(copies(&mut states, &agents), [2; 256]);
    agents.kill(&mut states, 2);
    agents.kill(&mut states, 3);
    agents.start(4);
    for _ in 0..2 {
        let error = ask(&mut states, &agents, (1_000, 6_000, 0, 1)).unwrap_err();
        assert!(error.to_string().contains("standbys=1"), "{error}");
    }
}

#[test]
fn what_the_first_epoch_decided_and_nobody_has_is_missing_though_its_query_begins_anew() {
    let (mut states, agents) = (states(1, false), Agents::new(1));
    let of = (0, 1, 0, 1);
    let located = begin(&mut states, &agents, of);
    states.done(&done(&located, of, 7), &agents).unwrap();
    // Spark has committed it, and this is not heard of yet.
    agents.kill(&mut states, 1);
    agents.start(2);
    joins(&mut states, &agents, 2);
    states.begin_run("q", Generation(5));
    states.commit("q", 0);
    let error = ask(&mut states, &agents, (1, 6, 0, 1)).unwrap_err();
    assert_eq!(error.condition(), "STATE_INCOMPLETE");
}

#[test]
fn an_operator_that_the_query_has_no_more_is_not_waited_for() {
    let (mut states, agents) = (states(1, false), Agents::new(1));
    decide(&mut states, &agents, 0);
    let of = (1, 101, 0, 2);
    let located = begin(&mut states, &agents, of);
    states.done(&done(&located, of, 7), &agents).unwrap();
    let key = EpochKey { query: "q".into(), epoch: Epoch::Batch(1) };
    assert_eq!(states.check(&key).unwrap_err().condition(), "STATE_INCOMPLETE");
    states.begin_run("q", Generation(101));
    states.check(&key).unwrap();
    // It still has the operator.
    begin(&mut states, &agents, (1, 102, 1, 2));
    assert!(states.check(&key).is_err());
}

#[test]
fn in_the_first_epoch_ranges_of_which_nothing_was_decided_are_not_lost_with_an_agent() {
    let (mut states, agents) = (states(1, false), Agents::new(2));
    let of = |attempt: u64, partition: u32| (0, attempt, partition, 64);
    let located = begin(&mut states, &agents, of(1, 0));
    states.done(&done(&located, of(1, 0), 7), &agents).unwrap();
    // It was to hold ranges of partitions that have not come to their end, and may hold some of that one.
    agents.kill(&mut states, 2);
    for partition in 0..64 {
        let located = begin(&mut states, &agents, of(2, partition));
        states.done(&done(&located, of(2, partition), 7), &agents).unwrap();
    }
    states.commit("q", 0);
    assert_eq!(begin(&mut states, &agents, (1, 3, 0, 1)).version, Version(Some(0)));
}

#[test]
fn with_a_folder_what_nobody_has_is_restored_and_tasks_wait() {
    let (mut states, agents) = (states(1, true), Agents::new(1));
    decide(&mut states, &agents, 0);
    let of = (1, 101, 0, 2);
    let located = begin(&mut states, &agents, of);
    assert!(matches!(states.done(&done(&located, of, 7), &agents), Ok(FromRegistry::Counts)));
    agents.kill(&mut states, 1);
    agents.start(2);
    assert!(matches!(ask(&mut states, &agents, (1, 102, 1, 2)), Ok(FromRegistry::IsRestored)));
    let told = joins(&mut states, &agents, 2);
    assert!(told[0].ranges == RangeSet::ALL && told[0].sources.is_empty());
    assert_eq!(told[0].pending.iter().map(|part| (part.epoch, part.partition)).collect::<Vec<_>>(), [(1, 0)]);
    // Why it fails is told once, and it is tried again.
    states.not_joined(&id(), 1, Error::Misuse { what: "a disk".into() });
    assert_eq!(ask(&mut states, &agents, (1, 103, 1, 2)).unwrap_err().condition(), "MISUSE");
    assert!(matches!(ask(&mut states, &agents, (1, 104, 1, 2)), Ok(FromRegistry::IsRestored)));
    join_all(&mut states, &agents, 2);
    assert_eq!(begin(&mut states, &agents, (1, 105, 1, 2)).version, Version(Some(0)));
}
