//! The scopes of drivers, as edges are told. An edge adds our topology for its own callers
//! accordingly.
//!
//! An unknown scope is not told, because an edge keeps for good what it is told.

use std::collections::BTreeMap;

use proto::names::{DriverName, NodeName};

use crate::state::driver_state::DriverState;
use crate::state::policy::{Policy, Scope};
use crate::state::store::writer::Store;

/// The scopes of all drivers.
#[derive(Default)]
pub(super) struct Scopes {
    /// The operator's settings.
    words: BTreeMap<DriverName, Scope>,
}

impl Scopes {
    pub(super) fn new(policies: &BTreeMap<DriverName, Policy>) -> Self {
        let word = |(driver, policy): (&DriverName, &Policy)| Some((driver.clone(), policy.scope?));
        Self { words: policies.iter().filter_map(word).collect() }
    }

    /// The scopes of a node's drivers.
    pub(super) fn at(&self, node: &NodeName, store: &Store) -> BTreeMap<DriverName, Scope> {
        self.among(store, |driver| driver.at(node).is_some())
    }

    /// The scope of one driver.
    pub(super) fn of(&self, driver: &DriverName, store: &Store) -> Option<Scope> {
        store.read(|state| self.scope(driver, state.driver(driver)?))
    }

    /// The scopes of all drivers that any node has.
    pub(super) fn all(&self, store: &Store) -> BTreeMap<DriverName, Scope> {
        self.among(store, |_| true)
    }

    fn among(
        &self,
        store: &Store,
        wanted: impl Fn(&DriverState) -> bool,
    ) -> BTreeMap<DriverName, Scope> {
        store.read(|state| {
            let drivers = state.drivers().iter().filter(|(_, driver)| wanted(driver));
            drivers
                .filter_map(|(name, driver)| Some((name.clone(), self.scope(name, driver)?)))
                .collect()
        })
    }

    /// None if neither the operator nor any driver determines the scope.
    fn scope(&self, name: &DriverName, driver: &DriverState) -> Option<Scope> {
        let inferred =
            || driver.members().any(|(_, at)| at.has_spoken()).then(|| driver.info().scope());
        self.words.get(name).copied().or_else(inferred)
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use proto::control::hello::{Driver, Protobuf};
    use proto::csi;
    use proto::host::tasks::Tasks;

    use super::*;
    use crate::nodes::links::Links;
    use crate::state::authority::Authority;
    use crate::state::ingest;
    use crate::state::store::memory::Memory;

    fn driver(name: &str, constrained: bool) -> Driver {
        let mut answer = csi::GetPluginCapabilitiesResponse::default().encode_to_vec().into();
        if constrained {
            answer = csi::topology::into_plugin_capabilities(&answer).unwrap();
        }
        let info = csi::GetPluginInfoResponse { name: name.into(), ..Default::default() };
        let answers =
            [("GetPluginInfo", info.encode_to_vec().into()), ("GetPluginCapabilities", answer)];
        let answers =
            answers.into_iter().map(|(method, answer)| (method.to_owned(), Protobuf(answer)));
        Driver { name: name.parse().unwrap(), answers: answers.collect(), health: None }
    }

    #[tokio::test(start_paused = true)]
    async fn a_scope_is_the_operators_word_or_what_a_driver_said_and_else_not_told() {
        let tasks = Tasks::default();
        let store = Store::open(Box::new(Memory::default()), &tasks).unwrap();
        let word: DriverName = "word.example".parse().unwrap();
        let inferred: DriverName = "inferred.example".parse().unwrap();
        let policy = Policy { scope: Some(Scope::Node), ..Policy::new(None) };
        let policies = [(word.clone(), policy)].into();
        let links = Links::new(store.clone(), tasks, |_, _, _, _| Box::pin(async { None }))
            .scoped(&policies);
        let scopes = Scopes::new(&policies);
        let mut broadcasts = links.broadcasts();
        let [n1, n2]: [NodeName; 2] = ["n1".parse().unwrap(), "n2".parse().unwrap()];
        let away = |name: &str| Driver { answers: Default::default(), ..driver(name, false) };
        ingest::drivers(
            &store,
            &Authority::default(),
            &n1,
            vec![away("word.example"), away("inferred.example")],
        )
        .await
        .unwrap();
        assert_eq!(scopes.at(&n1, &store), [(word.clone(), Scope::Node)].into());
        ingest::drivers(
            &store,
            &Authority::default(),
            &n1,
            vec![driver("inferred.example", false)],
        )
        .await
        .unwrap();
        links.refresh_scopes();
        assert!(broadcasts.has_changed().unwrap());
        broadcasts.mark_unchanged();
        let expected = [(word, Scope::Node), (inferred.clone(), Scope::Shared)];
        assert_eq!(scopes.at(&n1, &store), expected.into());
        assert!(
            scopes.at(&n2, &store).is_empty(),
            "another node's drivers are none of its business"
        );
        // One node changes nothing, once the profile is pinned.
        ingest::drivers(&store, &Authority::default(), &n2, vec![driver("inferred.example", true)])
            .await
            .unwrap();
        assert_eq!(scopes.at(&n1, &store).get(&inferred), Some(&Scope::Shared));
        links.refresh_scopes();
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        assert!(!broadcasts.has_changed().unwrap(), "there is nothing new to tell");
    }

    #[tokio::test(start_paused = true)]
    async fn scopes_that_change_all_the_time_are_told_once_a_second() {
        let tasks = Tasks::default();
        let store = Store::open(Box::new(Memory::default()), &tasks).unwrap();
        let links = Links::new(store.clone(), tasks, |_, _, _, _| Box::pin(async { None }));
        let mut broadcasts = links.broadcasts();
        let node: NodeName = "n1".parse().unwrap();
        let mut messages = 0;
        for time in 0..100 {
            // A driver that no node had before has a new scope.
            let another = driver(&format!("d{time}.example"), time % 2 == 0);
            ingest::drivers(&store, &Authority::default(), &node, vec![another]).await.unwrap();
            links.refresh_scopes();
            tokio::time::sleep(std::time::Duration::from_millis(30)).await;
            messages += usize::from(broadcasts.has_changed().unwrap());
            broadcasts.mark_unchanged();
        }
        assert!((1..=4).contains(&messages), "{messages} in 3 s");
    }
}
