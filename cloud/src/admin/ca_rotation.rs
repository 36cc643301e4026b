//! `csi-cloud ca rotate`: another CA takes over.

use proto::names::NodeName;
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;
use crate::admin::done::{Done, done};
use crate::admin::refused::CommandError;
use crate::pki::issuers::Issuers;
use crate::pki::rotation::{NewCa, RotationError};

/// The path that begins it.
pub(crate) const START: &str = "/ca/rotate/start";
/// The path that shows how far it is.
pub(crate) const STATUS: &str = "/ca/rotate/status";
/// The path that ends it.
pub(crate) const FINISH: &str = "/ca/rotate/finish";
/// The state of a node that a rotation has reached.
pub(crate) const CURRENT: &str = "current";
/// The most nodes that a refusal names.
const NAMED: usize = 5;

/// Lets another CA take over.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartRotation {
    /// The certificate of the CA that is to issue, and those between it and the root, PEM.
    pub cert: String,
    /// Its private key, PEM.
    pub key: String,
    /// The root, PEM; without one, the certificate is a root itself.
    #[serde(default)]
    pub root: Option<String>,
}

/// Takes the old CA away.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FinishRotation {
    /// Also if this locks nodes out. They join again with a token.
    #[serde(default)]
    pub lock_out: bool,
}

/// The progress of a rotation.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RotationView {
    /// True if a CA is taking over.
    pub rotating: bool,
    /// The hash of the root of the CA that issues to nodes.
    pub ca_hash: String,
    /// The nodes, by name, without the removed ones.
    pub nodes: Vec<NodeCaView>,
}

/// The CA of a node.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCaView {
    /// Its name.
    pub node: NodeName,
    /// True if it has a link.
    pub linked: bool,
    /// `current`: its certificate is of the CA that issues, and it trusts what csi-cloud trusts.
    /// `old`: it does not. `unknown`: it was not here since this csi-cloud began, or its csi-edge
    /// does not say.
    pub ca: String,
}

impl AdminState {
    fn issuers(&self) -> Result<&Issuers, CommandError> {
        self.links.enrolment().issuers().ok_or_else(|| {
            CommandError::conflict(
                "this csi-cloud issues no certificates: its configuration has no section [ca]; \
                 replace the files of [tls] by hand, or see `csi-cloud ca use`",
            )
        })
    }

    /// The issuers, if a command may change their files: another replica would not know the CA.
    fn rotating_issuers(&self) -> Result<&Issuers, CommandError> {
        if self.store.cluster().is_some() {
            return Err(CommandError::conflict(
                "several csi-clouds share this store, and this command would change the files of \
                 one; change the files of each by hand, in the order of \"Another CA\" in \
                 docs/operations.md, and look at `csi-cloud ca rotate status` in between",
            ));
        }
        self.issuers()
    }

    /// The progress of a rotation.
    ///
    /// # Errors
    /// This csi-cloud issues no certificates.
    pub(super) fn rotation(&self) -> Result<RotationView, CommandError> {
        let issuers = self.issuers()?;
        let issuer = issuers.read_again().issuer;
        let linked = self.linked();
        let names: Vec<_> = self.store.read(|state| {
            let names = state.nodes().iter().filter(|(_, node)| node.removed.is_none());
            names.map(|(name, _)| name.clone()).collect()
        });
        let view = |node: NodeName| {
            let ca = match self.links.ca_of(&node) {
                None => "unknown",
                Some(tag) if tag == issuer.tag() => CURRENT,
                Some(_) => "old",
            };
            NodeCaView { linked: linked.contains(&node), ca: ca.into(), node }
        };
        Ok(RotationView {
            rotating: issuers.is_rotating(),
            ca_hash: issuer.root_pin().to_string(),
            nodes: names.into_iter().map(view).collect(),
        })
    }

    /// Lets another CA take over.
    ///
    /// # Errors
    /// This csi-cloud issues no certificates, or shares its store with others. Otherwise see
    /// [`RotationError`].
    pub(super) fn start_rotation(&self, request: StartRotation) -> Result<Done, CommandError> {
        let StartRotation { cert, key, root } = request;
        let cas = self
            .rotating_issuers()?
            .start(&NewCa { cert, key: key.into(), root })
            .map_err(refused)?;
        self.links.issued_by(cas.issuer.tag());
        Ok(done(format!(
            "the CA {} issues to nodes from now on, and is trusted beside the old one; linked \
             edges renew within about a minute. Give each socket relay the new [tls] ca file. \
             `csi-cloud ca rotate status` shows who is left, \
             and `csi-cloud ca rotate finish` ends it",
            cas.issuer.root_pin()
        )))
    }

    /// Takes the old CA away, if that locks nobody out.
    ///
    /// # Errors
    /// This csi-cloud issues no certificates, shares its store with others, or would lock nodes out
    /// unasked. Otherwise see [`RotationError`].
    pub(super) fn finish_rotation(&self, request: FinishRotation) -> Result<Done, CommandError> {
        let issuers = self.rotating_issuers()?;
        if !issuers.is_rotating() {
            return Err(refused(RotationError::None));
        }
        let mut behind = self.rotation()?.nodes;
        behind.retain(|node| node.ca != CURRENT);
        if !behind.is_empty() && !request.lock_out {
            let named: Vec<_> = behind.iter().take(NAMED).map(|node| node.node.as_str()).collect();
            return Err(CommandError::conflict(format!(
                "{} of the nodes, among them {}, would be locked out: they have, or may have, the \
                 old CA. Wait until they are linked and `csi-cloud ca rotate status` shows them as \
                 current, remove them (`csi-cloud node remove`), or give --yes-lock-out and let \
                 them join again with tokens",
                behind.len(),
                named.join(", ")
            )));
        }
        let cas = issuers.finish().map_err(refused)?;
        self.links.issued_by(cas.issuer.tag());
        Ok(done(format!(
            "the old CA is gone; the CA {} issues all certificates. Linked edges renew once more, \
             and then trust it alone",
            cas.issuer.root_pin()
        )))
    }
}

fn refused(error: RotationError) -> CommandError {
    match error {
        RotationError::Issue(_) => CommandError::bad(error.to_string()),
        RotationError::Own(_) | RotationError::Write { .. } => {
            CommandError::failed(error.to_string())
        }
        RotationError::Under
        | RotationError::Same
        | RotationError::OneFile(_)
        | RotationError::None
        | RotationError::Foreign(_) => CommandError::conflict(error.to_string()),
    }
}
