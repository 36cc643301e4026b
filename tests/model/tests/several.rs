//! Every state of the model of several csi-clouds, and what goes wrong without each of its rules.
//!
//! Each test prints how many states it saw, or the shortest way to what went wrong.

use model::bounds::{Bounds, Fault};
use model::properties::{COMMITS, GONE, LEASE, MADE, NO_LEAK, ONE_NODE, STALE};
use model::system::System;
use stateright::{Checker, HasDiscoveries, Model, Path};

const NAME: Bounds =
    Bounds { replicas: 2, edges: 2, names: 1, elections: 2, leases: false, fault: Fault::None };
const LEASES: Bounds = Bounds { names: 0, elections: 3, leases: true, ..NAME };

/// Looks at all states.
#[track_caller]
fn holds(bounds: Bounds) {
    let checker = System { bounds }.checker().threads(2).spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("{bounds:?}: {states} states, at most {} steps away", checker.max_depth());
    checker.assert_properties();
}

/// Looks for a way to break each of these promises.
#[track_caller]
fn breaks(fault: Fault, promises: &[&'static str], bounds: Bounds) {
    let bounds = Bounds { fault, ..bounds };
    let found = HasDiscoveries::AllOf(promises.iter().copied().collect());
    let checker = System { bounds }.checker().finish_when(found).spawn_bfs().join();
    for promise in promises {
        let way = checker.discovery(promise);
        assert!(way.is_some(), "{fault:?} does not break: {promise}");
        println!("{fault:?} breaks: {promise}");
        way.into_iter().flat_map(Path::into_actions).for_each(|action| println!("  {action:?}"));
    }
}

#[test]
fn a_name_with_two_leaders() {
    holds(NAME);
}

#[test]
fn a_name_with_three_leaders_at_one_edge() {
    holds(Bounds { edges: 1, elections: 3, ..NAME });
}

#[test]
fn the_lease_with_three_leaders() {
    holds(LEASES);
}

#[test]
#[ignore = "two paused leaders beside a third: `make model`"]
fn a_name_with_three_replicas() {
    holds(Bounds { replicas: 3, edges: 1, elections: 3, ..NAME });
}

#[test]
#[ignore = "two paused leaders beside a third: `make model`"]
fn the_lease_with_three_replicas() {
    holds(Bounds { replicas: 3, ..LEASES });
}

#[test]
#[ignore = "5 million states: `make model`"]
fn a_name_with_three_leaders() {
    holds(Bounds { elections: 3, ..NAME });
}

#[test]
#[ignore = "2 million states: `make model`"]
fn a_name_and_the_lease() {
    holds(Bounds { edges: 1, leases: true, ..NAME });
}

#[test]
fn without_a_fence_a_stale_call_is_carried_out() {
    breaks(Fault::NoFence, &[STALE, NO_LEAK, ONE_NODE, MADE, GONE], NAME);
    breaks(Fault::NoFence, &[LEASE], LEASES);
}

#[test]
fn an_epoch_that_was_not_told_or_is_forgotten_fences_nothing() {
    for fault in [Fault::EpochNotTold, Fault::FenceForgotten] {
        breaks(fault, &[STALE, NO_LEAK, ONE_NODE, MADE, GONE], NAME);
        breaks(fault, &[LEASE], LEASES);
    }
}

#[test]
fn commits_that_do_not_compare_the_leader_key_interleave() {
    breaks(Fault::NoCompare, &[COMMITS], NAME);
    breaks(Fault::NoCompare, &[COMMITS], LEASES);
}

#[test]
fn a_lost_answer_that_is_not_read_back_loses_a_home() {
    breaks(Fault::NoReadBack, &[NO_LEAK, MADE], NAME);
    breaks(Fault::NoReadBack, &[LEASE], LEASES);
}

#[test]
fn another_commit_in_the_place_of_one_in_doubt_is_taken_for_it() {
    breaks(Fault::AnotherCommit, &[NO_LEAK, ONE_NODE], NAME);
}

#[test]
fn a_refusal_of_a_full_store_is_read_back_too() {
    breaks(Fault::FullIsNotDone, &[NO_LEAK, ONE_NODE], NAME);
    breaks(Fault::FullIsNotDone, &[LEASE], LEASES);
}

#[test]
fn a_leader_with_an_old_memory_sends_a_name_to_a_second_node() {
    breaks(Fault::StaleMemory, &[ONE_NODE], NAME);
    breaks(Fault::StaleMemory, &[LEASE], LEASES);
}

#[test]
fn a_deposed_leader_that_answers_loses_a_volume() {
    breaks(Fault::DeposedAnswers, &[MADE], NAME);
}
