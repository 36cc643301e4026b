//! Records that a short life of older programs does not leave: creates that nobody counted, leases
//! without a proof, and a token that has not ended. They are put into an export of an older
//! csi-cloud, which then makes its store of it.

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::things::{CLAIMED, OPEN, SHARED, TOKEN_NODE, UNCOUNTED, UNPROVEN};

/// 2100-01-01, in ms since 1970.
const LATE: u64 = 4_102_444_800_000;

/// The export with the further records.
pub(super) fn supplemented(export: &str) -> anyhow::Result<String> {
    let mut lines = Vec::new();
    for line in export.lines() {
        let mut record: Value = serde_json::from_str(line)?;
        if let Some(token) = record.get_mut("token").filter(|of| of["token"]["node"] == TOKEN_NODE)
        {
            token["token"]["expires"] = json!(LATE);
        }
        lines.push(record);
    }
    ensure!(lines.pop().is_some_and(|end| end["end"].is_object()), "the export is cut off");
    let open = lines.iter().find(|line| line["intent"]["id"]["name"][1] == OPEN);
    let mut uncounted = open.context("no open create")?.clone();
    uncounted["intent"]["id"]["name"][1] = json!(UNCOUNTED);
    let fields = uncounted["intent"]["intent"].as_object_mut().context("no intent")?;
    fields.remove("attempts").context("the open create is not counted")?;
    lines.push(uncounted);
    let lease = lines.iter().find(|line| line["owner"].is_object()).context("no lease")?;
    let epoch = lease["owner"]["own"]["owner"]["epoch"].as_u64().context("no epoch")?;
    for name in ["n3", "n4"] {
        lines.push(json!({"node": {"name": name, "node": {"since": epoch, "removed": null}}}));
    }
    lines.extend(leases(epoch));
    let records = lines.len() - 1;
    lines.push(json!({"end": {"records": records}}));
    Ok(lines.iter().map(|line| format!("{line}\n")).collect())
}

/// A lease that its node has by its word, and one that two nodes claim by theirs.
fn leases(epoch: u64) -> [Value; 2] {
    let word = json!({
        "owner": {"node": "n3", "epoch": epoch, "pod": "", "since": epoch, "unproven": true},
        "attached": null,
        "broken": [],
    });
    let claims = [("n3", epoch), ("n4", epoch - 1)];
    let claims = claims.map(|(node, epoch)| json!({"node": node, "epoch": epoch, "since": epoch}));
    let claimed = json!({"owner": null, "attached": null, "broken": [], "claims": claims});
    [(UNPROVEN, word), (CLAIMED, claimed)].map(
        |(volume, own)| json!({"owner": {"driver": SHARED, "id": {"volume": volume}, "own": own}}),
    )
}
