//! The rendezvous of ranks on several hosts: which hosts have gathered all their ranks for this epoch, and which ranks
//! are missing when one has waited long enough.
//!
//! Every agent gathers the ranks of its host. When all hosts have gathered, all ranks get all messages, and the next
//! epoch begins: a job may come together any number of times, and a rank that arrives for the next epoch while another
//! is still in this one waits.
//!
//! **Invariant:** agents and launcher count epochs alike, because both count what the launcher has sent: an agent
//! begins the next epoch when it gets all messages, even if a rank has left meanwhile. Such a rank's withdrawal carries
//! the epoch that it had arrived for, so the launcher sees that it crossed its own message.

use super::super::message::Directive;

/// The meeting of this epoch.
#[derive(Debug)]
pub(super) struct RendezvousGather {
    epoch: u64,
    size: usize,
    parts: Vec<Part>,
}

/// One host's part of it.
#[derive(Clone, Debug, Default)]
struct Part {
    /// What its ranks have brought, when all have come.
    gathered: Option<Vec<(u32, Vec<u8>)>>,
    /// Somebody there has waited long enough and wants to know who is missing.
    overdue: bool,
    /// Who is missing there, as far as it was asked.
    missing: Option<Vec<u32>>,
}

/// Whether a rank that left the table was still awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// It may come again.
    InTime,
    /// All others have been told of it.
    TooLate,
}

impl RendezvousGather {
    pub(super) fn new(size: usize, hosts: usize) -> RendezvousGather {
        RendezvousGather { epoch: 0, size, parts: vec![Part::default(); hosts] }
    }

    /// All ranks of a host have come. What all ranks have brought, in rank order, if it was the last.
    pub(super) fn gathered(&mut self, host: usize, epoch: u64, messages: Vec<(u32, Vec<u8>)>) -> Option<Vec<Vec<u8>>> {
        if epoch != self.epoch {
            return None;
        }
        self.parts[host].gathered = Some(messages);
        if self.parts.iter().any(|part| part.gathered.is_none()) {
            return None;
        }
        let mut everybody = vec![Vec::new(); self.size];
        for (rank, message) in self.parts.iter_mut().filter_map(|part| part.gathered.take()).flatten() {
            if let Some(place) = everybody.get_mut(rank as usize) {
                *place = message;
            }
        }
        self.epoch += 1;
        self.parts.fill(Part::default());
        Some(everybody)
    }

    /// A rank has left its host's full table.
    pub(super) fn withdrawn(&mut self, host: usize, epoch: u64) -> Left {
        if epoch < self.epoch {
            return Left::TooLate;
        }
        self.parts[host].gathered = None;
        Left::InTime
    }

    /// A rank of a host has waited long enough. Says what to tell whom.
    pub(super) fn overdue(&mut self, host: usize, epoch: u64, missing: Vec<u32>) -> Vec<(usize, Directive)> {
        if epoch != self.epoch {
            return Vec::new();
        }
        (self.parts[host].overdue, self.parts[host].missing) = (true, Some(missing));
        let mut told = Vec::new();
        for (host, part) in self.parts.iter_mut().enumerate() {
            if part.gathered.is_some() {
                part.missing = Some(Vec::new());
            } else if part.missing.is_none() {
                told.push((host, Directive::Count));
            }
        }
        if told.is_empty() { self.answer() } else { told }
    }

    /// A host says who is missing there. Says what to tell whom.
    pub(super) fn counted(&mut self, host: usize, epoch: u64, missing: Vec<u32>) -> Vec<(usize, Directive)> {
        if epoch != self.epoch {
            return Vec::new();
        }
        self.parts[host].missing = Some(missing);
        self.answer()
    }

    /// When everything is known, whoever waits for it is told, and the counting is forgotten: ranks come and go.
    fn answer(&mut self) -> Vec<(usize, Directive)> {
        if self.parts.iter().any(|part| part.missing.is_none()) {
            return Vec::new();
        }
        let mut missing: Vec<u32> = self.parts.iter_mut().filter_map(|part| part.missing.take()).flatten().collect();
        missing.sort_unstable();
        let answer = Directive::Refuse(missing);
        let parts = self.parts.iter_mut().enumerate();
        parts.filter_map(|(host, part)| std::mem::take(&mut part.overdue).then(|| (host, answer.clone()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_comes_for_the_next_epoch_waits_for_those_still_in_this_one() {
        let mut gather = RendezvousGather::new(3, 2);
        for epoch in 0..3 {
            assert_eq!(gather.gathered(1, epoch, vec![(2, vec![2]), (1, vec![1])]), None);
            assert_eq!(gather.gathered(0, epoch, vec![(0, vec![0])]), Some(vec![vec![0], vec![1], vec![2]]));
        }
        assert_eq!(gather.gathered(0, 2, vec![(0, vec![0])]), None, "an echo of the epoch before is no arrival");
        assert_eq!(gather.gathered(1, 3, vec![(1, vec![]), (2, vec![])]), None);
    }

    #[test]
    fn a_rank_that_withdraws_is_awaited_again() {
        let mut gather = RendezvousGather::new(2, 2);
        assert_eq!(gather.gathered(0, 0, vec![(0, vec![7])]), None);
        assert_eq!(gather.withdrawn(0, 0), Left::InTime);
        assert_eq!(gather.gathered(1, 0, vec![(1, vec![1])]), None, "rank 0 has gone");
        assert_eq!(gather.gathered(0, 0, vec![(0, vec![8])]), Some(vec![vec![8], vec![1]]));
        assert_eq!(gather.withdrawn(0, 0), Left::TooLate);
    }

    #[test]
    fn whoever_has_waited_long_enough_hears_who_is_missing_anywhere() {
        let mut gather = RendezvousGather::new(6, 3);
        assert_eq!(gather.gathered(0, 0, vec![(0, vec![]), (1, vec![])]), None);
        let asked = gather.overdue(0, 0, Vec::new());
        assert_eq!(asked, [(1, Directive::Count), (2, Directive::Count)]);
        assert_eq!(gather.counted(2, 0, vec![5]), []);
        assert_eq!(
            gather.overdue(1, 0, vec![3]),
            [(0, Directive::Refuse(vec![3, 5])), (1, Directive::Refuse(vec![3, 5]))]
        );
        assert_eq!(gather.counted(2, 0, vec![5]), [], "everybody has been answered");
    }
}
