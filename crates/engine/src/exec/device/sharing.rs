//! How a rank lets the others of its host reach its tensors: where they lie, or packed into a fusion buffer.

use farandole_device::{DeviceCopy, Error as DeviceError, Result, Stream};
use farandole_trace::event::DeviceStep;

use super::Opened;
use super::in_flight::InFlight;
use super::posting::{EndBytes, Posting, packed};
use super::tensors::{Stretch, Tensors};

/// What the others work on.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// What they must know.
    pub(super) posting: Posting,
    /// These pack it, before anybody works on it.
    pub(super) copies: Vec<DeviceCopy>,
    /// What was packed goes back by these.
    pub(super) copies_back: Vec<DeviceCopy>,
}

impl Shared {
    /// Queues what comes before others may read: waiting for the program's streams, and packing.
    ///
    /// # Errors
    /// If the driver refuses, or the device has failed.
    pub(super) fn queue_load(&self, tensors: &Tensors, stream: &Stream, in_flight: &mut InFlight) -> Result<()> {
        if tensors.ready.is_empty() && self.copies.is_empty() {
            return Ok(());
        }
        tensors.ready.iter().try_for_each(|ready| stream.wait(ready))?;
        in_flight.begin(stream)?;
        stream.copy(&self.copies)?;
        in_flight.record(stream, DeviceStep::Pack)
    }
}

/// A bucket's tensors on this rank, and how they are shared.
pub(super) struct Sharing<'a> {
    pub(super) tensors: &'a Tensors,
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
        opened.exports.begin_round();
        let exports = &mut opened.exports;
        let mut export = |stretch: Stretch| exports.get(stretch.address, stretch.bytes).cloned();
        let posting = Posting::of(&self.tensors.tensors, &mut export)
            .and_then(|posting| posting.with_shard(self.shard, &mut export));
        match posting {
            Ok(posting) if posting.len_bytes() <= self.slot_bytes => Ok(Shared { posting, ..Shared::default() }),
            // Too many to tell of, or memory that cannot be mapped.
            Ok(_) | Err(DeviceError::NotShareable(_)) => self.pack(opened),
            Err(error) => Err(error),
        }
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
        let (mut copies, mut copies_back) = (Vec::with_capacity(offsets.len()), Vec::with_capacity(offsets.len()));
        for (tensor, (input, output)) in self.tensors.tensors.iter().zip(offsets) {
            let Stretch { address, bytes } = tensor.input;
            copies.push(DeviceCopy { source: address, target: start + input, bytes });
            let Stretch { address, bytes } = tensor.output;
            copies_back.push(DeviceCopy { source: start + output, target: address, bytes });
        }
        Ok(Shared { posting, copies, copies_back })
    }
}
