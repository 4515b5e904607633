//! Panics of Burn as errors with their message.

use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};

static PRINTED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static MESSAGE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Keeps the message of a panic instead of printing it.
pub fn keep_messages() {
    panic::set_hook(Box::new(|info| {
        let payload = info.payload();
        let text = payload
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_default();
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        if PRINTED.load(Ordering::Relaxed) {
            eprintln!("panic: {text} ({place})");
        }
        MESSAGE.with_borrow_mut(|message| *message = format!("{text} ({place})"));
    }));
}

/// What a call returns, or the message of its panic.
pub fn caught<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    panic::catch_unwind(AssertUnwindSafe(call)).map_err(|_| MESSAGE.take())
}

/// The same, for a call that may abort the process after its panic: the message is printed too.
pub fn caught_loudly<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    PRINTED.store(true, Ordering::Relaxed);
    let result = caught(call);
    PRINTED.store(false, Ordering::Relaxed);
    result
}
