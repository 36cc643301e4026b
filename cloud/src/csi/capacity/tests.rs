//! Sums, and what tells one question from another.

use crate::csi::capacity::*;
use proto::csi::GetCapacityResponse;

fn said(available: i64, maximum: Option<i64>, minimum: Option<i64>) -> GetCapacityResponse {
    GetCapacityResponse {
        available_capacity: available,
        maximum_volume_size: maximum,
        minimum_volume_size: minimum,
    }
}

#[test]
fn room_adds_up_and_sizes_are_what_any_node_takes() {
    let mut sum = Sum::default();
    for one in [said(5, None, Some(2)), said(7, Some(6), None), said(-1, Some(4), Some(1))] {
        sum.add(&one);
    }
    assert!(sum.all == said(12, Some(6), Some(1)));
    sum.add(&said(i64::MAX, None, None));
    assert_eq!(sum.all.available_capacity, i64::MAX);
}

#[test]
fn a_question_is_the_same_whatever_the_order_of_its_maps() {
    let parameters = |pairs: &[(&str, &str)]| {
        let mut request = Vec::new();
        for (key, value) in pairs {
            wire::append(&mut request, &[2], &wire::entry(key, value));
        }
        Bytes::from(request)
    };
    let one = meaning(&parameters(&[("a", "1"), ("b", "2")]));
    assert_eq!(one, meaning(&parameters(&[("b", "2"), ("a", "1")])));
    assert_ne!(one, meaning(&parameters(&[("a", "2"), ("b", "1")])));
    let mut topology = Vec::new();
    wire::append(&mut topology, &[3, 1], &wire::entry("a", "1"));
    assert_ne!(meaning(&topology.into()), meaning(&parameters(&[("a", "1")])));
    let mut newer = parameters(&[("a", "1"), ("b", "2")]).to_vec();
    wire::append(&mut newer, &[99], b"newer");
    assert_ne!(one, meaning(&newer.into()));
}

#[test]
fn what_was_said_last_is_kept_for_so_many() {
    let mut last = Last::default();
    let asked = |n: usize| ("n1".parse::<NodeName>().unwrap(), n as u64);
    for n in 0..=2 * KEPT {
        last.keep(asked(n), said(n as i64, None, None));
    }
    assert_eq!(last.of(&asked(2 * KEPT)).unwrap().available_capacity, 2 * KEPT as i64);
    assert!(last.of(&asked(KEPT)).is_some(), "the older half is still there");
    assert!(last.of(&asked(0)).is_none());
    assert!(last.newer.len() + last.older.len() <= 2 * KEPT);
}
