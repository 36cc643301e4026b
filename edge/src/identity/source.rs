//! Gets this node's identity while the node is served already: from its files, from the copies of
//! the pair before, or by joining. Meanwhile the node has the name that its certificate states, or
//! its state directory.
//!
//! Each round looks at the clock and at the files again. A clock that is set, a file that is put
//! back and a token that appears are used within seconds.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use edge_calls::introductions::KeptFor;
use parking_lot::Mutex;
use proto::host::backoff::Backoff;
use proto::host::chain;
use proto::link::NodeNetwork;
use proto::link::tls::{Credentials, Files, Role};
use proto::names::certificate::Validity;
use proto::names::{NodeName, node_of};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{info, warn};

use super::directory::{Directory, IdentityState, NodeIdentity};
use super::join::Automatic;

/// The delays between two looks at the files, before their jitter.
const FIRST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(10);

/// Where this node's certificate comes from.
pub struct IdentitySource {
    files: Files,
    join: Option<Automatic>,
    network: NodeNetwork,
    waits: Mutex<String>,
    /// The node's name by its state directory, for as long as no certificate can be read.
    kept_name: Option<NodeName>,
    /// What was obtained.
    credentials: OnceLock<Credentials>,
}

/// An identity that can be used.
pub struct Obtained {
    /// The credentials.
    pub credentials: Credentials,
    /// The identity behind them, if csi-edge renews it.
    pub identity: Option<NodeIdentity>,
}

impl IdentitySource {
    /// The source with these files; `join` says how to get them if there are none.
    pub fn new(files: Files, join: Option<Automatic>, network: NodeNetwork) -> Self {
        let (waits, credentials) = (Mutex::default(), OnceLock::new());
        Self { files, join, network, waits, kept_name: None, credentials }
    }

    /// Names the node by what was kept in its state directory, if neither certificate can be read.
    /// `machine` is the id of this machine: what was kept on another one names nothing, since that
    /// is a copy of its disk.
    #[must_use]
    pub fn or_kept_for(
        self,
        kept: impl FnOnce() -> Option<KeptFor>,
        machine: Option<&str>,
    ) -> Self {
        if self.node().is_some() {
            return self;
        }
        let kept = kept().filter(|of| of.machine.is_some() && of.machine.as_deref() == machine);
        Self { kept_name: kept.map(|of| of.node), ..self }
    }

    /// The node that the certificate names, whatever its dates and whether or not its key and CA
    /// can be read; else the node of the copy, or of the state directory. `None` if there is none.
    pub fn node(&self) -> Option<NodeName> {
        let certificates = self.certificates();
        let named = certificates.iter().find_map(|certificate| node_of(certificate).ok());
        named.or_else(|| self.kept_name.clone())
    }

    /// True as long as the state directory alone says which node this is.
    pub fn is_name_uncertain(&self) -> bool {
        self.kept_name.is_some() && self.credentials.get().is_none()
    }

    /// The begin of the certificate; 1970 without one.
    pub fn begun(&self) -> SystemTime {
        let certificates = self.certificates();
        let mut validities = certificates.iter().filter_map(|of| Validity::of(of).ok());
        validities.next().map_or(SystemTime::UNIX_EPOCH, |validity| validity.not_before)
    }

    /// The certificates that can be read: the current one first, then the copy.
    fn certificates(&self) -> Vec<CertificateDer<'static>> {
        let mut paths = vec![self.files.cert.clone()];
        paths.extend(self.directory().map(|directory| directory.copies().cert));
        paths.iter().filter_map(|path| CertificateDer::from_pem_file(path).ok()).collect()
    }

    /// The directory of an identity; `None` if the files were made by hand.
    fn directory(&self) -> Option<Directory> {
        let directory = Directory::new(self.files.cert.parent()?);
        (directory.files() == self.files).then_some(directory)
    }

    /// Why the identity cannot be used yet; empty if it is in use.
    pub fn waits_for(&self) -> String {
        self.waits.lock().clone()
    }

    /// The validity of the certificate in use; `None` if none is used yet.
    pub fn validity(&self) -> Option<Validity> {
        self.credentials.get().and_then(Credentials::validity)
    }

    /// True if it joins without an identity.
    pub fn joins(&self) -> bool {
        self.join.is_some()
    }

    /// Reads the identity once.
    ///
    /// # Errors
    /// There is none that can be used now.
    pub fn load(&self) -> anyhow::Result<Obtained> {
        let Some(directory) = self.directory() else {
            let credentials = Credentials::load(&self.files, Role::Node)?;
            return Ok(Obtained { credentials, identity: None });
        };
        let credentials = directory
            .load()
            .context("csi-edge has no identity; `csi-edge join --help` says how to get one")?;
        let identity = NodeIdentity::new(directory, credentials.clone());
        Ok(Obtained { credentials, identity: Some(identity) })
    }

    /// Ends when there is an identity that can be used. Each new reason to wait is logged once.
    pub async fn obtain(&self) -> Obtained {
        let mut joining = JoinAttempts::default();
        let mut delays = Backoff::new(FIRST_DELAY, LONGEST_DELAY);
        loop {
            let error = match self.attempt(&mut joining).await {
                Ok(obtained) => {
                    self.waits.lock().clear();
                    let _ = self.credentials.set(obtained.credentials.clone());
                    return obtained;
                }
                Err(error) => chain(error.as_ref()),
            };
            let is_new = {
                let mut waits = self.waits.lock();
                let is_new = *waits != error;
                waits.clone_from(&error);
                is_new
            };
            if is_new {
                warn!(
                    error,
                    "the identity cannot be used, so the node is not linked; it is served from \
                     what is kept, and the identity is tried again"
                );
            }
            sleep(delays.jittered(rand::random())).await;
        }
    }

    async fn attempt(&self, joining: &mut JoinAttempts) -> anyhow::Result<Obtained> {
        let loaded = self.load();
        let (Some(join), Some(directory)) = (&self.join, self.directory()) else { return loaded };
        match directory.state(SystemTime::now()) {
            IdentityState::Empty => {
                if Instant::now() < joining.next {
                    anyhow::bail!("{}", self.waits_for());
                }
                self.join_once(join, &directory, joining).await?;
                self.load()
            }
            // A good token is quicker than an operator.
            IdentityState::Over => match self.join_once(join, &directory, joining).await {
                Ok(()) => self.load(),
                Err(_) => loaded,
            },
            IdentityState::Valid { .. } | IdentityState::Unknown(_) => loaded,
        }
    }

    /// Joins as soon as a token lets it, for as long as the identity in use ended too long ago to
    /// be renewed without an operator.
    pub async fn join_again(&self, identity: &NodeIdentity) {
        let (Some(join), Some(directory)) = (&self.join, self.directory()) else { return };
        let mut joining = JoinAttempts::default();
        let mut logged = String::new();
        while directory.state(SystemTime::now()) == IdentityState::Over {
            match self.join_once(join, &directory, &mut joining).await {
                Ok(()) => {
                    identity.read_again().await;
                }
                Err(error) => {
                    let error = chain(error.as_ref());
                    if logged != error {
                        warn!(error, "the identity ended long ago, and no token lets it join");
                        logged = error;
                    }
                }
            }
            sleep_until(joining.next).await;
        }
    }

    async fn join_once(
        &self,
        join: &Automatic,
        directory: &Directory,
        joining: &mut JoinAttempts,
    ) -> anyhow::Result<()> {
        let cloud = &join.clouds[joining.tried % join.clouds.len()];
        joining.tried += 1;
        joining.next = Instant::now() + joining.delays.jittered(rand::random());
        let node = join.once(cloud, directory, &self.network).await?;
        info!(%node, cloud = %cloud.endpoint, "joined");
        Ok(())
    }
}

/// The attempts to join.
struct JoinAttempts {
    tried: usize,
    next: Instant,
    delays: Backoff,
}

impl Default for JoinAttempts {
    fn default() -> Self {
        let delays = Backoff::new(FIRST_DELAY, Duration::from_secs(60));
        Self { tried: 0, next: Instant::now(), delays }
    }
}

#[cfg(test)]
mod tests {

    use proto::host::publish::{Existing, publish};
    use proto::link::tls::Pin;
    use proto::link::ws;

    use super::*;
    use crate::identity::join::Cloud;
    use crate::identity::test_ca::Ca;

    fn source(directory: &Directory) -> IdentitySource {
        IdentitySource::new(directory.files(), None, ws::tcp())
    }

    #[test]
    fn a_node_is_named_whatever_the_dates_of_its_certificate() {
        let dir = tempfile::tempdir().unwrap();
        for days in [300, 3, -3, -200] {
            let directory = Ca::new().identity(dir.path(), days);
            let source = source(&directory);
            assert_eq!(source.node().unwrap().as_str(), "n1", "{days}");
            assert!(source.begun() > SystemTime::UNIX_EPOCH);
            // It begins 20 days before its end.
            assert_eq!(source.load().is_ok(), days < 20, "{days}");
        }
        assert!(source(&Directory::new(&dir.path().join("none"))).node().is_none());
    }

    fn kept(machine: Option<&str>) -> Option<KeptFor> {
        let machine = machine.map(str::to_owned);
        Some(KeptFor { node: "n1".parse().unwrap(), machine })
    }

    #[tokio::test]
    async fn the_state_directory_names_its_own_machine_until_there_is_an_identity() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::new(dir.path());
        for (of, machine) in [(Some("a"), Some("b")), (Some("a"), None), (None, None)] {
            let source = source(&directory).or_kept_for(|| kept(of), machine);
            assert_eq!(source.node(), None, "{of:?} {machine:?}");
            assert!(!source.is_name_uncertain());
        }
        let source = source(&directory).or_kept_for(|| kept(Some("a")), Some("a"));
        assert_eq!(source.node().unwrap().as_str(), "n1");
        assert!(source.is_name_uncertain());
        Ca::new().identity(dir.path(), 10);
        assert!(source.is_name_uncertain(), "it is not in use yet");
        source.obtain().await;
        assert!(!source.is_name_uncertain());
    }

    #[test]
    fn a_damaged_file_is_replaced_by_its_copy() {
        for name in ["node.pem", "ca.crt"] {
            for content in [Some(""), Some("-----BEGIN CERTIFICATE-----\nMIIB"), None] {
                let dir = tempfile::tempdir().unwrap();
                let directory = Ca::new().identity(dir.path(), 10);
                let source = source(&directory);
                source.load().unwrap();
                let path = dir.path().join(name);
                let before = std::fs::read(&path).unwrap();
                match content {
                    Some(content) => {
                        publish(&path, content.as_bytes(), 0o600, Existing::Replace).unwrap();
                    }
                    None => std::fs::remove_file(&path).unwrap(),
                }
                assert_eq!(source.node().unwrap().as_str(), "n1", "{name} {content:?}");
                source.load().unwrap();
                assert_eq!(std::fs::read(&path).unwrap(), before, "{name} {content:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_identity_is_used_as_soon_as_it_can_be() {
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::new();
        // The clock is so far behind that it has not begun.
        let directory = ca.identity(dir.path(), 300);
        let cloud = Cloud { endpoint: "wss://h:1".parse().unwrap(), ca: Pin::of(&ca.der()) };
        let token_file = dir.path().join("none");
        let join = Automatic { clouds: vec![cloud], token_file };
        let source = IdentitySource::new(directory.files(), Some(join), ws::tcp());
        let waited = tokio::time::timeout(Duration::from_secs(100), source.obtain()).await;
        assert!(waited.is_err());
        assert!(source.waits_for().contains("is not valid yet"), "{}", source.waits_for());
        // Or so far ahead that it is over, and the token was used long ago. It may be readmitted.
        ca.identity(dir.path(), -200);
        let over = source.obtain().await.identity.unwrap();
        assert!(over.ended(SystemTime::now()));
        // A token is still waited for, until the identity is not over.
        let joining = source.join_again(&over);
        assert!(tokio::time::timeout(Duration::from_secs(100), joining).await.is_err());
        ca.identity(dir.path(), 10);
        tokio::time::timeout(Duration::from_secs(20), source.obtain()).await.unwrap();
        assert_eq!(source.waits_for(), "");
    }
}
