//! Keeps one link to the cloud and serves the cloud's calls on it.
//!
//! Promises: the first endpoint that links is used, and the preferred one is tried again; a new
//! link is up before the older one is let go; a link ends only after its calls; the certificate is
//! renewed on the link; a long outage costs little. It may use `identity` and `edge-calls`.

pub mod backoff;
pub mod dial;
mod endpoints;
mod hello;
mod keep;
mod looks;
mod outage;
pub mod proxies;
mod renew;
mod serve;
#[cfg(test)]
mod tests;
