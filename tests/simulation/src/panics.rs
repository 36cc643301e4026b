//! A panic in a task is swallowed by the runtime; here it is what is wrong with the run.

use std::cell::RefCell;
use std::sync::Once;

thread_local! {
    static CAUGHT: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// How a panic begins that the simulation itself causes.
pub(super) const INJECTED: &str = "the simulation's own panic";

/// From now on panics are noted by thread, besides being printed as ever.
pub(super) fn catch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let printed = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let is_own = panic.payload_as_str().is_some_and(|text| text.starts_with(INJECTED));
            if !is_own {
                CAUGHT.with_borrow_mut(|caught| caught.push(format!("a panic: {panic}")));
                printed(panic);
            }
        }));
    });
    drop(caught());
}

/// The panics of this thread since it was last asked.
pub(super) fn caught() -> Vec<String> {
    CAUGHT.take()
}
