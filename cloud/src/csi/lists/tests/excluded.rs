//! An excluded node gives no ids a home.

use super::*;
use crate::state::set_apart::Reason;

#[tokio::test]
async fn an_excluded_node_gives_nothing_a_home() {
    let mut world = world(&Tasks::default()).await;
    world.existing[0].insert("invented".to_owned());
    let list = world.list(0);
    world.store.set_apart(&name(0), Some(&driver()), Reason::NotAllowed);
    assert_eq!(record_within(&world.store, list, Quotas::default()).await, Recorded::NotCounted);
    assert_eq!((world.homes(), world.is_listed(0)), (BTreeSet::new(), false));
}
