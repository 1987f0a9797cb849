//! Memory of other processes that this one has mapped: [`Mappings`].
//!
//! Mapping takes the driver far longer than a small collective, and a framework's allocator hands out the same memory
//! again and again, so mappings are kept. One is known by its process and its allocation's number, which is never used
//! again; so memory that was freed and allocated anew is never taken for the old. The old mapping is closed when a new
//! allocation of the same process overlaps it, or when too many are kept: then the one that was used longest ago goes.
//!
//! The invariant: a mapping is closed only inside [`Mappings::translate`] of another allocation or when all are
//! dropped. Whoever translates one that closes others ([`Mappings::closes_others`]) must have nothing on the device
//! that still uses what was translated before. (The driver does not map an allocation while an old one in its place is
//! mapped.)

use std::collections::HashMap;

use crate::{Device, Export, Result};

/// Mappings that are kept. A framework's allocator has some tens of segments in each process.
const MAX_KEPT: usize = 1024;

/// How often what was asked for was there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// Was mapped already.
    pub hits: u64,
    /// Had to be mapped.
    pub misses: u64,
}

/// See the module's text.
#[derive(Debug)]
pub struct Mappings {
    device: Device,
    process: u32,
    mapped: HashMap<(u32, u64), Mapping>,
    hits: Hits,
    clock: u64,
}

#[derive(Debug)]
struct Mapping {
    /// Where it begins here.
    base: u64,
    /// Where it begins in its process, and its length.
    theirs: u64,
    bytes: u64,
    used: u64,
}

impl Mapping {
    /// Whether its memory was freed: there is a new allocation of its process in its place.
    fn is_stale(&self, process: u32, export: &Export) -> bool {
        let end = export.base.saturating_add(export.bytes);
        process == export.process && self.theirs < end && export.base < self.theirs.saturating_add(self.bytes)
    }
}

impl Mappings {
    /// No mappings yet.
    pub fn new(device: Device) -> Mappings {
        Mappings { device, process: std::process::id(), mapped: HashMap::new(), hits: Hits::default(), clock: 0 }
    }

    /// Where an allocation of another process begins here. Maps it if need be.
    ///
    /// # Errors
    /// If the memory is gone, or out of this device's reach.
    pub fn translate(&mut self, export: &Export) -> Result<u64> {
        if export.process == self.process {
            return Ok(export.base);
        }
        self.clock += 1;
        let key = (export.process, export.allocation);
        if let Some(mapping) = self.mapped.get_mut(&key) {
            self.hits.hits += 1;
            mapping.used = self.clock;
            return Ok(mapping.base);
        }
        self.hits.misses += 1;
        self.make_room(export);
        let base = self.device.backend().import(export)?;
        let mapping = Mapping { base, theirs: export.base, bytes: export.bytes, used: self.clock };
        self.mapped.insert(key, mapping);
        Ok(base)
    }

    /// Whether translating this allocation closes the mapping of another one.
    pub fn closes_others(&self, export: &Export) -> bool {
        let is_known = export.process == self.process || self.mapped.contains_key(&(export.process, export.allocation));
        let is_stale = |(&(process, _), mapping): (&(u32, u64), &Mapping)| mapping.is_stale(process, export);
        !is_known && (self.mapped.len() >= MAX_KEPT || self.mapped.iter().any(is_stale))
    }

    /// How often mappings were there.
    pub fn hits(&self) -> Hits {
        self.hits
    }

    /// Closes what the process has freed, and what was not used for longest if too many are kept.
    fn make_room(&mut self, export: &Export) {
        let backend = self.device.backend();
        self.mapped.retain(|&(process, _), mapping| {
            let stale = mapping.is_stale(process, export);
            if stale {
                backend.close(mapping.base);
            }
            !stale
        });
        if self.mapped.len() >= MAX_KEPT {
            let oldest = self.mapped.iter().min_by_key(|(_, mapping)| mapping.used).map(|(key, _)| *key);
            if let Some(mapping) = oldest.and_then(|key| self.mapped.remove(&key)) {
                backend.close(mapping.base);
            }
        }
    }
}

impl Drop for Mappings {
    fn drop(&mut self) {
        self.mapped.values().for_each(|mapping| self.device.backend().close(mapping.base));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pretend::Pretend;

    fn foreign(mut export: Export) -> Export {
        export.process = export.process.wrapping_add(1);
        export
    }

    #[test]
    fn mappings_are_kept_until_their_memory_is_allocated_anew() {
        let device = Pretend::new().device();
        let mut mappings = Mappings::new(device.clone());
        let first = device.allocate(64).unwrap();
        let export = foreign(device.export(first.address()).unwrap());
        let base = mappings.translate(&export).unwrap();
        assert_eq!(mappings.translate(&export).unwrap(), base);
        assert_eq!(mappings.hits(), Hits { hits: 1, misses: 1 });
        let anew = Export { allocation: export.allocation + 1000, ..export.clone() };
        assert!(mappings.closes_others(&anew) && !mappings.closes_others(&export));
        assert!(mappings.translate(&anew).is_err(), "the driver knows no such memory");
        assert_eq!(mappings.mapped.len(), 0, "what overlaps it was closed");
    }

    #[test]
    fn a_process_does_not_map_its_own_memory() {
        let device = Pretend::new().device();
        let own = device.allocate(64).unwrap();
        let mut mappings = Mappings::new(device.clone());
        assert_eq!(mappings.translate(&device.export(own.address()).unwrap()).unwrap(), own.address());
        assert_eq!(mappings.hits(), Hits::default());
    }
}
