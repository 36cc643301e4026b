//! The csi-clouds that share a store, as `csi-cloud replicas` lists them, and since when each is
//! so.
//!
//! etcd is asked once for a look. If it gives no answer soon, what it said last is shown, and that
//! it is old.

use std::time::Duration;

use proto::admin::view::{ReplicaCell, Several};
use tokio::time::timeout;

use crate::admin::admin_state::AdminState;
use crate::admin::replicas::ReplicaView;

/// How long a look waits for etcd.
const WAIT: Duration = Duration::from_millis(500);

/// The replicas at this moment, in ms since 1970; none if this csi-cloud has its store alone.
pub(super) async fn look(
    state: &AdminState,
    before: Option<&Several>,
    now: u64,
) -> Option<Several> {
    state.store.cluster()?;
    let before = before.cloned().unwrap_or_default();
    let Ok(Ok(views)) = timeout(WAIT, state.replicas()).await else {
        return Some(Several { is_old: true, ..before });
    };
    let leading = u64::try_from(state.links.leading().age().as_millis()).unwrap_or(0);
    let began = now.saturating_sub(leading);
    let cell = |view| cell(view, &before, began, now);
    Some(Several { replicas: views.into_iter().map(cell).collect(), is_old: false })
}

/// `began` is the moment at which this csi-cloud began to lead, if it does.
fn cell(view: ReplicaView, before: &Several, began: u64, now: u64) -> ReplicaCell {
    let ReplicaView { name, leads, epoch, lag, version, drained, this, .. } = view;
    let cell = ReplicaCell { name, leads, epoch, lag, version, drained, this, since: None };
    let then = before.replicas.iter().find(|then| then.name == cell.name);
    let since = match then {
        Some(then) if part(then) == part(&cell) && then.since.is_some() => then.since,
        _ if cell.this && cell.leads => Some(began),
        Some(then) if part(then) == part(&cell) => None,
        // It was so before this csi-cloud looked for the first time.
        None if before.replicas.is_empty() => None,
        _ => Some(now),
    };
    ReplicaCell { since, ..cell }
}

/// What a replica is, apart from how far it is.
fn part(cell: &ReplicaCell) -> (bool, Option<u64>, bool, Option<&str>) {
    (cell.leads, cell.epoch, cell.drained, cell.version.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(name: &str) -> ReplicaView {
        ReplicaView {
            name: name.into(),
            leads: false,
            epoch: None,
            lag: 0,
            version: Some("1".into()),
            drained: false,
            endpoints: Vec::new(),
            this: false,
        }
    }

    fn seen(views: Vec<ReplicaView>, before: &Several, now: u64) -> Several {
        let cells = views.into_iter().map(|view| cell(view, before, 500, now));
        Several { replicas: cells.collect(), is_old: false }
    }

    fn since(several: &Several) -> Vec<Option<u64>> {
        several.replicas.iter().map(|cell| cell.since).collect()
    }

    #[test]
    fn a_replica_is_what_it_is_since_that_was_seen_first() {
        let a = ReplicaView { leads: true, this: true, ..replica("a") };
        let first = seen(vec![a, replica("b")], &Several::default(), 1_000);
        assert_eq!(since(&first), [Some(500), None], "nothing is known of before");
        let behind = ReplicaView { lag: 9, ..replica("b") };
        let same = seen(vec![replica("a"), behind, replica("c")], &first, 2_000);
        assert_eq!(since(&same), [Some(2_000), None, Some(2_000)], "c is new, a leads no more");
        let drained = ReplicaView { drained: true, ..replica("c") };
        let last = seen(vec![replica("a"), drained], &same, 3_000);
        assert_eq!(since(&last), [Some(2_000), Some(3_000)]);
    }
}
