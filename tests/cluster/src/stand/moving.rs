//! A running csi-cloud moves from its file to etcd, where it is one of several, and back again, as
//! docs/how-to/high-availability.md has it. Meanwhile the socket relay keeps the sidecars'
//! connections.

use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, ensure};
use futures_util::future::try_join_all;
use proto::host::publish::{Existing, publish};
use serde_json::Value;

use super::Cluster;
use super::ask::admin;
use super::cloud::{ADMIN, HOLDERS, STORE};
use super::ground::{Ground, ports};
use super::objects::within;
use super::program::Program;
use super::several::{REPLICAS, own_file};

/// How long a leader or a link may take to be there.
const SOON: Duration = Duration::from_secs(60);

/// The replica that leads.
#[derive(Clone, Copy)]
pub struct Leads {
    /// Its place among the replicas.
    pub place: usize,
    /// The epoch of its calls.
    pub epoch: u64,
}

/// Where the parts of one use are.
struct Places {
    /// Where clients find etcd's members.
    clients: Vec<u16>,
    /// Where edges find the replicas after the first: WebSocket, QUIC.
    urls: Vec<[String; 2]>,
}

/// Where the store is for a csi-cloud that is alone.
fn file(ground: &Ground) -> String {
    format!("file:{}", ground.at(STORE))
}

/// The admin socket of a replica.
fn admin_of(ground: &Ground, place: usize) -> String {
    own_file(ground, ADMIN, place)
}

/// The arguments of a replica, from those of the csi-cloud that was alone.
fn arguments(
    alone: &[String],
    ground: &Ground,
    place: usize,
    store: &str,
    listen: &[String],
    reached: &[String],
) -> Vec<String> {
    let mut args = without(alone, &["--store=", "--holders=", "--admin=", "--listen="]);
    args.push(format!("--store={store}"));
    args.push(format!("--holders=unix:{}", own_file(ground, HOLDERS, place)));
    args.push(format!("--admin={}", admin_of(ground, place)));
    args.push(format!("--replica={}", REPLICAS[place.min(2)]));
    args.extend(listen.iter().map(|url| format!("--listen={url}")));
    args.extend(reached.iter().map(|url| format!("--advertise={url}")));
    args
}

fn without(args: &[String], flags: &[&str]) -> Vec<String> {
    let is_one = |arg: &&String| !flags.iter().any(|flag| arg.starts_with(flag));
    args.iter().filter(is_one).cloned().collect()
}

/// The arguments of etcd's members.
fn members(ground: &Ground, clients: &[u16], peers: &[u16]) -> Vec<Vec<String>> {
    let url = |port: &u16| format!("http://127.0.0.1:{port}");
    let named = REPLICAS.iter().zip(peers).map(|(name, peer)| format!("{name}={}", url(peer)));
    let cluster = named.collect::<Vec<_>>().join(",");
    let of = |((name, client), peer): ((&&str, &u16), &u16)| {
        let client = url(client);
        let peer = url(peer);
        vec![
            format!("--name={name}"),
            format!("--data-dir={}", ground.at(&format!("etcd-{name}"))),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster={cluster}"),
            // The machine does not lose its power.
            "--unsafe-no-fsync".to_owned(),
        ]
    };
    REPLICAS.iter().zip(clients).zip(peers).map(of).collect()
}

/// Moves all records from one store to another, as docs/how-to/high-availability.md has it.
async fn moved(ground: &Ground, from: &str, to: &str) -> anyhow::Result<()> {
    let all = admin(ground, &["store", "export", "--with-secrets", "--store", from]).await?;
    let exported = ground.at("all.jsonl");
    publish(exported.as_ref(), all.as_bytes(), 0o600, Existing::Replace)?;
    let checked = admin(ground, &["store", "check", "--store", from]).await?;
    let last = checked.split_whitespace().last().unwrap_or_default();
    admin(ground, &["store", "import", "--store", to, "--move", last, &exported]).await?;
    std::fs::remove_file(&exported).with_context(|| format!("cannot remove {exported}"))
}

impl Cluster {
    /// Moves the running csi-cloud to etcd, and starts two more beside it. Edges learn all of them
    /// before. The socket relay keeps the sidecars' connections. Returns the leader.
    ///
    /// # Errors
    /// Something does not start, or the records are not moved.
    pub async fn several(&self) -> anyhow::Result<Leads> {
        let several = &self.cloud.several;
        several.used.store(true, Ordering::Relaxed);
        let [a, b, c, d, e, f, g, h, i, j] = ports()?;
        let pair =
            |wss, quic| [format!("wss://127.0.0.1:{wss}"), format!("quic://127.0.0.1:{quic}")];
        let places = Places { clients: vec![a, b, c], urls: vec![pair(g, h), pair(i, j)] };
        let arguments = members(&self.ground, &places.clients, &[d, e, f]);
        for (member, arguments) in several.members.iter().zip(arguments) {
            member.reargue(|args| *args = arguments).await?;
        }
        several.quorum().await?;
        self.endpoints(&places.urls).await?;

        self.cloud.program.stop().await?;
        let hosts: Vec<_> = places.clients.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let store = format!("etcd://{}/edge-csi", hosts.join(","));
        moved(&self.ground, &file(&self.ground), &store).await?;
        several.in_etcd.store(true, Ordering::Relaxed);
        self.replicas(&places, &store).await?;
        for replica in self.cloud.replicas() {
            replica.run().await?;
        }
        self.leading(&REPLICAS).await
    }

    /// Gives each replica its arguments.
    async fn replicas(&self, places: &Places, store: &str) -> anyhow::Result<()> {
        let alone = self.cloud.program.args().await?;
        let relays = self.nodes.iter().map(|node| node.relay.url().to_owned());
        let reached: Vec<_> = self.cloud.urls.iter().cloned().chain(relays).collect();
        let first = arguments(&alone, &self.ground, 0, store, &self.cloud.urls, &reached);
        self.cloud.program.reargue(|args| *args = first).await?;
        for ((place, other), urls) in (1..).zip(&self.cloud.several.others).zip(&places.urls) {
            let own = arguments(&alone, &self.ground, place, store, urls, urls);
            other.reargue(|args| *args = own).await?;
        }
        Ok(())
    }

    /// Moves the store back to its file, and ends what [`Cluster::several`] started, if it did.
    ///
    /// # Errors
    /// Something does not end or start, or the records are not moved.
    pub async fn single(&self) -> anyhow::Result<()> {
        let several = &self.cloud.several;
        if !several.used.load(Ordering::Relaxed) {
            return Ok(());
        }
        try_join_all(self.cloud.replicas().map(Program::ended)).await?;
        let alone = &self.cloud.program;
        let args = alone.args().await?;
        let url = args.iter().find_map(|arg| arg.strip_prefix("--store="));
        if several.in_etcd.load(Ordering::Relaxed) {
            several.quorum().await?;
            let old = self.ground.at(STORE);
            let _ = std::fs::remove_file(&old);
            moved(&self.ground, url.context("no store")?, &file(&self.ground)).await?;
            several.in_etcd.store(false, Ordering::Relaxed);
        }
        try_join_all(several.members.iter().map(Program::ended)).await?;
        for name in REPLICAS {
            let _ = std::fs::remove_dir_all(self.ground.at(&format!("etcd-{name}")));
        }
        let mut own = without(&args, &["--store=", "--replica=", "--advertise="]);
        own.push(format!("--store={}", file(&self.ground)));
        alone.reargue(|args| *args = own).await?;
        alone.run().await?;
        self.endpoints(&[]).await?;
        several.used.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Has each edge dial these csi-clouds too, and no others but the first, and waits until all
    /// are linked.
    async fn endpoints(&self, others: &[[String; 2]]) -> anyhow::Result<()> {
        for node in &self.nodes {
            let is_quic = node.relay.url().starts_with("quic");
            let urls = others.iter().map(|urls| format!("--cloud={}", urls[usize::from(is_quic)]));
            let first = format!("--cloud={}", node.relay.url());
            let change = |args: &mut Vec<String>| {
                args.retain(|arg| !arg.starts_with("--cloud=") || *arg == first);
                args.extend(urls);
            };
            node.edge.reargue(change).await?;
            node.edge.ended().await?;
            node.edge.run().await?;
        }
        within("all links", SOON, || self.linked(0)).await
    }

    /// Fails if an edge is not linked with this replica.
    ///
    /// # Errors
    /// One is not, or the replica does not answer.
    pub async fn linked(&self, place: usize) -> anyhow::Result<()> {
        let nodes = self.asked(place, &["nodes"]).await?;
        for node in &self.nodes {
            let is_linked = |one: &&Value| one["name"] == node.name && one["state"] == "linked";
            ensure!(
                nodes.iter().any(|one| is_linked(&one)),
                "{} is not linked: {nodes:?}",
                node.name
            );
        }
        Ok(())
    }

    /// The JSON output of a command of one replica.
    ///
    /// # Errors
    /// It fails.
    pub async fn asked(&self, place: usize, args: &[&str]) -> anyhow::Result<Vec<Value>> {
        let replica = self.cloud.replicas().get(place).copied().context("no such replica")?;
        let said = match replica {
            Program::Process(_) => {
                let at = admin_of(&self.ground, place);
                let args = [args, &["-o", "json", "--admin", &at]].concat();
                admin(&self.ground, &args).await?
            }
            Program::Container(container) => {
                container.exec(&[&["csi-cloud"], args, &["-o", "json"]].concat()).await?
            }
        };
        serde_json::from_str(&said).with_context(|| format!("csi-cloud says {said}"))
    }

    /// Waits until exactly these replicas run, one of them leads, the others have all commits, and
    /// all edges are linked with the leader. Returns it.
    ///
    /// # Errors
    /// That is not so in time.
    pub async fn leading(&self, names: &[&str]) -> anyhow::Result<Leads> {
        self.leading_after(0, names).await
    }

    /// As [`Cluster::leading`], and the leader's epoch is later than this one.
    ///
    /// # Errors
    /// That is not so in time.
    pub async fn leading_after(&self, epoch: u64, names: &[&str]) -> anyhow::Result<Leads> {
        within(&format!("a leader of {names:?} after epoch {epoch}"), SOON, || async {
            let leader = self.leads(names).await?;
            ensure!(leader.epoch > epoch, "the epoch is {} after {epoch}", leader.epoch);
            Ok(leader)
        })
        .await
    }

    async fn leads(&self, names: &[&str]) -> anyhow::Result<Leads> {
        let place = |name: &str| self.cloud.several.names.iter().position(|one| *one == name);
        let any = names.first().and_then(|name| place(name)).context("no names")?;
        let shown = self.asked(any, &["replicas"]).await?;
        let of = |one: &&Value| one["name"].as_str().unwrap_or_default().to_owned();
        let runs = |one: &&Value| one["version"].is_string() && one["lag"] == 0;
        let running: Vec<_> = shown.iter().filter(runs).map(|one| of(&one)).collect();
        ensure!(running == names, "there are {shown:?}");
        let leader = shown.iter().find(|one| one["leads"] == true && runs(one));
        let leader = leader.with_context(|| format!("none leads: {shown:?}"))?;
        let epoch = leader["epoch"].as_u64().context("a leader without an epoch")?;
        let place = place(&of(&leader)).context("a leader of another name")?;
        self.linked(place).await?;
        Ok(Leads { place, epoch })
    }
}
