//! Asks programs over plain HTTP: metrics, and how they are.

use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long an answer may take.
const ASK: Duration = Duration::from_secs(2);

/// The answer of a program at this address, head and body.
///
/// # Errors
/// It gives none in time.
pub async fn get(address: &str, path: &str) -> anyhow::Result<String> {
    ask(address, format!("GET {path} HTTP/1.0\r\n\r\n")).await
}

/// The answer to this body, head and body.
///
/// # Errors
/// It gives none in time.
pub async fn post(address: &str, path: &str, body: &str) -> anyhow::Result<String> {
    let length = body.len();
    let head = format!("POST {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n");
    ask(address, head + body).await
}

async fn ask(address: &str, request: String) -> anyhow::Result<String> {
    let asking = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        anyhow::Ok(answer)
    };
    timeout(ASK, asking).await.with_context(|| format!("{address} says nothing"))?
}

/// A metric without labels of the program at this address.
///
/// # Errors
/// It has no such metric.
pub async fn metric(address: &str, name: &str) -> anyhow::Result<f64> {
    let answer = get(address, "/metrics").await?;
    ensure!(answer.contains("200 OK"), "{answer}");
    let value = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.with_context(|| format!("no metric {name}"))?.trim().parse().context("no number")
}
