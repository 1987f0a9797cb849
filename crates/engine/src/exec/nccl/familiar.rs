//! Which buckets on NCCL the host need not wait for: [`Familiar`].
//!
//! Where a program lets its streams wait for results, a bucket is over for the host when NCCL says that its calls are
//! in the stream (communicators are non-blocking), and unpacking and an event are queued behind them. From then on
//! kernels wait for kernels of other ranks, and threads of NCCL's move what goes over a network.
//!
//! **Why nothing hangs.** As in `device::ordered`: only the world's buckets are queued so, in one order on all ranks,
//! on one communicator and in one stream, each when all ranks have come to it; and a program's stream waits for an
//! event only when the bucket before it is queued. Take the first bucket that does not end. Data come if the program's
//! kernels end, so some rank has not queued it, and kernels of those that have wait for that rank's. The thread of
//! NCCL's that queues it there may be held up by a call of the program that waits for the device, perhaps with the
//! driver's lock; but this waits for buckets before this one, which end. Or it asks something of another rank's host.
//! That is what must not be: the other rank may have queued the bucket, and its program may wait for the device with
//! the driver's lock, so that a thread of NCCL's there that is to call CUDA waits for ever.
//!
//! NCCL asks other hosts when something is new. It connects ranks when a collective first needs the connection; it has
//! memory that was registered mapped by other processes when it is first used; and the driver loads kernels when they
//! are first launched. So the host waits for the first bucket of each plan. The same plan makes the same calls of the
//! same lengths, for which everything is there then, unless memory that was registered has moved. So that all ranks
//! know when it does, it moves only at a bucket whose plan packs more than any before, and then no plan is familiar any
//! more; what is packed on some ranks only, or moves at another bucket, lies in memory that is not registered
//! (`super`).
//!
//! This leaves out what NCCL does by calling CUDA in its proxy threads all the time, if it is told to (copy engines in
//! place of kernels: `NCCL_P2P_USE_CUDA_MEMCPY`, `NCCL_SHM_USE_CUDA_MEMCPY`).

use std::collections::HashSet;

/// Programs repeat some dozens. Whoever has more has no order that repeats, and gains nothing from it.
const MOST_PLANS: usize = 4096;

/// See the module's text. The same on all ranks: it follows from the buckets that were called for.
#[derive(Debug, Default)]
pub(super) struct Familiar {
    /// The hashes of plans that have run since registered memory last moved.
    plans: HashSet<u64>,
    /// The most bytes that a plan packs.
    most_bytes: u64,
}

/// What a bucket is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The host waits for it.
    New,
    /// The host waits for it, and registered memory may move.
    Larger,
    /// The host need not wait for it.
    Familiar,
}

impl Familiar {
    /// A bucket with a plan of this hash, which packs so many bytes, is about to be called for.
    pub(super) fn meet(&mut self, plan: u64, packs_bytes: u64) -> Kind {
        if packs_bytes > self.most_bytes {
            self.most_bytes = packs_bytes;
            self.plans.clear();
            return Kind::Larger;
        }
        if self.plans.contains(&plan) { Kind::Familiar } else { Kind::New }
    }

    /// The host has seen a bucket done.
    pub(super) fn note_done(&mut self, plan: u64) {
        if self.plans.len() >= MOST_PLANS {
            self.plans.clear();
        }
        self.plans.insert(plan);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_familiar_when_its_plan_has_run_once() {
        let mut familiar = Familiar::default();
        assert_eq!(familiar.meet(1, 0), Kind::New);
        assert_eq!(familiar.meet(1, 0), Kind::New, "it was given up");
        familiar.note_done(1);
        assert_eq!([familiar.meet(1, 0), familiar.meet(2, 0)], [Kind::Familiar, Kind::New]);
        assert_eq!(familiar.meet(1, 0), Kind::Familiar);
    }

    #[test]
    fn nothing_is_familiar_when_more_is_packed_than_ever_before() {
        let mut familiar = Familiar::default();
        for (plan, bytes) in [(1, 0), (2, 100)] {
            familiar.meet(plan, bytes);
            familiar.note_done(plan);
        }
        assert_eq!([familiar.meet(1, 0), familiar.meet(2, 100)], [Kind::New, Kind::Familiar]);
        assert_eq!(familiar.meet(3, 101), Kind::Larger);
        familiar.note_done(3);
        assert_eq!([familiar.meet(3, 101), familiar.meet(2, 100)], [Kind::Familiar, Kind::New]);
    }

    #[test]
    fn a_program_without_an_order_does_not_fill_memory() {
        let mut familiar = Familiar::default();
        (0..3 * MOST_PLANS as u64).for_each(|plan| familiar.note_done(plan));
        assert!(familiar.plans.len() <= MOST_PLANS);
    }
}
