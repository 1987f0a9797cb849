//! Groups of ranks that come and go while the engine runs.
//!
//! All ranks of the world add and remove groups together and in the same order; they make sure by collectives of the
//! world that they mean the same members and that every member has made its connections.
//!
//! Where only the members know of a group (`torch.distributed`), they *join* and *leave* it without the others. Its
//! number must then come from outside.

use crate::completion::Slot;
use crate::connector::number_in;
use crate::driver::Command;
use crate::driver_lock::Push;
use crate::engine::{Engine, Forming};
use crate::error::{Error, Result};
use crate::group::Group;
use crate::record::group::GroupRecord;
use crate::start::{accelerators, join_planes, settings};
use crate::submission::Submission;
use farandole_plan::plane::DeviceReach;
use farandole_plan::{Collective, Device, Dtype, GroupId, Rank, Request};
use farandole_tensor::Region;
use std::sync::{Arc, PoisonError};

impl Engine {
    /// Makes a group of these world ranks. All ranks of the world call this, members or not, with the same ranks and
    /// in the same order among other additions and removals. The group gets the lowest number that is free.
    ///
    /// # Errors
    /// [`Error::InvalidGroup`] if these ranks do not make a group or the ranks do not ask for the same one,
    /// [`Error::ExistingGroup`] if there is one of exactly these ranks.
    pub fn add_group(&self, ranks: &[Rank]) -> Result<GroupId> {
        let sorted = self.checked_members(ranks)?;
        let mut forming = self.forming.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = self.shared.tensor_table.find(&sorted) {
            return Err(Error::ExistingGroup(group));
        }
        forming.rounds += 1;
        let (group, round) = (self.shared.tensor_table.lowest_free(), GroupId(forming.rounds));
        self.agree_on_members(round, &sorted)?;
        let me = sorted.contains(&self.rank).then(|| number_in(&sorted, self.rank));
        let ranks: Arc<[Rank]> = sorted.into();
        let met = me.map(|_| self.meet(&mut forming, group, round, &ranks));
        self.agree_on_success(round, matches!(met, Some(Err(_))))?;
        let device_reach = if let Some(Ok(met)) = &met { met.device_reach() } else { DeviceReach::default() };
        self.shared.tensor_table.add(group, ranks, me, device_reach);
        if let Some(Ok(met)) = met {
            let _ = self.shared.driver_lock.push(Command::AddGroup(Box::new(met)), Push::Ringing);
        }
        Ok(group)
    }

    /// Makes a group of these world ranks, among which this one is, without the other ranks of the world: its members
    /// call this, each with the same number, which the job has not used before. Returns when all of them have met.
    ///
    /// # Errors
    /// [`Error::InvalidGroup`] if these ranks do not make a group, the number is not below 2^31, or the members do not
    /// meet; whatever ended the new group.
    pub fn join_group(&self, number: u32, ranks: &[Rank]) -> Result<GroupId> {
        let ranks: Arc<[Rank]> = self.checked_members(ranks)?.into();
        let invalid = |why: String| Error::InvalidGroup(why.into());
        if number & GroupId::JOINED != 0 || !ranks.contains(&self.rank) {
            return Err(invalid(format!(
                "rank {} cannot join a group of {ranks:?} with the number {number}",
                self.rank
            )));
        }
        let group = GroupId(GroupId::JOINED | number);
        let mut forming = self.forming.lock().unwrap_or_else(PoisonError::into_inner);
        let met = self
            .meet(&mut forming, group, group, &ranks)
            .map_err(|error| invalid(format!("the members of {ranks:?} did not meet: {error}")))?;
        drop(forming);
        let me = number_in(&ranks, self.rank);
        self.shared.tensor_table.add(group, ranks, Some(me), met.device_reach());
        let _ = self.shared.driver_lock.push(Command::AddGroup(Box::new(met)), Push::Ringing);
        // A member that has reached this one may have failed to reach a third.
        let joined = request(format!("farandole.group.{group}.joined"), Collective::Barrier, 0);
        match self.run(Submission::without_memory(joined).in_group(group)) {
            Ok(_) => Ok(group),
            Err(error) => {
                self.shared.tensor_table.remove(group);
                Err(error)
            }
        }
    }

    /// Leaves a group that was joined, and ends it for its other members: what all of them have agreed on still runs.
    ///
    /// # Errors
    /// [`Error::UnknownGroup`] if there is none.
    pub fn leave_group(&self, group: GroupId) -> Result<()> {
        if group.0 & GroupId::JOINED == 0 {
            return Err(Error::InvalidGroup(
                format!("the group {group} is the whole world's, not its members'").into(),
            ));
        }
        self.shared.tensor_table.members(group)?;
        self.shared.tensor_table.end(group, &Error::UnknownGroup(group));
        self.close_group(group);
        Ok(())
    }

    /// The members of a group in order, if these can be the members of one.
    fn checked_members(&self, ranks: &[Rank]) -> Result<Vec<Rank>> {
        let mut sorted = ranks.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let invalid = |why: String| Err(Error::InvalidGroup(why.into()));
        if sorted.is_empty() || sorted.len() != ranks.len() {
            return invalid(format!("{ranks:?} is empty or names a rank twice"));
        }
        if let Some(rank) = sorted.iter().find(|rank| rank.index() >= self.size()) {
            return invalid(format!("there is no rank {rank} in a world of {}", self.size()));
        }
        Ok(sorted)
    }

    /// Connects this rank to the other members of a group.
    fn meet(
        &self,
        forming: &mut Forming,
        group: GroupId,
        round: GroupId,
        ranks: &Arc<[Rank]>,
    ) -> farandole_transport::Result<Group> {
        let waiter = self.shared.driver_lock.waiter();
        let mesh = forming.connector.mesh(round, ranks, waiter, self.config.meet_deadline)?;
        let added = join_planes(&self.planes, round, &mesh, waiter)?;
        let record = GroupRecord::new(&self.recorder, recorded(round), ranks, self.start);
        let settings = settings(&self.config, self.table.clone(), group, ranks, &self.host_names);
        let accelerators = accelerators(self.devices.as_ref(), self.nccl.as_ref(), waiter);
        Ok(Group::new(settings, mesh, record, added, accelerators))
    }

    /// Waits until this rank has left a group, if it is a member.
    fn close_group(&self, group: GroupId) {
        let done = Arc::new(Slot::new());
        let command = Command::RemoveGroup { group, done: Arc::clone(&done) };
        let after = self.shared.driver_lock.push(command, Push::Quiet);
        self.shared.driver_lock.wait(&*done, None, after, None);
        self.shared.tensor_table.remove(group);
    }

    /// Ends a group. All ranks of the world call this; requests that are still under way in it end with
    /// [`Error::ShutDown`].
    pub fn remove_group(&self, group: GroupId) -> Result<()> {
        if group == GroupId::WORLD {
            return Err(Error::InvalidGroup("the world ends with the engine".into()));
        }
        let forming = self.forming.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.tensor_table.members(group)?;
        self.shared.tensor_table.end(group, &Error::UnknownGroup(group));
        self.run(Submission::without_memory(request(
            format!("farandole.group.{group}.remove"),
            Collective::Barrier,
            0,
        )))?;
        self.close_group(group);
        drop(forming);
        Ok(())
    }

    /// Finds out whether all ranks want a group of the same members.
    fn agree_on_members(&self, round: GroupId, ranks: &[Rank]) -> Result<()> {
        let own: Vec<u32> = ranks.iter().map(|rank| rank.0).collect();
        let name = format!("farandole.group.{round}.members");
        let request = request(name, Collective::Allgather, own.len() as u64);
        let outcome = self.run(Submission::new(request, Region::from_vec(own)))?;
        let all = outcome.into_result().map(words).unwrap_or_default();
        let same = all.len() == ranks.len() * self.size()
            && all.chunks(ranks.len()).all(|theirs| theirs.iter().zip(ranks).all(|(their, own)| *their == own.0));
        match same {
            true => Ok(()),
            false => Err(Error::InvalidGroup(
                format!("the ranks want to add different groups at the same time: {all:?}").into(),
            )),
        }
    }

    /// Finds out whether all members have met.
    fn agree_on_success(&self, round: GroupId, failed: bool) -> Result<()> {
        let name = format!("farandole.group.{round}.met");
        let request = request(name, Collective::Allgather, 1);
        let outcome = self.run(Submission::new(request, Region::from_vec(vec![u32::from(failed)])))?;
        let all = outcome.into_result().map(words).unwrap_or_default();
        match all.iter().position(|&failed| failed != 0) {
            None => Ok(()),
            Some(rank) => Err(Error::InvalidGroup(format!("rank {rank} did not reach all its members").into())),
        }
    }
}

/// The number under which a group is recorded: records have 16 bits for it. Groups that were joined have the upper
/// half.
fn recorded(round: GroupId) -> GroupId {
    const UPPER_HALF: u32 = 1 << 15;
    GroupId(if round.0 & GroupId::JOINED == 0 { round.0 } else { UPPER_HALF + (round.0 & !GroupId::JOINED) })
}

fn request(name: String, collective: Collective, rows: u64) -> Request {
    let dtype = Dtype::U32;
    Request { name: name.into(), collective, dtype, shape: vec![rows], device: Device::Cpu, batch: None, priority: 0 }
}

fn words(region: Region) -> Vec<u32> {
    let bytes = region.as_bytes().chunks_exact(4);
    bytes.map(|word| u32::from_ne_bytes(word.try_into().expect("chunks of four bytes"))).collect()
}
