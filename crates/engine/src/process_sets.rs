//! Groups of ranks that come and go while the engine runs.
//!
//! All ranks of the world add and remove groups together and in the same order; they make sure by collectives of the
//! world that they mean the same members and that every member has made its connections.

use crate::completion::Slot;
use crate::connector::number_in;
use crate::driver::Command;
use crate::driver_lock::Push;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::group::Group;
use crate::record::group::GroupRecord;
use crate::start::{join_planes, settings};
use crate::submission::Submission;
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
        let mut forming = self.forming.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = self.shared.tensor_table.find(&sorted) {
            return Err(Error::ExistingGroup(group));
        }
        forming.rounds += 1;
        let (group, round) = (self.shared.tensor_table.lowest_free(), GroupId(forming.rounds));
        self.agree_on_members(round, &sorted)?;
        let me = sorted.contains(&self.rank).then(|| number_in(&sorted, self.rank));
        let ranks: Arc<[Rank]> = sorted.into();
        let waiter = self.shared.driver_lock.waiter();
        let joined = me.map(|_| {
            let mesh = forming.connector.mesh(round, &ranks, waiter, self.config.meet_deadline)?;
            let added = join_planes(&self.planes, round, &mesh, waiter)?;
            farandole_transport::Result::Ok((mesh, added))
        });
        self.agree_on_success(round, matches!(joined, Some(Err(_))))?;
        self.shared.tensor_table.add(group, Arc::clone(&ranks), me);
        if let Some(Ok((mesh, added))) = joined {
            let record = GroupRecord::new(&self.recorder, round, &ranks, self.start);
            let settings = settings(&self.config, self.table.clone(), group, &ranks, &self.host_names);
            let group = Box::new(Group::new(settings, mesh, record, added));
            let _ = self.shared.driver_lock.push(Command::AddGroup(group), Push::Ringing);
        }
        Ok(group)
    }

    /// Ends a group. All ranks of the world call this; requests that are still under way in it end with
    /// [`Error::ShutDown`].
    pub fn remove_group(&self, group: GroupId) -> Result<()> {
        if group == GroupId::WORLD {
            return Err(Error::InvalidGroup("the world ends with the engine".into()));
        }
        let forming = self.forming.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, me) = self.shared.tensor_table.members(group)?;
        self.shared.tensor_table.end(group, &Error::UnknownGroup(group));
        self.run(Submission::without_memory(request(
            format!("farandole.group.{group}.remove"),
            Collective::Barrier,
            0,
        )))?;
        if me.is_some() {
            let done = Arc::new(Slot::new());
            let after =
                self.shared.driver_lock.push(Command::RemoveGroup { group, done: Arc::clone(&done) }, Push::Quiet);
            self.shared.driver_lock.wait(&*done, None, after, None);
        }
        self.shared.tensor_table.remove(group);
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

fn request(name: String, collective: Collective, rows: u64) -> Request {
    let dtype = Dtype::U32;
    Request { name: name.into(), collective, dtype, shape: vec![rows], device: Device::Cpu, batch: None, priority: 0 }
}

fn words(region: Region) -> Vec<u32> {
    let bytes = region.as_bytes().chunks_exact(4);
    bytes.map(|word| u32::from_ne_bytes(word.try_into().expect("chunks of four bytes"))).collect()
}
