//! A store that goes from a file to etcd and back.

use std::io::Write;
use std::path::Path;

use proto::admin::output::Output;
use proto::control::leader::LeaderEpoch;
use proto::host::program::runtime;

use super::*;
use crate::cli::store::check;
use crate::etcd::api::TxnRequest;
use crate::etcd::request;
use crate::state::store::backend::Backend;
use crate::state::store::file::File;
use crate::state::store::tests::transfer::last_create;
use crate::state::store::tests::{expected, loaded};
use crate::state::store::transfer;
use crate::state::store::transfer::ExportedSecrets;
use crate::state::store::url::StoreAt;

fn exported(at: &StoreAt) -> String {
    let mut out = Vec::new();
    transfer::export(at, ExportedSecrets::Included, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn imported(at: &StoreAt, dir: &Path, lines: &str) -> Result<(), String> {
    let mut file = tempfile::NamedTempFile::new_in(dir).unwrap();
    file.write_all(lines.as_bytes()).unwrap();
    let moved = Some(last_create(lines));
    transfer::import(at, file.path(), moved).map_err(|error| format!("{error:#}"))
}

#[test]
fn it_goes_from_a_file_to_etcd_and_back_with_a_later_epoch() {
    let Some(server) = EtcdServer::start(&[]) else { return };
    let runtime = runtime(1).unwrap();
    runtime.block_on(server.ready());
    let dir = tempfile::tempdir().unwrap();
    let [file, back] = ["file", "back"].map(|name| StoreAt::File(dir.path().join(name)));
    let etcd = StoreAt::Etcd(server.at("edge-csi"));
    let StoreAt::File(path) = &file else { unreachable!() };
    let node = Change::Node("n1".parse().unwrap(), Some(Default::default()));
    let mut all: Vec<_> = (0..250).map(|n| volume(&n.to_string())).collect();
    all.push(node);
    File::open(path).unwrap().commit(&all).unwrap();
    let lines = exported(&file);
    imported(&etcd, dir.path(), &lines).unwrap();
    assert!(exported(&etcd) == lines);
    let mut said = Vec::new();
    check(&etcd, Output::Table, &mut said).unwrap();
    assert!(String::from_utf8(said).unwrap().starts_with("251 records in format 1"));
    let refused = imported(&etcd, dir.path(), &lines).unwrap_err();
    assert!(refused.contains("holds 251 records"), "{refused}");
    // A csi-cloud leads there, so nothing is imported; and it has an epoch then.
    let epoch = runtime.block_on(async {
        let a = Running::leading(&server, "a").await;
        assert!(a.has("7"));
        let epoch = a.store.leadership().epoch().unwrap();
        a.stop().await;
        epoch
    });
    let StoreAt::File(path) = &back else { unreachable!() };
    imported(&back, dir.path(), &exported(&etcd)).unwrap();
    let mut kept = loaded(&mut File::open(path).unwrap()).unwrap();
    let later = |change: &Change| matches!(change, Change::LeaderEpoch(of) if *of > epoch);
    let before = kept.len();
    kept.retain(|_, change| !later(change));
    assert_eq!(before - kept.len(), 1);
    assert!(kept == expected(&all));
}

#[test]
fn an_import_that_was_cut_off_is_no_store_and_is_done_again() {
    let Some(server) = EtcdServer::start(&[]) else { return };
    let runtime = runtime(1).unwrap();
    runtime.block_on(server.ready());
    let dir = tempfile::tempdir().unwrap();
    let file = StoreAt::File(dir.path().join("file"));
    let StoreAt::File(path) = &file else { unreachable!() };
    let epoch = Change::LeaderEpoch(LeaderEpoch(7));
    File::open(path).unwrap().commit(&[volume("v"), epoch]).unwrap();
    let lines = exported(&file);
    let etcd = StoreAt::Etcd(server.at("edge-csi"));
    let cut = lines.lines().take(2).collect::<Vec<_>>().join("\n");
    let refused = imported(&etcd, dir.path(), &cut).unwrap_err();
    assert!(refused.contains("cut off"), "{refused}");
    let refused = check(&etcd, Output::Table, &mut Vec::new()).unwrap_err();
    assert!(format!("{refused:#}").contains("has not finished"), "{refused:#}");
    imported(&etcd, dir.path(), &lines).unwrap();
    check(&etcd, Output::Table, &mut Vec::new()).unwrap_err();
    assert_eq!(exported(&etcd).lines().count(), lines.lines().count());
    // Nobody imports below a csi-cloud that leads.
    let lead = request::put(b"/other/leader", Vec::new(), 0);
    let lead = TxnRequest { success: vec![lead], ..TxnRequest::default() };
    runtime.block_on(async { server.client().txn(lead).await }).unwrap();
    let other = StoreAt::Etcd(server.at("other"));
    let refused = imported(&other, dir.path(), &lines).unwrap_err();
    assert!(refused.contains("stop all of them first"), "{refused}");
}
