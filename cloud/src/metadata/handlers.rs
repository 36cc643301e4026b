//! RuntimeClass handlers whose guests take direct volumes, as the operator configures them.

use std::str::FromStr;

use glob::{Pattern, PatternError};

/// Kata's handlers: `kata`, `kata-qemu`, `kata-clh`, and the like.
const KATA: &str = "kata*";

/// Kata's handlers, and what the configuration adds to them or takes from them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handlers(Vec<HandlerRule>);

/// Handlers that take direct volumes, or with `!` some that do not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerRule {
    pattern: Pattern,
    takes: bool,
}

impl FromStr for HandlerRule {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let (pattern, takes) = match text.strip_prefix('!') {
            Some(pattern) => (pattern, false),
            None => (text, true),
        };
        Ok(Self { pattern: Pattern::new(pattern)?, takes })
    }
}

impl Handlers {
    /// Kata's handlers with these rules over them, in their order.
    pub fn new(rules: Vec<HandlerRule>) -> Self {
        Self(rules)
    }

    /// True if containers of this handler run in a guest that takes direct volumes. The last rule
    /// that matches counts.
    pub fn takes_direct(&self, handler: &str) -> bool {
        let last = self.0.iter().rev().find(|rule| rule.pattern.matches(handler));
        last.map_or_else(|| is_katas(handler), |rule| rule.takes)
    }

    /// True if the handler takes them as one of Kata's, and the configuration names others. Up to
    /// 0.2 a configured list replaced Kata's handlers.
    pub fn is_added(&self, handler: &str) -> bool {
        let is_named = self.0.iter().any(|rule| rule.takes && rule.pattern.matches(handler));
        !self.0.is_empty() && self.takes_direct(handler) && !is_named
    }

    /// What this list means since 0.3 and did not mean before.
    pub fn change(&self) -> Option<&'static str> {
        let names_kata = self.0.iter().any(|rule| rule.pattern.as_str() == KATA);
        (!self.0.is_empty() && !names_kata).then_some(
            "direct_handlers adds to kata* since 0.3, and replaced it before: new volumes of a \
             class with auto are direct for Kata's pods, too; to leave these out, begin the list \
             with \"!kata*\"; if they are meant, begin it with \"kata*\"",
        )
    }
}

fn is_katas(handler: &str) -> bool {
    Pattern::new(KATA).is_ok_and(|pattern| pattern.matches(handler))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handlers(rules: &[&str]) -> Handlers {
        Handlers::new(rules.iter().map(|rule| rule.parse().unwrap()).collect())
    }

    #[test]
    fn katas_handlers_are_the_default() {
        let handlers = Handlers::default();
        for kata in ["kata", "kata-qemu", "kata-clh"] {
            assert!(handlers.takes_direct(kata) && !handlers.is_added(kata));
        }
        assert!(["runc", "runsc", "my-kata", ""].iter().all(|name| !handlers.takes_direct(name)));
        assert_eq!(handlers.change(), None);
    }

    #[test]
    fn a_list_adds_to_katas_handlers_and_can_take_them_away() {
        let adding = handlers(&["vm"]);
        assert!(adding.takes_direct("vm") && !adding.is_added("vm"));
        assert!(adding.takes_direct("kata-qemu") && adding.is_added("kata-qemu"));
        assert!(!adding.takes_direct("runc"));
        assert!(adding.change().unwrap().contains("\"!kata*\""));
        let without = handlers(&["!kata*", "vm", "kata-clh"]);
        assert!(without.takes_direct("vm") && without.takes_direct("kata-clh"));
        assert!(!without.takes_direct("kata") && !without.is_added("kata-clh"));
        assert_eq!(without.change(), None);
        let some = handlers(&["kata*", "!kata-fc"]);
        assert!(some.takes_direct("kata") && !some.takes_direct("kata-fc"));
        assert!(!some.is_added("kata") && some.change().is_none());
    }
}
