//! A bad network between two network namespaces, one for the cloud and one for the edge. A router
//! between them limits the rate and delays, loses and reorders packets, for TCP and UDP alike.
//!
//! Both sides use the kernel's real network stack, so measurements hold for a real network of this
//! kind.

mod path;
mod router;
mod space;
#[cfg(test)]
mod test_net;

use std::net::Ipv4Addr;

pub use path::{Counts, Path, Shape};
pub use space::Space;

use self::router::Router;
use crate::tier;

/// Each network is alone in its namespaces, so all have the same addresses.
const CLOUD: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const EDGE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// Two namespaces and what connects them. All of it goes when this is dropped.
pub struct Net {
    // First, so that its devices go before their namespaces.
    router: Router,
    /// Where csi-cloud runs.
    pub cloud: Space,
    /// Where csi-edge runs.
    pub edge: Space,
}

impl Net {
    /// A network that does this in both directions.
    ///
    /// # Errors
    /// We are not root, or the machine has no namespaces or tun devices.
    pub async fn new(shape: Shape, seed: u64) -> anyhow::Result<Self> {
        Self::uneven(shape, shape, seed).await
    }

    /// A network for a test. It is none, with a message, where this user or machine cannot have
    /// one.
    ///
    /// # Errors
    /// The same, if `CI` is `true`, because no tier may be skipped there.
    pub async fn for_test(shape: Shape, seed: u64) -> anyhow::Result<Option<Self>> {
        let made = Self::new(shape, seed).await;
        match made {
            Ok(net) => Ok(Some(net)),
            Err(error) => {
                tier::skipped("bad networks", &format!("{error:#}"), false)?;
                Ok(None)
            }
        }
    }

    /// A network with a shape for each direction.
    ///
    /// # Errors
    /// As for [`Net::new`].
    pub async fn uneven(to_edge: Shape, to_cloud: Shape, seed: u64) -> anyhow::Result<Self> {
        let cloud = Space::new().await?;
        let edge = Space::new().await?;
        let at_cloud = cloud.tun(CLOUD, EDGE)?;
        let at_edge = edge.tun(EDGE, CLOUD)?;
        let paths = [Path::new(to_edge, seed), Path::new(to_cloud, seed.wrapping_add(1))];
        Ok(Self { router: Router::start(at_cloud, at_edge, paths), cloud, edge })
    }

    /// The address of the cloud, as seen from the edge.
    pub fn host(&self) -> Ipv4Addr {
        CLOUD
    }

    /// Loses all packets of both directions from now on, and tells nobody.
    pub fn swallow(&self) {
        self.router.swallow();
    }

    /// The counts of packets so far, to the edge and to the cloud.
    pub fn counts(&self) -> [Counts; 2] {
        self.router.counts()
    }
}
