//! The partition rule: who may decide without whom.

use super::MemberId;

/// Whether those who take part may decide for a base: of its members whose loss is not certain they are more than half,
/// or half with the first of them. The module's text says why.
pub fn may_decide(
    base: impl Iterator<Item = MemberId>,
    takes_part: impl Fn(MemberId) -> bool,
    is_certainly_lost: impl Fn(MemberId) -> bool,
) -> bool {
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
    present > suspected || present == suspected && first_is_present == Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(members: u64, present: &[u64], certain: &[u64]) -> bool {
        let base = (0..members).map(MemberId);
        may_decide(base, |member| present.contains(&member.0), |member| certain.contains(&member.0))
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
                let goes_on = |side: u64| {
                    let of = |wanted: &[u64]| {
                        let all = 0..u64::from(members);
                        all.filter(|member| wanted.contains(&kinds[*member as usize])).collect::<Vec<_>>()
                    };
                    decide(u64::from(members), &of(&[side]), &of(&[3 + side, 5]))
                };
                assert!(!(goes_on(0) && goes_on(1)), "{kinds:?}");
            }
        }
    }
}
