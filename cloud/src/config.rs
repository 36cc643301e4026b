//! What an operator can say to csi-cloud: a TOML file, and flags that override it.

use std::path::PathBuf;

use proto::config::{Common, HOUR, Problems, Reader};
use proto::identity::{DriverName, NodeName};
use proto::link::endpoint::Endpoint;
use proto::link::tls::Files;

use crate::accept::Limits;
use crate::cli::Serve;

/// All that csi-cloud runs on.
#[derive(Debug, PartialEq, Eq)]
pub struct Config {
    /// Where edges dial; at least one.
    pub listen: Vec<Endpoint>,
    /// The drivers that have a front, each once; at least one.
    pub drivers: Vec<DriverName>,
    /// The directory of the fronts' sockets.
    pub fronts: PathBuf,
    /// Where calls go that name no node.
    pub default_node: Option<NodeName>,
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
        let mut file = Reader::open(flags.common.config.as_deref());
        let listen = over(flags.listen, file.list("listen", str::parse::<Endpoint>));
        let mut drivers = over(flags.drivers, file.list("drivers", str::parse::<DriverName>));
        let default_node = file.parsed("default_node", str::parse::<NodeName>);
        let fronts = file.path("fronts");
        let fronts = file.required("fronts (--fronts)", flags.fronts.or(fronts));
        let dead_after = file.section("link", |link| link.number("dead_after_s", HOUR)).flatten();
        let (tls, common) = file.common(flags.common, dead_after);
        let limits = file.section("limits", limits).unwrap_or_default();
        file.required("listen (--listen)", listen.first());
        file.required("drivers (--driver)", drivers.first());
        drivers.sort();
        drivers.dedup();
        file.finish()?;
        // What is missing has been noted, so this is only for the compiler.
        let (Some(fronts), Some(tls)) = (fronts, tls) else { return Err(Problems(Vec::new())) };
        let default_node = flags.default_node.or(default_node);
        Ok(Self { listen, drivers, fronts, default_node, tls, limits, common })
    }
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
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn load(file: &str, flags: &[&str]) -> Result<Config, Problems> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cloud.toml");
        proto::publish::publish(&path, file.as_bytes(), 0o600, proto::publish::Existing::Keep).unwrap();
        let path = path.to_str().unwrap().to_owned();
        let args = ["csi-cloud", "serve", "--config", &path].into_iter().chain(flags.iter().copied());
        match Cli::try_parse_from(args).unwrap().command {
            Command::Serve(flags) => Config::load(flags),
            Command::Ca(_) => unreachable!(),
        }
    }

    const WHOLE: &str = "listen = [\"wss://0.0.0.0:7443\"]\ndrivers = [\"b.example\", \"a.example\", \"b.example\"]\n\
        fronts = \"/run/x\"\ndefault_node = \"n1\"\nworkers = 3\n[tls]\nca = \"/ca\"\ncert = \"/c\"\nkey = \"/k\"\n";

    #[test]
    fn a_flag_overrides_the_file() {
        let config = load(WHOLE, &["--listen", "quic://[::1]:1", "--workers", "4"]).unwrap();
        assert_eq!(config.listen.iter().map(ToString::to_string).collect::<Vec<_>>(), ["quic://[::1]:1"]);
        assert_eq!(
            config.drivers.iter().map(DriverName::as_str).collect::<Vec<_>>(),
            ["a.example", "b.example"]
        );
        assert_eq!((config.common.workers, config.default_node.unwrap().as_str()), (4, "n1"));
    }

    #[test]
    fn all_that_is_wrong_is_named_at_once() {
        let file = "listen = [\"ws://h:1\"]\ndefault_node = \"N 1\"\nworkers = \"two\"\nworker = 1\n[tls]\ncrt = \"\"\n\
            [limits]\nconnections_per_address = 0\n";
        let text = load(file, &[]).unwrap_err().to_string();
        for expected in [
            "link without TLS",
            "\"N 1\" is no node name",
            "workers is a whole number",
            "unknown key \"worker\"",
            "unknown key \"crt\"",
            "connections_per_address is a whole number from 1 to 65535",
            "drivers (--driver) is missing",
            "fronts (--fronts) is missing",
            "(--ca)",
            "(--cert)",
            "(--key)",
        ] {
            assert!(text.contains(expected), "{expected} is not in {text}");
        }
    }
}
