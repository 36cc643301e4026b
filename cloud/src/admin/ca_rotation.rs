//! `csi-cloud ca rotate`: another CA takes over.

use clap::Args;
use proto::admin::command::{Answer, Command, Done, Refusal, Row, ask};
use proto::admin::command_line::{Asked, Printer};
use proto::admin::input;
use proto::admin::output::Output;
use proto::names::NodeName;
use serde::{Deserialize, Serialize};
use std::path::Path;

use crate::admin::admin_state::AdminState;
use crate::pki::issuers::Issuers;
use crate::pki::rotation::{NewCa, RotationError};

/// The state of a node that a rotation has reached.
pub(crate) const CURRENT: &str = "current";
/// The most nodes that a refusal names.
const NAMED: usize = 5;

/// Trust a new CA beside the old one, and let it issue to nodes. Edges are told to renew.
// On the command line the fields name files. The request has their text.
#[derive(Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartRotation {
    /// The certificate of the CA that is to issue, and those between it and the root, PEM; - is
    /// stdin
    #[arg(long, value_name = "FILE")]
    pub cert: String,
    /// Its private key: PKCS #8, PEM; - is stdin
    #[arg(long, value_name = "FILE")]
    pub key: String,
    /// The root, PEM; not needed if --cert is one
    #[arg(long, value_name = "FILE")]
    #[serde(default)]
    pub root: Option<String>,
}

impl Command<AdminState> for StartRotation {
    const NAME: &'static str = "ca rotate start";
    const PATH: &'static str = "/ca/rotate/start";
    type Answer = Done;

    async fn run(mut self, asked: Asked) -> anyhow::Result<()> {
        for file in [&mut self.cert, &mut self.key].into_iter().chain(&mut self.root) {
            *file = input::read(Path::new(file))?;
        }
        ask(self, asked).await
    }

    async fn carry_out(self, admin: &AdminState) -> Result<Done, Refusal> {
        let Self { cert, key, root } = self;
        let cas = admin
            .rotating_issuers()?
            .start(&NewCa { cert, key: key.into(), root })
            .map_err(refused)?;
        admin.links.issued_by(cas.issuer.tag());
        Ok(Done::logged(format!(
            "the CA {} issues to nodes from now on, and is trusted beside the old one; linked \
             edges renew within about a minute. Give each socket relay the new [tls] ca file. \
             `csi-cloud ca rotate status` shows who is left, \
             and `csi-cloud ca rotate finish` ends it",
            cas.issuer.root_pin()
        )))
    }
}

/// Take the old CA away. Refused while a node would be locked out.
#[derive(Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FinishRotation {
    /// Also if nodes are locked out; they join again with tokens
    #[arg(long = "yes-lock-out")]
    #[serde(default)]
    pub lock_out: bool,
}

/// Show which nodes still have the old CA.
#[derive(Debug, Args, Serialize, Deserialize)]
pub struct RotationStatus {}

impl Command<AdminState> for FinishRotation {
    const NAME: &'static str = "ca rotate finish";
    const PATH: &'static str = "/ca/rotate/finish";
    type Answer = Done;

    async fn carry_out(self, admin: &AdminState) -> Result<Done, Refusal> {
        let issuers = admin.rotating_issuers()?;
        if !issuers.is_rotating() {
            return Err(refused(RotationError::None));
        }
        let mut behind = admin.rotation()?.nodes;
        behind.retain(|node| node.ca != CURRENT);
        if !behind.is_empty() && !self.lock_out {
            let named: Vec<_> = behind.iter().take(NAMED).map(|node| node.node.as_str()).collect();
            return Err(Refusal::conflict(format!(
                "{} of the nodes, among them {}, would be locked out: they have, or may have, the \
                 old CA. Wait until they are linked and `csi-cloud ca rotate status` shows them as \
                 current, remove them (`csi-cloud node remove`), or give --yes-lock-out and let \
                 them join again with tokens",
                behind.len(),
                named.join(", ")
            )));
        }
        let cas = issuers.finish().map_err(refused)?;
        admin.links.issued_by(cas.issuer.tag());
        Ok(Done::logged(format!(
            "the old CA is gone; the CA {} issues all certificates. Linked edges renew once more, \
             and then trust it alone",
            cas.issuer.root_pin()
        )))
    }
}

impl Command<AdminState> for RotationStatus {
    const NAME: &'static str = "ca rotate status";
    const PATH: &'static str = "/ca/rotate/status";
    const READS: bool = true;
    type Answer = RotationView;

    async fn carry_out(self, admin: &AdminState) -> Result<RotationView, Refusal> {
        admin.rotation()
    }
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

impl Answer for RotationView {
    fn print(&self, to: &mut Printer<'_>) -> anyhow::Result<()> {
        if to.output == Output::Json {
            return to.json(self);
        }
        self.nodes.print(to)?;
        Ok(writeln!(to.out, "\n{}", verdict(self))?)
    }
}

/// The meaning of the table, and advice.
fn verdict(view: &RotationView) -> String {
    let behind = view.nodes.iter().filter(|node| node.ca != CURRENT).count();
    let of_all = format!("{behind} of {} nodes", view.nodes.len());
    let finish = "`csi-cloud ca rotate finish`";
    match (view.rotating, behind) {
        (false, 0) => "No CA is taking over.".into(),
        (false, _) => format!("No CA is taking over; {of_all} may not have csi-cloud's CAs."),
        (true, 0) => format!("All nodes have the new CA: {finish} is safe."),
        (true, _) => format!("{of_all} lack the new CA: {finish} would lock them out."),
    }
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

impl Row for NodeCaView {
    const HEADERS: &'static [&'static str] = &["NODE", "LINK", "CA"];

    fn row(&self) -> Vec<String> {
        let link = if self.linked { "linked" } else { "away" };
        vec![self.node.to_string(), link.into(), self.ca.clone()]
    }
}

impl AdminState {
    /// The progress of a rotation.
    ///
    /// # Errors
    /// This csi-cloud issues no certificates.
    pub(super) fn rotation(&self) -> Result<RotationView, Refusal> {
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

    fn issuers(&self) -> Result<&Issuers, Refusal> {
        self.links.enrolment().issuers().ok_or_else(|| {
            Refusal::conflict(
                "this csi-cloud issues no certificates: its configuration has no section [ca]; \
                 replace the files of [tls] by hand, or see `csi-cloud ca use`",
            )
        })
    }

    /// The issuers, if a command may change their files: another replica would not know the CA.
    fn rotating_issuers(&self) -> Result<&Issuers, Refusal> {
        if self.store.cluster().is_some() {
            return Err(Refusal::conflict(
                "several csi-clouds share this store, and this command would change the files of \
                 one; change the files of each by hand, in the order of \"Another CA\" in \
                 docs/how-to/certificates.md, and look at `csi-cloud ca rotate status` in between",
            ));
        }
        self.issuers()
    }
}

fn refused(error: RotationError) -> Refusal {
    match error {
        RotationError::Issue(_) => Refusal::bad(error.to_string()),
        RotationError::Own(_) | RotationError::Write { .. } => Refusal::failed(error.to_string()),
        RotationError::Under
        | RotationError::Same
        | RotationError::OneFile(_)
        | RotationError::None
        | RotationError::Foreign(_) => Refusal::conflict(error.to_string()),
    }
}
