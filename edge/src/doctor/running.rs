//! Whether csi-edge runs, and what it says of itself.

use std::path::Path;

use proto::admin::cells::age;
use proto::admin::client::Client;
use proto::admin::command::Command;
use proto::admin::doctor::Finding;
use proto::host::chain;
use std::time::Duration;
use tokio::time::timeout;

use super::bound::PATIENCE;
use crate::admin::state::AdminState;
use crate::admin::status::{StatusQuery, StatusView};

const CHECK: &str = "csi-edge";

/// Asks a running csi-edge for its status.
pub(super) async fn look(admin: Option<&Path>) -> Finding {
    let Some(admin) = admin else {
        let found = "it has no admin socket, so it cannot be asked";
        let advice = "set admin, or fronts (--admin, --fronts)";
        return Finding::unknown(CHECK, "no admin socket", found, advice);
    };
    let about = admin.display().to_string();
    match timeout(PATIENCE, status(admin)).await {
        Ok(Ok(status)) => judged(about, &status),
        Ok(Err(why)) => away(about, why),
        Err(_) => away(about, format!("it did not answer within {PATIENCE:?}")),
    }
}

async fn status(admin: &Path) -> Result<StatusView, String> {
    let client = Client::connect("csi-edge", admin).await;
    let mut client = client.map_err(|error| chain(&error))?;
    let path = <StatusQuery as Command<AdminState>>::PATH;
    client.ask(path, &StatusQuery {}).await.map_err(|error| chain(&error))
}

fn away(about: String, why: String) -> Finding {
    let advice = "start it (`systemctl start csi-edge`, or the DaemonSet csi-edge), and look at \
                  its log";
    Finding::warning(CHECK, about, why, advice)
}

fn judged(about: String, status: &StatusView) -> Finding {
    let StatusView { node, version, cloud, linked_s, .. } = status;
    let runs = format!("node {node}, version {version}");
    match cloud {
        Some(cloud) => {
            let since = age(Duration::from_secs(linked_s.unwrap_or_default()));
            Finding::ok(CHECK, about, format!("{runs}, linked to {cloud} for {since}"))
        }
        None => Finding::warning(
            CHECK,
            about,
            format!("{runs}, runs without a link"),
            "mend what is at fault here; csi-edge goes on dialing. If nothing is, its log says why \
             csi-cloud refuses it",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::admin::doctor::Verdict;

    #[tokio::test]
    async fn a_csi_edge_that_does_not_run_is_only_a_warning() {
        let finding = look(Some(Path::new("/none.sock"))).await;
        assert_eq!(finding.verdict, Verdict::Warning, "{finding:?}");
        assert_eq!(look(None).await.verdict, Verdict::Unknown);
    }

    #[test]
    fn without_a_link_it_is_a_warning() {
        let mut status = StatusView {
            node: "n1".parse().unwrap(),
            version: "1".into(),
            run: None,
            runs_s: 1,
            not_ready: String::new(),
            cloud: Some("wss://h:1".into()),
            linked_s: Some(7),
            identity: String::new(),
            drivers: 1,
            drivers_up: 1,
            calls: 0,
            announcements: Vec::new(),
            node_object: None,
        };
        let linked = judged("s".into(), &status);
        assert_eq!(linked.verdict, Verdict::Ok);
        assert!(linked.found.contains("linked to wss://h:1 for 7s"), "{linked:?}");
        status.cloud = None;
        assert_eq!(judged("s".into(), &status).verdict, Verdict::Warning);
    }
}
