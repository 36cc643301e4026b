//! End to end: what users and operators do with a cluster, a row each, on one stand; and after each row, whether the
//! drivers, the persistent volumes and our store agree.

mod copies;
mod edges;
mod pods;
pub mod scene;
mod sets;
pub mod truth;

use std::time::Duration;

use anyhow::{Context, bail};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use tokio::time::Instant;

use self::scene::Scene;
use crate::cluster::Cluster;

/// One thing that must work.
pub struct Row {
    /// By which it is asked for, and how its namespace is named.
    pub name: &'static str,
    /// Nothing else may run beside it: it takes away what others need.
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
const LIMIT: Duration = Duration::from_secs(240);
/// How many rows run at once that do not disturb each other.
const AT_ONCE: usize = 4;

/// All rows.
pub const ROWS: &[Row] = &[
    Row { name: "pod", alone: false, run: |scene| pods::written_and_gone(scene).boxed() },
    Row { name: "pod-again", alone: false, run: |scene| pods::made_again(scene).boxed() },
    Row { name: "block", alone: false, run: |scene| pods::raw_block(scene).boxed() },
    Row { name: "immediate", alone: false, run: |scene| pods::bound_first(scene).boxed() },
    Row { name: "two-drivers", alone: false, run: |scene| pods::two_drivers(scene).boxed() },
    Row { name: "ephemeral", alone: false, run: |scene| pods::ephemeral(scene).boxed() },
    Row { name: "stateful-set", alone: false, run: |scene| sets::three_nodes(scene).boxed() },
    Row { name: "snapshot", alone: false, run: |scene| copies::snapshot_and_restore(scene).boxed() },
    Row { name: "clone", alone: false, run: |scene| copies::cloned(scene).boxed() },
    Row { name: "expand", alone: false, run: |scene| copies::expanded(scene).boxed() },
    Row { name: "many", alone: true, run: |scene| sets::many_at_once(scene).boxed() },
    Row { name: "edge-killed", alone: true, run: |scene| edges::killed(scene).boxed() },
    Row { name: "edge-cut", alone: true, run: |scene| edges::cut_off(scene).boxed() },
    Row { name: "cloud-killed", alone: true, run: |scene| edges::cloud_killed(scene).boxed() },
];

/// The rows of these names, or all without one.
///
/// # Errors
/// There is no row of a name.
pub fn chosen(names: &[String]) -> anyhow::Result<Vec<&'static Row>> {
    let known = |name: &String| ROWS.iter().any(|row| row.name == name);
    if let Some(other) = names.iter().find(|name| !known(name)) {
        let all: Vec<_> = ROWS.iter().map(|row| row.name).collect();
        bail!("there is no row {other}; there are {}", all.join(" "));
    }
    let asked = |row: &&Row| names.is_empty() || names.iter().any(|name| name == row.name);
    Ok(ROWS.iter().filter(asked).collect())
}

/// Runs rows and says of each how it ended, as soon as it has: those that disturb nobody some at once, then the others.
pub async fn run(cluster: &Cluster, rows: Vec<&'static Row>, ended: impl Fn(&Outcome)) -> Vec<Outcome> {
    let (alone, together): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.alone);
    let mut outcomes = Vec::new();
    let mut running = stream::iter(together).map(|row| outcome(cluster, row)).buffer_unordered(AT_ONCE);
    while let Some(outcome) = running.next().await {
        ended(&outcome);
        outcomes.push(outcome);
    }
    let begun = Instant::now();
    let error = truth::agreed(cluster).await.err();
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

/// A row in a namespace of its own, which is gone after it with all that was in it.
async fn one(cluster: &Cluster, row: &Row) -> anyhow::Result<()> {
    let scene = Scene::begin(cluster, row.name).await?;
    let done = tokio::time::timeout(LIMIT, (row.run)(&scene)).await;
    let done = done.unwrap_or_else(|_| bail!("not within {LIMIT:?}"));
    let told = match &done {
        Ok(()) => String::new(),
        // Before the namespace goes, and they with it.
        Err(_) => scene.told().await.unwrap_or_else(|error| format!("no events: {error:#}")),
    };
    let cleared = scene.end().await.context("after the row");
    done.with_context(|| format!("Kubernetes tells of it:\n{told}\nwhat failed"))?;
    cleared?;
    if row.alone { truth::agreed(cluster).await } else { truth::gone(cluster, row.name).await }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::scene::{claim, pod};
    use super::*;
    use crate::cluster::objects::parse;

    #[test]
    fn rows_are_found_by_name_and_each_has_its_own() {
        let names: BTreeSet<_> = ROWS.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), ROWS.len());
        assert_eq!(chosen(&[]).unwrap().len(), ROWS.len());
        assert_eq!(chosen(&["pod".into()]).unwrap()[0].name, "pod");
        assert!(chosen(&["pods".into()]).is_err());
    }

    #[test]
    fn what_users_write_is_yaml() {
        let objects = parse(&(claim("c", "late") + &pod("p", "c", "exec sleep 1", "true"))).unwrap();
        assert_eq!(objects[0]["spec"]["storageClassName"], "late");
        assert_eq!(objects[1]["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"], "c");
        assert_eq!(objects[1]["spec"]["containers"][0]["volumeMounts"][0]["mountPath"], "/data");
    }
}
