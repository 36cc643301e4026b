//! End-to-end tests: what users and operators do with a cluster, one row each, on one stand. After
//! each row the drivers, the persistent volumes and our store must agree.

mod accounts;
mod arriving;
mod clocks;
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
mod handles;
mod joins;
mod kubeedge;
mod kubeedge_page;
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
mod runtime_rs;
mod scarce;
pub mod scene;
mod sets;
mod shared;
mod shares;
mod snapshots;
mod standby;
mod stock;
mod tables;
mod terminating;
mod texts;
mod traces;
pub mod truth;
mod vendors;
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
    /// How long it takes, if that is too long for CI.
    long: Option<&'static str>,
    run: Run,
}

/// The work of a row.
type Run = for<'a> fn(&'a Scene<'a>) -> BoxFuture<'a, anyhow::Result<()>>;

impl Row {
    /// A row that disturbs no other.
    const fn together(name: &'static str, run: Run) -> Self {
        Self { name, alone: false, long: None, run }
    }

    /// A row that runs while no other does.
    const fn alone(name: &'static str, run: Run) -> Self {
        Self { name, alone: true, long: None, run }
    }

    /// The same, skipped in CI because it takes so long.
    const fn long(name: &'static str, time: &'static str, run: Run) -> Self {
        Self { name, alone: true, long: Some(time), run }
    }
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
    Row::together("pod", |scene| pods::written_and_gone(scene).boxed()),
    Row::together("pod-again", |scene| pods::made_again(scene).boxed()),
    Row::long("pods-together", "2 min", |scene| pods::end_together(scene).boxed()),
    Row::alone("drained", |scene| dead_drivers::drained(scene).boxed()),
    Row::together("block", |scene| pods::raw(scene).boxed()),
    Row::together("ephemeral", |scene| pods::ephemeral(scene).boxed()),
    Row::together("stateful-set", |scene| places::spread(scene).boxed()),
    Row::together("immediate", |scene| places::binding(scene).boxed()),
    Row::together("topologies", |scene| places::allowed(scene).boxed()),
    Row::together("snapshot", |scene| snapshots::restored(scene).boxed()),
    Row::together("clone", |scene| snapshots::cloned(scene).boxed()),
    Row::together("group-snapshot", |scene| snapshots::grouped(scene).boxed()),
    Row::together("expand-online", |scene| resize::online(scene).boxed()),
    Row::together("expand-offline", |scene| resize::offline(scene).boxed()),
    Row::together("attributes", |scene| resize::attributes(scene).boxed()),
    Row::together("two-drivers", |scene| scarce::two(scene).boxed()),
    Row::together("capacity", |scene| scarce::room(scene).boxed()),
    Row::together("full-node", |scene| scarce::full_node(scene).boxed()),
    Row::together("limits", |scene| scarce::limits(scene).boxed()),
    Row::together("static", |scene| shares::by_hand(scene).boxed()),
    Row::together("terminating", |scene| terminating::named(scene).boxed()),
    Row::together("examples", |scene| examples::as_they_stand(scene).boxed()),
    Row::together("direct", |scene| direct::handed_over(scene).boxed()),
    Row::together("runtime-class", |scene| runtime_class::decides(scene).boxed()),
    Row::together("direct-stray", |scene| direct::stray(scene).boxed()),
    Row::together("direct-stock", |scene| stock::shared_and_mended(scene).boxed()),
    // Alone, as the examples of another row have the names of those of deploy/.
    Row::alone("manifests", |scene| manifests::accepted(scene).boxed()),
    Row::alone("many", |scene| sets::many_at_once(scene).boxed()),
    Row::alone("direct-kubelet", |scene| direct::kubelet_away(scene).boxed()),
    Row::alone("direct-twice", |scene| runtime_rs::attached_twice(scene).boxed()),
    Row::alone("direct-outlived", |scene| runtime_rs::outlived(scene).boxed()),
    Row::alone("direct-guarded", |scene| runtime_rs::guarded(scene).boxed()),
    Row::alone("edge-killed", |scene| edges::killed(scene).boxed()),
    Row::alone("edge-upgraded", |scene| edges::upgraded(scene).boxed()),
    Row::alone("edge-expansion", |scene| expansion::by_edge(scene).boxed()),
    Row::alone("found-by-registration", |scene| found::by_registration(scene).boxed()),
    Row::alone("edge-cut", |scene| edges::cut_off(scene).boxed()),
    Row::alone("first-node-away", |scene| places::first_away(scene).boxed()),
    Row::alone("one-handle", |scene| handles::deleted_in_turn(scene).boxed()),
    Row::alone("driver-dead", |scene| dead_drivers::creates_go_elsewhere(scene).boxed()),
    Row::long("driver-updated", "2 min", |scene| dead_drivers::updated(scene).boxed()),
    Row::alone("shared-storage", |scene| shared::storage(scene).boxed()),
    Row::alone("shared-link-lost", |scene| shared::link_lost(scene).boxed()),
    Row::alone("elected-driver-dead", |scene| shared::driver_dead(scene).boxed()),
    Row::alone("cloud-killed", |scene| faults::cloud_killed(scene).boxed()),
    Row::alone("cloud-restarts", |scene| outages::ten_restarts(scene).boxed()),
    Row::alone("create-deleted", |scene| faults::deleted_while_unknown(scene).boxed()),
    Row::alone("provisioner-killed", |scene| faults::provisioner_killed(scene).boxed()),
    Row::alone("create-forgotten", |scene| faults::forgotten(scene).boxed()),
    Row::alone("edge-away", |scene| outages::edge_away(scene).boxed()),
    Row::alone("exam", |scene| exam::states(scene).boxed()),
    Row::long("exam-volumes", "2 min", |scene| exam::volumes::broken(scene).boxed()),
    Row::long("exam-links", "2 min", |scene| exam::links::broken(scene).boxed()),
    Row::long("exam-nodes", "2 min", |scene| exam::nodes::broken(scene).boxed()),
    Row::alone("edge-removed", |scene| outages::edge_removed(scene).boxed()),
    Row::alone("arriving", |scene| arriving::from_node_deployment(scene).boxed()),
    Row::alone("api-away", |scene| outages::api_away(scene).boxed()),
    Row::alone("offline-front", |scene| kubeedge::offline_front(scene).boxed()),
    Row::alone("leader-killed", |scene| replicas::leader_killed(scene).boxed()),
    Row::long("leader-gone", "60 s", |scene| replicas::leader_gone(scene).boxed()),
    Row::long("rolling-upgrade", "40 s", |scene| replicas::rolling_upgrade(scene).boxed()),
    Row::long("etcd-without-quorum", "110 s", |scene| replicas::without_quorum(scene).boxed()),
    Row::long("sidecars-elected", "2 min", |scene| standby::sidecars_elected(scene).boxed()),
    Row::alone("ha-upgraded", |scene| ha::upgraded(scene).boxed()),
    Row::alone(POWER_CUT, |scene| power::cuts(scene).boxed()),
    Row::alone("boot-1970", |scene| clocks::boots_in_1970(scene).boxed()),
    // Last, as the nodes keep the identities that they get here.
    Row::alone("join-token", |scene| joins::by_token(scene).boxed()),
    Row::alone("join-account", |scene| joins::by_account(scene).boxed()),
    Row::alone("kubeedge", |scene| kubeedge_page::followed(scene).boxed()),
    Row::long("renewal", "3 min", |scene| joins::renewed(scene).boxed()),
    Row::long("ca-rotated", "90 s", |scene| rotation::under_load(scene).boxed()),
    Row::alone("revoked", |scene| joins::revoked(scene).boxed()),
];

/// Takes minutes on an idle machine, so it runs only on request.
const FIGURES: Row = Row::alone("figures", |scene| figures::measured(scene).boxed());

/// A vendor's own driver, which `make vendors` builds.
const VENDORS: Row = Row::alone("vendors", |scene| vendors::placed(scene).boxed());

/// Two versions at once; an older one is there with `make skew` only.
const VERSIONS: [Row; 3] = [
    Row::alone("upgrade", |scene| versions::upgraded(scene).boxed()),
    Row::alone("rollback", |scene| versions::rolled_back(scene).boxed()),
    Row::alone("deployed-upgraded", |scene| versions::deployed_upgraded(scene).boxed()),
];

/// The row that switches a node off and on.
const POWER_CUT: &str = "power-cut";
/// The rows that need a file server.
const SHARED_STORAGE: [&str; 3] = ["shared-storage", "shared-link-lost", "elected-driver-dead"];
/// The rows of these names; without one all but the figures, vendors' drivers and other versions.
/// In CI, long rows are skipped by name.
///
/// # Errors
/// There is no row of a name.
pub fn chosen(names: &[String], is_ci: bool) -> anyhow::Result<Vec<&'static Row>> {
    let all = || ROWS.iter().chain([&FIGURES, &VENDORS]).chain(&VERSIONS);
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
        for Row { name, long, .. } in ROWS {
            if let Some(time) = long {
                println!("row skipped in CI: {name} takes {time}; make e2e ROWS={name}");
            }
        }
    }
    let missing = Files::missing();
    if !missing.is_empty() {
        let rows = SHARED_STORAGE.join(" ");
        println!("tier skipped: {rows}: not installed here: {}", missing.join(" "));
        ensure!(!is_ci, "continuous integration needs {}", missing.join(" "));
    }
    let is_there = |row: &Row| missing.is_empty() || !SHARED_STORAGE.contains(&row.name);
    Ok(ROWS.iter().filter(|row| (!is_ci || row.long.is_none()) && is_there(row)).collect())
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
        assert!([POWER_CUT].iter().chain(&SHARED_STORAGE).all(|name| names.contains(name)));
        if Files::missing().is_empty() {
            assert_eq!(chosen(&[], false).unwrap().len(), ROWS.len());
            let in_ci = chosen(&[], true).unwrap();
            let skipped = ROWS.iter().filter(|row| row.long.is_some());
            assert_eq!(in_ci.len(), ROWS.len() - skipped.count());
            assert!(in_ci.iter().all(|row| !["renewal", "exam-nodes"].contains(&row.name)));
        } else {
            assert_eq!(chosen(&[], false).unwrap().len(), ROWS.len() - SHARED_STORAGE.len());
            let refused = chosen(&[], true).err().unwrap().to_string();
            assert!(refused.contains("continuous integration needs"), "{refused}");
        }
        assert_eq!(chosen(&["pod".into()], true).unwrap()[0].name, "pod");
        let unknown = chosen(&["pods".into()], true).err().unwrap().to_string();
        assert!(unknown.contains("there is no row pods; there are "), "{unknown}");
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
