//! Words of a rank's segment that devices write and wait for: [`DeviceWords`].
//!
//! They lie in the first page of the segment, behind the flags. The devices of the other ranks write them, the owner's
//! device waits for them, and its host may write them, too; what values mean is not decided here.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use super::segment::{Mapping, PAGE_BYTES};
use super::windows::Windows;

/// Where they lie in a segment.
const OFFSET: usize = PAGE_BYTES / 2;

/// How many there are.
const COUNT: usize = (PAGE_BYTES - OFFSET) / size_of::<AtomicU32>();

#[cfg(not(loom))]
const _: () = assert!(size_of::<super::flags::Flags>() <= OFFSET, "the words lie behind the flags");

/// See the module's text. Keeps the segment mapped.
#[derive(Clone, Debug)]
pub struct DeviceWords(Arc<Mapping>);

impl AsRef<[AtomicU32]> for DeviceWords {
    fn as_ref(&self) -> &[AtomicU32] {
        let start = self.0.at(OFFSET, COUNT * size_of::<AtomicU32>());
        // SAFETY: the bytes lie inside the mapping, which lives as long as this; they are aligned, zeroed pages hold
        // valid words, and all accesses are atomic.
        unsafe { std::slice::from_raw_parts(start.as_ptr().cast(), COUNT) }
    }
}

impl Windows {
    /// The device words of a rank of this host.
    pub fn device_words(&self, local_rank: usize) -> DeviceWords {
        DeviceWords(Arc::clone(&self.local_ranks[local_rank].mapping))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::super::layout::Layout;
    use super::*;
    use crate::wait::Bell;

    #[test]
    fn all_ranks_of_a_host_see_the_same_words() {
        let bells = [Bell::new().unwrap(), Bell::new().unwrap()];
        let windows = Windows::for_threads(Layout::standard(2), &bells).unwrap();
        windows[0].device_words(1).as_ref()[3].store(7, Ordering::Release);
        assert_eq!(windows[1].device_words(1).as_ref()[3].load(Ordering::Acquire), 7);
        assert_eq!(windows[1].device_words(0).as_ref()[3].load(Ordering::Acquire), 0);
    }
}
