//! Adasum over links: whole vectors are exchanged at doubling distances and combined tensor by tensor.
//!
//! Who combines with whom is `plan::adasum`'s. *Extras* give their vectors to their *stand-ins* and get the result at
//! the end. In round `k` the ranks whose *seats* differ in bit `k` exchange all they have; both compute the same
//! combination (it does not depend on which of two comes first), so all ranks end with the same bits.
//!
//! The work buffer has two halves: this rank's vector, and the one that has just come in. Each *exchange* is a small
//! schedule of one send, one receive, or both; when it is done the halves are combined, tensor by tensor, because the
//! inner products that Adasum weighs by belong to whole tensors.
//!
//! Steps: `log2 p` exchanges with `p` seats, two more if there are extras. Bytes sent by each rank: `log2 p` times the
//! bucket.

use std::collections::VecDeque;
use std::sync::Arc;

use farandole_plan::adasum::{Role, Seats};
use farandole_plan::fuse::BucketPlan;
use farandole_plan::{Arrival, Buffer, Dtype, Rank, Schedule, Span, Step};
use farandole_tensor::adasum::combine;
use farandole_transport::{Progress, Result};

use super::Buffers;
use super::links::{LinkRun, Links};
use crate::bucket::GroupRank;

/// One exchange, and what is done when it is over.
#[derive(Debug)]
struct Exchange {
    schedule: Arc<Schedule>,
    after: Combine,
}

#[derive(Clone, Copy, Debug)]
enum Combine {
    /// Nothing: the vector was given away, or the result has come.
    Nothing,
    /// The vector that came in is combined with this rank's own.
    Halves,
}

/// One rank's way through an Adasum.
#[derive(Debug)]
pub(crate) struct Adasum {
    plan: Arc<BucketPlan>,
    run: LinkRun,
    now: Option<Combine>,
    to_come: VecDeque<Exchange>,
}

impl Adasum {
    /// `run` is a finished run of this operation (or one without steps).
    pub(crate) fn new(run: LinkRun, plan: Arc<BucketPlan>, here: GroupRank) -> Adasum {
        let to_come = if plan.elems == 0 { VecDeque::new() } else { exchanges(plan.elems, here) };
        Adasum { plan, run, now: None, to_come }
    }

    /// Does what can be done now. Elements are of the bucket's carrier.
    pub(crate) fn advance(&mut self, links: &mut dyn Links, buffers: &mut Buffers<'_>) -> Result<Progress> {
        let mut moved = false;
        loop {
            match self.run.advance(links, buffers)? {
                Progress::Done => {}
                progress if moved => return Ok(if progress == Progress::Pending { Progress::Moved } else { progress }),
                progress => return Ok(progress),
            }
            if let Some(Combine::Halves) = self.now.take() {
                combine_halves(&self.plan, buffers.dtype, buffers.work);
            }
            let Some(next) = self.to_come.pop_front() else { return Ok(Progress::Done) };
            self.run.then(next.schedule);
            self.now = Some(next.after);
            moved = true;
        }
    }

    /// The peer that is being waited for.
    pub(crate) fn waiting_for(&self) -> Option<Rank> {
        self.run.waiting_for()
    }
}

fn combine_halves(plan: &BucketPlan, dtype: Dtype, work: &mut [u8]) {
    let elem_bytes = dtype.size_bytes();
    let (own, other) = work.split_at_mut(plan.elems as usize * elem_bytes);
    for part in &plan.parts {
        let range = part.span.start as usize * elem_bytes..part.span.end() as usize * elem_bytes;
        combine(dtype, &mut own[range.clone()], &other[range]);
    }
}

fn exchanges(elems: u64, GroupRank { me, size }: GroupRank) -> VecDeque<Exchange> {
    let own = Span { start: 0, len: elems };
    let other = Span { start: elems, len: elems };
    let send = |to: usize| Step::Send { to: Rank::from(to), from: Buffer::Work, span: own };
    let recv = |from: usize, span| Step::Recv { from: Rank::from(from), span, arrival: Arrival::Place };
    let exchange = |steps, after| Exchange { schedule: Arc::new(Schedule::new(steps)), after };

    let seats = Seats::new(size);
    let (seat, extra) = match seats.role(me.index()) {
        Role::Extra { stand_in } => {
            let steps = vec![send(stand_in), recv(stand_in, own)];
            return VecDeque::from([exchange(steps, Combine::Nothing)]);
        }
        Role::Active { seat, extra } => (seat, extra),
    };
    let mut exchanges = VecDeque::new();
    if let Some(extra) = extra {
        exchanges.push_back(exchange(vec![recv(extra, other)], Combine::Halves));
    }
    let mut distance = 1;
    while distance < seats.count() {
        let partner = seats.rank_of(seat ^ distance);
        let steps = vec![send(partner), recv(partner, other)];
        exchanges.push_back(exchange(steps, Combine::Halves));
        distance *= 2;
    }
    if let Some(extra) = extra {
        exchanges.push_back(exchange(vec![send(extra)], Combine::Nothing));
    }
    exchanges
}
