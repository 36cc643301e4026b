//! Failures of TLS in words: whose certificate is to blame, and what to do.

use std::io;

use rustls::{AlertDescription, CertificateError};

use super::files::{Files, Role};
use super::pin::NotPinned;
use crate::host::chain::chain;
use crate::host::plain;

/// True if an error of a TLS stream comes from TLS.
pub fn is_tls(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>())
}

/// An error of a TLS stream in words.
pub fn explain_io(error: &io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(rustls::Error::AlertReceived(alert)) => theirs(*alert, ""),
        Some(rustls::Error::InvalidCertificate(CertificateError::Other(why)))
            if why.0.is::<NotPinned>() =>
        {
            why.to_string()
        }
        Some(rustls::Error::InvalidCertificate(why)) => {
            ours(why.clone().into(), &rustls::Error::InvalidCertificate(why.clone()).to_string())
        }
        Some(other) => format!("TLS failed: {other}"),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            "it closed the connection during the handshake".into()
        }
        None => chain(error),
    }
}

/// A failure of QUIC on this side, in words.
pub fn explain_quic(code: quinn::TransportErrorCode, reason: &str) -> String {
    match alert(code) {
        Some(alert) => ours(alert, reason),
        None => format!("QUIC failed: {code}: {}", plain(reason)),
    }
}

/// A failure of QUIC that the other side reported, in words.
pub fn explain_close(close: &quinn::ConnectionClose) -> String {
    match alert(close.error_code) {
        Some(alert) => theirs(alert, &plain(&String::from_utf8_lossy(&close.reason))),
        None => plain(&close.to_string()),
    }
}

/// QUIC: the codes 0x100 to 0x1ff carry a TLS alert in their low byte (RFC 9001, 4.8).
fn alert(code: quinn::TransportErrorCode) -> Option<AlertDescription> {
    let code = u64::from(code).checked_sub(0x100)?;
    u8::try_from(code).ok().map(AlertDescription::from)
}

/// A problem of the other side's certificate, in words.
fn ours(alert: AlertDescription, detail: &str) -> String {
    let advice = match alert {
        AlertDescription::CertificateExpired => {
            "it has expired: make a new one there, and check both clocks"
        }
        AlertDescription::CertificateRevoked => {
            "it was revoked here; a later token lets its node join again (`csi-cloud token create`)"
        }
        AlertDescription::AccessDenied => {
            "its node was removed here; `csi-cloud node admit NODE` lets it link again"
        }
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "it is of another CA than ours: is this the right address, and is our --ca the other \
             side's?"
        }
        _ => {
            "make one with `csi-cloud ca`, for the host name that is dialed (--host) and for that \
             end of the link"
        }
    };
    format!("the other side's certificate is refused ({detail}); {advice}")
}

/// A problem of our certificate that the other side reported, in words.
fn theirs(alert: AlertDescription, detail: &str) -> String {
    let why = match alert {
        AlertDescription::CertificateExpired => {
            "it says that ours has expired: check both clocks, and make a new one (`csi-edge join`)"
        }
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "it says that ours is of another CA than its own"
        }
        AlertDescription::CertificateRevoked => {
            "it has revoked our certificate (`csi-cloud node revoke`): to link again, make a token \
             there (`csi-cloud token create`) and run `csi-edge join --replace` here"
        }
        AlertDescription::AccessDenied => {
            "our node was removed there: `csi-cloud node admit NODE` lets it link again"
        }
        AlertDescription::CertificateRequired => "it wants a certificate and was shown none",
        AlertDescription::NoApplicationProtocol => {
            "it does not speak the link's protocol; is this the right address?"
        }
        AlertDescription::ProtocolVersion => "it does not speak TLS 1.3",
        _ => "see its log",
    };
    let detail = if detail.is_empty() { String::new() } else { format!(", {detail}") };
    format!("the other side refused us with the TLS alert {alert:?}{detail}; {why}")
}

/// The problem of our own certificate, and what to do.
pub(super) fn explain_own(error: &webpki::Error, files: &Files, role: Role) -> String {
    let issue = match role {
        Role::Node if files.is_identity() => "`csi-edge join`, with a token of csi-cloud",
        Role::Cloud => "`csi-cloud ca init`",
        Role::Node => "`csi-cloud ca issue NODE`",
        Role::Front => "`csi-cloud ca issue --relay NAME`",
    };
    match error {
        webpki::Error::CertExpired { time, not_after } => {
            let days = time.as_secs().saturating_sub(not_after.as_secs()) / 86_400;
            format!("expired {days} days ago; make a new one with {issue}")
        }
        webpki::Error::CertNotValidYet { .. } => {
            "is not valid yet; is this machine's clock right?".into()
        }
        webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey => {
            format!(
                "was not issued by the CA in {}; name that CA's file, or make a new one with \
                 {issue}",
                files.ca.display()
            )
        }
        webpki::Error::RequiredEkuNotFoundContext(_) => {
            format!("is not made for this end of the link ({role:?}); make one with {issue}")
        }
        webpki::Error::CaUsedAsEndEntity => format!("is a CA's own; make one with {issue}"),
        error => format!("cannot be used: {error}; make a new one with {issue}"),
    }
}
