//! How a rank lets the others of its host reach its tensors: where they lie, or packed into a fusion buffer.
//!
//! Tensors that travel in a narrower type than they have are always packed: packing narrows them, unpacking widens the
//! results.

use farandole_device::{Error as DeviceError, Result, Stream};
use farandole_plan::Dtype;
use farandole_trace::event::DeviceStep;

use super::Opened;
use super::in_flight::InFlight;
use super::packing::Packing;
use super::posting::{EndBytes, Posting, packed};
use super::tensors::{Stretch, Tensor, Tensors};

/// What the others work on.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// What they must know.
    pub(super) posting: Posting,
    /// How it is packed, before anybody works on it.
    pub(super) packing: Packing,
    /// How what was packed goes back.
    pub(super) unpacking: Packing,
    /// Where this process finds input and output of each tensor to work on.
    pub(super) places: Vec<(u64, u64)>,
}

impl Shared {
    /// Queues what comes before others may read: waiting for the program's streams, and packing.
    ///
    /// # Errors
    /// If the driver refuses, or the device has failed.
    pub(super) fn queue_load(&self, tensors: &Tensors, stream: &Stream, in_flight: &mut InFlight) -> Result<()> {
        if tensors.ready.is_empty() && self.packing.is_empty() {
            return Ok(());
        }
        tensors.ready.iter().try_for_each(|ready| stream.wait(ready))?;
        in_flight.begin(stream)?;
        self.packing.queue(stream)?;
        in_flight.record(stream, DeviceStep::Pack)
    }
}

/// A bucket's tensors on this rank, and how they are shared.
pub(super) struct Sharing<'a> {
    pub(super) tensors: &'a Tensors,
    /// The element type that travels.
    pub(super) dtype: Dtype,
    /// Their sizes.
    pub(super) ends: &'a [EndBytes],
    /// Whether results replace inputs where tensors are packed.
    pub(super) replaces: bool,
    /// This rank's shard, if it has one.
    pub(super) shard: Stretch,
    /// Room for the posting.
    pub(super) slot_bytes: usize,
}

impl Sharing<'_> {
    /// Shares them. Where they have to be packed, copies are to be queued ([`Shared::queue_load`]).
    ///
    /// # Errors
    /// If there is no memory left, or the device has failed.
    pub(super) fn share(&self, opened: &mut Opened) -> Result<Shared> {
        if self.narrows() {
            return self.pack(opened);
        }
        opened.exports.begin_round();
        let exports = &mut opened.exports;
        let mut export = |stretch: Stretch| exports.get(stretch.address, stretch.bytes).cloned();
        let posting = Posting::of(&self.tensors.tensors, &mut export)
            .and_then(|posting| posting.with_shard(self.shard, &mut export));
        match posting {
            Ok(posting) if posting.len_bytes() <= self.slot_bytes => Ok(Shared { posting, ..self.in_place() }),
            // Too many to tell of, or memory that cannot be mapped.
            Ok(_) | Err(DeviceError::NotShareable(_)) => self.pack(opened),
            Err(error) => Err(error),
        }
    }

    /// The same for the only rank of a host, which tells nobody.
    ///
    /// # Errors
    /// As [`Sharing::share`].
    pub(super) fn keep(&self, opened: &mut Opened) -> Result<Shared> {
        if !self.narrows() {
            return Ok(self.in_place());
        }
        let (offsets, total) = packed(self.ends, self.replaces);
        let start = opened.fusion(total as usize)?.address();
        Ok(self.packed_at(start, &offsets))
    }

    /// Whether some tensors travel in a narrower type than they have.
    fn narrows(&self) -> bool {
        let is_narrowed = |tensor: &Tensor| tensor.dtype != self.dtype && tensor.input.bytes > 0;
        self.tensors.tensors.iter().any(is_narrowed)
    }

    /// Work on tensors where they lie.
    fn in_place(&self) -> Shared {
        let places = self.tensors.tensors.iter().map(|tensor| (tensor.input.address, tensor.output.address)).collect();
        Shared { places, ..Shared::default() }
    }

    /// Lets the ranks work in the fusion buffer.
    fn pack(&self, opened: &mut Opened) -> Result<Shared> {
        let (offsets, total) = packed(self.ends, self.replaces);
        let start = opened.fusion(total as usize)?.address();
        opened.exports.begin_round();
        let exports = &mut opened.exports;
        let mut export = |stretch: Stretch| exports.get(stretch.address, stretch.bytes).cloned();
        let whole = export(Stretch { address: start, bytes: total })?;
        let posting = Posting::packed(whole, start).with_shard(self.shard, &mut export)?;
        Ok(Shared { posting, ..self.packed_at(start, &offsets) })
    }

    /// Work on tensors that are packed from an address on.
    fn packed_at(&self, start: u64, offsets: &[(u64, u64)]) -> Shared {
        let (mut packing, mut unpacking) = (Packing::default(), Packing::default());
        for (tensor, (input, output)) in self.tensors.tensors.iter().zip(offsets) {
            let Stretch { address, bytes } = tensor.input;
            packing.add((tensor.dtype, address), (self.dtype, start + input), bytes);
            let Stretch { address, bytes } = tensor.output;
            let elems = bytes / tensor.dtype.size_bytes() as u64;
            unpacking.add(
                (self.dtype, start + output),
                (tensor.dtype, address),
                elems * self.dtype.size_bytes() as u64,
            );
        }
        let places = offsets.iter().map(|(input, output)| (start + input, start + output)).collect();
        Shared { packing, unpacking, places, ..Shared::default() }
    }
}
