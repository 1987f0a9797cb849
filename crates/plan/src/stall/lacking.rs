//! Signs that a rank lacks a request which others have made, because it has no gradient for it: it has gone on to its
//! next step, or its group of requests has another size.
//!
//! Signs, and no proof: only the program knows what is a gradient. Optimizers that say which gradients they have need
//! no signs (`agree::gradient_sets`).

use std::sync::Arc;

use super::Waiting;
use crate::request::Rank;

/// A rank has not made a request that others have made, and has gone on to one that has run before: it has begun the
/// next step. If the request is for a gradient, that rank has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Omission {
    /// The name that waits.
    pub name: Arc<str>,
    /// The rank of the group that has gone on without it.
    pub rank: Rank,
    /// What that rank has asked for since.
    pub instead: Arc<str>,
}

/// Two ranks have asked for groups of one name with different numbers of tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnevenGroups {
    /// The name of the groups.
    pub name: Arc<str>,
    /// A rank of the group that has asked for fewer tensors, and for how many.
    pub fewer: (Rank, u32),
    /// One that has asked for more.
    pub more: (Rank, u32),
}

/// For each stalled name and missing rank the oldest name that this rank has asked for, that has run before, and that a
/// rank which waits for the first has not asked for: that rank is held up, the missing one is ahead. Where the first
/// has run before, too, the one that was asked for later is the one of the next step.
pub(super) fn omissions(stalled: &[Waiting], waiting: &[Waiting]) -> Vec<Omission> {
    let mut found = Vec::new();
    for request in stalled {
        for rank in &request.missing {
            let is_ahead = |other: &&Waiting| {
                other.has_run
                    && (!request.has_run || (other.seen, other.since) > (request.seen, request.since))
                    && other.asked.contains(rank)
                    && other.missing.iter().any(|held_up| request.asked.contains(held_up))
            };
            let instead = waiting.iter().filter(is_ahead).min_by_key(|other| (other.since, &other.name));
            if let Some(instead) = instead.map(|other| Arc::clone(&other.name)) {
                found.push(Omission { name: Arc::clone(&request.name), rank: *rank, instead });
            }
        }
    }
    found
}

/// For each name of a group of which ranks have asked for different numbers of tensors, two such ranks.
pub(super) fn uneven_groups(stalled: &[Waiting], waiting: &[Waiting]) -> Vec<UnevenGroups> {
    let mut found: Vec<UnevenGroups> = Vec::new();
    for request in stalled {
        let (Some((name, members)), Some(asked)) = (group_of(&request.name), request.asked.first()) else { continue };
        if found.iter().any(|uneven| &*uneven.name == name) {
            continue;
        }
        let other = waiting.iter().find_map(|other| {
            let (_, count) = group_of(&other.name).filter(|(other, count)| *other == name && *count != members)?;
            Some((*other.asked.iter().find(|rank| request.missing.contains(rank))?, count))
        });
        if let Some((other, count)) = other {
            let (one, two) = ((*asked, members), (other, count));
            let (fewer, more) = if count < members { (two, one) } else { (one, two) };
            found.push(UnevenGroups { name: name.into(), fewer, more });
        }
    }
    found
}

/// The name of a group and its number of tensors, out of the name of one of them, which front ends make by
/// Horovod's pattern: `name_3of8`.
pub(super) fn group_of(name: &str) -> Option<(&str, u32)> {
    let (name, part) = name.rsplit_once('_')?;
    let (number, members) = part.split_once("of")?;
    let _: u32 = number.parse().ok()?;
    Some((name, members.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(name: &str, asked: u32, seen: u64, has_run: bool) -> Waiting {
        let (asked, missing) = (vec![Rank(asked)], vec![Rank(1 - asked)]);
        Waiting { name: name.into(), asked, missing, seen, has_run, ..Waiting::default() }
    }

    #[test]
    fn the_rank_that_has_finished_more_is_the_one_ahead() {
        let waiting = [wait("bias", 0, 1, true), wait("weight", 1, 4, true)];
        let found = omissions(&waiting, &waiting);
        assert_eq!(found, [Omission { name: "bias".into(), rank: Rank(1), instead: "weight".into() }]);
    }

    /// Rank 1 may ask for the next before rank 0 asks for what rank 1 leaves out.
    #[test]
    fn a_new_name_is_left_out_also_where_the_other_rank_was_quicker() {
        let mut waiting = [wait("metric", 0, 4, false), wait("weight", 1, 4, true)];
        waiting[0].since = std::time::Duration::from_millis(1);
        let found = omissions(&waiting, &waiting);
        assert_eq!(found, [Omission { name: "metric".into(), rank: Rank(1), instead: "weight".into() }]);
    }

    #[test]
    fn groups_of_different_sizes_are_found_by_their_names() {
        assert_eq!(group_of("grad_0_3of12"), Some(("grad_0", 12)));
        assert_eq!((group_of("layer_of"), group_of("proof"), group_of("w_xof2")), (None, None, None));
        let waiting = [wait("grad_1of4", 0, 0, false), wait("grad_1of2", 1, 0, false), wait("grad_2of4", 0, 0, false)];
        let found = uneven_groups(&waiting, &waiting);
        assert_eq!(found, [UnevenGroups { name: "grad".into(), fewer: (Rank(1), 2), more: (Rank(0), 4) }]);
    }
}
