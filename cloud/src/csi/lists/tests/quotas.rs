//! Lists that are over a quota of their node.

use super::*;
use crate::state::quotas::Quota;

#[tokio::test]
async fn a_list_beyond_the_quota_is_not_kept_and_hides_nothing() {
    let mut world = world(&Tasks::default()).await;
    world.existing[0].insert("known".to_owned());
    assert!(record(&world.store, world.list(0)).await);
    world.existing[0] = ["a", "b", "c"].map(str::to_owned).into();
    let two = Quotas { volumes: 2, ..Quotas::default() };
    let recorded = record_within(&world.store, world.list(0), two).await;
    let Recorded::Over(over) = recorded else { panic!("{recorded:?}") };
    assert_eq!((over.quota, over.found), (Quota::Volumes, 3));
    assert_eq!(world.homes().len(), 2, "up to the quota, and no more");
    assert!(world.shown().contains("known"), "a list that is not believed hid a volume");
    // What is known may be more than a quota that was lowered.
    let homes = world.homes();
    world.existing[0] = homes.clone();
    let one = Quotas { volumes: 1, ..Quotas::default() };
    assert_eq!(record_within(&world.store, world.list(0), one).await, Recorded::Complete);
    assert_eq!(world.homes(), homes);
}

#[tokio::test]
async fn entries_that_are_larger_than_the_quota_are_not_kept() {
    let mut world = world(&Tasks::default()).await;
    world.existing[0].insert("a".to_owned());
    let small = Quotas { durable_bytes: 50, ..Quotas::default() };
    let recorded = record_within(&world.store, world.list(0), small).await;
    let Recorded::Over(over) = recorded else { panic!("{recorded:?}") };
    assert_eq!((over.quota, world.homes().len()), (Quota::DurableBytes, 0));
}
