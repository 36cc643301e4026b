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

/// What is said of the kinds that there are, given the drivers that can make snapshots.
pub(super) fn finding(can: &[DriverName], kinds: &Lookup<BTreeSet<String>>) -> Finding {
    const CHECK: &str = "snapshot-kinds";
    const ADVICE: &str = "install the CRDs and the snapshot-controller of external-snapshotter; \
                          without them no snapshot is made";
    let names: Vec<_> = can.iter().map(ToString::to_string).collect();
    let need = format!("{} can make {what}", names.join(", "));
    match kinds {
        _ if can.is_empty() => Finding::ok(CHECK, GROUP, "no driver makes snapshots"),
        Lookup::Hidden(why) => {
            let advice = "see `kubectl api-resources --api-group snapshot.storage.k8s.io`";
            Finding::unknown(CHECK, GROUP, format!("they cannot be seen: {why}"), advice)
        }
        Lookup::Missing => {
            let found = format!("there are none, and {need}");
            Finding::warning(CHECK, GROUP, found, ADVICE)
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
        let driver: DriverName = "d.example".parse().unwrap();
        let of = |kinds: &[&str]| {
            Lookup::Found(kinds.iter().map(|kind| (*kind).to_owned()).collect::<BTreeSet<_>>())
        };
        let can = [driver];
        assert_eq!(finding(&[], &Lookup::Missing).verdict, Verdict::Ok);
        assert_eq!(finding(&can, &of(&KINDS)).verdict, Verdict::Ok);
        assert_eq!(finding(&can, &Lookup::Missing).verdict, Verdict::Warning);
        let one = finding(&can, &of(&KINDS[..2]));
        assert_eq!(one.verdict, Verdict::Fault);
        assert!(one.found.starts_with("volumesnapshots are missing"), "{one:?}");
        assert_eq!(finding(&can, &Lookup::Hidden("x".into())).verdict, Verdict::Unknown);
    }
}
