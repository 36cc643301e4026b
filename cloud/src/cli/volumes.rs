//! `csi-cloud volumes`.

use proto::names::{DriverName, NodeName};

use crate::admin::volumes::{PATH, VolumeView, VolumesQuery};
use crate::cli::cells::{claim, joined, optional, short, since, size};
use crate::cli::output::pages;
use crate::config::show_arguments::Show;

const HEADERS: &[&str] =
    &["ID", "KIND", "DRIVER", "NODE", "SIZE", "PUBLISHED", "CLAIM", "AGE", "STATE", "HOLDER"];

/// Prints the volumes.
///
/// # Errors
/// csi-cloud does not answer, or refuses; or the output fails.
pub(super) async fn run(
    driver: Option<DriverName>,
    node: Option<NodeName>,
    all: bool,
    show: &Show,
) -> anyhow::Result<()> {
    let query = VolumesQuery { driver, node, all, after: None };
    pages(show, PATH, &query, HEADERS, row).await
}

fn row(volume: &VolumeView) -> Vec<String> {
    let others = joined(&volume.claimed_by);
    let state = match volume.state.as_str() {
        state if others.is_empty() => state.to_owned(),
        "claimed" => format!("claimed also by {others}"),
        state => format!("{state}, claimed also by {others}"),
    };
    vec![
        short(&volume.id),
        volume.kind.clone(),
        volume.driver.to_string(),
        volume.node.to_string(),
        volume.capacity_bytes.map(size).unwrap_or_default(),
        volume.published.join(","),
        claim(volume.claim_namespace.as_deref(), volume.claim_name.as_deref()),
        since(volume.since_ms),
        state,
        optional(volume.holder.holder_node.as_ref()),
    ]
}
