//! Tests of joining and renewing, over a store in memory and a CA in files.

use proto::control::base64::Base64;
use proto::control::join::Token as JoinToken;
use proto::host::tasks::Tasks;
use proto::link::tls::Files;
use proto::names::certificate::{RENEWABLE, Validity};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tempfile::TempDir;

use super::*;
use crate::pki::issuer::DAY;
use crate::pki::issuer::tests::intermediate;
use crate::pki::issuers::CaSettings;
use crate::state::ingest;
use crate::state::store::memory::Memory;
use crate::state::trust::{NewToken, Revocation};

const FROM: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

struct Stand {
    enrolment: Arc<Enrolment>,
    store: Store,
    kept: Memory,
    _dir: TempDir,
}

fn stand() -> Stand {
    stand_with(RENEWABLE)
}

/// One whose csi-cloud renews certificates for so long after their end.
fn stand_with(renew_after_end: Duration) -> Stand {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key, ca) = intermediate(&dir);
    let settings = CaSettings { cert, key, node_life: DAY * 30, cloud_days: 90, renew_after_end };
    let tls = Files { ca, cert: "x".into(), key: "y".into() };
    let issuers = Issuers::open(settings, &tls).unwrap();
    let kept = Memory::default();
    let store = Store::open(Box::new(kept.clone()), &Tasks::default()).unwrap();
    let enrolment = Arc::new(Enrolment::new(store.clone(), Some(issuers)));
    Stand { enrolment, store, kept, _dir: dir }
}

fn node() -> NodeName {
    "n1".parse().unwrap()
}

impl Stand {
    async fn token(&self, created: u64, expires: u64) -> String {
        let new = NewToken::generate().unwrap();
        let token = Token { node: node(), secret: new.secret, created, expires, used: None };
        let change = TrustChange::Token(new.id, Some(token));
        self.store.write(move |txn| txn.set_trust(change)).await.unwrap();
        new.text
    }

    async fn set_revoked(&self, since: u64) {
        let revocation = Some(Revocation::at(since));
        let change = TrustChange::Revocation(Subject::Node(node()), revocation);
        self.store.write(move |txn| txn.set_trust(change)).await.unwrap();
    }

    async fn set_removed(&self, removed: Option<u64>) {
        let record = Some(Node { since: 1, removed, ..Node::default() });
        self.store.write(move |txn| txn.set_node(&node(), record)).await.unwrap();
    }

    /// The identity in the certificate, or the reason of the refusal.
    async fn join(&self, token: &str, key: &KeyPair) -> Result<Identity<NodeName>, String> {
        let join = Join { token: JoinToken::new(token), csr: Base64(csr(key).into()) };
        match self.enrolment.join(FROM, &join).await {
            Answer::Certificate(certificate) => Ok(identity(&certificate)),
            Answer::Refused(refused) => Err(refused.reason),
        }
    }

    async fn renew(&self, peer: &Identity<NodeName>) -> Result<Identity<NodeName>, String> {
        self.renew_at(None, peer).await
    }

    async fn renew_at(
        &self,
        machine: Option<MachineId>,
        peer: &Identity<NodeName>,
    ) -> Result<Identity<NodeName>, String> {
        let csr = Base64(csr(&KeyPair::generate().unwrap()).into());
        let renewed = self.enrolment.renew(peer, &Renew { csr, machine }).await;
        renewed.map(|certificate| identity(&certificate)).map_err(|error| error.to_string())
    }

    fn is_revoked(&self, peer: &Identity<NodeName>) -> bool {
        let subject = Subject::Node(peer.name.clone());
        self.store.read(|state| state.trust().is_revoked(&subject, &peer.serial))
    }
}

fn csr(key: &KeyPair) -> Vec<u8> {
    CertificateParams::default().serialize_request(key).unwrap().der().to_vec()
}

fn identity(certificate: &Certificate) -> Identity<NodeName> {
    let leaf = CertificateDer::from_pem_slice(certificate.chain.as_bytes()).unwrap();
    Identity::of_node(&leaf).unwrap()
}

#[tokio::test]
async fn a_token_lets_its_node_join_with_one_key() {
    let stand = stand();
    let key = KeyPair::generate().unwrap();
    let token = stand.token(now(), now() + 60_000).await;
    let first = stand.join(&token, &key).await.unwrap();
    assert_eq!(first.name, node());
    let Validity { not_after, .. } = first.validity;
    let days = not_after.duration_since(SystemTime::now()).unwrap().as_secs() / 86_400;
    assert_eq!(days, 29, "30 days, less a moment");
    // The answer may have been lost: the same key gets another one.
    let again = stand.join(&token, &key).await.unwrap();
    assert_ne!(again.serial, first.serial);
    let used = stand.store.read(|state| state.trust().tokens().values().next().cloned());
    assert_eq!(used.unwrap().used.unwrap().serial, again.serial);
    let other = KeyPair::generate().unwrap();
    let refused = stand.join(&token, &other).await.unwrap_err();
    assert!(refused.contains("used by another key"), "{refused}");
    // Also after a restart.
    let store = Store::open(Box::new(stand.kept.clone()), &Tasks::default()).unwrap();
    let used: Vec<_> = store
        .read(|state| state.trust().tokens().values().map(|token| token.used.is_some()).collect());
    assert_eq!(used, [true]);
}

#[tokio::test]
async fn each_refusal_has_its_reason() {
    let stand = stand();
    let key = KeyPair::generate().unwrap();
    let good = stand.token(now(), now() + 60_000).await;
    let ended = stand.token(1, 2).await;
    let unknown = NewToken::generate().unwrap().text;
    for (token, said) in [
        (&good[..20], "cut off"),
        (&good.repeat(2), "pasted twice"),
        (&unknown, "not known here"),
        (&ended, "has ended"),
    ] {
        let refused = stand.join(token, &key).await.unwrap_err();
        assert!(refused.contains(said), "{refused}");
    }
    let join = Join { token: JoinToken::new(&good), csr: Base64(b"nonsense".as_slice().into()) };
    let Answer::Refused(refused) = stand.enrolment.join(FROM, &join).await else { panic!() };
    assert!(refused.reason.contains("cannot be read"), "{}", refused.reason);
    stand.set_removed(Some(5)).await;
    let refused = stand.join(&good, &key).await.unwrap_err();
    assert!(refused.contains("node admit n1"), "{refused}");
    stand.set_removed(None).await;
    // None of that used the token.
    stand.join(&good, &key).await.unwrap();
    let without = Arc::new(Enrolment::new(stand.store.clone(), None));
    let Answer::Refused(refused) = without.join(FROM, &join).await else { panic!() };
    assert!(refused.reason.contains("[ca]"), "{}", refused.reason);
}

#[tokio::test]
async fn an_address_that_guesses_is_slowed_but_not_its_good_tokens() {
    let stand = stand();
    let key = KeyPair::generate().unwrap();
    let good = stand.token(now(), now() + 60_000).await;
    let mut refused = String::new();
    for _ in 0..11 {
        let guess = NewToken::generate().unwrap().text;
        refused = stand.join(&guess, &key).await.unwrap_err();
    }
    assert!(refused.contains("too many tokens"), "{refused}");
    // Another one behind that address has a good one.
    stand.join(&good, &key).await.unwrap();
}

#[tokio::test]
async fn a_revoked_node_joins_with_a_later_token_only() {
    let stand = stand();
    let key = KeyPair::generate().unwrap();
    let before = stand.token(10, now() + 60_000).await;
    let old = stand.join(&before, &key).await.unwrap();
    let unused = stand.token(20, now() + 60_000).await;
    assert!(!stand.is_revoked(&old));
    stand.set_revoked(30).await;
    assert!(stand.is_revoked(&old));
    for token in [&before, &unused] {
        let refused = stand.join(token, &key).await.unwrap_err();
        assert!(refused.contains("revoked after this token"), "{refused}");
    }
    let refused = stand.renew(&old).await.unwrap_err();
    assert!(refused.contains("was revoked"), "{refused}");
    let later = stand.token(31, now() + 60_000).await;
    let new = stand.join(&later, &key).await.unwrap();
    assert!(stand.is_revoked(&old) && !stand.is_revoked(&new));
    // A renewal of what is allowed is allowed.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(61)).await;
    let renewed = stand.renew(&new).await.unwrap();
    assert!(!stand.is_revoked(&renewed) && !stand.is_revoked(&new));
    stand.set_revoked(40).await;
    assert!(stand.is_revoked(&renewed) && stand.is_revoked(&new));
}

#[tokio::test]
async fn a_node_renews_for_itself_and_not_too_often() {
    let stand = stand();
    let token = stand.token(now(), now() + 60_000).await;
    let old = stand.join(&token, &KeyPair::generate().unwrap()).await.unwrap();
    let renewed = stand.renew(&old).await.unwrap();
    assert_eq!(renewed.name, old.name);
    assert_ne!(renewed.serial, old.serial);
    let refused = stand.renew(&renewed).await.unwrap_err();
    assert!(refused.contains("within the last minute"), "{refused}");
    stand.set_removed(Some(5)).await;
    let mut other = old.clone();
    other.name = "n2".parse().unwrap();
    stand.renew(&other).await.unwrap();
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(61)).await;
    let refused = stand.renew(&old).await.unwrap_err();
    assert!(refused.contains("was removed"), "{refused}");
}

#[tokio::test]
async fn an_operator_shortens_the_time_for_which_an_ended_certificate_is_renewed() {
    for (window, renews) in [(DAY * 8, true), (DAY * 6, false), (Duration::ZERO, false)] {
        let stand = stand_with(window);
        let token = stand.token(now(), now() + 60_000).await;
        let mut joined = stand.join(&token, &KeyPair::generate().unwrap()).await.unwrap();
        joined.validity.not_after = SystemTime::now() - DAY * 7;
        match stand.renew(&joined).await {
            Ok(_) => assert!(renews, "{window:?}"),
            Err(why) => assert!(!renews && why.contains("renew_after_end"), "{window:?}: {why}"),
        }
        // One that is valid is renewed whatever it says.
        joined.validity.not_after = SystemTime::now() + DAY;
        assert!(renews || stand.renew(&joined).await.is_ok());
    }
}

#[tokio::test]
async fn an_operator_readmits_a_node_whose_certificate_ended_long_ago_for_a_week() {
    let stand = stand();
    let token = stand.token(now(), now() + 60_000).await;
    let mut joined = stand.join(&token, &KeyPair::generate().unwrap()).await.unwrap();
    joined.validity.not_after = SystemTime::now() - DAY * 200;
    let refused = stand.renew(&joined).await.unwrap_err();
    assert!(refused.contains("csi-cloud node readmit n1"), "{refused}");
    stand.enrolment.readmit(&"n2".parse().unwrap());
    stand.renew(&joined).await.unwrap_err();
    stand.enrolment.readmit(&node());
    let renewed = stand.renew(&joined).await.unwrap();
    // A lost answer costs nothing: it asks again, in a minute.
    let refused = stand.renew(&joined).await.unwrap_err();
    assert!(refused.contains("within the last minute"), "{refused}");
    // Once the newer one has linked, the old one renews nothing.
    ingest::identity(&stand.store, &node(), None, renewed.serial.issue_number()).await.unwrap();
    let refused = stand.renew(&joined).await.unwrap_err();
    assert!(refused.contains("is older than one"), "{refused}");
    tokio::time::pause();
    tokio::time::advance(DAY * 7).await;
    let refused = stand.renew(&joined).await.unwrap_err();
    assert!(refused.contains("node readmit"), "{refused}");
}

#[tokio::test]
async fn an_older_certificate_renews_at_the_nodes_own_machine_only() {
    let stand = stand();
    let mut joined = Vec::new();
    for _ in 0..2 {
        let token = stand.token(now(), now() + 60_000).await;
        joined.push(stand.join(&token, &KeyPair::generate().unwrap()).await.unwrap());
        let before = now();
        while now() == before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let [older, newer] = joined.try_into().unwrap();
    let [own, other] = ["board 1", "board 2"].map(|name| Some(MachineId::new(name)));
    let number = newer.serial.issue_number();
    assert!(number > older.serial.issue_number() && number <= Some(now()));
    ingest::identity(&stand.store, &node(), own, number).await.unwrap();
    // The highest number that has linked survives a restart, and a lower one does not replace it.
    ingest::identity(&stand.store, &node(), other, older.serial.issue_number()).await.unwrap();
    let store = Store::open(Box::new(stand.kept.clone()), &Tasks::default()).unwrap();
    let kept = store.read(|state| state.node(&node()).cloned()).unwrap();
    assert_eq!((kept.machine, kept.issue), (own, number));
    for machine in [None, other] {
        let refused = stand.renew_at(machine, &older).await.unwrap_err();
        assert!(refused.contains("csi-cloud token create n1"), "{refused}");
    }
    // None of that was the node's renewal of this minute.
    let renewed = stand.renew(&newer).await.unwrap();
    assert!(renewed.serial.issue_number() > number);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(61)).await;
    // Its disk was restored.
    let restored = stand.renew_at(own, &older).await.unwrap();
    assert!(restored.serial.issue_number() > number);
}

#[tokio::test]
async fn a_service_account_lets_its_node_join_unless_it_was_revoked() {
    let stand = stand();
    let key = KeyPair::generate().unwrap();
    let jwt = "eyJ.b.c";
    let refused = stand.join(jwt, &key).await.unwrap_err();
    assert!(refused.contains("join_service_account"), "{refused}");
    stand.enrolment.review_by(Arc::new(|token| {
        let known = token == "eyJ.b.c";
        Box::pin(async move { if known { Ok(node()) } else { Err(ReviewError::NotAuthenticated) } })
    }));
    let joined = stand.join(jwt, &key).await.unwrap();
    assert_eq!(joined.name, node());
    let refused = stand.join(jwt, &key).await.unwrap_err();
    assert!(refused.contains("within the last minute"), "{refused}");
    let refused = stand.join(jwt, &KeyPair::generate().unwrap()).await.unwrap_err();
    assert!(refused.contains("was used by another key"), "{refused}");
    let refused = stand.join("eyJ.y.z", &key).await.unwrap_err();
    assert!(refused.contains("does not authenticate"), "{refused}");
    stand.set_revoked(30).await;
    assert!(stand.is_revoked(&joined));
    let refused = stand.join(jwt, &key).await.unwrap_err();
    assert!(refused.contains("an operator does"), "{refused}");
    // Also after an operator has let it join again.
    let later = stand.token(31, now() + 60_000).await;
    stand.join(&later, &key).await.unwrap();
    let refused = stand.join(jwt, &key).await.unwrap_err();
    assert!(refused.contains("an operator does"), "{refused}");
}
