//! What submitting threads may know without asking the driver: which groups there are, whether they still work, and
//! which names are under way.
//!
//! One lock, held for the length of a table look-up. Submitting threads take it to enter a name; the driver takes it
//! once for each bucket to strike the names out, before it completes the tickets, so that a caller who has its result
//! can use the name again at once.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farandole_plan::plane::DeviceReach;
use farandole_plan::{GroupId, Rank, Request};
use farandole_trace::Recorder;
use farandole_trace::event::NameId;

use crate::error::{Error, Result};

/// The groups as submitting threads see them.
#[derive(Debug, Default)]
pub(crate) struct TensorTable {
    groups: Mutex<HashMap<GroupId, Entry>>,
}

/// A name that this rank has used.
#[derive(Debug)]
struct Name {
    /// Its number in the recorder.
    id: NameId,
    under_way: bool,
}

/// Names that are remembered when they are not under way, so that a program that makes up a new one for each request
/// does not fill the memory: more than models have tensors.
const NAMES_KEPT: usize = 1 << 16;

/// One group.
#[derive(Debug)]
struct Entry {
    /// World ranks of its members, in order.
    ranks: Arc<[Rank]>,
    /// This rank's number in the group, if it is a member.
    me: Option<Rank>,
    /// What its ranks have for device memory.
    device_reach: DeviceReach,
    /// Names that this rank has used lately.
    names: HashMap<Arc<str>, Name, BuildHasherDefault<QuickHasher>>,
    /// Why nothing can be submitted any more.
    ended: Option<Error>,
}

impl TensorTable {
    /// Enters a group.
    pub(crate) fn add(&self, group: GroupId, ranks: Arc<[Rank]>, me: Option<Rank>, device_reach: DeviceReach) {
        let names = HashMap::default();
        self.lock().insert(group, Entry { ranks, me, device_reach, names, ended: None });
    }

    /// What the ranks of a group have for device memory.
    pub(crate) fn device_reach(&self, group: GroupId) -> Result<DeviceReach> {
        let groups = self.lock();
        groups.get(&group).map(|entry| entry.device_reach).ok_or(Error::UnknownGroup(group))
    }

    /// The lowest number that no group has. Ranks that add and remove the same groups in the same order find the same.
    pub(crate) fn lowest_free(&self) -> GroupId {
        let groups = self.lock();
        let free = (1..).map(GroupId).find(|group| !groups.contains_key(group));
        free.expect("invariant: there are fewer groups than numbers")
    }

    /// Strikes a group out.
    pub(crate) fn remove(&self, group: GroupId) {
        self.lock().remove(&group);
    }

    /// Enters the name of a request, or says why not. Answers with the number under which it is recorded.
    pub(crate) fn enter(&self, group: GroupId, request: &Request, recorder: &Recorder) -> Result<NameId> {
        let name = &request.name;
        let mut groups = self.lock();
        let entry = open_entry(&mut groups, group)?;
        if let Some(known) = entry.names.get_mut(name) {
            if std::mem::replace(&mut known.under_way, true) {
                return Err(Error::Duplicate { name: Arc::clone(name), group });
            }
            if !recorder.knows(known.id) {
                known.id = recorder.intern(name, &request.shape);
            }
            return Ok(known.id);
        }
        if entry.names.len() >= NAMES_KEPT {
            entry.names.retain(|_, name| name.under_way);
        }
        let id = recorder.intern(name, &request.shape);
        entry.names.insert(Arc::clone(name), Name { id, under_way: true });
        Ok(id)
    }

    /// The number under which a send or a receive is recorded, or why there can be none. Any number of them may have
    /// one name.
    pub(crate) fn enter_transfer(&self, group: GroupId, name: &Arc<str>, recorder: &Recorder) -> Result<NameId> {
        let mut groups = self.lock();
        let entry = open_entry(&mut groups, group)?;
        if let Some(known) = entry.names.get(name).filter(|known| recorder.knows(known.id)) {
            return Ok(known.id);
        }
        let id = recorder.intern(name, &[]);
        entry.names.insert(Arc::clone(name), Name { id, under_way: false });
        Ok(id)
    }

    /// Strikes names out: their requests are done.
    pub(crate) fn leave<'a>(&self, group: GroupId, names: impl Iterator<Item = &'a Arc<str>>) {
        if let Some(entry) = self.lock().get_mut(&group) {
            for name in names {
                if let Some(known) = entry.names.get_mut(name) {
                    known.under_way = false;
                }
            }
        }
    }

    /// Lets nothing more into the group. The first cause counts.
    pub(crate) fn end(&self, group: GroupId, cause: &Error) {
        if let Some(entry) = self.lock().get_mut(&group) {
            entry.ended.get_or_insert_with(|| cause.clone());
        }
    }

    /// Lets nothing more into any group.
    pub(crate) fn end_all(&self, cause: &Error) {
        for entry in self.lock().values_mut() {
            entry.ended.get_or_insert_with(|| cause.clone());
        }
    }

    /// Why the group has ended, if it has.
    pub(crate) fn ended(&self, group: GroupId) -> Option<Error> {
        self.lock().get(&group).and_then(|entry| entry.ended.clone())
    }

    /// The group of exactly these world ranks that the whole world knows, if there is one.
    pub(crate) fn find(&self, ranks: &[Rank]) -> Option<GroupId> {
        let is_it = |group: GroupId, entry: &Entry| group.0 & GroupId::JOINED == 0 && *entry.ranks == *ranks;
        self.lock().iter().find(|&(&group, entry)| is_it(group, entry)).map(|(&group, _)| group)
    }

    /// World ranks of a group, and this rank's number in it if it is a member.
    pub(crate) fn members(&self, group: GroupId) -> Result<(Arc<[Rank]>, Option<Rank>)> {
        let groups = self.lock();
        let entry = groups.get(&group).ok_or(Error::UnknownGroup(group))?;
        Ok((Arc::clone(&entry.ranks), entry.me))
    }

    /// All groups, by number.
    pub(crate) fn all(&self) -> Vec<(GroupId, Arc<[Rank]>)> {
        let mut all: Vec<_> = self.lock().iter().map(|(&group, entry)| (group, Arc::clone(&entry.ranks))).collect();
        all.sort_unstable_by_key(|(group, _)| *group);
        all
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<GroupId, Entry>> {
        // Valid between any two statements, also if a holder panicked.
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A group in which this rank may ask for something.
fn open_entry(groups: &mut HashMap<GroupId, Entry>, group: GroupId) -> Result<&mut Entry> {
    let entry = groups.get_mut(&group).ok_or(Error::UnknownGroup(group))?;
    match &entry.ended {
        Some(error) => Err(error.clone()),
        None if entry.me.is_none() => Err(Error::ForeignGroup(group)),
        None => Ok(entry),
    }
}

/// A quick hash for names, and for what is a hash of them. They come from this process alone, so nobody can choose them
/// to collide, and every submission hashes one twice.
#[derive(Debug, Default)]
pub(crate) struct QuickHasher(u64);

impl Hasher for QuickHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = (self.0 ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
    }

    fn finish(&self) -> u64 {
        // The table takes its places from the low and the high bits; multiplying fills the high ones only.
        self.0 ^ self.0 >> 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(name: &str) -> Request {
        use farandole_plan::{Collective, Device, Dtype};
        let (collective, dtype) = (Collective::Barrier, Dtype::U8);
        let name = name.into();
        Request { name, collective, dtype, shape: vec![], device: Device::Cpu, batch: None, priority: 0 }
    }

    #[test]
    fn a_name_is_taken_until_it_is_struck_out() {
        let (tensor_table, recorder, t) = (TensorTable::default(), Recorder::off(), request("t"));
        let enter = || tensor_table.enter(GroupId::WORLD, &t, &recorder);
        assert!(matches!(enter(), Err(Error::UnknownGroup(_))));
        tensor_table.add(GroupId::WORLD, Arc::new([Rank(0)]), Some(Rank(0)), DeviceReach::default());
        enter().unwrap();
        assert!(matches!(enter(), Err(Error::Duplicate { .. })));
        tensor_table.leave(GroupId::WORLD, [&t.name].into_iter());
        enter().unwrap();
    }

    #[test]
    fn names_that_are_never_used_again_are_forgotten() {
        let (tensor_table, recorder) = (TensorTable::default(), Recorder::off());
        tensor_table.add(GroupId::WORLD, Arc::new([Rank(0)]), Some(Rank(0)), DeviceReach::default());
        tensor_table.enter(GroupId::WORLD, &request("under way"), &recorder).unwrap();
        for number in 0..2 * NAMES_KEPT {
            let request = request(&format!("made up {number}"));
            tensor_table.enter(GroupId::WORLD, &request, &recorder).unwrap();
            tensor_table.leave(GroupId::WORLD, [&request.name].into_iter());
        }
        assert!(tensor_table.lock()[&GroupId::WORLD].names.len() <= NAMES_KEPT);
        let twice = tensor_table.enter(GroupId::WORLD, &request("under way"), &recorder);
        assert!(matches!(twice, Err(Error::Duplicate { .. })));
    }

    #[test]
    fn the_first_cause_of_an_end_counts() {
        let (tensor_table, recorder, t) = (TensorTable::default(), Recorder::off(), request("t"));
        tensor_table.add(GroupId(3), Arc::new([Rank(1)]), None, DeviceReach::default());
        assert!(matches!(tensor_table.enter(GroupId(3), &t, &recorder), Err(Error::ForeignGroup(_))));
        tensor_table.end(GroupId(3), &Error::ShutDown);
        tensor_table.end(GroupId(3), &Error::Forked);
        assert!(matches!(tensor_table.enter(GroupId(3), &t, &recorder), Err(Error::ShutDown)));
    }
}
