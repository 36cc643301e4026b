//! Looks after all direct volumes at intervals, without a call. It reports leases and volumes that
//! were not taken to the cloud, hides fenced ones, has devices withheld, and takes back the volumes
//! of pods that are gone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use proto::control::lease::MAX_ID;
use proto::control::not_taken::{NotTaken, NotTakenVolume};
use proto::csi::Method;
use proto::csi::status::ToStatus;
use proto::host::backoff::Backoff;
use proto::host::chain;
use proto::names::DriverName;
use tokio::time::Instant;
use tracing::{debug, error, warn};

use super::driver_call::DriverCall;
use super::holders;
use super::holders::LastLook;
use super::locks::VolumeLock;
use super::publish;
use super::state::Service;
use crate::lease::exclusive::Reported;
use crate::lease::record;
use crate::records::published;
use crate::records::published::Published;
use crate::volume::cover;
use crate::volume::orphan::is_orphan;

/// The first delay before unfinished work is tried again; it doubles up to the last.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(60);
/// The delay before the next round when nothing was left.
const ROUND: Duration = Duration::from_secs(10);
/// The time for which a pod's directory must be missing before its volumes are taken back without a
/// call.
const GONE: Duration = Duration::from_secs(15);

/// The targets of pods that are gone, and since when.
type Orphans = BTreeMap<PathBuf, Instant>;

/// Settles the leases that an earlier csi-edge left: releases what is unused and holds the rest.
/// The cloud is not asked.
pub(super) fn settle_all(service: &Service) {
    for (driver, volume) in leased(service).0 {
        if let Err(error) = service.leases.settle(&driver, &volume) {
            let error = chain(&error);
            warn!(%driver, volume, error, "it is not known whose the volume is");
        }
    }
}

/// Makes a round at each new link and every few seconds, until told to stop.
pub(super) async fn keep(service: Arc<Service>) {
    let mut restatements = service.leases.client().restatements();
    let mut retries = Backoff::new(RETRY_FIRST, RETRY_LAST);
    let mut orphans = Orphans::new();
    let mut not_taken = BTreeSet::new();
    let mut holders = LastLook::default();
    loop {
        restatements.borrow_and_update();
        holders::look(&service, &mut holders).await;
        report_not_taken(&service, &mut not_taken);
        let all = report_all(&service).await;
        // Later, so that a node that has just linked reports first.
        take_back_all_orphans(&service, &mut orphans);
        let wait = if all {
            retries.reset();
            ROUND
        } else {
            retries.delay()
        };
        tokio::select! {
            biased;
            _ = restatements.changed() => retries.reset(),
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Reports all leases; false if something was left undone.
async fn report_all(service: &Service) -> bool {
    let (volumes, mut all) = leased(service);
    let mut silent = false;
    for (driver, volume) in volumes {
        let reported = report_volume(service, &driver, &volume, silent).await;
        all &= reported == Reported::Yes;
        // A link that has lost one answer may lose all, and each volume is locked meanwhile.
        silent |= reported == Reported::Silent;
    }
    all
}

async fn report_volume(
    service: &Service,
    driver: &DriverName,
    volume: &str,
    silent: bool,
) -> Reported {
    let _reporting = service.locks.report(driver, volume);
    // A running operation reports the lease itself.
    let Ok(_lock) = service.locks.try_lock(driver, volume, "its lease's report") else {
        return Reported::Later;
    };
    match service.leases.settle(driver, volume) {
        Ok(Some(entry)) => service.leases.report(driver, &entry, silent).await,
        Ok(None) => Reported::Yes,
        // It stays so until somebody looks, or there is room on the disk.
        Err(error) => {
            let error = chain(&error);
            debug!(%driver, volume, error, "it is not known whose the volume is");
            Reported::Later
        }
    }
}

/// The volumes with a record or a lease; false if some are not known.
fn leased(service: &Service) -> (BTreeSet<(DriverName, String)>, bool) {
    let Some(state) = &service.node.state else { return (BTreeSet::new(), true) };
    let records = published::each(state);
    let leases = record::all(state);
    let all = records.is_ok() && leases.is_ok();
    let records = records.unwrap_or_default().into_iter().flatten();
    let records = records.map(|record| (record.driver, record.volume_id));
    let leases = leases.unwrap_or_default().into_iter().flatten();
    let leases = leases.map(|entry| (entry.driver, entry.volume_id));
    let volumes = records.chain(leases).filter(|(_, volume)| volume.len() <= MAX_ID);
    let parsed = volumes.filter_map(|(driver, volume)| Some((driver.parse().ok()?, volume)));
    (parsed.collect(), all)
}

/// Logs each volume that a runtime shares as a directory instead of taking it, once. Has the cloud
/// told when these volumes, or those that are withheld, change.
fn report_not_taken(service: &Service, logged: &mut BTreeSet<PathBuf>) {
    let state = service.node.state.as_ref();
    let records = state.and_then(|state| published::each(state).ok()).unwrap_or_default();
    let mut seen = BTreeSet::new();
    let mut volumes = Vec::new();
    for record in records.into_iter().flatten() {
        if record.custody.withheld.is_some() {
            volumes.extend(reported(&record));
            continue;
        }
        let shared = cover::shared_at(&service.node.host.proc, &record.target);
        let Ok(Some(at)) = shared else { continue };
        if !logged.contains(&record.target) {
            let driver = &record.driver;
            let volume = &record.volume_id;
            let at = at.display();
            error!(
                driver, volume, %at,
                "not taken: a runtime shares the node's directory with a pod instead of the \
                 volume; nobody can write there: csi-edge direct check"
            );
        }
        volumes.extend(reported(&record));
        seen.insert(record.target);
    }
    *logged = seen;
    let report = Some(NotTaken::of(volumes));
    service.not_taken.send_if_modified(|last| {
        let is_news = *last != report;
        *last = report;
        is_news
    });
}

/// A volume as the cloud is told of it.
fn reported(record: &Published) -> Option<NotTakenVolume> {
    let driver = record.driver.parse().ok()?;
    let Published { volume_id: volume, pod, custody, .. } = record.clone();
    Some(NotTakenVolume { driver, volume, pod, withheld: custody.withheld })
}

/// Takes back the volumes of pods that are gone. Each has a task of its own, because a driver may
/// take long.
fn take_back_all_orphans(service: &Arc<Service>, orphans: &mut Orphans) {
    let state = service.node.state.as_ref();
    let records = state.and_then(|state| published::each(state).ok()).unwrap_or_default();
    let gone: Vec<_> = records.into_iter().flatten().filter(is_orphan).collect();
    orphans.retain(|target, _| gone.iter().any(|record| record.target == *target));
    for record in gone {
        let since = *orphans.entry(record.target.clone()).or_insert_with(Instant::now);
        if since.elapsed() < GONE {
            continue;
        }
        let Ok(driver) = record.driver.parse::<DriverName>() else { continue };
        // A running operation may be taking it back; otherwise the next round does.
        let taken_by = "taking it back from a pod that is gone";
        let taken = service.locks.try_lock(&driver, &record.volume_id, taken_by);
        let Ok(lock) = taken else { continue };
        let taking_back = take_back(service.clone(), driver, record, lock);
        service.tasks.spawn("direct", taking_back);
    }
}

async fn take_back(service: Arc<Service>, driver: DriverName, record: Published, lock: VolumeLock) {
    let volume = &record.volume_id;
    let headers = HeaderMap::new();
    let executor = &service.executor;
    let method = Method::NodeUnpublishVolume;
    let call = DriverCall { executor, driver: &driver, method, headers: &headers, deadline: None };
    match publish::take_back_orphans(&service.node, &call, volume).await {
        Ok(()) => service.leases.settle_and_report(&driver, volume).await,
        Err(error) => warn!(%driver, volume, error = error.chain(), "not taken back yet"),
    }
    drop(lock);
}

#[cfg(test)]
mod tests;
