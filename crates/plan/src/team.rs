//! The ranks that carry out one phase of an algorithm together, and the cutting of spans into segments.
//!
//! An algorithm is written for a *team*: members numbered from zero, one of which is this rank. A flat algorithm has
//! one team of all ranks; a hierarchical one has a team for each host and one across hosts for each shard. The order of
//! the members is chosen so that neighbours share a host wherever possible, because most algorithms send most between
//! neighbours.

use crate::request::Rank;
use crate::schedule::Span;
use crate::topology::Topology;

/// Members of one phase, and which of them this rank is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Team {
    members: Vec<Rank>,
    /// Position of this rank among the members.
    pub(crate) me: usize,
}

impl Team {
    /// These members, of which `me` is one.
    pub(crate) fn new(members: Vec<Rank>, me: Rank) -> Team {
        let me = members.iter().position(|&member| member == me).expect("a rank is a member of its own team");
        Team { members, me }
    }

    /// All ranks, host after host: a ring in this order enters and leaves every host once.
    pub(crate) fn by_host(topology: &Topology, me: Rank) -> Team {
        Team::new(ranks_by_host(topology), me)
    }

    /// All ranks with `first` in front, then the rest of its host, then host after host.
    pub(crate) fn by_host_from(topology: &Topology, first: Rank, me: Rank) -> Team {
        let home = topology.host_of(first);
        let mut members = vec![first];
        members.extend(topology.ranks_on(home).iter().copied().filter(|&rank| rank != first));
        for host in (0..topology.hosts()).filter(|&host| host != home) {
            members.extend_from_slice(topology.ranks_on(host));
        }
        Team::new(members, me)
    }

    /// Number of members.
    pub(crate) fn size(&self) -> usize {
        self.members.len()
    }

    /// The rank of a member.
    pub(crate) fn rank(&self, member: usize) -> Rank {
        self.members[member]
    }

    /// Position of the member `distance` places after this one, around the circle.
    pub(crate) fn after(&self, distance: usize) -> usize {
        (self.me + distance) % self.size()
    }

    /// Position of the member `distance` places before this one, around the circle.
    pub(crate) fn before(&self, distance: usize) -> usize {
        (self.me + self.size() - distance % self.size()) % self.size()
    }
}

/// All ranks in the order of their hosts.
pub(crate) fn ranks_by_host(topology: &Topology) -> Vec<Rank> {
    (0..topology.hosts()).flat_map(|host| topology.ranks_on(host).iter().copied()).collect()
}

/// Cuts a span into segments of at most `segment_elems`, nearly equal, so that no segment is a small remainder. An
/// empty span has no segments, which is how empty messages are left out on both sides alike.
pub(crate) fn segments(span: Span, segment_elems: u64) -> impl DoubleEndedIterator<Item = Span> + ExactSizeIterator {
    let count = span.len.div_ceil(segment_elems.max(1)) as usize;
    (0..count).map(move |part| span.piece(part, count))
}

/// Joins neighbouring spans that touch, leaving out empty ones, so that they travel as one message.
pub(crate) fn joined(spans: impl IntoIterator<Item = Span>) -> Vec<Span> {
    let mut joined: Vec<Span> = Vec::new();
    for span in spans.into_iter().filter(|span| !span.is_empty()) {
        match joined.last_mut() {
            Some(last) if last.end() == span.start => last.len += span.len,
            _ => joined.push(span),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_cover_the_span_and_are_nearly_equal() {
        let lens: Vec<u64> = segments(Span::between(3, 13), 4).map(|segment| segment.len).collect();
        assert_eq!(lens, [4, 3, 3]);
        assert_eq!(segments(Span::between(5, 5), 4).len(), 0);
    }

    #[test]
    fn members_start_with_the_first_rank_and_stay_together_by_host() {
        let topology = Topology::from_host_names(&["a", "b", "a", "b", "c"]);
        let team = Team::by_host_from(&topology, Rank(3), Rank(4));
        assert_eq!(team.members, [Rank(3), Rank(1), Rank(0), Rank(2), Rank(4)]);
        assert_eq!(team.me, 4);
    }

    #[test]
    fn touching_spans_are_joined_and_empty_ones_dropped() {
        let spans = [Span::between(0, 2), Span::between(2, 2), Span::between(2, 5), Span::between(7, 8)];
        assert_eq!(joined(spans), [Span::between(0, 5), Span::between(7, 8)]);
    }
}
