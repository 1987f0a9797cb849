//! The cycle that is being replayed: which bucket comes next, and which of its requests are there.
//!
//! Invariant: at the end of every call, `missing` of a bucket is the number of its requests that this rank has not
//! made since the bucket last started, and `missing` of a batch the number of its requests not made since the batch was
//! last let through. A request made early, for an iteration that has not begun, is simply there already.
//!
//! Requests of one batch may lie in several buckets. The first of these waits for the whole batch, so that it is
//! never started on a rank that cannot finish it.

use std::sync::Arc;

use super::RequestId;
use super::learn::Recorded;
use super::table::ByName;
use crate::fuse::{self, BucketPlan, hash_word};
use crate::item::Item;
use crate::request::Batch;

/// Where a request belongs in the cycle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    bucket: u32,
    part: u32,
    /// Number of its batch, or `NO_BATCH`.
    batch: u32,
}

const NO_BATCH: u32 = u32::MAX;

#[derive(Debug)]
struct CycleBucket {
    plan: Arc<BucketPlan>,
    requests: Vec<Option<RequestId>>,
    missing: usize,
    /// Batches whose first bucket this is.
    batches: Vec<u32>,
}

#[derive(Debug)]
struct CycleBatch {
    name: Arc<str>,
    size: usize,
    missing: usize,
}

/// A cycle and how far this rank is in it.
#[derive(Debug)]
pub(super) struct Cycle {
    buckets: Vec<CycleBucket>,
    batches: Vec<CycleBatch>,
    position: usize,
    /// Requests that are there and whose bucket has not started.
    waiting: usize,
    /// A hash of the buckets in order.
    pub(super) hash: u64,
}

impl Cycle {
    /// Fuses the items of a cycle. Gives the place of each item as well, in the given order.
    pub(super) fn new(recorded: &[Recorded], limits: &fuse::FusionLimits) -> (Cycle, Vec<(Arc<Item>, Place)>) {
        let items: Vec<Arc<Item>> = recorded.iter().map(|recorded| Arc::clone(&recorded.item)).collect();
        let after = dependences(recorded);
        let fused = fuse::fuse(&items, |position| after[position], limits);
        let mut cycle = Cycle { buckets: Vec::new(), batches: Vec::new(), position: 0, waiting: 0, hash: 0 };
        let mut batch_numbers: ByName<u32> = ByName::default();
        let mut places = Vec::with_capacity(items.len());
        for (number, bucket) in fused.into_iter().enumerate() {
            let mut batches = Vec::new();
            for (part, position) in bucket.positions.iter().enumerate() {
                let item = &items[*position];
                let batch = item.batch.as_ref().map_or(NO_BATCH, |batch| {
                    let known = batch_numbers.len() as u32;
                    let batch_number = *batch_numbers.entry(Arc::clone(&batch.name)).or_insert(known);
                    if batch_number == known {
                        cycle.batches.push(CycleBatch { name: Arc::clone(&batch.name), size: 0, missing: 0 });
                        batches.push(batch_number);
                    }
                    cycle.batches[batch_number as usize].size += 1;
                    cycle.batches[batch_number as usize].missing += 1;
                    batch_number
                });
                places.push((Arc::clone(item), Place { bucket: number as u32, part: part as u32, batch }));
            }
            let parts = bucket.positions.len();
            cycle.hash = hash_word(cycle.hash, bucket.plan.hash);
            cycle.buckets.push(CycleBucket { plan: bucket.plan, requests: vec![None; parts], missing: parts, batches });
        }
        (cycle, places)
    }

    /// The item at a place.
    pub(super) fn item(&self, place: Place) -> &Item {
        &self.buckets[place.bucket as usize].plan.parts[place.part as usize].item
    }

    /// Number of buckets.
    pub(super) fn len(&self) -> usize {
        self.buckets.len()
    }

    /// How many requests are there and wait for their bucket to start.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// A request has been made.
    pub(super) fn put(&mut self, place: Place, request: RequestId) {
        let bucket = &mut self.buckets[place.bucket as usize];
        bucket.requests[place.part as usize] = Some(request);
        bucket.missing -= 1;
        if place.batch != NO_BATCH {
            self.batches[place.batch as usize].missing -= 1;
        }
        self.waiting += 1;
    }

    /// Whether everything that the next bucket needs is there.
    pub(super) fn is_ready(&self) -> bool {
        let bucket = &self.buckets[self.position];
        bucket.missing == 0 && bucket.batches.iter().all(|batch| self.batches[*batch as usize].missing == 0)
    }

    /// Starts the next bucket, which must be ready.
    pub(super) fn start(&mut self) -> (Arc<BucketPlan>, Vec<Option<RequestId>>) {
        let bucket = &mut self.buckets[self.position];
        for batch in &bucket.batches {
            let batch = &mut self.batches[*batch as usize];
            batch.missing = batch.size;
        }
        let parts = bucket.requests.len();
        bucket.missing = parts;
        self.waiting -= parts;
        let requests = std::mem::replace(&mut bucket.requests, vec![None; parts]);
        let plan = Arc::clone(&bucket.plan);
        self.position = (self.position + 1) % self.buckets.len();
        (plan, requests)
    }

    /// Undoes the last start. Only the place in the cycle is restored: the cycle is about to be given up.
    pub(super) fn step_back(&mut self) {
        self.position = (self.position + self.buckets.len() - 1) % self.buckets.len();
    }

    /// The batches of which a part has run in this iteration and the rest has not, with the number that is left.
    pub(super) fn cut_batches(&self) -> Vec<Batch> {
        let parts_of = |buckets: &[CycleBucket], name: &Arc<str>| {
            let parts = buckets.iter().flat_map(|bucket| &bucket.plan.parts);
            parts.filter(|part| part.item.batch.as_ref().is_some_and(|batch| batch.name == *name)).count()
        };
        let (run, left) = self.buckets.split_at(self.position);
        let counts = self.batches.iter().map(|batch| (batch, parts_of(run, &batch.name), parts_of(left, &batch.name)));
        let cut = counts.filter(|(_, run, left)| *run > 0 && *left > 0);
        cut.map(|(batch, _, left)| Batch { name: Arc::clone(&batch.name), members: left as u32 }).collect()
    }

    /// Whether the bucket of this place has not run in this iteration.
    pub(super) fn is_left(&self, place: Place) -> bool {
        place.bucket as usize >= self.position
    }
}

/// For each item the position before which everything lies that it may depend on: what had finished on some rank when
/// that rank asked for the item.
fn dependences(recorded: &[Recorded]) -> Vec<usize> {
    // Positions by bucket, and the greatest position in any bucket up to each.
    let mut by_bucket: Vec<(u64, usize)> = recorded.iter().enumerate().map(|(at, item)| (item.bucket, at)).collect();
    by_bucket.sort_unstable();
    let mut last_so_far = 0;
    for (_, position) in &mut by_bucket {
        last_so_far = last_so_far.max(*position);
        *position = last_so_far;
    }
    let after = |(at, item): (usize, &Recorded)| {
        let finished = by_bucket.partition_point(|(bucket, _)| *bucket < item.seen);
        if finished == 0 { 0 } else { (by_bucket[finished - 1].1 + 1).min(at) }
    };
    recorded.iter().enumerate().map(after).collect()
}
