//! The keys of a store in etcd as a file: one line of JSON for each, as etcd's HTTP gateway has it.

use anyhow::{Context, ensure};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use harness::http;
use serde_json::{Value, json};

/// The prefix of the store.
pub(super) const PREFIX: &str = "edge-csi";

/// All keys below the prefix, with their values. Those of a lease end with their program.
pub(super) async fn dump(address: &str) -> anyhow::Result<String> {
    let [key, range_end] = ["/", "0"].map(|end| BASE64_STANDARD.encode(format!("/{PREFIX}{end}")));
    let range = json!({"key": key, "range_end": range_end});
    let found = ask(address, "/v3/kv/range", &range).await?;
    let found = found["kvs"].as_array().context("no keys")?.iter();
    let lasting = found.filter(|pair| pair["lease"].is_null());
    Ok(lasting
        .map(|pair| format!("{}\n", json!({"key": pair["key"], "value": pair["value"]})))
        .collect())
}

/// Puts all keys of a dump.
pub(super) async fn restore(address: &str, dump: &str) -> anyhow::Result<()> {
    for line in dump.lines() {
        ask(address, "/v3/kv/put", &serde_json::from_str(line)?).await?;
    }
    Ok(())
}

async fn ask(address: &str, path: &str, request: &Value) -> anyhow::Result<Value> {
    let answer = http::post(address, path, &request.to_string()).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    ensure!(head.contains(" 200 "), "{answer}");
    Ok(serde_json::from_str(body)?)
}
