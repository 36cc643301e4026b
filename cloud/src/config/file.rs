//! The configuration of `csi-cloud serve`: a TOML file, and flags that override it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proto::admin::http1::SOCKET_NAME;
use proto::config::{Common, HOUR, Problems, Reader};
use proto::link::endpoint::Endpoint;
use proto::link::tls::Files;
use proto::names::certificate::RENEWABLE;
use proto::names::{DriverName, FrontName, NodeName};
use tracing::warn;

use crate::admin::doctor::installation::Installation;
use crate::admin::tokens::duration;
use crate::config::serve_arguments::Serve;
use crate::etcd::settings::EtcdSettings;
use crate::kubernetes::csidriver::CsiDriverSettings;
use crate::kubernetes::settings::Kubernetes;
use crate::pki::first_start::FirstStart;
use crate::pki::issuer::DAY;
use crate::pki::issuers::CaSettings;
use crate::relay::address::Address;
use crate::state::node_labels::NodeLabels;
use crate::state::policy::Policy;
use crate::state::quotas::{MIB, Quota, Quotas};
use crate::state::store::replica::{Replica, host_name, replica_name};
use crate::state::store::url::StoreAt;
use proto::host::door::Limits;

/// The longest life of an issued certificate, in days.
const MAX_DAYS: u16 = 3650;
/// The life of a node's certificate, in days.
const NODE_DAYS: u16 = 30;
/// The shortest life of a node's certificate: it renews after a half, and once a minute at most.
const SHORTEST_LIFE: Duration = Duration::from_secs(120);
/// The life of csi-cloud's own certificate, in days.
const CLOUD_DAYS: u16 = 90;

/// The whole configuration of csi-cloud.
#[derive(Debug, PartialEq, Eq)]
pub struct Config {
    /// The endpoints on which csi-cloud listens for edges; at least one.
    pub listen: Vec<Endpoint>,
    /// The drivers that have a front, each once; at least one.
    pub drivers: Vec<DriverName>,
    /// The directory of the fronts' sockets; none if all callers come by socket relays.
    pub fronts: Option<PathBuf>,
    /// The addresses for the calls of socket relays.
    pub relays: Vec<Address>,
    /// The drivers that a socket relay may call, by the name in its certificate. One that is not
    /// here may call all.
    pub drivers_of_relays: BTreeMap<FrontName, BTreeSet<DriverName>>,
    /// Each node has a front for each driver as well: `FRONTS/NODE/DRIVER.sock`.
    pub node_fronts: bool,
    /// True if direct volumes get new leases. False while a store is put back.
    pub new_leases: bool,
    /// The node for calls that name none.
    pub default_node: Option<NodeName>,
    /// One policy for each of `drivers`.
    pub policies: BTreeMap<DriverName, Policy>,
    /// The settings of the CSIDriver object of each of `drivers`.
    pub csidrivers: BTreeMap<DriverName, CsiDriverSettings>,
    /// The store of all records.
    pub store: StoreAt,
    /// Ignored with a warning: calls that ended are in memory since 0.3.0.
    pub calls: Option<PathBuf>,
    /// The admin socket.
    pub admin: PathBuf,
    /// The socket of csi-page, if there is one.
    pub view: Option<PathBuf>,
    /// The address of `/livez`, `/readyz` and `/metrics`, if there is one.
    pub http: Option<SocketAddr>,
    /// The settings of Kubernetes, if there is one.
    pub kubernetes: Option<Kubernetes>,
    /// Certificates.
    pub tls: Files,
    /// The CA that issues certificates; none if none are issued.
    pub ca: Option<CaSettings>,
    /// The CA and certificate that csi-cloud makes at its first start, if it is to make them.
    pub first_start: Option<FirstStart>,
    /// The endpoint by which edges reach this csi-cloud from outside, for the command that joins a
    /// node.
    pub advertise: Option<Endpoint>,
    /// This csi-cloud as one of several with one store.
    pub replica: Replica,
    /// The limits of one remote address.
    pub limits: Limits,
    /// The quotas of each node.
    pub quotas: Quotas,
    /// The settings that csi-edge has too.
    pub common: Common,
}

impl Config {
    /// Reads the file that the flags name, and puts the flags over it.
    ///
    /// # Errors
    /// All mistakes in the file and the flags.
    pub fn load(flags: Serve) -> Result<Self, Problems> {
        let path = flags.common.config.clone();
        let directory = path.as_deref().and_then(Path::parent);
        let mut file = Reader::open(path.as_deref());
        let listen = over(flags.listen, file.list("listen", str::parse::<Endpoint>));
        let drivers = drivers(flags.drivers, &mut file);
        let default_node = default_node(flags.default_node, &mut file);
        let (policies, csidrivers) = sections(&mut file, &drivers, default_node.as_ref());
        let (fronts, relays) = sockets(flags.fronts, flags.relays, flags.holders, &mut file);
        let drivers_of_relays = drivers_of_relays(&mut file, &drivers);
        let store = store(flags.store, &mut file, directory);
        let calls = file.path("calls");
        let admin = admin(flags.admin, &mut file, fronts.as_deref(), &drivers);
        let view = file.path("view");
        let http = file.parsed("http", str::parse::<SocketAddr>);
        refuse_page(&mut file);
        let kubernetes =
            Kubernetes::read(&mut file, directory, flags.kubernetes, flags.publish_csinode);
        refuse_labels(&mut file, &policies, kubernetes.as_ref());
        let node_fronts = node_fronts(flags.node_fronts, &mut file, fronts.as_deref());
        let new_leases = file.yes_no("new_leases").unwrap_or(true);
        let dead_after = file.section("link", |link| link.number("dead_after_s", HOUR)).flatten();
        let tls = file.certificates(&flags.common, None);
        let common = file.common(&flags.common, dead_after);
        let (ca, hosts) = file.section("ca", ca).unwrap_or_default();
        let first_start = first_start(&mut file, hosts, ca.as_ref(), tls.as_ref(), store.as_ref());
        let replica = replica(flags.replica, flags.advertise, &mut file);
        let limits = file.section("limits", limits).unwrap_or_default();
        let quotas = file.section("quotas", quotas).unwrap_or_default();
        file.required("listen (--listen)", listen.first());
        file.required("drivers (--driver)", drivers.first());
        file.finish()?;
        // A missing one is a problem above, so this is only for the compiler.
        let (Some(admin), Some(store), Some(tls)) = (admin, store, tls) else {
            return Err(Problems(Vec::new()));
        };
        Ok(Self {
            listen,
            drivers,
            fronts,
            relays,
            drivers_of_relays,
            node_fronts,
            new_leases,
            default_node,
            policies,
            csidrivers,
            store,
            calls: flags.calls.or(calls),
            admin,
            view: flags.view.or(view),
            http: flags.http.or(http),
            kubernetes,
            tls,
            ca,
            first_start,
            advertise: replica.endpoints.first().cloned(),
            replica,
            limits,
            quotas,
            common,
        })
    }
}

impl Config {
    /// The meaning of a key that it has and that has changed since an earlier version.
    pub fn change(&self) -> Option<&'static str> {
        self.kubernetes.as_ref()?.metadata.as_ref()?.change()
    }

    /// The part that `csi-cloud doctor` checks.
    pub fn installation(&self) -> Installation {
        Installation {
            listen: self.listen.clone(),
            advertise: self.advertise.clone(),
            drivers: self.drivers.clone(),
            fronts: self.fronts.clone(),
            is_relayed: !self.relays.is_empty(),
            store: self.store.clone(),
            tls: self.tls.clone(),
            ca: self.ca.clone(),
        }
    }
}

/// Refuses the section of the page, which is a program of its own.
fn refuse_page(file: &mut Reader) {
    let section = file.section("page", |page| {
        page.one_or_list("listen", |text| Ok::<_, String>(text.to_owned()));
        page.path("token_file");
        page.path("client_ca");
    });
    if section.is_some() {
        file.problem(
            "[page] is not a section of csi-cloud any more: csi-page serves the page; write \
             view = \"PATH\" here, and start csi-page with --view PATH, --listen, --tokens and \
             --client-ca",
        );
    }
}

fn default_node(flag: Option<NodeName>, file: &mut Reader) -> Option<NodeName> {
    let configured = file.parsed("default_node", str::parse::<NodeName>);
    flag.or(configured)
}

fn drivers(flags: Vec<DriverName>, file: &mut Reader) -> Vec<DriverName> {
    let mut drivers = over(flags, file.list("drivers", str::parse::<DriverName>));
    drivers.sort();
    drivers.dedup();
    drivers
}

/// Where sidecars call: the directory of the fronts, and the socket relays. One of them must be
/// there.
fn sockets(
    fronts: Option<PathBuf>,
    relays: Vec<Address>,
    holders: Vec<Address>,
    file: &mut Reader,
) -> (Option<PathBuf>, Vec<Address>) {
    let listed = file.path("fronts");
    let fronts = fronts.or(listed);
    let former = file.list("holders", str::parse::<Address>);
    if !holders.is_empty() || !former.is_empty() {
        warn!("holders (--holders) is called relays (--relays) since 0.3.0; rename it");
    }
    let listed = [file.list("relays", str::parse::<Address>), former].concat();
    let relays = over([relays, holders].concat(), listed);
    if relays.is_empty() {
        file.required("fronts (--fronts)", fronts.as_ref());
    }
    (fronts, relays)
}

/// The sections `[relay."NAME"]`.
fn drivers_of_relays(
    file: &mut Reader,
    drivers: &[DriverName],
) -> BTreeMap<FrontName, BTreeSet<DriverName>> {
    let sections = file.named_sections("relay", |name, section| {
        let relay = name.parse::<FrontName>();
        let relay = relay.map_err(|error| section.problem(format!("[relay.{name:?}] {error}")));
        let named = section.list("drivers", str::parse::<DriverName>);
        let named: BTreeSet<_> = named.into_iter().collect();
        for driver in named.iter().filter(|driver| !drivers.contains(driver)) {
            section.problem(format!(
                "[relay.{name:?}] names {driver}, which is not among the drivers (drivers, \
                 --driver)"
            ));
        }
        if named.is_empty() {
            section.problem(format!("[relay.{name:?}] drivers is missing or empty"));
        }
        relay.ok().map(|relay| (relay, named))
    });
    sections.into_iter().flatten().collect()
}

/// The store. A relative path in the file is relative to the file's directory.
fn store(flag: Option<StoreAt>, file: &mut Reader, directory: Option<&Path>) -> Option<StoreAt> {
    let store = file.parsed("store", str::parse::<StoreAt>);
    let store = store.map(|store| store.below(directory.unwrap_or_else(|| Path::new(""))));
    let missing = "store (--store), where csi-cloud keeps which volume lives where,";
    let store = file.required(missing, flag.or(store));
    let etcd = file.section("etcd", EtcdSettings::read).unwrap_or_default();
    store.map(|store| store.with_etcd(etcd))
}

/// This csi-cloud as one of several.
fn replica(name: Option<String>, advertise: Vec<Endpoint>, file: &mut Reader) -> Replica {
    let configured = file.parsed("replica", replica_name);
    let endpoints = over(advertise, file.one_or_list("advertise", str::parse::<Endpoint>));
    Replica { name: name.or(configured).unwrap_or_else(host_name), endpoints }
}

/// The admin socket's path, which must not be a front's.
fn admin(
    flag: Option<PathBuf>,
    file: &mut Reader,
    fronts: Option<&Path>,
    drivers: &[DriverName],
) -> Option<PathBuf> {
    let named = file.path("admin");
    let default = || fronts.map(|fronts| fronts.join(SOCKET_NAME));
    let admin = flag.or(named).or_else(default);
    if let Some((admin, fronts)) = admin.as_deref().zip(fronts)
        && let Some(driver) = front_at(admin, fronts, drivers)
    {
        file.problem(format!(
            "admin (--admin) is the front of the driver {driver}; it needs a place of its own"
        ));
    }
    if admin.is_none() {
        file.problem(
            "admin (--admin) is missing; without fronts (--fronts) the admin socket has no other \
             place",
        );
    }
    admin
}

/// The driver whose front is at the path, if there is one.
fn front_at<'a>(path: &Path, fronts: &Path, drivers: &'a [DriverName]) -> Option<&'a DriverName> {
    drivers.iter().find(|driver| fronts.join(format!("{driver}.sock")) == path)
}

fn node_fronts(flag: bool, file: &mut Reader, fronts: Option<&Path>) -> bool {
    let configured = file.yes_no("node_fronts");
    let node_fronts = flag || configured.unwrap_or(false);
    if node_fronts && fronts.is_none() {
        file.problem("node_fronts (--node-fronts) are below fronts (--fronts), which is missing");
    }
    node_fronts
}

type Policies = BTreeMap<DriverName, Policy>;
type CsiDrivers = BTreeMap<DriverName, CsiDriverSettings>;

/// The sections `[driver."NAME"]`, with defaults for drivers that have none.
fn sections(
    file: &mut Reader,
    drivers: &[DriverName],
    default_node: Option<&NodeName>,
) -> (Policies, CsiDrivers) {
    let mut policies = Policies::new();
    let mut csidrivers = CsiDrivers::new();
    // One for all drivers: the API server names the labels of each node once.
    let labels = NodeLabels::default();
    for driver in drivers {
        policies.insert(driver.clone(), Policy::new(default_node));
        csidrivers.insert(driver.clone(), CsiDriverSettings::default());
    }
    file.named_sections("driver", |name, section| {
        let policy = Policy::read(name, section, default_node, &labels);
        let csidriver = CsiDriverSettings::read(name, section);
        match drivers.iter().find(|driver| driver.as_str() == name) {
            Some(driver) => {
                policies.insert(driver.clone(), policy);
                csidrivers.insert(driver.clone(), csidriver);
            }
            None => section
                .problem(format!("[driver.{name:?}] is not among the drivers (drivers, --driver)")),
        }
    });
    (policies, csidrivers)
}

/// Without Kubernetes, refuses drivers whose nodes are selected by label: only it has labels.
fn refuse_labels(file: &mut Reader, policies: &Policies, kubernetes: Option<&Kubernetes>) {
    if kubernetes.is_some() {
        return;
    }
    for (driver, _) in policies.iter().filter(|(_, policy)| policy.labels().is_some()) {
        file.problem(format!(
            "[driver.\"{driver}\"] selects nodes by label, and csi-cloud reads labels from \
             Kubernetes only; add [kubernetes] (--kubernetes), or name the nodes"
        ));
    }
}

/// The section `[ca]`: the CA, and the hosts for which it is made.
fn ca(section: &mut Reader) -> (Option<CaSettings>, Option<Vec<String>>) {
    let cert = section.path("cert");
    let key = section.path("key");
    let node_life = node_life(section);
    let cloud_days = section.number("cloud_days", MAX_DAYS).unwrap_or(CLOUD_DAYS);
    let renew_after_end = renew_after_end(section);
    let hosts = section.some("hosts", |host| Ok::<_, String>(host.to_owned()));
    let cert = section.required("[ca] cert", cert);
    let key = section.required("[ca] key", key);
    let settings = |(cert, key)| CaSettings { cert, key, node_life, cloud_days, renew_after_end };
    (cert.zip(key).map(settings), hosts)
}

/// `[ca] hosts`: what csi-cloud makes at its first start.
fn first_start(
    file: &mut Reader,
    hosts: Option<Vec<String>>,
    ca: Option<&CaSettings>,
    tls: Option<&Files>,
    store: Option<&StoreAt>,
) -> Option<FirstStart> {
    // Of a missing one there is a problem already.
    let (hosts, ca, tls, store) = (hosts?, ca?, tls?, store?);
    let store = match store {
        StoreAt::File(path) => Some(path.clone()),
        StoreAt::Memory => None,
        StoreAt::Etcd(_) => {
            file.problem(
                "[ca] hosts: csi-clouds with one store share one CA, so none of them makes it; \
                 make it with `csi-cloud ca init`, give it to each, and take out hosts",
            );
            return None;
        }
    };
    match FirstStart::new(hosts, ca, tls, store) {
        Ok(first_start) => Some(first_start),
        Err(faults) => {
            faults.iter().for_each(|fault| file.problem(fault.to_string()));
            None
        }
    }
}

/// The life of a node's certificate: in days, or as a duration of any unit.
fn node_life(section: &mut Reader) -> Duration {
    let days = section.number("node_days", MAX_DAYS);
    let life = section.parsed("node_life", |text| {
        let life = duration(text)?;
        if !(SHORTEST_LIFE..=DAY * u32::from(MAX_DAYS)).contains(&life) {
            return Err("a node's certificate lives for 2m to 3650d".to_owned());
        }
        Ok(life)
    });
    if days.is_some() && life.is_some() {
        section.problem("[ca] has both node_days and node_life; leave out one of them");
    }
    life.unwrap_or_else(|| DAY * u32::from(days.unwrap_or(NODE_DAYS)))
}

/// For how long a node's certificate that has ended is renewed.
fn renew_after_end(section: &mut Reader) -> Duration {
    let window = section.parsed("renew_after_end", |text| match duration(text)? {
        window if window <= RENEWABLE => Ok(window),
        _ => Err("a certificate that has ended is renewed for 90d at most".to_owned()),
    });
    window.unwrap_or(RENEWABLE)
}

fn limits(section: &mut Reader) -> Limits {
    let mut limits = Limits::default();
    if let Some(handshakes) = section.number("handshakes_per_address", u16::MAX) {
        limits.handshakes = handshakes.into();
    }
    if let Some(connections) = section.number("connections_per_address", u16::MAX) {
        limits.connections = connections.into();
    }
    limits
}

fn quotas(section: &mut Reader) -> Quotas {
    let mut quotas = Quotas::default();
    for (quota, value, unit) in [
        (Quota::Drivers, &mut quotas.drivers, 1),
        (Quota::Segments, &mut quotas.segments, 1),
        (Quota::StringBytes, &mut quotas.string_bytes, 1),
        (Quota::NodeIdBytes, &mut quotas.node_id_bytes, 1),
        (Quota::Volumes, &mut quotas.volumes, 1),
        (Quota::DurableBytes, &mut quotas.durable_bytes, MIB),
        (Quota::ListBytes, &mut quotas.list_bytes, MIB),
        (Quota::StoreBytes, &mut quotas.store_bytes, MIB),
        (Quota::ControlMessages, &mut quotas.control_messages_at_once, 1),
    ] {
        if let Some(number) = section.number(quota.setting(), u16::MAX) {
            *value = u64::from(number) * unit;
        }
    }
    if let Some(number) = section.number("control_messages_per_s", u16::MAX) {
        quotas.control_messages_per_s = number.into();
    }
    quotas
}

fn over<T>(flags: Vec<T>, file: Vec<T>) -> Vec<T> {
    if flags.is_empty() { file } else { flags }
}
