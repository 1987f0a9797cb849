//! The tables beside the rings: names, threads and groups.
//!
//! A name gets a number when it first occurs, and keeps it until `NAMES_MAX` others have come: programs that make up a
//! new name for each request would fill the memory otherwise. A number is never used for another name. Threads are
//! numbered in the process, not in a recorder, because a thread may work for several ranks. The number of a thread that
//! has ended is given to a later one of the same name, so that a row of a timeline shows one kind of thread; when there
//! are many rows, to any other thread.

use std::cell::{Cell, OnceCell};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::event::{NameId, ThreadId};
use crate::trace::NameEntry;

/// Names that are remembered: as many as the largest models have tensors, some times over; a few megabytes.
pub(crate) const NAMES_MAX: usize = 1 << 16;

/// Names by number and back.
#[derive(Debug)]
pub(crate) struct NameTable {
    /// The number of the oldest name that is remembered.
    first: u32,
    names: VecDeque<NameEntry>,
    ids: HashMap<Arc<str>, NameId>,
}

impl NameTable {
    pub(crate) fn new() -> NameTable {
        NameTable { first: 1, names: VecDeque::new(), ids: HashMap::new() }
    }

    /// The number of a name. `shape` is noted where the name is new.
    pub(crate) fn intern(&mut self, text: &Arc<str>, shape: &[u64]) -> NameId {
        if let Some(id) = self.ids.get(text) {
            return *id;
        }
        if self.names.len() == NAMES_MAX {
            if let Some(oldest) = self.names.pop_front() {
                self.ids.remove(&oldest.text);
            }
            self.first += 1;
        }
        let id = NameId(self.first + self.names.len() as u32);
        self.names.push_back(NameEntry { text: Arc::clone(text), shape: shape.into() });
        self.ids.insert(Arc::clone(text), id);
        id
    }

    /// The number of the oldest name that is remembered.
    pub(crate) fn first(&self) -> u32 {
        self.first
    }

    /// The names from number `from` on, with the number of the first of them.
    pub(crate) fn since(&self, from: NameId) -> (NameId, impl Iterator<Item = &NameEntry>) {
        let first = from.0.max(self.first);
        (NameId(first), self.names.iter().skip((first - self.first) as usize))
    }
}

/// Threads that have a number of their own; all others share the last one.
const THREADS_MAX: usize = 4096;

/// As long as no more have come, threads of different names do not share a number. Programs that start a thread for
/// each batch, each with a name of its own, fill no more rows than this.
const ROWS: usize = 256;

/// The numbers of this process's threads. One for the whole process, because threads belong to the process: a thread
/// gets its number when it first does something that is recorded, and gives it back when it ends.
static THREADS: Mutex<Threads> = Mutex::new(Threads { names: Vec::new(), free: Vec::new(), external: Vec::new() });

struct Threads {
    names: Vec<Arc<str>>,
    free: Vec<u16>,
    /// Numbers of threads of other processes, which are known by name. They are kept.
    external: Vec<u16>,
}

impl Threads {
    /// Takes a number for a thread of this name, or without one; `None` if all are taken.
    fn take_number(&mut self, name: Option<&str>) -> Option<u16> {
        let text = |number: usize| name.map_or_else(|| format!("thread {number}").into(), Arc::from);
        let same = self.free.iter().position(|&number| self.names[usize::from(number)] == text(usize::from(number)));
        let (new, taken) = (self.names.len(), same.map(|place| self.free.swap_remove(place)));
        let number = match taken.or_else(|| if new < ROWS { None } else { self.free.pop() }) {
            Some(number) => number,
            None if new < THREADS_MAX => {
                self.names.push("".into());
                new as u16
            }
            None => return None,
        };
        self.names[usize::from(number)] = text(usize::from(number));
        Some(number)
    }
}

fn threads() -> MutexGuard<'static, Threads> {
    THREADS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number that is given back when its thread ends.
struct ThreadSlot(u16);

impl ThreadSlot {
    fn take() -> ThreadSlot {
        ThreadSlot::named(std::thread::current().name())
    }

    fn named(name: Option<&str>) -> ThreadSlot {
        ThreadSlot(threads().take_number(name).unwrap_or(THREADS_MAX as u16))
    }
}

impl Drop for ThreadSlot {
    fn drop(&mut self) {
        if usize::from(self.0) < THREADS_MAX {
            threads().free.push(self.0);
        }
    }
}

thread_local! {
    static SLOT: OnceCell<ThreadSlot> = const { OnceCell::new() };
}

impl ThreadId {
    /// The number of this thread, or of the one that it acts for.
    #[inline]
    pub fn current() -> ThreadId {
        if let Some(other) = ACTS_FOR.try_with(Cell::get).ok().flatten() {
            return other;
        }
        // A thread that is ending has no number any more.
        SLOT.try_with(|slot| ThreadId(slot.get_or_init(ThreadSlot::take).0)).unwrap_or(ThreadId(THREADS_MAX as u16))
    }
}

impl ThreadId {
    /// From now on, what this thread does counts as done by another one, which waits for it meanwhile; with nothing, as
    /// its own again.
    pub fn act_for(other: Option<ThreadId>) {
        // A thread that is ending does nothing more that counts.
        let _ = ACTS_FOR.try_with(|acts_for| acts_for.set(other));
    }
}

thread_local! {
    /// The thread that this one acts for.
    static ACTS_FOR: Cell<Option<ThreadId>> = const { Cell::new(None) };
}

impl ThreadId {
    /// The number of a thread of another process: the same for the same name.
    pub(crate) fn of_external(name: &str) -> ThreadId {
        let mut threads = threads();
        let known = threads.external.iter().copied().find(|number| *threads.names[usize::from(*number)] == *name);
        ThreadId(known.unwrap_or_else(|| {
            let Some(number) = threads.take_number(Some(name)) else { return THREADS_MAX as u16 };
            threads.external.push(number);
            number
        }))
    }

    /// Gives this thread a name, for front ends that know a better one than the system does.
    pub(crate) fn name_current(name: &str) {
        // A thread that has no number yet gets that of an earlier one of this name.
        let slot = |slot: &OnceCell<ThreadSlot>| slot.get_or_init(|| ThreadSlot::named(Some(name))).0;
        let number = SLOT.try_with(slot).unwrap_or(THREADS_MAX as u16);
        if let Some(known) = threads().names.get_mut(usize::from(number)) {
            *known = name.into();
        }
    }
}

/// The threads that have had a number, and their names.
pub(crate) fn thread_names() -> Vec<Arc<str>> {
    threads().names.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_may_act_for_another() {
        let mine = ThreadId::current();
        std::thread::spawn(move || {
            assert_ne!(ThreadId::current(), mine);
            ThreadId::act_for(Some(mine));
            assert_eq!(ThreadId::current(), mine);
            ThreadId::act_for(None);
            assert_ne!(ThreadId::current(), mine);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_name_keeps_its_number_until_it_is_forgotten() {
        let mut table = NameTable::new();
        let first = table.intern(&"a".into(), &[2]);
        assert_eq!(table.intern(&"a".into(), &[3]), first);
        assert_eq!(table.intern(&"b".into(), &[]), NameId(2));
        for number in 0..NAMES_MAX - 1 {
            table.intern(&format!("made up {number}").into(), &[]);
        }
        assert_eq!(table.first(), 2, "the oldest is forgotten");
        let (from, mut names) = table.since(NameId(1));
        assert_eq!((from, &*names.next().unwrap().text), (NameId(2), "b"));
        drop(names);
        assert_ne!(table.intern(&"a".into(), &[]), first, "and numbered anew");
        assert_eq!(table.names.len(), NAMES_MAX);
    }

    #[test]
    fn threads_have_numbers_and_names() {
        let own = ThreadId::current();
        assert_eq!(own, ThreadId::current());
        let other = std::thread::Builder::new().name("loader-7".to_owned()).spawn(ThreadId::current).unwrap();
        let other = other.join().unwrap();
        assert_ne!(own, other);
        assert!(thread_names().len() > usize::from(other.0));
    }

    #[test]
    fn threads_of_one_name_share_a_number_one_after_the_other_and_others_do_not() {
        let on_a_thread = |name: &str| {
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(ThreadId::current).unwrap();
            thread.join().unwrap()
        };
        let first = on_a_thread("prefetcher of this test");
        // A thread gives its number back when its locals are dropped, which may be a moment after it was joined.
        farandole_testing::wait_until("the number of the first", farandole_testing::NEVER, || {
            on_a_thread("prefetcher of this test") == first
        });
        assert_ne!(on_a_thread("augmenter of this test"), first);
        assert_eq!(&*thread_names()[usize::from(first.0)], "prefetcher of this test");
        let external = ThreadId::of_external("worker of this test");
        assert_eq!(ThreadId::of_external("worker of this test"), external);
    }
}
