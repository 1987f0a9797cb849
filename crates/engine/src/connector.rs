//! How ranks find each other: [`Connector`].
//!
//! The engine needs a mesh for the world when it starts and one for each group that is added. Where the peers are and
//! how they are reached is not its business: processes meet through contacts that a rendezvous has passed around
//! ([`ProcessConnector`]), threads of a test meet in a [`ThreadWorld`].

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farandole_plan::{GroupId, Rank};
use farandole_transport::connect::Options;
use farandole_transport::contact::Contact;
use farandole_transport::listen::Listener;
use farandole_transport::{Bell, Error, Mesh, Result, Waiter, memory};

/// Makes the meshes of one rank.
pub trait Connector: Send {
    /// This rank's number in the world.
    fn rank(&self) -> Rank;

    /// The host of every rank of the world, in order; as many as there are ranks.
    fn hosts(&self) -> Vec<String>;

    /// Joins this rank to the others of a group. `ranks` are the members' world ranks, in order, this rank among them;
    /// all of them call this at about the same time. What comes over the mesh wakes `waiter`. Blocks for `at_most`.
    fn mesh(&mut self, group: GroupId, ranks: &[Rank], waiter: &Waiter, at_most: Duration) -> Result<Mesh>;
}

/// A connector of processes that know each other's contacts.
pub struct ProcessConnector {
    /// This rank.
    pub rank: Rank,
    /// Where every rank of the world can be reached.
    pub contacts: Vec<Contact>,
    /// Where this rank can be reached.
    pub listener: Arc<Listener>,
    /// How connections are made.
    pub options: Options,
    /// Distinguishes engines that share a listener, one after the other; the same on all ranks.
    pub epoch: u32,
}

impl Connector for ProcessConnector {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn hosts(&self) -> Vec<String> {
        self.contacts.iter().map(|contact| contact.host.clone()).collect()
    }

    fn mesh(&mut self, group: GroupId, ranks: &[Rank], waiter: &Waiter, at_most: Duration) -> Result<Mesh> {
        let id = u64::from(self.epoch) << 32 | u64::from(group.0);
        let contacts: Vec<Contact> = ranks.iter().map(|rank| self.contacts[rank.index()].clone()).collect();
        let me = number_in(ranks, self.rank);
        Mesh::connect(id, me, &contacts, &self.listener, &self.options, waiter, at_most)
    }
}

/// The number of a world rank in a group that it is a member of.
pub(crate) fn number_in(ranks: &[Rank], rank: Rank) -> Rank {
    Rank::from(ranks.iter().position(|&member| member == rank).expect("invariant: only members meet"))
}

/// What threads talk through.
#[derive(Clone, Copy, Debug)]
pub enum Medium {
    /// Pipes inside the process.
    Pipes(memory::MemoryOptions),
    /// Shared memory between them, and pipes for control.
    Windows,
}

/// Does something to each new mesh, for example puts faults into it.
pub type Wrap = Arc<dyn Fn(GroupId, Mesh, &Bell) -> Mesh + Send + Sync>;

/// Where the ranks of a world meet that are threads of one process.
#[derive(Clone)]
pub struct ThreadWorld {
    size: usize,
    medium: Medium,
    wrap: Option<Wrap>,
    tables: Arc<(Mutex<HashMap<GroupId, Table>>, Condvar)>,
}

/// The members of one group, while they gather.
#[derive(Default)]
struct Table {
    bells: Vec<Option<Bell>>,
    meshes: Vec<Option<Mesh>>,
}

impl ThreadWorld {
    /// A thread world for this many ranks.
    pub fn new(size: usize, medium: Medium) -> ThreadWorld {
        ThreadWorld { size, medium, wrap: None, tables: Arc::default() }
    }

    /// The same with something done to every mesh.
    pub fn with_wrap(mut self, wrap: Wrap) -> ThreadWorld {
        self.wrap = Some(wrap);
        self
    }

    /// A rank's entrance.
    pub fn enter(&self, rank: Rank) -> ThreadConnector {
        ThreadConnector { thread_world: self.clone(), rank }
    }

    fn tables(&self) -> MutexGuard<'_, HashMap<GroupId, Table>> {
        // A rank that panicked is a dead rank; the tables are valid between any two statements.
        self.tables.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn build(&self, bells: &[Bell]) -> Result<Vec<Mesh>> {
        match self.medium {
            Medium::Pipes(settings) => Ok(memory::meshes(bells, &settings)),
            Medium::Windows => {
                memory::meshes_with_windows(bells, farandole_transport::shm::Layout::standard(bells.len()))
            }
        }
    }
}

/// One rank's way into a [`ThreadWorld`].
pub struct ThreadConnector {
    thread_world: ThreadWorld,
    rank: Rank,
}

impl Connector for ThreadConnector {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn hosts(&self) -> Vec<String> {
        vec!["localhost".to_owned(); self.thread_world.size]
    }

    fn mesh(&mut self, group: GroupId, ranks: &[Rank], waiter: &Waiter, at_most: Duration) -> Result<Mesh> {
        let (begun, me) = (Instant::now(), number_in(ranks, self.rank));
        let mut tables = self.thread_world.tables();
        let table = tables.entry(group).or_default();
        table.bells.resize(ranks.len(), None);
        table.bells[me.index()] = Some(waiter.bell());
        if let Some(bells) = table.bells.iter().cloned().collect::<Option<Vec<Bell>>>() {
            table.meshes = self.thread_world.build(&bells)?.into_iter().map(Some).collect();
            self.thread_world.tables.1.notify_all();
        }
        loop {
            let table = tables.entry(group).or_default();
            if let Some(mesh) = table.meshes.get_mut(me.index()).and_then(Option::take) {
                if table.meshes.iter().all(Option::is_none) {
                    tables.remove(&group);
                }
                return Ok(match &self.thread_world.wrap {
                    Some(wrap) => wrap(group, mesh, &waiter.bell()),
                    None => mesh,
                });
            }
            let left = at_most.saturating_sub(begun.elapsed());
            if left.is_zero() {
                let waiting_for = "not all ranks came".to_owned();
                return Err(Error::Deadline { peer: None, waiting_for, waited: begun.elapsed() });
            }
            let woken = self.thread_world.tables.1.wait_timeout(tables, left);
            tables = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
