//! The exchange of this process, for whoever has blocks: [`CurrentExchange`].
//!
//! A process is a rank of one job at a time. Whoever makes it one sets the exchange; caches, which may have been opened
//! before or after that, watch it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::BlockExchange;

/// Called with every exchange that this process gets, and with none when it leaves its job.
type Watcher = Box<dyn Fn(Option<Arc<BlockExchange>>) + Send + Sync>;

/// See the module's text. One thread at a time changes it; watchers are called by that thread.
#[derive(Default)]
pub struct CurrentExchange(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    exchange: Option<Arc<BlockExchange>>,
    watchers: Vec<Watcher>,
}

impl CurrentExchange {
    /// The one of this process.
    pub fn of_this_process() -> &'static CurrentExchange {
        static OWN: OnceLock<CurrentExchange> = OnceLock::new();
        OWN.get_or_init(CurrentExchange::default)
    }

    /// From now on the process has this exchange, and no other.
    pub fn set(&self, exchange: Arc<BlockExchange>) {
        self.change(Some(exchange));
    }

    /// The process has no exchange any more, if this one is still its own.
    pub fn clear(&self, exchange: &Arc<BlockExchange>) {
        let is_current = self.inner().exchange.as_ref().is_some_and(|current| Arc::ptr_eq(current, exchange));
        if is_current {
            self.change(None);
        }
    }

    /// Tells a watcher what the exchange is, now and whenever it changes. A watcher does not change it.
    pub fn watch(&self, watcher: impl Fn(Option<Arc<BlockExchange>>) + Send + Sync + 'static) {
        let mut inner = self.inner();
        watcher(inner.exchange.clone());
        inner.watchers.push(Box::new(watcher));
    }

    fn change(&self, exchange: Option<Arc<BlockExchange>>) {
        let mut inner = self.inner();
        inner.exchange.clone_from(&exchange);
        inner.watchers.iter().for_each(|watcher| watcher(exchange.clone()));
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for CurrentExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CurrentExchange").field("exchange", &self.inner().exchange).finish_non_exhaustive()
    }
}
