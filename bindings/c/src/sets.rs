//! Process sets: adding, removing, and questions about them.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::Arc;

use farandole::{GroupId, Rank, World};

use crate::job;
use crate::lifecycle::{asked, current, int, read_rank};
use crate::pointer::{Place, array, put, put_list};
use crate::status::{Fault, Status};

/// A process set by its number.
pub(crate) fn read_set(number: i32) -> Result<GroupId, Fault> {
    let unknown = || Fault::new(Status::UnknownProcessSet, format!("there is no process set {number}"));
    u32::try_from(number).map(GroupId).map_err(|_| unknown())
}

/// The members of a set, in order.
pub(crate) fn members(world: &World, set: GroupId) -> Result<Arc<[Rank]>, Fault> {
    Ok(world.engine().group(set)?)
}

/// The number inside a set of a rank of the world.
pub(crate) fn rank_in_set(members: &[Rank], rank: i32, set: GroupId) -> Result<Rank, Fault> {
    let number = members.iter().position(|member| i64::from(member.0) == i64::from(rank));
    number.map(Rank::from).ok_or_else(|| Fault::argument(format!("rank {rank} is not in the process set {set}")))
}

/// The numbers of all sets that the world has made; those that only their members know are theirs alone.
pub(crate) fn numbers(world: &World) -> Vec<i32> {
    let groups = world.engine().groups();
    groups.iter().filter_map(|(group, _)| i32::try_from(group.0).ok()).collect()
}

/// The ranks of an array, as the engine wants them.
///
/// # Safety
/// Null, or so many ranks.
pub(crate) unsafe fn read_ranks(ranks: *const i32, count: usize) -> Result<Vec<Rank>, Fault> {
    // SAFETY: promised by the caller.
    let ranks = unsafe { array(ranks, count, "ranks") }?;
    ranks.iter().map(|&rank| read_rank(rank).map(Rank)).collect()
}

/// Adds a set and says its number.
pub(crate) fn add(ranks: &[Rank]) -> Result<i32, Fault> {
    let group = job::change_groups(current()?, |world| world.engine().add_group(ranks))?;
    int(group.0 as usize)
}

/// Removes a set.
pub(crate) fn remove(set: GroupId) -> Result<(), Fault> {
    Ok(job::change_groups(current()?, |world| world.engine().remove_group(set))?)
}

exported! {
    /// Makes a process set. All ranks call this together.
    fn farandole_add_process_set(ranks: *const i32, count: usize, process_set: Place<'_, i32>) {
        // SAFETY: promised by the caller.
        let ranks = unsafe { read_ranks(ranks, count) }?;
        if process_set.is_none() {
            return Err(crate::pointer::null("process_set"));
        }
        put(process_set, "process_set", add(&ranks)?)
    }
}

exported! {
    /// Ends a process set. All ranks call this together.
    fn farandole_remove_process_set(process_set: i32) { remove(read_set(process_set)?) }
}

exported! {
    /// Number of members.
    fn farandole_process_set_size(process_set: i32) -> i32, otherwise -1; {
        int(members(&asked()?.world, read_set(process_set)?)?.len())
    }
}

exported! {
    /// This rank's number among the members.
    fn farandole_process_set_rank(process_set: i32) -> i32, otherwise -1; {
        let (job, set) = (asked()?, read_set(process_set)?);
        match job.world.engine().rank_in(set)? {
            Some(rank) => int(rank.index()),
            None => Err(farandole::EngineError::ForeignGroup(set).into()),
        }
    }
}

exported! {
    /// Whether this rank is a member.
    fn farandole_process_set_included(process_set: i32) -> c_int, otherwise -1; {
        Ok(c_int::from(asked()?.world.engine().rank_in(read_set(process_set)?)?.is_some()))
    }
}

exported! {
    /// The numbers of all process sets.
    fn farandole_process_set_ids(ids: *mut i32, capacity: usize, count: Place<'_, usize>) {
        let list = numbers(&asked()?.world);
        // SAFETY: promised by the caller.
        unsafe { put_list(&list, ids, capacity, count) }
    }
}

exported! {
    /// The members of a process set.
    fn farandole_process_set_ranks(process_set: i32, ranks: *mut i32, capacity: usize, count: Place<'_, usize>) {
        let members = members(&asked()?.world, read_set(process_set)?)?;
        let list: Vec<i32> = members.iter().map(|rank| int(rank.index())).collect::<Result<_, Fault>>()?;
        // SAFETY: promised by the caller.
        unsafe { put_list(&list, ranks, capacity, count) }
    }
}
