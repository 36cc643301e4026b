//! What an operator can say to csi-cloud: a TOML file, and flags that override it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use proto::config::{Common, HOUR, Problems, Reader};
use proto::link::endpoint::Endpoint;
use proto::link::tls::Files;
use proto::names::{DriverName, NodeName};

use crate::config::arguments::Serve;
use crate::kubernetes::csidriver::CsiDriverSettings;
use crate::kubernetes::settings::Kubernetes;
use crate::nodes::admission::Limits;
use crate::relay::address::Address;
use crate::state::policy::Policy;
use crate::state::store::url::StoreAt;

pub mod admin_arguments;
pub mod arguments;

/// All that csi-cloud runs on.
#[derive(Debug, PartialEq, Eq)]
pub struct Config {
    /// Where edges dial; at least one.
    pub listen: Vec<Endpoint>,
    /// The drivers that have a front, each once; at least one.
    pub drivers: Vec<DriverName>,
    /// The directory of the fronts' sockets; none if all callers come by holders.
    pub fronts: Option<PathBuf>,
    /// Where holders of fronts' sockets bring their calls.
    pub holders: Vec<Address>,
    /// Each node has a front for each driver as well: `FRONTS/NODE/DRIVER.sock`.
    pub node_fronts: bool,
    /// Where calls go that name no node.
    pub default_node: Option<NodeName>,
    /// One for each of `drivers`.
    pub policies: BTreeMap<DriverName, Policy>,
    /// What their CSIDriver objects say: one for each of `drivers`.
    pub objects: BTreeMap<DriverName, CsiDriverSettings>,
    /// Where it is kept what lives where.
    pub store: StoreAt,
    /// The socket of the commands that show and change what is known.
    pub admin: PathBuf,
    /// Where `/livez`, `/readyz` and `/metrics` are served, if they are.
    pub http: Option<SocketAddr>,
    /// What is done with Kubernetes, if there is one.
    pub kubernetes: Option<Kubernetes>,
    /// Certificates.
    pub tls: Files,
    /// What one remote address may take.
    pub limits: Limits,
    /// What csi-edge is told as well.
    pub common: Common,
}

impl Config {
    /// Reads the file that the flags name, and puts the flags over it.
    ///
    /// # Errors
    /// Everything that is wrong with either.
    pub fn load(flags: Serve) -> Result<Self, Problems> {
        let directory = flags.common.config.as_deref().and_then(Path::parent).map(Path::to_owned);
        let mut file = Reader::open(flags.common.config.as_deref());
        let listen = over(flags.listen, file.list("listen", str::parse::<Endpoint>));
        let mut drivers = over(flags.drivers, file.list("drivers", str::parse::<DriverName>));
        drivers.sort();
        drivers.dedup();
        let default_node = file.parsed("default_node", str::parse::<NodeName>);
        let default_node = flags.default_node.or(default_node);
        let (policies, objects) = policies(&mut file, &drivers, default_node.as_ref());
        let fronts = file.path("fronts");
        let fronts = flags.fronts.or(fronts);
        let holders = over(flags.holders, file.list("holders", str::parse::<Address>));
        if holders.is_empty() {
            file.required("fronts (--fronts)", fronts.as_ref());
        }
        let store = file.parsed("store", str::parse::<StoreAt>);
        let store = store.map(|store| store.below(directory.as_deref().unwrap_or_else(|| Path::new(""))));
        let missing = "store (--store), where csi-cloud keeps which volume lives where,";
        let store = file.required(missing, flags.store.or(store));
        let admin = admin(flags.admin, &mut file, fronts.as_deref(), &drivers);
        let http = file.parsed("http", str::parse::<SocketAddr>);
        let publish = (flags.kubernetes, flags.publish_csinode);
        let kubernetes = Kubernetes::read(&mut file, directory.as_deref(), publish);
        let node_fronts = file.yes_no("node_fronts");
        let node_fronts = flags.node_fronts || node_fronts.unwrap_or(false);
        if node_fronts && fronts.is_none() {
            file.problem("node_fronts (--node-fronts) are below fronts (--fronts), which is missing");
        }
        let dead_after = file.section("link", |link| link.number("dead_after_s", HOUR)).flatten();
        let (tls, common) = file.common(flags.common, dead_after);
        let limits = file.section("limits", limits).unwrap_or_default();
        file.required("listen (--listen)", listen.first());
        file.required("drivers (--driver)", drivers.first());
        file.finish()?;
        // What is missing has been noted, so this is only for the compiler.
        let (Some(admin), Some(store), Some(tls)) = (admin, store, tls) else {
            return Err(Problems(Vec::new()));
        };
        let http = flags.http.or(http);
        Ok(Self {
            listen,
            drivers,
            fronts,
            holders,
            node_fronts,
            default_node,
            policies,
            objects,
            store,
            admin,
            http,
            kubernetes,
            tls,
            limits,
            common,
        })
    }
}

/// The admin socket's path, which no front has.
fn admin(
    flag: Option<PathBuf>,
    file: &mut Reader,
    fronts: Option<&Path>,
    drivers: &[DriverName],
) -> Option<PathBuf> {
    let named = file.path("admin");
    let admin = flag.or(named).or_else(|| fronts.map(|fronts| fronts.join(crate::admin::SOCKET_NAME)));
    if let Some(driver) = admin.as_deref().zip(fronts).and_then(|both| front(both, drivers)) {
        file.problem(format!(
            "admin (--admin) is the front of the driver {driver}; it needs a place of its own"
        ));
    }
    if admin.is_none() {
        file.problem(
            "admin (--admin) is missing; without fronts (--fronts) the admin socket has no other place",
        );
    }
    admin
}

/// The driver whose front is at the path, if there is one.
fn front<'a>((path, fronts): (&Path, &Path), drivers: &'a [DriverName]) -> Option<&'a DriverName> {
    drivers.iter().find(|driver| fronts.join(format!("{driver}.sock")) == path)
}

fn policies(
    file: &mut Reader,
    drivers: &[DriverName],
    default_node: Option<&NodeName>,
) -> (BTreeMap<DriverName, Policy>, BTreeMap<DriverName, CsiDriverSettings>) {
    let default = |driver: &DriverName| (driver.clone(), Policy::new(default_node));
    let mut policies: BTreeMap<_, _> = drivers.iter().map(default).collect();
    let no_settings = |driver: &DriverName| (driver.clone(), CsiDriverSettings::default());
    let mut objects: BTreeMap<_, _> = drivers.iter().map(no_settings).collect();
    file.named_sections("driver", |name, section| {
        let policy = Policy::read(name, section, default_node);
        let object = CsiDriverSettings::read(name, section);
        match drivers.iter().find(|driver| driver.as_str() == name) {
            Some(driver) => {
                policies.insert(driver.clone(), policy);
                objects.insert(driver.clone(), object);
            }
            None => {
                section.problem(format!("[driver.{name:?}] is not among the drivers (drivers, --driver)"))
            }
        }
    });
    (policies, objects)
}

fn limits(section: &mut Reader) -> Limits {
    let mut limits = Limits::default();
    for (key, limit) in [
        ("handshakes_per_address", &mut limits.handshakes),
        ("connections_per_address", &mut limits.connections),
    ] {
        *limit = section.number(key, u16::MAX).map_or(*limit, usize::from);
    }
    limits
}

fn over<T>(flags: Vec<T>, file: Vec<T>) -> Vec<T> {
    if flags.is_empty() { file } else { flags }
}

#[cfg(test)]
mod tests;
