//! Tests of the whole store, and the generators of changes that its other tests share.

use std::collections::BTreeMap;

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proto::control::leader::LeaderEpoch;
use proto::csi::{Id, Method};
use proto::names::certificate::{Serial, Subject};
use proto::names::{DriverName, NodeName};

use crate::state::record::{
    Attached, Broken, Change, Claim, Earlier, Elected, EndedHome, Holder, Home, Intent, LeaseClaim,
    LeaseRecord, Node, NodeDriver, Profile,
};
use crate::state::store::codec;
use crate::state::store::table::Table;
use crate::state::trust::{
    Hash, Revocation, SecretKey, Secrets, Token, TokenId, TokenUse, TrustChange,
};
use std::sync::Arc;

use proto::host::tasks::Tasks;

use super::backend::{Backend, StoreError};
use super::file::File;
use super::memory::{Crash, Memory};
use super::writer::Store;
use crate::state::known::State;
use crate::state::txn::Txn;

mod contract;
pub(crate) mod etcd_server;
mod file;
mod old_codec;
mod records;
mod shared;
mod size;
pub(super) mod transfer;

pub(super) fn home(node: &str) -> Home {
    Home::at(node.parse().unwrap(), 7)
}

/// A change of a volume's home at one driver.
pub(super) fn volume(id: impl Into<String>, home: Option<Home>) -> Change {
    Change::Home("d.example".parse().unwrap(), Id::Volume(id.into()), home)
}

/// Secret keys whose bytes are all this one.
pub(super) fn secrets(byte: u8) -> Change {
    let key = SecretKey::of([byte; 32]);
    Change::Trust(TrustChange::Secrets(Secrets { resets: key.clone(), leases: key, begun: 0 }))
}

/// The records of a backend, by table and key.
pub(super) type Kept = BTreeMap<(Table, Vec<u8>), Change>;

/// The records of a backend.
pub(super) fn loaded(backend: &mut dyn Backend) -> Result<Kept, StoreError> {
    let mut kept = BTreeMap::new();
    backend.load(&mut |change| {
        let row = codec::encode(&change);
        assert!(kept.insert((row.table, row.key), change).is_none(), "a key came twice");
    })?;
    Ok(kept)
}

/// The records after these changes.
pub(super) fn expected(changes: &[Change]) -> Kept {
    let mut kept = BTreeMap::new();
    for change in changes {
        let row = codec::encode(change);
        match row.value {
            Some(_) => kept.insert((row.table, row.key), change.clone()),
            None => kept.remove(&(row.table, row.key)),
        };
    }
    kept
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-c]{0,2}", ".{0,8}", "(?s)[/# \0é\n]{0,5}", Just("x".repeat(4096))]
}

pub(super) fn id() -> impl Strategy<Value = Id> {
    let method = any::<prop::sample::Index>().prop_map(|at| *at.get(Method::ALL));
    prop_oneof![
        text().prop_map(Id::Volume),
        text().prop_map(Id::Snapshot),
        text().prop_map(Id::Group),
        (method, text()).prop_map(|(method, text)| Id::Name(method, text)),
    ]
}

fn boxed() -> impl Strategy<Value = Option<Box<str>>> {
    option::of(text().prop_map(Into::into))
}

fn bytes() -> impl Strategy<Value = bytes::Bytes> {
    vec(any::<u8>(), 0..20).prop_map(Into::into)
}

fn driver() -> impl Strategy<Value = DriverName> {
    prop_oneof!["[abc]", "a\\.b", "[aA]-?[0b]"].prop_map(|name| name.parse().unwrap())
}

fn node() -> impl Strategy<Value = NodeName> {
    "n[0-3]".prop_map(|name| name.parse().unwrap())
}

fn claim() -> impl Strategy<Value = Option<Box<Claim>>> {
    let claim = (text(), text(), text()).prop_map(|(namespace, name, volume)| {
        Box::new(Claim { namespace: namespace.into(), name: name.into(), volume: volume.into() })
    });
    option::of(claim)
}

fn any_home() -> impl Strategy<Value = Home> {
    let parameters = option::of(btree_map(text(), text(), 0..3).prop_map(Box::new));
    let source = option::of(id().prop_map(Box::new));
    let flags = (any::<u64>(), any::<bool>(), any::<bool>(), vec(node(), 0..3));
    (node(), boxed(), bytes(), claim(), parameters, source, flags).prop_map(
        |(node, name, entry, claim, parameters, source, (since, absent, lost, conflicts))| Home {
            node,
            name,
            entry,
            claim,
            parameters,
            source,
            since,
            absent,
            lost,
            conflicts,
            adopted: false,
        },
    )
}

fn any_intent() -> impl Strategy<Value = Intent> {
    let decision = option::of(any::<bool>());
    let attempts = option::of(any::<u32>());
    (node(), any::<u64>(), any::<u64>(), boxed(), claim(), attempts, decision).prop_map(
        |(node, since, until, made, claim, attempts, direct)| Intent {
            node,
            since,
            until,
            made,
            claim,
            attempts,
            direct,
            // They came later; see `old_codec`.
            narrowed: None,
            machine: None,
        },
    )
}

fn any_node_driver() -> impl Strategy<Value = NodeDriver> {
    let alike = btree_map("[A-Z]{1,5}", bytes(), 0..3).prop_map(Arc::new);
    let place = vec((text(), text()).prop_map(Arc::new), 0..3).prop_map(Into::into);
    (alike, option::of(bytes()), place, any::<u64>(), option::of(any::<u64>())).prop_map(
        |(answers, info, segments, listed, gone)| NodeDriver {
            answers,
            info,
            segments,
            listed,
            gone,
            former_ids: Box::default(),
        },
    )
}

fn any_profile() -> impl Strategy<Value = Profile> {
    let answers = btree_map("[A-Z]{1,5}", bytes(), 0..3).prop_map(Arc::new);
    (answers, any::<u64>(), vec(node(), 0..3)).prop_map(|(answers, since, from)| Profile {
        answers,
        since,
        from,
    })
}

fn any_lease() -> impl Strategy<Value = LeaseRecord> {
    let text = || boxed().prop_map(Option::unwrap_or_default);
    let owner = (node(), any::<u64>(), text(), any::<u64>(), any::<bool>()).prop_map(
        |(node, epoch, pod, since, unproven)| Holder { node, epoch, pod, since, unproven },
    );
    let claim = (node(), any::<u64>(), any::<u64>()).prop_map(|(node, epoch, since)| LeaseClaim {
        node,
        epoch,
        since,
    });
    let attached =
        (node(), text(), any::<u64>()).prop_map(|(node, id, since)| Attached { node, id, since });
    let broken = (node(), any::<u64>()).prop_map(|(node, epoch)| Broken { node, epoch });
    (option::of(owner), option::of(attached), vec(broken, 0..3), vec(claim, 0..3)).prop_map(
        |(holder, attached, broken, claims)| LeaseRecord { holder, attached, broken, claims },
    )
}

fn any_trust() -> impl Strategy<Value = Change> {
    let hash = || any::<[u8; 32]>().prop_map(Hash);
    let serial = || vec(any::<u8>(), 0..20).prop_map(|bytes| Serial::of(&bytes));
    let used =
        (hash(), any::<u64>(), serial()).prop_map(|(key, at, serial)| TokenUse { key, at, serial });
    let token = (node(), hash(), any::<u64>(), any::<u64>(), option::of(used)).prop_map(
        |(node, secret, created, expires, used)| Token { node, secret, created, expires, used },
    );
    let id = "[0-9a-f]{15}[01]".prop_map(|id| TokenId::try_from(id).unwrap());
    let subject = prop_oneof![
        node().prop_map(Subject::Node),
        "n[0-3]".prop_map(|front| Subject::Front(front.parse().unwrap())),
    ];
    let revocation = (any::<u64>(), vec(serial(), 0..3))
        .prop_map(|(since, allowed)| Revocation { since, allowed });
    prop_oneof![
        (id, option::of(token)).prop_map(|(id, token)| TrustChange::Token(id, token)),
        (subject, option::of(revocation)).prop_map(|(of, it)| TrustChange::Revocation(of, it)),
    ]
    .prop_map(Change::Trust)
}

/// Boxed: the whole strategy tree would overflow a test's stack.
pub(super) fn change() -> BoxedStrategy<Change> {
    let of_node = (any::<u64>(), option::of(any::<u64>()))
        // The machine came later; see `old_codec`.
        .prop_map(|(since, removed)| Node { since, removed, ..Node::default() });
    let home = (driver(), id(), option::of(any_home()))
        .prop_map(|(d, id, home)| Change::Home(d, id, home));
    let intent = (driver(), id(), option::of(any_intent()))
        .prop_map(|(d, id, it)| Change::Intent(d, id, it));
    let at = (driver(), node(), option::of(any_node_driver()))
        .prop_map(|(d, n, at)| Change::NodeDriver(d, n, at));
    let node_of = (node(), option::of(of_node)).prop_map(|(n, of)| Change::Node(n, of));
    // An export leaves out what is over.
    let earlier = (node(), any::<u32>());
    let earlier = earlier.prop_map(|(node, ms)| Earlier { node, until: u64::MAX - u64::from(ms) });
    let elected = (node(), vec(earlier, 0..3));
    let elected = elected.prop_map(|(node, before)| Elected { node, before });
    let elected = (driver(), option::of(elected)).prop_map(|(d, e)| Change::Elected(d, e));
    let profile = (driver(), option::of(any_profile())).prop_map(|(d, p)| Change::Profile(d, p));
    let owner = (driver(), id(), option::of(any_lease()))
        .prop_map(|(d, id, own)| Change::Lease(d, id, own));
    prop_oneof![
        4 => home.boxed(),
        4 => intent.boxed(),
        1 => at.boxed(),
        1 => node_of.boxed(),
        1 => elected.boxed(),
        1 => profile.boxed(),
        2 => owner.boxed(),
        1 => any::<u64>().prop_map(Change::Epoch).boxed(),
        1 => any::<u64>().prop_map(|epoch| Change::LeaderEpoch(LeaderEpoch(epoch))).boxed(),
        1 => any::<u8>().prop_map(secrets).boxed(),
        2 => any_trust().boxed(),
    ]
    .boxed()
}

/// A token and a revocation.
fn trust_changes() -> [Change; 2] {
    let token = Token {
        node: "n1".parse().unwrap(),
        secret: Hash([0; 32]),
        created: 1,
        expires: 2,
        used: None,
    };
    let id = TokenId::try_from("0123456789abcdef".to_owned()).unwrap();
    let token = Change::Trust(TrustChange::Token(id, Some(token)));
    let revocation = Revocation { since: 5, allowed: vec![Serial::of(&[0xab])] };
    let of = Subject::Front("f1".parse().unwrap());
    [token, Change::Trust(TrustChange::Revocation(of, Some(revocation)))]
}

/// Two ended homes, the first as of an older csi-cloud, and an adopted one.
fn home_changes() -> [Change; 3] {
    let driver: DriverName = "d".parse().unwrap();
    let ended = |confirmed| {
        let ended = EndedHome { node: "n1".parse().unwrap(), ended: 5, confirmed };
        Change::EndedHome(driver.clone(), Id::Snapshot("s".into()), Some(ended))
    };
    let adopted = Home { adopted: true, ..home("n1") };
    [ended(false), ended(true), Change::Home(driver, Id::Volume("v".into()), Some(adopted))]
}

/// The bytes of older stores must be read by every later csi-cloud.
#[test]
fn the_bytes_of_a_record_never_change() {
    let node = "n1".parse().unwrap();
    let holder = Holder { node, epoch: 5, pod: "p".into(), since: 1, unproven: false };
    let broken = vec![Broken { node: "n3".parse().unwrap(), epoch: 4 }];
    let claims = Vec::new();
    let lease = LeaseRecord { holder: Some(holder), attached: None, broken, claims };
    let at = NodeDriver {
        answers: Arc::new([("M".to_owned(), b"\x01".as_slice().into())].into()),
        info: None,
        segments: [Arc::new(("k".to_owned(), "v".to_owned()))].into(),
        listed: 3,
        gone: Some(9),
        former_ids: Box::default(),
    };
    let driver: DriverName = "d".parse().unwrap();
    let lease = Change::Lease(driver.clone(), Id::Volume("v".into()), Some(lease));
    let at = Change::NodeDriver(driver, "n1".parse().unwrap(), Some(at));
    let profile = Profile {
        answers: Arc::new([("M".to_owned(), b"\x01".as_slice().into())].into()),
        since: 5,
        from: vec!["n1".parse().unwrap()],
    };
    let profile = Change::Profile("d".parse().unwrap(), Some(profile));
    let [token, revocation] = trust_changes();
    let [ended, confirmed, adopted] = home_changes();
    for (change, table, key, value) in [
        (
            token,
            "tokens",
            b"0123456789abcdef".as_slice(),
            [b"\x0a\x02n1\x12\x20".as_slice(), &[0; 32], b"\x18\x01\x20\x02"].concat().as_slice(),
        ),
        (ended, "ended", b"d\0\x02s".as_slice(), b"\x0a\x02n1\x10\x05".as_slice()),
        (confirmed, "ended", b"d\0\x02s".as_slice(), b"\x0a\x02n1\x10\x05\x18\x01".as_slice()),
        (adopted, "homes", b"d\0\x01v", b"\x0a\x02n1\x38\x07\x58\x01"),
        (revocation, "revocations", b"front\0f1", b"\x08\x05\x12\x02ab"),
        (
            profile,
            "profiles",
            b"d".as_slice(),
            b"\x0a\x06\x0a\x01M\x12\x01\x01\x10\x05\x1a\x02n1".as_slice(),
        ),
        (
            lease,
            "owners",
            b"d\0\x01v".as_slice(),
            b"\x0a\x0b\x0a\x02n1\x10\x05\x1a\x01p\x20\x01\x1a\x06\x0a\x02n3\x10\x04".as_slice(),
        ),
        (
            at,
            "at",
            b"d\0n1",
            b"\x0a\x06\x0a\x01M\x12\x01\x01\x1a\x06\x0a\x01k\x12\x01v\x20\x03\x28\x09",
        ),
    ] {
        let row = codec::encode(&change);
        assert_eq!((row.table.name(), &*row.key), (table, key));
        assert_eq!(row.value.as_deref(), Some(value), "{table}");
        let decoded = codec::Decoder::default().decode(row.table, key, value).unwrap();
        assert_eq!(decoded, change, "{table}");
    }
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(change in change()) {
        let row = codec::encode(&change);
        let mut decoder = codec::Decoder::default();
        let decoded = match row.value {
            Some(value) => decoder.decode(row.table, &row.key, &value).map(Some),
            None => decoder.removal(row.table, &row.key),
        };
        prop_assert_eq!(decoded.unwrap(), Some(change));
    }

    #[test]
    fn keys_sort_as_ids_do(one in (driver(), id()), other in (driver(), id())) {
        let key = |(driver, id): &(DriverName, Id)| {
            codec::encode(&Change::Home(driver.clone(), id.clone(), None)).key
        };
        prop_assert_eq!(key(&one).cmp(&key(&other)), one.cmp(&other));
    }

    #[test]
    fn any_bytes_are_a_record_or_an_error_that_names_them(
        key in vec(any::<u8>(), 0..30),
        value in vec(any::<u8>(), 0..60),
        good in any::<bool>(),
        change in change(),
    ) {
        let row = codec::encode(&change);
        let key = if good { row.key } else { key };
        if let Err(error) = codec::Decoder::default().decode(row.table, &key, &value) {
            prop_assert!(error.to_string().contains(row.table.name()), "{}", error);
        }
    }
}
