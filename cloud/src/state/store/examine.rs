//! Examines a store that no csi-cloud has open, or one in etcd.
//!
//! Its records must be readable, and must not contradict each other.

use crate::state::check::{Wrong, disagreements};
use crate::state::known::State;
use crate::state::starts::LastCreate;
use crate::state::store::existing::Existing;
use crate::state::store::url::StoreAt;

/// The result.
pub(crate) struct Examined {
    /// The problems.
    pub(crate) wrong: Vec<Wrong>,
    /// The number of records.
    pub(crate) records: u64,
    /// The format that the store states.
    pub(crate) format: u64,
    /// The last create.
    pub(crate) last: LastCreate,
}

/// Reads all of a store.
///
/// # Errors
/// The store is missing or in use, or cannot be opened. A record that cannot be read is one of the
/// problems.
pub(crate) fn examine(at: &StoreAt) -> anyhow::Result<Examined> {
    let mut state = State::default();
    let mut records = 0;
    // A store that is in use or missing cannot be judged.
    let mut store = Existing::open(at)?;
    let loaded = store.load(&mut |change| {
        records += 1;
        state.apply(change);
    });
    let mut wrong = disagreements(&state);
    if let Err(error) = loaded {
        let why = proto::host::chain(&error);
        wrong.push(Wrong { driver: String::new(), what: "the store".into(), why });
    }
    let last = state.starts().last_create();
    Ok(Examined { wrong, records, format: store.format(), last })
}
