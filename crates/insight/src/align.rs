//! Aligns the clocks of all ranks: [`align`].
//!
//! Ranks of one host read one clock. Those of two hosts differ by an *offset* and, because no two oscillators are
//! alike, by a *drift* of some millionths. Both are computed from operations that both hosts took part in:
//!
//! - *Ends are nearly simultaneous.* A collective that synchronises ends everywhere within the time of a message. The
//!   difference of two ends, over the time at which they happened, is a line whose height is the offset and whose slope
//!   is the drift. It is fitted by least squares, three times, each time without what lies far from the line before: a
//!   rank that had no core ends late, which says nothing about clocks.
//! - *No rank ends before all have started.* So the end on one side lies after the start on the other, whichever clocks
//!   they read. Each operation gives a lower and an upper bound of the offset; the run is cut into parts, and in each
//!   the narrowest pair counts. A line that breaks a bound is moved. The *error bound* is how far a line within all
//!   bounds can be from it during the run.
//!
//! The clock of the first trace is the *reference*. A clock that shares no operation with it is aligned through one
//! that does. One that shares none with any other is placed by its host's time of day, without a bound.

mod fit;

use std::collections::{BTreeMap, BTreeSet};

use farandole_trace::Trace;
use farandole_trace::event::{Event, GroupNumber, OperationNumber, Record};

use fit::{SharedOperation, fit_line};

/// Direct calls up to this size may be recorded a few microseconds after they have begun, which is too late for a
/// limit.
const DIRECT_FROM_BYTES: u64 = 64 << 10;

/// How the times of one trace become those of the reference clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClockFit {
    /// What is added at the moment `origin_ns`.
    pub offset_ns: f64,
    /// What is added for each nanosecond after it; a thousandth of a thousandth is one part in a million.
    pub drift: f64,
    /// A moment on the trace's own clock.
    pub origin_ns: u64,
    /// The true time is no further away than this from what [`ClockFit::apply`] says, while operations are shared.
    /// `None` if nothing is known.
    pub error_ns: Option<u64>,
    /// Operations that it was fitted to.
    pub operations: usize,
}

impl ClockFit {
    /// The reference clock itself.
    pub const REFERENCE: ClockFit =
        ClockFit { offset_ns: 0.0, drift: 0.0, origin_ns: 0, error_ns: Some(0), operations: 0 };

    /// A moment on the reference clock.
    pub fn apply(&self, time_ns: u64) -> u64 {
        let since = time_ns as i128 - i128::from(self.origin_ns);
        let shift = self.offset_ns + self.drift * since as f64;
        u64::try_from((i128::from(time_ns) + shift.round() as i128).max(0)).unwrap_or(u64::MAX)
    }
}

/// Finds the fit of each trace, in their order.
pub fn align(traces: &[Trace]) -> Vec<ClockFit> {
    let clocks = clocks_of(traces);
    let synchronising: Vec<BTreeMap<Key, Span>> = traces.iter().map(synchronising_operations).collect();
    let mut fits: Vec<Option<ClockFit>> = vec![None; clocks.len()];
    let mut aligned: BTreeSet<usize> = BTreeSet::new();
    if let Some(first) = fits.first_mut() {
        *first = Some(ClockFit::REFERENCE);
        aligned.insert(0);
    }
    while aligned.len() < clocks.len() {
        let known: Vec<(usize, ClockFit)> = traces_on(&clocks, &aligned, &fits);
        let open = (0..clocks.len()).filter(|clock| !aligned.contains(clock));
        let shared = open.map(|clock| (shared_by(&known, &clocks[clock], &synchronising), clock));
        let Some((shared, clock)) = shared.max_by_key(|(shared, clock)| (shared.len(), usize::MAX - clock)) else {
            break;
        };
        let parent_error = known.iter().filter_map(|(_, fit)| fit.error_ns).max().unwrap_or(0);
        let through_others = aligned.len() > 1 && !shared.is_empty();
        let mut fit = fit_line(&shared).unwrap_or_else(|| by_time_of_day(&traces[0], &traces[clocks[clock][0]]));
        if through_others {
            fit.error_ns = fit.error_ns.map(|error| error.saturating_add(parent_error));
        }
        fits[clock] = Some(fit);
        aligned.insert(clock);
    }
    let fit_of = |index: usize| {
        let clock = clocks.iter().position(|traces| traces.contains(&index)).expect("invariant: a trace has a clock");
        fits[clock].expect("invariant: every clock was aligned")
    };
    (0..traces.len()).map(fit_of).collect()
}

/// Puts traces on the reference clock, and says how well.
pub fn put_on_one_clock(traces: &mut [Trace]) -> Vec<ClockFit> {
    let fits = align(traces);
    for (trace, fit) in traces.iter_mut().zip(&fits) {
        for record in &mut trace.records {
            record.time_ns = fit.apply(record.time_ns);
            if let Event::Waited { since_ns, .. } | Event::DeviceIdle { since_ns, .. } = &mut record.event {
                *since_ns = fit.apply(*since_ns);
            }
        }
        trace.header.anchor_ns = fit.apply(trace.header.anchor_ns);
    }
    fits
}

/// One operation of one group of one generation.
type Key = (u64, GroupNumber, OperationNumber);

/// When a rank was in an operation.
#[derive(Clone, Copy, Debug)]
struct Span {
    start_ns: u64,
    end_ns: u64,
}

/// The traces of each clock; the first trace's clock is the first.
fn clocks_of(traces: &[Trace]) -> Vec<Vec<usize>> {
    let mut clocks: Vec<Vec<usize>> = Vec::new();
    for (index, trace) in traces.iter().enumerate() {
        let same = |other: &Vec<usize>| {
            let clock = &traces[other[0]].header.clock;
            !clock.is_empty() && *clock == trace.header.clock
        };
        match clocks.iter_mut().find(|other| same(other)) {
            Some(clock) => clock.push(index),
            None => clocks.push(vec![index]),
        }
    }
    clocks
}

/// The operations of a trace that synchronise and have an end.
fn synchronising_operations(trace: &Trace) -> BTreeMap<Key, Span> {
    let mut open: BTreeMap<Key, u64> = BTreeMap::new();
    let mut synchronising = BTreeMap::new();
    let generation = trace.header.generation();
    for Record { time_ns, event, .. } in &trace.records {
        match *event {
            Event::Started { group, operation, collective, bytes, .. }
                if collective.synchronises() && (group != GroupNumber::DIRECT || bytes >= DIRECT_FROM_BYTES) =>
            {
                open.insert((generation, group, operation), *time_ns);
            }
            Event::Abandoned { group, operation } => {
                open.remove(&(generation, group, operation));
            }
            Event::Finished { group, operation } => {
                if let Some(start_ns) = open.remove(&(generation, group, operation)) {
                    synchronising.insert((generation, group, operation), Span { start_ns, end_ns: *time_ns });
                }
            }
            _ => {}
        }
    }
    synchronising
}

/// The traces whose clocks are aligned, with their fits.
fn traces_on(clocks: &[Vec<usize>], aligned: &BTreeSet<usize>, fits: &[Option<ClockFit>]) -> Vec<(usize, ClockFit)> {
    let of_clock = |clock: &usize| {
        let fit = fits[*clock].expect("invariant: an aligned clock has a fit");
        clocks[*clock].iter().map(move |trace| (*trace, fit)).collect::<Vec<_>>()
    };
    aligned.iter().flat_map(of_clock).collect()
}

/// What traces on known clocks and those of one that is open have both seen, in the order of time.
fn shared_by(
    known: &[(usize, ClockFit)],
    open: &[usize],
    synchronising: &[BTreeMap<Key, Span>],
) -> Vec<SharedOperation> {
    let mut theirs: BTreeMap<Key, Vec<Span>> = BTreeMap::new();
    for trace in open {
        for (key, span) in &synchronising[*trace] {
            theirs.entry(*key).or_default().push(*span);
        }
    }
    let mut shared = Vec::new();
    for (key, spans) in theirs {
        let ours = known.iter().filter_map(|(trace, fit)| {
            let span = synchronising[*trace].get(&key)?;
            Some((fit.apply(span.start_ns) as f64, fit.apply(span.end_ns) as f64))
        });
        let ours: Vec<(f64, f64)> = ours.collect();
        if ours.is_empty() {
            continue;
        }
        let starts = |spans: &[Span]| spans.iter().map(|span| span.start_ns).max().unwrap_or(0);
        shared.push(SharedOperation {
            known_start: ours.iter().map(|(start, _)| *start).fold(f64::MIN, f64::max),
            known_first_end: ours.iter().map(|(_, end)| *end).fold(f64::MAX, f64::min),
            known_last_end: ours.iter().map(|(_, end)| *end).fold(f64::MIN, f64::max),
            start_ns: starts(&spans),
            first_end_ns: spans.iter().map(|span| span.end_ns).min().unwrap_or(0),
            last_end_ns: spans.iter().map(|span| span.end_ns).max().unwrap_or(0),
        });
    }
    shared.sort_by_key(|shared| shared.last_end_ns);
    shared
}

/// Where a host's time of day puts its clock.
fn by_time_of_day(reference: &Trace, trace: &Trace) -> ClockFit {
    let (ours, theirs) = (&reference.header, &trace.header);
    let between = i128::from(theirs.anchor_unix_ns) - i128::from(ours.anchor_unix_ns);
    let offset = i128::from(ours.anchor_ns) + between - i128::from(theirs.anchor_ns);
    ClockFit { offset_ns: offset as f64, drift: 0.0, origin_ns: theirs.anchor_ns, error_ns: None, operations: 0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use farandole_trace::TraceHeader;
    use farandole_trace::event::{Collective, Dtype, ThreadId};

    /// A host's clock: what it shows at a true time.
    #[derive(Clone, Copy, Debug)]
    struct Clock {
        ahead_ns: i64,
        fast_ppm: f64,
    }

    impl Clock {
        fn shows(self, true_ns: u64) -> u64 {
            (true_ns as i64 + self.ahead_ns + (true_ns as f64 * self.fast_ppm * 1e-6) as i64) as u64
        }
    }

    /// Two ranks on each host, in `operations` allreduces every 5 ms, with these delays (in microseconds, used in
    /// turn).
    fn run(clocks: &[Clock], operations: u64, late_us: &[u64], end_us: &[u64]) -> Vec<Trace> {
        let ranks = 2 * clocks.len();
        let header = |rank: usize| TraceHeader {
            rank: rank as u32,
            size: ranks as u32,
            clock: format!("clock {}", rank / 2),
            ..TraceHeader::default()
        };
        let mut traces: Vec<Trace> = (0..ranks).map(|rank| Trace::new(header(rank))).collect();
        let of = |table: &[u64], turn: usize| table[turn % table.len()] * 1000;
        for number in 0..operations {
            let begin = 10_000_000_000 + number * 5_000_000;
            let turn = |rank: usize| number as usize * ranks + rank;
            let start = |rank: usize| begin + of(late_us, turn(rank));
            let all_started = (0..ranks).map(start).max().unwrap();
            for (rank, trace) in traces.iter_mut().enumerate() {
                let (group, operation) = (GroupNumber::WORLD, OperationNumber(number));
                let (collective, dtype) = (Collective::Allreduce, Dtype::F32);
                let started = Event::Started { group, operation, collective, dtype, requests: 1, bytes: 4 };
                let clock = clocks[rank / 2];
                trace.push(clock.shows(start(rank)), ThreadId(0), started);
                let end = all_started + of(end_us, 3 * turn(rank));
                trace.push(clock.shows(end), ThreadId(0), Event::Finished { group, operation });
            }
        }
        traces
    }

    #[test]
    fn ranks_of_one_host_need_no_alignment() {
        let traces = run(&[Clock { ahead_ns: 77, fast_ppm: 3.0 }], 10, &[0, 50], &[10]);
        assert_eq!(align(&traces), [ClockFit::REFERENCE; 2]);
        assert_eq!(align(&[]), []);
    }

    #[test]
    fn the_beginning_of_a_wait_is_put_on_the_clock_as_well() {
        let anchored = |clock: &str, anchor_unix_ns| {
            let clock = clock.to_owned();
            Trace::new(TraceHeader { size: 2, clock, anchor_unix_ns, ..TraceHeader::default() })
        };
        let mut traces = [anchored("a", 0), anchored("b", 5000)];
        let waited = |since_ns| Event::Waited { name: farandole_trace::event::NameId(1), since_ns };
        traces[1].push(300, ThreadId(0), waited(200));
        put_on_one_clock(&mut traces);
        assert_eq!((traces[1].records[0].time_ns, traces[1].records[0].event), (5300, waited(5200)));
    }

    #[test]
    fn clocks_that_share_nothing_go_by_the_time_of_day() {
        let anchored = |clock: &str, anchor_ns, anchor_unix_ns| {
            let clock = clock.to_owned();
            Trace::new(TraceHeader { size: 2, clock, anchor_ns, anchor_unix_ns, ..TraceHeader::default() })
        };
        let fits = align(&[anchored("a", 1000, 5_000_000), anchored("b", 70, 5_000_500)]);
        assert_eq!((fits[1].apply(70), fits[1].error_ns), (1500, None));
    }

    #[test]
    fn a_clock_is_aligned_through_another_where_it_has_to_be() {
        let clocks = [0, 5_000_000_000, -2_000_000_000].map(|ahead_ns| Clock { ahead_ns, fast_ppm: 0.0 });
        let mut traces = run(&clocks, 100, &[0, 30, 10], &[5, 20]);
        // The first and the last host never meet: what one took part in, the other did not.
        for (rank, trace) in traces.iter_mut().enumerate() {
            let apart = |record: &Record| match record.event {
                Event::Started { operation, .. } | Event::Finished { operation, .. } => {
                    rank / 2 == 1 || (operation.0 % 2 == 0) == (rank / 2 == 0)
                }
                _ => true,
            };
            trace.records.retain(apart);
        }
        let fits = align(&traces);
        let error = fits[4].apply(clocks[2].shows(10_100_000_000)).abs_diff(10_100_000_000);
        assert!(error < 40_000, "{error} ns: {:?}", fits[4]);
        assert!(fits[4].error_ns >= fits[2].error_ns);
    }

    /// Runs and aligns, and looks at each clock from the beginning to the end.
    fn bounds_hold(clocks: &[Clock], late_us: &[u64], end_us: &[u64]) {
        let fits = align(&run(clocks, 600, late_us, end_us));
        for (host, clock) in clocks.iter().enumerate() {
            let fit = fits[2 * host];
            for true_ns in [10_001_000_000, 11_000_000_000, 12_500_000_000, 12_995_000_000] {
                let aligned = fit.apply(clock.shows(true_ns));
                let error = aligned.abs_diff(clocks[0].shows(true_ns));
                assert!(error <= fit.error_ns.unwrap() + 1, "{error} ns at {true_ns}, {fit:?}");
                assert!(error < 100_000, "{error} ns at {true_ns}, {fit:?}");
            }
        }
    }

    #[test]
    fn a_bound_holds_also_before_and_after_the_narrowest_limits() {
        let mut end_us = [1; 30];
        for (at, end) in [(3, 14), (6, 38), (12, 46), (21, 39), (27, 12)] {
            end_us[at] = end;
        }
        bounds_hold(&[Clock { ahead_ns: 4_000_000_000_000, fast_ppm: 0.0 }; 3], &[0; 7], &end_us);
    }

    proptest! {
        #[test]
        fn the_true_time_is_within_the_bound(
            ahead_ns in proptest::collection::vec(-3_600_000_000_000_i64..3_600_000_000_000, 2),
            fast_ppm in proptest::collection::vec(-100.0..100.0, 2),
            late_us in proptest::collection::vec(0_u64..300, 7..40),
            end_us in proptest::collection::vec(1_u64..60, 5..40),
        ) {
            let mut clocks = vec![Clock { ahead_ns: 0, fast_ppm: 0.0 }];
            let zipped = ahead_ns.into_iter().zip(fast_ppm);
            clocks.extend(zipped.map(|(ahead_ns, fast_ppm)| Clock { ahead_ns: ahead_ns + 4_000_000_000_000, fast_ppm }));
            clocks[0].ahead_ns = 4_000_000_000_000;
            bounds_hold(&clocks, &late_us, &end_us);
        }

        #[test]
        fn ranks_that_are_not_given_a_core_do_not_spoil_it(which in proptest::collection::vec(0_usize..600, 1..20)) {
            let clocks = [Clock { ahead_ns: 0, fast_ppm: 0.0 }, Clock { ahead_ns: 123_456_789, fast_ppm: 40.0 }];
            let mut traces = run(&clocks, 600, &[0, 20, 5], &[3, 9, 4]);
            // Ten milliseconds late: a time slice.
            for (turn, index) in which.into_iter().enumerate() {
                traces[turn % 4].records[2 * index + 1].time_ns += 10_000_000;
            }
            let fit = align(&traces)[2];
            let error = fit.apply(clocks[1].shows(12_000_000_000)).abs_diff(12_000_000_000);
            prop_assert!(error < 30_000, "{error} ns, {fit:?}");
        }
    }
}
