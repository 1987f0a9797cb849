//! What this process has told others about its memory: [`Exports`].
//!
//! Asking the driver how an allocation is shared takes microseconds, and a bucket may have a thousand tensors in a few
//! allocations. So what it said is kept, and checked once for each bucket and allocation: the driver gives every
//! allocation a number of its own, and another number at the same address means that the memory was freed and allocated
//! anew.

use std::collections::BTreeMap;

use crate::{Device, Error, Export, Hits, Result};

/// See the module's text.
#[derive(Debug)]
pub struct Exports {
    device: Device,
    /// By where they begin.
    known: BTreeMap<u64, Known>,
    round: u64,
    hits: Hits,
}

#[derive(Debug)]
struct Known {
    export: Export,
    /// When its number was last checked.
    checked: u64,
}

impl Exports {
    /// Nothing told yet.
    pub fn new(device: Device) -> Exports {
        Exports { device, known: BTreeMap::new(), round: 0, hits: Hits::default() }
    }

    /// A bucket begins: what was checked for the last one may have been freed since.
    pub fn begin_round(&mut self) {
        self.round += 1;
    }

    /// What others need to map these bytes.
    ///
    /// # Errors
    /// [`Error::NotShareable`] if they cannot be mapped, or do not lie in one allocation.
    pub fn get(&mut self, address: u64, bytes: u64) -> Result<&Export> {
        let base = match self.valid(address)? {
            Some(base) => {
                self.hits.hits += 1;
                base
            }
            None => {
                self.hits.misses += 1;
                let export = self.device.export(address)?;
                // What lay there before is gone.
                let end = export.base.saturating_add(export.bytes);
                self.known.retain(|base, known| *base >= end || base.saturating_add(known.export.bytes) <= export.base);
                let base = export.base;
                self.known.insert(base, Known { export, checked: self.round });
                base
            }
        };
        let export = &self.known[&base].export;
        if !export.contains(address, bytes) {
            let why = format!("{bytes} bytes at {address:#x} reach beyond their allocation");
            return Err(Error::NotShareable(why));
        }
        Ok(export)
    }

    /// How often an allocation was known.
    pub fn hits(&self) -> Hits {
        self.hits
    }

    /// Where the known allocation of an address begins, if it still is the same.
    fn valid(&mut self, address: u64) -> Result<Option<u64>> {
        let Some((&base, known)) = self.known.range_mut(..=address).next_back() else { return Ok(None) };
        // One byte at least: the address behind its end may be where another allocation begins.
        if !known.export.contains(address, 1) {
            return Ok(None);
        }
        if known.checked != self.round {
            if self.device.backend().allocation_id(address)? != known.export.allocation {
                return Ok(None);
            }
            known.checked = self.round;
        }
        Ok(Some(base))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pretend::Pretend;

    #[test]
    fn memory_that_was_allocated_anew_is_told_anew() {
        let device = Pretend::new().device();
        let mut exports = Exports::new(device.clone());
        let memory = device.allocate(1 << 20).unwrap();
        let address = memory.address();
        exports.begin_round();
        let first = exports.get(address + 64, 64).unwrap().allocation;
        assert_eq!(exports.get(address + 128, 64).unwrap().allocation, first);
        assert_eq!(exports.hits(), Hits { hits: 1, misses: 1 });
        assert!(exports.get(address, (1 << 20) + 1).is_err(), "beyond its end");
        drop(memory);
        let memory = device.allocate(1 << 20).unwrap();
        if memory.address() == address {
            exports.begin_round();
            assert_ne!(exports.get(address, 64).unwrap().allocation, first);
        }
    }

    /// Memory that begins where memory ends which was checked for the same bucket is an allocation of its own.
    #[test]
    fn an_allocation_that_follows_another_is_told_from_it() {
        let device = Pretend::new().device();
        let mut exports = Exports::new(device.clone());
        let mut memory: Vec<_> = (0..64).map(|_| device.allocate(1 << 20).unwrap()).collect();
        memory.sort_by_key(|memory| memory.address());
        exports.begin_round();
        let told: Vec<u64> =
            memory.iter().map(|memory| exports.get(memory.address(), 1 << 20).unwrap().allocation).collect();
        assert!(told.windows(2).all(|pair| pair[0] != pair[1]));
        let follows = |pair: &[crate::Allocation]| pair[0].address() + (1 << 20) == pair[1].address();
        assert!(memory.windows(2).any(follows), "no allocation follows another: this test tells nothing");
    }
}
