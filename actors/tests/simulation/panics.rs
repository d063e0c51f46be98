//! Panics inside a simulation: those that are part of the plan need no text, any other is a broken promise.

use std::cell::RefCell;

thread_local! {
    /// What panicked on this thread that was not planned; none while no simulation runs.
    static UNPLANNED: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// What planned panics say.
const PLANNED: [&str; 3] = ["by chance", "was told to panic", "a poisoned record"];

pub fn listen() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let planned = UNPLANNED.with_borrow_mut(|unplanned| {
                let Some(unplanned) = unplanned else { return false };
                let text = panic.payload_as_str().unwrap_or_default();
                let is_planned = PLANNED.iter().any(|planned| text.contains(planned));
                if !is_planned {
                    unplanned.push(format!("panic: {panic}"));
                }
                is_planned
            });
            if !planned {
                loud(panic);
            }
        }));
    });
}

/// Runs something, and answers what panicked in it without being planned.
pub fn during<T>(run: impl FnOnce() -> T) -> (T, Vec<String>) {
    UNPLANNED.set(Some(Vec::new()));
    let out = run();
    (out, UNPLANNED.take().unwrap_or_default())
}
