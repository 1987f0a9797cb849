//! What a thread of this process last panicked with, for the ranks that wait for it.
//!
//! A world that is dropped by a panic can see that there is one, and not what it says. So a hook in front of the
//! process's own notes it. **Invariant:** the hook that was there is called with every panic, and nothing is printed.

use std::cell::RefCell;
use std::panic;
use std::sync::Once;

thread_local! {
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// From now on panics are noted. A hook that the program sets later takes the place of this one.
pub(crate) fn note() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let payload = info.payload();
            let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
            // A thread whose own variables are gone has no world.
            let _ = LAST.try_with(|last| *last.borrow_mut() = text);
            before(info);
        }));
    });
}

/// What ends this thread, if it panics: `panicked: index out of bounds`.
pub(crate) fn current() -> Option<String> {
    if !std::thread::panicking() {
        return None;
    }
    let text = LAST.try_with(|last| last.borrow_mut().take()).ok().flatten();
    Some(text.map_or_else(|| "panicked".to_owned(), |text| format!("panicked: {text}")))
}
