//! What a group records of its devices: how long they took, and how often caches had what they were asked for.

use std::time::Duration;

use farandole_device::Hits;
use farandole_plan::agree::Operation;
use farandole_trace::Event;
use farandole_trace::event::{DeviceCache, DeviceStep, OperationNumber};

use super::group::GroupRecord;
use crate::exec::device::stopwatch::Stopwatch;

/// Caches are told of at most so often, once they have been asked for more than a few things.
const CACHES_EVERY_NS: u64 = 100_000_000;

/// What was told of caches, and when.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ToldCaches {
    lookups: u64,
    at_ns: u64,
}

impl GroupRecord {
    /// What times the device's part of the next bucket, if somebody wants to know.
    pub(crate) fn stopwatch(&self) -> Stopwatch {
        if self.writer.recorder().wants_device_times() { Stopwatch::timing() } else { Stopwatch::default() }
    }

    /// A device took so long for its part of a bucket.
    pub(crate) fn device_took(&mut self, operation: Operation, times: Vec<(DeviceStep, u64)>, now: Duration) {
        let (group, operation) = (self.group, OperationNumber(operation.0));
        for (step, ns) in times {
            self.writer.write(self.at(now), Event::DeviceTook { group, operation, step, ns });
        }
    }

    /// What caches were asked for since the group began.
    pub(crate) fn caches(&mut self, caches: &[(DeviceCache, Hits)], now: Duration) {
        let (group, now_ns) = (self.group, self.at(now));
        let lookups = caches.iter().map(|(_, hits)| hits.hits + hits.misses).sum::<u64>();
        let ToldCaches { lookups: told, at_ns } = self.told_caches;
        // At first as they grow, so that short jobs tell as well.
        let is_due = lookups > told + told / 4 || lookups > told && now_ns > at_ns + CACHES_EVERY_NS;
        if is_due && self.writer.is_on() {
            self.told_caches = ToldCaches { lookups, at_ns: now_ns };
            for &(cache, Hits { hits, misses }) in caches {
                self.writer.write(now_ns, Event::CacheHits { group, cache, hits, misses });
            }
        }
    }
}
