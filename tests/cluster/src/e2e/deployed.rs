//! Which rows run when `deploy/` is applied, and why each of the others does not. A row that is
//! left out is named, and never counts as passed.

use anyhow::bail;

use super::Row;

/// What the stand with pods lacks.
const ONE_DRIVER: &str = "it needs a driver besides hostdir.edge-csi.io";
const ARGUMENTS: &str = "it changes arguments or the binary, which are the pod's there";
const STAND: &str = "it starts programs beside the stand's own csi-cloud";
const HANDED_OVER: &str = "it needs direct volumes, and so an image with mkfs";
const IDENTITIES: &str = "its nodes have certificates from files, without a CA in csi-cloud";
const STARTED_AGAIN: &str = "a kubelet starts at once what it kills";
const FILES: &str = "it looks at files of a csi-edge that is a process";

/// The rows that do not run there.
const LEFT_OUT: &[(&str, &str)] = &[
    ("two-drivers", ONE_DRIVER),
    ("capacity", ONE_DRIVER),
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
    ("edge-upgraded", ARGUMENTS),
    ("edge-expansion", FILES),
    ("found-by-registration", ARGUMENTS),
    ("arriving", ARGUMENTS),
    ("offline-front", FILES),
    ("doctor-kubeedge", STAND),
    ("leader-killed", STAND),
    ("leader-gone", STAND),
    ("rolling-upgrade", STAND),
    ("etcd-without-quorum", STAND),
    ("sidecars-elected", STAND),
    ("driver-dead", STARTED_AGAIN),
    ("exam", STARTED_AGAIN),
    ("exam-volumes", ARGUMENTS),
    ("exam-links", ARGUMENTS),
    ("exam-nodes", HANDED_OVER),
    ("create-forgotten", STARTED_AGAIN),
    ("api-away", "commands reach csi-cloud by the API server"),
    ("power-cut", "the stand would have to start the pods' node as it was"),
    ("join-token", IDENTITIES),
    ("join-account", IDENTITIES),
    ("renewal", IDENTITIES),
    ("ca-rotated", IDENTITIES),
    ("revoked", IDENTITIES),
    ("figures", STAND),
    ("upgrade", ARGUMENTS),
    ("rollback", ARGUMENTS),
];

/// The rows that run there. The others are said with their reason.
///
/// # Errors
/// One of the others was asked for by its name.
pub(super) fn fitting(rows: Vec<&'static Row>, by_name: bool) -> anyhow::Result<Vec<&'static Row>> {
    let why = |row: &Row| LEFT_OUT.iter().find(|(name, _)| *name == row.name).map(|(_, why)| *why);
    for row in &rows {
        match why(row) {
            Some(why) if by_name => bail!("{} does not run deployed: {why}", row.name),
            Some(why) => println!("row left out deployed: {}: {why}", row.name),
            None => {}
        }
    }
    Ok(rows.into_iter().filter(|row| why(row).is_none()).collect())
}

#[cfg(test)]
mod tests {
    use super::super::{FIGURES, ROWS, VERSIONS};
    use super::*;

    #[test]
    fn what_is_left_out_is_there_and_is_not_run_by_its_name() {
        let all = || ROWS.iter().chain([&FIGURES]).chain(&VERSIONS);
        for (name, _) in LEFT_OUT {
            assert!(all().any(|row| row.name == *name), "{name}");
        }
        let rows = fitting(ROWS.iter().collect(), false).unwrap();
        assert!(rows.iter().any(|row| row.name == "pod"));
        assert!(!rows.iter().any(|row| row.name == "figures" || row.name == "limits"));
        let limits: Vec<_> = ROWS.iter().filter(|row| row.name == "limits").collect();
        assert!(fitting(limits, true).is_err());
    }
}
