//! What a job did: for each rank the activity of its program at every moment, and every operation with the times of
//! each rank in it. All analysis reads this and nothing else.
//!
//! Times are nanoseconds on one clock that starts with the history. A rank's *lane* is what the program's own thread
//! did; it is cut into *stretches* that follow each other without gap or overlap, from zero to the history's end. So
//! whatever is added up over a lane adds up to the whole, in whole nanoseconds. Engine and loader threads have no lane:
//! what they do matters where a lane waits for it.
//!
//! An *operation* is one bucket of one group; a rank's part in it is a *passage*, six moments in this order:
//!
//! ```text
//!   submitted ── agreed/begun ── packed ── moved ── done
//!      │    agreement   │  packing  │ transfer │ unpacking │
//! ```
//!
//! What is deliberately not here: the alignment of clocks, and any judgement.

mod build;
mod cut;
mod device;
mod gap;
mod graph;
mod input;
mod lane;
mod legs;
mod own;
mod phases;

pub use build::BuildError;
pub use cut::{TimeWindow, WindowError};
pub use device::{CacheLookups, DeviceHistory, DeviceTime};
pub use gap::{Gap, Lack};
pub use input::{InputHistory, InputTime, InputWork};
pub use legs::Legs;
pub use own::HotSpots;
pub(crate) use own::{OwnCode, own_code};

use farandole_trace::event::Collective;

/// What a job did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// One for each rank, in order.
    pub ranks: Vec<RankHistory>,
    /// All operations that every member went through, in the order in which they began.
    pub operations: Vec<OperationHistory>,
    /// The end of all lanes.
    pub end_ns: u64,
    /// How far two clocks of this history may be apart.
    pub clock_error_ns: u64,
    /// Settings of the engine, by name, as rank 0 had them.
    pub settings: std::collections::BTreeMap<String, String>,
    /// Records that were overwritten before they could be written, on all ranks: what came first is missing.
    pub dropped: u64,
    /// What is missing of the recordings of whole ranks.
    pub gaps: Vec<Gap>,
}

/// What one rank did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankHistory {
    /// Whether it is not recorded. Then it has no lane and does not count.
    pub missing: bool,
    /// Identifies its host: the host's name and, after a slash, what else is needed for that.
    pub host: String,
    /// Cores that the rank could use, if known.
    pub cores: Option<usize>,
    /// Which cores these are, as the kernel writes it, if known.
    pub cpus: Option<String>,
    /// Threads with which its framework computes, if known.
    pub threads: Option<usize>,
    /// Share of its recording in which its main thread could have run and had no core, if known.
    pub core_wait: Option<f64>,
    /// What the program did, stretch after stretch, from zero to the history's end.
    pub lane: Vec<Stretch>,
    /// Named parts of the program, by their beginning; they may contain each other.
    pub phases: Vec<Phase>,
    /// Iterations, in order, without overlap.
    pub iterations: Vec<Iteration>,
    /// Where the program was seen while it was in no phase, in order.
    pub samples: Vec<StackSample>,
    /// Its device, if it has one.
    pub device: DeviceHistory,
    /// What its loader did, if it is one that says so.
    pub input: InputHistory,
}

/// Where the program's thread was at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackSample {
    /// When.
    pub at_ns: u64,
    /// How much time before that it stands for.
    pub ns: u64,
    /// File, line and function.
    pub place: String,
}

/// A time in which a rank's program did one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Beginning.
    pub from_ns: u64,
    /// End. Equal to the beginning where a rank waited for something that was there already: no time, but an order that
    /// holds.
    pub to_ns: u64,
    /// What it did.
    pub activity: Activity,
}

/// What a program does at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Its work.
    Compute,
    /// The script's own code, in the training loop and outside of every phase: logging, metrics, …
    Own,
    /// Waits for its next batch.
    Input,
    /// Writes or reads a checkpoint.
    Checkpoint,
    /// Waits for tensors that are copied from a device to the host, where the engine can work on them.
    Copy,
    /// Waits for an operation: the position in [`History::operations`], or `None` for one that is not completely known.
    Blocked(Option<usize>),
    /// It has not begun yet.
    NotBegun,
    /// It has ended already.
    Ended,
}

/// What kind of work a phase is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhaseKind {
    /// Part of every training step: forward, backward, optimizer.
    Training,
    /// Testing or validation.
    Evaluation,
    /// Waiting for the next batch.
    Input,
    /// A checkpoint.
    Checkpoint,
    /// Waiting for copies between a device and the host.
    Copy,
    /// Whatever the user has named.
    Named,
}

/// A named part of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: PhaseKind,
    /// Beginning.
    pub from_ns: u64,
    /// End.
    pub to_ns: u64,
}

/// One step of training on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iteration {
    /// Its number, alike on all ranks.
    pub number: u64,
    /// The epoch it belongs to.
    pub epoch: u64,
    /// Beginning.
    pub from_ns: u64,
    /// End.
    pub to_ns: u64,
}

/// One bucket that the ranks of a group have brought to its end.
#[derive(Clone, Debug, PartialEq)]
pub struct OperationHistory {
    /// The group's number; zero is the world.
    pub group: u32,
    /// Which collective.
    pub collective: Collective,
    /// Bytes of each tensor in it. Their sum is the size of the message.
    pub tensor_bytes: Vec<u64>,
    /// The part of each member in it, by rank.
    pub passages: Vec<Passage>,
}

/// One rank's part in an operation. The moments follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// The rank.
    pub rank: usize,
    /// Its first tensor was submitted.
    pub first_submitted_ns: u64,
    /// Its last tensor was submitted.
    pub submitted_ns: u64,
    /// Its ranks had agreed, and work on it began.
    pub begun_ns: u64,
    /// Its tensors were in the buffer.
    pub packed_ns: u64,
    /// The result was there.
    pub moved_ns: u64,
    /// The caller had it.
    pub done_ns: u64,
}

impl OperationHistory {
    /// Size of the message.
    pub fn bytes(&self) -> u64 {
        self.tensor_bytes.iter().sum()
    }

    /// When the last rank had submitted, and which one that was. (Of several the first: nobody waited for the others
    /// longer.)
    pub fn last_arrival(&self) -> (u64, usize) {
        self.last_of(self.passages.iter())
    }

    /// The last arrival that this passage could have waited for. Where a rank can be done before others have come, as
    /// in a broadcast, those that came later than its result do not count.
    pub fn last_arrival_for(&self, passage: &Passage) -> (u64, usize) {
        if self.collective.synchronises() {
            return self.last_arrival();
        }
        self.last_of(self.passages.iter().filter(|other| other.submitted_ns <= passage.moved_ns))
    }

    fn last_of<'a>(&self, passages: impl Iterator<Item = &'a Passage>) -> (u64, usize) {
        let last = passages.max_by_key(|passage| (passage.submitted_ns, std::cmp::Reverse(passage.rank)));
        last.map_or((0, 0), |passage| (passage.submitted_ns, passage.rank))
    }

    /// When the last rank had begun.
    pub fn begun_ns(&self) -> u64 {
        self.latest(|passage| passage.begun_ns)
    }

    /// When the last rank had packed.
    pub fn packed_ns(&self) -> u64 {
        self.latest(|passage| passage.packed_ns)
    }

    /// When the last rank was done.
    pub fn done_ns(&self) -> u64 {
        self.latest(|passage| passage.done_ns)
    }

    /// This rank's part, if it is a member.
    pub fn passage(&self, rank: usize) -> Option<&Passage> {
        self.passages.binary_search_by_key(&rank, |passage| passage.rank).ok().map(|at| &self.passages[at])
    }

    fn latest(&self, moment: impl Fn(&Passage) -> u64) -> u64 {
        self.passages.iter().map(moment).max().unwrap_or(0)
    }
}

impl Stretch {
    /// How long it is.
    pub fn ns(&self) -> u64 {
        self.to_ns - self.from_ns
    }
}

impl RankHistory {
    /// The name of its host, for people.
    pub fn host_name(&self) -> &str {
        self.host.split('/').next().unwrap_or_default()
    }

    /// The stretches that have time in common with this one, cut to it.
    pub fn lane_between(&self, from_ns: u64, to_ns: u64) -> impl Iterator<Item = Stretch> {
        let first = self.lane.partition_point(|stretch| stretch.to_ns <= from_ns);
        self.lane[first..].iter().take_while(move |stretch| stretch.from_ns < to_ns).filter_map(move |stretch| {
            let cut = Stretch {
                from_ns: stretch.from_ns.max(from_ns),
                to_ns: stretch.to_ns.min(to_ns),
                activity: stretch.activity,
            };
            (cut.from_ns < cut.to_ns).then_some(cut)
        })
    }

    /// Time in which the program worked.
    pub fn useful_ns(&self) -> u64 {
        self.spent_ns(Activity::Compute)
    }

    /// Time in which the program did this.
    pub fn spent_ns(&self, activity: Activity) -> u64 {
        self.lane.iter().filter(|stretch| stretch.activity == activity).map(Stretch::ns).sum()
    }

    /// The iteration that a moment lies in.
    pub fn iteration_at(&self, at_ns: u64) -> Option<&Iteration> {
        let next = self.iterations.partition_point(|iteration| iteration.from_ns <= at_ns);
        self.iterations[..next].last().filter(|iteration| at_ns < iteration.to_ns)
    }
}

impl History {
    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.ranks.len()
    }

    /// The ranks that are recorded.
    pub fn recorded(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.ranks.len()).filter(|&rank| !self.ranks[rank].missing)
    }

    /// How many they are.
    pub fn recorded_size(&self) -> usize {
        self.recorded().count()
    }

    /// The time of all recorded ranks together: what losses are shares of.
    pub fn total_ns(&self) -> u64 {
        self.end_ns * self.recorded_size() as u64
    }

    /// Number of different hosts.
    pub fn hosts(&self) -> usize {
        let hosts: std::collections::BTreeSet<&str> =
            self.recorded().map(|rank| self.ranks[rank].host.as_str()).collect();
        hosts.len()
    }

    /// How many iterations every recorded rank has made.
    pub fn iterations(&self) -> usize {
        self.recorded().map(|rank| self.ranks[rank].iterations.len()).min().unwrap_or(0)
    }

    /// Checks the invariants of a history; the error says which one does not hold.
    pub fn check(&self) -> Result<(), String> {
        for (number, rank) in self.ranks.iter().enumerate() {
            let mut at_ns = 0;
            for stretch in &rank.lane {
                if stretch.from_ns != at_ns || stretch.to_ns < at_ns {
                    return Err(format!("the lane of rank {number} has a gap or an overlap at {at_ns} ns"));
                }
                if let Activity::Blocked(Some(operation)) = stretch.activity
                    && self.operations.get(operation).and_then(|operation| operation.passage(number)).is_none()
                {
                    return Err(format!("rank {number} waits for operation {operation}, of which it is no member"));
                }
                at_ns = stretch.to_ns;
            }
            if rank.missing && !rank.lane.is_empty() {
                return Err(format!("rank {number} is not recorded, and yet it has a lane"));
            }
            if at_ns != self.end_ns && !rank.missing {
                return Err(format!("the lane of rank {number} ends at {at_ns} ns and not at {} ns", self.end_ns));
            }
        }
        for (number, operation) in self.operations.iter().enumerate() {
            for passage in &operation.passages {
                let moments = [
                    passage.first_submitted_ns,
                    passage.submitted_ns,
                    passage.begun_ns,
                    passage.packed_ns,
                    passage.moved_ns,
                    passage.done_ns,
                ];
                if !moments.is_sorted() || passage.rank >= self.ranks.len() {
                    return Err(format!("operation {number} of rank {} happened in no order", passage.rank));
                }
            }
            if operation.passages.is_empty() || !operation.passages.is_sorted_by(|a, b| a.rank < b.rank) {
                return Err(format!("the members of operation {number} are not in order"));
            }
        }
        Ok(())
    }
}
