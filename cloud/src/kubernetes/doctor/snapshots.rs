//! The kinds of snapshots, which Kubernetes itself does not bring.

use std::collections::BTreeSet;

use proto::admin::doctor::Finding;
use proto::names::DriverName;

use crate::kubernetes::doctor::looked::Looked;

/// The group and version of snapshots.
pub(super) const GROUP: &str = "snapshot.storage.k8s.io/v1";
/// Its resources.
const KINDS: [&str; 3] = ["volumesnapshotclasses", "volumesnapshotcontents", "volumesnapshots"];

/// The finding about the installed kinds, given the drivers that can make snapshots.
pub(super) fn finding(can: &[DriverName], kinds: &Looked<BTreeSet<String>>) -> Finding {
    const CHECK: &str = "snapshot-kinds";
    const ADVICE: &str = "install the CRDs and the snapshot-controller of external-snapshotter; \
                          without them no snapshot is made";
    let names: Vec<_> = can.iter().map(ToString::to_string).collect();
    let need = format!("{} can make snapshots", names.join(", "));
    match kinds {
        _ if can.is_empty() => Finding::ok(CHECK, GROUP, "no driver makes snapshots"),
        Looked::Hidden(why) => {
            let advice = "see `kubectl api-resources --api-group snapshot.storage.k8s.io`";
            Finding::unknown(CHECK, GROUP, format!("they cannot be seen: {why}"), advice)
        }
        Looked::Missing => {
            let found = format!("there are none, and {need}");
            Finding::warning(CHECK, GROUP, found, ADVICE)
        }
        Looked::Found(kinds) => {
            let is_missing = |kind: &&str| !kinds.contains(*kind);
            let missing: Vec<_> = KINDS.into_iter().filter(is_missing).collect();
            if missing.is_empty() {
                return Finding::ok(CHECK, GROUP, "all are there");
            }
            let found = format!("{} are missing, and {need}", missing.join(", "));
            Finding::fault(CHECK, GROUP, found, ADVICE)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::admin::doctor::Verdict;

    #[test]
    fn kinds_are_needed_by_drivers_that_make_snapshots() {
        let driver: DriverName = "d.example".parse().unwrap();
        let of = |kinds: &[&str]| {
            Looked::Found(kinds.iter().map(|kind| (*kind).to_owned()).collect::<BTreeSet<_>>())
        };
        let can = [driver];
        assert_eq!(finding(&[], &Looked::Missing).verdict, Verdict::Ok);
        assert_eq!(finding(&can, &of(&KINDS)).verdict, Verdict::Ok);
        assert_eq!(finding(&can, &Looked::Missing).verdict, Verdict::Warning);
        let one = finding(&can, &of(&KINDS[..2]));
        assert_eq!(one.verdict, Verdict::Fault);
        assert!(one.found.starts_with("volumesnapshots are missing"), "{one:?}");
        assert_eq!(finding(&can, &Looked::Hidden("x".into())).verdict, Verdict::Unknown);
    }
}
