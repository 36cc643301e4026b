//! A csi-cloud, its page, and a browser that is logged in.

use std::path::Path;

use anyhow::ensure;
use harness::stand::{Cloud, Page, Stand};
use proto::host::publish::{Existing, publish};

use super::browser::Browser;

/// The token that lets the browser in.
pub(super) const TOKEN: &str = "of-a-test-0123456789abcdef0123456789";

/// Starts csi-cloud with this configuration and the socket view.
pub(super) async fn cloud(stand: &Stand, driver: &str, config: &str) -> anyhow::Result<Cloud> {
    let file = stand.at("page.toml");
    publish(file.as_ref(), config.as_bytes(), 0o600, Existing::Replace)?;
    let more = ["--view", &stand.view(), "--config", &file];
    stand.cloud(&["wss://127.0.0.1:0"], &[driver], &more).await
}

/// Starts csi-page.
pub(super) async fn page(stand: &Stand) -> anyhow::Result<Page> {
    let tokens = stand.at("page-tokens");
    publish(tokens.as_ref(), TOKEN.as_bytes(), 0o600, Existing::Replace)?;
    stand.page("127.0.0.1:0", &["--tokens", &tokens]).await
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
