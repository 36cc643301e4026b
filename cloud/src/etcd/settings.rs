//! Settings of the connection to etcd beside its addresses: certificates, user and password.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proto::config::Reader;
use proto::host::private;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tracing::warn;

use crate::etcd::login::Login;

/// The time for a connection.
const CONNECT: Duration = Duration::from_secs(2);
/// The interval of keep-alive pings, and the time limit for their answers.
const ALIVE: Duration = Duration::from_secs(3);
/// The flow-control window of a stream and of a connection, in bytes.
const WINDOW: u32 = 4 << 20;

/// The settings of the section `[etcd]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdSettings {
    /// The CA of its members, PEM. Without it there is no TLS.
    pub ca: Option<PathBuf>,
    /// This client's certificate and its private key, PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The user, and the file that has the password.
    pub user: Option<(String, PathBuf)>,
}

/// The reason why no client can be made.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A file cannot be read.
    #[error("{}, which [etcd] names, cannot be read", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// The file system's error.
        #[source]
        source: io::Error,
    },
    /// Others may read the private key or the password.
    #[error(transparent)]
    Private(#[from] private::PrivateError),
    /// An address or a certificate is none.
    #[error("the address {host} or a certificate of [etcd] cannot be used")]
    Address {
        /// The address.
        host: String,
        /// The fault.
        #[source]
        source: tonic::transport::Error,
    },
    /// The password is no text.
    #[error("the password in {} is no text of UTF-8", .0.display())]
    Password(PathBuf),
}

/// A contradiction in the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Contradiction {
    /// One of a pair is missing.
    #[error("cert and key belong together; etcd's client certificate needs both")]
    Identity,
    /// The same of the user.
    #[error("user and password_file belong together")]
    User,
    /// A certificate without TLS.
    #[error("cert needs ca: without the CA of etcd there is no TLS")]
    NoCa,
}

impl EtcdSettings {
    /// Puts the parts together.
    ///
    /// # Errors
    /// One of a pair is missing.
    pub fn of(
        ca: Option<PathBuf>,
        (cert, key): (Option<PathBuf>, Option<PathBuf>),
        (user, password): (Option<String>, Option<PathBuf>),
    ) -> Result<Self, Contradiction> {
        let identity = pair(cert, key).ok_or(Contradiction::Identity)?;
        let user = pair(user, password).ok_or(Contradiction::User)?;
        if identity.is_some() && ca.is_none() {
            return Err(Contradiction::NoCa);
        }
        Ok(Self { ca, identity, user })
    }

    /// Takes the keys of the section `[etcd]`.
    pub fn read(section: &mut Reader) -> Self {
        let ca = section.path("ca");
        let identity = (section.path("cert"), section.path("key"));
        let user = section.parsed("user", |text| Ok::<_, Contradiction>(text.to_owned()));
        let user = (user, section.path("password_file"));
        Self::of(ca, identity, user).unwrap_or_else(|wrong| {
            section.problem(format!("[etcd] {wrong}"));
            Self::default()
        })
    }

    /// One channel to each member; none is connected yet.
    ///
    /// # Errors
    /// A file or an address cannot be used.
    pub(super) fn channels(&self, hosts: &[String]) -> Result<Vec<Channel>, SettingsError> {
        let tls = self.tls()?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        self.warn_of_plain(hosts);
        let channel = |host: &String| {
            let wrong = |source| SettingsError::Address { host: host.clone(), source };
            let endpoint = Endpoint::from_shared(format!("{scheme}://{host}")).map_err(wrong)?;
            let endpoint = match &tls {
                Some(tls) => endpoint.tls_config(tls.clone()).map_err(wrong)?,
                None => endpoint,
            };
            let endpoint = endpoint
                .connect_timeout(CONNECT)
                .http2_keep_alive_interval(ALIVE)
                .keep_alive_timeout(ALIVE)
                .keep_alive_while_idle(true)
                .initial_stream_window_size(WINDOW)
                .initial_connection_window_size(WINDOW);
            Ok(endpoint.connect_lazy())
        };
        hosts.iter().map(channel).collect()
    }

    /// Warns of etcd on other hosts without TLS: who is on the way reads the hashes of tokens and
    /// all records, and can change them.
    fn warn_of_plain(&self, hosts: &[String]) {
        if let Some(host) = hosts.iter().find(|host| self.is_plain_at(host)) {
            warn!(
                host,
                "etcd is reached without TLS: whoever is on the way can read and change the store; \
                 set ca, cert and key in [etcd]"
            );
        }
    }

    /// True if this member is on another host, and reached without TLS.
    fn is_plain_at(&self, host: &str) -> bool {
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        let name = name.trim_matches(['[', ']']);
        let is_loopback = name.parse::<IpAddr>().map_or(name == "localhost", |at| at.is_loopback());
        self.ca.is_none() && !is_loopback
    }

    /// The user and the password, if there are any.
    ///
    /// # Errors
    /// The file of the password cannot be read, is not UTF-8, or can be read by others.
    pub(super) fn login(&self) -> Result<Option<Login>, SettingsError> {
        let Some((user, path)) = &self.user else { return Ok(None) };
        private::check(path)?;
        let password = String::from_utf8(read(path)?);
        let password = password.map_err(|_| SettingsError::Password(path.clone()))?;
        Ok(Some(Login::new(user, password.trim_end_matches(['\r', '\n']))))
    }

    fn tls(&self) -> Result<Option<ClientTlsConfig>, SettingsError> {
        let Some(ca) = &self.ca else { return Ok(None) };
        let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(ca)?));
        let Some((cert, key)) = &self.identity else { return Ok(Some(tls)) };
        private::check(key)?;
        Ok(Some(tls.identity(Identity::from_pem(read(cert)?, read(key)?))))
    }
}

/// Reads a file. Those of a Secret are links, so links are followed.
fn read(path: &Path) -> Result<Vec<u8>, SettingsError> {
    std::fs::read(path).map_err(|source| SettingsError::File { path: path.to_owned(), source })
}

/// Both or neither.
fn pair<A, B>(one: Option<A>, other: Option<B>) -> Option<Option<(A, B)>> {
    match (one, other) {
        (Some(one), Some(other)) => Some(Some((one, other))),
        (None, None) => Some(None),
        (Some(_), None) | (None, Some(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_belongs_together_comes_together() {
        let path = || Some(PathBuf::from("/a"));
        let of = EtcdSettings::of;
        assert!(of(path(), (path(), path()), (Some("u".into()), path())).is_ok());
        assert!(of(path(), (None, None), (None, None)).is_ok());
        assert_eq!(of(path(), (path(), None), (None, None)), Err(Contradiction::Identity));
        assert_eq!(of(None, (path(), path()), (None, None)), Err(Contradiction::NoCa));
        assert_eq!(of(None, (None, None), (None, path())), Err(Contradiction::User));
    }

    #[test]
    fn a_member_on_another_host_without_tls_is_found() {
        let plain = EtcdSettings::default();
        for host in ["127.0.0.1:2379", "[::1]:2379", "localhost:2379"] {
            assert!(!plain.is_plain_at(host), "{host}");
        }
        for host in ["etcd-0:2379", "192.0.2.1:2379", "[2001:db8::1]:2379"] {
            assert!(plain.is_plain_at(host), "{host}");
            let encrypted = EtcdSettings { ca: Some("/ca".into()), ..EtcdSettings::default() };
            assert!(!encrypted.is_plain_at(host), "{host}");
        }
    }

    #[test]
    fn a_password_that_others_can_read_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let settings = EtcdSettings {
            user: Some(("csi-cloud".into(), file.path().into())),
            ..EtcdSettings::default()
        };
        let login = |mode| {
            std::fs::set_permissions(file.path(), Permissions::from_mode(mode)).unwrap();
            settings.login().map(|login| login.is_some())
        };
        assert!(login(0o440).unwrap());
        assert!(matches!(login(0o644), Err(SettingsError::Private(_))));
    }
}
