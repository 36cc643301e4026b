//! Collects the parts of a transfer. What is not in order, or too much, is dropped as a whole.

use proto::control::metadata::{Key, MOST, Object, Part, Position};
use proto::host::peer_log::{LogPeer, peer_warn};

/// A transfer on one link, as far as it has come.
#[derive(Default)]
pub struct Receiving {
    transfer: Option<Transfer>,
    next: u32,
}

/// A whole transfer.
#[derive(Debug)]
pub(super) struct Transfer {
    /// The position before it; none if it replaces everything.
    pub(super) from: Option<Position>,
    /// The position after it.
    pub(super) to: Position,
    pub(super) objects: Vec<Object>,
    pub(super) gone: Vec<Key>,
}

impl Receiving {
    /// Takes a part; returns the transfer if this was its last.
    pub(super) fn take(&mut self, part: Part) -> Option<Transfer> {
        let Part { from, to, number, last, objects, gone } = part;
        if number == 0 {
            self.next = 0;
            let empty = Transfer { from, to, objects: Vec::new(), gone: Vec::new() };
            self.transfer = Some(empty);
        }
        let transfer = self.transfer.as_mut()?;
        transfer.objects.extend(objects);
        transfer.gone.extend(gone);
        let is_next = number == self.next && transfer.from == from && transfer.to == to;
        let most = transfer.objects.len().max(transfer.gone.len());
        self.next = self.next.saturating_add(1);
        if !is_next || most > MOST {
            peer_warn!(
                LogPeer::Cloud,
                most,
                "metadata came out of order, or is too much; it is not used"
            );
            self.transfer = None;
            return None;
        }
        if last { self.transfer.take() } else { None }
    }
}
