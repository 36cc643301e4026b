//! Ports of programs that are started again.
//!
//! The system gives ports above these to connections. One of them could take a program's port while
//! that does not run. A client that dials such a port on this host can even connect to itself.

use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use anyhow::Context;
use parking_lot::Mutex;

/// The ports of programs: below those of connections, and below those of Kubernetes' Services.
const PORTS: std::ops::Range<u16> = 12_000..30_000;

/// Reservations of this process's ports, which end with it: other tests do not take a port whose
/// program is down.
static TAKEN: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());

/// A port that stays with a program that is started again.
///
/// # Errors
/// There is none.
pub fn free() -> anyhow::Result<u16> {
    let ports = std::iter::repeat_with(|| rand::random_range(PORTS)).take(100);
    ports.into_iter().find(|port| take(*port)).context("no port is free")
}

fn take(port: u16) -> bool {
    let name = SocketAddr::from_abstract_name(format!("edge-csi-tests/{port}"));
    let Ok(reservation) = name.and_then(|name| UnixListener::bind_addr(&name)) else {
        return false;
    };
    TAKEN.lock().push(reservation);
    let at = ("127.0.0.1", port);
    TcpListener::bind(at).is_ok() && UdpSocket::bind(at).is_ok()
}

/// The same URL, with a port that stays instead of 0.
///
/// # Errors
/// No port is free.
pub fn with_port(url: &str) -> anyhow::Result<String> {
    Ok(match url.strip_suffix(":0") {
        Some(host) => format!("{host}:{}", free()?),
        None => url.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_given_once() {
        let port = free().unwrap();
        assert!(!take(port));
    }
}
