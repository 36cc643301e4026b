//! HTTP proxies between an edge and the cloud: which address goes through one, and the tunnel.
//!
//! TLS runs through the tunnel from end to end, so a proxy sees a name and a port, and nothing of a
//! link. A password shows in no text.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::pin::pin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use http::header::{HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION};
use http::{HeaderMap, HeaderValue, Request, StatusCode, Uri};
use http_body_util::Empty;
use hyper::client::conn::http1::handshake;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use super::addresses::Addresses;
use super::end::{Connect, Io};
use super::endpoint::Endpoint;
use super::network::{NodeNetwork, connect_tcp};

/// The variables that name the proxy; the first that is not empty counts.
pub const VARIABLES: [&str; 4] = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
/// The variables that name what is dialed directly.
pub const EXCEPTIONS: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// The time limit for a tunnel: less than for a handshake, so that the error names the proxy.
const TUNNEL: Duration = Duration::from_secs(8);
/// The port of a proxy that names none.
const PORT: u16 = 80;
/// The longest name of a way to authenticate that an error has.
const LONGEST: usize = 20;

/// A proxy as it was written, not yet read. It may hold a password, so it is not shown.
#[derive(Clone)]
pub struct ProxyText(String);

impl FromStr for ProxyText {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for ProxyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl ProxyText {
    /// The text of a configuration.
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// Reads it.
    ///
    /// # Errors
    /// It is no proxy.
    pub fn read(&self) -> Result<ProxySetting, NoProxyUrl> {
        self.0.parse()
    }
}

/// The reason why a text is no proxy. The text itself may hold a password.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "it is no HTTP proxy; write http://HOST:PORT, http://USER:PASSWORD@HOST:PORT with other \
     characters as %HH, or \"none\""
)]
pub struct NoProxyUrl;

/// The proxy that an edge uses for WebSocket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ProxySetting {
    /// The proxy of the environment: HTTPS_PROXY, ALL_PROXY and NO_PROXY.
    #[default]
    Environment,
    /// None, whatever the environment says.
    None,
    /// This one, whatever the environment says.
    Always(Proxy),
}

impl FromStr for ProxySetting {
    type Err = NoProxyUrl;

    fn from_str(text: &str) -> Result<Self, NoProxyUrl> {
        if text == "none" {
            return Ok(Self::None);
        }
        // Of a password that is not escaped, a part would be read as a host, and shown.
        let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains(['/', '?', '#']) || rest.matches('@').count() > 1 {
            return Err(NoProxyUrl);
        }
        let matcher = Matcher::builder().https(text).build();
        let found = matcher.intercept(&Uri::from_static("https://cloud.example/"));
        let proxy = found.map(Proxy::from).filter(Proxy::is_usable);
        proxy.map(Self::Always).ok_or(NoProxyUrl)
    }
}

impl ProxySetting {
    /// The network of a node with this setting. It connects over TCP through a proxy where one is
    /// to be used.
    pub fn network(&self) -> NodeNetwork {
        self.network_by(Addresses::system())
    }

    /// The same, with these addresses of names.
    pub fn network_by(&self, addresses: Addresses) -> NodeNetwork {
        let proxies = Arc::new(self.proxies());
        let direct = NodeNetwork::direct(addresses.clone());
        let connect: Connect = Arc::new(move |to| match proxies.of(&to) {
            None => (direct.connect)(to),
            Some(proxy) => {
                let addresses = direct.addresses.clone();
                Box::pin(
                    async move { proxy.tunnel(&to, &addresses).await.map_err(io::Error::other) },
                )
            }
        });
        NodeNetwork { addresses, connect, has_routes: true }
    }

    /// The proxy that would be used for an endpoint if its transport ran over TCP, and whether it
    /// does.
    pub fn of(&self, endpoint: &Endpoint) -> Option<(Proxy, bool)> {
        let proxy = self.proxies().of(&endpoint.address())?;
        Some((proxy, endpoint.transport.is_tcp()))
    }

    fn proxies(&self) -> Proxies {
        match self {
            Self::None => Proxies::Fixed(None),
            Self::Always(proxy) => Proxies::Fixed(Some(proxy.clone())),
            Self::Environment => environment(|name| std::env::var(name).ok()),
        }
    }
}

/// Chooses the proxy for an address.
#[cfg_attr(test, derive(Debug))]
enum Proxies {
    Fixed(Option<Proxy>),
    /// This one, but for what these exceptions name.
    Except {
        proxy: String,
        exceptions: String,
    },
}

impl Proxies {
    fn of(&self, to: &str) -> Option<Proxy> {
        match self {
            Self::Fixed(proxy) => proxy.clone(),
            Self::Except { proxy, exceptions } => {
                let to: Uri = format!("https://{to}/").parse().ok()?;
                let exceptions = exceptions_for(&to, exceptions);
                let matcher = Matcher::builder().https(proxy.as_str()).no(exceptions).build();
                matcher.intercept(&to).map(Proxy::from)
            }
        }
    }
}

/// The proxy by these environment variables. A proxy that cannot be read does not count.
fn environment(variable: impl Fn(&str) -> Option<String>) -> Proxies {
    let first = |names: &[&str]| {
        names.iter().find_map(|name| variable(name).filter(|text| !text.is_empty()))
    };
    let readable = |text: &String| matches!(text.parse(), Ok(ProxySetting::Always(_)));
    let proxy = first(&VARIABLES).filter(readable).unwrap_or_default();
    Proxies::Except { proxy, exceptions: first(&EXCEPTIONS).unwrap_or_default() }
}

/// The exceptions that count for an address, in the form that [`Matcher`] reads.
///
/// Kubernetes' own programs read them as Go's `httpproxy` does, so they mean the same here. An
/// entry with a port counts for that port alone. `*.x` and `.x` are the names below x, without x.
fn exceptions_for(to: &Uri, exceptions: &str) -> String {
    let host = to.host().unwrap_or_default().to_lowercase();
    let port = to.port_u16().unwrap_or(443);
    let entries = exceptions.split(',').map(|entry| entry.trim().to_lowercase());
    let counting = entries.filter_map(|entry| {
        let (name, of_port) = with_port(&entry);
        let name = name.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(name);
        let is_itself = name.strip_prefix('.').is_some_and(|parent| parent == host);
        let is_for = of_port.is_none_or(|of_port| of_port.parse() == Ok(port));
        (is_for && !is_itself).then(|| name.to_owned())
    });
    counting.collect::<Vec<_>>().join(",")
}

/// An exception's host, without brackets, and its port.
fn with_port(entry: &str) -> (&str, Option<&str>) {
    match entry.rsplit_once(':') {
        // An address of IPv6 without a port has more colons.
        Some((host, port)) if !host.contains(':') => (host, Some(port)),
        Some((host, port)) => match without_brackets(host) {
            Some(host) => (host, Some(port)),
            None => (without_brackets(entry).unwrap_or(entry), None),
        },
        None => (entry, None),
    }
}

fn without_brackets(host: &str) -> Option<&str> {
    host.strip_prefix('[')?.strip_suffix(']')
}

/// A proxy; its text has no credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    uri: Uri,
    credentials: Option<HeaderValue>,
}

impl From<Intercept> for Proxy {
    fn from(found: Intercept) -> Self {
        Self { uri: found.uri().clone(), credentials: found.basic_auth().cloned() }
    }
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.uri.scheme_str().unwrap_or("http");
        write!(f, "{scheme}://{}", self.address())
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The reason why there is no tunnel.
#[derive(Debug, thiserror::Error)]
enum TunnelError {
    /// Nobody is there.
    #[error("the proxy {0} cannot be reached")]
    Unreachable(String, #[source] io::Error),
    /// It says nothing.
    #[error("the proxy {0} did not answer within {TUNNEL:?}")]
    Silent(String),
    /// It wants others.
    #[error("the proxy {proxy} answered 407: {why}")]
    Credentials { proxy: String, why: String },
    /// It does not connect.
    #[error(
        "the proxy {proxy} answered {status} and made no tunnel; it must allow CONNECT to {to}"
    )]
    Refused { proxy: String, status: StatusCode, to: String },
    /// It does not speak HTTP, or went away.
    #[error("the proxy {0} did not answer as an HTTP proxy does")]
    Broken(String, #[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Proxy {
    /// True if it is one of HTTP.
    fn is_usable(&self) -> bool {
        self.uri.scheme_str() == Some("http") && !self.host().is_empty()
    }

    fn host(&self) -> &str {
        self.uri.host().unwrap_or_default()
    }

    fn address(&self) -> String {
        format!("{}:{}", self.host(), self.uri.port_u16().unwrap_or(PORT))
    }

    /// A connection to this address, through the proxy.
    async fn tunnel(self, to: &str, addresses: &Addresses) -> Result<Io, TunnelError> {
        let connected = timeout(TUNNEL, self.connect(to, addresses)).await;
        connected.unwrap_or_else(|_| Err(TunnelError::Silent(self.to_string())))
    }

    async fn connect(&self, to: &str, addresses: &Addresses) -> Result<Io, TunnelError> {
        let unreachable = |error| TunnelError::Unreachable(self.to_string(), error);
        let tcp = connect_tcp(addresses, &self.address(), addresses.is_narrow(to))
            .await
            .map_err(unreachable)?;
        let handshaken = handshake(TokioIo::new(tcp)).await;
        let (mut sender, connection) = handshaken.map_err(|error| self.broken(error))?;
        let request = self.request(to).map_err(|error| self.broken(error))?;
        let asked = async move {
            let answer = sender.send_request(request).await.map_err(|error| self.broken(error))?;
            if !answer.status().is_success() {
                return Err(self.refused(to, answer.status(), answer.headers()));
            }
            hyper::upgrade::on(answer).await.map_err(|error| self.broken(error))
        };
        // The connection ends when it has become the tunnel, or is gone.
        let connection = pin!(connection.with_upgrades());
        let tunnel = match select(pin!(asked), connection).await {
            Either::Left((tunnel, _)) => tunnel,
            Either::Right((_, asked)) => asked.await,
        };
        Ok(Box::new(TokioIo::new(tunnel?)))
    }

    fn request(&self, to: &str) -> http::Result<Request<Empty<Bytes>>> {
        let mut request = Request::connect(to).header(HOST, to);
        if let Some(credentials) = &self.credentials {
            request = request.header(PROXY_AUTHORIZATION, credentials.clone());
        }
        request.body(Empty::new())
    }

    fn broken(&self, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> TunnelError {
        TunnelError::Broken(self.to_string(), error.into())
    }

    fn refused(&self, to: &str, status: StatusCode, headers: &HeaderMap) -> TunnelError {
        let proxy = self.to_string();
        if status != StatusCode::PROXY_AUTHENTICATION_REQUIRED {
            return TunnelError::Refused { proxy, status, to: to.to_owned() };
        }
        let ways = ways(headers);
        let is_basic = ways.is_empty() || ways.iter().any(|way| way.eq_ignore_ascii_case("basic"));
        let why = match (&self.credentials, is_basic) {
            (_, false) => format!(
                "it asks for credentials by {}, and csi-edge can give user and password only \
                 (Basic)",
                ways.join(", ")
            ),
            (Some(_), true) => "it does not take this user and password".into(),
            (None, true) => "it asks for credentials; write http://USER:PASSWORD@HOST:PORT".into(),
        };
        TunnelError::Credentials { proxy, why }
    }
}

/// The ways to authenticate that a proxy offers.
fn ways(headers: &HeaderMap) -> Vec<String> {
    let offers = headers.get_all(PROXY_AUTHENTICATE).into_iter();
    let words = offers.filter_map(|offer| offer.to_str().ok()?.split_whitespace().next());
    words.map(|word| word.chars().take(LONGEST).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::chain;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    #[test]
    fn a_proxy_is_read_and_its_password_is_not_shown() {
        assert_eq!("none".parse(), Ok(ProxySetting::None));
        let read = |text: &str| match text.parse() {
            Ok(ProxySetting::Always(proxy)) => proxy,
            other => panic!("{text}: {other:?}"),
        };
        for (text, shown) in [
            ("http://proxy.example:3128", "http://proxy.example:3128"),
            ("proxy.example:3128", "http://proxy.example:3128"),
            ("http://proxy.example", "http://proxy.example:80"),
            ("http://[::1]:8080/", "http://[::1]:8080"),
        ] {
            let proxy = read(text);
            assert_eq!((proxy.to_string().as_str(), proxy.credentials), (shown, None));
        }
        let proxy = read("http://shop:s%40cret@proxy.example:3128");
        assert_eq!(proxy.credentials.as_ref().unwrap(), "Basic c2hvcDpzQGNyZXQ=");
        let shown = format!("{proxy} {proxy:?} {:?}", ProxySetting::Always(proxy.clone()));
        assert!(!shown.contains("cret"), "{shown}");
        assert_eq!(format!("{:?}", "http://u:secret@h".parse::<ProxyText>()), "Ok(***)");
    }

    #[test]
    fn another_text_is_refused_and_not_shown() {
        for text in [
            "",
            "http://",
            "socks5://h:1",
            "https://h:1",
            "http://u:se@cret@h:1",
            "http://u:se@cret#@h:1",
            "http://u:se/cret@h:1",
            "http://h:1/path",
        ] {
            let refused = ProxyText::new(text.into()).read().unwrap_err().to_string();
            assert!(refused.contains("http://USER:PASSWORD@HOST:PORT"), "{text}: {refused}");
            assert!(!refused.contains("cret"), "{refused}");
        }
    }

    #[test]
    fn the_environment_names_a_proxy_and_exceptions() {
        let with = |variables: &[(&str, &str)]| {
            let of = |name: &str| variables.iter().find(|(one, _)| *one == name);
            environment(|name| of(name).map(|(_, value)| (*value).to_owned()))
        };
        let no = ("no_proxy", "10.0.0.0/8, .shop.example, ::1");
        let proxies = with(&[("HTTPS_PROXY", "http://u:p@p:1"), no]);
        for (to, is_used) in [
            ("cloud.example:7443", true),
            ("192.0.2.1:7443", true),
            ("[::2]:7443", true),
            ("10.9.9.9:7443", false),
            ("cloud.shop.example:7443", false),
            ("[::1]:7443", false),
        ] {
            assert_eq!(proxies.of(to).is_some(), is_used, "{to}");
        }
        let of = |variables: &[(&str, &str)]| {
            with(variables).of("cloud.example:1").map(|proxy| proxy.to_string())
        };
        let all = ("ALL_PROXY", "http://all:1");
        assert_eq!(of(&[("https_proxy", ""), all]).as_deref(), Some("http://all:1"));
        assert_eq!(of(&[("https_proxy", "http://p:1"), all]).as_deref(), Some("http://p:1"));
        for text in ["socks5://p:1", "http://u:p@s#@p:1", "none"] {
            assert_eq!(of(&[("HTTPS_PROXY", text), all]), None, "{text}");
        }
        assert_eq!(of(&[]), None);
    }

    /// As `httpproxy` of Go decides, with which the kubelet and kubectl read the same variable.
    #[test]
    fn an_exception_may_have_a_port_or_name_only_what_is_below_it() {
        for (exceptions, to, is_used) in [
            ("cloud.example:7443", "cloud.example:7443", false),
            ("cloud.example:443", "cloud.example:7443", true),
            ("cloud.example:7443", "a.cloud.example:7443", false),
            ("*.example", "cloud.example:7443", false),
            ("*.example", "example:7443", true),
            (".example", "cloud.example:7443", false),
            (".example", "example:7443", true),
            ("example", "example:7443", false),
            ("example", "cloud.example:7443", false),
            ("example", "notexample:7443", true),
            ("EXAMPLE", "Cloud.example:7443", false),
            ("*", "cloud.example:7443", false),
            ("192.0.2.1:7443", "192.0.2.1:7443", false),
            ("192.0.2.1:443", "192.0.2.1:7443", true),
            ("192.0.2.0/24", "192.0.2.1:7443", false),
            ("[2001:db8::1]:7443", "[2001:db8::1]:7443", false),
            ("[2001:db8::1]:443", "[2001:db8::1]:7443", true),
            ("2001:db8::1", "[2001:db8::1]:7443", false),
            ("2001:db8::/32", "[2001:db8::1]:7443", false),
            ("*.other, cloud.example:1, cloud.example:7443", "cloud.example:7443", false),
            (", ,", "cloud.example:7443", true),
        ] {
            let exceptions = exceptions.to_owned();
            let proxies = Proxies::Except { proxy: "http://p:1".into(), exceptions };
            assert_eq!(proxies.of(to).is_some(), is_used, "{to} with {proxies:?}");
        }
    }

    #[test]
    fn quic_is_dialed_directly() {
        let setting: ProxySetting = "http://p:1".parse().unwrap();
        for (endpoint, is_used) in [("wss://c:1", true), ("quic://c:1", false)] {
            assert_eq!(setting.of(&endpoint.parse().unwrap()).unwrap().1, is_used, "{endpoint}");
        }
        assert_eq!(ProxySetting::None.of(&"wss://c:1".parse().unwrap()), None);
    }

    /// What is read of a proxy's answer, after CONNECT.
    async fn answered(answer: &[u8]) -> Result<Vec<u8>, String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = format!("http://u:pw@{}", listener.local_addr().unwrap());
        let setting: ProxySetting = proxy.parse().unwrap();
        let proxying = async {
            let (mut near, _) = listener.accept().await.unwrap();
            let mut asked = vec![0; 512];
            let length = near.read(&mut asked).await.unwrap();
            near.write_all(answer).await.unwrap();
            String::from_utf8(asked[..length].to_vec()).unwrap()
        };
        let reading = async {
            let mut io = (setting.network().connect)("cloud.example:7443".into()).await?;
            let mut read = Vec::new();
            io.read_to_end(&mut read).await?;
            Ok(read)
        };
        let (asked, read) = tokio::join!(proxying, reading);
        let asked = asked.to_lowercase();
        assert!(asked.starts_with("connect cloud.example:7443 http/1.1\r\n"), "{asked}");
        assert!(asked.contains("host: cloud.example:7443\r\n"), "{asked}");
        assert!(asked.contains("proxy-authorization: basic dtpwdw==\r\n"), "{asked}");
        read.map_err(|error: io::Error| chain(&error))
    }

    #[tokio::test]
    async fn what_follows_the_answer_is_the_tunnels() {
        let tunnel = answered(b"HTTP/1.1 200 OK\r\n\r\nhello").await;
        assert_eq!(tunnel.unwrap(), b"hello");
        let tunnel = answered(b"HTTP/1.0 200 Connection established\r\n\r\nhello").await;
        assert_eq!(tunnel.unwrap(), b"hello");
    }

    #[tokio::test]
    async fn another_answer_is_an_error_that_names_the_proxy() {
        let long = format!("407 No\r\nProxy-Authenticate: {}", "x".repeat(1000));
        for (answer, text) in [
            ("407 No", "answered 407: it does not take this user and password"),
            ("407 No\r\nProxy-Authenticate: NTLM", "by NTLM, and csi-edge can"),
            (&long, "by xxxxxxxxxxxxxxxxxxxx, and"),
            ("403 Forbidden", "403 Forbidden and made no tunnel"),
            ("502 Bad Gateway", "502 Bad Gateway and made no tunnel"),
        ] {
            let answer = format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\n\r\n");
            let error = answered(answer.as_bytes()).await.unwrap_err();
            assert!(error.starts_with("the proxy http://127.0.0.1:"), "{error}");
            assert!(error.contains(text) && !error.contains("pw"), "{error}");
        }
        for answer in ["", "SSH-2.0-x\r\n", "HTTP/1.1 200 OK\r\nx"] {
            let error = answered(answer.as_bytes()).await.unwrap_err();
            assert!(error.contains("did not answer as an HTTP proxy does"), "{answer}: {error}");
        }
    }
}
