//! What programs say when they are asked: by a command of csi-cloud, or over HTTP. Each question
//! has a deadline.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;

use super::ground::Ground;
use harness::wait::START;

/// What a server says over HTTP, with the headers.
///
/// # Errors
/// It does not answer.
pub async fn get(address: &str, path: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut text = String::new();
    tokio::time::timeout(START, stream.read_to_string(&mut text)).await??;
    Ok(text)
}

/// Runs a command of csi-cloud to its end and returns its output.
///
/// # Errors
/// It failed; the error holds what it wrote to stderr.
pub async fn admin(ground: &Ground, args: &[&str]) -> anyhow::Result<String> {
    output(ground, &ground.program("csi-cloud"), args).await
}

/// The same of a build.
///
/// # Errors
/// It failed.
pub(super) async fn output(
    ground: &Ground,
    program: &Path,
    args: &[&str],
) -> anyhow::Result<String> {
    let mut command = Command::new(program);
    command.current_dir(ground.dir());
    let output = command.args(args).stdin(Stdio::null()).kill_on_drop(true).output();
    let output = tokio::time::timeout(START, output).await.context("csi-cloud does not end")??;
    let error = String::from_utf8_lossy(&output.stderr);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "csi-cloud {} failed: {error}{said}", args.join(" "));
    Ok(said)
}
