//! Events: what can happen on a rank, and when.
//!
//! A [`Record`] is a moment, a thread and an [`Event`]. Events are *boundaries*: each says that something begins or
//! ends; readers name what lies between. They follow a gradient: its request is *submitted*; the bucket that it was
//! *fused* into is *started*, *entered* by all ranks where that matters, and *packed*; it takes *steps*, between which
//! it may be *waiting* for a peer and then *resumed*; it is *transferred*; it is unpacked and with that *finished*; and
//! each request is *done*. There are also the *phases* of the program (forward, backward, waiting for input, …), stack
//! samples of its thread while it is in none, marks for iterations and epochs, stalls and aborts.
//!
//! Every record is four words of 64 bits ([`Record::to_words`]), the same in rings and in files. A record contains no
//! text: names are in a table beside the records, and a record has their number.
//!
//! What is deliberately not here: durations, and which events belong together. Two events of one operation have the
//! same group and the same number of operation, on all ranks.

/// Bytes of a record in a file.
pub const RECORD_BYTES: usize = 32;

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

/// What has happened. See the module's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields mean the same in all variants: see the types, and each variant's text")]
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
    /// A thread of the program has waited for the result of this request since then, and goes on now. Direct calls have
    /// no such record: their thread waits from `Started` to `Finished`.
    Waited { name: NameId, since_ns: u64 },

    /// A phase of the program begins on this thread. `name` is that of a user's phase.
    PhaseBegin { phase: Phase, name: NameId },
    /// It ends. Phases of one thread nest.
    PhaseEnd { phase: Phase, name: NameId },
    /// This thread was seen at a place of the program (the name: file, line and function) while it was in no phase. The
    /// sample stands for so many nanoseconds before this moment.
    Sampled { name: NameId, ns: u64 },
    /// An iteration of training begins, with the number that the program gives it.
    Iteration { number: u64 },
    /// An epoch of training begins.
    Epoch { number: u64 },

    /// A request has waited so long for so many ranks, of which `rank` is the first, that a warning was given.
    Stalled { name: NameId, group: GroupNumber, missing: u32, rank: u32 },
    /// This rank's collectives were aborted; the name is the cause.
    Aborted { name: NameId },
}

/// A moment, a thread, an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Nanoseconds on the monotonic clock of the rank's host.
    pub time_ns: u64,
    /// The thread that did it.
    pub thread: ThreadId,
    /// What happened.
    pub event: Event,
}

/// Where the fields of a record lie.
///
/// ```text
/// word 0   time in nanoseconds
/// word 1   kind 8 | code 8 | thread 16 | name, peer or count 32
/// word 2   operation or number 64
/// word 3   group 16 | bytes 48
/// ```
struct Fields {
    kind: u8,
    code: u8,
    small: u32,
    number: u64,
    group: GroupNumber,
    bytes: u64,
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

/// Bytes of one operation that a record can tell: 256 TiB less one.
const BYTES_MAX: u64 = (1 << 48) - 1;

/// No peer can be named. No rank has this number: a world has fewer.
const NO_PEER: u32 = u32::MAX;

impl Record {
    /// The record as words.
    #[inline]
    pub fn to_words(&self) -> [u64; 4] {
        let Fields { kind, code, small, number, group, bytes } = self.event.fields();
        let head = u64::from(kind) | u64::from(code) << 8 | u64::from(self.thread.0) << 16 | u64::from(small) << 32;
        [self.time_ns, head, number, u64::from(group.0) << 48 | bytes.min(BYTES_MAX)]
    }

    /// The record that these words are, if they are one.
    pub fn from_words(words: [u64; 4]) -> Option<Record> {
        let [time_ns, head, number, tail] = words;
        let fields = Fields {
            kind: head as u8,
            code: (head >> 8) as u8,
            small: (head >> 32) as u32,
            number,
            group: GroupNumber((tail >> 48) as u16),
            bytes: tail & BYTES_MAX,
        };
        let event = Event::from_fields(&fields)?;
        let record = Record { time_ns, thread: ThreadId((head >> 16) as u16), event };
        // Fields that an event does not have are zero, so that there is one way to write it.
        (record.to_words() == words).then_some(record)
    }

    /// The record as bytes.
    pub fn to_bytes(&self) -> [u8; RECORD_BYTES] {
        words_to_bytes(self.to_words())
    }
}

/// Four words as they lie in a file: least significant byte first.
pub(crate) fn words_to_bytes(words: [u64; 4]) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// The words of a record in a file.
pub(crate) fn words_from_bytes(bytes: &[u8; RECORD_BYTES]) -> [u64; 4] {
    let word = |index: usize| {
        let start = index * 8;
        u64::from_le_bytes(std::array::from_fn(|byte| bytes[start + byte]))
    };
    [word(0), word(1), word(2), word(3)]
}

/// Collective and element type in one byte.
const fn form(collective: Collective, dtype: Dtype) -> u8 {
    collective.code() << 4 | dtype.code()
}

fn from_form(code: u8) -> Option<(Collective, Dtype)> {
    Some((Collective::from_code(code >> 4)?, Dtype::from_code(code & 0xf)?))
}

fn peer_number(peer: Option<u32>) -> u32 {
    peer.unwrap_or(NO_PEER)
}

fn peer_of(number: u32) -> Option<u32> {
    (number != NO_PEER).then_some(number)
}

impl Event {
    // Callers record a known variant, so the compiler removes this match where it is inlined.
    #[inline(always)]
    fn fields(&self) -> Fields {
        let plain = Fields { kind: 0, code: 0, small: 0, number: 0, group: GroupNumber(0), bytes: 0 };
        let of = |kind: u8, group: GroupNumber, operation: OperationNumber| Fields {
            kind,
            group,
            number: operation.0,
            ..plain
        };
        match *self {
            Event::Submitted { name, group, collective, dtype, bytes } => {
                Fields { kind: 1, code: form(collective, dtype), small: name.0, group, bytes, ..plain }
            }
            Event::Arrived { name, group, rank } => {
                Fields { kind: 2, small: name.0, group, number: rank.into(), ..plain }
            }
            Event::Fused { name, group, operation, bytes } => {
                Fields { small: name.0, bytes, ..of(3, group, operation) }
            }
            Event::Done { name, group, operation } => Fields { small: name.0, ..of(4, group, operation) },
            Event::Failed { name, group } => Fields { kind: 5, small: name.0, group, ..plain },
            Event::Started { group, operation, collective, dtype, requests, bytes } => {
                Fields { code: form(collective, dtype), small: requests, bytes, ..of(6, group, operation) }
            }
            Event::Entered { group, operation } => of(7, group, operation),
            Event::Packed { group, operation } => of(8, group, operation),
            Event::Stepped { group, operation, step, peer, bytes } => {
                Fields { code: step.code(), small: peer_number(peer), bytes, ..of(9, group, operation) }
            }
            Event::Waiting { group, operation, peer } => {
                Fields { small: peer_number(peer), ..of(10, group, operation) }
            }
            Event::Resumed { group, operation } => of(11, group, operation),
            Event::Transferred { group, operation } => of(12, group, operation),
            Event::Finished { group, operation } => of(13, group, operation),
            Event::Abandoned { group, operation } => of(14, group, operation),
            Event::Skipped { group, operation, calls, bytes } => {
                Fields { small: calls, bytes, ..of(15, group, operation) }
            }
            Event::Cycle => Fields { kind: 16, ..plain },
            Event::PhaseBegin { phase, name } => Fields { kind: 17, code: phase.code(), small: name.0, ..plain },
            Event::PhaseEnd { phase, name } => Fields { kind: 18, code: phase.code(), small: name.0, ..plain },
            Event::Iteration { number } => Fields { kind: 19, number, ..plain },
            Event::Epoch { number } => Fields { kind: 20, number, ..plain },
            Event::Stalled { name, group, missing, rank } => {
                let number = u64::from(missing) << 32 | u64::from(rank);
                Fields { kind: 21, small: name.0, group, number, ..plain }
            }
            Event::Aborted { name } => Fields { kind: 22, small: name.0, ..plain },
            Event::Waited { name, since_ns } => Fields { kind: 23, small: name.0, number: since_ns, ..plain },
            Event::Sampled { name, ns } => Fields { kind: 24, small: name.0, number: ns, ..plain },
        }
    }

    fn from_fields(fields: &Fields) -> Option<Event> {
        let &Fields { kind, code, small, number, group, bytes } = fields;
        let (name, operation) = (NameId(small), OperationNumber(number));
        Some(match kind {
            1 => {
                let (collective, dtype) = from_form(code)?;
                Event::Submitted { name, group, collective, dtype, bytes }
            }
            2 => Event::Arrived { name, group, rank: u32::try_from(number).ok()? },
            3 => Event::Fused { name, group, operation, bytes },
            4 => Event::Done { name, group, operation },
            5 => Event::Failed { name, group },
            6 => {
                let (collective, dtype) = from_form(code)?;
                Event::Started { group, operation, collective, dtype, requests: small, bytes }
            }
            7 => Event::Entered { group, operation },
            8 => Event::Packed { group, operation },
            9 => {
                let step = StepKind::from_code(code)?;
                Event::Stepped { group, operation, step, peer: peer_of(small), bytes }
            }
            10 => Event::Waiting { group, operation, peer: peer_of(small) },
            11 => Event::Resumed { group, operation },
            12 => Event::Transferred { group, operation },
            13 => Event::Finished { group, operation },
            14 => Event::Abandoned { group, operation },
            15 => Event::Skipped { group, operation, calls: small, bytes },
            16 => Event::Cycle,
            17 => Event::PhaseBegin { phase: Phase::from_code(code)?, name },
            18 => Event::PhaseEnd { phase: Phase::from_code(code)?, name },
            19 => Event::Iteration { number },
            20 => Event::Epoch { number },
            21 => Event::Stalled { name, group, missing: (number >> 32) as u32, rank: number as u32 },
            22 => Event::Aborted { name },
            23 => Event::Waited { name, since_ns: number },
            24 => Event::Sampled { name, ns: number },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_event_survives_its_words() {
        let (name, group, operation) = (NameId(7), GroupNumber(3), OperationNumber(1 << 45 | 9));
        let (collective, dtype, bytes) = (Collective::ReduceScatter, Dtype::BF16, BYTES_MAX);
        let events = [
            Event::Submitted { name, group, collective, dtype, bytes },
            Event::Arrived { name, group, rank: 12 },
            Event::Fused { name, group, operation, bytes },
            Event::Done { name, group, operation },
            Event::Failed { name, group },
            Event::Started { group: GroupNumber::DIRECT, operation, collective, dtype, requests: 4, bytes },
            Event::Entered { group, operation },
            Event::Packed { group, operation },
            Event::Stepped { group, operation, step: StepKind::Reduce, peer: None, bytes: 5 },
            Event::Stepped { group, operation, step: StepKind::Send, peer: Some(0), bytes: 5 },
            Event::Waiting { group, operation, peer: Some(3) },
            Event::Resumed { group, operation },
            Event::Transferred { group, operation },
            Event::Finished { group, operation },
            Event::Abandoned { group, operation },
            Event::Skipped { group, operation, calls: 63, bytes: 252 },
            Event::Cycle,
            Event::PhaseBegin { phase: Phase::User, name },
            Event::PhaseEnd { phase: Phase::InputWait, name: NameId::NONE },
            Event::Iteration { number: u64::MAX },
            Event::Epoch { number: 2 },
            Event::Stalled { name, group, missing: 2, rank: 1 },
            Event::Aborted { name },
            Event::Waited { name, since_ns: u64::MAX - 2 },
            Event::Sampled { name, ns: u64::MAX },
        ];
        for event in events {
            let record = Record { time_ns: u64::MAX - 1, thread: ThreadId(500), event };
            assert_eq!(Record::from_words(record.to_words()), Some(record));
            assert_eq!(words_from_bytes(&record.to_bytes()), record.to_words());
        }
    }

    #[test]
    fn sizes_beyond_what_fits_are_told_as_the_largest() {
        let event =
            Event::Fused { name: NameId(1), group: GroupNumber(0), operation: OperationNumber(0), bytes: u64::MAX };
        let record = Record { time_ns: 0, thread: ThreadId(0), event };
        let read = Record::from_words(record.to_words()).unwrap();
        assert!(matches!(read.event, Event::Fused { bytes: BYTES_MAX, .. }));
    }

    proptest! {
        #[test]
        fn words_that_are_a_record_are_exactly_its_words(words: [u64; 4]) {
            // Most words are no record; kinds that exist are tried, too.
            for kind in 0..32_u64 {
                let words = [words[0], words[1] & !0xff | kind, words[2], words[3]];
                if let Some(record) = Record::from_words(words) {
                    prop_assert_eq!(record.to_words(), words);
                }
            }
        }
    }
}
