//! A live sample of a rank, and its encoding.
//!
//! ```text
//! version 1 | counts, each 8 | iteration, epoch: 1 or 9 | blocked 8 | peer: 1 or 5 | phase: text | stall: 1 or more
//! ```
//!
//! Numbers are little-endian; what may be missing begins with a byte 0 or 1; a text with its length in two bytes. Every
//! sample has one encoding, and decoding is total: any bytes give a sample or `None`.

use crate::bytes::Bytes;

/// The version of the encoding. Another one is not decoded, and the rank is shown without numbers.
const VERSION: u8 = 1;

/// A text is cut to so many bytes, which bounds the size of a sample.
const MOST_TEXT_BYTES: usize = 200;

/// How many marks of iterations apart two of them must have come for the time since the last to count: while a rank is
/// in the middle of an iteration, that iteration says nothing about its pace yet.
const PATIENT_ITERATIONS: f64 = 2.0;

/// Totals since the rank began to record, at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The moment, on the clock of the rank's host.
    pub time_ns: u64,
    /// Iterations that have begun.
    pub iterations: u64,
    /// When the last one did.
    pub iteration_ns: u64,
    /// Buckets and direct calls that are done.
    pub operations: u64,
    /// Named requests among them.
    pub requests: u64,
    /// Bytes of all these, as the program handed them in.
    pub bytes: u64,
    /// Time in which the program waited for collectives, with the wait that is under way.
    pub waited_ns: u64,
    /// Time in which it waited for input, likewise.
    pub input_ns: u64,
    /// Warnings about requests that waited too long for other ranks.
    pub stalls: u64,
    /// Records that were overwritten before they could be counted: the numbers above are too small.
    pub dropped: u64,
    /// Time that the process had on processors.
    pub cpu_ns: u64,
    /// Memory of the process that is in use.
    pub rss_bytes: u64,
}

/// A warning that was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stall {
    /// When, on the clock of the rank's host.
    pub time_ns: u64,
    /// The request.
    pub name: String,
    /// How many ranks it waited for.
    pub missing: u32,
    /// The first of them.
    pub rank: u32,
}

/// See the module's text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveSample {
    /// Totals.
    pub counts: Counts,
    /// The number that the program has given to its current iteration.
    pub iteration: Option<u64>,
    /// And to its epoch.
    pub epoch: Option<u64>,
    /// For how long the program has been waiting for a collective by now; zero: it is not.
    pub blocked_ns: u64,
    /// The rank that the engine waits for, if it is one.
    pub peer: Option<u32>,
    /// The phase that the program is in; empty: it has not said.
    pub phase: String,
    /// The last stall.
    pub stall: Option<Stall>,
}

impl Counts {
    fn words(&self) -> [u64; 12] {
        [
            self.time_ns,
            self.iterations,
            self.iteration_ns,
            self.operations,
            self.requests,
            self.bytes,
            self.waited_ns,
            self.input_ns,
            self.stalls,
            self.dropped,
            self.cpu_ns,
            self.rss_bytes,
        ]
    }

    fn read(bytes: &mut Bytes<'_>) -> Option<Counts> {
        Some(Counts {
            time_ns: bytes.u64()?,
            iterations: bytes.u64()?,
            iteration_ns: bytes.u64()?,
            operations: bytes.u64()?,
            requests: bytes.u64()?,
            bytes: bytes.u64()?,
            waited_ns: bytes.u64()?,
            input_ns: bytes.u64()?,
            stalls: bytes.u64()?,
            dropped: bytes.u64()?,
            cpu_ns: bytes.u64()?,
            rss_bytes: bytes.u64()?,
        })
    }
}

impl LiveSample {
    /// The sample as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        self.counts.words().iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        for number in [self.iteration, self.epoch] {
            bytes.push(u8::from(number.is_some()));
            bytes.extend(number.into_iter().flat_map(u64::to_le_bytes));
        }
        bytes.extend(self.blocked_ns.to_le_bytes());
        bytes.push(u8::from(self.peer.is_some()));
        bytes.extend(self.peer.into_iter().flat_map(u32::to_le_bytes));
        put_text(&mut bytes, &self.phase);
        bytes.push(u8::from(self.stall.is_some()));
        if let Some(stall) = &self.stall {
            bytes.extend(stall.time_ns.to_le_bytes());
            bytes.extend(stall.missing.to_le_bytes());
            bytes.extend(stall.rank.to_le_bytes());
            put_text(&mut bytes, &stall.name);
        }
        bytes
    }

    /// The sample that these bytes are, if they are one.
    pub fn decode(bytes: &[u8]) -> Option<LiveSample> {
        let mut bytes = Bytes { rest: bytes };
        if bytes.u8()? != VERSION {
            return None;
        }
        let sample = LiveSample {
            counts: Counts::read(&mut bytes)?,
            iteration: bytes.option(Bytes::u64)?,
            epoch: bytes.option(Bytes::u64)?,
            blocked_ns: bytes.u64()?,
            peer: bytes.option(Bytes::u32)?,
            phase: text(&mut bytes)?,
            stall: bytes.option(|bytes| {
                let (time_ns, missing, rank) = (bytes.u64()?, bytes.u32()?, bytes.u32()?);
                Some(Stall { time_ns, missing, rank, name: text(bytes)? })
            })?,
        };
        bytes.rest.is_empty().then_some(sample)
    }
}

fn put_text(into: &mut Vec<u8>, text: &str) {
    let text = &text[..text.floor_char_boundary(MOST_TEXT_BYTES)];
    into.extend((text.len() as u16).to_le_bytes());
    into.extend(text.as_bytes());
}

/// A text with its length in two bytes.
fn text(bytes: &mut Bytes<'_>) -> Option<String> {
    let len = usize::from(bytes.u16()?);
    let text = bytes.text(len)?;
    (len <= MOST_TEXT_BYTES).then(|| text.to_owned())
}

/// What a rank did in the time between two samples, for each second of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SampleRates {
    /// Iterations; `None` where the program marks none, or has not done so for a whole one yet.
    pub iterations: Option<f64>,
    /// Buckets and direct calls.
    pub operations: f64,
    /// Bytes of these.
    pub bytes: f64,
    /// Share of the time in which the program waited for collectives, from 0 to 1.
    pub waiting: f64,
    /// Share in which it waited for input.
    pub input: f64,
    /// Processors that were busy with it.
    pub cpu: f64,
}

impl SampleRates {
    /// Between two samples of one rank; `None` if no time has passed, or if the rank has begun anew meanwhile.
    pub fn between(first: &Counts, last: &Counts) -> Option<SampleRates> {
        let elapsed_ns = last.time_ns.checked_sub(first.time_ns).filter(|elapsed_ns| *elapsed_ns > 0)? as f64;
        let since = |of: fn(&Counts) -> u64| of(last).checked_sub(of(first)).map(|count| count as f64);
        let iterations = since(|counts| counts.iterations)?;
        Some(SampleRates {
            iterations: pace(first, last, iterations),
            operations: since(|counts| counts.operations)? * 1e9 / elapsed_ns,
            bytes: since(|counts| counts.bytes)? * 1e9 / elapsed_ns,
            // Several threads may wait at once; the rank does no more than wait.
            waiting: (since(|counts| counts.waited_ns)? / elapsed_ns).min(1.0),
            input: (since(|counts| counts.input_ns)? / elapsed_ns).min(1.0),
            cpu: since(|counts| counts.cpu_ns)? / elapsed_ns,
        })
    }
}

/// Iterations in a second, counted from mark to mark, so that long ones do not come out as none and then as one too
/// many. When none has been marked for much longer than the last ones took, the time since then counts as well, and the
/// pace falls.
fn pace(first: &Counts, last: &Counts, iterations: f64) -> Option<f64> {
    if last.iterations == 0 {
        return None;
    }
    if iterations == 0.0 || first.iterations == 0 {
        let one_took_longer = last.time_ns.saturating_sub(first.time_ns) > 0 && first.iterations > 0;
        return one_took_longer.then_some(0.0);
    }
    let marked_ns = last.iteration_ns.saturating_sub(first.iteration_ns) as f64;
    let open_ns = last.time_ns.saturating_sub(last.iteration_ns) as f64;
    let late = open_ns > PATIENT_ITERATIONS * marked_ns / iterations;
    let counted_ns = if late { marked_ns + open_ns } else { marked_ns };
    (counted_ns > 0.0).then(|| iterations * 1e9 / counted_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(time_s: u64, iterations: u64, iteration_s: u64) -> Counts {
        let (time_ns, iteration_ns) = (time_s * 1_000_000_000, iteration_s * 1_000_000_000);
        Counts { time_ns, iterations, iteration_ns, ..Counts::default() }
    }

    #[test]
    fn slow_iterations_have_a_steady_pace() {
        // One in three seconds, looked at in the middle of them.
        let rates = SampleRates::between(&counts(10, 4, 9), &counts(20, 7, 18)).unwrap();
        assert_eq!(rates.iterations, Some(3.0 / 9.0));
    }

    #[test]
    fn the_pace_of_a_rank_that_stands_still_falls() {
        let (first, last) = (counts(10, 4, 9), counts(40, 7, 18));
        assert_eq!(SampleRates::between(&first, &last).unwrap().iterations, Some(3.0 / 31.0));
        assert_eq!(SampleRates::between(&last, &counts(50, 7, 18)).unwrap().iterations, Some(0.0));
    }

    #[test]
    fn without_marks_there_is_no_pace() {
        assert_eq!(SampleRates::between(&counts(1, 0, 0), &counts(2, 0, 0)).unwrap().iterations, None);
        assert_eq!(SampleRates::between(&counts(1, 0, 0), &counts(2, 1, 1)).unwrap().iterations, None);
    }

    #[test]
    fn shares_and_rates_are_of_the_time_between() {
        let first = Counts { bytes: 100, waited_ns: 5, ..counts(1, 0, 0) };
        let last = Counts { bytes: 300, waited_ns: 500_000_005, operations: 8, ..counts(2, 0, 0) };
        let rates = SampleRates::between(&first, &last).unwrap();
        assert_eq!((rates.bytes, rates.waiting, rates.operations), (200.0, 0.5, 8.0));
    }

    #[test]
    fn a_rank_that_begins_anew_has_no_rates_for_once() {
        let before = Counts { bytes: 100, ..counts(1, 5, 1) };
        assert_eq!(SampleRates::between(&before, &counts(2, 0, 0)), None);
        assert_eq!(SampleRates::between(&before, &before), None);
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let long = LiveSample { phase: "ü".repeat(500), ..LiveSample::default() };
        let read = LiveSample::decode(&long.encode()).unwrap();
        assert_eq!(read.phase, "ü".repeat(100));
        let odd = LiveSample { phase: format!("x{}", "ü".repeat(500)), ..LiveSample::default() };
        assert_eq!(LiveSample::decode(&odd.encode()).unwrap().phase.len(), 199);
    }
}
