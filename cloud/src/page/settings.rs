//! Where the page is served, and who may see it.
//!
//! There is no page without a token file or a CA of clients. Without TLS it is served on this host
//! only, and then always by tokens.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use proto::config::Reader;

use crate::relay::address::Address;

/// The settings of the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageSettings {
    /// Where it is served; at least one.
    pub listen: Vec<PageAddress>,
    /// The file of the tokens that let a browser in.
    pub tokens: Option<PathBuf>,
    /// The CA whose certificates let a browser in.
    pub client_ca: Option<PathBuf>,
}

/// Where the page is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageAddress {
    /// With csi-cloud's certificate, at this host and port.
    Https(String, u16),
    /// Without TLS, at an address of this host.
    Http(SocketAddr),
    /// Without TLS, at a unix socket.
    Unix(PathBuf),
}

/// A text is no address for the page.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPageAddress {
    /// It is none at all.
    #[error(
        "{0:?} is no place for the page; use https://HOST:PORT, or behind a proxy on this host \
         http://127.0.0.1:PORT or unix:PATH"
    )]
    Form(String),
    /// Other hosts reach it.
    #[error(
        "{0:?} would serve the page without TLS where other hosts reach it; use https://HOST:PORT, \
         or a loopback address behind a proxy"
    )]
    Open(String),
}

impl FromStr for PageAddress {
    type Err = InvalidPageAddress;

    fn from_str(text: &str) -> Result<Self, InvalidPageAddress> {
        let invalid = || InvalidPageAddress::Form(text.to_owned());
        if let Some(address) = text.strip_prefix("http://") {
            let address = address.strip_suffix('/').unwrap_or(address);
            let address: SocketAddr = address.parse().map_err(|_| invalid())?;
            let is_here = address.ip().to_canonical().is_loopback();
            return if is_here {
                Ok(Self::Http(address))
            } else {
                Err(InvalidPageAddress::Open(text.into()))
            };
        }
        match text.parse::<Address>().map_err(|_| invalid())? {
            Address::Unix(path) => Ok(Self::Unix(path)),
            Address::Https { host, port } => Ok(Self::Https(host, port)),
        }
    }
}

impl fmt::Display for PageAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Https(host, port) => write!(f, "https://{host}:{port}"),
            Self::Http(address) => write!(f, "http://{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl PageAddress {
    fn has_tls(&self) -> bool {
        matches!(self, Self::Https(..))
    }
}

impl PageSettings {
    /// Reads the section `[page]` and puts the flags over it. None if there is to be no page.
    pub(crate) fn read(file: &mut Reader, flags: Self) -> Option<Self> {
        let section = file.section("page", |section| Self {
            listen: section.one_or_list("listen", str::parse::<PageAddress>),
            tokens: section.path("token_file"),
            client_ca: section.path("client_ca"),
        });
        let has_section = section.is_some();
        let section = section.unwrap_or_else(Self::none);
        let listen = if flags.listen.is_empty() { section.listen } else { flags.listen };
        let tokens = flags.tokens.or(section.tokens);
        let client_ca = flags.client_ca.or(section.client_ca);
        if listen.is_empty() {
            if has_section || tokens.is_some() || client_ca.is_some() {
                file.problem("[page] listen (--page) is missing, so nothing would be served");
            }
            return None;
        }
        if tokens.is_none() && client_ca.is_none() {
            file.problem(
                "the page is open to nobody: add [page] token_file (--page-token-file) or \
                 client_ca (--page-client-ca)",
            );
        }
        let plain = listen.iter().find(|address| !address.has_tls());
        if let (Some(address), None, Some(_)) = (plain, &tokens, &client_ca) {
            file.problem(format!(
                "{address} shows no certificate of a client; add [page] token_file \
                 (--page-token-file)"
            ));
        }
        Some(Self { listen, tokens, client_ca })
    }

    fn none() -> Self {
        Self { listen: Vec::new(), tokens: None, client_ca: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(listen: &[&str], tokens: bool, client_ca: bool) -> PageSettings {
        PageSettings {
            listen: listen.iter().map(|text| text.parse().unwrap()).collect(),
            tokens: tokens.then(|| "tokens".into()),
            client_ca: client_ca.then(|| "clients.crt".into()),
        }
    }

    fn problems(flags: PageSettings) -> String {
        let mut file = Reader::default();
        let _ = PageSettings::read(&mut file, flags);
        file.finish().err().map(|problems| problems.to_string()).unwrap_or_default()
    }

    #[test]
    fn without_tls_the_page_is_for_this_host_only() {
        for text in ["https://0.0.0.0:7445", "http://127.0.0.1:80", "http://[::1]:0", "unix:/a/b"] {
            assert_eq!(text.parse::<PageAddress>().unwrap().to_string(), text);
        }
        for text in ["http://0.0.0.0:80", "http://10.0.0.1:80", "http://[::]:80"] {
            let error = text.parse::<PageAddress>().unwrap_err();
            assert_eq!(error, InvalidPageAddress::Open(text.into()));
        }
        for text in ["", "http://localhost:80", "https://h", "0.0.0.0:80", "ftp://h:1"] {
            let error = text.parse::<PageAddress>().unwrap_err();
            assert_eq!(error, InvalidPageAddress::Form(text.into()));
        }
    }

    #[test]
    fn a_page_that_nobody_or_everybody_could_see_is_a_problem() {
        assert_eq!(problems(flags(&[], false, false)), "");
        assert_eq!(problems(flags(&["https://h:1"], true, false)), "");
        assert_eq!(problems(flags(&["https://h:1"], false, true)), "");
        assert_eq!(problems(flags(&["unix:/a"], true, true)), "");
        assert!(problems(flags(&["https://h:1"], false, false)).contains("open to nobody"));
        assert!(problems(flags(&[], true, false)).contains("[page] listen"));
        assert!(problems(flags(&["unix:/a"], false, true)).contains("no certificate"));
    }
}
