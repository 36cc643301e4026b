//! `csi-cloud owners`: the exclusive leases of direct volumes.

use proto::names::{DriverName, NodeName};

use crate::admin::leases::{LeaseView, LeasesQuery, PATH};
use crate::cli::cells::{optional, short, since};
use crate::cli::output::pages;
use crate::config::show_arguments::Show;

const HEADERS: &[&str] = &[
    "ID",
    "DRIVER",
    "NODE",
    "LINK",
    "POD",
    "ATTACHED",
    "EPOCH",
    "AGE",
    "TAKEN FROM",
    "CLAIMED BY",
];

/// Prints the leases.
///
/// # Errors
/// csi-cloud does not answer, or refuses; or the output fails.
pub(super) async fn run(
    driver: Option<DriverName>,
    node: Option<NodeName>,
    show: &Show,
) -> anyhow::Result<()> {
    let query = LeasesQuery { driver, node, after: None };
    pages(show, PATH, &query, HEADERS, row).await
}

fn row(lease: &LeaseView) -> Vec<String> {
    let holder = &lease.holder;
    let link = lease.linked.map(|linked| if linked { "linked" } else { "away" });
    let attached = holder.holder_attached.map(|attached| if attached { "yes" } else { "no" });
    let pod = holder.holder_pod.as_deref().map(|pod| if pod.is_empty() { "?" } else { pod });
    let taken_from: Vec<_> = lease.taken_from.iter().map(ToString::to_string).collect();
    let claimed_by: Vec<_> = lease.claimed_by.iter().map(ToString::to_string).collect();
    vec![
        short(&lease.id),
        lease.driver.to_string(),
        optional(holder.holder_node.as_ref()),
        optional(link),
        optional(pod),
        optional(attached),
        optional(holder.holder_epoch),
        holder.holder_since_ms.map(since).unwrap_or_default(),
        taken_from.join(" "),
        claimed_by.join(" "),
    ]
}
