//! A node joins csi-cloud with a token, is revoked, and joins again; over both transports. A copy
//! of its older certificate is renewed to nobody, and one that ended long ago only by an operator's
//! word.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail, ensure};
use harness::process::Process;
use harness::stand::Stand;
use harness::wait::{START, STOP, until};
use harness::world::{DRIVER, NODE, TRANSPORTS, World};
use proto::control::base64::Base64;
use proto::control::certificate::Renew;
use proto::control::hello::Message;
use proto::host::publish::{Existing, publish};
use proto::link;
use proto::link::tls::{Credentials, Files, Role};
use proto::link::{Event, KeepAlive, Link, ws};
use proto::names::certificate::Serial;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType};
use serde_json::Value;
use tokio::time::timeout;

/// A node with an identity that it renews.
const RENEWING: &str = "n9";
const DAY: Duration = Duration::from_secs(86_400);

/// A csi-cloud that issues certificates with the stand's own CA.
pub(super) struct Issuing {
    pub(super) world: World,
    admin: String,
    /// Its configuration.
    pub(super) config: String,
    /// Where it takes edges that join.
    pub(super) door: String,
}

impl Issuing {
    pub(super) async fn new(transport: &str, more: &str) -> anyhow::Result<Self> {
        let stand = Stand::new().await?;
        let config = stand.issuing(more)?;
        let more = ["--config", &config, "--listen", "wss://127.0.0.1:0"];
        let world = World::on(stand, transport, &more).await?;
        let admin = world.stand.at("cloud/_admin.sock");
        let door = world.cloud.urls.iter().rev().find(|url| url.starts_with("wss"));
        let door = door.context("no wss listener")?.clone();
        Ok(Self { world, admin, config, door })
    }

    pub(super) async fn say(&self, command: &[&str]) -> anyhow::Result<String> {
        self.world.stand.run("csi-cloud", &[command, &["--admin", &self.admin]].concat()).await
    }

    pub(super) async fn json(&self, command: &[&str]) -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&self.say(&[command, &["-o", "json"]].concat()).await?)?)
    }

    /// Makes a token for [`NODE`], and returns the command that uses it.
    async fn token(&self) -> anyhow::Result<String> {
        self.token_of(NODE).await
    }

    /// The same for a node.
    pub(super) async fn token_of(&self, node: &str) -> anyhow::Result<String> {
        self.say(&["token", "create", node, "--cloud", &self.door]).await
    }

    /// Runs the command of a token, as an operator does; the identity is in this directory.
    pub(super) async fn join(&self, command: &str, name: &str) -> anyhow::Result<Credentials> {
        self.world.stand.join(command, name).await?;
        let dir = self.world.stand.at(name);
        Ok(Credentials::load(&Files::identity(Path::new(&dir)), Role::Node)?)
    }

    async fn dial(&self, credentials: &Credentials) -> anyhow::Result<Link> {
        let url = self.world.url().parse()?;
        Ok(link::dial(&url, credentials, KeepAlive::default(), &ws::tcp()).await?)
    }

    /// Starts csi-edge with the identity in this directory, and waits until it is linked.
    async fn edge(&self, identity: &str) -> anyhow::Result<Process> {
        let mut edge = self.edge_started(identity)?;
        edge.line_starting("linked ", START).await?;
        Ok(edge)
    }

    fn edge_started(&self, identity: &str) -> anyhow::Result<Process> {
        let stand = &self.world.stand;
        let mut command = stand.program("csi-edge")?;
        command.args(["serve", "--fronts", &stand.at(&format!("{identity}-fronts"))]);
        command.args(["--identity", &stand.at(identity), "--cloud", self.world.url()]);
        // Nobody serves it; the driver is away.
        command.arg(format!("--driver={DRIVER}={}", stand.at(&format!("{identity}.sock"))));
        Process::start(&format!("csi-edge-{identity}"), command, stand.dir())
    }

    /// Puts a certificate that ended 200 days ago in the place of an identity's, for the same key.
    fn end_long_ago(&self, identity: &str) -> anyhow::Result<()> {
        let pki = PathBuf::from(self.world.stand.pki());
        let ca_key = KeyPair::from_pem(&std::fs::read_to_string(pki.join("ca.key"))?)?;
        let ca = std::fs::read_to_string(pki.join("ca.crt"))?;
        let issuer = Issuer::from_ca_cert_pem(&ca, ca_key)?;
        let path = Files::identity(self.world.stand.at(identity).as_ref()).cert;
        let key = KeyPair::from_pem(&key_in(&std::fs::read_to_string(&path)?)?)?;
        let mut params = CertificateParams::default();
        let name = format!("edge-csi://node/{identity}");
        params.subject_alt_names = vec![SanType::URI(name.try_into()?)];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.not_before = (SystemTime::now() - DAY * 230).into();
        params.not_after = (SystemTime::now() - DAY * 200).into();
        // Later than the one that has linked.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_millis();
        params.serial_number = Some(Serial::numbered(now.try_into()?, 1).to_vec().into());
        let certificate = params.signed_by(&key, &issuer)?;
        let pem = format!("{}{}", certificate.pem(), key.serialize_pem());
        Ok(publish(&path, pem.as_bytes(), 0o600, Existing::Replace)?)
    }

    /// Asks for a new certificate before any hello, as who has nothing but the certificate and its
    /// key can. Returns the reason of a refusal.
    async fn refusal_to_renew(&self, credentials: &Credentials) -> anyhow::Result<Option<String>> {
        let mut link = self.dial(credentials).await?;
        let csr = CertificateParams::default().serialize_request(&KeyPair::generate()?)?;
        let csr = Base64(csr.der().to_vec().into());
        link.send(&Message::Renew(Renew { csr, machine: None })).await?;
        match timeout(START, link.next()).await? {
            Event::Message(Message::Renewed(_)) => Ok(None),
            Event::Message(Message::NotRenewed(not)) => Ok(Some(not.why)),
            _ => bail!("another answer than that to a renewal"),
        }
    }
}

#[tokio::test]
async fn an_older_certificate_does_not_renew_after_a_newer_one_has_linked() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let issuing = Issuing::new(transport, "").await?;
        let older = issuing.join(&issuing.token_of(RENEWING).await?, "bin").await?;
        let newer = issuing.join(&issuing.token_of(RENEWING).await?, RENEWING).await?;
        let edge = issuing.edge(RENEWING).await?;
        let refused = issuing.refusal_to_renew(&older).await?.context("it was renewed")?;
        assert!(refused.contains("csi-cloud token create n9"), "{refused}");
        // That cost the node nothing: it renews in the same minute.
        assert_eq!(issuing.refusal_to_renew(&newer).await?, None);
        edge.stop(STOP).await?;
        issuing.world.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_operator_readmits_a_node_whose_certificate_ended_long_ago() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let issuing = Issuing::new(transport, "").await?;
        issuing.join(&issuing.token_of(RENEWING).await?, RENEWING).await?;
        issuing.edge(RENEWING).await?.stop(STOP).await?;
        issuing.end_long_ago(RENEWING)?;
        let mut edge = issuing.edge_started(RENEWING)?;
        edge.logged("csi-cloud node readmit n9").await?;
        let said = issuing.say(&["node", "readmit", RENEWING]).await?;
        assert!(said.contains("for 7 days"), "{said}");
        edge.line_starting("linked ", START).await?;
        edge.stop(STOP).await?;
        issuing.world.stop().await?;
    }
    Ok(())
}

/// The key in a PEM file that has a certificate too.
fn key_in(pem: &str) -> anyhow::Result<String> {
    let begin = pem.find("-----BEGIN PRIVATE KEY").context("no key")?;
    Ok(pem.get(begin..).unwrap_or_default().to_owned())
}

#[tokio::test]
async fn a_revoked_node_is_refused_until_it_joins_with_a_later_token() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let issuing = Issuing::new(transport, "").await?;
        let early = issuing.token().await?;
        let nodes = issuing.json(&["nodes"]).await?;
        assert!(nodes[0]["not_after_ms"].is_u64(), "{nodes}");

        issuing.say(&["node", "revoke", NODE]).await?;
        // The link ends, and the edge is told why it gets no other one.
        until("the edge knows", || async {
            let log = issuing.world.edge.log();
            ensure!(String::from_utf8_lossy(&log).contains("it has revoked our certificate"));
            Ok(())
        })
        .await?;
        assert_eq!(issuing.json(&["nodes"]).await?[0]["state"], "revoked");
        let refused = issuing.join(&early, "early").await.err().context("it has joined")?;
        assert!(format!("{refused:#}").contains("revoked after this token"), "{refused:#}");

        let later = issuing.token().await?;
        let joined = issuing.join(&later, "later").await?;
        let twice = issuing.join(&later, "twice").await.err().context("it has joined")?;
        assert!(format!("{twice:#}").contains("used by another key"), "{twice:#}");
        issuing.dial(&joined).await?;
        let tokens = issuing.json(&["token", "list"]).await?;
        let states: Vec<_> = tokens.as_array().context("no list")?.iter().collect();
        assert!(states.iter().any(|token| token["state"] == "used"), "{tokens}");
        assert!(states.iter().any(|token| token["state"] == "void"), "{tokens}");
        issuing.world.stop().await?;
    }
    Ok(())
}
