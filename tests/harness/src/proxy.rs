//! An HTTP proxy on loopback that makes tunnels (CONNECT). It asks for credentials, counts tunnels,
//! and breaks or refuses them as a test tells it.

use std::net::SocketAddr;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use proto::host::tasks::Tasks;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A proxy; it ends when it is dropped.
pub struct Proxy {
    address: SocketAddr,
    state: watch::Sender<ProxyState>,
    tasks: Tasks,
}

/// What a proxy answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// It makes each tunnel.
    Open,
    /// It wants these credentials, `USER:PASSWORD`.
    Credentials(String),
    /// It wants credentials in a way that is not Basic.
    Negotiate,
    /// It refuses each tunnel with this status line.
    Refuse(&'static str),
    /// It says nothing.
    Silent,
}

struct ProxyState {
    rule: Rule,
    /// The tunnels that were made.
    tunnels: usize,
    /// All tunnels break when this changes.
    cuts: usize,
}

impl Proxy {
    /// A proxy with this rule.
    ///
    /// # Errors
    /// No port can be had.
    pub async fn new(rule: Rule) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let state = watch::Sender::new(ProxyState { rule, tunnels: 0, cuts: 0 });
        let tasks = Tasks::default();
        let inner = tasks.clone();
        let shared = state.clone();
        tasks.spawn_until_stop("proxy", async move {
            while let Ok((near, _)) = listener.accept().await {
                inner.spawn_until_stop("proxied", serve(near, shared.clone()));
            }
        });
        Ok(Self { address, state, tasks })
    }

    /// Its URL; `user` is empty or `USER:PASSWORD@`.
    pub fn url(&self, user: &str) -> String {
        format!("http://{user}{}", self.address)
    }

    /// The tunnels that it has made.
    pub fn tunnels(&self) -> usize {
        self.state.borrow().tunnels
    }

    /// Breaks all tunnels; new ones are made.
    pub fn cut(&self) {
        self.state.send_modify(|state| state.cuts += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

async fn serve(near: TcpStream, state: watch::Sender<ProxyState>) {
    let mut near = BufReader::new(near);
    let Some((to, credentials)) = read(&mut near).await else { return };
    let rule = state.borrow().rule.clone();
    let refusal = match rule {
        Rule::Open => None,
        Rule::Credentials(wanted) if credentials.as_deref() == Some(&basic(&wanted)) => None,
        Rule::Credentials(_) => Some("407 No\r\nProxy-Authenticate: Basic realm=\"x\""),
        Rule::Negotiate => Some("407 No\r\nProxy-Authenticate: Negotiate"),
        Rule::Refuse(status) => Some(status),
        Rule::Silent => return std::future::pending().await,
    };
    if let Some(refusal) = refusal {
        let answer = format!("HTTP/1.1 {refusal}\r\ncontent-length: 2\r\n\r\nno");
        let _ = near.write_all(answer.as_bytes()).await;
        return;
    }
    let Ok(mut far) = TcpStream::connect(to).await else { return };
    let mut states = state.subscribe();
    let cuts = states.borrow().cuts;
    state.send_modify(|state| state.tunnels += 1);
    if near.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.is_err() {
        return;
    }
    tokio::select! {
        _ = copy_bidirectional(&mut near, &mut far) => {}
        _ = states.wait_for(|state| state.cuts > cuts) => {}
    }
}

fn basic(credentials: &str) -> String {
    format!("Basic {}", BASE64_STANDARD.encode(credentials))
}

/// Reads a request: the address of a CONNECT, and the credentials.
async fn read(near: &mut BufReader<TcpStream>) -> Option<(String, Option<String>)> {
    let mut lines = near.lines();
    let first = lines.next_line().await.ok()??;
    let to = first.strip_prefix("CONNECT ")?.strip_suffix(" HTTP/1.1")?.to_owned();
    let mut credentials = None;
    while let Some(line) = lines.next_line().await.ok()?.filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(": ")?;
        if name.eq_ignore_ascii_case("proxy-authorization") {
            credentials = Some(value.to_owned());
        }
    }
    Some((to, credentials))
}
