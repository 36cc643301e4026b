//! Endpoints of the cloud, which edges dial: `wss://host:port` or `quic://host:port`.
//!
//! There is no plaintext mode: an address that asks for one has an error of its own.

use std::fmt;
use std::str::FromStr;

use http::Uri;
use serde::Deserialize;

/// The transport of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// WebSocket over TLS over TCP.
    Ws,
    /// QUIC over UDP.
    Quic,
}

impl Transport {
    /// All transports.
    pub const ALL: [Self; 2] = [Self::Ws, Self::Quic];

    /// The scheme of its endpoints' URLs.
    pub const fn scheme(self) -> &'static str {
        match self {
            Self::Ws => "wss",
            Self::Quic => "quic",
        }
    }

    /// Whether it runs over TCP, so that an HTTP proxy can carry it. Any other runs over UDP.
    pub const fn is_tcp(self) -> bool {
        match self {
            Self::Ws => true,
            Self::Quic => false,
        }
    }

    /// Whether a node can join over it with a token.
    pub const fn takes_tokens(self) -> bool {
        match self {
            Self::Ws => true,
            Self::Quic => false,
        }
    }
}

/// A transport and an address.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Endpoint {
    /// The transport.
    pub transport: Transport,
    /// A host name or an address; an IPv6 address is in brackets.
    pub host: String,
    /// The TCP or UDP port; 0, for a listener, is any that is free.
    pub port: u16,
}

impl Endpoint {
    /// The address as a resolver takes it: `host:port`.
    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

/// The reason why a text is not an endpoint.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// It asks for a link without TLS.
    #[error(
        "{0:?} would be a link without TLS, which does not exist; use wss://HOST:PORT or \
         quic://HOST:PORT"
    )]
    Plaintext(String),
    /// It is malformed.
    #[error("{0:?} is no address of a link; use wss://HOST:PORT or quic://HOST:PORT")]
    Malformed(String),
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let malformed = || EndpointError::Malformed(text.to_owned());
        let (scheme, _) = text.split_once("://").ok_or_else(malformed)?;
        if scheme == "ws" || scheme == "http" {
            return Err(EndpointError::Plaintext(text.to_owned()));
        }
        let transport = Transport::ALL.into_iter().find(|transport| transport.scheme() == scheme);
        let transport = transport.ok_or_else(malformed)?;
        let uri: Uri = text.parse().map_err(|_| malformed())?;
        let authority =
            uri.authority().filter(|a| !a.as_str().contains('@') && !a.host().is_empty());
        let (authority, port) =
            authority.and_then(|a| Some((a, a.port_u16()?))).ok_or_else(malformed)?;
        if uri.path_and_query().is_some_and(|path| path != "/") {
            return Err(malformed());
        }
        Ok(Self { transport, host: authority.host().to_owned(), port })
    }
}

impl TryFrom<String> for Endpoint {
    type Error = EndpointError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}:{}", self.transport.scheme(), self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_endpoint_is_read_back() {
        for text in ["wss://cloud.example:7443", "quic://127.0.0.1:0", "quic://[::1]:65535"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn other_text_is_refused_with_the_form_to_use() {
        for text in ["ws://h:1", "http://h:1"] {
            assert!(matches!(text.parse::<Endpoint>(), Err(EndpointError::Plaintext(_))), "{text}");
        }
        for text in [
            "",
            "h:1",
            "wss://h",
            "wss://:1",
            "wss://h:65536",
            "wss://u@h:1",
            "wss://h:1/x",
            "tcp://h:1",
        ] {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(error.contains("wss://HOST:PORT"), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_an_endpoint_or_an_error(text in "(wss|quic)?(://)?.*") {
            if let Ok(endpoint) = text.parse::<Endpoint>() {
                prop_assert_eq!(endpoint.to_string().parse::<Endpoint>().unwrap(), endpoint);
            }
        }
    }
}
