//! What a process has seen of another one, and what a member records of its votes.
//!
//! A [`VoteRecord`] makes the end of a process complete evidence although its last messages are lost: a member records
//! whom a vote leaves out before it sends any message of that vote, where its agent can read it after the process has
//! ended.
//!
//! Not here: which event of the kernel is which evidence (`farandole-cluster`).

use super::MemberId;

/// What was seen of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LossEvidence {
    /// Its process has ended, and all its messages were received. Only a kernel that both processes share can prove
    /// this.
    Ended,
    /// Its process has ended, and this is its record. Messages may be lost.
    Reaped(VoteRecord),
    /// Its process has ended. Messages may be lost, and its votes are unknown.
    Dead,
    /// A connection to it ended, and messages may be lost. The process may be alive: it is suspected if it is not heard
    /// within two heartbeats, although it is redialled.
    Broken,
    /// Another thread or process has trouble with it: it is suspected if it is not heard within two heartbeats.
    Doubted,
}

/// The members without which a member has voted, in the last base in which it has voted without any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VoteRecord {
    /// The generation to be changed; 0: it has never voted without a member.
    pub base: u64,
    /// In the order of their numbers; over all ballots of the base.
    pub left_out: Vec<MemberId>,
}

impl VoteRecord {
    /// Adds the members that a vote leaves out. Returns whether the record has changed.
    pub(super) fn add(&mut self, base: u64, left_out: &[MemberId]) -> bool {
        if left_out.is_empty() {
            return false;
        }
        if base > self.base {
            *self = VoteRecord { base, left_out: Vec::new() };
        }
        let before = self.left_out.len();
        self.left_out.extend(left_out);
        self.left_out.sort_unstable();
        self.left_out.dedup();
        self.left_out.len() > before
    }

    /// Whether a vote of this base has left the member out.
    pub(super) fn leaves_out(&self, member: MemberId, base: u64) -> bool {
        self.base == base && self.left_out.contains(&member)
    }

    /// Whether the record proves that its owner has not voted in this base without the member.
    pub(super) fn clears(&self, member: MemberId, base: u64) -> bool {
        self.base < base || self.base == base && !self.left_out.contains(&member)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_all_ballots_of_its_base_and_forgets_earlier_bases() {
        let mut record = VoteRecord::default();
        assert!(!record.add(3, &[]) && record.base == 0, "a vote with all members changes nothing");
        assert!(record.add(3, &[MemberId(2)]) && record.add(3, &[MemberId(1), MemberId(2)]));
        assert_eq!(record, VoteRecord { base: 3, left_out: vec![MemberId(1), MemberId(2)] });
        assert!(!record.add(3, &[MemberId(1)]) && !record.add(4, &[]));
        assert!(record.clears(MemberId(1), 4) && record.clears(MemberId(0), 3), "not left out");
        assert!(!record.clears(MemberId(1), 3) && record.leaves_out(MemberId(1), 3));
        assert!(!record.clears(MemberId(0), 2), "votes of base 2 are forgotten");
        assert!(record.add(5, &[MemberId(7)]) && !record.leaves_out(MemberId(1), 3));
    }
}
