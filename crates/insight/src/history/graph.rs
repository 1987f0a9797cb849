//! What a graph waits for.
//!
//! Where a framework runs collectives as ops of a graph (TensorFlow, JAX; MXNet, whose engine makes one of all calls),
//! no thread waits for a single request: the program's thread waits for the graph, and the graph's own threads go on
//! with whatever is ready. So its waits are read from what was under way. A graph that has requests under way and
//! submits no further one until all are done has nothing else to do: from the last submission on it waits, for one
//! operation after the other. Before that it computes, and what travels meanwhile is overlapped.
//!
//! A graph may still compute behind its last submission, where the results of collectives are not needed. Then this
//! takes work for waiting; in the step of a data-parallel job there is hardly any such work.

use std::collections::HashSet;

use super::build::{Key, Wait};
use farandole_trace::event::{GroupNumber, NameId};

/// Values of the setting "framework" for which this holds.
const FRAMEWORKS: [&str; 3] = ["tensorflow", "jax", "mxnet"];

/// Whether collectives are ops of graphs there.
pub(super) fn has_graphs(framework: Option<&str>) -> bool {
    framework.is_some_and(|framework| FRAMEWORKS.contains(&framework))
}

/// The requests of one rank that are under way.
#[derive(Default)]
pub(super) struct UnderWay {
    requests: HashSet<(GroupNumber, NameId)>,
    /// When the last of them was submitted.
    since_ns: u64,
    /// Operations that have ended since, with the moment of their last request.
    ended: Vec<(Key, u64)>,
}

impl UnderWay {
    pub(super) fn submit(&mut self, at_ns: u64, request: (GroupNumber, NameId)) {
        self.requests.insert(request);
        self.since_ns = at_ns;
        self.ended.clear();
    }

    /// A request was refused.
    pub(super) fn fail(&mut self, request: (GroupNumber, NameId)) {
        self.requests.remove(&request);
    }

    /// A request is done. If it was the last one, what was waited for.
    pub(super) fn finish(&mut self, at_ns: u64, key: Key, name: NameId) -> Vec<Wait> {
        if !self.requests.remove(&(key.0, name)) {
            return Vec::new();
        }
        match self.ended.last_mut() {
            Some((last, ended_ns)) if *last == key => *ended_ns = at_ns,
            _ => self.ended.push((key, at_ns)),
        }
        if !self.requests.is_empty() {
            return Vec::new();
        }
        let mut from_ns = self.since_ns;
        let wait = |(key, ended_ns): (Key, u64)| {
            let to_ns = ended_ns.max(from_ns);
            Wait { from_ns: std::mem::replace(&mut from_ns, to_ns), to_ns, key: Some(key) }
        };
        self.ended.drain(..).map(wait).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farandole_trace::event::OperationNumber;

    fn spans(waits: Vec<Wait>) -> Vec<(u64, u64, u64)> {
        waits.into_iter().map(|wait| (wait.from_ns, wait.to_ns, wait.key.unwrap().1.0)).collect()
    }

    #[test]
    fn a_graph_waits_from_its_last_submission_on_for_one_operation_after_the_other() {
        let (group, mut under_way) = (GroupNumber::WORLD, UnderWay::default());
        let key = |number| (group, OperationNumber(number));
        under_way.submit(10, (group, NameId(1)));
        under_way.submit(20, (group, NameId(2)));
        assert_eq!(spans(under_way.finish(30, key(0), NameId(1))), []);
        // It computed in between: what travelled until here was overlapped.
        under_way.submit(50, (group, NameId(3)));
        under_way.submit(60, (group, NameId(4)));
        assert_eq!(spans(under_way.finish(70, key(1), NameId(2))), []);
        assert_eq!(spans(under_way.finish(80, key(2), NameId(3))), []);
        assert_eq!(spans(under_way.finish(81, key(2), NameId(4))), [(60, 70, 1), (70, 81, 2)]);
        under_way.submit(90, (group, NameId(1)));
        assert_eq!(spans(under_way.finish(95, key(3), NameId(1))), [(90, 95, 3)]);
    }

    #[test]
    fn requests_that_fail_or_were_not_seen_to_begin_are_not_waited_for() {
        let (group, mut under_way) = (GroupNumber::WORLD, UnderWay::default());
        under_way.submit(10, (group, NameId(1)));
        under_way.submit(10, (group, NameId(2)));
        under_way.fail((group, NameId(1)));
        assert_eq!(spans(under_way.finish(20, (group, OperationNumber(0)), NameId(9))), []);
        assert_eq!(spans(under_way.finish(30, (group, OperationNumber(1)), NameId(2))), [(10, 30, 1)]);
    }

    #[test]
    fn graphs_are_those_of_frameworks_that_have_them() {
        assert!(["tensorflow", "jax", "mxnet"].iter().all(|name| has_graphs(Some(name))));
        assert!(!has_graphs(Some("torch")) && !has_graphs(None));
    }
}
