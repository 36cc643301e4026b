//! What other pods need to trust csi-cloud, if it has made its CA: the CA's hash and certificate in
//! a ConfigMap, and the certificate of the sidecars' relays in a Secret.
//!
//! Both objects are the chart's, which leaves them empty. csi-cloud fills these two and makes none,
//! so it needs no right to other Secrets.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::ByteString;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Patch, PatchParams};
use kube::{Api, Resource};
use proto::host::backoff::Backoff;
use proto::host::chain;
use proto::host::tasks::{TaskKind, Tasks};
use proto::names::FrontName;
use proto::names::certificate::{Identity, Subject};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tracing::{info, warn};

use crate::kubernetes::api::{ApiError, Server};
use crate::kubernetes::settings::{ApiAt, Kubernetes};
use crate::pki::enrolment::{Enrolment, EnrolmentError, IssuedRelay};
use crate::pki::issuers::Cas;
use crate::telemetry::calls::Calls;

/// The ConfigMap of the CA, which csi-edge's pods read.
const CONFIG_MAP: &str = "csi-cloud-ca";
/// The Secret of the sidecars' relays.
const SECRET: &str = "csi-sidecars-tls";
/// The name in the relays' certificate.
const RELAY: &str = "csi-sidecars";
/// The keys of both objects.
const HASH: &str = "hash";
const CA: &str = "ca.crt";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
/// The interval of looks at the objects.
const LOOK: Duration = Duration::from_secs(60);
/// The first wait after a failure. The longest one is [`LOOK`].
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// The part of its life after which a certificate is issued again.
const RENEW_AFTER: f64 = 0.5;

/// The reason why an object is not filled.
#[derive(Debug, thiserror::Error)]
enum TrustError {
    /// The API server does not answer, or refuses.
    #[error(
        "the {kind} {name} in the namespace {namespace} cannot be filled; the chart makes it, with \
         the Role edge-csi-cloud-trust"
    )]
    Api {
        kind: &'static str,
        name: &'static str,
        namespace: String,
        #[source]
        why: ApiError,
    },
    /// No certificate can be issued.
    #[error("no certificate can be issued to the sidecars' relays")]
    Issue(#[from] EnrolmentError),
    /// The name of the relay is not one.
    #[error("{RELAY} is not the name of a relay")]
    Name(#[from] proto::names::IdentityError),
}

/// Fills the objects, and keeps them current.
struct TrustKeeper {
    server: Server,
    enrolment: Arc<Enrolment>,
}

/// Keeps the objects current, in a pod.
///
/// # Errors
/// The pod's environment cannot be read or used.
pub async fn start(
    settings: &Kubernetes,
    enrolment: &Arc<Enrolment>,
    calls: &Arc<Calls>,
    tasks: &Tasks,
) -> anyhow::Result<()> {
    if settings.api != ApiAt::InCluster {
        return Ok(());
    }
    let server = Server::new(&settings.api, calls.clone()).await?;
    let enrolment = enrolment.clone();
    tasks.spawn_until_stop(TaskKind::All("trust"), TrustKeeper { server, enrolment }.keep());
    Ok(())
}

impl TrustKeeper {
    async fn keep(self) {
        let mut delays = Backoff::new(FIRST_DELAY, LOOK);
        let mut logged = String::new();
        loop {
            let pause = match self.round().await {
                Ok(()) => {
                    delays = Backoff::new(FIRST_DELAY, LOOK);
                    logged.clear();
                    LOOK
                }
                Err(error) => {
                    let error = chain(&error);
                    if error != logged {
                        warn!(error, "other pods may not trust csi-cloud yet; trying again");
                        logged = error;
                    }
                    delays.jittered(rand::random())
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    async fn round(&self) -> Result<(), TrustError> {
        let cas = self.enrolment.cas().await?;
        let map = self.get::<ConfigMap>(CONFIG_MAP).await?;
        let wanted = published(&cas);
        let has = map.data.unwrap_or_default();
        if wanted.iter().any(|(key, value)| has.get(*key) != Some(value)) {
            self.patch::<ConfigMap>(CONFIG_MAP, json!({ "data": wanted })).await?;
            info!(hash = wanted.get(HASH), "published the hash of csi-cloud's CA");
        }
        let secret = self.get::<Secret>(SECRET).await?;
        let has = secret.data.unwrap_or_default();
        let current = current(&has, &cas, SystemTime::now());
        if current.is_none_or(|relay| self.is_revoked(relay)) {
            let IssuedRelay { certificate, key } =
                self.enrolment.issue_relay(RELAY.parse()?).await?;
            let data = BTreeMap::from([
                (CA, ByteString(certificate.ca.into_bytes())),
                (CERTIFICATE, ByteString(certificate.chain.into_bytes())),
                (KEY, ByteString(key.as_bytes().to_vec())),
            ]);
            self.patch::<Secret>(SECRET, json!({ "data": data })).await?;
            info!(secret = SECRET, "issued a certificate to the sidecars' relays");
        }
        Ok(())
    }

    fn is_revoked(&self, relay: Identity<FrontName>) -> bool {
        self.enrolment.is_revoked(&Subject::Front(relay.name), &relay.serial)
    }

    async fn get<K>(&self, name: &'static str) -> Result<K, TrustError>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + DeserializeOwned + Debug + k8s_openapi::Resource,
    {
        self.server
            .ask("trust", self.api::<K>().get(name))
            .await
            .map_err(|why| self.failed::<K>(name, why))
    }

    async fn patch<K>(&self, name: &'static str, change: Value) -> Result<(), TrustError>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + DeserializeOwned + Debug + k8s_openapi::Resource,
    {
        let api = self.api::<K>();
        let (params, change) = (PatchParams::default(), Patch::Merge(change));
        let patched = self.server.ask("trust", api.patch(name, &params, &change)).await;
        patched.map(drop).map_err(|why| self.failed::<K>(name, why))
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::default_namespaced(self.server.client.clone())
    }

    fn failed<K: k8s_openapi::Resource>(&self, name: &'static str, why: ApiError) -> TrustError {
        let namespace = self.server.client.default_namespace().to_owned();
        TrustError::Api { kind: K::KIND, name, namespace, why }
    }
}

/// The data of the ConfigMap. An edge that joins trusts a certificate of the CA with this hash.
fn published(cas: &Cas) -> BTreeMap<&'static str, String> {
    BTreeMap::from([(HASH, cas.own.root_pin().to_string()), (CA, cas.issuer.roots_pem())])
}

/// The relay whose certificate a Secret has, if the CA that issues now has issued it, and it lives
/// for long enough.
fn current(
    has: &BTreeMap<String, ByteString>,
    cas: &Cas,
    now: SystemTime,
) -> Option<Identity<FrontName>> {
    let certificate = CertificateDer::from_pem_slice(bytes(has, CERTIFICATE)).ok()?;
    let relay = Identity::of_front(&certificate).ok()?;
    let due = relay.validity.not_before + relay.validity.life().mul_f64(RENEW_AFTER);
    let is_current = relay.name.as_str() == RELAY
        && bytes(has, CA) == cas.issuer.roots_pem().as_bytes()
        && !bytes(has, KEY).is_empty()
        && cas.issuer.has_issued(&certificate)
        && now < due;
    is_current.then_some(relay)
}

fn bytes<'a>(has: &'a BTreeMap<String, ByteString>, key: &str) -> &'a [u8] {
    has.get(key).map(|bytes| bytes.0.as_slice()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::settings::ApiAt;
    use crate::pki::ca;
    use crate::pki::issuers::{CaSettings, Issuers};
    use crate::state::store::memory::Memory;
    use crate::state::store::writer::Store;
    use crate::state::trust::{Revocation, TrustChange};
    use crate::state::txn::Txn;
    use http::{Method, Request, Response};
    use http_body_util::BodyExt;
    use kube::Client;
    use kube::client::Body;
    use parking_lot::Mutex;
    use proto::host::publish::{Existing, publish};
    use proto::link::tls::{Credentials, Files, Role};
    use std::convert::Infallible;
    use std::path::Path;
    use tempfile::TempDir;

    const DAY: Duration = Duration::from_secs(86_400);

    /// The two objects, as an API server has them.
    type Objects = Arc<Mutex<BTreeMap<String, Value>>>;

    fn client(objects: Objects) -> Client {
        let service = tower::service_fn(move |request: Request<Body>| {
            let objects = objects.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let mut objects = objects.lock();
                let Some(object) = objects.get_mut(head.uri.path()) else {
                    let status = json!({"kind": "Status", "status": "Failure", "code": 404,
                        "reason": "NotFound", "message": "there is none"});
                    let answer = Response::builder().status(404);
                    return Ok(answer.body(Body::from(status.to_string().into_bytes())).unwrap());
                };
                if head.method == Method::PATCH {
                    merge(object, &body);
                }
                let answer = Body::from(object.to_string().into_bytes());
                Ok::<_, Infallible>(Response::new(answer))
            }
        });
        Client::new(service, "edge-csi")
    }

    /// Merges the data of a change into an object.
    fn merge(object: &mut Value, change: &[u8]) {
        let change: Value = serde_json::from_slice(change).unwrap();
        for (key, value) in change["data"].as_object().unwrap() {
            object["data"][key] = value.clone();
        }
    }

    fn empty() -> Objects {
        let object = |kind: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {}});
        let at = |kind: &str, name: &str| format!("/api/v1/namespaces/edge-csi/{kind}/{name}");
        let objects = [
            (at("configmaps", CONFIG_MAP), object("ConfigMap")),
            (at("secrets", SECRET), object("Secret")),
        ];
        Arc::new(Mutex::new(objects.into()))
    }

    fn issuers(dir: &Path) -> Issuers {
        Issuers::open(CaSettings::in_dir(dir, 90), &Files::of(dir, "cloud")).unwrap()
    }

    struct Installed {
        dir: TempDir,
        objects: Objects,
        trust: TrustKeeper,
        store: Store,
        _tasks: Tasks,
    }

    impl Installed {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            ca::init(dir.path(), &["localhost".into()], 30).unwrap();
            let tasks = Tasks::default();
            let store = Store::open(Box::new(Memory::default()), &tasks).unwrap();
            let enrolment = Arc::new(Enrolment::new(store.clone(), Some(issuers(dir.path()))));
            let objects = empty();
            let server = Server::with(client(objects.clone()), Arc::default());
            let trust = TrustKeeper { server, enrolment };
            Self { dir, objects, trust, store, _tasks: tasks }
        }

        fn data(&self, name: &str) -> Value {
            let objects = self.objects.lock();
            let (_, object) = objects.iter().find(|(path, _)| path.ends_with(name)).unwrap();
            object["data"].clone()
        }

        fn secret(&self) -> BTreeMap<String, ByteString> {
            serde_json::from_value(self.data(SECRET)).unwrap()
        }
    }

    #[tokio::test]
    async fn pods_are_told_the_hash_and_relays_get_a_certificate() {
        let installed = Installed::new();
        installed.trust.round().await.unwrap();
        let cas = installed.trust.enrolment.cas().await.unwrap();
        assert_eq!(installed.data(CONFIG_MAP)[HASH], cas.own.root_pin().to_string());
        let secret = installed.secret();
        let dir = tempfile::tempdir().unwrap();
        let files = Files::of(dir.path(), "relay");
        let ca = Files { ca: dir.path().join("ca.crt"), ..files };
        for (path, key) in [(&ca.ca, CA), (&ca.cert, CERTIFICATE), (&ca.key, KEY)] {
            let content = &secret.get(key).unwrap().0;
            publish(path, content, 0o600, Existing::Keep).unwrap();
        }
        Credentials::load(&ca, Role::Front).unwrap();
        // What is current stays.
        installed.trust.round().await.unwrap();
        assert_eq!(installed.secret(), secret);
    }

    #[tokio::test]
    async fn a_certificate_that_is_due_or_of_another_ca_is_not_current() {
        let installed = Installed::new();
        installed.trust.round().await.unwrap();
        let cas = installed.trust.enrolment.cas().await.unwrap();
        let secret = installed.secret();
        let now = SystemTime::now();
        assert!(current(&secret, &cas, now + DAY * 44).is_some());
        assert!(current(&secret, &cas, now + DAY * 46).is_none());
        for key in [CA, CERTIFICATE, KEY] {
            let mut without = secret.clone();
            without.remove(key);
            assert!(current(&without, &cas, now).is_none(), "{key}");
        }
        let other = tempfile::tempdir().unwrap();
        ca::init(other.path(), &["localhost".into()], 30).unwrap();
        assert!(current(&secret, &issuers(other.path()).known(), now).is_none());
    }

    #[tokio::test]
    async fn a_revoked_relay_gets_another_certificate_that_counts() {
        let installed = Installed::new();
        installed.trust.round().await.unwrap();
        let stolen = installed.secret();
        let revoke = |txn: &mut Txn<'_>| {
            let subject = Subject::Front(RELAY.parse().unwrap());
            txn.set_trust(TrustChange::Revocation(subject, Some(Revocation::at(1))));
        };
        installed.store.write(revoke).await.unwrap();
        installed.trust.round().await.unwrap();
        let fresh = installed.secret();
        assert_ne!(fresh.get(KEY), stolen.get(KEY));
        installed.trust.round().await.unwrap();
        assert_eq!(installed.secret(), fresh, "it counts");
    }

    #[tokio::test]
    async fn a_missing_object_is_named_with_where_it_comes_from() {
        let installed = Installed::new();
        installed.objects.lock().clear();
        let error = installed.trust.round().await.unwrap_err().to_string();
        assert!(error.contains("the ConfigMap csi-cloud-ca in the namespace edge-csi"), "{error}");
        assert!(error.contains("the chart makes it"), "{error}");
        drop(installed.dir);
    }

    #[tokio::test]
    async fn outside_a_pod_nothing_is_published() {
        let installed = Installed::new();
        let mut settings = Kubernetes {
            api: ApiAt::Kubeconfig("/none".into()),
            publish: crate::kubernetes::settings::Publish::Off,
            grace: DAY,
            join_service_account: None,
            metadata: None,
        };
        let (tasks, calls) = (Tasks::default(), Arc::default());
        let enrolment = &installed.trust.enrolment;
        start(&settings, enrolment, &calls, &tasks).await.unwrap();
        settings.api = ApiAt::InCluster;
        assert!(start(&settings, enrolment, &calls, &tasks).await.is_err(), "this is not a pod");
    }
}
