//! Watches the elections of a shared driver. Another node is elected only after the old one's link
//! has been gone, or its driver down, for the grace. Otherwise calls that still run at the old node
//! would run twice.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::fleet::Election;
use super::model::World;

/// How often it reads the state. It misses a link that is replaced in between, which hides faults
/// but never invents one.
const LOOK: Duration = Duration::from_millis(50);
/// The time that an election takes to be durable, and so to be seen.
const COMMIT: Duration = Duration::from_secs(1);
/// The same in etcd. A commit whose answer is lost is read back once etcd can be reached again.
const COMMIT_IN_ETCD: Duration = Duration::from_secs(15);

/// Watches for ever.
pub(super) async fn watch(world: World) {
    let grace = world.fleet.shape().policy().grace;
    let commit = if world.fleet.shape().replicas > 1 { COMMIT_IN_ETCD } else { COMMIT };
    let mut before: Option<Election> = None;
    let mut linked: HashMap<_, Instant> = HashMap::new();
    let mut begun: HashMap<_, Instant> = HashMap::new();
    let mut down: HashMap<_, Instant> = HashMap::new();
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(now) = world.fleet.election() else { continue };
        // The next leader counts from its own beginning, whoever still has a link to the last one.
        let is_next = before.as_ref().is_some_and(|before| before.since != now.since);
        if is_next {
            linked.clear();
        }
        let was_linked = |node: &_| before.as_ref().is_some_and(|at| at.linked.contains(node));
        for node in now.linked.iter().filter(|node| !was_linked(node)) {
            begun.insert(node.clone(), Instant::now());
        }
        if let Some(before) = before.filter(|before| !is_next && before.elected != now.elected)
            && let Some(node) = before.elected
        {
            // It may have come back while the election was made durable.
            let is_down = now.down.contains(&node)
                || down.get(&node).is_some_and(|down| down.elapsed() < commit);
            let seen = linked.get(&node).copied().unwrap_or(now.since).max(now.since);
            // What it said of its driver at the begin of this link may be over by now.
            let is_new = begun.get(&node).is_some_and(|begun| begun.elapsed() < commit);
            if seen.elapsed() < grace && !is_down && !is_new {
                let away = seen.elapsed();
                let elected = &now.elected;
                world
                    .found
                    .add([format!("{elected:?} was elected when {node} was away for {away:?}")]);
            }
        }
        down.extend(now.down.iter().map(|node| (node.clone(), Instant::now())));
        linked.extend(now.linked.iter().map(|node| (node.clone(), Instant::now())));
        before = Some(now);
    }
}
