//! Events: what can happen on a rank, and when.
//!
//! A [`Record`] is a moment, a thread and an [`Event`]. Events are *boundaries*: each says that something begins or
//! ends; readers name what lies between. They follow a gradient: its request is *submitted*; the bucket that it was
//! *fused* into is *started*, *entered* by all ranks where that matters, and *packed*; it takes *steps*, between which
//! it may be *waiting* for a peer and then *resumed*; it is *transferred*; it is unpacked and with that *finished*; and
//! each request is *done*. There are also the *phases* of the program (forward, backward, waiting for input, …), stack
//! samples of its thread while it is in none, marks for iterations and epochs, stalls and aborts; what was measured
//! on a device's own clock: for how long it had nothing to do, and how long its part of an operation took; and, in an
//! elastic job, the *stages* by which the rank came into its generation.
//!
//! Every record is four words of 64 bits ([`Record::to_words`]), the same in rings and in files. A record contains no
//! text: names are in a table beside the records, and a record has their number.
//!
//! What is deliberately not here: durations (but those of a device, whose clock is another), and which events belong
//! together. Two events of one operation have the
//! same group and the same number of operation, on all ranks.

pub use crate::record::{RECORD_BYTES, Record};

/// A text in the table of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameId(pub u32);

impl NameId {
    /// No name.
    pub const NONE: NameId = NameId(0);
}

/// A thread of the rank's process, in the table of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId(pub u16);

/// A group of ranks, by its number in the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupNumber(pub u16);

impl GroupNumber {
    /// All ranks, for named requests.
    pub const WORLD: GroupNumber = GroupNumber(0);
    /// All ranks, for direct collectives: they have connections and numbers of their own.
    pub const DIRECT: GroupNumber = GroupNumber(u16::MAX);
}

impl From<u32> for GroupNumber {
    /// The engine's number. There are never so many groups that the numbers run out; if there were, the last would
    /// share one.
    fn from(number: u32) -> GroupNumber {
        GroupNumber(u16::try_from(number).unwrap_or(u16::MAX - 1).min(u16::MAX - 1))
    }
}

/// One bucket, or one direct call, numbered alike on all ranks of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationNumber(pub u64);

/// An enum whose discriminants are in files: the variants, their numbers and their names for people.
macro_rules! coded {
    ($(#[$text:meta])* $name:ident { $($(#[$variant_text:meta])* $variant:ident = $code:literal, $word:literal;)+ }) => {
        $(#[$text])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $name {
            $($(#[$variant_text])* $variant = $code,)+
        }

        impl $name {
            /// Every variant, in the order of their numbers.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// The variant with this number.
            pub const fn from_code(code: u8) -> Option<$name> {
                match code {
                    $($code => Some($name::$variant),)+
                    _ => None,
                }
            }

            /// Its number.
            pub const fn code(self) -> u8 {
                self as u8
            }

            /// The word for it.
            pub const fn word(self) -> &'static str {
                match self {
                    $($name::$variant => $word,)+
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.word())
            }
        }
    };
}

coded! {
    /// Which collective. The numbers lie in files; never renumber them.
    Collective {
        /// Combine, everybody gets the result.
        Allreduce = 0, "allreduce";
        /// Everybody gets everybody's data.
        Allgather = 1, "allgather";
        /// Everybody gets the root's data.
        Broadcast = 2, "broadcast";
        /// Everybody sends something to everybody.
        Alltoall = 3, "alltoall";
        /// Combine, everybody gets a part of the result.
        ReduceScatter = 4, "reducescatter";
        /// No rank continues before all have come.
        Barrier = 5, "barrier";
        /// A rank that has no more data.
        Join = 6, "join";
        /// Combine adaptively.
        Adasum = 7, "adasum";
        /// Something that the engine does for itself, such as making a shared buffer.
        Internal = 8, "internal";
        /// Combine, the root gets the result.
        Reduce = 9, "reduce";
        /// The root gets everybody's data.
        Gather = 10, "gather";
        /// Everybody gets a part of the root's data.
        Scatter = 11, "scatter";
    }
}

impl Collective {
    /// Whether no rank can finish it before all ranks have started it.
    pub const fn synchronises(self) -> bool {
        matches!(
            self,
            Collective::Allreduce
                | Collective::Allgather
                | Collective::ReduceScatter
                | Collective::Barrier
                | Collective::Adasum
        )
    }
}

coded! {
    /// Element type. The numbers are those that travel between ranks.
    Dtype {
        /// One byte, zero or one.
        Bool = 0, "bool";
        /// Unsigned 8-bit integer.
        U8 = 1, "uint8";
        /// Signed 8-bit integer.
        I8 = 2, "int8";
        /// Unsigned 16-bit integer.
        U16 = 3, "uint16";
        /// Signed 16-bit integer.
        I16 = 4, "int16";
        /// Unsigned 32-bit integer.
        U32 = 5, "uint32";
        /// Signed 32-bit integer.
        I32 = 6, "int32";
        /// Unsigned 64-bit integer.
        U64 = 7, "uint64";
        /// Signed 64-bit integer.
        I64 = 8, "int64";
        /// IEEE half precision.
        F16 = 9, "float16";
        /// The upper half of an IEEE single.
        BF16 = 10, "bfloat16";
        /// IEEE single precision.
        F32 = 11, "float32";
        /// IEEE double precision.
        F64 = 12, "float64";
    }
}

coded! {
    /// What a rank does in steps of one kind.
    StepKind {
        /// Bytes leave for a peer, or are shown to the peers of this host.
        Send = 0, "send";
        /// Bytes of a peer are put into place.
        Receive = 1, "receive";
        /// Contributions are combined, as they come or where they lie.
        Reduce = 2, "reduce";
        /// Nothing but waiting until peers have come to the same place.
        Meet = 3, "meet";
    }
}

coded! {
    /// What a device does for an operation. The numbers lie in files; never renumber them.
    DeviceStep {
        /// Copies contributions to where the ranks work on them.
        Pack = 0, "packing";
        /// Combines or moves what all ranks have contributed.
        Fold = 1, "folding";
        /// Copies results to where the callers want them.
        Unpack = 2, "unpacking";
    }
}

coded! {
    /// What a rank remembers of device memory. The numbers lie in files; never renumber them.
    DeviceCache {
        /// Memory of other processes that it has mapped.
        Mappings = 0, "mappings";
        /// Its own memory that it has told others of.
        Exports = 1, "exports";
    }
}

coded! {
    /// A phase of the program. The numbers lie in files; never renumber them.
    Phase {
        /// One that the user has named.
        User = 0, "user";
        /// The forward pass.
        Forward = 1, "forward";
        /// The backward pass.
        Backward = 2, "backward";
        /// The optimizer's step: waiting for gradients, then the update.
        OptimizerStep = 3, "optimizer step";
        /// Waiting for the next batch.
        InputWait = 4, "input wait";
        /// Evaluation on held-out data.
        Evaluation = 5, "evaluation";
        /// Writing or reading a checkpoint.
        Checkpoint = 6, "checkpoint";
        /// A loader thread or process makes a batch.
        InputWork = 7, "input work";
        /// The program's thread waits while a device still computes what it was given: work, done elsewhere.
        DeviceWork = 8, "device work";
        /// The program's thread waits for nothing but copies between a device and the host.
        DeviceCopy = 9, "device copy";
        /// A whole step in one call, as compilers make it: forward, backward, collectives and the update of the
        /// weights.
        TrainingStep = 10, "training step";
    }
}

coded! {
    /// What loader threads do with samples. The numbers lie in files; never renumber them.
    InputStage {
        /// Fetch their bytes.
        Read = 0, "read";
        /// Make pixels of bytes.
        Decode = 1, "decode";
        /// Change pixels, and lay them side by side.
        Change = 2, "change";
    }
}

coded! {
    /// How far a member of an elastic job has come from one generation to the next. The stages follow each other; the
    /// numbers lie in files; never renumber them.
    RecoveryStage {
        /// It knows that the generation before is over: a loss was heard of, or the program has left it.
        Noticed = 0, "noticed";
        /// It asks for the next one.
        Asked = 1, "asked";
        /// The members have agreed on it.
        Agreed = 2, "agreed";
        /// It is connected with all its ranks.
        Connected = 3, "connected";
        /// All its ranks have the same state.
        Synchronised = 4, "synchronised";
        /// The first step is made.
        Stepped = 5, "stepped";
    }
}

coded! {
    /// What becomes of a step that the loss of a rank has interrupted. The numbers lie in files; never renumber them.
    StepFate {
        /// It is made again.
        Repeated = 0, "repeated";
        /// It is passed over, with its samples.
        Dropped = 1, "dropped";
    }
}

/// What has happened. See the module's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields mean the same in all variants: see the types, and each variant's text")]
#[non_exhaustive]
pub enum Event {
    /// A thread of the program has handed a request in; `bytes` are those of this rank's tensor.
    Submitted { name: NameId, group: GroupNumber, collective: Collective, dtype: Dtype, bytes: u64 },
    /// The coordinator of a group has heard that a rank (of the group) asks for this. Only there, and only while ranks
    /// talk about their requests; a learned order needs no words.
    Arrived { name: NameId, group: GroupNumber, rank: u32 },
    /// All ranks have agreed on a request, and it travels in this operation. The records of all requests of a bucket
    /// come right after its `Started`.
    Fused { name: NameId, group: GroupNumber, operation: OperationNumber, bytes: u64 },
    /// The request has its result.
    Done { name: NameId, group: GroupNumber, operation: OperationNumber },
    /// The request was refused, or its group has ended.
    Failed { name: NameId, group: GroupNumber },

    /// This rank begins an operation of so many bytes for so many requests (none: a direct call).
    Started {
        group: GroupNumber,
        operation: OperationNumber,
        collective: Collective,
        dtype: Dtype,
        requests: u32,
        bytes: u64,
    },
    /// All ranks have come to the operation. Only where this rank had to know before it touched memory.
    Entered { group: GroupNumber, operation: OperationNumber },
    /// This rank's contribution lies where the ranks work on it.
    Packed { group: GroupNumber, operation: OperationNumber },
    /// Steps of one kind (with one peer, or with all) are over; `bytes` is what they moved or combined.
    Stepped { group: GroupNumber, operation: OperationNumber, step: StepKind, peer: Option<u32>, bytes: u64 },
    /// Nothing can be done until a peer (a rank of the group, if one can be named) has done something.
    Waiting { group: GroupNumber, operation: OperationNumber, peer: Option<u32> },
    /// The operation goes on.
    Resumed { group: GroupNumber, operation: OperationNumber },
    /// All steps are taken; results lie where the ranks have worked.
    Transferred { group: GroupNumber, operation: OperationNumber },
    /// Results lie where the callers wanted them.
    Finished { group: GroupNumber, operation: OperationNumber },
    /// The operation was given up before memory was touched; its requests will be part of another one.
    Abandoned { group: GroupNumber, operation: OperationNumber },
    /// Direct calls since the last record, before this operation, that were over so soon that writing them down would
    /// have taken longer.
    Skipped { group: GroupNumber, operation: OperationNumber, calls: u32, bytes: u64 },
    /// The driver has taken the submitted requests. Only while a timeline shows it.
    Cycle,
    /// A thread of the program has waited for the result of this request since then, and goes on now; or, where the
    /// thread does not wait, its device has. Direct calls have no such record: their thread waits from `Started` to
    /// `Finished`.
    Waited { name: NameId, since_ns: u64 },

    /// A phase of the program begins on this thread. `name` is that of a user's phase.
    PhaseBegin { phase: Phase, name: NameId },
    /// It ends. Phases of one thread nest.
    PhaseEnd { phase: Phase, name: NameId },
    /// This thread was seen at a place of the program (the name: file, line and function) while it was in no phase. The
    /// sample stands for so many nanoseconds before this moment.
    Sampled { name: NameId, ns: u64 },
    /// A batch of so many samples is made; all its threads together were so many nanoseconds in this stage. The loader
    /// has so many threads (none: the program's own). `amount` is bytes that were read, pixels of the images as they
    /// are stored (decode), or pixels of the batch (change).
    InputTook { stage: InputStage, workers: u16, samples: u32, ns: u64, amount: u64 },
    /// Since `since_ns` this thread has given its device nothing to do. The device had something left at first, and
    /// nothing for so many nanoseconds before this moment, on its own clock; zero: it was never idle.
    DeviceIdle { since_ns: u64, ns: u64 },
    /// The device took so many nanoseconds for its part of an operation, on its own clock.
    DeviceTook { group: GroupNumber, operation: OperationNumber, step: DeviceStep, ns: u64 },
    /// How often the group has found what it asked this cache for, and how often not, since it began.
    CacheHits { group: GroupNumber, cache: DeviceCache, hits: u64, misses: u64 },
    /// An iteration of training begins, with the number that the program gives it.
    Iteration { number: u64 },
    /// An epoch of training begins.
    Epoch { number: u64 },

    /// A request has waited so long for so many ranks, of which `rank` is the first, that a warning was given.
    Stalled { name: NameId, group: GroupNumber, missing: u32, rank: u32 },
    /// This rank's collectives were aborted; the name is the cause.
    Aborted { name: NameId },

    /// This member of an elastic job has come so far on its way to the generation of this trace. The first record of a
    /// stage counts.
    Recovery { stage: RecoveryStage },
    /// A member of the generation before was lost; the name is the cause.
    MemberLost { name: NameId, member: u64 },
    /// The step under way in the generation before was not made.
    StepLost { fate: StepFate },
}

/// The number of a template: requests that share a bucket again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemplateId(pub(crate) u32);

/// One request of a template: its name and the bytes of this rank's tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemplateEntry {
    /// The request's name.
    pub name: NameId,
    /// Bytes of its tensor.
    pub bytes: u64,
}
