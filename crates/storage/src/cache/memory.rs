//! Blocks in memory, the most recently used ones: [`MemoryBlocks`].
//!
//! **Invariant:** the blocks that are kept have together no more bytes than the limit.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use super::Key;

/// See the module's text. Threads of one process share it; the lock is held for a look-up, never for a copy.
#[derive(Debug)]
pub(super) struct MemoryBlocks {
    limit_bytes: u64,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    blocks: HashMap<Key, (Arc<Vec<u8>>, u64)>,
    /// Uses in their order, each with its number. Only the latest use of a block counts; older ones are passed over.
    uses: VecDeque<(Key, u64)>,
    number: u64,
    bytes: u64,
}

impl MemoryBlocks {
    pub(super) fn new(limit_bytes: u64) -> MemoryBlocks {
        MemoryBlocks { limit_bytes, inner: Mutex::default() }
    }

    pub(super) fn get(&self, key: Key) -> Option<Arc<Vec<u8>>> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let block = Arc::clone(&inner.blocks.get(&key)?.0);
        inner.note_use(key);
        Some(block)
    }

    pub(super) fn contains(&self, key: Key) -> bool {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).blocks.contains_key(&key)
    }

    pub(super) fn insert(&self, key: Key, block: Arc<Vec<u8>>) {
        if block.len() as u64 > self.limit_bytes {
            return;
        }
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.bytes += block.len() as u64;
        if let Some((old, _)) = inner.blocks.insert(key, (block, 0)) {
            inner.bytes -= old.len() as u64;
        }
        inner.note_use(key);
        while inner.bytes > self.limit_bytes {
            inner.remove_oldest();
        }
    }
}

impl Inner {
    fn note_use(&mut self, key: Key) {
        self.number += 1;
        if let Some((_, latest)) = self.blocks.get_mut(&key) {
            *latest = self.number;
        }
        self.uses.push_back((key, self.number));
        // Each block has one use that counts: when most do not, they go.
        if self.uses.len() > 64 + 4 * self.blocks.len() {
            let blocks = &self.blocks;
            self.uses.retain(|(key, number)| blocks.get(key).is_some_and(|(_, latest)| latest == number));
        }
    }

    fn remove_oldest(&mut self) {
        let (key, number) = self.uses.pop_front().expect("invariant: every block has a use");
        if self.blocks.get(&key).is_some_and(|(_, latest)| *latest == number)
            && let Some((block, _)) = self.blocks.remove(&key)
        {
            self.bytes -= block.len() as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a list that is searched.
        #[test]
        fn the_latest_used_blocks_that_fit_are_kept(asks in prop::collection::vec((0u128..12, 1usize..40), 1..400)) {
            let memory = MemoryBlocks::new(100);
            let mut model: Vec<(u128, usize)> = Vec::new();
            for (key, bytes) in asks {
                match memory.get(Key(key)) {
                    Some(block) => {
                        let at = model.iter().position(|(other, _)| *other == key).unwrap();
                        let found = model.remove(at);
                        prop_assert_eq!(found.1, block.len());
                        model.push(found);
                    }
                    None => {
                        prop_assert!(!model.iter().any(|(other, _)| *other == key));
                        memory.insert(Key(key), vec![7; bytes].into());
                        model.push((key, bytes));
                        while model.iter().map(|(_, bytes)| bytes).sum::<usize>() > 100 {
                            model.remove(0);
                        }
                    }
                }
            }
            let inner = memory.inner.lock().unwrap();
            prop_assert_eq!(inner.bytes, model.iter().map(|(_, bytes)| *bytes as u64).sum::<u64>());
            prop_assert!(inner.uses.len() <= 64 + 4 * 12 + 1);
        }
    }

    #[test]
    fn a_block_beyond_the_limit_is_not_kept() {
        let memory = MemoryBlocks::new(3);
        memory.insert(Key(1), vec![0; 4].into());
        assert!(!memory.contains(Key(1)));
    }
}
