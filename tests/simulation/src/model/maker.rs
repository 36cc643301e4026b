//! Who made what an answer names: an honest node, or the liar.

use super::world::World;

/// Who made a thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Maker {
    /// An honest node.
    Honest,
    /// The liar.
    Liar,
}

impl World {
    /// Who made a volume with this id under this name.
    pub(super) fn maker_of_volume(&self, name: &str, id: &str) -> Option<Maker> {
        let storages = self.fleet.storages();
        let volumes = storages.flat_map(|(_, driver)| driver.named_volumes());
        let names = volumes.filter(|(_, volume, _)| volume.volume_id == id);
        self.maker(names.map(|(called, ..)| called).collect(), name, id)
    }

    /// Who made a snapshot with this id under this name.
    pub(super) fn maker_of_snapshot(&self, name: &str, id: &str) -> Option<Maker> {
        let storages = self.fleet.storages();
        let snapshots = storages.flat_map(|(_, driver)| driver.snapshots());
        let names = snapshots.filter(|(_, snapshot)| snapshot.snapshot_id == id);
        self.maker(names.map(|(called, _)| called).collect(), name, id)
    }

    /// The maker of an id that has these names at honest nodes. What has another name there is not
    /// the liar's, whatever it says.
    fn maker(&self, honest: Vec<String>, name: &str, id: &str) -> Option<Maker> {
        match honest.as_slice() {
            [] => self.liar.has_made(name, id).then_some(Maker::Liar),
            names => names.iter().any(|called| called == name).then_some(Maker::Honest),
        }
    }
}
