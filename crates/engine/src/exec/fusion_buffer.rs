//! The fusion buffer of a group.
//!
//! It has two forms. *Own* memory serves everywhere. On one host there is also a *mapped* buffer, which all ranks see:
//! packing into it already shows the tensors to the peers, so that an allreduce copies nothing.
//!
//! A mapped buffer is made by all ranks together, and without a word, because all ranks run the same buckets in the
//! same order: a rank *reserves* room when a bucket has ended that would have needed more, and *maps* everybody's room
//! when the next bucket has ended, because by then every rank has begun that one and therefore has reserved. From then
//! on the bucket that asked for it finds it. So all ranks always agree on whether there is a mapped buffer and how
//! large it is.

use farandole_tensor::OwnedBytes;
use farandole_transport::Result;
use farandole_transport::shm::{Mapped, Reserved, Windows};

/// See the module's text.
#[derive(Debug)]
pub(crate) struct FusionBuffer {
    own: OwnedBytes,
    mapped: Option<Mapped>,
    reserved: Option<Reserved>,
}

impl FusionBuffer {
    pub(crate) fn new() -> FusionBuffer {
        FusionBuffer { own: OwnedBytes::zeroed(0), mapped: None, reserved: None }
    }

    /// The first bytes of the own buffer, which grows if need be.
    pub(crate) fn own(&mut self, bytes: usize) -> &mut [u8] {
        if self.own.len() < bytes {
            self.own = OwnedBytes::zeroed(bytes.next_power_of_two());
        }
        &mut self.own[..bytes]
    }

    /// Bytes of the mapped buffer; zero if there is none.
    pub(crate) fn mapped_bytes(&self) -> usize {
        self.mapped.as_ref().map_or(0, Mapped::len)
    }

    /// The mapped buffer.
    pub(crate) fn mapped(&mut self) -> &mut Mapped {
        self.mapped.as_mut().expect("invariant: the mapped buffer is used where its size was asked for before")
    }

    /// A bucket has ended on this rank, and every rank has begun it. It would have liked a mapped buffer of
    /// `wanted_bytes`.
    pub(crate) fn after_bucket(&mut self, wanted_bytes: usize, windows: &mut Windows) -> Result<()> {
        if let Some(reserved) = self.reserved.take() {
            let larger = windows.map_reserved(reserved)?;
            if let Some(smaller) = self.mapped.replace(larger) {
                windows.unmap(smaller);
            }
        } else if wanted_bytes > self.mapped_bytes() {
            self.reserved = Some(windows.reserve(wanted_bytes.next_power_of_two())?);
        }
        Ok(())
    }
}
