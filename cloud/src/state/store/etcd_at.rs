//! The location of a store in etcd: `etcd://HOST:PORT,HOST:PORT/PREFIX`, and how it is reached.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use http::uri::Authority;
use proto::host::program::runtime;

use super::backend::{Backend, StoreError};
use super::replicated::offline::{Blocking, Offline};
use crate::etcd::client::Client;
use crate::etcd::settings::EtcdSettings;

/// The longest prefix in bytes.
const LONGEST: usize = 256;

/// A store in etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdAt {
    /// The members: host and port.
    pub hosts: Vec<String>,
    /// The prefix of all keys, with a slash at its begin and none at its end.
    pub prefix: String,
    /// Certificates, user and password.
    pub settings: EtcdSettings,
}

/// The text is no such location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoEtcdAt;

impl EtcdAt {
    /// A client of the members.
    ///
    /// # Errors
    /// A file or an address cannot be used.
    pub fn client(&self) -> Result<Client, StoreError> {
        let made = Client::new(&self.hosts, &self.settings);
        made.map_err(|why| StoreError::Open { store: self.to_string(), why: Arc::new(why) })
    }

    /// Opens it for a command, whose calls block.
    ///
    /// # Errors
    /// As for [`EtcdAt::client`] and [`Offline::open`], or the system gives no threads.
    pub(super) fn offline(&self) -> anyhow::Result<Offline> {
        let etcd = self.blocking()?;
        Ok(Offline::open(etcd)?)
    }

    /// Fills an empty one for a command.
    ///
    /// # Errors
    /// As for [`EtcdAt::client`] and [`Offline::import`], or the system gives no threads.
    pub(super) fn import(
        &self,
        fill: impl FnOnce(&mut dyn Backend) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        Offline::import(self.blocking()?, fill)
    }

    /// The number of commits in it. It blocks.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn look(&self) -> anyhow::Result<u64> {
        Ok(self.offline()?.commits())
    }

    fn blocking(&self) -> anyhow::Result<Blocking> {
        let runtime = runtime(1)?;
        // The client's connections belong to the runtime.
        let client = {
            let _entered = runtime.enter();
            self.client()?
        };
        Ok(Blocking::new(runtime, client, &self.prefix, self.to_string()))
    }
}

impl FromStr for EtcdAt {
    type Err = NoEtcdAt;

    fn from_str(text: &str) -> Result<Self, NoEtcdAt> {
        let rest = text.strip_prefix("etcd://").ok_or(NoEtcdAt)?;
        let (hosts, prefix) = rest.split_once('/').ok_or(NoEtcdAt)?;
        let hosts = hosts.split(',').map(host).collect::<Option<_>>().ok_or(NoEtcdAt)?;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
        let is_prefix = (1..=LONGEST).contains(&prefix.len()) && prefix.bytes().all(is_plain);
        if !is_prefix || prefix.split('/').any(str::is_empty) {
            return Err(NoEtcdAt);
        }
        Ok(Self { hosts, prefix: format!("/{prefix}"), settings: EtcdSettings::default() })
    }
}

/// A host with a port, and without a user.
fn host(text: &str) -> Option<String> {
    let authority: Authority = text.parse().ok()?;
    let is_host = !authority.host().is_empty() && !text.contains('@');
    (is_host && authority.port_u16().is_some()).then(|| text.to_owned())
}

impl fmt::Display for EtcdAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd://{}{}", self.hosts.join(","), self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_and_a_prefix_are_a_location() {
        let at: EtcdAt = "etcd://a:2379,[::1]:1,10.0.0.1:2/x/y".parse().unwrap();
        assert_eq!(at.hosts, ["a:2379", "[::1]:1", "10.0.0.1:2"]);
        assert_eq!(at.prefix, "/x/y");
        assert_eq!(at.to_string().parse(), Ok(at));
    }

    #[test]
    fn anything_else_is_none() {
        for text in [
            "etcd://a:1",
            "etcd://a:1/",
            "etcd://a:1//x",
            "etcd://a:1/x/",
            "etcd://a/x",
            "etcd://:1/x",
            "etcd://a:1,/x",
            "etcd:///x",
            "etcd:a:1/x",
            "etcd://u:p@a:1/x",
            "etcd://a:1/x y",
        ] {
            assert_eq!(text.parse::<EtcdAt>(), Err(NoEtcdAt), "{text}");
        }
    }
}
