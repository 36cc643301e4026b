//! Claims that wait: how they are made, found by their name, and explained.

use anyhow::{Context, ensure};
use harness::requests::capability;
use harness::stand::Stand;
use harness::wait::until;
use proto::csi;
use serde_json::Value;

use super::browser::{Browser, ENTER};
use super::checks;

/// A create for the claim shop/CLAIM, as external-provisioner sends it with
/// `--extra-create-metadata`.
pub(super) fn create(name: &str, claim: &str) -> csi::CreateVolumeRequest {
    let parameters = [("pvc/namespace", "shop"), ("pvc/name", claim), ("pv/name", name)];
    let parameters = parameters.map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value));
    csi::CreateVolumeRequest {
        name: name.into(),
        volume_capabilities: vec![capability()],
        parameters: parameters.map(|(key, value)| (key, value.to_owned())).into(),
        ..Default::default()
    }
}

/// The verdict of `csi-cloud explain pvc shop/CLAIM`.
pub(super) async fn explain(stand: &Stand, claim: &str) -> anyhow::Result<Value> {
    let admin = stand.at("cloud/_admin.sock");
    let claim = format!("shop/{claim}");
    let command = ["explain", "pvc", &claim, "--admin", &admin, "-o", "json"];
    let said: Value = serde_json::from_str(&stand.run("csi-cloud", &command).await?)?;
    Ok(said["verdict"].clone())
}

/// Types the name of the claim shop/CLAIM into the search. Its page says what `explain` says, which
/// is returned.
pub(super) async fn find(
    stand: &Stand,
    browser: &Browser,
    url: &str,
    claim: &str,
) -> anyhow::Result<Value> {
    browser.go(url).await?;
    browser.run("document.getElementById('q').focus()").await?;
    browser.press(claim).await?;
    browser.press(ENTER).await?;
    let page = format!("/claim/shop/{claim}");
    until("the claim is found", || async {
        let at = browser.text("return location.pathname").await?;
        ensure!(at == page, "{at}");
        Ok(())
    })
    .await?;
    let shown = browser.text("return document.getElementById('verdict').textContent").await?;
    let verdict = explain(stand, claim).await?;
    for part in ["text", "next"] {
        let said = verdict[part].as_str().context("explain says nothing")?;
        let is_there = checks::ageless(&shown).contains(&checks::ageless(said));
        ensure!(is_there, "{said:?} is not in {shown:?}");
    }
    Ok(verdict)
}
