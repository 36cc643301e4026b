//! `csi-edge doctor` and `csi-cloud doctor`, as programs: what is well, and each thing that is not.

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use drivers::testdriver::TestDriver;
use harness::proxy::{Proxy, Rule};
use harness::stand::Stand;
use harness::wait::{START, until};
use harness::world::{DRIVER, NODE, TRANSPORTS, World};
use proto::host::publish::{Existing, publish};
use proto::host::tasks::Tasks;
use proto::link::tls::Files;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType};
use serde_json::Value;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::process::Command;

/// What a doctor said.
struct Said {
    /// Its exit code was 0.
    is_well: bool,
    findings: Vec<Value>,
}

impl Said {
    async fn by(mut command: Command) -> anyhow::Result<Self> {
        command.args(["-o", "json"]).kill_on_drop(true);
        let output = tokio::time::timeout(START, command.output()).await;
        let output = output.context("it does not end")??;
        let findings: Vec<Value> = serde_json::from_slice(&output.stdout)
            .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
        let is_fault = |finding: &Value| finding["verdict"] == "fault";
        let is_well = !findings.iter().any(is_fault);
        ensure!(output.status.success() == is_well, "{}: {findings:?}", output.status);
        for finding in &findings {
            let needs_advice = finding["verdict"] != "ok";
            ensure!((finding["advice"] != "") == needs_advice, "{finding}");
        }
        Ok(Self { is_well, findings })
    }

    fn of(&self, check: &str) -> Vec<&Value> {
        self.findings.iter().filter(|finding| finding["check"] == check).collect()
    }

    /// Checks what is said of the first thing of this check.
    fn is(&self, check: &str, verdict: &str, found: &str) -> anyhow::Result<()> {
        let finding = self.of(check).into_iter().next();
        let finding = finding.with_context(|| format!("no {check} in {:?}", self.findings))?;
        ensure!(finding["verdict"] == verdict, "{finding}");
        ensure!(finding["found"].as_str().is_some_and(|text| text.contains(found)), "{finding}");
        Ok(())
    }

    /// Checks that the room on a disk is told. The disk of the tests may be nearly full.
    fn has_room(&self, check: &str) -> anyhow::Result<()> {
        let scarce = self.of(check).iter().any(|finding| finding["verdict"] == "warning");
        self.is(check, if scarce { "warning" } else { "ok" }, "free of")
    }

    /// Checks which checks are at fault, each once.
    fn faults(&self, expected: &[&str]) -> anyhow::Result<()> {
        let faults = self.findings.iter().filter(|finding| finding["verdict"] == "fault");
        let mut faults: Vec<_> = faults.filter_map(|finding| finding["check"].as_str()).collect();
        faults.dedup();
        ensure!(faults == expected, "{:?}", self.findings);
        ensure!(self.is_well == expected.is_empty(), "{faults:?}");
        Ok(())
    }
}

/// Asks the doctor at the node, with the files of this stand, and an own directory of targets.
async fn at_node(stand: &Stand, more: &[&str]) -> anyhow::Result<Said> {
    at_node_as(stand, &stand.files(NODE), more).await
}

async fn at_node_as(stand: &Stand, files: &Files, more: &[&str]) -> anyhow::Result<Said> {
    Said::by(node_command(stand, files, more)?).await
}

fn node_command(stand: &Stand, files: &Files, more: &[&str]) -> anyhow::Result<Command> {
    let mut command = stand.program("csi-edge")?;
    let Files { ca, cert, key } = files;
    command.arg("doctor").arg("--ca").arg(ca).arg("--cert").arg(cert).arg("--key").arg(key);
    command.args(["--fronts", &stand.at(NODE), "--targets", &stand.at("targets")]).args(more);
    std::fs::create_dir_all(stand.at("targets"))?;
    std::fs::create_dir_all(stand.at(NODE))?;
    Ok(command)
}

/// A stand with a certificate of the node and a driver, and the driver's flag. Nothing else runs.
async fn alone() -> anyhow::Result<(Stand, drivers::testdriver::Running, String)> {
    let stand = Stand::new().await?;
    stand.run("csi-cloud", &["ca", "issue", NODE, "--dir", &stand.pki()]).await?;
    let socket = stand.at("driver.sock");
    let serving = TestDriver::new(DRIVER, NODE).serve(Path::new(&socket))?;
    Ok((stand, serving, format!("{DRIVER}={socket}")))
}

fn now_linked(world: &World) -> impl Future<Output = anyhow::Result<Value>> {
    let admin = world.stand.at("cloud/_admin.sock");
    async move {
        let nodes = ["nodes", "-o", "json", "--admin", &admin];
        Ok(serde_json::from_str::<Value>(&world.stand.run("csi-cloud", &nodes).await?)?)
    }
}

#[tokio::test]
async fn all_is_well_and_the_link_in_use_stays() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let world = World::new(transport).await?;
        let address = now_linked(&world).await?[0]["address"].clone();
        let state = world.stand.at("state");
        std::fs::create_dir_all(&state)?;
        let driver = format!("{DRIVER}={}", world.stand.at("driver.sock"));
        let more = ["--cloud", world.url(), "--driver", &driver, "--state", &state];
        for _ in 0..6 {
            let said = at_node(&world.stand, &more).await?;
            said.faults(&[])?;
            for check in ["configuration", "certificate", "identity", "ca", "names", "tls"] {
                said.is(check, "ok", "")?;
            }
            said.is("link", "ok", "takes this node's certificate")?;
            said.is("driver", "ok", "is ready")?;
            said.is("csi-edge", "ok", "linked to")?;
            said.has_room("state")?;
            said.is("kernel", "ok", "Linux ")?;
            ensure!(said.of("file-systems").len() == 1, "{:?}", said.findings);
            let clock = if transport.starts_with("wss") { "agree" } else { "is not known" };
            said.is("clock", "ok", clock)?;
            if transport.starts_with("wss") {
                said.is("packets", "ok", "16 KiB pass each way")?;
            }
        }
        // More looks than a node may have links without a hello.
        let nodes = now_linked(&world).await?;
        assert_eq!(nodes[0]["address"], address, "{transport}: the node has linked again");
        let log = world.cloud.process.settled_log().await;
        let looks = log.matches("csi-edge doctor of node n1 has looked").count();
        // Over WebSocket each look has a second connection, for large packets.
        let connections = if transport.starts_with("wss") { 12 } else { 6 };
        assert_eq!(looks, connections, "{transport}: {log}");
        assert!(!log.contains("refused a connection"), "{transport}: {log}");
        let mut table = node_command(&world.stand, &world.stand.files(NODE), &more)?;
        let table = String::from_utf8(table.output().await?.stdout)?;
        assert!(table.starts_with("CHECK ") && table.contains("ABOUT"), "{table}");
        world.stop().await?;
    }
    Ok(())
}

/// The files of a certificate of the node that ended so long ago.
fn ended(stand: &Stand, ago: Duration) -> anyhow::Result<Files> {
    let pem = |name: &str| std::fs::read_to_string(Path::new(&stand.pki()).join(name));
    let issuer = Issuer::from_ca_cert_pem(&pem("ca.crt")?, KeyPair::from_pem(&pem("ca.key")?)?)?;
    let mut params = CertificateParams::default();
    let uri = format!("edge-csi://node/{NODE}");
    params.subject_alt_names = vec![SanType::URI(uri.as_str().try_into()?)];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let end = SystemTime::now() - ago;
    params.not_before = (end - Duration::from_secs(3600)).into();
    params.not_after = end.into();
    let key = KeyPair::generate()?;
    let files = Files::of(Path::new(&stand.pki()), "ended");
    let cert = params.signed_by(&key, &issuer)?.pem();
    publish(&files.cert, cert.as_bytes(), 0o600, Existing::Keep)?;
    publish(&files.key, key.serialize_pem().as_bytes(), 0o600, Existing::Keep)?;
    Ok(files)
}

#[tokio::test]
async fn a_certificate_that_has_ended_is_named_with_what_to_do() -> anyhow::Result<()> {
    let (stand, _serving, driver) = alone().await?;
    let cloud = stand.cloud(&[TRANSPORTS[0]], &[DRIVER], &[]).await?;
    let files = ended(&stand, Duration::from_secs(3 * 86_400))?;
    let more = ["--cloud", &cloud.urls[0], "--driver", &driver];
    let said = at_node_as(&stand, &files, &more).await?;
    said.is("certificate", "fault", "ended 3d ago")?;
    said.is("identity", "fault", "expired 3 days ago")?;
    // The network is looked at all the same.
    said.is("tcp", "ok", "connected")?;
    said.faults(&["certificate", "identity"])?;
    let advice = said.of("certificate")[0]["advice"].as_str().unwrap_or_default();
    ensure!(advice.contains("ca issue") && advice.contains("clock"), "{advice}");
    cloud.process.stop(START).await
}

#[tokio::test]
async fn another_name_than_the_certificates_is_named() -> anyhow::Result<()> {
    let (stand, _serving, driver) = alone().await?;
    let cloud = stand.cloud(&TRANSPORTS, &[DRIVER], &[]).await?;
    for url in &cloud.urls {
        let url = url.replace("127.0.0.1", "localhost");
        let said = at_node(&stand, &["--cloud", &url, "--driver", &driver]).await?;
        said.is("dns", "ok", "127.0.0.1")?;
        said.is("names", "fault", "is for 127.0.0.1, and localhost is dialed")?;
        said.faults(&["names", "tls"])?;
    }
    cloud.process.stop(START).await
}

#[tokio::test]
async fn a_name_without_an_address_and_a_closed_port_are_told_apart() -> anyhow::Result<()> {
    let (stand, _serving, driver) = alone().await?;
    let of = async |url: &str| at_node(&stand, &["--cloud", url, "--driver", &driver]).await;
    let said = of("wss://cloud.invalid:7443").await?;
    said.is("dns", "fault", "cannot be resolved")?;
    said.faults(&["dns"])?;
    let said = of("wss://127.0.0.1:1").await?;
    said.is("tcp", "fault", "cannot reach 127.0.0.1:1: Connection refused")?;
    said.faults(&["tcp"])?;
    said.is("clock", "unknown", "")?;
    said.is("csi-edge", "warning", "does not answer")
}

#[tokio::test]
async fn blocked_udp_is_a_warning_while_tcp_works() -> anyhow::Result<()> {
    let (stand, _serving, driver) = alone().await?;
    let cloud = stand.cloud(&[TRANSPORTS[0]], &[DRIVER], &[]).await?;
    let silent = UdpSocket::bind("127.0.0.1:0").await?;
    let quic = format!("quic://{}", silent.local_addr()?);
    let more = ["--cloud", &quic, "--cloud", &cloud.urls[0], "--driver", &driver];
    let said = at_node(&stand, &more).await?;
    said.is("udp", "warning", "did not answer within 5s")?;
    said.is("link", "ok", "round trip")?;
    said.faults(&[])?;
    let said = at_node(&stand, &["--cloud", &quic, "--driver", &driver]).await?;
    said.faults(&["udp"])?;
    cloud.process.stop(START).await
}

/// Listens, and brings no more than 12 KiB of a connection to this address.
async fn hole(cloud: String, tasks: &Tasks) -> anyhow::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("wss://{}", listener.local_addr()?);
    let connections = tasks.clone();
    tasks.spawn_until_stop("hole", async move {
        while let Ok((mut edge, _)) = listener.accept().await {
            let Ok(mut cloud) = TcpStream::connect(&cloud).await else { return };
            connections.spawn_until_stop("connection", async move {
                let (from_edge, mut to_edge) = edge.split();
                let (mut from_cloud, mut to_cloud) = cloud.split();
                let mut passing = from_edge.take(12 * 1024);
                let there = async {
                    tokio::io::copy(&mut passing, &mut to_cloud).await?;
                    tokio::io::copy(&mut passing.into_inner(), &mut tokio::io::sink()).await
                };
                let back = tokio::io::copy(&mut from_cloud, &mut to_edge);
                // Either end may break it off.
                let _ = tokio::try_join!(there, back);
            });
        }
    });
    Ok(url)
}

#[tokio::test]
async fn large_packets_that_do_not_pass_are_a_warning() -> anyhow::Result<()> {
    let (stand, _serving, driver) = alone().await?;
    let cloud = stand.cloud(&[TRANSPORTS[0]], &[DRIVER], &[]).await?;
    let tasks = Tasks::default();
    let address = cloud.urls[0].strip_prefix("wss://").context("no wss")?;
    let url = hole(address.to_owned(), &tasks).await?;
    let said = at_node(&stand, &["--cloud", &url, "--driver", &driver]).await?;
    said.is("link", "ok", "round trip")?;
    said.is("packets", "warning", "16 KiB do not")?;
    said.faults(&[])?;
    tasks.stop();
    cloud.process.stop(START).await
}

#[tokio::test]
async fn a_cloud_that_says_nothing_is_given_up_after_a_bound() -> anyhow::Result<()> {
    let (stand, _serving, driver) = alone().await?;
    let silent = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("wss://{}", silent.local_addr()?);
    let said = at_node(&stand, &["--cloud", &url, "--driver", &driver]).await?;
    said.is("tcp", "ok", "")?;
    said.is("tls", "fault", "did not answer within 5s")?;
    said.faults(&["tls"])
}

#[tokio::test]
async fn a_proxy_that_refuses_is_named_without_its_password() -> anyhow::Result<()> {
    let (stand, _serving, driver) = alone().await?;
    let cloud = stand.cloud(&[TRANSPORTS[0]], &[DRIVER], &[]).await?;
    let open = Proxy::new(Rule::Credentials("shop:s3cret".into())).await?;
    let url = open.url("shop:s3cret@");
    let more = ["--cloud", &cloud.urls[0], "--driver", &driver, "--proxy", &url];
    let said = at_node(&stand, &more).await?;
    said.is("proxy", "ok", "made a tunnel")?;
    said.is("link", "ok", "")?;
    said.faults(&[])?;
    let refusing = Proxy::new(Rule::Refuse("403 Forbidden")).await?;
    let url = refusing.url("shop:s3cret@");
    let more = ["--cloud", &cloud.urls[0], "--driver", &driver, "--proxy", &url];
    let said = at_node(&stand, &more).await?;
    said.is("proxy", "fault", "answered 403 Forbidden")?;
    said.faults(&["proxy"])?;
    ensure!(!format!("{:?}", said.findings).contains("s3cret"), "{:?}", said.findings);
    cloud.process.stop(START).await
}

#[tokio::test]
async fn a_driver_that_is_dead_or_another_one_is_named() -> anyhow::Result<()> {
    let (stand, serving, driver) = alone().await?;
    let cloud = stand.cloud(&[TRANSPORTS[0]], &[DRIVER], &[]).await?;
    let other = format!("other.edge-csi.io={}", stand.at("driver.sock"));
    let more = ["--cloud", &cloud.urls[0], "--driver"];
    let said = at_node(&stand, &[&more[..], &[&other]].concat()).await?;
    said.is("driver", "fault", "it calls itself")?;
    said.faults(&["driver"])?;
    drop(serving);
    until("the driver is dead", || async {
        let said = at_node(&stand, &[&more[..], &[&driver]].concat()).await?;
        said.is("driver", "fault", "is the driver running?")
    })
    .await?;
    cloud.process.stop(START).await
}

#[tokio::test]
async fn a_node_that_was_revoked_or_removed_is_told_so() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let world = World::new(transport).await?;
        let admin = world.stand.at("cloud/_admin.sock");
        let driver = format!("{DRIVER}={}", world.stand.at("driver.sock"));
        let more = ["--cloud", world.url(), "--driver", &driver];
        world.stand.run("csi-cloud", &["node", "remove", NODE, "--yes", "--admin", &admin]).await?;
        let said = at_node(&world.stand, &more).await?;
        said.is("tls", "ok", "")?;
        said.is("link", "fault", "our node was removed there")?;
        said.faults(&["link"])?;
        world.stop().await?;
    }
    Ok(())
}

/// Runs the doctor after a script, in a mount namespace of its own.
async fn after(script: &str, command: Command) -> anyhow::Result<Said> {
    let mut space = Command::new("unshare");
    let script = format!("{script} && exec \"$@\"");
    space.args(["--mount", "--propagation", "private", "sh", "-ec", &script, "sh"]);
    space.arg(command.as_std().get_program()).args(command.as_std().get_args());
    Said::by(space).await
}

#[tokio::test]
async fn a_state_directory_that_is_read_only_or_full_is_a_fault() -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let (stand, _serving, driver) = alone().await?;
    let cloud = stand.cloud(&[TRANSPORTS[0]], &[DRIVER], &[]).await?;
    let state = stand.at("state");
    std::fs::create_dir_all(&state)?;
    let files = stand.files(NODE);
    let more = ["--cloud", &cloud.urls[0], "--driver", &driver, "--state", &state];
    let command = || node_command(&stand, &files, &more);
    let read_only = format!("mount --bind {state} {state} && mount -o remount,ro,bind {state}");
    let said = after(&read_only, command()?).await?;
    said.is("state", "fault", "cannot be written")?;
    said.faults(&["state"])?;
    said.is("mount-propagation", "warning", "")?;
    let full = format!("mount -t tmpfs -o size=64k tmpfs {state}");
    let said = after(&full, command()?).await?;
    said.is("state", "fault", "free of")?;
    said.faults(&["state"])?;
    let targets = stand.at("targets");
    let shared = format!("mount --bind {targets} {targets} && mount --make-shared {targets}");
    after(&shared, command()?).await?.is("mount-propagation", "ok", "shared")?;
    cloud.process.stop(START).await
}

#[tokio::test]
async fn csi_cloud_is_looked_at_while_it_runs_and_while_it_does_not() -> anyhow::Result<()> {
    let stand = Stand::new().await?;
    let files = stand.files("cloud");
    let [ca, cert, key] = [&files.ca, &files.cert, &files.key].map(|path| path.display());
    let config = stand.at("cloud.toml");
    let text = format!(
        "listen = [\"wss://127.0.0.1:0\"]\ndrivers = [\"{DRIVER}\"]\nfronts = \"cloud\"\n\
         store = \"file:cloud.redb\"\n[tls]\nca = \"{ca}\"\ncert = \"{cert}\"\nkey = \"{key}\"\n"
    );
    publish(config.as_ref(), text.as_bytes(), 0o600, Existing::Keep)?;
    let ask = || {
        let mut command = stand.program("csi-cloud")?;
        command.args(["doctor", "--config", &config]);
        anyhow::Ok(command)
    };
    let said = Said::by(ask()?).await?;
    said.is("csi-cloud", "fault", "does not answer")?;
    said.is("configuration", "ok", "")?;
    said.is("certificate", "ok", "valid for")?;
    said.is("names", "ok", "127.0.0.1")?;
    said.is("store", "warning", "cannot be looked at")?;
    said.is("clock", "ok", "within the validity")?;
    let mut command = stand.program("csi-cloud")?;
    command.args(["serve", "--config", &config]);
    let mut cloud = harness::process::Process::start("csi-cloud", command, stand.dir())?;
    cloud.line_starting("ready", START).await?;
    let said = Said::by(ask()?).await?;
    said.faults(&[])?;
    for (check, found) in [
        ("csi-cloud", "answers"),
        ("certificate", "valid for"),
        ("identity", "fit"),
        ("store", "B"),
        ("store-open", "it is open"),
        ("listen", "links by wss: 0"),
        ("versions", "all 0"),
        ("clock", "within the validity"),
    ] {
        said.is(check, "ok", found)?;
    }
    said.has_room("store-disk")?;
    said.is("front", "warning", "mode 0660")?;
    let front = harness::raw::RawClient::connect(&stand.cloud_front(DRIVER)).await?;
    front.call("/csi.v1.Identity/GetPluginInfo", &[]).await?;
    Said::by(ask()?).await?.is("front", "ok", "connections: 1")?;
    drop(front);
    cloud.stop(START).await?;
    let said = Said::by(ask()?).await?;
    said.is("store", "ok", "B")?;
    said.faults(&["csi-cloud"])?;
    publish(config.as_ref(), b"listen = 1\n", 0o600, Existing::Replace)?;
    Said::by(ask()?).await?.is("configuration", "fault", "listen")
}
