//! What a rank tells the others of its host about a bucket in device memory: [`Posting`].
//!
//! It lies in the rank's small slot, which peers read when the rank has begun the operation:
//!
//! ```text
//! exports: u32 | places: u32 | exports, EXPORT_BYTES each | places: (export: u64, address: u64) each
//! ```
//!
//! Addresses are the teller's own. A rank that has joined, and so has no tensors, tells nothing: no exports and no
//! places. Decoding is total; whoever tells of memory beyond an allocation is named.

use std::collections::HashMap;

use farandole_device::{EXPORT_BYTES, Export};

/// Bytes of the two numbers in front.
const HEAD_BYTES: usize = 8;
/// Bytes of a place.
const PLACE_BYTES: usize = 16;

/// See the module's text.
#[derive(Clone, Debug, Default)]
pub(super) struct Posting {
    pub(super) exports: Vec<Export>,
    /// For each tensor of the bucket, the export in which it lies and its address.
    pub(super) places: Vec<(usize, u64)>,
    /// Where the export of an allocation is.
    known: HashMap<u64, usize>,
}

impl Posting {
    /// Adds a tensor that lies in this export.
    pub(super) fn add(&mut self, export: &Export, address: u64) {
        let exports = &mut self.exports;
        let index = *self.known.entry(export.allocation).or_insert_with(|| {
            exports.push(export.clone());
            exports.len() - 1
        });
        self.places.push((index, address));
    }

    /// Bytes that it takes.
    pub(super) fn len_bytes(&self) -> usize {
        HEAD_BYTES + self.exports.len() * EXPORT_BYTES + self.places.len() * PLACE_BYTES
    }

    /// Writes it to the front of a slot, which is large enough.
    pub(super) fn write(&self, slot: &mut [u8]) {
        let mut rest = &mut slot[..self.len_bytes()];
        let mut put = |bytes: &[u8]| {
            let (here, after) = std::mem::take(&mut rest).split_at_mut(bytes.len());
            here.copy_from_slice(bytes);
            rest = after;
        };
        put(&(self.exports.len() as u32).to_le_bytes());
        put(&(self.places.len() as u32).to_le_bytes());
        self.exports.iter().for_each(|export| put(&export.encode()));
        for (export, address) in &self.places {
            put(&(*export as u64).to_le_bytes());
            put(&address.to_le_bytes());
        }
    }

    /// Reads what a peer has written for tensors of these sizes.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn read(slot: &[u8], sizes: &[u64]) -> Result<Posting, String> {
        let mut rest = slot;
        let mut take = |len: usize| {
            let (here, after) = rest.split_at_checked(len).ok_or("more places than there is room for")?;
            rest = after;
            Ok::<&[u8], &str>(here)
        };
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        let exports = number(take(4)?) as usize;
        let places = number(take(4)?) as usize;
        if places != 0 && places != sizes.len() {
            return Err(format!("{places} places for {} tensors", sizes.len()));
        }
        let mut posting = Posting::default();
        for _ in 0..exports {
            let bytes = take(EXPORT_BYTES)?.try_into().map_err(|_| "half an export")?;
            posting.exports.push(Export::decode(bytes));
        }
        for size in &sizes[..places] {
            let (export, address) = (number(take(8)?) as usize, number(take(8)?));
            if !posting.exports.get(export).is_some_and(|export| export.contains(address, *size)) {
                return Err(format!("{size} bytes at {address:#x}, which lie in no allocation that it told of"));
            }
            posting.places.push((export, address));
        }
        Ok(posting)
    }
}

#[cfg(test)]
mod tests {
    use farandole_device::Uuid;

    use super::*;

    fn export(allocation: u64, base: u64) -> Export {
        Export { process: 7, device: Uuid([1; 16]), allocation, base, bytes: 1000, handle: [2; 64] }
    }

    fn posting() -> Posting {
        let mut posting = Posting::default();
        for (export, address) in [(export(1, 0), 0), (export(2, 5000), 5100), (export(1, 0), 600)] {
            posting.add(&export, address);
        }
        posting
    }

    #[test]
    fn what_is_written_is_read() {
        let (posting, mut slot) = (posting(), vec![0xff; 512]);
        posting.write(&mut slot);
        assert_eq!(posting.exports.len(), 2);
        let read = Posting::read(&slot, &[600, 900, 400]).unwrap();
        assert_eq!((read.exports, read.places), (posting.exports, posting.places));
    }

    #[test]
    fn nothing_is_told_by_who_has_nothing() {
        let mut slot = [1; 16];
        Posting::default().write(&mut slot);
        let read = Posting::read(&slot, &[4, 4]).unwrap();
        assert!(read.exports.is_empty() && read.places.is_empty());
    }

    #[test]
    fn nonsense_is_named() {
        let mut slot = vec![0; 512];
        posting().write(&mut slot);
        assert!(Posting::read(&slot, &[600, 901, 400]).unwrap_err().contains("lie in no allocation"));
        assert!(Posting::read(&slot, &[600]).unwrap_err().contains("3 places for 1 tensors"));
        assert!(Posting::read(&slot[..100], &[600, 900, 400]).unwrap_err().contains("room"));
        for garbage in [&[][..], &[1, 2, 3], &[255; 64]] {
            assert!(Posting::read(garbage, &[1, 2]).is_err());
        }
    }
}
