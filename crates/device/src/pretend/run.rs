//! What lies in the streams of a pretended device, and how it is carried out.

use std::fmt;

use farandole_plan::{Dtype, ReduceOp};
use farandole_tensor::{Finish, Fold, copy_finished};

use super::memory;
use super::nccl::Meeting;
use crate::{DeviceCopy, DeviceFold};

/// One piece of work.
#[derive(Debug)]
pub(super) enum Work {
    /// An event happens.
    Mark(u64),
    /// Nothing happens before this event has.
    Await(u64),
    /// Nothing happens before this signal is set.
    AwaitSignal(u64),
    Call(HostCall),
    Copy(Vec<DeviceCopy>),
    /// From the device to host memory at this address.
    ToHost {
        source: u64,
        target: usize,
        bytes: usize,
    },
    /// To the device from host memory at this address.
    FromHost {
        source: usize,
        target: u64,
        bytes: usize,
    },
    Fold(Box<OwnedFolding>),
    /// Calls of a communicator, which happen when all its ranks have come to theirs.
    Meet(Meeting),
}

/// A call of the host.
pub(super) struct HostCall(pub(super) Box<dyn FnOnce() + Send>);

impl fmt::Debug for HostCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostCall")
    }
}

#[derive(Debug)]
pub(super) struct OwnedFolding {
    dtype: Dtype,
    stored: Dtype,
    op: ReduceOp,
    prescale: f64,
    finish: Finish,
    ranks: usize,
    targets: usize,
    elems: Vec<u64>,
    addresses: Vec<u64>,
}

impl Work {
    pub(super) fn fold(folding: &DeviceFold<'_>) -> Work {
        let DeviceFold { dtype, stored, op, prescale, finish, ranks, targets, elems, addresses } = *folding;
        let (elems, addresses) = (elems.to_vec(), addresses.to_vec());
        Work::Fold(Box::new(OwnedFolding { dtype, stored, op, prescale, finish, ranks, targets, elems, addresses }))
    }

    /// Carries it out; marks and meetings are the queue's business.
    pub(super) fn run(self) {
        match self {
            Work::Mark(_) | Work::Await(_) | Work::AwaitSignal(_) | Work::Meet(_) => {}
            Work::Call(HostCall(call)) => call(),
            Work::Copy(copies) => copies.iter().for_each(copy),
            Work::ToHost { source, target, bytes } => memory::read(source, memory::pinned(target, bytes)),
            Work::FromHost { source, target, bytes } => memory::write(target, memory::pinned(source, bytes)),
            Work::Fold(folding) => folding.run(),
        }
    }
}

fn copy(copy: &DeviceCopy) {
    let mut bytes = vec![0; copy.bytes as usize];
    memory::read(copy.source, &mut bytes);
    memory::write(copy.target, &bytes);
}

impl OwnedFolding {
    fn run(&self) {
        for (elems, addresses) in self.elems.iter().zip(self.addresses.chunks(self.ranks + self.targets)) {
            let (contributions, targets) = addresses.split_at(self.ranks);
            let result = self.result(*elems as usize, contributions);
            let targets = if targets.is_empty() { contributions } else { targets };
            targets.iter().for_each(|address| memory::write(*address, &result));
        }
    }

    /// Folds one segment, with the arithmetic of host memory.
    fn result(&self, elems: usize, addresses: &[u64]) -> Vec<u8> {
        // Scaled halves are not rounded before they are folded.
        let is_half = matches!(self.dtype, Dtype::F16 | Dtype::BF16);
        let carrier = if is_half { Dtype::F32 } else { self.dtype };
        let contributions: Vec<Vec<u8>> = addresses
            .iter()
            .map(|address| {
                let mut bytes = vec![0; elems * self.dtype.size_bytes()];
                memory::read(*address, &mut bytes);
                let mut carried = vec![0; elems * carrier.size_bytes()];
                copy_finished(&mut carried, carrier, &bytes, self.dtype, Finish::factor(self.prescale));
                carried
            })
            .collect();
        let sources: Vec<&[u8]> = contributions.iter().map(Vec::as_slice).collect();
        let mut folded = vec![0; elems * carrier.size_bytes()];
        Fold::new(carrier, self.op).fold_many(&mut folded, &sources, Finish::Nothing);
        let mut result = vec![0; elems * self.stored.size_bytes()];
        copy_finished(&mut result, self.stored, &folded, carrier, self.finish);
        result
    }
}
