//! Reports of direct volumes that no runtime took as a device, and the pods that were told of them.
//!
//! In memory only, since a node reports again on its next link. It is bounded: one report for each
//! admitted node. A pod whose container is started again and again is told once.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::{Mutex, MutexGuard};
use proto::control::not_taken::{NotTaken, Pod};
use proto::names::NodeName;

/// The pods of a node that are remembered as told, besides those in its last report.
const MAX_NOTIFIED: usize = 256;
/// The pods of one node that are told at a time, so that no node keeps the others waiting.
const AT_ONCE: usize = 8;

/// The last report of each node that had such volumes.
#[derive(Default)]
pub struct NotTakenReports {
    by_node: Mutex<BTreeMap<NodeName, Reported>>,
}

#[derive(Default)]
struct Reported {
    report: NotTaken,
    /// For each pod, the volumes that an Event told it of.
    notified: BTreeMap<Pod, BTreeSet<String>>,
}

/// A pod that was not told of some of its volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnnotifiedPod {
    /// The node that reports it.
    pub node: NodeName,
    /// The pod, by that node's word alone.
    pub pod: Pod,
    /// Each volume with its driver, for people, and the reason if it is withheld.
    pub volumes: Vec<String>,
    /// True if these are withheld from all runtimes; false if their runtime did not take them.
    pub withheld: bool,
}

impl NotTakenReports {
    /// Keeps a node's report in place of its earlier one; true if it has more volumes than that.
    pub fn set(&self, node: &NodeName, report: NotTaken) -> bool {
        let report = report.bounded();
        let mut by_node = self.by_node();
        let mut reported = by_node.remove(node).unwrap_or_default();
        let more = report.total > reported.report.total;
        reported.report = report;
        if reported.notified.len() > MAX_NOTIFIED {
            let current = pods(&reported.report);
            reported.notified.retain(|pod, _| current.keys().any(|(there, _)| *there == pod));
        }
        if reported.report.total > 0 || !reported.notified.is_empty() {
            by_node.insert(node.clone(), reported);
        }
        more
    }

    /// The number of such volumes at a node.
    pub fn total(&self, node: &NodeName) -> u64 {
        self.by_node().get(node).map_or(0, |reported| reported.report.total)
    }

    /// The same for each node that has some.
    pub fn totals(&self) -> BTreeMap<NodeName, u64> {
        let by_node = self.by_node();
        let total =
            |(node, reported): (&NodeName, &Reported)| (node.clone(), reported.report.total);
        by_node.iter().map(total).filter(|(_, total)| *total > 0).collect()
    }

    /// The volumes of a pod that its runtime did not take, each with its driver, for people.
    pub fn of_pod(&self, node: &NodeName, namespace: &str, name: &str) -> Vec<String> {
        let by_node = self.by_node();
        let Some(reported) = by_node.get(node) else { return Vec::new() };
        let is_it = |pod: &Pod| pod.namespace == namespace && pod.name == name;
        let of_it = pods(&reported.report);
        let of_it = of_it.into_iter().filter(|((pod, withheld), _)| is_it(pod) && !withheld);
        of_it.flat_map(|(_, volumes)| volumes).collect()
    }

    /// Some pods of each node that were not told of all their volumes.
    pub fn unnotified(&self) -> Vec<UnnotifiedPod> {
        let by_node = self.by_node();
        by_node.iter().flat_map(|(node, reported)| reported.unnotified(node)).collect()
    }

    /// The pod was told of these volumes, or cannot be.
    pub fn set_notified(&self, unnotified: &UnnotifiedPod) {
        let mut by_node = self.by_node();
        if let Some(reported) = by_node.get_mut(&unnotified.node) {
            // Its node may have taken it back meanwhile.
            let key = (&unnotified.pod, unnotified.withheld);
            if pods(&reported.report).contains_key(&key) {
                let notified = reported.notified.entry(unnotified.pod.clone()).or_default();
                notified.extend(unnotified.volumes.iter().cloned());
            }
        }
    }

    fn by_node(&self) -> MutexGuard<'_, BTreeMap<NodeName, Reported>> {
        self.by_node.lock()
    }
}

impl Reported {
    fn unnotified(&self, node: &NodeName) -> Vec<UnnotifiedPod> {
        let unnotified =
            pods(&self.report).into_iter().filter_map(|((pod, withheld), mut volumes)| {
                let notified = self.notified.get(pod);
                volumes
                    .retain(|volume| !notified.is_some_and(|notified| notified.contains(volume)));
                let is_news = !volumes.is_empty();
                is_news.then(|| UnnotifiedPod {
                    node: node.clone(),
                    pod: pod.clone(),
                    volumes,
                    withheld,
                })
            });
        unnotified.take(AT_ONCE).collect()
    }
}

/// The pods of a report, each with the volumes that are withheld, and with the others.
fn pods(report: &NotTaken) -> BTreeMap<(&Pod, bool), Vec<String>> {
    let mut pods = BTreeMap::<_, Vec<_>>::new();
    for volume in &report.volumes {
        if let Some(pod) = &volume.pod {
            let why = volume.withheld.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            let text = format!("{} of {}{why}", volume.volume, volume.driver);
            pods.entry((pod, volume.withheld.is_some())).or_default().push(text);
        }
    }
    pods
}

#[cfg(test)]
mod tests {
    use proto::control::not_taken::{MAX_VOLUMES, NotTakenVolume};

    use super::*;

    fn node(name: &str) -> NodeName {
        name.parse().unwrap()
    }

    fn volume(id: &str, pod: Option<&str>) -> NotTakenVolume {
        let pod = pod.map(|name| Pod {
            namespace: "shop".into(),
            name: name.into(),
            uid: format!("uid-{name}"),
        });
        NotTakenVolume {
            driver: "d.example".parse().unwrap(),
            volume: id.into(),
            pod,
            withheld: None,
        }
    }

    fn report(volumes: &[(&str, Option<&str>)]) -> NotTaken {
        NotTaken::of(volumes.iter().map(|(id, pod)| volume(id, *pod)).collect())
    }

    #[test]
    fn a_report_replaces_the_earlier_one_and_an_empty_one_takes_it_back() {
        let reports = NotTakenReports::default();
        assert!(reports.set(&node("n1"), report(&[("v", None), ("w", None)])));
        assert!(!reports.set(&node("n1"), report(&[("v", None)])), "it has fewer now");
        assert!(reports.set(&node("n2"), NotTaken { total: 9, volumes: Vec::new() }));
        assert_eq!((reports.total(&node("n1")), reports.total(&node("n3"))), (1, 0));
        assert_eq!(reports.totals(), [(node("n1"), 1), (node("n2"), 9)].into());
        reports.set(&node("n1"), NotTaken::default());
        reports.set(&node("n2"), NotTaken::default());
        assert!(reports.totals().is_empty());
    }

    #[test]
    fn each_pod_is_told_once_of_each_volume() {
        let reports = NotTakenReports::default();
        let n1 = node("n1");
        let first = [("v", Some("a")), ("w", Some("a")), ("x", Some("b")), ("y", None)];
        reports.set(&n1, report(&first));
        reports.set(&node("n2"), report(&[("z", Some("c"))]));
        let names = || -> Vec<_> {
            reports
                .unnotified()
                .into_iter()
                .map(|unnotified| (unnotified.pod.name, unnotified.volumes))
                .collect()
        };
        let words = |volumes: &[&str]| -> Vec<_> {
            volumes.iter().map(|volume| format!("{volume} of d.example")).collect()
        };
        let all = [("a", &["v", "w"][..]), ("b", &["x"]), ("c", &["z"])];
        assert_eq!(names(), all.map(|(pod, volumes)| (pod.to_owned(), words(volumes))));
        reports.set_notified(&reports.unnotified()[0]);
        assert_eq!(names(), [("b".into(), words(&["x"])), ("c".into(), words(&["z"]))]);
        for unnotified in reports.unnotified() {
            reports.set_notified(&unnotified);
        }
        assert_eq!(names(), []);
        // The same again on a new link, and one more volume.
        reports.set(&n1, report(&first));
        assert_eq!(names(), []);
        reports.set(&n1, report(&[("v", Some("a")), ("u", Some("a"))]));
        assert_eq!(names(), [("a".into(), words(&["u"]))]);
        reports.set_notified(&reports.unnotified()[0]);
        // Its container has ended, and is started again.
        reports.set(&n1, NotTaken::default());
        assert!(!reports.totals().contains_key(&n1));
        reports.set(&n1, report(&[("v", Some("a"))]));
        assert_eq!(names(), []);
    }

    #[test]
    fn a_pod_is_told_why_its_volume_is_withheld() {
        let reports = NotTakenReports::default();
        let withheld = Some("process 7 has it".to_owned());
        let held = NotTakenVolume { withheld, ..volume("w", Some("a")) };
        let both = NotTaken::of(vec![volume("v", Some("a")), held]);
        reports.set(&node("n1"), both);
        let told: Vec<_> = reports.unnotified();
        let told: Vec<_> = told.iter().map(|it| (it.withheld, it.volumes.join(", "))).collect();
        let withheld = (true, "w of d.example: process 7 has it".to_owned());
        assert_eq!(told, [(false, "v of d.example".to_owned()), withheld]);
        assert_eq!(reports.of_pod(&node("n1"), "shop", "a"), ["v of d.example"]);
        for unnotified in reports.unnotified() {
            reports.set_notified(&unnotified);
        }
        assert_eq!(reports.unnotified(), []);
    }

    #[test]
    fn whatever_an_edge_reports_is_bounded() {
        let reports = NotTakenReports::default();
        let volumes = (0..MAX_VOLUMES * 2).map(|number| volume(&format!("v{number}"), Some("a")));
        reports.set(&node("n1"), NotTaken { total: 1, volumes: volumes.collect() });
        assert_eq!(reports.total(&node("n1")), 128);
        assert_eq!(reports.unnotified()[0].volumes.len(), MAX_VOLUMES);
        let pods: Vec<_> = (0..20).map(|number| format!("q{number:02}")).collect();
        let of: Vec<_> = pods.iter().map(|pod| ("v", Some(pod.as_str()))).collect();
        reports.set(&node("n2"), report(&of));
        let of_n2 =
            reports.unnotified().into_iter().filter(|unnotified| unnotified.node == node("n2"));
        assert_eq!(of_n2.count(), AT_ONCE);
        reports.set(&node("n2"), NotTaken::default());
        for number in 0..MAX_NOTIFIED * 2 {
            let pod = format!("p{number}");
            reports.set(&node("n1"), report(&[("v", Some(&pod))]));
            reports.set_notified(&reports.unnotified()[0]);
        }
        assert!(reports.by_node()[&node("n1")].notified.len() <= MAX_NOTIFIED + 1);
    }
}
