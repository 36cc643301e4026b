//! Logs the failures of calls: a driver's at INFO, our own at WARN, the same one once a minute.

use proto::csi::{Id, Method};
use proto::host::peer_log::{LogPeer, peer_info, peer_warn};
use proto::names::NodeName;

use crate::state::store::writer::Store;
use crate::telemetry::calls::Running;
use crate::telemetry::ended::{EndedCall, Outcome};

/// Logs a failure. It is our own if there is no answer of the driver.
pub(super) fn log(
    store: &Store,
    failed: &EndedCall,
    running: &Running,
    outcome: &Outcome,
    is_ours: bool,
) {
    let EndedCall { id, rpc, driver, node, subject, code, .. } = failed;
    let claim = running.progress().claim.or_else(|| claim(store, failed));
    let peer = match node {
        Some(node) => LogPeer::Node(node),
        None => LogPeer::Driver(driver),
    };
    let node = node.as_ref().map(NodeName::as_str);
    let subject = &**subject;
    let ms = failed.duration.as_millis();
    let error = &*outcome.message;
    if is_ours {
        peer_warn!(
            peer, call = %id, rpc, %driver, node, subject, claim, ?code, ms, error,
            "not carried out"
        );
    } else {
        peer_info!(
            peer, call = %id, rpc, %driver, node, subject, claim, ?code, ms, error, "refused there"
        );
    }
}

/// The claim in Kubernetes that the store knows for a call's subject.
fn claim(store: &Store, failed: &EndedCall) -> Option<String> {
    let text = failed.subject.to_string();
    let name = Id::Name(Method::of_name(failed.rpc)?, text.clone());
    let volume = Id::Volume(text);
    store.read(|state| {
        let driver = state.driver(&failed.driver)?;
        let of_volume = driver.home(&volume).and_then(|home| home.claim.as_deref());
        let of_name = || driver.intent(&name)?.claim.as_deref();
        let claim = of_volume.or_else(of_name)?;
        Some(format!("{}/{}", claim.namespace, claim.name))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proto::host::tasks::Tasks;
    use tonic::Code;

    use super::*;
    use crate::state::record::{Claim, Home};
    use crate::state::store::memory::Memory;
    use crate::telemetry::calls::Calls;

    #[tokio::test]
    async fn the_claim_of_a_volume_is_known_from_its_home() {
        let tasks = Tasks::default();
        let store = Store::open(Box::new(Memory::default()), &tasks).unwrap();
        let claim = Claim { namespace: "shop".into(), name: "data".into(), volume: "pv".into() };
        let driver: proto::names::DriverName = "d.example".parse().unwrap();
        let at = driver.clone();
        let written = store.write(move |txn| {
            let home = Home::at("n1".parse().unwrap(), 1);
            let home = Home { claim: Some(Box::new(claim)), ..home };
            txn.set_home(&at, &Id::Volume("v1".into()), Some(home));
        });
        written.await.unwrap();
        let failed = |subject: &str| {
            let calls = Arc::new(Calls::default());
            let ongoing = calls.clone().begin("DeleteVolume", &driver, 1.into());
            ongoing.running().is_about(&proto::csi::Key::Home(Id::Volume(subject.into())));
            let outcome = Outcome { code: Code::Internal, message: "no".into() };
            ongoing.ended(&outcome).unwrap()
        };
        assert_eq!(super::claim(&store, &failed("v1")).as_deref(), Some("shop/data"));
        assert_eq!(super::claim(&store, &failed("v2")), None);
    }
}
