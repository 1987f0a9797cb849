//! Process sets: some ranks of a world, for collectives among themselves.
//!
//! Those that a program always needs are named before it starts ([`Setup::process_sets`](crate::Setup)); others come
//! and go while it runs. All ranks make and remove sets together, members or not. Inside of a set, requests are named
//! ones ([`Named::within`](crate::Named::within)); for those who call in the same order on all members there are calls
//! without names here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farandole_engine::Error as EngineError;
use farandole_plan::{GroupId, Rank, ReduceOp};
use farandole_tensor::Element;

use crate::error::Result;
use crate::named::Named;
use crate::world::World;

/// Some ranks of a world. Clones are the same set.
#[derive(Clone, Debug)]
pub struct ProcessSet {
    group: GroupId,
    ranks: Arc<[Rank]>,
    /// Calls without a name so far; each gets the next number as its name. Members call in the same order, so theirs
    /// agree.
    calls: Arc<AtomicU64>,
}

impl ProcessSet {
    fn new(group: GroupId, ranks: Arc<[Rank]>) -> ProcessSet {
        ProcessSet { group, ranks, calls: Arc::default() }
    }

    /// The set's number; zero is the whole world.
    pub fn group(&self) -> GroupId {
        self.group
    }

    /// The same, if the set has not been removed: its number may be that of another one by now.
    pub(crate) fn group_in(&self, world: &World) -> Result<GroupId> {
        match world.engine().group(self.group) {
            Ok(ranks) if Arc::ptr_eq(&ranks, &self.ranks) => Ok(self.group),
            Ok(_) => Err(world.report(EngineError::UnknownGroup(self.group))),
            Err(error) => Err(world.report(error)),
        }
    }

    /// The members, by their world ranks, in order.
    pub fn ranks(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.ranks.iter().map(|rank| rank.index())
    }

    /// Number of members.
    pub fn size(&self) -> usize {
        self.ranks.len()
    }

    /// This member's place among the members, if that rank of the world is one.
    pub fn rank_of(&self, world_rank: usize) -> Option<usize> {
        self.ranks.iter().position(|member| member.index() == world_rank)
    }

    /// Combines the data of all members in place. All members make this call, in the same order among the calls of this
    /// set.
    ///
    /// ```
    /// # use farandole::ReduceOp;
    /// let world = farandole::init()?;
    /// let everybody: Vec<usize> = (0..world.size()).collect();
    /// let set = world.add_process_set(&everybody)?;
    /// let mut loss = [1.0f32];
    /// set.allreduce(&world, &mut loss, ReduceOp::Average)?;
    /// let all = set.allgather(&world, &[world.rank() as u32])?;
    /// assert_eq!(all.len(), set.size());
    /// # Ok::<(), farandole::Error>(())
    /// ```
    pub fn allreduce<T: Element + Default>(&self, world: &World, data: &mut [T], op: ReduceOp) -> Result<()> {
        data.copy_from_slice(&self.call(world, "allreduce").allreduce(data.to_vec(), op)?.wait()?);
        Ok(())
    }

    /// Gives all members the data of the member with this world rank.
    pub fn broadcast<T: Element + Default>(&self, world: &World, data: &mut [T], root: usize) -> Result<()> {
        data.copy_from_slice(&self.call(world, "broadcast").broadcast(data.to_vec(), root)?.wait()?);
        Ok(())
    }

    /// Gives all members the data of all, one after the other.
    pub fn allgather<T: Element + Default>(&self, world: &World, own: &[T]) -> Result<Vec<T>> {
        self.call(world, "allgather").allgather(own.to_vec())?.wait()
    }

    /// Combines the data of all members and gives each its part.
    pub fn reduce_scatter<T: Element + Default>(&self, world: &World, data: &[T], op: ReduceOp) -> Result<Vec<T>> {
        self.call(world, "reducescatter").reduce_scatter(data.to_vec(), op)?.wait()
    }

    /// Sends each member so many elements. Gives back what came, and how much from each.
    pub fn alltoall_counted<T: Element + Default>(
        &self,
        world: &World,
        data: &[T],
        counts: &[usize],
    ) -> Result<(Vec<T>, Vec<usize>)> {
        self.call(world, "alltoall").alltoall_counted(data.to_vec(), counts)?.wait_counted()
    }

    /// Returns when all members have called it.
    pub fn barrier(&self, world: &World) -> Result<()> {
        self.call(world, "barrier").barrier()?.wait()?;
        Ok(())
    }

    fn call<'a>(&self, world: &'a World, word: &str) -> Named<'a> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        world.named(&format!("{word}.{number}")).within(self)
    }
}

impl World {
    /// The set of these ranks, which is made if there is none. All ranks call this together, members or not, in the
    /// same order among additions and removals.
    pub fn add_process_set(&self, ranks: &[usize]) -> Result<ProcessSet> {
        let ranks: Vec<Rank> = ranks.iter().map(|&rank| Rank::from(rank)).collect();
        let group = match self.engine().add_group(&ranks) {
            Ok(group) | Err(EngineError::ExistingGroup(group)) => group,
            Err(error) => return Err(self.report(error)),
        };
        let members = self.engine().group(group).map_err(|error| self.report(error))?;
        Ok(ProcessSet::new(group, members))
    }

    /// Ends a set. All ranks call this together. What is under way in it ends with an error.
    pub fn remove_process_set(&self, set: &ProcessSet) -> Result<()> {
        self.engine().remove_group(set.group_in(self)?).map_err(|error| self.report(error))
    }

    /// Every set there is, by number; the first is the whole world.
    pub fn process_sets(&self) -> Vec<ProcessSet> {
        self.engine().groups().into_iter().map(|(group, ranks)| ProcessSet::new(group, ranks)).collect()
    }
}
