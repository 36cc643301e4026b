//! The request of a certificate, and its answer, as an edge and csi-cloud exchange them.
//!
//! An edge renews its certificate with them on its link. `join.rs` uses them for an edge that has
//! none yet.

use serde::{Deserialize, Serialize};

use super::base64::Base64;
use super::machine::MachineId;
use crate::host::plain::plain_text;

/// Edge to cloud: asks for a new certificate of the node that the link's certificate names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renew {
    /// A certificate signing request (PKCS #10, DER) with the node's new key. Only its key and its
    /// proof of possession count.
    pub csr: Base64,
    /// The machine of the edge, which may renew an older certificate of its node. `None` if it has
    /// no id, and of an edge that does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineId>,
}

/// Cloud to edge: the certificate that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    /// The certificate, PEM, and the intermediate ones after it.
    pub chain: String,
    /// Every CA to trust from now on, PEM.
    pub ca: String,
}

/// Cloud to edge: there is no new certificate. The link goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotRenewed {
    /// The reason, for an operator.
    #[serde(deserialize_with = "plain_text")]
    pub why: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::hello::Message;
    use bytes::Bytes;

    #[test]
    fn a_renewal_on_the_wire_is_this() {
        let csr = Base64(Bytes::from_static(b"\x30\x00"));
        let certificate = Certificate { chain: "c".into(), ca: "a".into() };
        let not = NotRenewed { why: "revoked".into() };
        let machine = MachineId::new("board 1");
        let of_machine = format!(r#"{{"renew":{{"csr":"MAA=","machine":"{machine}"}}}}"#);
        let renew = |machine| Message::Renew(Renew { csr: csr.clone(), machine });
        for (message, text) in [
            (renew(None), r#"{"renew":{"csr":"MAA="}}"#),
            (renew(Some(machine)), of_machine.as_str()),
            (Message::Renewed(certificate), r#"{"renewed":{"chain":"c","ca":"a"}}"#),
            (Message::NotRenewed(not), r#"{"not_renewed":{"why":"revoked"}}"#),
        ] {
            assert_eq!(message.encode().unwrap(), text);
            assert_eq!(Message::decode(text.as_bytes()).unwrap(), message);
        }
    }
}
