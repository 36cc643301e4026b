//! The homes of all things as they became durable, over time.

use std::collections::BTreeMap;

use cloud::state::record::Change;
use proto::csi::Id;
use tokio::time::Instant;

use super::disk::Noted;

/// The homes: for each id, its node from a moment on; none if it has no home from then on.
pub(super) struct Homes(BTreeMap<Id, Vec<(Instant, Option<String>)>>);

impl Homes {
    /// The homes by these changes.
    pub(super) fn of(noted: &[Noted]) -> Self {
        let mut homes = BTreeMap::<_, Vec<_>>::new();
        for (at, change) in noted {
            if let Change::Home(_, id, home) = change {
                let node = home.as_ref().map(|home| home.node.to_string());
                homes.entry(id.clone()).or_default().push((*at, node));
            }
        }
        Self(homes)
    }

    /// The home of a thing at a moment.
    pub(super) fn at(&self, id: &Id, moment: Instant) -> Option<&str> {
        let before = self.0.get(id)?.iter().take_while(|(at, _)| *at <= moment);
        before.last()?.1.as_deref()
    }

    /// Whether the home of a thing was this node ever.
    pub(super) fn was_ever(&self, id: &Id, node: &str) -> bool {
        let is_it = |(_, home): &(Instant, Option<String>)| home.as_deref() == Some(node);
        self.0.get(id).is_some_and(|all| all.iter().any(is_it))
    }

    /// Whether a thing had no home at a moment, or lost it after that.
    pub(super) fn was_none_since(&self, id: &Id, moment: Instant) -> bool {
        let lost = |(at, node): &(Instant, Option<String>)| *at > moment && node.is_none();
        self.at(id, moment).is_none() || self.0.get(id).is_some_and(|all| all.iter().any(lost))
    }
}
