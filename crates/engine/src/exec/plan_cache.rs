//! What was worked out for a collective, kept for as long as collectives repeat: [`PlanCache`].

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

/// Entries kept at most. A training loop has some dozens of buckets; a program that never repeats itself must not fill
/// the memory.
const KEPT_MAX: usize = 1024;

/// Schedules, and what goes with them, by what they were made for.
#[derive(Debug)]
pub(crate) struct PlanCache<K, V>(HashMap<K, Arc<V>>);

impl<K: Eq + Hash, V> PlanCache<K, V> {
    pub(crate) fn new() -> PlanCache<K, V> {
        PlanCache(HashMap::new())
    }

    /// What was made for this before, if anything was.
    pub(crate) fn get(&self, key: &K) -> Option<Arc<V>> {
        self.0.get(key).map(Arc::clone)
    }

    /// Keeps this, in place of what was there for the same key. A cache that is full begins anew.
    pub(crate) fn put(&mut self, key: K, value: V) -> Arc<V> {
        if self.0.len() >= KEPT_MAX {
            self.0.clear();
        }
        let value = Arc::new(value);
        self.0.insert(key, Arc::clone(&value));
        value
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}
