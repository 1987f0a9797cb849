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
use crate::named::{Named, Submitter};
use crate::world::World;

/// Some ranks of a world. Clones are the same set. It does not keep the world: after the world's end its calls fail
/// with [`EngineError::ShutDown`].
#[derive(Clone, Debug)]
pub struct ProcessSet {
    submitter: Submitter,
    group: GroupId,
    ranks: Arc<[Rank]>,
    /// Calls without a name so far; each gets the next number as its name. Members call in the same order, so theirs
    /// agree.
    calls: Arc<AtomicU64>,
}

impl ProcessSet {
    fn new(world: &World, group: GroupId, ranks: Arc<[Rank]>) -> ProcessSet {
        ProcessSet { submitter: world.submitter(), group, ranks, calls: Arc::default() }
    }

    /// The set's number; zero is the whole world.
    pub fn group(&self) -> GroupId {
        self.group
    }

    /// The same, if the set has not been removed: its number may be that of another one by now.
    pub(crate) fn current_group(&self) -> Result<GroupId> {
        if Arc::ptr_eq(&self.submitter.group(self.group)?, &self.ranks) {
            return Ok(self.group);
        }
        Err(EngineError::UnknownGroup(self.group).into())
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

    /// Combines the data of all members. The vector comes back with the result in it; nothing is copied. All members
    /// make this call, in the same order among the calls of this set.
    ///
    /// ```
    /// # use farandole::ReduceOp;
    /// let world = farandole::init()?;
    /// let everybody: Vec<usize> = (0..world.size()).collect();
    /// let set = world.add_process_set(&everybody)?;
    /// let loss = set.allreduce(vec![1.0f32], ReduceOp::Average)?;
    /// let all = set.allgather(vec![world.rank() as u32])?;
    /// assert_eq!(all.len(), set.size());
    /// # Ok::<(), farandole::Error>(())
    /// ```
    pub fn allreduce<T: Element + Default>(&self, data: Vec<T>, op: ReduceOp) -> Result<Vec<T>> {
        self.call("allreduce").allreduce(data, op)?.wait()
    }

    /// Gives all members the data of the member with this world rank.
    pub fn broadcast<T: Element + Default>(&self, data: Vec<T>, root: usize) -> Result<Vec<T>> {
        self.call("broadcast").broadcast(data, root)?.wait()
    }

    /// Gives all members the data of all, one after the other.
    pub fn allgather<T: Element + Default>(&self, own: Vec<T>) -> Result<Vec<T>> {
        self.call("allgather").allgather(own)?.wait()
    }

    /// Combines the data of all members and gives each its part.
    pub fn reduce_scatter<T: Element + Default>(&self, data: Vec<T>, op: ReduceOp) -> Result<Vec<T>> {
        self.call("reducescatter").reduce_scatter(data, op)?.wait()
    }

    /// Sends each member so many elements. Gives back what came, and how much from each.
    pub fn alltoallv<T: Element + Default>(&self, data: Vec<T>, counts: &[usize]) -> Result<(Vec<T>, Vec<usize>)> {
        self.call("alltoall").alltoallv(data, counts)?.wait()
    }

    /// Returns when all members have called it.
    pub fn barrier(&self) -> Result<()> {
        self.call("barrier").barrier()?.wait()
    }

    fn call(&self, word: &str) -> Named {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        Named::new(self.submitter.clone(), &format!("{word}.{number}")).within(self)
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
        Ok(ProcessSet::new(self, group, members))
    }

    /// Ends a set. All ranks call this together. What is under way in it ends with an error.
    pub fn remove_process_set(&self, set: &ProcessSet) -> Result<()> {
        self.engine().remove_group(set.current_group()?).map_err(|error| self.report(error))
    }

    /// Every set there is, by number; the first is the whole world.
    pub fn process_sets(&self) -> Vec<ProcessSet> {
        self.engine().groups().into_iter().map(|(group, ranks)| ProcessSet::new(self, group, ranks)).collect()
    }
}
