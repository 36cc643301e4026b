//! The contract of every backend. A new backend gets a function and a test in `backends!`.

use proptest::test_runner::{Config, TestRunner};

use proto::host::program::runtime;

use crate::state::store::tests::etcd_server::EtcdServer;
use crate::state::store::tests::*;

/// Opens the same store again; the previous handle is closed by then.
trait Reopen {
    fn open(&mut self) -> Box<dyn Backend>;
}

impl<F: FnMut() -> Box<dyn Backend>> Reopen for F {
    fn open(&mut self) -> Box<dyn Backend> {
        self()
    }
}

fn in_file() -> impl Reopen {
    let dir = tempfile::tempdir().unwrap();
    move || Box::new(File::open(&dir.path().join("store")).unwrap()) as Box<dyn Backend>
}

fn in_memory() -> impl Reopen {
    let store = Memory::default();
    move || Box::new(store.clone()) as Box<dyn Backend>
}

/// None if etcd is not installed.
fn in_etcd() -> Option<impl Reopen> {
    let server = EtcdServer::start(&[])?;
    runtime(1).unwrap().block_on(server.ready());
    Some(move || Box::new(server.at("edge-csi").offline().unwrap()) as Box<dyn Backend>)
}

macro_rules! backends {
    ($($name:ident: $check:ident;)*) => {$(
        mod $name {
            #[test]
            fn in_file() {
                super::$check(&mut super::in_file());
            }

            #[test]
            fn in_etcd() {
                if let Some(mut store) = super::in_etcd() {
                    super::$check(&mut store);
                }
            }

            #[test]
            fn in_memory() {
                super::$check(&mut super::in_memory());
            }
        }
    )*};
}
backends! {
    reopened_it_has_what_was_committed: any_batches;
    later_overrides_earlier_and_none_removes: overriding;
    a_batch_may_be_large: large;
    any_text_is_an_id: texts;
}

fn any_batches(store: &mut impl Reopen) {
    let mut runner =
        TestRunner::new(Config { cases: 8, failure_persistence: None, ..Config::default() });
    // Each case continues with the store of the one before, as a csi-cloud does.
    let store = std::cell::RefCell::new(store);
    let all = std::cell::RefCell::new(Vec::new());
    let batches = vec(vec(change(), 0..20), 0..4);
    let outcome = runner.run(&batches, |batches| {
        let mut all = all.borrow_mut();
        let mut backend = store.borrow_mut().open();
        for batch in batches {
            backend.commit(&batch).unwrap();
            all.extend(batch);
        }
        drop(backend);
        prop_assert_eq!(loaded(&mut *store.borrow_mut().open()).unwrap(), expected(&all));
        Ok(())
    });
    outcome.unwrap();
}

fn overriding(store: &mut impl Reopen) {
    let one = volume("v", Some(home("n1")));
    let other = volume("v", Some(home("n2")));
    let changes = [
        one.clone(),
        volume("w", Some(home("n1"))),
        volume("w", None),
        other.clone(),
        volume("x", None),
    ];
    store.open().commit(&changes).unwrap();
    assert_eq!(loaded(&mut *store.open()).unwrap(), expected(std::slice::from_ref(&other)));
    store.open().commit(std::slice::from_ref(&one)).unwrap();
    assert_eq!(loaded(&mut *store.open()).unwrap(), expected(&[one]));
    store.open().commit(&[volume("v", None)]).unwrap();
    assert!(loaded(&mut *store.open()).unwrap().is_empty());
}

fn large(store: &mut impl Reopen) {
    let changes: Vec<_> = (0..10_000).map(|n| volume(format!("v{n}"), Some(home("n1")))).collect();
    store.open().commit(&changes).unwrap();
    assert_eq!(loaded(&mut *store.open()).unwrap(), expected(&changes));
    let removed: Vec<_> = (0..10_000).map(|n| volume(format!("v{n}"), None)).collect();
    store.open().commit(&removed).unwrap();
    assert!(loaded(&mut *store.open()).unwrap().is_empty());
}

fn texts(store: &mut impl Reopen) {
    let long = "é".repeat(2048);
    let ids = ["", "/", "a/b", "a#b", " a b ", "\0", "a\0", "a\0b", "\u{10ffff}", &long];
    let changes: Vec<_> = ids.iter().map(|id| volume(*id, Some(home("n1")))).collect();
    store.open().commit(&changes).unwrap();
    let kept = loaded(&mut *store.open()).unwrap();
    assert_eq!(kept, expected(&changes));
    assert_eq!(kept.len(), ids.len());
}
