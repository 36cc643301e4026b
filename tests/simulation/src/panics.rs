//! A panic in a task is swallowed by the runtime; here it is what is wrong with the run.

use std::cell::RefCell;
use std::sync::Once;

thread_local! {
    static CAUGHT: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// From now on panics are noted by thread, besides being printed as ever.
pub(super) fn catch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let printed = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            CAUGHT.with_borrow_mut(|caught| caught.push(format!("a panic: {panic}")));
            printed(panic);
        }));
    });
    drop(caught());
}

/// The panics of this thread since it was last asked.
pub(super) fn caught() -> Vec<String> {
    CAUGHT.take()
}
