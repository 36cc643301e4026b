//! Asks csi-edge, and prints the answer.

use std::io;
use std::io::Write;

use anyhow::Context;
use proto::admin::client::Client;
use proto::admin::command::looked_at;
use proto::admin::output::{ListWriter, Output};
use proto::config::places::SocketPlace;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::show;
use crate::admin::status::StatusView;
use crate::admin::{calls, drivers, ended_calls, status, volumes};
use crate::cli::ask::{Ask, Calls, Show};

/// Who is asked.
const PROGRAM: &str = "csi-edge";

/// Runs a command, and writes to `out` what csi-edge answers.
///
/// # Errors
/// csi-edge does not answer, or refuses.
pub async fn run(command: Ask, out: &mut impl Write) -> anyhow::Result<()> {
    let ran = match command {
        Ask::Status(show) => status(&show, out).await,
        Ask::Drivers(show) => {
            let drivers = ask(&show, drivers::PATH).await?;
            list(&show, drivers, show::DRIVERS, show::driver, out)
        }
        Ask::Volumes(show) => {
            let volumes = look(&show, volumes::PATH).await?;
            list(&show, volumes, show::VOLUMES, show::volume, out)
        }
        Ask::Calls(Calls { ended: true, show }) => {
            let calls = ask(&show, ended_calls::PATH).await?;
            list(&show, calls, show::ENDED, show::ended, out)
        }
        Ask::Calls(Calls { ended: false, show }) => {
            let calls = ask(&show, calls::PATH).await?;
            list(&show, calls, show::CALLS, show::call, out)
        }
    };
    match ran {
        // A reader of the output that has gone, `head` say, is no error.
        Err(error) if is_broken_pipe(&error) => Ok(()),
        ran => ran,
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

async fn connect(show: &Show) -> anyhow::Result<Client> {
    let SocketPlace { path, tried } = show.socket();
    Client::connect(PROGRAM, &path).await.with_context(|| looked_at(&tried))
}

async fn ask<T: DeserializeOwned>(show: &Show, path: &'static str) -> anyhow::Result<T> {
    let mut client = connect(show).await?;
    Ok(client.ask(path, &Value::Object(Map::new())).await?)
}

/// Asks for what csi-edge has to look for on its disk.
async fn look<T: DeserializeOwned>(show: &Show, path: &'static str) -> anyhow::Result<T> {
    let mut client = connect(show).await?;
    Ok(client.carry_out(path, &Value::Object(Map::new())).await?)
}

fn list<T: Serialize>(
    show: &Show,
    items: Vec<T>,
    headers: &'static [&'static str],
    row: fn(&T) -> Vec<String>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let mut writer = ListWriter::new(show.output, headers);
    writer.add(out, &items, row)?;
    Ok(writer.end(out)?)
}

async fn status(show: &Show, out: &mut impl Write) -> anyhow::Result<()> {
    let status: StatusView = ask(show, status::PATH).await?;
    match show.output {
        Output::Json => Ok(writeln!(out, "{}", serde_json::to_string(&status)?)?),
        Output::Table => Ok(show::status(out, &status)?),
    }
}
