//! How long a rank worked in each phase.
//!
//! Phases contain each other; a moment belongs to the innermost one. Work that lies in no phase has no name.

use std::collections::BTreeMap;

use super::{Activity, Phase, RankHistory};

impl RankHistory {
    /// Time in which the program worked, by the innermost phase; `None` for work outside of all phases.
    pub fn useful_by_phase(&self) -> BTreeMap<Option<&str>, u64> {
        let innermost = innermost(&self.phases);
        let mut sums: BTreeMap<Option<&str>, u64> = BTreeMap::new();
        for work in self.lane.iter().filter(|stretch| stretch.activity == Activity::Compute) {
            let mut unnamed_ns = work.ns();
            let first = innermost.partition_point(|&(_, to_ns, _)| to_ns <= work.from_ns);
            for &(from_ns, to_ns, name) in innermost[first..].iter().take_while(|(from_ns, ..)| *from_ns < work.to_ns) {
                let ns = to_ns.min(work.to_ns) - from_ns.max(work.from_ns);
                *sums.entry(Some(name)).or_default() += ns;
                unnamed_ns -= ns;
            }
            *sums.entry(None).or_default() += unnamed_ns;
        }
        sums
    }
}

/// Beginning, end and name of the innermost phase at a time.
type Part<'a> = (u64, u64, &'a str);

/// The innermost phase at every moment that has one, in order and without overlap.
fn innermost(phases: &[Phase]) -> Vec<Part<'_>> {
    let (mut parts, mut open, mut at_ns) = (Vec::new(), Vec::new(), 0);
    for phase in phases {
        go_on(phase.from_ns, &mut at_ns, &mut open, &mut parts);
        open.push(phase);
    }
    go_on(u64::MAX, &mut at_ns, &mut open, &mut parts);
    parts
}

/// Goes on until a moment, and closes what ends before it.
fn go_on<'a>(until_ns: u64, at_ns: &mut u64, open: &mut Vec<&'a Phase>, parts: &mut Vec<Part<'a>>) {
    while let Some(&phase) = open.last() {
        let end_ns = phase.to_ns.min(until_ns);
        if *at_ns < end_ns {
            parts.push((*at_ns, end_ns, phase.name.as_str()));
            *at_ns = end_ns;
        }
        if phase.to_ns > until_ns {
            break;
        }
        open.pop();
    }
    *at_ns = (*at_ns).max(until_ns);
}

#[cfg(test)]
mod tests {
    use super::super::{PhaseKind, Stretch};
    use super::*;

    #[test]
    fn work_belongs_to_the_innermost_phase() {
        let phase =
            |name: &str, from_ns, to_ns| Phase { name: name.to_owned(), kind: PhaseKind::Named, from_ns, to_ns };
        let stretch = |from_ns, to_ns, activity| Stretch { from_ns, to_ns, activity };
        let rank = RankHistory {
            phases: vec![phase("outer", 10, 50), phase("inner", 20, 30), phase("last", 60, 70)],
            lane: vec![
                stretch(0, 25, Activity::Compute),
                stretch(25, 28, Activity::Input),
                stretch(28, 80, Activity::Compute),
            ],
            ..RankHistory::default()
        };
        let sums: Vec<(Option<&str>, u64)> = rank.useful_by_phase().into_iter().collect();
        assert_eq!(sums, [(None, 10 + 10 + 10), (Some("inner"), 7), (Some("last"), 10), (Some("outer"), 30)]);
    }
}
