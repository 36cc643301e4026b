//! The control messages of a link.

use std::collections::BTreeMap;

use cloud::state::authority::Authority;
use cloud::state::ingest;
use cloud::state::policy::Policy;
use cloud::state::quotas::Quotas;
use cloud::state::report;
use cloud::state::store::memory::Memory;
use cloud::state::store::writer::Store;
use proto::control::hello::{Hello, Message};
use proto::host::tasks::Tasks;
use proto::names::NodeName;

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
    if report::check(&store, &node, &hello.drivers).is_ok() {
        let authority = Authority::new(served);
        let recorded = ingest::drivers(&store, &authority, &node, hello.drivers);
        assert!(recorded.await.is_ok(), "a store in memory takes every record");
    }
    let most = i64::try_from(quotas.durable_bytes).unwrap_or(i64::MAX).saturating_add(OVERHEAD);
    let bytes = store.read(|state| state.usage(&node).bytes);
    assert!(bytes <= most, "{bytes} bytes are kept of one hello");
    tasks.stop();
}
