//! The partition rule: which members may decide without which.
//!
//! Of the members of the base whose loss is not certain more than half take part, or exactly half and the witness. In a
//! generation without a witness the half that has the first of them may decide. The text of `super` has the proof.

use std::cmp::Ordering;

use super::MemberId;

/// How the members that take part compare with those that are suspected. Members whose loss is certain do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quorum {
    /// More than half take part.
    Majority,
    /// Exactly half take part.
    Tie {
        /// Whether the first of the members is among them.
        has_first: bool,
    },
    /// Less than half take part.
    Minority,
}

impl Quorum {
    /// Counts the members of a base.
    pub fn of(
        base: impl Iterator<Item = MemberId>,
        takes_part: impl Fn(MemberId) -> bool,
        is_certainly_lost: impl Fn(MemberId) -> bool,
    ) -> Quorum {
        let (mut present, mut suspected, mut first_is_present) = (0, 0, None);
        for member in base.filter(|member| !is_certainly_lost(*member)) {
            let is_present = takes_part(member);
            first_is_present = first_is_present.or(Some(is_present));
            if is_present {
                present += 1;
            } else {
                suspected += 1;
            }
        }
        match present.cmp(&suspected) {
            Ordering::Greater => Quorum::Majority,
            Ordering::Equal => Quorum::Tie { has_first: first_is_present == Some(true) },
            Ordering::Less => Quorum::Minority,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(members: u64, present: &[u64], certain: &[u64]) -> Quorum {
        let base = (0..members).map(MemberId);
        Quorum::of(base, |member| present.contains(&member.0), |member| certain.contains(&member.0))
    }

    /// The rule of a generation without a witness.
    fn decide(members: u64, present: &[u64], certain: &[u64]) -> bool {
        matches!(count(members, present, certain), Quorum::Majority | Quorum::Tie { has_first: true })
    }

    #[test]
    fn of_two_the_first_goes_on_alone_and_the_second_only_if_the_loss_is_certain() {
        assert!(decide(2, &[0], &[]));
        assert!(!decide(2, &[1], &[]));
        assert!(decide(2, &[1], &[0]));
    }

    #[test]
    fn the_last_of_many_goes_on_if_all_others_are_certainly_lost() {
        assert!(decide(8, &[5], &[0, 1, 2, 3, 4, 6, 7]));
        assert!(decide(8, &[5], &[0, 1, 2, 3, 4, 6]), "half, with the first");
        assert!(!decide(8, &[7], &[0, 1, 2, 3, 4, 6]), "half, without the first");
    }

    #[test]
    fn the_dead_do_not_help_both_sides_of_a_cut() {
        assert!(!decide(5, &[2], &[0, 1]), "one against two");
        assert!(decide(5, &[3, 4], &[0, 1]));
    }

    /// No two sides that suspect each other may both decide, whoever else is certainly lost to either of them.
    #[test]
    fn of_two_sides_at_most_one_decides() {
        for members in 2..=6_u32 {
            for code in 0..6_u64.pow(members) {
                // Each member is on side 0, on side 1, or on neither: then certainly lost to nobody (2), to one (3, 4)
                // or to both (5).
                let kinds: Vec<u64> = (0..members).map(|member| code / 6_u64.pow(member) % 6).collect();
                let of = |wanted: &[u64]| {
                    let all = 0..u64::from(members);
                    all.filter(|member| wanted.contains(&kinds[*member as usize])).collect::<Vec<_>>()
                };
                let sides = [0, 1].map(|side| count(u64::from(members), &of(&[side]), &of(&[3 + side, 5])));
                let goes_on = |quorum| matches!(quorum, Quorum::Majority | Quorum::Tie { has_first: true });
                assert!(!(goes_on(sides[0]) && goes_on(sides[1])), "{kinds:?}");
                // With a witness both sides can only tie, and then the witness is a common acceptor.
                let may_try = |quorum| quorum != Quorum::Minority;
                let both_tie = sides.iter().all(|quorum| matches!(quorum, Quorum::Tie { .. }));
                assert!(both_tie || !(may_try(sides[0]) && may_try(sides[1])), "{kinds:?}");
            }
        }
    }
}
