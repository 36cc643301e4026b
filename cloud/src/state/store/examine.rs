//! Examines a store that no csi-cloud has open.
//!
//! Its records must be readable, and must not contradict each other.

use crate::state::check::{Wrong, disagreements};
use crate::state::known::State;
use crate::state::store::backend::Backend;
use crate::state::store::file::File;
use crate::state::store::url::StoreAt;

/// What was found.
pub(crate) struct Examined {
    /// The problems.
    pub(crate) wrong: Vec<Wrong>,
    /// The number of records.
    pub(crate) records: u64,
    /// The format that the store states.
    pub(crate) format: u64,
}

/// Reads all of a store.
pub(crate) fn examine(at: &StoreAt) -> anyhow::Result<Examined> {
    let mut state = State::default();
    let mut records = 0;
    // A store that is in use or missing cannot be judged.
    let mut file = File::existing(at.file()?)?;
    let loaded = file.load(&mut |change| {
        records += 1;
        state.apply(change);
    });
    let mut wrong = disagreements(&state);
    if let Err(error) = loaded {
        let why = proto::host::chain(&error);
        wrong.push(Wrong { driver: String::new(), what: "the file".into(), why });
    }
    Ok(Examined { wrong, records, format: file.format() })
}
