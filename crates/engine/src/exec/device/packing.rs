//! Copies between tensors and a fusion buffer on a device, of which some change the element type: [`Packing`].
//!
//! All copies of one kind become one launch, or a few where there are many tensors. Those that change the type are
//! folds of one contribution (`device::DeviceFold`), so a narrowed element is rounded once, to the nearest.

use farandole_device::{DeviceCopy, DeviceFold, Result, Stream};
use farandole_plan::{Dtype, ReduceOp};
use farandole_tensor::Finish;

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Packing {
    copies: Vec<DeviceCopy>,
    /// For each pair of types, the elements of each tensor and where they lie and go.
    conversions: Vec<Conversion>,
}

#[derive(Debug)]
struct Conversion {
    from: Dtype,
    to: Dtype,
    elems: Vec<u64>,
    addresses: Vec<u64>,
}

impl Packing {
    /// Adds a copy of so many bytes at the source. What is copied to its own place needs none.
    pub(crate) fn add(&mut self, (from, source): (Dtype, u64), (to, target): (Dtype, u64), bytes: u64) {
        if bytes == 0 || source == target {
            return;
        }
        if from == to {
            self.copies.push(DeviceCopy { source, target, bytes });
            return;
        }
        let known = self.conversions.iter().position(|known| (known.from, known.to) == (from, to));
        let known = known.unwrap_or_else(|| {
            self.conversions.push(Conversion { from, to, elems: Vec::new(), addresses: Vec::new() });
            self.conversions.len() - 1
        });
        self.conversions[known].elems.push(bytes / from.size_bytes() as u64);
        self.conversions[known].addresses.extend([source, target]);
    }

    /// Whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.copies.is_empty() && self.conversions.is_empty()
    }

    /// Queues all of it.
    ///
    /// # Errors
    /// If the driver refuses, or the device has failed.
    pub(crate) fn queue(&self, stream: &Stream) -> Result<()> {
        stream.copy(&self.copies)?;
        self.conversions.iter().try_for_each(|conversion| stream.fold(&conversion.as_fold()))
    }
}

impl Conversion {
    fn as_fold(&self) -> DeviceFold<'_> {
        let Conversion { from: dtype, to: stored, ref elems, ref addresses } = *self;
        let (op, finish) = (ReduceOp::Sum, Finish::Nothing);
        DeviceFold { dtype, stored, op, prescale: 1.0, finish, ranks: 1, targets: 1, elems, addresses }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_one_kind_become_one_call() {
        let mut packing = Packing::default();
        packing.add((Dtype::F16, 16), (Dtype::F16, 32), 4);
        packing.add((Dtype::F32, 64), (Dtype::F16, 128), 8);
        packing.add((Dtype::F32, 256), (Dtype::F16, 512), 4);
        packing.add((Dtype::F16, 48), (Dtype::F32, 96), 4);
        assert_eq!(packing.copies, [DeviceCopy { source: 16, target: 32, bytes: 4 }]);
        let conversions: Vec<_> = packing.conversions.iter().map(|one| (&one.elems[..], &one.addresses[..])).collect();
        assert_eq!(conversions, [(&[2, 1][..], &[64, 128, 256, 512][..]), (&[2][..], &[48, 96][..])]);
    }

    #[test]
    fn what_stays_in_its_place_needs_no_copy() {
        let mut packing = Packing::default();
        packing.add((Dtype::F32, 64), (Dtype::F32, 64), 8);
        packing.add((Dtype::F32, 64), (Dtype::F16, 128), 0);
        assert!(packing.is_empty());
    }
}
