//! RuntimeClass handlers whose guests take direct volumes, as the operator configures them.

use glob::Pattern;

/// The handlers that the configuration names, or that Kata's own installation makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handlers(Vec<Pattern>);

/// Kata's handlers: `kata`, `kata-qemu`, `kata-clh`, and the like.
const KATA: &str = "kata*";

impl Default for Handlers {
    fn default() -> Self {
        Self(Pattern::new(KATA).into_iter().collect())
    }
}

impl Handlers {
    /// Handlers that match one of these patterns.
    pub fn new(patterns: Vec<Pattern>) -> Self {
        Self(patterns)
    }

    /// True if containers of this handler run in a guest that takes direct volumes.
    pub fn takes_direct(&self, handler: &str) -> bool {
        self.0.iter().any(|pattern| pattern.matches(handler))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn katas_handlers_are_the_default() {
        let handlers = Handlers::default();
        assert!(["kata", "kata-qemu", "kata-clh"].iter().all(|name| handlers.takes_direct(name)));
        assert!(["runc", "runsc", "my-kata", ""].iter().all(|name| !handlers.takes_direct(name)));
        let handlers = Handlers::new(vec![Pattern::new("vm").unwrap()]);
        assert!(handlers.takes_direct("vm") && !handlers.takes_direct("kata"));
    }
}
