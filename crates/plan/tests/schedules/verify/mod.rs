//! Proves schedules: runs those of all ranks symbolically and looks at what comes out.
//!
//! A run tracks for every element of every buffer whose contributions are in it (exactly once) and which element it is.
//! It takes the steps of all ranks under the rules of [`farandole_plan::schedule`], with sends as late as those rules
//! allow: a message stays with its sender until the receiver takes it, so that no schedule relies on buffers in
//! between. It finds deadlocks, missing and double contributions, reads before writes, lengths that differ, messages
//! left over, slots and sends that are overwritten too early.
//!
//! Where the order in which ranks take their steps could matter, several orders are tried (see [`Order`]). That makes
//! the check of windows a search and not a proof; the check of messages is a proof.
//!
//! Deliberately not here: time (that is `cost`) and the values of elements.

mod contents;
mod flaw;
mod machine;
mod order;
mod window;

pub(crate) use flaw::Flaw;
pub(crate) use order::Order;

use contents::{Contents, Contributors};
use machine::Machine;

use farandole_plan::request::Rank;
use farandole_plan::schedule::{Schedule, Span, Step};
use farandole_plan::topology::Topology;

/// Schedules with more steps than this together are run in fewer orders: those of messages alone in one, since the
/// order makes no difference to them; others in every third, since what goes wrong in a large world goes wrong in a
/// small one. Below, all orders cost next to nothing.
const ALL_ORDERS_MAX_STEPS: usize = 20_000;

/// What must lie in a span of a rank's work buffer at the end.
struct Goal {
    rank: usize,
    span: Span,
    who: Contributors,
    /// Which element of the contributors' buffers the first one must be.
    origin: u64,
}

/// What the ranks start with and must end with.
struct Task {
    work: Vec<Contents>,
    source: Vec<Contents>,
    goals: Vec<Goal>,
    /// Whether this is a barrier, where messages are empty and knowledge is what counts.
    barrier: bool,
}

impl Task {
    fn in_place(n: usize, elems: u64) -> Task {
        let unwritten = |elems| (0..n).map(|_| Contents::unwritten(elems)).collect::<Vec<_>>();
        Task { work: unwritten(elems), source: unwritten(0), goals: Vec::new(), barrier: false }
    }

    fn everybody_contributes(n: usize, elems: u64) -> Task {
        let mut task = Task::in_place(n, elems);
        for (rank, work) in task.work.iter_mut().enumerate() {
            work.fill(Span::between(0, elems), rank);
        }
        task
    }

    fn goal(&mut self, rank: usize, span: Span, who: Contributors) {
        self.goals.push(Goal { rank, span, who, origin: span.start });
    }
}

/// Checks that every rank ends with every rank's contribution to all of `elems` elements, once.
pub(crate) fn allreduce(schedules: &[Schedule], elems: u64, topology: &Topology) -> Result<(), Flaw> {
    let n = schedules.len();
    let mut task = Task::everybody_contributes(n, elems);
    for rank in 0..n {
        task.goal(rank, Span::between(0, elems), Contributors::all(n));
    }
    explore(schedules, topology, &task)
}

/// Checks that rank `r` ends with every rank's contribution to `spans[r]`, once.
pub(crate) fn reduce_scatter(schedules: &[Schedule], spans: &[Span], topology: &Topology) -> Result<(), Flaw> {
    let n = schedules.len();
    let mut task = Task::everybody_contributes(n, end_of(spans));
    for (rank, &span) in spans.iter().enumerate() {
        task.goal(rank, span, Contributors::all(n));
    }
    explore(schedules, topology, &task)
}

/// Checks that every rank ends with what rank `r` had in `spans[r]`, for every `r`.
pub(crate) fn allgather(schedules: &[Schedule], spans: &[Span], topology: &Topology) -> Result<(), Flaw> {
    let mut task = Task::in_place(schedules.len(), end_of(spans));
    for (rank, &span) in spans.iter().enumerate() {
        task.work[rank].fill(span, rank);
        for reader in 0..schedules.len() {
            task.goal(reader, span, Contributors::only(rank));
        }
    }
    explore(schedules, topology, &task)
}

/// Checks that every rank ends with the root's elements.
pub(crate) fn broadcast(schedules: &[Schedule], elems: u64, root: Rank, topology: &Topology) -> Result<(), Flaw> {
    let mut task = Task::in_place(schedules.len(), elems);
    let span = Span::between(0, elems);
    task.work[root.index()].fill(span, root.index());
    for rank in 0..schedules.len() {
        task.goal(rank, span, Contributors::only(root.index()));
    }
    explore(schedules, topology, &task)
}

/// Checks that the root ends with every rank's contribution to all of `elems` elements, once.
pub(crate) fn reduce(schedules: &[Schedule], elems: u64, root: Rank, topology: &Topology) -> Result<(), Flaw> {
    let mut task = Task::everybody_contributes(schedules.len(), elems);
    task.goal(root.index(), Span::between(0, elems), Contributors::all(schedules.len()));
    explore(schedules, topology, &task)
}

/// Checks that what rank `i` has in `send[i][j]` of its source ends in `recv[j][i]` of rank `j`'s work buffer.
pub(crate) fn alltoall(schedules: &[Schedule], send: &[Vec<Span>], recv: &[Vec<Span>]) -> Result<(), Flaw> {
    alltoall_on(&Topology::all_apart(schedules.len()), schedules, send, recv)
}

/// As [`alltoall`], on this placement.
pub(crate) fn alltoall_on(
    topology: &Topology,
    schedules: &[Schedule],
    send: &[Vec<Span>],
    recv: &[Vec<Span>],
) -> Result<(), Flaw> {
    let n = schedules.len();
    let mut task = Task::in_place(n, 0);
    for rank in 0..n {
        task.work[rank] = Contents::unwritten(end_of(&recv[rank]));
        task.source[rank] = Contents::unwritten(end_of(&send[rank]));
        for (peer, &span) in recv[rank].iter().enumerate() {
            task.source[rank].fill(send[rank][peer], rank);
            let origin = send[peer][rank].start;
            task.goals.push(Goal { rank, span, who: Contributors::only(peer), origin });
        }
    }
    explore(schedules, topology, &task)
}

/// Checks that no rank can leave before every rank has come.
pub(crate) fn barrier(schedules: &[Schedule]) -> Result<(), Flaw> {
    let n = schedules.len();
    let task = Task { barrier: true, ..Task::in_place(n, 0) };
    explore(schedules, &Topology::all_apart(n), &task)
}

fn end_of(spans: &[Span]) -> u64 {
    spans.iter().map(|span| span.end()).max().unwrap_or(0)
}

fn explore(schedules: &[Schedule], topology: &Topology, task: &Task) -> Result<(), Flaw> {
    assert_eq!(schedules.len(), topology.size(), "there is a schedule for every rank");
    let steps = || schedules.iter().flat_map(|schedule| &schedule.steps);
    let messages_alone = steps().all(|step| matches!(step, Step::Send { .. } | Step::Recv { .. } | Step::Copy { .. }));
    let orders = Order::explored(schedules.len());
    let stride = match (steps().count() > ALL_ORDERS_MAX_STEPS, messages_alone) {
        (false, _) => 1,
        (true, false) => 3,
        (true, true) => orders.len(),
    };
    for order in orders.into_iter().step_by(stride) {
        Machine::new(schedules, topology, task)?.run(order)?;
    }
    Ok(())
}
