//! Two small tables made for the hot path of submission: numbered places that are used again, and a map from names.
//!
//! A submission costs one lookup by name; everything after it goes by number. Names come from the user's own program
//! on the user's own machines, so the hash need not resist anybody; it must be quick for strings of tens of bytes.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use crate::fuse::{hash_bytes, hash_word};

/// A map from names.
pub(super) type ByName<T> = HashMap<Arc<str>, T, BuildHasherDefault<NameHasher>>;

/// Eight bytes at a time, one multiplication each.
#[derive(Debug, Default)]
pub(super) struct NameHasher {
    hash: u64,
}

impl Hasher for NameHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.hash = hash_word(self.hash, hash_bytes(bytes));
    }

    fn write_u8(&mut self, number: u8) {
        // Strings end their hash with a byte that is always the same; the length is in the hash already.
        self.hash = self.hash.wrapping_add(u64::from(number));
    }

    fn write_u32(&mut self, number: u32) {
        self.hash = hash_word(self.hash, u64::from(number));
    }

    fn finish(&self) -> u64 {
        self.hash
    }
}

/// Values by small numbers; the number of a removed value is given out again.
#[derive(Debug)]
pub(super) struct Slab<T> {
    values: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { values: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(super) fn insert(&mut self, value: T) -> u32 {
        match self.free.pop() {
            Some(number) => {
                self.values[number as usize] = Some(value);
                number
            }
            None => {
                self.values.push(Some(value));
                u32::try_from(self.values.len() - 1).expect("fewer than 2^32 requests are in flight")
            }
        }
    }

    pub(super) fn remove(&mut self, number: u32) -> T {
        let value = self.values[number as usize].take().expect("a number is removed once");
        self.free.push(number);
        value
    }

    pub(super) fn get(&self, number: u32) -> &T {
        self.values[number as usize].as_ref().expect("a number is used while its value is there")
    }

    pub(super) fn get_mut(&mut self, number: u32) -> &mut T {
        self.values[number as usize].as_mut().expect("a number is used while its value is there")
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.values.iter().enumerate().filter_map(|(number, value)| value.as_ref().map(|value| (number as u32, value)))
    }

    pub(super) fn len(&self) -> usize {
        self.values.len() - self.free.len()
    }
}
