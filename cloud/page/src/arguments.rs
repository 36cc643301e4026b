//! The command line: where the page is served, and who may see it.
//!
//! There is no page without a token file or a CA of clients. Without TLS it is served on this host
//! only, and then always by tokens.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::bail;
use clap::Parser;

/// Shows csi-cloud in a browser
#[derive(Clone, Debug, Parser)]
#[command(version, about)]
pub(crate) struct Arguments {
    /// csi-cloud's socket view (its key `view`, its flag --view)
    #[arg(long, value_name = "SOCKET")]
    pub(crate) view: PathBuf,
    /// Where the page is served: ADDRESS:PORT, or unix:PATH behind a proxy; may be given several
    /// times
    #[arg(long, required = true, value_name = "ADDRESS")]
    pub(crate) listen: Vec<PageAddress>,
    /// The page's certificate and its chain, PEM; read again when it changes
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) certificate: Option<PathBuf>,
    /// The key of the certificate, PEM
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub(crate) key: Option<PathBuf>,
    /// The tokens that let a browser in, one a line, of 32 or more characters each
    #[arg(long, value_name = "FILE")]
    pub(crate) tokens: Option<PathBuf>,
    /// The CA whose certificates let a browser in, PEM; not the CA of the nodes
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub(crate) client_ca: Option<PathBuf>,
}

/// A place at which the page is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PageAddress {
    /// An address of this host.
    Tcp(SocketAddr),
    /// A unix socket, without TLS.
    Unix(PathBuf),
}

impl FromStr for PageAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let address = match text.strip_prefix("unix:") {
            Some(path) => Some(Self::Unix(path.into())).filter(|_| !path.is_empty()),
            None => text.parse().ok().map(Self::Tcp),
        };
        address.ok_or_else(|| "use ADDRESS:PORT, or unix:PATH behind a proxy on this host".into())
    }
}

impl fmt::Display for PageAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Arguments {
    /// Refuses a page that nobody or everybody could see.
    ///
    /// # Errors
    /// The text says which flag is missing.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if self.tokens.is_none() && self.client_ca.is_none() {
            bail!("the page is open to nobody: add --tokens or --client-ca");
        }
        for address in &self.listen {
            let shows_certificates =
                matches!(address, PageAddress::Tcp(_)) && self.certificate.is_some();
            if self.tokens.is_none() && !shows_certificates {
                bail!("{address} shows no certificate of a client: add --tokens");
            }
            let is_here = match address {
                PageAddress::Tcp(address) => address.ip().to_canonical().is_loopback(),
                PageAddress::Unix(_) => true,
            };
            if !is_here && self.certificate.is_none() {
                bail!(
                    "{address} would serve the page without TLS where other hosts reach it: add \
                     --certificate and --key, or use a loopback address behind a proxy"
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(flags: &str) -> String {
        let flags = ["csi-page", "--view", "/v"].into_iter().chain(flags.split_whitespace());
        let checked = match Arguments::try_parse_from(flags) {
            Ok(arguments) => arguments.check(),
            Err(error) => return error.to_string(),
        };
        checked.err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn without_tls_the_page_is_for_this_host_only() {
        for address in ["127.0.0.1:80", "[::1]:0", "unix:/a/b"] {
            assert_eq!(problem(&format!("--listen {address} --tokens t")), "");
            assert_eq!(address.parse::<PageAddress>().unwrap().to_string(), address);
        }
        for address in ["0.0.0.0:80", "10.0.0.1:80", "[::]:80"] {
            let shown = problem(&format!("--listen {address} --tokens t"));
            assert!(shown.contains("other hosts reach it"), "{shown}");
            let secured = format!("--listen {address} --tokens t --certificate c --key k");
            assert_eq!(problem(&secured), "");
        }
        for address in ["", "localhost:80", "https://h", "unix:", "ftp://h:1"] {
            assert!(address.parse::<PageAddress>().is_err(), "{address}");
        }
    }

    #[test]
    fn a_page_that_nobody_or_everybody_could_see_is_a_problem() {
        let secured = "--listen 0.0.0.0:1 --certificate c --key k";
        assert!(problem(secured).contains("open to nobody"));
        assert_eq!(problem(&format!("{secured} --client-ca ca")), "");
        let both = format!("{secured} --client-ca ca --listen unix:/a");
        assert!(problem(&both).contains("shows no certificate"));
        assert_eq!(problem(&format!("{both} --tokens t")), "");
        assert!(problem("--tokens t").contains("--listen"));
        assert!(problem("--listen 0.0.0.0:1 --tokens t --key k").contains("--certificate"));
    }
}
