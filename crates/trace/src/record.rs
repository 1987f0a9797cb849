//! Records as four words of 64 bits, the same in rings and in files.

use crate::event::{
    Collective, DeviceCache, DeviceStep, Dtype, Event, GroupNumber, InputStage, NameId, OperationNumber, Phase,
    RecoveryStage, StepFate, StepKind, ThreadId,
};

/// Bytes of a record in a file.
pub const RECORD_BYTES: usize = 32;

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
/// word 3   group, or workers, 16 | bytes, nanoseconds of a device, or an amount 48
/// ```
struct Fields {
    kind: u8,
    code: u8,
    small: u32,
    number: u64,
    group: GroupNumber,
    bytes: u64,
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
            Event::DeviceIdle { since_ns, ns } => Fields { kind: 25, number: since_ns, bytes: ns, ..plain },
            Event::DeviceTook { group, operation, step, ns } => {
                Fields { code: step.code(), bytes: ns, ..of(26, group, operation) }
            }
            Event::CacheHits { group, cache, hits, misses } => {
                Fields { kind: 27, code: cache.code(), group, number: hits, bytes: misses, ..plain }
            }
            Event::Recovery { stage } => Fields { kind: 28, code: stage.code(), ..plain },
            Event::MemberLost { name, member } => Fields { kind: 29, small: name.0, number: member, ..plain },
            Event::StepLost { fate } => Fields { kind: 30, code: fate.code(), ..plain },
            Event::InputTook { stage, workers, samples, ns, amount } => Fields {
                kind: 31,
                code: stage.code(),
                small: samples,
                number: ns,
                group: GroupNumber(workers),
                bytes: amount,
            },
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
            25 => Event::DeviceIdle { since_ns: number, ns: bytes },
            26 => Event::DeviceTook { group, operation, step: DeviceStep::from_code(code)?, ns: bytes },
            27 => Event::CacheHits { group, cache: DeviceCache::from_code(code)?, hits: number, misses: bytes },
            28 => Event::Recovery { stage: RecoveryStage::from_code(code)? },
            29 => Event::MemberLost { name, member: number },
            30 => Event::StepLost { fate: StepFate::from_code(code)? },
            31 => {
                let stage = InputStage::from_code(code)?;
                Event::InputTook { stage, workers: group.0, samples: small, ns: number, amount: bytes }
            }
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
            Event::DeviceIdle { since_ns: u64::MAX - 3, ns: BYTES_MAX },
            Event::DeviceTook { group, operation, step: DeviceStep::Unpack, ns: 7 },
            Event::CacheHits { group, cache: DeviceCache::Exports, hits: u64::MAX, misses: 0 },
            Event::Recovery { stage: RecoveryStage::Stepped },
            Event::MemberLost { name, member: u64::MAX },
            Event::InputTook { stage: InputStage::Change, workers: 3, samples: 64, ns: 1 << 40, amount: bytes },
            Event::StepLost { fate: StepFate::Dropped },
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
