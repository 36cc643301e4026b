//! The settings of Kubernetes: where its API is, and what is published there.

use std::convert::Infallible;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use proto::config::{HOUR, Reader};

use crate::metadata::handlers::{HandlerRule, Handlers};

/// The default grace, in seconds.
const GRACE: u16 = 60;

/// The settings of Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubernetes {
    /// The location of its API.
    pub api: ApiAt,
    /// Whether CSINode entries, node labels and node ids are published.
    pub publish: Publish,
    /// The time for a node's kubelet to publish a driver before csi-cloud does. One second to one
    /// hour.
    ///
    /// A driver that is gone from its node is withdrawn after the same time.
    pub grace: Duration,
    /// The ServiceAccount whose tokens let nodes join; none if none does.
    pub join_service_account: Option<ServiceAccount>,
    /// The handlers that take direct volumes, if the metadata of pods is watched and sent to their
    /// nodes.
    pub metadata: Option<Handlers>,
}

/// A ServiceAccount: `NAMESPACE/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceAccount {
    namespace: String,
    name: String,
}

/// A text is no ServiceAccount.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no ServiceAccount; write NAMESPACE/NAME, for example edge-csi/csi-edge")]
pub struct InvalidAccount(String);

impl ServiceAccount {
    /// Its user name in Kubernetes.
    pub(super) fn username(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.name)
    }
}

impl fmt::Display for ServiceAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl FromStr for ServiceAccount {
    type Err = InvalidAccount;

    fn from_str(text: &str) -> Result<Self, InvalidAccount> {
        let is_name = |name: &str| {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
            !name.is_empty() && name.bytes().all(allowed)
        };
        match text.split_once('/') {
            Some((namespace, name)) if is_name(namespace) && is_name(name) => {
                Ok(Self { namespace: namespace.into(), name: name.into() })
            }
            _ => Err(InvalidAccount(text.into())),
        }
    }
}

/// The location of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiAt {
    /// The address in a pod's environment.
    InCluster,
    /// The address in a kubeconfig.
    Kubeconfig(PathBuf),
}

/// Whether there is Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiChoice {
    /// There is none.
    Off,
    /// Its API is here.
    At(ApiAt),
}

/// Whether CSINode entries and labels of nodes are published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Publish {
    /// At once, unless they are there.
    On,
    /// Never; published entries are withdrawn.
    Off,
    /// If the node's own kubelet has not done it within the grace.
    #[default]
    Auto,
}

/// A text is none of the three.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is none of \"on\", \"off\" and \"auto\"")]
pub struct InvalidPublish(String);

impl FromStr for ApiChoice {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "off" => Self::Off,
            "in-cluster" => Self::At(ApiAt::InCluster),
            path => Self::At(ApiAt::Kubeconfig(path.into())),
        })
    }
}

impl FromStr for Publish {
    type Err = InvalidPublish;

    fn from_str(text: &str) -> Result<Self, InvalidPublish> {
        match text {
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::Auto),
            other => Err(InvalidPublish(other.into())),
        }
    }
}

impl ApiChoice {
    /// A relative path in the file is relative to the file's directory.
    fn below(self, directory: Option<&Path>) -> Self {
        match (self, directory) {
            (Self::At(ApiAt::Kubeconfig(path)), Some(directory)) => {
                Self::At(ApiAt::Kubeconfig(directory.join(path)))
            }
            (other, _) => other,
        }
    }
}

impl Kubernetes {
    /// Reads the section `[kubernetes]` and puts the flags over it. None without either, and with
    /// `off`.
    pub(crate) fn read(
        file: &mut Reader,
        directory: Option<&Path>,
        api_flag: Option<ApiChoice>,
        publish_flag: Option<Publish>,
    ) -> Option<Self> {
        let section = file.section("kubernetes", |section| {
            let api = section.parsed("api", str::parse::<ApiChoice>);
            let api = api.map(|api| api.below(directory));
            let publish = section.parsed("publish_csinode", str::parse::<Publish>);
            let grace = section.number("grace_s", HOUR);
            let account = section.parsed("join_service_account", str::parse::<ServiceAccount>);
            let metadata = metadata(section);
            (api.unwrap_or(ApiChoice::At(ApiAt::InCluster)), publish, grace, account, metadata)
        });
        let (api, publish, grace, account, metadata) =
            section.unwrap_or((ApiChoice::Off, None, None, None, None));
        let ApiChoice::At(api) = api_flag.unwrap_or(api) else { return None };
        let publish = publish_flag.or(publish).unwrap_or_default();
        let grace = Duration::from_secs(grace.unwrap_or(GRACE).into());
        Some(Self { api, publish, grace, join_service_account: account, metadata })
    }
}

/// The handlers that take direct volumes; none without `metadata`.
fn metadata(section: &mut Reader) -> Option<Handlers> {
    let is_on = section.yes_no("metadata");
    let rules = section.some("direct_handlers", str::parse::<HandlerRule>);
    if rules.is_some() && is_on != Some(true) {
        section.problem("direct_handlers needs metadata = true: nothing else reads it");
    }
    is_on.filter(|is_on| *is_on).map(|_| rules.map(Handlers::new).unwrap_or_default())
}
