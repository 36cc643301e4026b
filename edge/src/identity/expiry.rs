//! The end of this node's certificate, in the log.

use std::time::{Duration, SystemTime};

use proto::link::tls::Credentials;
use proto::names::certificate::Validity;
use tokio::time::sleep;
use tracing::{info, warn};

use super::schedule::{reached, renew_at};

/// The interval of warnings that a certificate ends.
const AGAIN: Duration = Duration::from_secs(86_400);

/// Logs the time left of the certificate. Without renewal it warns once a day from two thirds of
/// its life on. Never ends.
pub async fn watch(credentials: Credentials, renews: bool) {
    loop {
        let certificate = credentials.certificate();
        if let Some(validity) = credentials.validity() {
            let days = days(&validity);
            info!(days, renews, "the certificate is valid for so many days");
            if !renews {
                tokio::select! {
                    biased;
                    () = warn_at_the_end(&validity) => {}
                    () = credentials.renewed(certificate.as_ref()) => {}
                }
                continue;
            }
        }
        credentials.renewed(certificate.as_ref()).await;
    }
}

async fn warn_at_the_end(validity: &Validity) {
    reached(renew_at(validity, 1.0)).await;
    loop {
        let days = days(validity);
        warn!(
            days,
            "the certificate ends soon and csi-edge cannot renew it: issue a new one (`csi-cloud \
             ca issue`) into the same files, or join once with a token (`csi-edge join --help`), \
             after which csi-edge renews it"
        );
        sleep(AGAIN).await;
    }
}

fn days(validity: &Validity) -> u64 {
    validity.left(SystemTime::now()).as_secs() / 86_400
}
