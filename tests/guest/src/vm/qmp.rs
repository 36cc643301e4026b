//! QEMU's monitor: a JSON object in each line. Commands one at a time; events are kept until they
//! are waited for.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

/// How long QEMU may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A connection to it.
pub struct Qmp {
    lines: Lines<BufReader<OwnedReadHalf>>,
    write: OwnedWriteHalf,
    events: Vec<Value>,
}

impl Qmp {
    /// Begins, on a connection that QEMU has just made.
    ///
    /// # Errors
    /// It is no QEMU.
    pub async fn new(stream: UnixStream) -> anyhow::Result<Self> {
        let (read, write) = stream.into_split();
        let mut qmp = Self { lines: BufReader::new(read).lines(), write, events: Vec::new() };
        let greeting = qmp.line().await?;
        ensure!(greeting.get("QMP").is_some(), "QEMU did not greet: {greeting}");
        qmp.execute("qmp_capabilities", json!({})).await?;
        Ok(qmp)
    }

    /// Executes a command, and returns its result.
    ///
    /// # Errors
    /// QEMU's, or it does not answer in time.
    pub async fn execute(&mut self, command: &str, arguments: Value) -> anyhow::Result<Value> {
        let text = json!({ "execute": command, "arguments": arguments }).to_string() + "\n";
        self.write
            .write_all(text.as_bytes())
            .await
            .with_context(|| format!("cannot ask for {command}"))?;
        loop {
            let mut line = self.line().await.with_context(|| format!("no answer to {command}"))?;
            if let Some(returned) = line.get_mut("return") {
                return Ok(returned.take());
            }
            if let Some(error) = line.get("error") {
                bail!("{command} {arguments}: {}", error["desc"].as_str().unwrap_or("failed"));
            }
            self.events.push(line);
        }
    }

    /// Waits for an event of this device, or takes an earlier one.
    ///
    /// # Errors
    /// It does not come in time.
    pub async fn event(&mut self, name: &str, device: &str) -> anyhow::Result<()> {
        let is = |event: &Value| event["event"] == name && event["data"]["device"] == device;
        if let Some(at) = self.events.iter().position(is) {
            self.events.remove(at);
            return Ok(());
        }
        let waiting = async {
            loop {
                let line = self.line().await?;
                if is(&line) {
                    return Ok(());
                }
                self.events.push(line);
            }
        };
        let waited = tokio::time::timeout(PATIENCE, waiting).await;
        waited.with_context(|| format!("no {name} of {device} within {PATIENCE:?}"))?
    }

    async fn line(&mut self) -> anyhow::Result<Value> {
        let line = tokio::time::timeout(PATIENCE, self.lines.next_line()).await;
        let line = line.with_context(|| format!("QEMU said nothing within {PATIENCE:?}"))??;
        Ok(serde_json::from_str(&line.context("QEMU has ended")?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A QEMU that sends these lines, whatever the commands are.
    async fn qemu(lines: &[&str]) -> anyhow::Result<(Qmp, UnixStream)> {
        let (ours, mut its) = UnixStream::pair()?;
        let greeting = ["{\"QMP\":{}}", "{\"return\":{}}"];
        for line in greeting.iter().chain(lines) {
            its.write_all(format!("{line}\r\n").as_bytes()).await?;
        }
        Ok((Qmp::new(ours).await?, its))
    }

    #[tokio::test]
    async fn an_event_between_question_and_answer_is_not_lost() -> anyhow::Result<()> {
        let gone = r#"{"event":"DEVICE_DELETED","data":{"device":"d-1","path":"/x"}}"#;
        let other = r#"{"event":"DEVICE_DELETED","data":{"path":"/x/virtio-backend"}}"#;
        let (mut qmp, _its) = qemu(&[other, gone, r#"{"return":{"enabled":true}}"#]).await?;
        assert_eq!(qmp.execute("query-kvm", json!({})).await?["enabled"], true);
        qmp.event("DEVICE_DELETED", "d-1").await
    }

    #[tokio::test]
    async fn a_refusal_and_an_end_are_errors() -> anyhow::Result<()> {
        let (mut qmp, its) =
            qemu(&[r#"{"error":{"class":"GenericError","desc":"no such device"}}"#]).await?;
        let refused =
            qmp.execute("device_del", json!({ "id": "x" })).await.unwrap_err().to_string();
        assert!(refused.contains("device_del") && refused.contains("no such device"), "{refused}");
        drop(its);
        assert!(qmp.event("DEVICE_DELETED", "x").await.is_err());
        Ok(())
    }
}
