//! Sums of capacities, and the identity of requests.

use crate::csi::capacity::*;
use proto::csi::GetCapacityResponse;

fn capacity(available: i64, maximum: Option<i64>, minimum: Option<i64>) -> GetCapacityResponse {
    GetCapacityResponse {
        available_capacity: available,
        maximum_volume_size: maximum,
        minimum_volume_size: minimum,
    }
}

fn with_parameters(pairs: &[(&str, &str)]) -> Bytes {
    let mut request = Vec::new();
    for (key, value) in pairs {
        wire::append(&mut request, &[2], &wire::entry(key, value));
    }
    request.into()
}

fn query(n: usize) -> QueryKey {
    ("n1".parse().unwrap(), n as u64)
}

#[test]
fn room_adds_up_and_sizes_are_what_any_node_takes() {
    let mut sum = Sum::default();
    let nodes =
        [capacity(5, None, Some(2)), capacity(7, Some(6), None), capacity(-1, Some(4), Some(1))];
    for node in nodes {
        sum.add(&node);
    }
    assert!(sum.total == capacity(12, Some(6), Some(1)));
    let mut silent = Sum::default();
    silent.add(&capacity(10, None, None));
    assert!(silent.total == capacity(10, None, None), "one node speaks for itself");
    silent.add(&capacity(20, None, None));
    assert!(silent.total == capacity(30, Some(20), None));
    sum.add(&capacity(i64::MAX, None, None));
    assert_eq!(sum.total.available_capacity, i64::MAX);
}

#[test]
fn a_question_is_the_same_whatever_the_order_of_its_maps() {
    let one = meaning(&with_parameters(&[("a", "1"), ("b", "2")]));
    assert_eq!(one, meaning(&with_parameters(&[("b", "2"), ("a", "1")])));
    assert_ne!(one, meaning(&with_parameters(&[("a", "2"), ("b", "1")])));
    let mut topology = Vec::new();
    wire::append(&mut topology, &[3, 1], &wire::entry("a", "1"));
    assert_ne!(meaning(&topology.into()), meaning(&with_parameters(&[("a", "1")])));
    let mut newer = with_parameters(&[("a", "1"), ("b", "2")]).to_vec();
    wire::append(&mut newer, &[99], b"newer");
    assert_ne!(one, meaning(&newer.into()));
}

#[test]
fn what_was_said_last_is_kept_for_so_many() {
    let mut last = LastCapacities::default();
    for n in 0..=2 * KEPT {
        let capacity = capacity(n as i64, None, None);
        last.keep(query(n), LastCapacity { capacity, asked: None });
    }
    assert_eq!(last.get(&query(2 * KEPT)).unwrap().capacity.available_capacity, 2 * KEPT as i64);
    assert!(last.get(&query(KEPT)).is_some(), "the older half is still there");
    assert!(last.get(&query(0)).is_none());
    assert!(last.newer.len() + last.older.len() <= 2 * KEPT);
}
