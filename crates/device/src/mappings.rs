//! Memory of other processes that this one has mapped: [`Mappings`].
//!
//! Mapping takes the driver far longer than a small collective, and a framework's allocator hands out the same memory
//! again and again, so mappings are kept. The key of a mapping is the identity of its process and the number of its
//! allocation. A pid does not identify a process: ranks in PID namespaces of their own often have equal pids. Numbers
//! of allocations are never reused, so memory that was freed and allocated again is not taken for the old memory. The
//! old mapping is closed when a new allocation of the same process overlaps it, or when too many are kept: then the
//! least recently used mapping is closed.
//!
//! The invariant: a mapping is closed only inside [`Mappings::translate`] of another allocation or when all are
//! dropped. Whoever translates one that closes others ([`Mappings::closes_others`]) must have nothing on the device
//! that still uses what was translated before. (The driver does not map an allocation while an old one in its place is
//! mapped.)

use std::collections::HashMap;

use farandole_transport::ProcessId;

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
    process: ProcessId,
    mapped: HashMap<(ProcessId, u64), Mapping>,
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
    fn is_stale(&self, process: ProcessId, export: &Export) -> bool {
        let end = export.base.saturating_add(export.bytes);
        process == export.process && self.theirs < end && export.base < self.theirs.saturating_add(self.bytes)
    }
}

impl Mappings {
    /// No mappings yet.
    pub fn new(device: Device) -> Mappings {
        let process = device.backend().process();
        Mappings { device, process, mapped: HashMap::new(), hits: Hits::default(), clock: 0 }
    }

    /// Where an allocation of another process begins here. Maps it if need be.
    ///
    /// # Errors
    /// If the memory is gone, or out of this device's reach.
    pub fn translate(&mut self, export: &Export) -> Result<u64> {
        if export.process.is(&self.process) {
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
        let is_known =
            export.process.is(&self.process) || self.mapped.contains_key(&(export.process, export.allocation));
        let is_stale = |(&(process, _), mapping): (&(ProcessId, u64), &Mapping)| mapping.is_stale(process, export);
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
    use crate::pretend::{Call, DeviceFaults, Pretend};

    fn foreign(mut export: Export) -> Export {
        export.process.namespace += 1;
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

    #[test]
    fn memory_of_a_peer_with_an_equal_pid_is_not_taken_for_own_memory() {
        let faults = DeviceFaults::default().at(Call::Import, 0, DeviceFaults::illegal_address());
        let device = Pretend::with(0, faults).device();
        let memory = device.allocate(64).unwrap();
        let (own, mut mappings) = (device.export(memory.address()).unwrap(), Mappings::new(device.clone()));
        let in_another_namespace = ProcessId { namespace: own.process.namespace + 1, ..own.process };
        let with_a_reused_pid = ProcessId { start_time: own.process.start_time + 1, ..own.process };
        for process in [in_another_namespace, with_a_reused_pid] {
            let peer = Export { process, ..own.clone() };
            assert!(mappings.translate(&peer).is_err(), "the driver has to be asked, which fails here");
        }
        assert_eq!(mappings.translate(&own).unwrap(), memory.address());
    }
}
