//! What a process tells others of its host about an allocation, so that they can map it: [`Export`].
//!
//! It travels through memory that ranks share, so it has a fixed form of [`EXPORT_BYTES`] bytes:
//!
//! ```text
//! process: 20 bytes (`transport::identity`) · 4 zero bytes · device: 16 bytes · u64 allocation · u64 base · u64 bytes ·
//!     handle: 64 bytes
//! ```
//!
//! Only ranks of the job read it. The driver refuses a wrong handle.

use farandole_transport::ProcessId;
use farandole_transport::identity::PROCESS_ID_BYTES;

use crate::Uuid;

/// Bytes of an export on its way.
pub const EXPORT_BYTES: usize = 128;

/// See the module's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The process that owns the memory.
    pub process: ProcessId,
    /// The device that it lies on.
    pub device: Uuid,
    /// Which allocation: numbers of a process are never used again, addresses are.
    pub allocation: u64,
    /// Where it begins in that process.
    pub base: u64,
    /// Its length.
    pub bytes: u64,
    /// What the driver needs to find it.
    pub handle: [u8; 64],
}

impl Export {
    /// As it travels.
    pub fn encode(&self) -> [u8; EXPORT_BYTES] {
        let mut bytes = [0; EXPORT_BYTES];
        bytes[..PROCESS_ID_BYTES].copy_from_slice(&self.process.encode());
        bytes[24..40].copy_from_slice(&self.device.0);
        for (word, at) in [(self.allocation, 40), (self.base, 48), (self.bytes, 56)] {
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes[64..].copy_from_slice(&self.handle);
        bytes
    }

    /// The export that travelled as these bytes; `None` if it names an impossible process or range.
    pub fn decode(bytes: &[u8; EXPORT_BYTES]) -> Option<Export> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
        let process = ProcessId::decode(bytes.first_chunk()?)?;
        let (allocation, base, length) = (word(40), word(48), word(56));
        let is_range = bytes[PROCESS_ID_BYTES..24] == [0; 4] && base.checked_add(length).is_some();
        is_range.then_some(Export {
            process,
            device: Uuid(std::array::from_fn(|index| bytes[24 + index])),
            allocation,
            base,
            bytes: length,
            handle: std::array::from_fn(|index| bytes[64 + index]),
        })
    }

    /// Whether so many bytes from an address on lie inside.
    pub fn contains(&self, address: u64, bytes: u64) -> bool {
        let end = address.checked_add(bytes);
        address >= self.base && end.is_some_and(|end| end <= self.base.saturating_add(self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_survive_their_way() {
        let export = Export {
            process: ProcessId::own(),
            device: Uuid([7; 16]),
            allocation: u64::MAX - 1,
            base: 0x7f00_0000_0000,
            bytes: 1 << 40,
            handle: std::array::from_fn(|index| index as u8),
        };
        assert_eq!(Export::decode(&export.encode()), Some(export.clone()));
        assert!(export.contains(export.base, 1 << 40) && !export.contains(export.base, (1 << 40) + 1));
        assert!(!export.contains(u64::MAX, 2) && !export.contains(export.base - 1, 1));
    }

    #[test]
    fn exports_of_impossible_processes_or_ranges_are_refused() {
        let export = Export {
            process: ProcessId { pid: 1, namespace: 7, start_time: 9 },
            device: Uuid([7; 16]),
            allocation: 1,
            base: 1 << 40,
            bytes: 4096,
            handle: [0; 64],
        };
        assert!(Export::decode(&export.encode()).is_some());
        let without_pid = Export { process: ProcessId { pid: 0, ..export.process }, ..export.clone() };
        assert_eq!(Export::decode(&without_pid.encode()), None);
        assert_eq!(Export::decode(&Export { bytes: u64::MAX, ..export }.encode()), None);
        assert_eq!(Export::decode(&[0xff; EXPORT_BYTES]), None);
    }
}
