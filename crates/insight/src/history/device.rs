//! What is known of the device of a rank: when it had nothing to do, and what it did for operations.
//!
//! A program gives its device work and goes on. So a wait of the program costs nothing as long as the device has work
//! left from before. Front ends measure that on the device: a *pause* is a time in which the program gave its device
//! nothing, and the end of it, in which the device had nothing left either, is what is lost. In the lane of the rank,
//! the part before it is work. What a device does for a phase that is over for the program is a phase of the rank, too.
//!
//! **Invariant:** a lane without pauses stays as it is. Only what the program loses by itself (input, own code,
//! checkpoints) can lie behind its device's work; what it is blocked in is known from the operation.

use std::collections::BTreeMap;

use super::{Activity, Phase, Stretch, lane};
use farandole_trace::event::{DeviceCache, DeviceStep, Event, GroupNumber, ThreadId};
use farandole_trace::{DEVICE_ROW, Trace};

/// What is known of a rank's device; nothing where the rank has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceHistory {
    /// Whether it was watched: only then what the rank loses is what its device lacks.
    pub watched: bool,
    /// What it did for operations, in order.
    pub steps: Vec<DeviceTime>,
    /// What was asked of caches of device memory, in order.
    pub lookups: Vec<CacheLookups>,
}

/// How long a device took for its part of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceTime {
    /// When that was known.
    pub at_ns: u64,
    /// What it did.
    pub step: DeviceStep,
    /// How long.
    pub ns: u64,
}

/// What a cache was asked for since the last time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLookups {
    /// When.
    pub at_ns: u64,
    /// Which one.
    pub cache: DeviceCache,
    /// How often it was there.
    pub hits: u64,
    /// How often it was not.
    pub misses: u64,
}

/// A time in which a program gave its device nothing; the device had nothing left from `idle_from_ns` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pause {
    from_ns: u64,
    idle_from_ns: u64,
}

impl DeviceHistory {
    /// What a trace says of the rank's device.
    pub(super) fn of(trace: &Trace, clock: &dyn Fn(u64) -> u64) -> DeviceHistory {
        let mut device = DeviceHistory::default();
        let mut so_far: BTreeMap<(GroupNumber, DeviceCache), (u64, u64)> = BTreeMap::new();
        for record in &trace.records {
            let at_ns = clock(record.time_ns);
            match record.event {
                Event::DeviceIdle { .. } => device.watched = true,
                Event::DeviceTook { step, ns, .. } => device.steps.push(DeviceTime { at_ns, step, ns }),
                Event::CacheHits { group, cache, hits, misses } => {
                    let before = so_far.insert((group, cache), (hits, misses)).unwrap_or((0, 0));
                    // A group that was left and joined again counts from the beginning.
                    let since = if hits < before.0 || misses < before.1 { (0, 0) } else { before };
                    let (hits, misses) = (hits - since.0, misses - since.1);
                    device.lookups.push(CacheLookups { at_ns, cache, hits, misses });
                }
                _ => {}
            }
        }
        device
    }

    /// How long the device took for a step of operations.
    pub fn took_ns(&self, step: DeviceStep) -> u64 {
        self.steps.iter().filter(|time| time.step == step).map(|time| time.ns).sum()
    }

    /// What one of the caches was asked for: hits and misses.
    pub fn hits(&self, cache: DeviceCache) -> (u64, u64) {
        let of_cache = self.lookups.iter().filter(|lookups| lookups.cache == cache);
        of_cache.fold((0, 0), |(hits, misses), lookups| (hits + lookups.hits, misses + lookups.misses))
    }

    /// Keeps what a window has in it, and moves it there.
    pub(super) fn keep(&mut self, is_inside: impl Fn(u64) -> bool, moved: impl Fn(u64) -> u64) {
        self.steps.retain(|time| is_inside(time.at_ns));
        self.steps.iter_mut().for_each(|time| time.at_ns = moved(time.at_ns));
        self.lookups.retain(|lookups| is_inside(lookups.at_ns));
        self.lookups.iter_mut().for_each(|lookups| lookups.at_ns = moved(lookups.at_ns));
    }
}

/// The phases of the program, and those that are over for it and not for its device, by their beginning.
pub(super) fn with_phases(
    trace: &Trace,
    thread: ThreadId,
    there: (u64, u64),
    clock: &dyn Fn(u64) -> u64,
) -> Vec<Phase> {
    let mut phases = lane::phases(trace, thread, there, clock);
    let rows = trace.threads.iter().filter(|(_, name)| *name == DEVICE_ROW);
    let of_device: Vec<Phase> = rows.flat_map(|(&row, _)| lane::phases(trace, row, there, clock)).collect();
    if !of_device.is_empty() {
        phases.extend(of_device);
        phases.sort_by_key(|phase| (phase.from_ns, std::cmp::Reverse(phase.to_ns)));
    }
    phases
}

/// The pauses of the program's thread, in order.
pub(super) fn pauses(trace: &Trace, thread: ThreadId, clock: &dyn Fn(u64) -> u64) -> Vec<Pause> {
    let pause = |record: &farandole_trace::Record| match record.event {
        Event::DeviceIdle { since_ns, ns } if record.thread == thread => {
            // One that is longer than the pause is that of a clock that runs faster.
            let (from_ns, to_ns) = (clock(since_ns), clock(record.time_ns));
            (from_ns <= to_ns).then(|| Pause { from_ns, idle_from_ns: to_ns.saturating_sub(ns).max(from_ns) })
        }
        _ => None,
    };
    let mut pauses: Vec<Pause> = trace.records.iter().filter_map(pause).collect();
    pauses.sort_by_key(|pause| pause.from_ns);
    pauses
}

/// The lane, with work wherever the program loses time while its device still has some.
pub(super) fn work_behind(lane: Vec<Stretch>, pauses: &[Pause]) -> Vec<Stretch> {
    if pauses.is_empty() {
        return lane;
    }
    let mut behind: Vec<Stretch> = Vec::with_capacity(lane.len());
    let mut push = |from_ns: u64, to_ns: u64, activity: Activity| match behind.last_mut() {
        Some(last) if last.activity == activity => last.to_ns = to_ns,
        _ => behind.push(Stretch { from_ns, to_ns, activity }),
    };
    for Stretch { from_ns, to_ns, activity } in lane {
        let mut at_ns = from_ns;
        if matches!(activity, Activity::Input | Activity::Own | Activity::Checkpoint) {
            let first = pauses.partition_point(|pause| pause.idle_from_ns <= from_ns);
            for pause in pauses[first..].iter().take_while(|pause| pause.from_ns < to_ns) {
                let (begins, ends) = (pause.from_ns.clamp(at_ns, to_ns), pause.idle_from_ns.clamp(at_ns, to_ns));
                if begins < ends {
                    if at_ns < begins {
                        push(at_ns, begins, activity);
                    }
                    push(begins, ends, Activity::Compute);
                    at_ns = ends;
                }
            }
            if at_ns == to_ns {
                continue;
            }
        }
        push(at_ns, to_ns, activity);
    }
    behind
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(from_ns: u64, to_ns: u64, activity: Activity) -> Stretch {
        Stretch { from_ns, to_ns, activity }
    }

    #[test]
    fn what_lies_behind_work_of_the_device_is_work() {
        let blocked = Activity::Blocked(Some(3));
        let lane = vec![
            stretch(0, 10, Activity::Compute),
            stretch(10, 30, Activity::Input),
            stretch(30, 30, blocked),
            stretch(30, 50, Activity::Own),
            stretch(50, 60, blocked),
            stretch(60, 70, Activity::Input),
        ];
        assert_eq!(work_behind(lane.clone(), &[]), lane);
        let pause = |from_ns, idle_from_ns| Pause { from_ns, idle_from_ns };
        // The device has work until 25, until 38 and, in what the rank is blocked in, until 55.
        let pauses = [pause(10, 25), pause(30, 38), pause(45, 55), pause(60, 60)];
        assert_eq!(
            work_behind(lane, &pauses),
            [
                stretch(0, 25, Activity::Compute),
                stretch(25, 30, Activity::Input),
                stretch(30, 30, blocked),
                stretch(30, 38, Activity::Compute),
                stretch(38, 45, Activity::Own),
                stretch(45, 50, Activity::Compute),
                stretch(50, 60, blocked),
                stretch(60, 70, Activity::Input),
            ]
        );
    }
}
