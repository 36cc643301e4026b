//! Issues certificates to nodes that join with a token, or renew with an older certificate.
//!
//! What is issued is recorded first: a token is used, and a serial is allowed, in one transaction.
//! If csi-cloud ends after that, the same key may ask again.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use proto::control::certificate::{Certificate, Renew};
use proto::control::join::{Answer, Join};
use proto::control::machine::MachineId;
use proto::host::peer_log::{LogPeer, peer_warn};
use proto::link::tls::{Admit, Denied};
use proto::names::certificate::{Identity, Serial, Subject};
use proto::names::{FrontName, NodeName};
use rcgen::{CertificateParams, KeyPair};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tracing::info;
use zeroize::Zeroizing;

use crate::pki::issue_number;
use crate::pki::issuer::{CaTag, DAY, IssueError, Issued, new_serial, numbered_serial};
use crate::pki::issuers::{Cas, Issuers};
use crate::pki::pace::{Failures, FirstKeys, Renewals};
use crate::pki::request::{ProvenKey, RequestError};
use crate::state::clock;
use crate::state::clock::now;
use crate::state::record::Node;
use crate::state::store::backend::StoreError;
use crate::state::store::writer::Store;
use crate::state::trust::{
    Hash, NoRandomness, ShownToken, Token, TokenRefusal, TokenUse, TrustChange, check_token,
};
use crate::state::txn::Txn;

/// How long a node that was readmitted may ask.
const READMITTED: Duration = DAY.saturating_mul(7);
/// Edges that are answered at a time.
const AT_ONCE: usize = 32;

/// Asks Kubernetes on which node the pod of a ServiceAccount's token runs.
pub type Review =
    Arc<dyn Fn(String) -> BoxFuture<'static, Result<NodeName, ReviewError>> + Send + Sync>;

/// The reason why the token of a ServiceAccount lets no node join.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReviewError {
    /// Kubernetes does not know it, or it is for another audience.
    #[error(
        "Kubernetes does not authenticate this ServiceAccount token for the audience edge-csi; it \
         has ended, or is another cluster's"
    )]
    NotAuthenticated,
    /// It is another ServiceAccount's.
    #[error("this token is not of the ServiceAccount {0}, which alone lets nodes join")]
    OtherAccount(String),
    /// It does not say on which node its pod is.
    #[error(
        "this ServiceAccount token is not bound to a pod on a node; project it into the pod of \
         csi-edge. Kubernetes says the node from 1.30 on"
    )]
    NotBound,
    /// Kubernetes does not answer.
    #[error("csi-cloud cannot ask Kubernetes about this token; its log says why")]
    Unavailable,
}

/// The certificate of a socket relay, and its key as PEM.
pub struct IssuedRelay {
    /// The certificate, and the CAs that it trusts.
    pub certificate: Certificate,
    /// The private key.
    pub key: Zeroizing<String>,
}

/// Issues certificates to nodes.
pub struct Enrolment {
    store: Store,
    review: OnceLock<Review>,
    issuers: Option<Issuers>,
    /// Askers that may be answered at a time.
    places: Semaphore,
    failures: Mutex<Failures>,
    renewals: Mutex<Renewals>,
    first_keys: Mutex<FirstKeys>,
    /// The nodes whose certificates are renewed however long ago they ended, each until this time.
    readmitted: Mutex<HashMap<NodeName, Instant>>,
}

/// The reason why no certificate is issued.
#[derive(Debug, thiserror::Error)]
pub enum EnrolmentError {
    /// There is no CA.
    #[error(
        "this csi-cloud issues no certificates: its configuration has no section [ca]; \
         `csi-cloud ca use` says what to put there"
    )]
    NoCa,
    /// The request gives no key.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The token lets nobody join.
    #[error(transparent)]
    Token(#[from] TokenRefusal),
    /// The token of a ServiceAccount lets nobody join.
    #[error(transparent)]
    Review(#[from] ReviewError),
    /// There is nobody to review tokens of ServiceAccounts.
    #[error(
        "this is a token of a ServiceAccount, and csi-cloud takes none: its configuration has no \
         join_service_account in [kubernetes]"
    )]
    NoReview,
    /// The ServiceAccount's token was used with another key.
    #[error(
        "this ServiceAccount token of {0} was used by another key, so somebody may have joined as \
         {0}; if that was not this node: `csi-cloud node revoke {0}`. the kubelet \
         makes a new token within ten minutes"
    )]
    OtherKey(NodeName),
    /// The node was revoked, and asks by its ServiceAccount.
    #[error(
        "{0} was revoked, so its ServiceAccount does not let it join; an operator does: `csi-cloud \
         token create {0}`"
    )]
    NeedsOperator(NodeName),
    /// The node was removed.
    #[error("{0} was removed; `csi-cloud node admit {0}` lets it in again, then make a new token")]
    Removed(NodeName),
    /// The node was revoked after its token was made.
    #[error(
        "{0} was revoked after this token was made; make a new one: `csi-cloud token create {0}`"
    )]
    RevokedSince(NodeName),
    /// The certificate that is to be renewed was revoked.
    #[error(
        "this certificate of {0} was revoked; a new token lets it join again: `csi-cloud token \
         create {0}`"
    )]
    Revoked(NodeName),
    /// The node has linked with a newer certificate since.
    #[error(
        "this certificate of {0} is older than one that {0} has used since, so it may be a copy, \
         and is not renewed; a new token lets the node join again: `csi-cloud token create {0}`"
    )]
    Older(NodeName),
    /// The certificate ended too long ago.
    #[error(
        "this certificate of {0} ended longer ago than csi-cloud's [ca] renew_after_end allows, so \
         it is not renewed; if this is {0}, `csi-cloud node readmit {0}` renews it all the same"
    )]
    EndedLongAgo(NodeName),
    /// Too many join at a time.
    #[error(
        "{AT_ONCE} edges join at this moment, which is the most; ask again with the same token"
    )]
    Busy,
    /// The address has failed too often.
    #[error("too many tokens from this address were refused; try again in a minute")]
    TooManyFailures,
    /// The node has renewed in the last minute.
    #[error("{0} has renewed its certificate within the last minute; try again later")]
    TooSoon(NodeName),
    /// The CA cannot issue.
    #[error("csi-cloud cannot issue a certificate; its log says why")]
    Issue(#[from] IssueError),
    /// There are no random numbers.
    #[error("csi-cloud cannot issue a certificate; its log says why")]
    Randomness(#[from] NoRandomness),
    /// The record could not be made.
    #[error("csi-cloud could not record the certificate; try again")]
    Store(#[from] StoreError),
    /// csi-cloud's clock has jumped.
    #[error(
        "csi-cloud's clock has jumped within the last ten minutes, so it issues no certificate; \
         ask again"
    )]
    ClockDoubted,
    /// The task that signs has ended.
    #[error("csi-cloud is stopping; try again")]
    Stopping,
}

impl EnrolmentError {
    /// True if a stranger may be trying tokens.
    fn is_suspect(&self) -> bool {
        matches!(
            self,
            Self::Token(_)
                | Self::Review(_)
                | Self::Request(_)
                | Self::RevokedSince(_)
                | Self::Removed(_)
        )
    }
}

/// Decides in each handshake whether a certificate of our CA counts.
pub fn admit(store: &Store) -> Admit {
    let store = store.clone();
    Admit::by(move |identity| {
        store.read(|state| {
            if state.trust().is_revoked(&identity.name, &identity.serial) {
                return Err(Denied::Revoked);
            }
            match &identity.name {
                Subject::Node(node) if state.is_removed(node) => Err(Denied::Removed),
                Subject::Node(_) | Subject::Front(_) => Ok(()),
            }
        })
    })
}

impl Enrolment {
    /// Issues by this CA, if there is one, and keeps its records in this store.
    pub fn new(store: Store, issuers: Option<Issuers>) -> Self {
        Self {
            store,
            review: OnceLock::new(),
            issuers,
            places: Semaphore::new(AT_ONCE),
            failures: Mutex::default(),
            renewals: Mutex::default(),
            first_keys: Mutex::default(),
            readmitted: Mutex::default(),
        }
    }

    /// Renews the certificate of a node for a week, however long ago it ended. A csi-cloud that is
    /// started again knows nothing of it.
    pub fn readmit(&self, node: &NodeName) {
        self.readmitted.lock().insert(node.clone(), Instant::now() + READMITTED);
    }

    fn is_readmitted(&self, node: &NodeName) -> bool {
        self.readmitted.lock().get(node).is_some_and(|until| Instant::now() < *until)
    }

    /// Lets nodes join with tokens of a ServiceAccount, which this reviews.
    pub fn review_by(&self, review: Review) {
        let _ = self.review.set(review);
    }

    /// The CA; none if nothing can be issued.
    pub fn issuers(&self) -> Option<&Issuers> {
        self.issuers.as_ref()
    }

    /// The tag of an edge that needs no renewal; none without a CA.
    pub fn tag(&self) -> Option<CaTag> {
        Some(self.issuers()?.known().issuer.tag())
    }

    /// Answers an edge at this address that wants to join.
    pub async fn join(self: &Arc<Self>, from: IpAddr, join: &Join) -> Answer {
        match self.joined(from, join).await {
            Ok(certificate) => Answer::Certificate(certificate),
            Err(error) => {
                if error.is_suspect() {
                    self.failures().add(from);
                }
                let error_chain = proto::host::chain(&error);
                peer_warn!(
                    LogPeer::Stranger, %from, error = error_chain,
                    "refused an edge that asked to join"
                );
                Answer::refused(error.to_string())
            }
        }
    }

    async fn joined(
        self: &Arc<Self>,
        from: IpAddr,
        join: &Join,
    ) -> Result<Certificate, EnrolmentError> {
        let is_slowed = self.failures().is_full(from);
        self.issuers().ok_or(EnrolmentError::NoCa)?;
        check_clock()?;
        let _place = self.places.try_acquire().map_err(|_| EnrolmentError::Busy)?;
        let key = ProvenKey::of(&join.csr.0)?;
        let token = join.token.reveal();
        let (node, bytes, serial) = if is_of_service_account(token) {
            if is_slowed {
                return Err(EnrolmentError::TooManyFailures);
            }
            let node = self.reviewed(token, key.hash()).await?;
            let (bytes, serial) = self.serial_of(Some(&node))?;
            (node, bytes, serial)
        } else {
            let shown = ShownToken::parse(token)?;
            let kept = self.store.read(|state| state.trust().tokens().get(&shown.id).cloned());
            // A good token is never slowed: others behind the same address may have failed. Nobody
            // can guess 256 bits.
            if is_slowed {
                check_token(kept.as_ref(), &shown, key.hash(), now())
                    .map_err(|_| EnrolmentError::TooManyFailures)?;
            }
            let (bytes, serial) = self.serial_of(kept.as_ref().map(|token| &token.node))?;
            let hash = key.hash();
            let recorded = serial.clone();
            let record = move |txn: &mut Txn<'_>| use_token(txn, &shown, hash, recorded);
            (self.store.write(record).await??, bytes, serial)
        };
        let certificate = self.issued(Subject::Node(node.clone()), key, bytes).await?;
        info!(%node, %serial, %from, "issued a certificate to a node that joined");
        Ok(certificate)
    }

    /// A serial for the certificate of a node that joins. A token that is not known has no node,
    /// and gets no certificate.
    fn serial_of(&self, node: Option<&NodeName>) -> Result<([u8; 16], Serial), NoRandomness> {
        let linked = self.store.read(|state| state.node(node?)?.issue);
        numbered_serial(issue_number::next(linked, None, now()))
    }

    /// The node of a ServiceAccount's token, if it may join so.
    async fn reviewed(&self, token: &str, key: Hash) -> Result<NodeName, EnrolmentError> {
        let review = self.review.get().ok_or(EnrolmentError::NoReview)?;
        let node = review(token.to_owned()).await?;
        if !self.first_keys.lock().take(Hash::of(token.as_bytes()), key) {
            return Err(EnrolmentError::OtherKey(node));
        }
        let at = node.clone();
        // A write sees what is being changed at this moment.
        self.store.write(move |txn| allow_reviewed(txn, &at)).await??;
        if !self.renewals.lock().take(&node) {
            return Err(EnrolmentError::TooSoon(node));
        }
        Ok(node)
    }

    /// Renews the certificate of a node. `peer` is its authenticated identity.
    ///
    /// # Errors
    /// The node was revoked or removed, renews too often or has a newer certificate, or nothing can
    /// be issued.
    pub async fn renew(
        self: &Arc<Self>,
        peer: &Identity<NodeName>,
        request: &Renew,
    ) -> Result<Certificate, EnrolmentError> {
        let issuers = self.issuers().ok_or(EnrolmentError::NoCa)?;
        check_clock()?;
        let node = &peer.name;
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(now());
        if peer.validity.since_end(time) > issuers.settings().renew_after_end
            && !self.is_readmitted(node)
        {
            return Err(EnrolmentError::EndedLongAgo(node.clone()));
        }
        let key = ProvenKey::of(&request.csr.0)?;
        let machine = request.machine;
        // A refusal is not the node's renewal of this minute: the copy of an older certificate may
        // ask without end.
        let linked = self.store.read(|state| check_issue(state.node(node), peer, machine))?;
        if !self.renewals.lock().take(node) {
            return Err(EnrolmentError::TooSoon(node.clone()));
        }
        let number = issue_number::next(linked, peer.serial.issue_number(), now());
        let (bytes, serial) = numbered_serial(number)?;
        let old = peer.clone();
        let recorded = serial.clone();
        let record = move |txn: &mut Txn<'_>| allow_renewal(txn, &old, machine, recorded);
        self.store.write(record).await??;
        let certificate = self.issued(Subject::Node(node.clone()), key, bytes).await?;
        info!(%node, %serial, before = %peer.serial, "renewed the certificate of a node");
        Ok(certificate)
    }

    /// Issues a certificate to a socket relay, with a new key. It counts also if older ones of this
    /// relay were revoked.
    ///
    /// # Errors
    /// Nothing can be issued.
    pub async fn issue_relay(
        self: &Arc<Self>,
        relay: FrontName,
    ) -> Result<IssuedRelay, EnrolmentError> {
        let pair = KeyPair::generate().map_err(IssueError::Make)?;
        let request = CertificateParams::default().serialize_request(&pair);
        let key = ProvenKey::of(request.map_err(IssueError::Make)?.der())?;
        let (bytes, serial) = new_serial()?;
        let subject = Subject::Front(relay);
        let allowed = subject.clone();
        self.store.write(move |txn| allow_relay(txn, allowed, serial)).await?;
        let certificate = self.issued(subject, key, bytes).await?;
        Ok(IssuedRelay { certificate, key: Zeroizing::new(pair.serialize_pem()) })
    }

    /// True if the certificate of this name and serial was revoked.
    pub fn is_revoked(&self, name: &Subject, serial: &Serial) -> bool {
        self.store.read(|state| state.trust().is_revoked(name, serial))
    }

    /// The CAs. Their files are read again if they changed, in a blocking thread.
    ///
    /// # Errors
    /// There is none, or csi-cloud is stopping.
    pub async fn cas(self: &Arc<Self>) -> Result<Cas, EnrolmentError> {
        let enrolment = self.clone();
        let reading = tokio::task::spawn_blocking(move || {
            enrolment.issuers().map(Issuers::read_again).ok_or(EnrolmentError::NoCa)
        });
        reading.await.map_err(|_| EnrolmentError::Stopping)?
    }

    /// Signs, in a blocking thread: the CA's files may have to be read again.
    async fn issued(
        self: &Arc<Self>,
        subject: Subject,
        key: ProvenKey,
        serial: [u8; 16],
    ) -> Result<Certificate, EnrolmentError> {
        let enrolment = self.clone();
        let signing = tokio::task::spawn_blocking(move || -> Result<Issued, EnrolmentError> {
            let issuers = enrolment.issuers().ok_or(EnrolmentError::NoCa)?;
            let life = match subject {
                Subject::Node(_) => issuers.settings().node_life,
                Subject::Front(_) => DAY * u32::from(issuers.settings().cloud_days),
            };
            Ok(issuers.current().issue(&subject, &key, &serial, life)?)
        });
        let issued = signing.await.map_err(|_| EnrolmentError::Stopping)??;
        Ok(Certificate { chain: issued.chain, ca: issued.ca })
    }

    fn failures(&self) -> parking_lot::MutexGuard<'_, Failures> {
        self.failures.lock()
    }
}

/// Checks that the clock is believed, before a token is used or a renewal recorded.
fn check_clock() -> Result<(), EnrolmentError> {
    if clock::is_doubted() { Err(EnrolmentError::ClockDoubted) } else { Ok(()) }
}

/// Uses a token for this key; the certificate with this serial may then be issued.
fn use_token(
    txn: &mut Txn<'_>,
    shown: &ShownToken,
    key: Hash,
    serial: Serial,
) -> Result<NodeName, EnrolmentError> {
    let now = now();
    let kept = txn.token(&shown.id).cloned();
    let node = check_token(kept.as_ref(), shown, key, now)?;
    if txn.node(&node).is_some_and(|node| node.removed.is_some()) {
        return Err(EnrolmentError::Removed(node));
    }
    let Some(token) = kept else { return Err(TokenRefusal::Unknown.into()) };
    let subject = Subject::Node(node.clone());
    if let Some(revocation) = txn.revocation(&subject).cloned() {
        if !revocation.allows_token(token.created) {
            return Err(EnrolmentError::RevokedSince(node));
        }
        let revocation = revocation.allowing(serial.clone());
        txn.set_trust(TrustChange::Revocation(subject, Some(revocation)));
    }
    let at = token.used.as_ref().map_or(now, |used| used.at);
    let used = Some(TokenUse { key, at, serial });
    txn.set_trust(TrustChange::Token(shown.id.clone(), Some(Token { used, ..token })));
    Ok(node)
}

/// True if a token is one of Kubernetes: a JWT, which has three parts and begins with `{"` in
/// base64. Two of our tokens that were pasted together have three parts too.
fn is_of_service_account(token: &str) -> bool {
    token.starts_with("eyJ") && token.split('.').count() == 3
}

/// Checks that a node may join by its ServiceAccount. Once revoked, it never does.
fn allow_reviewed(txn: &mut Txn<'_>, node: &NodeName) -> Result<(), EnrolmentError> {
    if txn.node(node).is_some_and(|node| node.removed.is_some()) {
        return Err(EnrolmentError::Removed(node.clone()));
    }
    match txn.revocation(&Subject::Node(node.clone())) {
        Some(_) => Err(EnrolmentError::NeedsOperator(node.clone())),
        None => Ok(()),
    }
}

/// Has the certificate of this serial count, also if older ones of the relay were revoked.
fn allow_relay(txn: &mut Txn<'_>, relay: Subject, serial: Serial) {
    if let Some(revocation) = txn.revocation(&relay).cloned() {
        let revocation = revocation.allowing(serial);
        txn.set_trust(TrustChange::Revocation(relay, Some(revocation)));
    }
}

/// Checks that the node has not linked with a newer certificate. Returns the highest issue number
/// that has linked.
fn check_issue(
    known: Option<&Node>,
    old: &Identity<NodeName>,
    machine: Option<MachineId>,
) -> Result<Option<u64>, EnrolmentError> {
    let linked = known.and_then(|node| node.issue);
    let is_nodes_own = machine.is_some() && machine == known.and_then(|node| node.machine);
    if issue_number::may_renew(linked, old.serial.issue_number(), is_nodes_own) {
        Ok(linked)
    } else {
        Err(EnrolmentError::Older(old.name.clone()))
    }
}

/// Checks that a node may renew; the certificate with this serial may then be issued.
fn allow_renewal(
    txn: &mut Txn<'_>,
    old: &Identity<NodeName>,
    machine: Option<MachineId>,
    serial: Serial,
) -> Result<(), EnrolmentError> {
    let node = &old.name;
    check_issue(txn.node(node), old, machine)?;
    if txn.node(node).is_some_and(|node| node.removed.is_some()) {
        return Err(EnrolmentError::Removed(node.clone()));
    }
    let subject = Subject::Node(node.clone());
    let Some(revocation) = txn.revocation(&subject).cloned() else { return Ok(()) };
    if revocation.refuses(&old.serial) {
        return Err(EnrolmentError::Revoked(node.clone()));
    }
    let revocation = revocation.allowing(serial);
    txn.set_trust(TrustChange::Revocation(subject, Some(revocation)));
    Ok(())
}

#[cfg(test)]
mod tests;
