//! Chromium, driven through chromedriver: the few commands of WebDriver that are needed.
//!
//! No crate for WebDriver fits: fantoccini needs one under MPL-2.0. thirtyfour makes serde_json
//! keep the order of maps in the whole workspace.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use harness::process::Process;
use harness::wait::START;
use http::{Method, Request, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use proto::host::publish::{Existing, publish};
use proto::host::tasks::Tasks;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::Command;

/// How long a command may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// What Chromium writes and asks for of its own would only disturb.
const FLAGS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
];
/// The key Tab in WebDriver.
pub(super) const TAB: &str = "\u{e004}";
/// The key Enter in WebDriver.
pub(super) const ENTER: &str = "\u{e007}";

/// What a window is like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// Its width, in CSS pixels.
    pub(super) width: u32,
    /// Its height.
    pub(super) height: u32,
    /// Whether it prefers dark colours.
    pub(super) is_dark: bool,
}

/// A desk, by day.
pub(super) const DESK: Look = Look { width: 1280, height: 800, is_dark: false };
/// A desk, at night.
pub(super) const NIGHT: Look = Look { is_dark: true, ..DESK };
/// A small phone.
pub(super) const PHONE: Look = Look { width: 360, height: 740, is_dark: false };

/// A browser with one window.
pub(super) struct Browser {
    port: u16,
    session: String,
    driver: Process,
    tasks: Tasks,
    pictures: PathBuf,
    _profile: TempDir,
}

impl Browser {
    /// Starts Chromium with an empty profile. Pictures go to `pictures`.
    pub(super) async fn new(logs: &Path, pictures: &Path) -> anyhow::Result<Self> {
        let profile = tempfile::tempdir()?;
        let mut command = Command::new("chromedriver");
        command.arg("--port=0");
        let mut driver = Process::start("chromedriver", command, logs).context(
            "chromedriver cannot be started; install Debian's chromium and chromium-driver",
        )?;
        let started = "ChromeDriver was started successfully on port ";
        let port = driver.line_starting(started, START).await?;
        let port = port.trim_end_matches('.').parse().context("chromedriver names no port")?;
        std::fs::create_dir_all(pictures)?;
        let pictures = pictures.to_owned();
        let tasks = Tasks::default();
        let session = String::new();
        let mut browser = Self { port, session, driver, tasks, pictures, _profile: profile };
        browser.session = browser.begin().await?;
        Ok(browser)
    }

    async fn begin(&self) -> anyhow::Result<String> {
        let profile = format!("--user-data-dir={}", self._profile.path().display());
        let flags: Vec<_> = FLAGS.into_iter().chain([profile.as_str()]).collect();
        let wanted = json!({
            "browserName": "chrome",
            // csi-cloud's certificate is of a CA that only this test has.
            "acceptInsecureCerts": true,
            "goog:chromeOptions": { "args": flags },
            "goog:loggingPrefs": { "browser": "ALL" },
        });
        let wanted = json!({ "capabilities": { "alwaysMatch": wanted } });
        let begun = self.send(Method::POST, "/session", Some(wanted)).await?;
        Ok(begun["sessionId"].as_str().context("chromedriver begins no session")?.to_owned())
    }

    /// Ends it.
    pub(super) async fn end(self) -> anyhow::Result<()> {
        let path = format!("/session/{}", self.session);
        self.send(Method::DELETE, &path, None).await?;
        self.tasks.finish(START).await;
        self.driver.kill().await
    }

    /// Makes the window look so.
    pub(super) async fn look(&self, look: Look) -> anyhow::Result<()> {
        let Look { width, height, is_dark } = look;
        let metrics = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600,
        });
        self.devtools("Emulation.setDeviceMetricsOverride", metrics).await?;
        let scheme = if is_dark { "dark" } else { "light" };
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.devtools("Emulation.setEmulatedMedia", json!({ "features": [feature] })).await
    }

    async fn devtools(&self, name: &str, parameters: Value) -> anyhow::Result<()> {
        let command = json!({ "cmd": name, "params": parameters });
        self.post("/goog/cdp/execute", command).await.map(drop)
    }

    /// Loads a page, whole.
    pub(super) async fn go(&self, url: &str) -> anyhow::Result<()> {
        self.post("/url", json!({ "url": url })).await.map(drop)
    }

    /// Runs a script in the page, and returns what it returns.
    pub(super) async fn run(&self, script: &str) -> anyhow::Result<Value> {
        let command = json!({ "script": script, "args": [] });
        let ran = self.post("/execute/sync", command).await;
        ran.with_context(|| format!("running {script:?}"))
    }

    /// Runs a script that returns a text.
    pub(super) async fn text(&self, script: &str) -> anyhow::Result<String> {
        let value = self.run(script).await?;
        Ok(value.as_str().with_context(|| format!("{script:?} returned {value}"))?.to_owned())
    }

    /// Presses and releases keys, one after another.
    pub(super) async fn press(&self, keys: &str) -> anyhow::Result<()> {
        let press = |key: char| {
            let kinds = ["keyDown", "keyUp"];
            kinds.map(|kind| json!({ "type": kind, "value": key.to_string() }))
        };
        let steps: Vec<_> = keys.chars().flat_map(press).collect();
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": steps });
        self.post("/actions", json!({ "actions": [keyboard] })).await.map(drop)
    }

    /// Writes a picture of the window.
    pub(super) async fn picture(&self, name: &str) -> anyhow::Result<()> {
        let path = format!("/session/{}/screenshot", self.session);
        let picture = self.send(Method::GET, &path, None).await?;
        let picture = BASE64_STANDARD.decode(picture.as_str().context("no picture")?)?;
        let file = self.pictures.join(format!("{name}.png"));
        publish(&file, &picture, 0o644, Existing::Replace).context("a picture is not written")
    }

    /// The errors in the console since the last call.
    pub(super) async fn errors(&self) -> anyhow::Result<Vec<String>> {
        let log = self.post("/se/log", json!({ "type": "browser" })).await?;
        let entries = log.as_array().cloned().unwrap_or_default();
        let bad = entries.iter().filter(|entry| entry["level"] == "SEVERE");
        Ok(bad.map(|entry| entry["message"].to_string()).collect())
    }

    async fn post(&self, path: &str, body: Value) -> anyhow::Result<Value> {
        let path = format!("/session/{}{path}", self.session);
        self.send(Method::POST, &path, Some(body)).await
    }

    async fn send(&self, method: Method, path: &str, body: Option<Value>) -> anyhow::Result<Value> {
        let sending = tokio::time::timeout(PATIENCE, self.exchange(method, path, body));
        sending.await.with_context(|| format!("chromedriver does not answer {path}"))?
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> anyhow::Result<Value> {
        let host = format!("127.0.0.1:{}", self.port);
        let io = TokioIo::new(TcpStream::connect(&host).await?);
        let (mut client, connection) = http1::handshake(io).await?;
        self.tasks.spawn("chromedriver", async move { drop(connection.await) });
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, host)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))?;
        let answer = client.send_request(request).await?;
        let is_good = answer.status().is_success();
        let body = answer.into_body().collect().await?.to_bytes();
        let mut body: Value = serde_json::from_slice(&body)?;
        let value = body["value"].take();
        if !is_good {
            bail!("{}: {}", value["error"], value["message"]);
        }
        ensure!(!value["error"].is_string(), "{value}");
        Ok(value)
    }
}
