//! The memory of all pretended devices of this process, by address.
//!
//! Ranks are threads, which may hold addresses of each other's memory; so reading and writing goes through raw
//! pointers, and only inside of an allocation of this table. What two threads do to the same bytes at the same time is
//! ordered by the table's lock.

#![allow(unsafe_code)]

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use super::number;

/// Allocations, by where they begin.
static TABLE: Mutex<BTreeMap<u64, Entry>> = Mutex::new(BTreeMap::new());

/// Words of host memory, by where they begin: how often they were entered, and how many there are.
static WORDS: Mutex<BTreeMap<u64, (usize, usize)>> = Mutex::new(BTreeMap::new());

struct Entry {
    id: u64,
    is_shareable: bool,
    contents: Box<[u8]>,
}

/// What is known of an allocation.
pub(super) struct Found {
    pub(super) id: u64,
    pub(super) base: u64,
    pub(super) bytes: u64,
    /// Whether other ranks can map it.
    pub(super) is_shareable: bool,
}

/// Addresses begin here, so that none is an address of this process: nothing but this module can follow one.
const FIRST: u64 = 1 << 56;

/// Distance between allocations, as a driver aligns them.
const ALIGNMENT: u64 = 256;

pub(super) fn allocate(bytes: usize, is_shareable: bool) -> u64 {
    let mut table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
    // The lowest gap: an allocator hands addresses out again.
    let mut address = FIRST;
    for (base, Entry { contents, .. }) in table.iter() {
        if address + bytes as u64 <= *base {
            break;
        }
        address = (base + contents.len() as u64).next_multiple_of(ALIGNMENT);
    }
    table.insert(address, Entry { id: number(), is_shareable, contents: vec![0; bytes].into_boxed_slice() });
    address
}

pub(super) fn free(address: u64) {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner).remove(&address);
}

/// The allocation in which an address lies.
pub(super) fn find(address: u64) -> Option<Found> {
    let table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
    let (&base, &Entry { id, is_shareable, ref contents }) = table.range(..=address).next_back()?;
    let bytes = contents.len() as u64;
    (address < base + bytes).then_some(Found { id, base, bytes, is_shareable })
}

pub(super) fn read(address: u64, target: &mut [u8]) {
    with(address, target.len(), |bytes| target.copy_from_slice(bytes));
}

pub(super) fn write(address: u64, source: &[u8]) {
    with(address, source.len(), |bytes| bytes.copy_from_slice(source));
}

/// Alignment of pinned memory: a page, as the driver's is.
const PINNED_ALIGN: usize = 4096;

/// Pinned memory, by where it begins.
static PINNED: Mutex<BTreeMap<usize, Layout>> = Mutex::new(BTreeMap::new());

pub(super) fn allocate_pinned(bytes: usize) -> NonNull<u8> {
    let layout = Layout::from_size_align(bytes, PINNED_ALIGN).expect("pinned memory has a sensible size");
    // SAFETY: whoever pins memory asks for one byte at least.
    let memory = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).expect("there is memory");
    let start = memory.as_ptr().expose_provenance();
    PINNED.lock().unwrap_or_else(PoisonError::into_inner).insert(start, layout);
    memory
}

pub(super) fn free_pinned(memory: NonNull<u8>) {
    let removed = PINNED.lock().unwrap_or_else(PoisonError::into_inner).remove(&memory.as_ptr().addr());
    let layout = removed.expect("pinned memory is freed once");
    // SAFETY: it was allocated with this layout, and the table says that it was not freed before.
    unsafe { std::alloc::dealloc(memory.as_ptr(), layout) };
}

/// Bytes of pinned memory for a copy. Nobody else looks at them until whoever has queued it sees its event.
///
/// # Panics
/// If they are freed.
pub(super) fn pinned(start: usize, bytes: usize) -> &'static mut [u8] {
    let pinned = PINNED.lock().unwrap_or_else(PoisonError::into_inner);
    let (base, layout) = pinned.range(..=start).next_back().expect("pinned memory lives until copies are over");
    assert!(start + bytes <= base + layout.size(), "a copy stays within pinned memory");
    // SAFETY: the memory is allocated (the table says so), initialised, and belongs to this copy until its event
    // happens (`crate::Pinned`).
    unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(start), bytes) }
}

/// Enters words of host memory; returns where they lie. They live until they are taken out.
pub(super) fn register_words(words: &[AtomicU32]) -> u64 {
    let place = words.as_ptr().expose_provenance() as u64;
    let mut table = WORDS.lock().unwrap_or_else(PoisonError::into_inner);
    table.entry(place).or_insert((0, words.len())).0 += 1;
    place
}

/// Takes words out.
pub(super) fn unregister_words(words: &[AtomicU32]) {
    let mut table = WORDS.lock().unwrap_or_else(PoisonError::into_inner);
    let place = words.as_ptr().expose_provenance() as u64;
    if let Some((users, _)) = table.get_mut(&place) {
        *users -= 1;
        if *users == 0 {
            table.remove(&place);
        }
    }
}

/// What the word at an address holds; nothing once it was taken out.
pub(super) fn word(address: u64) -> Option<u32> {
    with_word(address, |word| word.load(Ordering::Acquire))
}

/// Writes the word at an address, unless it was taken out.
pub(super) fn write_word(address: u64, value: u32) {
    with_word(address, |word| word.store(value, Ordering::Release));
}

fn with_word<T>(address: u64, then: impl FnOnce(&AtomicU32) -> T) -> Option<T> {
    let table = WORDS.lock().unwrap_or_else(PoisonError::into_inner);
    let (&place, &(_, count)) = table.range(..=address).next_back()?;
    let is_one_of_them = address < place + (count * size_of::<AtomicU32>()) as u64;
    // SAFETY: words live until they are taken out of the table, which is locked; this is one of them, and aligned,
    // because addresses are made by counting words.
    let word = || unsafe { AtomicU32::from_ptr(std::ptr::with_exposed_provenance_mut(address as usize)) };
    is_one_of_them.then(|| then(word()))
}

/// Bytes of an allocation, with the table locked.
fn with(address: u64, len: usize, then: impl FnOnce(&mut [u8])) {
    if len == 0 {
        return;
    }
    let mut table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
    let (base, Entry { contents, .. }) =
        table.range_mut(..=address).next_back().expect("an address of a pretended device lies in an allocation");
    let start = (address - base) as usize;
    then(contents.get_mut(start..start + len).expect("bytes of a pretended device lie in one allocation"));
}
