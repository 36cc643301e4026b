//! The routes by which a node would reach the cloud, to see that they have changed.
//!
//! It asks the system from which address it would send. That follows a change of address, of the
//! default route and of an interface, and no change that a pod's network makes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Addresses that follow the default routes, because nobody has them (RFC 5737, RFC 3849).
const DEFAULT_ROUTES: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];
/// The port in a question about routes: nothing is sent there.
const DISCARD: u16 = 9;

/// The routes as they were when they were looked at last.
pub struct Routes {
    to: Vec<SocketAddr>,
    sources: Vec<Option<IpAddr>>,
}

impl Routes {
    /// Looks at the default routes, and at those to these addresses.
    pub(super) fn to(addresses: impl IntoIterator<Item = SocketAddr>) -> Self {
        let default = DEFAULT_ROUTES.map(|ip| SocketAddr::new(ip, DISCARD));
        let to: Vec<_> = default.into_iter().chain(addresses).collect();
        let sources = to.iter().map(source).collect();
        Self { to, sources }
    }

    /// Never changes, as a simulated network.
    pub(super) fn none() -> Self {
        Self { to: Vec::new(), sources: Vec::new() }
    }

    /// Looks again. True if there is a route that was not there before, or one from another
    /// address; a route that has gone away helps nobody.
    pub fn have_changed(&mut self) -> bool {
        self.take(self.to.iter().map(source).collect())
    }

    fn take(&mut self, sources: Vec<Option<IpAddr>>) -> bool {
        let mut pairs = self.sources.iter().zip(&sources);
        let has_changed = pairs.any(|(before, now)| now.is_some() && now != before);
        self.sources = sources;
        has_changed
    }
}

/// The address from which the system would send to `to`; `None` without a route.
fn source(to: &SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // Over UDP this chooses the route, and sends nothing.
    socket.connect(to).ok()?;
    socket.local_addr().ok().map(|addr| addr.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_route_or_source_is_a_change_and_a_lost_one_is_not() {
        let [one, other] =
            [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)].map(|ip| Some(IpAddr::V4(ip)));
        let mut routes = Routes { to: Vec::new(), sources: vec![one, None] };
        assert!(!routes.take(vec![one, None]));
        assert!(!routes.take(vec![None, None]), "it has gone");
        assert!(routes.take(vec![one, None]), "it came back");
        assert!(routes.take(vec![other, None]), "from another address");
        assert!(routes.take(vec![other, one]), "a new one");
    }

    #[test]
    fn the_route_to_loopback_is_known_and_does_not_change() {
        let mut routes = Routes::to([SocketAddr::from(([127, 0, 0, 1], 1))]);
        assert_eq!(routes.sources.last(), Some(&Some(Ipv4Addr::LOCALHOST.into())));
        assert!(!routes.have_changed());
    }
}
