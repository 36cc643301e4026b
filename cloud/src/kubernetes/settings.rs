//! Whether there is a Kubernetes, where its API is, and what is published there. Without it everything else works.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use proto::config::{HOUR, Reader};

/// For how long a node's own kubelet may publish a driver before we do, if nothing is said, in seconds.
const GRACE: u16 = 60;

/// What is done with Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubernetes {
    /// Where its API is.
    pub api: ApiAt,
    /// Whether CSINode entries, node labels and node ids are published.
    pub publish: Publish,
    /// For how long a node's own kubelet may publish a driver before we do, and for how long a driver may be gone
    /// from its node before what we published is withdrawn. One second to one hour.
    pub grace: Duration,
}

/// Where the API is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiAt {
    /// As a pod is told.
    InCluster,
    /// As a kubeconfig says.
    Kubeconfig(PathBuf),
}

/// The API, or that there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Where {
    /// There is no Kubernetes.
    Off,
    /// There is one.
    At(ApiAt),
}

/// Whether what a node has is published in its CSINode and its labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Publish {
    /// At once, unless it is there.
    On,
    /// Never; what was published is withdrawn.
    Off,
    /// If the node's own kubelet has not done it within the grace.
    #[default]
    Auto,
}

/// Why a text is none of the three.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is none of \"on\", \"off\" and \"auto\"")]
pub struct NoPublish(String);

impl FromStr for Where {
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
    type Err = NoPublish;

    fn from_str(text: &str) -> Result<Self, NoPublish> {
        match text {
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::Auto),
            other => Err(NoPublish(other.into())),
        }
    }
}

impl Where {
    /// A relative path of the file is below the file's directory.
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
    /// Takes the section `[kubernetes]`, over which flags go. None without either, and with `off`.
    pub(crate) fn read(
        file: &mut Reader,
        directory: Option<&Path>,
        flags: (Option<Where>, Option<Publish>),
    ) -> Option<Self> {
        let section = file.section("kubernetes", |section| {
            let api = section.parsed("api", str::parse::<Where>).map(|api| api.below(directory));
            let publish = section.parsed("publish_csinode", str::parse::<Publish>);
            (api.unwrap_or(Where::At(ApiAt::InCluster)), publish, section.number("grace_s", HOUR))
        });
        let (api, publish, grace) = section.unwrap_or((Where::Off, None, None));
        let Where::At(api) = flags.0.unwrap_or(api) else { return None };
        let publish = flags.1.or(publish).unwrap_or_default();
        Some(Self { api, publish, grace: Duration::from_secs(grace.unwrap_or(GRACE).into()) })
    }
}
