//! A plane for tests, and an example of one: ranks that are threads hand their contributions over in ordinary memory.
//!
//! Each operation of a group has a *table* with a place for each rank. A rank puts a copy of its contribution there,
//! and when all have done so, folds them in the order of the ranks. The last rank to have read takes the table away.
//! What a rank that gives up leaves behind lies there until the plane is dropped; nothing waits for it.
#![allow(unreachable_pub, clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use farandole_engine::plane::{GroupSeat, Offer, Plane, PlaneGroup, PlaneRun};
use farandole_plan::{Dtype, GroupId, Rank};
use farandole_tensor::Fold;
use farandole_transport::{Bell, Progress, Result};

/// What is less than this takes another plane, so that both kinds meet in one program.
pub const MIN_BYTES: u64 = 16;

type Tables = HashMap<(GroupId, u64), Table>;

#[derive(Debug)]
struct Table {
    contributions: Vec<Option<Vec<u8>>>,
    to_read: usize,
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct ToyPlane {
    tables: Arc<Mutex<Tables>>,
    bells: Arc<Mutex<HashMap<GroupId, Vec<Option<Bell>>>>>,
}

impl ToyPlane {
    /// One for all ranks of a world.
    pub fn add() -> Vec<Arc<dyn Plane>> {
        vec![Arc::new(ToyPlane::default())]
    }
}

impl Plane for ToyPlane {
    fn offer(&self) -> Offer {
        let dtypes = vec![Dtype::F32, Dtype::F64, Dtype::I32, Dtype::I64];
        Offer { name: "toy", min_bytes: MIN_BYTES, max_bytes: u64::MAX, dtypes }
    }

    fn join(&self, seat: GroupSeat<'_>) -> Result<Box<dyn PlaneGroup>> {
        let (group, me, size) = (seat.group, seat.me, seat.topology.size());
        let mut bells = self.bells.lock().unwrap();
        let members = bells.entry(group).or_default();
        members.resize(size, None);
        members[me.index()] = Some(seat.bell);
        let (tables, bells) = (Arc::clone(&self.tables), Arc::clone(&self.bells));
        Ok(Box::new(Joined { group, me, size, tables, bells }))
    }
}

#[derive(Clone, Debug)]
struct Joined {
    group: GroupId,
    me: Rank,
    size: usize,
    tables: Arc<Mutex<Tables>>,
    bells: Arc<Mutex<HashMap<GroupId, Vec<Option<Bell>>>>>,
}

impl PlaneGroup for Joined {
    fn begin(&mut self, operation: u64, _elems: u64, _dtype: Dtype) -> Box<dyn PlaneRun> {
        Box::new(ToyRun { joined: self.clone(), operation, given: false })
    }
}

#[derive(Debug)]
struct ToyRun {
    joined: Joined,
    operation: u64,
    given: bool,
}

impl PlaneRun for ToyRun {
    fn advance(&mut self, work: &mut [u8], fold: &Fold) -> Result<Progress> {
        let Joined { me, size, .. } = self.joined;
        let key = (self.joined.group, self.operation);
        let mut tables = self.joined.tables.lock().unwrap();
        let new = || Table { contributions: vec![None; size], to_read: size };
        let table = tables.entry(key).or_insert_with(new);
        if !self.given {
            table.contributions[me.index()] = Some(work.to_vec());
            self.given = true;
            self.joined.bells.lock().unwrap()[&self.joined.group].iter().flatten().for_each(Bell::ring);
        }
        if table.contributions.iter().any(Option::is_none) {
            return Ok(Progress::Pending);
        }
        let mut contributions = table.contributions.iter().flatten();
        work.copy_from_slice(contributions.next().unwrap());
        contributions.for_each(|contribution| fold.fold(work, contribution));
        table.to_read -= 1;
        if table.to_read == 0 {
            tables.remove(&key);
        }
        Ok(Progress::Done)
    }

    fn waiting_for(&self) -> Option<Rank> {
        let tables = self.joined.tables.lock().unwrap();
        let table = tables.get(&(self.joined.group, self.operation))?;
        table.contributions.iter().position(Option::is_none).map(Rank::from)
    }
}
