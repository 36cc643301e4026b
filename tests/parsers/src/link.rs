//! The control messages of a link.

use std::collections::BTreeMap;
use std::time::SystemTime;

use cloud::state::authority::Authority;
use cloud::state::ingest;
use cloud::state::policy::Policy;
use cloud::state::quotas::Quotas;
use cloud::state::report;
use cloud::state::store::memory::Memory;
use cloud::state::store::writer::Store;
use proto::control::hello::{Hello, Message};
use proto::control::join::{Answer, Join};
use proto::host::tasks::Tasks;
use proto::names::certificate::{Identity, Subject};
use proto::names::{FrontName, NodeName};
use rustls::pki_types::CertificateDer;

/// Room for what a store writes beside a node's own words.
const OVERHEAD: i64 = 64 * 1024;

/// Any control message: what was read is read again from its own text.
pub fn control(bytes: &[u8]) {
    let Ok(message) = Message::decode(bytes) else { return };
    // Escapes may make it longer than it may be.
    let Ok(text) = message.encode() else { return };
    let again = Message::decode(text.as_bytes());
    assert_eq!(again.ok(), Some(message), "{text}");
}

/// The two messages of joining: what was read is read again, and no error tells the token.
pub fn joining(bytes: &[u8]) {
    match Join::decode(bytes) {
        Ok(join) => {
            let again = join.encode().ok().map(|text| Join::decode(text.as_bytes()));
            assert!(again.is_none_or(|again| again.ok() == Some(join)), "another question");
        }
        Err(error) => {
            let text = format!("{error} {error:?}");
            assert!(text.len() < 256 && !text.contains(char::is_control), "{text}");
        }
    }
    let Ok(answer) = Answer::decode(bytes) else { return };
    let again = answer.encode().ok().map(|text| Answer::decode(text.as_bytes()));
    assert!(again.is_none_or(|again| again.ok() == Some(answer)), "another answer");
}

/// A peer's certificate: an identity has a name that is one, and its time does not run backwards.
pub fn certificate(bytes: &[u8]) {
    let Ok(identity) = Identity::of(&CertificateDer::from(bytes)) else { return };
    let shown = match &identity.name {
        Subject::Node(node) => node.as_str().parse::<NodeName>().is_ok(),
        Subject::Front(front) => front.as_str().parse::<FrontName>().is_ok(),
    };
    assert!(shown, "{}", identity.name);
    assert!(identity.serial.as_str().bytes().all(|byte| byte.is_ascii_hexdigit()));
    let validity = identity.validity;
    for now in [SystemTime::UNIX_EPOCH, validity.not_before, validity.not_after] {
        assert!(!validity.may_only_renew(now) || validity.ended(now));
        assert!(
            validity.ended(now)
                || validity.left(now) <= validity.life()
                || now < validity.not_before
        );
    }
}

/// A hello, and csi-cloud records it: what it keeps stays within the node's quotas.
pub fn hello(bytes: &[u8]) {
    if let Ok(Message::Hello(hello)) = Message::decode(bytes) {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.map(|runtime| runtime.block_on(record(hello))).unwrap_or_default();
    }
}

async fn record(hello: Hello) {
    let tasks = Tasks::default();
    let Ok(store) = Store::open(Box::new(Memory::default()), &tasks) else { return };
    let quotas = Quotas::default();
    let store = store.with_quotas(quotas);
    let served: BTreeMap<_, _> =
        hello.drivers.iter().map(|driver| (driver.name.clone(), Policy::new(None))).collect();
    let Ok(node): Result<NodeName, _> = "n1".parse() else { return };
    if let Ok(drivers) = report::check(&store, &node, hello.drivers) {
        let authority = Authority::new(served);
        let recorded = ingest::drivers(&store, &authority, &node, drivers);
        assert!(recorded.await.is_ok(), "a store in memory takes every record");
    }
    let most = i64::try_from(quotas.durable_bytes).unwrap_or(i64::MAX).saturating_add(OVERHEAD);
    let bytes = store.read(|state| state.usage(&node).bytes);
    assert!(bytes <= most, "{bytes} bytes are kept of one hello");
    tasks.stop();
}
