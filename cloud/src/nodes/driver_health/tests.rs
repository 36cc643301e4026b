//! What edges say of their drivers, and for how long it counts.

use std::collections::BTreeMap;

use bytes::Bytes;
use proto::control::hello::Protobuf;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn name(name: &str) -> DriverName {
    name.parse().unwrap()
}

fn reported(state: HealthState, seconds: u64, why: &str) -> Driver {
    let health = Health { state, seconds, why: why.into() };
    Driver { name: name("a.example"), answers: BTreeMap::new(), health: Some(health) }
}

/// An edge that tells no health, of a driver that answers or not.
fn older(answers: bool) -> Driver {
    let answer = ("GetPluginInfo".to_owned(), Protobuf(Bytes::new()));
    let answers = answers.then_some(answer).into_iter().collect();
    Driver { name: name("a.example"), answers, health: None }
}

fn after(reports: &[Driver]) -> (ReportedHealth, DriverHealth) {
    let reported = ReportedHealth::default();
    for report in reports {
        reported.set(std::slice::from_ref(report), |_| true);
    }
    let health = reported.of(&name("a.example")).unwrap();
    assert_eq!(reported.is_up(&name("a.example")), health.is_up());
    (reported, health)
}

#[tokio::test(start_paused = true)]
async fn the_time_of_a_state_is_the_edges_and_then_ours() {
    let (_, gone) = after(&[reported(HealthState::Gone, 7, "no socket")]);
    tokio::time::advance(SECOND * 3).await;
    assert_eq!((gone.lasts(), gone.down()), (SECOND * 10, Some(SECOND * 10)));
    assert_eq!((gone.name(), &*gone.why), ("gone", "no socket"));
    let (_, up) = after(&[reported(HealthState::Gone, 7, ""), reported(HealthState::Up, 0, "")]);
    assert_eq!((up.is_up(), up.down()), (true, None));
    let (_, forever) = after(&[reported(HealthState::Failing, u64::MAX, "")]);
    tokio::time::advance(SECOND).await;
    assert!(forever.down().is_some_and(|down| down > SECOND));
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_is_starting_for_long_is_down() {
    let (_, starting) = after(&[reported(HealthState::Starting, 10, "")]);
    assert_eq!((starting.is_up(), starting.down()), (false, None));
    tokio::time::advance(STARTING).await;
    assert_eq!(starting.down(), Some(SECOND * 10));
}

#[tokio::test(start_paused = true)]
async fn a_driver_of_an_older_edge_is_up_while_it_answers() {
    let (reported, up) = after(&[older(true)]);
    assert_eq!(up.state, HealthState::Up);
    tokio::time::advance(SECOND * 9).await;
    reported.set(&[older(true)], |_| true);
    let again = reported.of(&name("a.example")).unwrap();
    assert_eq!(again.lasts(), SECOND * 9, "it has been up since then");
    let (_, away) = after(&[older(false)]);
    assert_eq!(away.state, HealthState::Starting);
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_is_not_named_is_gone_and_one_without_a_front_is_not_kept() {
    let (reported, _) = after(&[older(true)]);
    assert!(!reported.is_up(&name("b.example")));
    reported.set(&[], |_| true);
    tokio::time::advance(SECOND).await;
    assert_eq!(reported.of(&name("a.example")).unwrap().down(), Some(SECOND));
    reported.set(&[older(true)], |_| false);
    assert!(!reported.is_up(&name("a.example")));
    assert!(reported.lock().as_ref().unwrap().drivers.is_empty());
}

#[test]
fn a_link_whose_edge_has_said_nothing_is_no_reason_to_pass_it_over() {
    let reported = ReportedHealth::default();
    assert_eq!(reported.of(&name("a.example")), None);
    assert!(reported.is_up(&name("a.example")));
}

#[test]
fn a_long_reason_is_cut_between_characters() {
    let (_, long) = after(&[reported(HealthState::Gone, 0, &"é".repeat(4000))]);
    assert_eq!(long.why.len(), LONGEST);
    let (_, odd) = after(&[reported(HealthState::Gone, 0, &format!("x{}", "é".repeat(4000)))]);
    assert_eq!(odd.why.len(), LONGEST - 1);
}
