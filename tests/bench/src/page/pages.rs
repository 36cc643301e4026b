//! A csi-cloud with the page, and a browser that is logged in.

use std::path::Path;

use anyhow::{Context, ensure};
use harness::stand::{Cloud, Stand};
use proto::host::publish::{Existing, publish};

use super::browser::Browser;

/// The token that lets the browser in.
pub(super) const TOKEN: &str = "of-a-test-0123456789abcdef0123456789";

/// Starts csi-cloud with the page and this configuration.
pub(super) async fn cloud(stand: &Stand, driver: &str, config: &str) -> anyhow::Result<Cloud> {
    let tokens = stand.at("page-tokens");
    publish(tokens.as_ref(), TOKEN.as_bytes(), 0o600, Existing::Replace)?;
    let file = stand.at("page.toml");
    publish(file.as_ref(), config.as_bytes(), 0o600, Existing::Replace)?;
    let page = ["--page", "https://127.0.0.1:0", "--page-token-file", &tokens];
    let more = [&page[..], &["--config", &file]].concat();
    stand.cloud(&["wss://127.0.0.1:0"], &[driver], &more).await
}

/// Where the page is.
pub(super) fn url(cloud: &Cloud) -> anyhow::Result<&str> {
    cloud.page.as_deref().context("csi-cloud serves no page")
}

/// A browser that has logged in by the form.
pub(super) async fn browser(logs: &Path, pictures: &Path, url: &str) -> anyhow::Result<Browser> {
    let browser = Browser::new(logs, pictures).await?;
    browser.go(url).await?;
    let asked = browser.text("return location.pathname").await?;
    ensure!(asked == "/login", "the page is open: {asked}");
    browser.picture("login").await?;
    browser.press(TOKEN).await?;
    browser.press(super::browser::ENTER).await?;
    harness::wait::until("the login", || async {
        let at = browser.text("return location.pathname").await?;
        ensure!(at == "/", "{at}");
        Ok(())
    })
    .await?;
    Ok(browser)
}
