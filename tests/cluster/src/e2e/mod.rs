//! End-to-end tests: what users and operators do with a cluster, one row each, on one stand. After
//! each row the drivers, the persistent volumes and our store must agree.

mod accounts;
mod arriving;
pub mod command;
mod dead_drivers;
mod deployed;
mod direct;
mod edges;
mod exam;
mod examples;
mod expansion;
mod faults;
mod figures;
mod found;
mod ha;
mod joins;
mod kubeedge;
mod look;
mod manifests;
mod outages;
pub mod part;
mod places;
mod pods;
mod power;
mod replicas;
mod resize;
mod rotation;
mod runtime_class;
mod scarce;
pub mod scene;
mod sets;
mod shared;
mod shares;
mod snapshots;
mod standby;
mod stock;
mod tables;
mod texts;
mod traces;
pub mod truth;
mod versions;

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use tokio::time::Instant;

use self::outages::is_long;
use self::scene::Scene;
use crate::stand::Cluster;
use crate::stand::files::Files;

/// One thing that must work.
pub struct Row {
    /// The name on the command line, and the name of the row's namespace.
    pub name: &'static str,
    /// No other row may run at the same time, because this one takes away what others need.
    alone: bool,
    run: for<'a> fn(&'a Scene<'a>) -> BoxFuture<'a, anyhow::Result<()>>,
}

/// How one ended.
pub struct Outcome {
    /// The row's name.
    pub name: &'static str,
    /// How long it took, with the check after it.
    pub took: Duration,
    /// The error, if it failed.
    pub error: Option<anyhow::Error>,
}

/// How long a row may take.
const LIMIT: Duration = Duration::from_secs(300);
/// The same with realistic outages ([`outages::is_long`]).
const LONG: Duration = Duration::from_secs(1800);
/// How many rows run at once that do not disturb each other.
const AT_ONCE: usize = 6;

/// How many events a failure shows.
const EVENTS: usize = 40;

/// All rows.
pub const ROWS: &[Row] = &[
    Row { name: "pod", alone: false, run: |scene| pods::written_and_gone(scene).boxed() },
    Row { name: "pod-again", alone: false, run: |scene| pods::made_again(scene).boxed() },
    Row { name: "block", alone: false, run: |scene| pods::raw(scene).boxed() },
    Row { name: "ephemeral", alone: false, run: |scene| pods::ephemeral(scene).boxed() },
    Row { name: "stateful-set", alone: false, run: |scene| places::spread(scene).boxed() },
    Row { name: "immediate", alone: false, run: |scene| places::binding(scene).boxed() },
    Row { name: "topologies", alone: false, run: |scene| places::allowed(scene).boxed() },
    Row { name: "snapshot", alone: false, run: |scene| snapshots::restored(scene).boxed() },
    Row { name: "clone", alone: false, run: |scene| snapshots::cloned(scene).boxed() },
    Row { name: "group-snapshot", alone: false, run: |scene| snapshots::grouped(scene).boxed() },
    Row { name: "expand-online", alone: false, run: |scene| resize::online(scene).boxed() },
    Row { name: "expand-offline", alone: false, run: |scene| resize::offline(scene).boxed() },
    Row { name: "attributes", alone: false, run: |scene| resize::attributes(scene).boxed() },
    Row { name: "two-drivers", alone: false, run: |scene| scarce::two(scene).boxed() },
    Row { name: "capacity", alone: false, run: |scene| scarce::room(scene).boxed() },
    Row { name: "limits", alone: false, run: |scene| scarce::limits(scene).boxed() },
    Row { name: "static", alone: false, run: |scene| shares::by_hand(scene).boxed() },
    Row { name: "examples", alone: false, run: |scene| examples::as_they_stand(scene).boxed() },
    Row { name: "direct", alone: false, run: |scene| direct::handed_over(scene).boxed() },
    Row { name: "runtime-class", alone: false, run: |scene| runtime_class::decides(scene).boxed() },
    Row { name: "direct-stray", alone: false, run: |scene| direct::stray(scene).boxed() },
    Row {
        name: "direct-stock",
        alone: false,
        run: |scene| stock::shared_and_mended(scene).boxed(),
    },
    // Alone, as the examples of another row have the names of those of deploy/.
    Row { name: "manifests", alone: true, run: |scene| manifests::accepted(scene).boxed() },
    Row { name: "many", alone: true, run: |scene| sets::many_at_once(scene).boxed() },
    Row { name: "direct-kubelet", alone: true, run: |scene| direct::kubelet_away(scene).boxed() },
    Row { name: "edge-killed", alone: true, run: |scene| edges::killed(scene).boxed() },
    Row { name: "edge-upgraded", alone: true, run: |scene| edges::upgraded(scene).boxed() },
    Row { name: "edge-expansion", alone: true, run: |scene| expansion::by_edge(scene).boxed() },
    Row {
        name: "found-by-registration",
        alone: true,
        run: |scene| found::by_registration(scene).boxed(),
    },
    Row { name: "edge-cut", alone: true, run: |scene| edges::cut_off(scene).boxed() },
    Row {
        name: "driver-dead",
        alone: true,
        run: |scene| dead_drivers::creates_go_elsewhere(scene).boxed(),
    },
    Row { name: SHARED_STORAGE[0], alone: true, run: |scene| shared::storage(scene).boxed() },
    Row { name: SHARED_STORAGE[1], alone: true, run: |scene| shared::link_lost(scene).boxed() },
    Row { name: SHARED_STORAGE[2], alone: true, run: |scene| shared::driver_dead(scene).boxed() },
    Row { name: "cloud-killed", alone: true, run: |scene| faults::cloud_killed(scene).boxed() },
    Row { name: "cloud-restarts", alone: true, run: |scene| outages::ten_restarts(scene).boxed() },
    Row {
        name: "create-deleted",
        alone: true,
        run: |scene| faults::deleted_while_unknown(scene).boxed(),
    },
    Row {
        name: "provisioner-killed",
        alone: true,
        run: |scene| faults::provisioner_killed(scene).boxed(),
    },
    Row { name: "create-forgotten", alone: true, run: |scene| faults::forgotten(scene).boxed() },
    Row { name: "edge-away", alone: true, run: |scene| outages::edge_away(scene).boxed() },
    Row { name: "exam", alone: true, run: |scene| exam::states(scene).boxed() },
    Row { name: LEFT_OUT[5].0, alone: true, run: |scene| exam::volumes::broken(scene).boxed() },
    Row { name: LEFT_OUT[6].0, alone: true, run: |scene| exam::links::broken(scene).boxed() },
    Row { name: LEFT_OUT[7].0, alone: true, run: |scene| exam::nodes::broken(scene).boxed() },
    Row { name: "edge-removed", alone: true, run: |scene| outages::edge_removed(scene).boxed() },
    Row {
        name: "arriving",
        alone: true,
        run: |scene| arriving::from_node_deployment(scene).boxed(),
    },
    Row { name: "api-away", alone: true, run: |scene| outages::api_away(scene).boxed() },
    Row { name: "offline-front", alone: true, run: |scene| kubeedge::offline_front(scene).boxed() },
    Row { name: "doctor-kubeedge", alone: true, run: |scene| kubeedge::doctor(scene).boxed() },
    Row { name: "leader-killed", alone: true, run: |scene| replicas::leader_killed(scene).boxed() },
    Row { name: LEFT_OUT[0].0, alone: true, run: |scene| replicas::leader_gone(scene).boxed() },
    Row { name: LEFT_OUT[1].0, alone: true, run: |scene| replicas::rolling_upgrade(scene).boxed() },
    Row { name: LEFT_OUT[2].0, alone: true, run: |scene| replicas::without_quorum(scene).boxed() },
    Row { name: LEFT_OUT[8].0, alone: true, run: |scene| standby::sidecars_elected(scene).boxed() },
    Row { name: "ha-upgraded", alone: true, run: |scene| ha::upgraded(scene).boxed() },
    Row { name: POWER_CUT, alone: true, run: |scene| power::cuts(scene).boxed() },
    // Last, as the nodes keep the identities that they get here.
    Row { name: "join-token", alone: true, run: |scene| joins::by_token(scene).boxed() },
    Row { name: "join-account", alone: true, run: |scene| joins::by_account(scene).boxed() },
    Row { name: LEFT_OUT[3].0, alone: true, run: |scene| joins::renewed(scene).boxed() },
    Row { name: LEFT_OUT[4].0, alone: true, run: |scene| rotation::under_load(scene).boxed() },
    Row { name: "revoked", alone: true, run: |scene| joins::revoked(scene).boxed() },
];

/// Takes minutes on an idle machine, so it runs only on request.
const FIGURES: Row =
    Row { name: "figures", alone: true, run: |scene| figures::measured(scene).boxed() };

/// Two versions at once; an older one is there with `make skew` only.
const VERSIONS: [Row; 2] = [
    Row { name: "upgrade", alone: true, run: |scene| versions::upgraded(scene).boxed() },
    Row { name: "rollback", alone: true, run: |scene| versions::rolled_back(scene).boxed() },
];

/// The row that switches a node off and on.
const POWER_CUT: &str = "power-cut";
/// The rows that need a file server.
const SHARED_STORAGE: [&str; 3] = ["shared-storage", "shared-link-lost", "elected-driver-dead"];
/// The rows that are left out in CI, and how long each takes.
const LEFT_OUT: [(&str, &str); 9] = [
    ("leader-gone", "60 s"),
    ("rolling-upgrade", "40 s"),
    ("etcd-without-quorum", "110 s"),
    ("renewal", "3 min"),
    ("ca-rotated", "90 s"),
    ("exam-volumes", "2 min"),
    ("exam-links", "2 min"),
    ("exam-nodes", "2 min"),
    ("sidecars-elected", "2 min"),
];

/// The rows of these names; without one all but the figures and other versions. In CI those are
/// left out too that take long. That is said.
///
/// # Errors
/// There is no row of a name.
pub fn chosen(names: &[String], is_ci: bool) -> anyhow::Result<Vec<&'static Row>> {
    let all = || ROWS.iter().chain([&FIGURES]).chain(&VERSIONS);
    let known = |name: &String| all().any(|row| row.name == name);
    if let Some(other) = names.iter().find(|name| !known(name)) {
        let all: Vec<_> = all().map(|row| row.name).collect();
        bail!("there is no row {other}; there are {}", all.join(" "));
    }
    let asked = |row: &&Row| names.iter().any(|name| name == row.name);
    if !names.is_empty() {
        return Ok(all().filter(asked).collect());
    }
    if is_ci {
        for (name, time) in LEFT_OUT {
            println!("rows left out in CI: {name} takes {time}; make e2e ROWS={name}");
        }
    }
    let missing = Files::missing();
    if !missing.is_empty() {
        let rows = SHARED_STORAGE.join(" ");
        println!("tier skipped: {rows}: not installed here: {}", missing.join(" "));
        ensure!(!is_ci, "continuous integration needs {}", missing.join(" "));
    }
    let is_long = |row: &Row| LEFT_OUT.iter().any(|(name, _)| *name == row.name);
    let is_there = |row: &Row| missing.is_empty() || !SHARED_STORAGE.contains(&row.name);
    Ok(ROWS.iter().filter(|row| (!is_ci || !is_long(row)) && is_there(row)).collect())
}

/// Runs rows and reports each as soon as it has ended: first the compatible ones, several at once,
/// then the others.
pub async fn run(
    cluster: &Cluster,
    rows: Vec<&'static Row>,
    ended: impl Fn(&Outcome),
) -> Vec<Outcome> {
    let (alone, together): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.alone);
    let mut outcomes = Vec::new();
    let mut running =
        stream::iter(together).map(|row| outcome(cluster, row)).buffer_unordered(AT_ONCE);
    while let Some(outcome) = running.next().await {
        ended(&outcome);
        outcomes.push(outcome);
    }
    let begun = Instant::now();
    let agreed = async {
        truth::agreed(cluster).await?;
        traces::none(cluster).await
    };
    let error = agreed.await.err();
    let checked = Outcome { name: "all agree", took: begun.elapsed(), error };
    ended(&checked);
    outcomes.push(checked);
    for row in alone {
        let outcome = outcome(cluster, row).await;
        ended(&outcome);
        outcomes.push(outcome);
    }
    outcomes
}

async fn outcome(cluster: &Cluster, row: &'static Row) -> Outcome {
    let begun = Instant::now();
    let error = one(cluster, row).await.err();
    Outcome { name: row.name, took: begun.elapsed(), error }
}

/// Runs a row in a namespace of its own, which is deleted after it.
async fn one(cluster: &Cluster, row: &Row) -> anyhow::Result<()> {
    let scene = Scene::begin(cluster, row.name).await?;
    let limit = match row.name {
        POWER_CUT => LIMIT + LIMIT / 3 * power::number()?,
        name if is_long() || name == FIGURES.name => LONG,
        _ => LIMIT,
    };
    let done = tokio::time::timeout(limit, (row.run)(&scene)).await;
    let done = done.unwrap_or_else(|_| bail!("not within {limit:?}"));
    // A failed row may have left a program stopped, even the API server.
    let mended = if row.alone { cluster.mend().await.context("after the row") } else { Ok(()) };
    let told = match &done {
        Ok(()) => String::new(),
        // Before the namespace goes, and they with it.
        Err(_) => scene
            .told()
            .await
            .map_or_else(|error| format!("no events: {error:#}"), |told| last(&told)),
    };
    let cleared = scene.end().await.context("after the row");
    done.with_context(|| format!("Kubernetes tells of it:\n{told}\nwhat failed"))?;
    mended?;
    cleared?;
    if row.alone { truth::agreed(cluster).await } else { truth::gone(cluster, row.name).await }
}

/// The last lines of a text.
fn last(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines.get(lines.len().saturating_sub(EVENTS)..).unwrap_or_default().join("\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::scene::{claim, pod};
    use super::*;
    use crate::stand::objects::parse;

    #[test]
    fn rows_are_found_by_name_and_each_has_its_own() {
        let names: BTreeSet<_> = ROWS.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), ROWS.len());
        if Files::missing().is_empty() {
            assert_eq!(chosen(&[], false).unwrap().len(), ROWS.len());
            assert_eq!(chosen(&[], true).unwrap().len(), ROWS.len() - LEFT_OUT.len());
        } else {
            assert_eq!(chosen(&[], false).unwrap().len(), ROWS.len() - SHARED_STORAGE.len());
            assert!(chosen(&[], true).is_err());
        }
        assert_eq!(chosen(&["pod".into()], true).unwrap()[0].name, "pod");
        assert!(chosen(&["pods".into()], true).is_err());
    }

    #[test]
    fn what_users_write_is_yaml() {
        let objects =
            parse(&(claim("c", "late") + &pod("p", "c", "exec sleep 1", "true"))).unwrap();
        assert_eq!(objects[0]["spec"]["storageClassName"], "late");
        assert_eq!(objects[1]["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"], "c");
        assert_eq!(objects[1]["spec"]["containers"][0]["volumeMounts"][0]["mountPath"], "/data");
    }
}
