//! Examines a store that no csi-cloud has open: whether it can be read and its records agree.

use crate::state::check::{Wrong, disagreements};
use crate::state::known::State;
use crate::state::store::backend::Backend;
use crate::state::store::file::File;
use crate::state::store::url::StoreAt;

/// What is wrong, and how many records there are.
pub(crate) fn examine(at: &StoreAt) -> anyhow::Result<(Vec<Wrong>, u64)> {
    let (mut state, mut records) = (State::default(), 0);
    // That it is in use, or not there, says nothing about it.
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
    Ok((wrong, records))
}
