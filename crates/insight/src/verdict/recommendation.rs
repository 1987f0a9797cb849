//! What advice recommends, as a value.
//!
//! The rules choose a [`Recommendation`] and fill in the figures behind it. The words and the command lines that go
//! with it are in [`report::wording`](crate::report::wording), and nowhere else.

use super::InputNeeds;

/// Something that the user can change.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "most fields are clear from their name and the text of the variant")]
pub enum Recommendation {
    /// Examine storage, data and host of ranks that wait for input far longer than the others.
    ExamineInput {
        ranks: Vec<usize>,
        /// Where the first of them runs.
        location: Location,
        /// Mean wait of these ranks.
        there_ns: u64,
        /// Mean wait of the other ranks.
        elsewhere_ns: u64,
    },
    /// Run this many times as many loader workers.
    RaiseLoaderWorkers { factor: f64 },
    /// Give the loader as many workers as the training takes samples for, or make the samples cheaper.
    FeedSamples(InputNeeds),
    /// Move decoding and resizing out of the input pipeline.
    PreprocessOffline,
    /// Read few large files instead of many small ones.
    UseRecordFormat,
    /// Reduce the script's own code on ranks that run far more of it than the others.
    ReduceOwnCodeOf {
        ranks: Vec<usize>,
        /// Mean time of these ranks.
        there_ns: u64,
        /// Mean time of the other ranks.
        elsewhere_ns: u64,
        hot_spot: Option<HotSpot>,
    },
    /// Reduce the script's own code on all ranks.
    ReduceOwnCode { lost_percent: f64, hot_spot: Option<HotSpot> },
    /// Let all ranks take part in a phase.
    SharePhase { phase: String },
    /// Run a phase as a job of its own.
    MovePhase { phase: String },
    /// Give the ranks of a host no more threads than it has cores, and pin them.
    FitThreads {
        /// Ranks of the host.
        ranks: usize,
        /// Threads that these have together.
        threads: usize,
        /// Cores that they share.
        cores: usize,
    },
    /// Find out why one rank works longer than the others.
    ExamineSlowRank {
        rank: usize,
        location: Location,
        useful_ns: u64,
        /// Mean of the other ranks.
        others_useful_ns: u64,
        /// The phase in which it takes most of the difference.
        phase: Option<String>,
    },
    /// Move another program off the cores of a rank.
    FreeCores {
        rank: usize,
        location: Location,
        /// Share of the run in which its main thread was ready and had no core.
        waited_percent: f64,
        /// Mean of the other ranks.
        others_waited_percent: f64,
    },
    /// Mark what a rank does in few iterations as a phase.
    MarkPhase { rank: usize },
    /// Give all ranks batches of the same cost.
    BalanceBatches,
    /// Write checkpoints in a thread of their own.
    CheckpointInBackground,
    /// Switch the replay of learned orders on.
    EnableOrderReplay,
    /// Fuse more tensors into a bucket.
    RaiseFusionThreshold { operations_per_iteration: f64, mean_bytes: u64, threshold_bytes: u64 },
    /// Submit all tensors before waiting for the first.
    SubmitTogether { operations_per_iteration: f64, mean_bytes: u64 },
    /// Divide the gradients into more buckets.
    LowerFusionThreshold { iteration_bytes: u64, threshold_bytes: u64 },
    /// Compress gradients to 16 bits before they are copied from the device.
    CompressCopies,
    /// Compress gradients to 16 bits before they are sent.
    CompressGradients,
    /// Measure which algorithm suits the machine.
    Calibrate {
        ranks: usize,
        /// How many hosts there are.
        hosts: usize,
        /// Their names, each with its number of ranks.
        ranks_by_host: Vec<(String, usize)>,
    },
    /// Place the hosts on one switch.
    UseOneSwitch,
    /// Give each rank this many times as many samples between two exchanges.
    RaiseBatch {
        factor: u32,
        /// Another doubling would save less than this.
        doubling_saves_percent: f64,
    },
    /// Train on one rank.
    UseOneRank {
        ranks: usize,
        /// How many ranks' work they do together.
        speedup: f64,
        exposed_percent: f64,
    },
    /// Bring the traces of all ranks together.
    CollectAllTraces,
    /// There is nothing to change.
    Nothing(Reason),
}

/// Why there is nothing to change.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "most fields are clear from their name and the text of the variant")]
pub enum Reason {
    /// Without this loss, ranks would wait for something else.
    AnotherWait,
    /// Agreement takes about what it must.
    Agreement { mean_ns: u64 },
    /// Packing takes about what it must.
    Packing { mean_ns: u64, mean_bytes: u64 },
    /// Transfer takes about what it must.
    Transfer { mean_ns: u64, mean_bytes: u64, bus_gb_per_s: Option<f64> },
    /// Ranks begin and end at different times.
    StartAndEnd,
    /// Nothing recorded says what ranks were blocked by.
    Unrecorded,
    /// Nothing recorded says what would feed the ranks faster.
    Input,
    /// So much code of the script itself is usual.
    OwnCode,
    /// Nothing recorded says how checkpoints could take less.
    Checkpoint,
    /// Nothing recorded says how a phase could be shared.
    Phase(String),
    /// Nothing recorded says why ranks take differently long.
    Lateness,
}

/// Where a rank runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The host's name.
    pub host: String,
    /// Whether the job has no other host.
    pub only_host: bool,
}

/// The line of the script that most samples fell on.
#[derive(Clone, Debug, PartialEq)]
pub struct HotSpot {
    /// The file, the line and the function.
    pub line: String,
    /// Its share of the samples.
    pub percent: f64,
}
