//! Which rows run when `deploy/` is applied, and why each of the others does not. A row that is
//! left out is named, and never counts as passed.

use anyhow::bail;

use super::Row;
use crate::stand::layout::Tool;

/// What the stand with pods lacks.
const ONE_DRIVER: &str = "it needs a driver besides hostdir.edge-csi.io";
const ARGUMENTS: &str = "it changes arguments or the binary, which are the pod's there";
const STAND: &str = "it starts programs beside the stand's own csi-cloud";
const HANDED_OVER: &str = "it needs direct volumes, and so an image with mkfs";
const IDENTITIES: &str = "it gives nodes other identities, and those there are the pods' own";
const STARTED_AGAIN: &str = "a kubelet starts at once what it kills";
const FILES: &str = "it looks at files of a csi-edge that is a process";
const FIRST: &str = "it ends the first csi-cloud or its sidecars, and others may work";
const THREE: &str = "it needs three csi-clouds as pods (DEPLOYED=ha)";
const OLDER: &str = "it begins with an older version's manifests (make skew SIDES=deployed)";

/// The rows that do not run there.
const LEFT_OUT: &[(&str, &str)] = &[
    ("two-drivers", ONE_DRIVER),
    ("capacity", ONE_DRIVER),
    ("full-node", ONE_DRIVER),
    ("limits", ONE_DRIVER),
    ("static", ONE_DRIVER),
    ("shared-storage", ONE_DRIVER),
    ("shared-link-lost", ONE_DRIVER),
    ("elected-driver-dead", ONE_DRIVER),
    ("examples", "deploy/'s examples name drivers that are not there"),
    ("manifests", "it is the same API server without pods"),
    ("direct", HANDED_OVER),
    ("runtime-class", HANDED_OVER),
    ("direct-stray", HANDED_OVER),
    ("direct-stock", HANDED_OVER),
    ("direct-kubelet", HANDED_OVER),
    ("direct-twice", HANDED_OVER),
    ("direct-outlived", HANDED_OVER),
    ("direct-guarded", HANDED_OVER),
    ("edge-upgraded", ARGUMENTS),
    ("drained", FILES),
    ("edge-expansion", FILES),
    ("found-by-registration", ARGUMENTS),
    ("arriving", ARGUMENTS),
    ("offline-front", FILES),
    ("kubeedge", STAND),
    ("leader-killed", STAND),
    ("leader-gone", STAND),
    ("rolling-upgrade", STAND),
    ("etcd-without-quorum", STAND),
    ("sidecars-elected", STAND),
    ("first-node-away", ARGUMENTS),
    ("one-handle", STARTED_AGAIN),
    ("driver-dead", STARTED_AGAIN),
    ("exam", STARTED_AGAIN),
    ("exam-volumes", ARGUMENTS),
    ("exam-links", ARGUMENTS),
    ("exam-nodes", HANDED_OVER),
    ("create-forgotten", STARTED_AGAIN),
    ("api-away", "commands reach csi-cloud by the API server"),
    ("boot-1970", "the stand would have to start the pods' node as it was"),
    ("power-cut", "the stand would have to start the pods' node as it was"),
    ("join-token", IDENTITIES),
    ("join-account", IDENTITIES),
    ("renewal", IDENTITIES),
    ("ca-rotated", IDENTITIES),
    ("revoked", IDENTITIES),
    ("figures", STAND),
    ("vendors", STAND),
    ("upgrade", ARGUMENTS),
    ("rollback", ARGUMENTS),
];
/// The rows of one csi-cloud with one set of sidecars.
const OF_ONE: &[(&str, &str)] =
    &[("cloud-killed", FIRST), ("cloud-restarts", FIRST), ("provisioner-killed", FIRST)];
/// Nothing else.
const NOTHING: &[(&str, &str)] = &[];
/// The rows of csi-clouds that are pods.
const OF_PODS: &[(&str, &str)] = &[("ha-upgraded", THREE), ("deployed-upgraded", OLDER)];
/// The rows of several csi-clouds that are pods.
const OF_THREE: &[(&str, &str)] = &[("ha-upgraded", THREE)];

/// The rows that do not run on such a stand.
fn left_out(deployed: Option<Tool>) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    let (always, besides) = match deployed {
        None => (OF_PODS, NOTHING),
        Some(Tool::Manifests | Tool::Helm | Tool::Pages) => (OF_THREE, LEFT_OUT),
        Some(Tool::Ha) => (OF_ONE, LEFT_OUT),
    };
    always.iter().chain(besides)
}

/// The rows that run on such a stand. The others are said with their reason.
///
/// # Errors
/// One of the others was asked for by its name.
pub(super) fn fitting(
    rows: Vec<&'static Row>,
    deployed: Option<Tool>,
    by_name: bool,
) -> anyhow::Result<Vec<&'static Row>> {
    let why =
        |row: &Row| left_out(deployed).find(|(name, _)| *name == row.name).map(|(_, why)| *why);
    for row in &rows {
        match why(row) {
            Some(why) if by_name => bail!("{} does not run on this stand: {why}", row.name),
            Some(why) => println!("row left out on this stand: {}: {why}", row.name),
            None => {}
        }
    }
    Ok(rows.into_iter().filter(|row| why(row).is_none()).collect())
}

#[cfg(test)]
mod tests {
    use super::super::{FIGURES, ROWS, VENDORS, VERSIONS};
    use super::*;

    #[test]
    fn what_is_left_out_is_there_and_is_not_run_by_its_name() {
        let all = || ROWS.iter().chain([&FIGURES, &VENDORS]).chain(&VERSIONS);
        for (name, _) in LEFT_OUT.iter().chain(OF_ONE).chain(OF_PODS) {
            assert!(all().any(|row| row.name == *name), "{name}");
        }
        let rows = fitting(ROWS.iter().collect(), Some(Tool::Helm), false).unwrap();
        assert!(rows.iter().any(|row| row.name == "pod"));
        assert!(!rows.iter().any(|row| row.name == "figures" || row.name == "limits"));
        let limits: Vec<_> = ROWS.iter().filter(|row| row.name == "limits").collect();
        assert!(fitting(limits, Some(Tool::Helm), true).is_err());
    }

    #[test]
    fn three_csi_clouds_in_pods_have_a_row_of_their_own() {
        let names = |deployed| {
            let rows = fitting(ROWS.iter().collect(), deployed, false).unwrap();
            rows.into_iter().map(|row| row.name).collect::<Vec<_>>()
        };
        let of_one = names(Some(Tool::Manifests));
        assert!(of_one.contains(&"cloud-killed") && !of_one.contains(&"ha-upgraded"), "{of_one:?}");
        let of_three = names(Some(Tool::Ha));
        assert!(of_three.contains(&"ha-upgraded") && of_three.contains(&"pod"), "{of_three:?}");
        assert!(!of_three.contains(&"cloud-killed"), "{of_three:?}");
        let processes = names(None);
        assert!(!processes.contains(&"ha-upgraded"), "{processes:?}");
        assert_eq!(processes.len(), ROWS.len() - 1);
    }
}
