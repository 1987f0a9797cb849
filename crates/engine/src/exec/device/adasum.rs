//! Adasum in device memory: [`Combining`], what one rank does of it.
//!
//! A rank that works for a device has whole tensors of the bucket as its share (`plan::device`): the inner products
//! that Adasum weighs by belong to whole tensors. Of each it makes all combinations (`plan::adasum`), a round after the
//! other, and stores the last one with every rank. A rank that has joined contributes zeros.
//!
//! Combinations that are not the last one, *carried* vectors, lie in the place of the first rank's result, which is
//! free until then: where results replace contributions, the contribution there has been used. Halves are carried as
//! singles, for which there is no room: they lie in scratch memory of the device. With two ranks nothing is carried.
//!
//! Bytes: with `r` ranks, contributions are read twice and the result is written `r` times; each of `r - 2` carried
//! vectors is written once and read twice.

use farandole_device::{AdasumPair, AdasumResult, AdasumVector, DeviceAdasum, Result, Stream};
use farandole_plan::adasum::Seats;
use farandole_plan::device;
use farandole_plan::fuse::BucketPlan;
use farandole_plan::{Collective, Dtype, ReduceOp};

use super::work::{Places, Share};

/// Where carried vectors begin in scratch memory, as drivers align what they allocate.
const ALIGN_BYTES: u64 = 256;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Combining<'a> {
    dtype: Dtype,
    prescale: f64,
    postscale: f64,
    places: &'a [Places],
    /// The tensors of this rank's share, with their elements.
    parts: Vec<(usize, u64)>,
    rounds: Vec<Vec<(usize, usize)>>,
}

impl<'a> Combining<'a> {
    /// The share of a rank in a bucket, if that is an Adasum.
    pub(super) fn of(plan: &BucketPlan, places: &'a [Places], share: &Share) -> Option<Combining<'a>> {
        let Collective::Allreduce { op: ReduceOp::Adasum, prescale, postscale } = plan.collective else { return None };
        let lengths: Vec<u64> = plan.parts.iter().map(|part| part.item.shape.iter().product()).collect();
        let parts = device::whole_share(&lengths, share.folders(), share.folder());
        let parts = parts.into_iter().map(|part| (part, lengths[part])).collect();
        let rounds = Seats::new(places.len()).rounds();
        Some(Combining { dtype: plan.dtype, prescale, postscale, places, parts, rounds })
    }

    /// Bytes of scratch memory that it takes.
    pub(super) fn scratch_bytes(&self) -> u64 {
        if self.parts.is_empty() {
            return 0;
        }
        // Of all carried vectors at once: none begins before two contributions that were not carried are combined.
        let carried = if self.is_carried_apart() { self.places.len() as u64 / 2 } else { 0 };
        self.call_bytes() + carried * self.parts.iter().map(|(_, elems)| self.carried_bytes(*elems)).sum::<u64>()
    }

    /// Queues it, and says whether there was anything to do.
    ///
    /// # Errors
    /// If the driver refuses, or the device has failed.
    pub(super) fn queue(&self, stream: &Stream, scratch: u64) -> Result<bool> {
        let contribution = |places: &Places, part: usize| match places {
            Some(tensors) => AdasumVector::Contribution(tensors[part].0),
            None => AdasumVector::Zeros,
        };
        let of_rank = |places| self.parts.iter().map(|(part, _)| contribution(places, *part)).collect();
        let mut vectors: Vec<Vec<AdasumVector>> = self.places.iter().map(of_rank).collect();
        let mut free = scratch + self.call_bytes();
        for (round, ranks) in self.rounds.iter().enumerate() {
            let is_last = round + 1 == self.rounds.len();
            let (mut pairs, mut targets) = (Vec::new(), Vec::new());
            for &(into, from) in ranks {
                for (number, &(part, elems)) in self.parts.iter().enumerate() {
                    let both = [vectors[into][number], vectors[from][number]];
                    if both == [AdasumVector::Zeros; 2] {
                        continue;
                    }
                    pairs.push(AdasumPair { elems, vectors: both });
                    if is_last {
                        targets.extend(self.places.iter().flatten().map(|tensors| tensors[part].1));
                        continue;
                    }
                    let target = self.carried_at(both, [into, from], part).unwrap_or_else(|| {
                        let apart = free;
                        free += self.carried_bytes(elems);
                        apart
                    });
                    targets.push(target);
                    vectors[into][number] = AdasumVector::Carried(target);
                }
            }
            let result = if is_last { AdasumResult::Finished(self.postscale) } else { AdasumResult::Carried };
            let (dtype, prescale) = (self.dtype, self.prescale);
            stream.adasum(&DeviceAdasum { dtype, prescale, result, pairs: &pairs, targets: &targets, scratch })?;
        }
        Ok(!self.parts.is_empty())
    }

    /// Where the combination of two vectors, of two ranks, is carried: where one of both is, or in the place of a
    /// result. Nowhere if it needs memory of its own.
    fn carried_at(&self, both: [AdasumVector; 2], ranks: [usize; 2], part: usize) -> Option<u64> {
        let carried = both.into_iter().find_map(|vector| match vector {
            AdasumVector::Carried(address) => Some(address),
            AdasumVector::Contribution(_) | AdasumVector::Zeros => None,
        });
        let place_of_result = || ranks.into_iter().find_map(|rank| Some(self.places[rank].as_ref()?[part].1));
        carried.or_else(|| if self.is_carried_apart() { None } else { place_of_result() })
    }

    /// Whether carried vectors lie in scratch memory.
    fn is_carried_apart(&self) -> bool {
        DeviceAdasum::carrier(self.dtype) != self.dtype && self.rounds.len() > 1
    }

    fn carried_bytes(&self, elems: u64) -> u64 {
        (elems * DeviceAdasum::carrier(self.dtype).size_bytes() as u64).next_multiple_of(ALIGN_BYTES)
    }

    /// Bytes in front of carried vectors, which every round uses.
    fn call_bytes(&self) -> u64 {
        let pairs = self.rounds.iter().map(Vec::len).max().unwrap_or(0);
        let elems = (0..pairs).flat_map(|_| self.parts.iter().map(|(_, elems)| *elems));
        DeviceAdasum::scratch_bytes(elems).next_multiple_of(ALIGN_BYTES)
    }
}
