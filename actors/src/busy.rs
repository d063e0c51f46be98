//! Threads that are busy with something else, for the simulation, where all actors share one thread.
//!
//! An actor that is started begins only when its thread has time for it, and one that is ended goes on until its thread comes
//! to an await: meanwhile its next life may have begun.

use std::cell::RefCell;
use std::future::Future;
use std::time::Duration;

/// Says for how long the thread of some actor is busy, if it is.
type Busy = Box<dyn FnMut() -> Option<Duration>>;

thread_local! {
    static BUSY: RefCell<Option<Busy>> = const { RefCell::new(None) };
}

/// Asks this from now on, on this thread; `None`: no thread is ever busy.
pub fn ask(busy: Option<Busy>) {
    BUSY.set(busy);
}

pub(crate) fn thread() -> Option<Duration> {
    BUSY.with_borrow_mut(|busy| busy.as_mut().and_then(|busy| busy()))
}

/// A life that begins when its thread has time.
pub(crate) async fn before<T>(life: impl Future<Output = T>) -> T {
    if let Some(busy) = thread() {
        tokio::time::sleep(busy).await;
    }
    life.await
}
