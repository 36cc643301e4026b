//! A csi-cloud that starts with a store of the largest supported size in etcd, which is imported as
//! operators do it.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use harness::etcd_server::EtcdServer;
use harness::replicas;
use harness::replicas::{Replica, leader};
use harness::stand::Stand;
use tokio::time::{Instant, timeout};

use crate::figures::Figure;
use crate::grown;
use crate::grown::{DRIVER, Size};
use crate::usage;

/// The most that a start may take until it is ready, in s.
const READY: f64 = 20.0;
/// How long a command may take.
const LONG: Duration = Duration::from_secs(1800);

pub(super) async fn measure(size: Size, dir: &Path) -> anyhow::Result<Vec<Figure>> {
    let data = tempfile::tempdir_in(dir)?;
    let data = std::path::absolute(data.path())?;
    let stand = Stand::new().await?;
    let file = data.join("size.redb");
    grown::grow(&file, size)?;
    let export = data.join("export.json");
    let begun = Instant::now();
    command(&stand, &["export", "--store", &format!("file:{}", file.display())], &export).await?;
    let exported = begun.elapsed().as_secs_f64();
    std::fs::remove_file(&file)?;
    // One member: what is read comes from one, and the others would only take the disk.
    let mut etcd = EtcdServer::start(&data, 1).await?;
    let url = etcd.url("size");
    let begun = Instant::now();
    let from = export.display().to_string();
    let nothing = data.join("import.out");
    command(&stand, &["import", "--store", &url, &from], &nothing).await?;
    let imported = begun.elapsed().as_secs_f64();
    let back = back(&stand, &url, &export).await?;
    std::fs::remove_file(&export)?;
    let mut replicas = [Replica::new("a", &["wss"], &url, &[DRIVER])?];
    let begun = Instant::now();
    let [replica] = &mut replicas;
    replica.start(&stand).await?;
    let ready = begun.elapsed().as_secs_f64();
    let resident = usage::resident_kib(replica.process()?.pid().context("it has ended")?)?;
    leader(&replicas, &[]).await?;
    let leads = begun.elapsed().as_secs_f64();
    replicas::end(&mut replicas, &mut etcd).await?;
    Ok(vec![
        Figure::new("export of the large store from a file", exported, "s"),
        Figure::new("import of it into etcd", imported, "s"),
        Figure::new("export of it from etcd, and import into a file", back, "s"),
        Figure::new("start with it in etcd, until ready", ready, "s").at_most(READY),
        Figure::new("start with it in etcd, until it leads", leads, "s"),
        Figure::new(
            "csi-cloud with it in etcd, resident when ready",
            resident as f64 / 1024.0,
            "MiB",
        ),
    ])
}

/// Takes the store from etcd to a new file. Nothing of it may be lost or changed there.
async fn back(stand: &Stand, url: &str, before: &Path) -> anyhow::Result<f64> {
    let begun = Instant::now();
    let export = before.with_extension("etcd.json");
    command(stand, &["export", "--store", url], &export).await?;
    let file = before.with_extension("redb");
    let to = format!("file:{}", file.display());
    let from = export.display().to_string();
    command(stand, &["import", "--store", &to, &from], &before.with_extension("out")).await?;
    let took = begun.elapsed().as_secs_f64();
    let again = before.with_extension("again.json");
    command(stand, &["export", "--store", &to], &again).await?;
    std::fs::remove_file(&file)?;
    let read = |path: &Path| anyhow::Ok(BufReader::new(File::open(path)?).lines());
    // An import forgets when nodes were listed last, so only the later two are the same.
    let [first, mut lines, mut others] = [read(before)?, read(&export)?, read(&again)?];
    let mut records = 0;
    while let Some(line) = lines.next().transpose()? {
        let other = others.next().transpose()?;
        ensure!(other.as_deref() == Some(&*line), "{line} came back as {other:?}");
        records += 1;
    }
    ensure!(others.next().is_none(), "more records came back than were taken there");
    ensure!(first.count() == records, "etcd has {records} records, and the file had others");
    std::fs::remove_file(&again)?;
    std::fs::remove_file(&export)?;
    Ok(took)
}

/// Runs a command about a store, with its output in a file.
async fn command(stand: &Stand, args: &[&str], output: &Path) -> anyhow::Result<()> {
    let mut command = stand.program("csi-cloud")?;
    command.arg("store").args(args).stdin(Stdio::null()).kill_on_drop(true);
    command.stdout(File::create(output)?);
    let mut running = command.spawn()?;
    let ended = timeout(LONG, running.wait()).await.context("it does not end")??;
    ensure!(ended.success(), "csi-cloud store {} failed", args.join(" "));
    Ok(())
}
