//! A transfer on its way to an edge, cut into parts that do not delay calls.

use std::sync::Arc;

use proto::control::metadata::{Key, LARGEST, Object, PART, Part, Position};
use tracing::warn;

/// The rest of a transfer.
#[derive(Debug)]
pub struct Transfer {
    from: Option<Position>,
    to: Position,
    number: u32,
    is_over: bool,
    objects: std::vec::IntoIter<Arc<Object>>,
    /// An object that did not fit into the part before.
    held: Option<(usize, Arc<Object>)>,
    gone: std::vec::IntoIter<Key>,
}

impl Transfer {
    /// A transfer that leads to a position, from another one or from nothing.
    pub fn new(
        from: Option<Position>,
        to: Position,
        objects: Vec<Arc<Object>>,
        gone: Vec<Key>,
    ) -> Self {
        let objects = objects.into_iter();
        let gone = gone.into_iter();
        Self { from, to, number: 0, is_over: false, objects, held: None, gone }
    }

    /// The position after it.
    pub fn to(&self) -> Position {
        self.to
    }

    /// True after the last part.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// The next part; none after the last one.
    pub fn next_part(&mut self) -> Option<Part> {
        if self.is_over {
            return None;
        }
        let Self { from, to, number, .. } = *self;
        let mut part = Part { from, to, number, ..Part::default() };
        let mut size = 0;
        while size < PART {
            let Some((bytes, object)) = self.next_object() else { break };
            if size > 0 && size + bytes > PART {
                self.held = Some((bytes, object));
                break;
            }
            size += bytes;
            part.objects.push(Arc::unwrap_or_clone(object));
        }
        while size < PART && self.held.is_none() {
            let Some(key) = self.gone.next() else { break };
            size += key.name.len() + key.namespace.len() + 64;
            part.gone.push(key);
        }
        self.number = number.saturating_add(1);
        let is_left = self.held.is_some() || self.objects.len() > 0 || self.gone.len() > 0;
        self.is_over = !is_left;
        part.last = self.is_over;
        Some(part)
    }

    /// The next object with its size in JSON. One that no message can hold is left out.
    fn next_object(&mut self) -> Option<(usize, Arc<Object>)> {
        if let Some(held) = self.held.take() {
            return Some(held);
        }
        loop {
            let object = self.objects.next()?;
            let bytes = serde_json::to_vec(object.as_ref()).map_or(usize::MAX, |text| text.len());
            if bytes <= LARGEST {
                return Some((bytes, object));
            }
            let key = object.key();
            warn!(?key, bytes, most = LARGEST, "an object is too large to be sent to its node");
        }
    }
}
