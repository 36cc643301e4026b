//! What an operator can say to csi-edge: a TOML file, and flags that override it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use proto::config::{Problems, Reader};
use proto::identity::DriverName;
use proto::link::endpoint::Endpoint;
use proto::link::tls::Files;

use crate::cli::{DriverAt, Serve};

/// All that csi-edge runs on.
#[derive(Debug, PartialEq, Eq)]
pub struct Config {
    /// Where the cloud is.
    pub cloud: Endpoint,
    /// The directory of this node's own CSI sockets; none without one.
    pub fronts: Option<PathBuf>,
    /// Certificates.
    pub tls: Files,
    /// The drivers' sockets.
    pub drivers: BTreeMap<DriverName, PathBuf>,
    /// Worker threads.
    pub workers: u16,
}

impl Config {
    /// Reads the file that the flags name, and puts the flags over it.
    ///
    /// # Errors
    /// Everything that is wrong with either.
    pub fn load(flags: Serve) -> Result<Self, Problems> {
        let mut file = Reader::open(flags.common.config.as_deref());
        let cloud = file.parsed("cloud", str::parse::<Endpoint>);
        let cloud = file.required("cloud (--cloud)", flags.cloud.or(cloud));
        let fronts = file.path("fronts");
        let (tls, workers) = file.common(flags.common);
        let listed = file.sections("drivers", |driver| {
            let (name, socket) = (driver.parsed("name", str::parse::<DriverName>), driver.path("socket"));
            if name.is_none() || socket.is_none() {
                driver.problem("[[drivers]] a driver has a name and a socket");
            }
            Some(DriverAt { name: name?, socket: socket? })
        });
        let listed =
            if flags.drivers.is_empty() { listed.into_iter().flatten().collect() } else { flags.drivers };
        let drivers = by_name(listed, &mut file);
        file.finish()?;
        // What is missing has been noted, so this is only for the compiler.
        let (Some(cloud), Some(tls)) = (cloud, tls) else { return Err(Problems(Vec::new())) };
        Ok(Self { cloud, fronts: flags.fronts.or(fronts), tls, drivers, workers })
    }
}

fn by_name(listed: Vec<DriverAt>, file: &mut Reader) -> BTreeMap<DriverName, PathBuf> {
    if listed.is_empty() {
        file.problem("no driver is named ([[drivers]] or --driver)");
    }
    let mut drivers = BTreeMap::new();
    for DriverAt { name, socket } in listed {
        if let Some(other) = drivers.insert(name.clone(), socket) {
            file.problem(format!("driver {name} is named twice, once at {}", other.display()));
        }
    }
    drivers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn load(file: &str, flags: &[&str]) -> Result<Config, Problems> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("edge.toml");
        proto::publish::publish(&path, file.as_bytes(), 0o600, proto::publish::Existing::Keep).unwrap();
        let path = path.to_str().unwrap().to_owned();
        let args = ["csi-edge", "serve", "--config", &path].into_iter().chain(flags.iter().copied());
        let Command::Serve(flags) = Cli::try_parse_from(args).unwrap().command;
        Config::load(flags).map(|mut config| {
            config.tls.ca = config.tls.ca.strip_prefix(dir.path()).unwrap_or(&config.tls.ca).to_owned();
            config
        })
    }

    const WHOLE: &str = "cloud = \"wss://cloud.example:7443\"\nfronts = \"/run/x\"\n[tls]\nca = \"ca.crt\"\n\
        cert = \"/c\"\nkey = \"/k\"\n[[drivers]]\nname = \"d.example\"\nsocket = \"/d.sock\"\n";

    #[test]
    fn a_flag_overrides_the_file() {
        let config = load(WHOLE, &["--cloud", "quic://other:1", "--driver", "e.example=/e.sock"]).unwrap();
        assert_eq!(config.cloud.to_string(), "quic://other:1");
        assert_eq!(config.tls.ca, PathBuf::from("ca.crt"), "relative to the file");
        assert_eq!(config.drivers.keys().map(DriverName::as_str).collect::<Vec<_>>(), ["e.example"]);
        assert_eq!(config.workers, 1);
    }

    #[test]
    fn all_that_is_missing_is_named() {
        let text = load("clod = 1\n", &[]).unwrap_err().to_string();
        for expected in ["cloud (--cloud)", "(--ca)", "(--cert)", "(--key)", "no driver is named", "\"clod\""]
        {
            assert!(text.contains(expected), "{expected} is not in {text}");
        }
    }

    #[test]
    fn a_driver_named_twice_is_refused() {
        let twice = format!("{WHOLE}[[drivers]]\nname = \"d.example\"\nsocket = \"/other.sock\"\n");
        assert!(load(&twice, &[]).unwrap_err().to_string().contains("d.example is named twice"));
        let half = format!("{WHOLE}[[drivers]]\nname = \"x.example\"\nsoket = \"/other.sock\"\n");
        let text = load(&half, &[]).unwrap_err().to_string();
        assert!(text.contains("a name and a socket") && text.contains("\"soket\""), "{text}");
    }
}
