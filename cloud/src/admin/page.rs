//! Lists in pages. A page looks at a bounded part of the state, so the store is locked briefly.

use std::ops::Bound;

use proto::csi::{Id, Method};
use proto::names::DriverName;
use serde::{Deserialize, Serialize};

use crate::state::driver_state::DriverState;
use crate::state::known::State;

/// Records that one page looks at.
pub(super) const PAGE: usize = 1000;
/// The kinds that have homes.
pub(super) const KINDS: [&str; 3] = ["volume", "snapshot", "group"];

/// A position in a list of the drivers' records.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Cursor {
    /// The driver.
    pub driver: DriverName,
    /// `volume`, `snapshot` or `group`; for a create its method.
    pub kind: String,
    /// The id, or the name.
    pub id: String,
}

/// Records of a driver, in order of their ids.
pub(super) type Records<'s, R> = Box<dyn Iterator<Item = (&'s Id, &'s R)> + 's>;

/// All ids after this one.
pub(super) fn ids_after(after: Option<Id>) -> (Bound<Id>, Bound<Id>) {
    (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded)
}

/// The records from which a page is made.
pub(super) struct Walk<'a> {
    /// Of this driver only.
    pub(super) driver: Option<&'a DriverName>,
    /// After this position.
    pub(super) after: Option<&'a Cursor>,
}

impl Walk<'_> {
    /// Visits the records of one page; returns where the next page begins, if there is one.
    pub(super) fn visit<'s, R: 's>(
        &self,
        state: &'s State,
        records: impl Fn(&'s DriverState, Option<Id>) -> Records<'s, R>,
        mut each: impl FnMut(&DriverName, &'s Id, &'s R),
    ) -> Option<Cursor> {
        let mut left = PAGE;
        for (driver, of) in state.drivers() {
            let after = self.after.filter(|after| after.driver >= *driver);
            let another = self.driver.is_some_and(|wanted| wanted != driver);
            if another || after.is_some_and(|after| after.driver > *driver) {
                continue;
            }
            let after = after.and_then(|after| id(&after.kind, &after.id));
            for (id, record) in records(of, after) {
                each(driver, id, record);
                left -= 1;
                if left == 0 {
                    let kind = id.word().to_owned();
                    let id = id.text().to_owned();
                    return Some(Cursor { driver: driver.clone(), kind, id });
                }
            }
        }
        None
    }
}

/// The id of something of this kind, as [`Id::word`] says it; none for an unknown kind.
pub(super) fn id(kind: &str, text: &str) -> Option<Id> {
    let text = text.to_owned();
    match kind {
        "volume" => Some(Id::Volume(text)),
        "snapshot" => Some(Id::Snapshot(text)),
        "group" => Some(Id::Group(text)),
        method => {
            let method = Method::of_name(method).filter(|method| method.creates().is_some());
            method.map(|method| Id::Name(method, text))
        }
    }
}

/// A text, or none if it is empty.
pub(super) fn not_empty(text: &str) -> Option<String> {
    Some(text.to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_read_as_it_is_written() {
        let name = |method| Id::Name(method, "x".into());
        for known in [
            Id::Volume("x".into()),
            Id::Snapshot("x".into()),
            Id::Group("x".into()),
            name(Method::CreateVolume),
            name(Method::CreateSnapshot),
            name(Method::CreateVolumeGroupSnapshot),
        ] {
            assert_eq!(id(known.word(), "x"), Some(known));
        }
        assert_eq!(id("volumes", "x"), None);
    }
}
