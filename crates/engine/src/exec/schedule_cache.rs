//! Schedules that have been made, for as long as collectives repeat.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use farandole_plan::Schedule;

/// Schedules kept at most. A training loop has some dozens of buckets; a program that never repeats itself must not
/// fill the memory.
const KEPT_MAX: usize = 1024;

/// Schedules by what they were made for.
#[derive(Debug)]
pub(crate) struct ScheduleCache<K>(HashMap<K, Arc<Schedule>>);

impl<K: Eq + Hash> ScheduleCache<K> {
    pub(crate) fn new() -> ScheduleCache<K> {
        ScheduleCache(HashMap::new())
    }

    /// The schedule for this, if it was made before.
    pub(crate) fn get(&self, key: &K) -> Option<Arc<Schedule>> {
        self.0.get(key).map(Arc::clone)
    }

    /// Keeps a schedule. A cache that is full begins anew.
    pub(crate) fn put(&mut self, key: K, schedule: Schedule) -> Arc<Schedule> {
        if self.0.len() >= KEPT_MAX {
            self.0.clear();
        }
        let schedule = Arc::new(schedule);
        self.0.insert(key, Arc::clone(&schedule));
        schedule
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}
