//! Checks what a node reports of its drivers against the quotas, before anything of it is kept.

use std::collections::BTreeSet;

use prost::Message;
use proto::control::health::{Health, HealthState};
use proto::control::hello::{Driver, Protobuf};
use proto::csi;
use proto::csi::{Local, Method};
use proto::host::peer_log::{LogPeer, peer_warn};
use proto::names::{DriverName, NodeName};

use crate::state::known::State;
use crate::state::quotas::{OverQuota, Quota, Quotas};
use crate::state::set_apart::ReasonKind;
use crate::state::store::writer::Store;

/// Checks a report. A node with too many drivers is set apart; a report within that ends it. What
/// one driver says too much costs that driver alone: of its answers nothing is kept, and it counts
/// as failing for that reason.
///
/// # Errors
/// The node is over a quota, so nothing of its report may be kept.
pub fn check(
    store: &Store,
    node: &NodeName,
    mut drivers: Vec<Driver>,
) -> Result<Vec<Driver>, OverQuota> {
    let quotas = *store.quotas();
    let known = store.read(|state| drivers_with(state, node, &drivers));
    let newcomer = store.read(|state| state.node(node).is_none().then(|| state.usage_of_all()));
    let checked = newcomer
        .map_or(Ok(()), |all| quotas.check_newcomer(all))
        .and_then(|()| quotas.check(Quota::Drivers, drivers.len().max(known), || "drivers".into()));
    match &checked {
        Ok(()) => store.clear_apart(node, None, ReasonKind::OverLimit),
        Err(over) => store.refuse_over_quota(node, None, over),
    }
    checked?;
    for driver in &mut drivers {
        if let Err(over) = check_driver(&quotas, driver) {
            store.refusals().count(over.quota);
            let name = &driver.name;
            peer_warn!(
                LogPeer::Node(node), %node, driver = %name, %over,
                "nothing is kept of what the driver says here"
            );
            driver.answers.clear();
            driver.health = Some(refused(&over));
        }
    }
    Ok(drivers)
}

/// The health of a driver that says too much.
fn refused(over: &OverQuota) -> Health {
    let why = format!("csi-cloud takes nothing of what it says of itself here: {over}");
    Health { state: HealthState::Failing, seconds: 0, why }
}

/// The number of the node's drivers: those with a record, and those of the report.
fn drivers_with(state: &State, node: &NodeName, drivers: &[Driver]) -> usize {
    let mut names: BTreeSet<&DriverName> = drivers.iter().map(|driver| &driver.name).collect();
    let known = state.drivers().iter().filter(|(_, of)| of.at(node).is_some());
    names.extend(known.map(|(driver, _)| driver));
    names.len()
}

/// Checks the strings and the segments of one driver. An answer that cannot be decoded counts as
/// empty, as it does where it is read.
fn check_driver(quotas: &Quotas, driver: &Driver) -> Result<(), OverQuota> {
    let name = &driver.name;
    let check_text = |text: &str, what: &str| {
        quotas.check(Quota::StringBytes, text.len(), || format!("bytes in {what} of {name}"))
    };
    for method in driver.answers.keys() {
        check_text(method, "the name of an RPC")?;
    }
    let answer = |local| driver.answers.get(Method::answering(local).name());
    let info: csi::GetPluginInfoResponse = decoded(answer(Local::Info));
    check_text(&info.name, "the plugin name")?;
    check_text(&info.vendor_version, "the vendor version")?;
    let node: csi::NodeGetInfoResponse = decoded(answer(Local::NodeInfo));
    let what = || format!("bytes in the node id of {name}");
    quotas.check(Quota::NodeIdBytes, node.node_id.len(), what)?;
    let segments = node.accessible_topology.unwrap_or_default().segments;
    quotas.check(Quota::Segments, segments.len(), || format!("topology segments of {name}"))?;
    for (key, value) in &segments {
        check_text(key, "the key of a topology segment")?;
        check_text(value, "the value of a topology segment")?;
    }
    Ok(())
}

fn decoded<M: Message + Default>(answer: Option<&Protobuf>) -> M {
    answer.and_then(|answer| M::decode(answer.0.clone()).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proto::csi::Segments;
    use proto::host::tasks::Tasks;

    use super::*;
    use crate::state::authority::Authority;
    use crate::state::ingest;
    use crate::state::set_apart::Reason;
    use crate::state::store::memory::Memory;

    fn store() -> Store {
        Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap()
    }

    fn node() -> NodeName {
        "n1".parse().unwrap()
    }

    fn named(numbers: std::ops::Range<usize>) -> Vec<Driver> {
        let name = |number: usize| format!("d{number}.example").parse().unwrap();
        numbers
            .map(|number| Driver { name: name(number), answers: BTreeMap::new(), health: None })
            .collect()
    }

    /// A driver that answers so to NodeGetInfo.
    fn at(node_id: &str, segments: impl IntoIterator<Item = (String, String)>) -> Vec<Driver> {
        let segments = segments.into_iter().collect();
        let info = csi::NodeGetInfoResponse {
            node_id: node_id.into(),
            accessible_topology: Some(csi::Topology { segments }),
            ..Default::default()
        };
        let method = Method::answering(Local::NodeInfo).name().to_owned();
        let answers = BTreeMap::from([(method, Protobuf(info.encode_to_vec().into()))]);
        vec![Driver { name: "d.example".parse().unwrap(), answers, health: None }]
    }

    fn segments(count: usize) -> Segments {
        (0..count).map(|number| (format!("key-{number}"), "value".to_owned())).collect()
    }

    #[tokio::test]
    async fn a_node_with_too_many_drivers_is_set_apart_until_it_reports_less() {
        let store = store();
        let driver = "d.example".parse().unwrap();
        let over = check(&store, &node(), named(0..65)).unwrap_err();
        assert_eq!(over.quota, Quota::Drivers);
        let reason = Reason::OverLimit { what: over.to_string() };
        assert_eq!(store.why_apart(&node(), &driver), Some(reason));
        check(&store, &node(), named(0..64)).unwrap();
        assert_eq!(store.why_apart(&node(), &driver), None);
    }

    #[tokio::test]
    async fn what_one_driver_says_too_much_costs_no_other_one() {
        let store = store();
        let long = "x".repeat(129);
        for (mut report, quota) in [
            (at("id", segments(33)), Quota::Segments),
            (at("id", [(long.clone(), "v".to_owned())]), Quota::StringBytes),
            (at("id", [("k".to_owned(), long)]), Quota::StringBytes),
            (at(&"x".repeat(257), segments(1)), Quota::NodeIdBytes),
        ] {
            report.extend(named(0..1));
            let kept = check(&store, &node(), report.clone()).unwrap();
            let [refused, other] = kept.as_slice() else { panic!("{kept:?}") };
            assert!(refused.answers.is_empty(), "{quota:?}");
            let health = refused.health.as_ref().unwrap();
            assert_eq!(health.state, HealthState::Failing);
            assert!(health.why.contains("d.example"), "{}", health.why);
            assert_eq!((other, store.why_apart(&node(), &refused.name)), (&report[1], None));
        }
        let refused: u64 = store.refusals().counts().iter().map(|(_, count)| count).sum();
        assert_eq!(refused, 4);
        let most = at(&"x".repeat(256), segments(32));
        assert_eq!(check(&store, &node(), most.clone()), Ok(most));
    }

    #[tokio::test]
    async fn drivers_that_a_node_no_longer_names_count_too() {
        let store = store();
        let first = named(0..40);
        check(&store, &node(), first.clone()).unwrap();
        ingest::drivers(&store, &Authority::default(), &node(), first).await.unwrap();
        assert!(check(&store, &node(), named(40..64)).is_ok());
        assert_eq!(check(&store, &node(), named(40..65)).unwrap_err().found, 65);
    }
}
