//! Says at the start which endpoints are reached through an HTTP proxy.

use proto::link::endpoint::Endpoint;
use proto::link::proxy::{ProxySetting, ProxyText, VARIABLES};
use tracing::{info, warn};

/// Logs the way to each endpoint that a proxy is meant for.
pub fn log(setting: &ProxySetting, cloud: &[Endpoint]) {
    if *setting == ProxySetting::Environment {
        for variable in VARIABLES {
            let text = std::env::var(variable).ok().filter(|text| !text.is_empty());
            if let Some(Err(reason)) = text.map(|text| ProxyText::new(text).read()) {
                warn!(variable, %reason, "the environment's proxy is not used");
            }
        }
    }
    for cloud in cloud {
        match setting.of(cloud) {
            Some((proxy, true)) => info!(%cloud, %proxy, "dialed through a proxy"),
            Some((proxy, false)) => {
                info!(%cloud, %proxy, "dialed directly: QUIC does not go through an HTTP proxy");
            }
            None => {}
        }
    }
}
