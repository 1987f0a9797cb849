//! One fetch for each block at a time within a process: [`Flights`].
//!
//! The first thread that wants a block fetches it; those that come meanwhile wait for it, with a deadline, and get the
//! same block or the same error.
//!
//! **Invariant:** a thread that waits is woken when the one that fetches is done, also when it panics.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::super::StorageError;
use super::Key;

/// What a fetch ends with. None: it was given up.
type Outcome = Option<Result<Arc<Vec<u8>>, StorageError>>;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Flights(Mutex<HashMap<Key, Arc<Flight>>>);

/// A fetch under way. The one that fetches sets the outcome, and all others wait for it.
#[derive(Debug, Default)]
pub(super) struct Flight {
    outcome: Mutex<Option<Outcome>>,
    is_over: Condvar,
}

/// What a thread that wants a block has to do.
pub(super) enum Boarding<'a> {
    /// Fetch it.
    Fetch(Duty<'a>),
    /// Wait for it.
    Wait(Arc<Flight>),
}

/// The duty to fetch a block. Dropped without an outcome, it tells those that wait to help themselves.
pub(super) struct Duty<'a> {
    flights: &'a Flights,
    key: Key,
    flight: Arc<Flight>,
}

impl Flights {
    pub(super) fn board(&self, key: Key) -> Boarding<'_> {
        let mut under_way = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(flight) = under_way.get(&key) {
            return Boarding::Wait(Arc::clone(flight));
        }
        let flight = Arc::new(Flight::default());
        under_way.insert(key, Arc::clone(&flight));
        Boarding::Fetch(Duty { flights: self, key, flight })
    }
}

impl Duty<'_> {
    /// Ends the fetch for all.
    pub(super) fn fulfil(self, outcome: Result<Arc<Vec<u8>>, StorageError>) {
        *self.flight.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(Some(outcome));
    }
}

impl Drop for Duty<'_> {
    fn drop(&mut self) {
        self.flights.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
        let mut outcome = self.flight.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        outcome.get_or_insert(None);
        self.flight.is_over.notify_all();
    }
}

impl Flight {
    /// The outcome; none if the fetch was given up, or takes longer than this.
    pub(super) fn wait(&self, limit: Duration) -> Outcome {
        let outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.is_over.wait_timeout_while(outcome, limit, |outcome| outcome.is_none());
        let (outcome, _) = waited.unwrap_or_else(PoisonError::into_inner);
        outcome.clone().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_wait_get_the_block_and_the_next_one_fetches_anew() {
        let flights = Flights::default();
        let Boarding::Fetch(duty) = flights.board(Key(1)) else { panic!("nobody else fetches") };
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| match flights.board(Key(1)) {
                Boarding::Wait(flight) => flight.wait(Duration::from_secs(60)),
                Boarding::Fetch(_) => None,
            });
            assert!(matches!(flights.board(Key(2)), Boarding::Fetch(_)));
            farandole_testing::wait_until("a second thread", Duration::from_secs(60), || {
                Arc::strong_count(&duty.flight) == 3
            });
            duty.fulfil(Ok(vec![5].into()));
            assert_eq!(&*waiting.join().unwrap().unwrap().unwrap(), &[5]);
        });
        assert!(matches!(flights.board(Key(1)), Boarding::Fetch(_)));
    }

    #[test]
    fn a_fetch_that_panics_wakes_those_who_wait() {
        let flights = Flights::default();
        let Boarding::Fetch(duty) = flights.board(Key(1)) else { panic!("nobody else fetches") };
        let Boarding::Wait(flight) = flights.board(Key(1)) else { panic!("somebody else fetches") };
        assert!(flight.wait(Duration::from_millis(1)).is_none());
        drop(duty);
        assert!(flight.wait(Duration::from_secs(60)).is_none());
    }
}
