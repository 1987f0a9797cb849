//! What a process tells others of its host about an allocation, so that they can map it: [`Export`].
//!
//! It travels through memory that ranks share, so it has a fixed form of [`EXPORT_BYTES`] bytes. Whoever reads one has
//! been admitted to the job; a wrong one is refused by the driver, or names memory of that rank itself.

use crate::Uuid;

/// Bytes of an export on its way.
pub const EXPORT_BYTES: usize = 112;

/// See the module's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The process that owns the memory.
    pub process: u32,
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
        bytes[..4].copy_from_slice(&self.process.to_le_bytes());
        bytes[8..24].copy_from_slice(&self.device.0);
        for (word, at) in [(self.allocation, 24), (self.base, 32), (self.bytes, 40)] {
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes[48..].copy_from_slice(&self.handle);
        bytes
    }

    /// The export that travelled as these bytes.
    pub fn decode(bytes: &[u8; EXPORT_BYTES]) -> Export {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
        Export {
            process: word(0) as u32,
            device: Uuid(std::array::from_fn(|index| bytes[8 + index])),
            allocation: word(24),
            base: word(32),
            bytes: word(40),
            handle: std::array::from_fn(|index| bytes[48 + index]),
        }
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
            process: 0xfeed_beef,
            device: Uuid([7; 16]),
            allocation: u64::MAX - 1,
            base: 0x7f00_0000_0000,
            bytes: 1 << 40,
            handle: std::array::from_fn(|index| index as u8),
        };
        assert_eq!(Export::decode(&export.encode()), export);
        assert!(export.contains(export.base, 1 << 40) && !export.contains(export.base, (1 << 40) + 1));
        assert!(!export.contains(u64::MAX, 2) && !export.contains(export.base - 1, 1));
    }
}
