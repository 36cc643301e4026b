//! `csi-cloud relay`: holds the sidecars' sockets.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use proto::admin::command_line::Local;
use proto::host::program::runtime;
use proto::link::tls::Files;
use proto::names::DriverName;
use tracing::warn;

use crate::relay;
use crate::relay::address::Address;

/// Hold the sidecars' sockets and their calls while the csi-cloud that serves is started again.
#[derive(Debug, Args)]
pub(super) struct Relay {
    /// The directory of the CSI sockets, one NAME.sock for each driver
    #[arg(long, value_name = "DIR")]
    fronts: PathBuf,
    /// A driver to hold a CSI socket for; give it once for each
    #[arg(long = "driver", value_name = "NAME", required = true)]
    drivers: Vec<DriverName>,
    /// Where csi-cloud takes the calls (its key `relays`): unix:PATH or https://HOST:PORT; of
    /// several the first that answers
    #[arg(long, value_name = "PLACE", required = true)]
    to: Vec<Address>,
    /// For https: the CA that both ends trust, PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    ca: Option<PathBuf>,
    /// This relay's certificate, PEM: `csi-cloud ca issue --relay NAME` makes it
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE", requires = "ca")]
    key: Option<PathBuf>,
    /// How long calls in flight may still take when told to stop
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=3600))]
    grace: u16,
}

impl Local for Relay {
    const NAME: &'static str = "relay";

    fn run(self) -> anyhow::Result<()> {
        let Self { fronts, drivers, to: servers, ca, cert, key, grace } = self;
        // clap requires all three or none.
        let tls = ca.zip(cert).zip(key).map(|((ca, cert), key)| Files { ca, cert, key });
        let grace = Duration::from_secs(grace.into());
        let settings = relay::run::Settings { fronts, drivers, servers, tls, grace };
        runtime(1)?.block_on(relay::run::run(settings))
    }
}

/// The former name of `relay`.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(super) struct FormerRelay {
    #[command(flatten)]
    relay: Relay,
}

impl Local for FormerRelay {
    const NAME: &'static str = "front";

    fn run(self) -> anyhow::Result<()> {
        warn!("`csi-cloud front` is called `csi-cloud relay` now; the old name goes after 0.3");
        self.relay.run()
    }
}
