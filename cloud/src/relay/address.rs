//! Addresses at which csi-cloud takes the calls of socket relays: `unix:PATH` or
//! `https://HOST:PORT`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use http::Uri;
use http::uri::Authority;

/// An address at which csi-cloud takes the calls of socket relays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// On the same host, at this path.
    Unix(PathBuf),
    /// On this or another host, over TLS.
    Https {
        /// A host name or an address; an IPv6 address is in brackets.
        host: String,
        /// The TCP port; a listener takes any free port for 0.
        port: u16,
    },
}

/// A text is no address of csi-cloud.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no address for socket relays; use unix:PATH or https://HOST:PORT")]
pub struct InvalidAddress(String);

impl FromStr for Address {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        let invalid = || InvalidAddress(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.is_empty() { Err(invalid()) } else { Ok(Self::Unix(path.into())) };
        }
        let uri: Uri = text.parse().map_err(|_| invalid())?;
        let has_host = |authority: &&Authority| {
            !authority.as_str().contains('@') && !authority.host().is_empty()
        };
        let authority = uri.authority().filter(has_host).ok_or_else(invalid)?;
        let port = authority.port_u16().ok_or_else(invalid)?;
        let has_no_path = uri.path_and_query().is_none_or(|path| path == "/");
        if uri.scheme_str() != Some("https") || !has_no_path {
            return Err(invalid());
        }
        Ok(Self::Https { host: authority.host().to_owned(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Https { host, port } => write!(f, "https://{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_and_all_else_refused() {
        for text in ["unix:/run/x.sock", "https://cloud.example:7444", "https://[::1]:0"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!("unix:///run/x".parse::<Address>().unwrap(), Address::Unix("/run/x".into()));
        for text in
            ["", "unix:", "/run/x", "http://h:1", "https://h", "https://u@h:1", "https://h:1/x"]
        {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains("unix:PATH"), "{text}: {error}");
        }
    }
}
