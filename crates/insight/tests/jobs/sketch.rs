//! Histories made by hand, whose every number is known.
//!
//! A sketch lets every rank do one thing after the other; each thing takes the time that is given. Operations run one
//! after the other in each group and take the time that their [`Cost`] says, from when the last rank has come.

use std::collections::BTreeMap;

use farandole_insight::history::{
    Activity, History, Iteration, OperationHistory, Passage, Phase, PhaseKind, RankHistory, StackSample, Stretch,
};
use farandole_trace::event::Collective;

/// How long the stages of an operation take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    /// From the last rank's arrival to the beginning.
    pub(crate) agreement_ns: u64,
    /// Into the buffer.
    pub(crate) packing_ns: u64,
    /// Between the ranks.
    pub(crate) transfer_ns: u64,
    /// Out of the buffer.
    pub(crate) unpacking_ns: u64,
}

/// A history in the making.
#[derive(Clone, Debug)]
pub(crate) struct Sketch {
    ranks: Vec<RankHistory>,
    now_ns: Vec<u64>,
    open_iteration: Vec<Option<Iteration>>,
    operations: Vec<OperationHistory>,
    free_ns: BTreeMap<u32, u64>,
}

impl Sketch {
    /// Ranks that have done nothing yet, all on one host.
    pub(crate) fn new(size: usize) -> Sketch {
        Sketch {
            ranks: vec![RankHistory { host: "host".to_owned(), ..RankHistory::default() }; size],
            now_ns: vec![0; size],
            open_iteration: vec![None; size],
            operations: Vec::new(),
            free_ns: BTreeMap::new(),
        }
    }

    /// Moves a rank to another host.
    pub(crate) fn on_host(&mut self, rank: usize, host: &str) {
        self.ranks[rank].host = host.to_owned();
    }

    /// A rank works.
    pub(crate) fn compute(&mut self, rank: usize, ns: u64) {
        self.spend(rank, ns, Activity::Compute);
    }

    /// A rank is in the script's own code, at a place if one is given.
    pub(crate) fn own(&mut self, rank: usize, ns: u64, place: Option<&str>) {
        self.spend(rank, ns, Activity::Own);
        let at_ns = self.now_ns[rank];
        self.ranks[rank].samples.extend(place.map(|place| StackSample { at_ns, ns, place: place.to_owned() }));
    }

    /// A rank waits for its next batch.
    pub(crate) fn input(&mut self, rank: usize, ns: u64) {
        self.spend(rank, ns, Activity::Input);
    }

    /// A rank writes a checkpoint.
    pub(crate) fn checkpoint(&mut self, rank: usize, ns: u64) {
        self.spend(rank, ns, Activity::Checkpoint);
    }

    /// A rank waits for copies from its device.
    pub(crate) fn copy(&mut self, rank: usize, ns: u64) {
        self.spend(rank, ns, Activity::Copy);
    }

    /// A rank works in a phase.
    pub(crate) fn phase(&mut self, rank: usize, name: &str, kind: PhaseKind, ns: u64) {
        let from_ns = self.now_ns[rank];
        self.ranks[rank].phases.push(Phase { name: name.to_owned(), kind, from_ns, to_ns: from_ns + ns });
        self.compute(rank, ns);
    }

    /// An iteration begins on all ranks; the one before it ends.
    pub(crate) fn iteration(&mut self, number: u64, epoch: u64) {
        for rank in 0..self.ranks.len() {
            self.end_iteration(rank);
            let from_ns = self.now_ns[rank];
            self.open_iteration[rank] = Some(Iteration { number, epoch, from_ns, to_ns: from_ns });
        }
    }

    /// All ranks submit tensors of these sizes to one operation; the answer is for [`Sketch::wait`].
    pub(crate) fn submit(&mut self, collective: Collective, tensor_bytes: &[u64], cost: Cost) -> usize {
        let members: Vec<usize> = (0..self.ranks.len()).collect();
        self.submit_in(0, &members, collective, tensor_bytes, cost)
    }

    /// The ranks of a group submit tensors of these sizes to one operation.
    pub(crate) fn submit_in(
        &mut self,
        group: u32,
        members: &[usize],
        collective: Collective,
        tensor_bytes: &[u64],
        cost: Cost,
    ) -> usize {
        let arrival_ns = members.iter().map(|&rank| self.now_ns[rank]).max().unwrap_or(0);
        let free_ns = self.free_ns.entry(group).or_default();
        let begun_ns = arrival_ns.max(*free_ns) + cost.agreement_ns;
        let packed_ns = begun_ns + cost.packing_ns;
        let moved_ns = packed_ns + cost.transfer_ns;
        let done_ns = moved_ns + cost.unpacking_ns;
        *free_ns = done_ns;
        let passage = |&rank: &usize| {
            let submitted_ns = self.now_ns[rank];
            Passage { rank, first_submitted_ns: submitted_ns, submitted_ns, begun_ns, packed_ns, moved_ns, done_ns }
        };
        let passages = members.iter().map(passage).collect();
        self.operations.push(OperationHistory { group, collective, tensor_bytes: tensor_bytes.to_vec(), passages });
        self.operations.len() - 1
    }

    /// A rank waits until an operation is done.
    pub(crate) fn wait(&mut self, rank: usize, operation: usize) {
        let done_ns = self.operations[operation].passage(rank).map_or(0, |passage| passage.done_ns);
        let ns = done_ns.saturating_sub(self.now_ns[rank]);
        self.push(rank, ns, Activity::Blocked(Some(operation)));
    }

    /// All ranks submit one tensor and wait for the result.
    pub(crate) fn allreduce(&mut self, bytes: u64, cost: Cost) {
        let operation = self.submit(Collective::Allreduce, &[bytes], cost);
        for rank in 0..self.ranks.len() {
            self.wait(rank, operation);
        }
    }

    /// The history: ranks that have ended earlier stay so until all have.
    pub(crate) fn finish(mut self) -> History {
        let end_ns = self.now_ns.iter().copied().max().unwrap_or(0);
        for rank in 0..self.ranks.len() {
            self.end_iteration(rank);
            let left_ns = end_ns - self.now_ns[rank];
            self.spend(rank, left_ns, Activity::Ended);
        }
        let mut order: Vec<usize> = (0..self.operations.len()).collect();
        order.sort_by_key(|&number| self.operations[number].begun_ns());
        let mut place = vec![0; order.len()];
        for (new, &old) in order.iter().enumerate() {
            place[old] = new;
        }
        for stretch in self.ranks.iter_mut().flat_map(|rank| &mut rank.lane) {
            if let Activity::Blocked(Some(operation)) = &mut stretch.activity {
                *operation = place[*operation];
            }
        }
        let operations = order.iter().map(|&old| self.operations[old].clone()).collect();
        History { ranks: self.ranks, operations, end_ns, ..History::default() }
    }

    fn end_iteration(&mut self, rank: usize) {
        if let Some(mut iteration) = self.open_iteration[rank].take() {
            iteration.to_ns = self.now_ns[rank];
            self.ranks[rank].iterations.push(iteration);
        }
    }

    fn spend(&mut self, rank: usize, ns: u64, activity: Activity) {
        if ns > 0 {
            self.push(rank, ns, activity);
        }
    }

    fn push(&mut self, rank: usize, ns: u64, activity: Activity) {
        let from_ns = self.now_ns[rank];
        self.now_ns[rank] += ns;
        self.ranks[rank].lane.push(Stretch { from_ns, to_ns: from_ns + ns, activity });
    }
}
