//! The labels of Kubernetes' nodes that a kubelet may not set on its own node.
//!
//! Kubernetes refuses a kubelet that sets labels below `node-restriction.kubernetes.io/` (its
//! admission plugin NodeRestriction). So only these may decide who may have a driver. Before the
//! API server has named all nodes, none has a label.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use proto::names::NodeName;
use tokio::sync::watch;

/// The keys that count begin with this.
pub const PREFIX: &str = "node-restriction.kubernetes.io/";
/// The most characters of a label's name and of its value, as in Kubernetes.
const MAX_PART: usize = 63;

/// The labels that count, by node and key. Nodes without such a label are left out.
pub type Labels = BTreeMap<NodeName, BTreeMap<String, String>>;

/// The labels of all nodes, as the API server named them last. Clones share them.
#[derive(Clone)]
pub struct NodeLabels(Arc<watch::Sender<Option<Labels>>>);

/// One label that a node must have: `KEY=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    key: String,
    value: String,
}

/// A text selects no nodes by a label.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSelector {
    /// A kubelet may set such a label on its own node.
    #[error(
        "{0:?} selects by a label that a kubelet may set on its own node; only keys below {PREFIX} \
         count, as in \"{PREFIX}storage=yes\""
    )]
    Key(String),
    /// It is not `KEY=VALUE`, or no label can be so.
    #[error("{0:?} is no label KEY=VALUE that a node can have; write \"{PREFIX}storage=yes\"")]
    Label(String),
}

impl Default for NodeLabels {
    /// Nothing is known.
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }
}

impl NodeLabels {
    /// True if the API server has named all nodes once.
    pub fn is_known(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// True if a node has a label.
    pub fn has(&self, node: &NodeName, selector: &Selector) -> bool {
        let labels = self.0.borrow();
        let value = labels.as_ref().and_then(|all| all.get(node)?.get(&selector.key));
        value == Some(&selector.value)
    }

    /// The nodes with a label.
    pub fn with(&self, selector: &Selector) -> Vec<NodeName> {
        let labels = self.0.borrow();
        let has = |of: &BTreeMap<_, _>| of.get(&selector.key) == Some(&selector.value);
        let nodes = labels.iter().flatten().filter(|(_, of)| has(of));
        nodes.map(|(node, _)| node.clone()).collect()
    }

    /// The labels of all nodes; none before the API server has named them.
    pub fn all(&self) -> Option<Labels> {
        self.0.borrow().clone()
    }

    /// Keeps the labels of all nodes. Signals it if they changed.
    pub fn set(&self, labels: Labels) {
        self.0.send_if_modified(|known| {
            let is_news = known.as_ref() != Some(&labels);
            *known = Some(labels);
            is_news
        });
    }

    /// Changes with the labels of any node.
    pub fn changes(&self) -> watch::Receiver<Option<Labels>> {
        self.0.subscribe()
    }
}

/// Two are the same if they share the labels.
impl PartialEq for NodeLabels {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for NodeLabels {}

impl fmt::Debug for NodeLabels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeLabels(known: {})", self.is_known())
    }
}

impl FromStr for Selector {
    type Err = InvalidSelector;

    fn from_str(text: &str) -> Result<Self, InvalidSelector> {
        let invalid = || InvalidSelector::Label(text.to_owned());
        let name = text.strip_prefix(PREFIX);
        let name = name.ok_or_else(|| InvalidSelector::Key(text.to_owned()))?;
        let (name, value) = name.split_once('=').ok_or_else(invalid)?;
        if !is_part(name) || !(value.is_empty() || is_part(value)) {
            return Err(invalid());
        }
        Ok(Self { key: format!("{PREFIX}{name}"), value: value.to_owned() })
    }
}

/// Kubernetes: "beginning and ending with an alphanumeric character with dashes, underscores, dots,
/// and alphanumerics between".
fn is_part(text: &str) -> bool {
    let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    is_end(bytes.first())
        && is_end(bytes.last())
        && bytes.len() <= MAX_PART
        && bytes.iter().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(text: &str) -> Selector {
        format!("{PREFIX}{text}").parse().unwrap()
    }

    #[test]
    fn only_labels_that_a_kubelet_may_not_set_select() {
        for text in
            ["storage=yes", "edge-csi.io/storage=yes", "x.node-restriction.kubernetes.io/a=b"]
        {
            let error = text.parse::<Selector>().unwrap_err();
            assert_eq!(error, InvalidSelector::Key(text.into()));
            assert!(error.to_string().contains("only keys below node-restriction"), "{error}");
        }
        let long = "a".repeat(64);
        for text in ["storage", "=yes", "-a=b", "a=b c", "a=b=c", "a/b=c", &format!("{long}=b")] {
            let text = format!("{PREFIX}{text}");
            assert_eq!(text.parse::<Selector>(), Err(InvalidSelector::Label(text)));
        }
        assert_eq!(selector("a_b.c-d=").value, "");
    }

    #[test]
    fn a_node_has_no_label_before_the_api_server_named_all_and_none_that_was_taken_away() {
        let labels = NodeLabels::default();
        let [n1, n2]: [NodeName; 2] = ["n1", "n2"].map(|name| name.parse().unwrap());
        let yes = selector("storage=yes");
        assert!(!labels.is_known() && !labels.has(&n1, &yes));
        let mut changes = labels.changes();
        let of = |value: &str| [(format!("{PREFIX}storage"), value.to_owned())].into();
        labels.set([(n1.clone(), of("yes")), (n2.clone(), of("no"))].into());
        assert!(labels.is_known() && labels.has(&n1, &yes) && !labels.has(&n2, &yes));
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        labels.set([(n1.clone(), of("yes")), (n2, of("no"))].into());
        assert!(!changes.has_changed().unwrap(), "the same is no news");
        labels.set(Labels::new());
        assert!(labels.is_known() && !labels.has(&n1, &yes));
    }
}
