//! How a node is, in the one word and colour that the page has for it.

use maud::Render;

/// How a node is. The worse comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NodeState {
    /// It had a link once, and has none now.
    Away,
    /// It has a link, and one of its drivers is down.
    Down,
    /// It has no link, and its certificates were revoked.
    Revoked,
    /// It gets no new volumes.
    Apart,
    /// Its certificate ends soon.
    Ending,
    /// All is well.
    Linked,
    /// An operator removed it.
    Removed,
}

impl NodeState {
    /// All states, in the order in which they are shown.
    pub(super) const ALL: [Self; 7] = [
        Self::Away,
        Self::Down,
        Self::Revoked,
        Self::Apart,
        Self::Ending,
        Self::Linked,
        Self::Removed,
    ];

    /// Its word in addresses and in the style sheet.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Away => "away",
            Self::Down => "down",
            Self::Revoked => "revoked",
            Self::Apart => "apart",
            Self::Ending => "ending",
            Self::Linked => "linked",
            Self::Removed => "removed",
        }
    }

    /// The words for people.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Away => "away",
            Self::Down => "driver down",
            Self::Revoked => "revoked",
            Self::Apart => "set apart",
            Self::Ending => "certificate ends soon",
            Self::Linked => "linked",
            Self::Removed => "removed",
        }
    }

    /// The state of this name.
    pub(super) fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

impl Render for NodeState {
    fn render_to(&self, buffer: &mut String) {
        buffer.push_str(self.name());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_is_written_and_no_two_are_the_same() {
        for (place, state) in NodeState::ALL.into_iter().enumerate() {
            assert_eq!(NodeState::of_name(state.name()), Some(state));
            let place_of_label = NodeState::ALL.iter().position(|of| of.label() == state.label());
            assert_eq!(place_of_label, Some(place));
        }
        assert_eq!(NodeState::of_name("ok"), None);
    }
}
