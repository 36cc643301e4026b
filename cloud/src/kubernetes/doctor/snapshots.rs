//! The kinds of snapshots, which Kubernetes itself does not bring.

use std::collections::BTreeSet;

use proto::admin::doctor::Finding;
use proto::csi::Capabilities;
use proto::names::DriverName;

use crate::kubernetes::doctor::lookup::Lookup;

/// A group of resources, and what needs it.
#[derive(Debug)]
pub(super) struct Kinds {
    check: &'static str,
    /// Its name and version.
    pub(super) group: &'static str,
    resources: [&'static str; 3],
    /// The capability of a driver that needs it, and whose it is.
    pub(super) capability: (Capabilities, &'static str),
    what: &'static str,
    advice: &'static str,
}

/// Snapshots of one volume.
pub(super) const SNAPSHOTS: Kinds = Kinds {
    check: "snapshot-kinds",
    group: "snapshot.storage.k8s.io/v1",
    resources: ["volumesnapshotclasses", "volumesnapshotcontents", "volumesnapshots"],
    capability: (Capabilities::Controller, "CREATE_DELETE_SNAPSHOT"),
    what: "snapshots",
    advice: "install the CRDs and the snapshot-controller of external-snapshotter; without them no \
             snapshot is made",
};

/// Snapshots of several volumes at once.
pub(super) const GROUPS: Kinds = Kinds {
    check: "group-snapshot-kinds",
    group: "groupsnapshot.storage.k8s.io/v1",
    resources: [
        "volumegroupsnapshotclasses",
        "volumegroupsnapshotcontents",
        "volumegroupsnapshots",
    ],
    capability: (Capabilities::Group, "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"),
    what: "group snapshots",
    advice: "install the CRDs of external-snapshotter's group snapshots; without them a \
             csi-snapshotter with the gate CSIVolumeGroupSnapshot waits, and makes no snapshot \
             either. Or take the gate away",
};

/// What is said of the kinds that there are, given the drivers that can make such snapshots.
pub(super) fn finding(of: &Kinds, can: &[DriverName], kinds: &Lookup<BTreeSet<String>>) -> Finding {
    let Kinds { check, group, what, advice, .. } = *of;
    let names: Vec<_> = can.iter().map(ToString::to_string).collect();
    let need = format!("{} can make {what}", names.join(", "));
    match kinds {
        _ if can.is_empty() => Finding::ok(check, group, format!("no driver makes {what}")),
        Lookup::Hidden(why) => {
            let name = group.split('/').next().unwrap_or(group);
            let advice = format!("see `kubectl api-resources --api-group {name}`");
            Finding::unknown(check, group, format!("they cannot be seen: {why}"), advice)
        }
        Lookup::Missing => {
            Finding::warning(check, group, format!("there are none, and {need}"), advice)
        }
        Lookup::Found(kinds) => {
            let is_missing = |kind: &&str| !kinds.contains(*kind);
            let missing: Vec<_> = of.resources.into_iter().filter(is_missing).collect();
            if missing.is_empty() {
                return Finding::ok(check, group, "all are there");
            }
            let found = format!("{} are missing, and {need}", missing.join(", "));
            Finding::fault(check, group, found, advice)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::admin::doctor::Verdict;

    #[test]
    fn kinds_are_needed_by_drivers_that_make_snapshots() {
        for (of, last) in [(&SNAPSHOTS, "volumesnapshots"), (&GROUPS, "volumegroupsnapshots")] {
            let driver: DriverName = "d.example".parse().unwrap();
            let found = |kinds: &[&str]| {
                Lookup::Found(kinds.iter().map(|kind| (*kind).to_owned()).collect())
            };
            let can = [driver];
            let verdict = |can: &[DriverName], kinds| finding(of, can, &kinds).verdict;
            assert_eq!(verdict(&[], Lookup::Missing), Verdict::Ok);
            assert_eq!(verdict(&can, found(&of.resources)), Verdict::Ok);
            assert_eq!(verdict(&can, Lookup::Missing), Verdict::Warning);
            let one = finding(of, &can, &found(&of.resources[..2]));
            assert_eq!(one.verdict, Verdict::Fault);
            assert!(one.found.starts_with(&format!("{last} are missing")), "{one:?}");
            let hidden = finding(of, &can, &Lookup::Hidden("x".into()));
            assert_eq!(hidden.verdict, Verdict::Unknown);
            assert!(
                of.group
                    .starts_with(hidden.advice.split(' ').next_back().unwrap().trim_matches('`'))
            );
        }
    }
}
