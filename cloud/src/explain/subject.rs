//! What is to be explained.

use std::fmt;

use proto::names::{DriverName, NodeName};
use serde::{Deserialize, Serialize};

/// What is to be explained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Subject {
    /// A PersistentVolumeClaim.
    Pvc(Namespaced),
    /// A PersistentVolume.
    Pv(String),
    /// A Pod, with all its claims.
    Pod(Namespaced),
    /// A VolumeSnapshot.
    Snapshot(Namespaced),
    /// A volume of a driver.
    Volume {
        /// Its driver.
        driver: DriverName,
        /// Its id.
        id: String,
    },
    /// A node.
    Node(NodeName),
    /// A driver.
    Driver(DriverName),
}

/// The name of an object in a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Namespaced {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for Namespaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A text is no `NAMESPACE/NAME`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no name of an object in a namespace; write NAMESPACE/NAME")]
pub struct InvalidName(String);

impl std::str::FromStr for Namespaced {
    type Err = InvalidName;

    /// Reads `NAMESPACE/NAME`, by the letters that Kubernetes allows.
    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
        let is_name = |name: &str| (1..=253).contains(&name.len()) && name.chars().all(allowed);
        match text.split_once('/') {
            Some((namespace, name)) if is_name(namespace) && is_name(name) => {
                Ok(Self { namespace: namespace.into(), name: name.into() })
            }
            _ => Err(InvalidName(text.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_name_in_a_namespace_is_one() {
        let name: Namespaced = "shop/data-0".parse().unwrap();
        assert_eq!(name.to_string(), "shop/data-0");
        for wrong in ["data", "/data", "shop/", "shop/a/b", "Shop/data", "shop/da ta"] {
            let error = wrong.parse::<Namespaced>().unwrap_err();
            assert!(error.to_string().contains("NAMESPACE/NAME"), "{error}");
        }
    }
}
