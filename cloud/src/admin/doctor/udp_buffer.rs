//! The receive buffer of the listener for QUIC, which the system bounds.

use std::path::Path;

use proto::admin::doctor::Finding;
use proto::admin::doctor::place::size;
use proto::link::quic::RECEIVE_BUFFER;

/// Where Linux says how large a receive buffer may be.
pub(super) const MOST: &str = "/proc/sys/net/core/rmem_max";
/// The links from which on a smaller buffer loses packets when all nodes dial at once.
const MANY: u64 = 1_000;

/// Judges the bound of the system, which this file has, for so many links over QUIC. They are not
/// known to a csi-cloud that does not lead.
pub(super) fn finding(most: &Path, links: Option<u64>) -> Finding {
    const CHECK: &str = "udp-buffer";
    const ABOUT: &str = "net.core.rmem_max";
    let wanted = size(RECEIVE_BUFFER as u64);
    let advice = format!(
        "for more than {MANY} nodes over QUIC set it to {wanted} on this host \
         (`sysctl -w net.core.rmem_max={RECEIVE_BUFFER}`, and in /etc/sysctl.d), and start \
         csi-cloud again"
    );
    let read = std::fs::read_to_string(most).unwrap_or_default();
    let Ok(bytes) = read.trim().parse::<u64>() else {
        return Finding::unknown(CHECK, ABOUT, "it cannot be seen here", advice);
    };
    let found = format!("{} of {wanted}", size(bytes));
    let is_small = bytes < RECEIVE_BUFFER as u64;
    let Some(links) = links else {
        return match is_small {
            true => Finding::unknown(CHECK, ABOUT, found, advice),
            false => Finding::ok(CHECK, ABOUT, found),
        };
    };
    let found = format!("{found}; links by quic: {links}");
    match is_small && links > MANY {
        true => Finding::warning(CHECK, ABOUT, found, advice),
        false => Finding::ok(CHECK, ABOUT, found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::admin::doctor::Verdict;
    use proto::host::publish::{Existing, publish};

    #[test]
    fn a_small_buffer_matters_to_many_links() {
        let dir = tempfile::tempdir().unwrap();
        let most = dir.path().join("rmem_max");
        assert_eq!(finding(&most, Some(2_000)).verdict, Verdict::Unknown);
        for (text, links, verdict) in [
            ("8388608\n", Some(2_000), Verdict::Ok),
            ("8388607\n", Some(2_000), Verdict::Warning),
            ("212992\n", Some(1_000), Verdict::Ok),
            ("212992\n", Some(1_001), Verdict::Warning),
            ("-1\n", Some(1_001), Verdict::Unknown),
            ("8388608\n", None, Verdict::Ok),
            ("212992\n", None, Verdict::Unknown),
        ] {
            publish(&most, text.as_bytes(), 0o600, Existing::Replace).unwrap();
            assert_eq!(finding(&most, links).verdict, verdict, "{text}, {links:?}");
        }
    }
}
