//! What lies in the streams of a pretended device, and how it is carried out.

use std::fmt;

use farandole_plan::{Dtype, ReduceOp};
use farandole_tensor::Finish;

use super::memory;
use super::nccl::Meeting;
use crate::{AdasumPair, AdasumResult, DeviceAdasum, DeviceCopy, DeviceFold, host_fold};

/// One piece of work.
#[derive(Debug)]
pub(super) enum Work {
    /// An event happens.
    Mark(u64),
    /// Nothing happens before this event has.
    Await(u64),
    /// Nothing happens before the word at this address has come to a value.
    AwaitWord(u64, u32),
    /// The word at this address gets a value.
    WriteWord(u64, u32),
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
    Adasum(Box<OwnedAdasum>),
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

#[derive(Debug)]
pub(super) struct OwnedAdasum {
    dtype: Dtype,
    prescale: f64,
    result: AdasumResult,
    pairs: Vec<AdasumPair>,
    targets: Vec<u64>,
    scratch: u64,
}

impl Work {
    pub(super) fn adasum(combining: &DeviceAdasum<'_>) -> Work {
        let DeviceAdasum { dtype, prescale, result, pairs, targets, scratch } = *combining;
        let (pairs, targets) = (pairs.to_vec(), targets.to_vec());
        Work::Adasum(Box::new(OwnedAdasum { dtype, prescale, result, pairs, targets, scratch }))
    }

    pub(super) fn fold(folding: &DeviceFold<'_>) -> Work {
        let DeviceFold { dtype, stored, op, prescale, finish, ranks, targets, elems, addresses } = *folding;
        let (elems, addresses) = (elems.to_vec(), addresses.to_vec());
        Work::Fold(Box::new(OwnedFolding { dtype, stored, op, prescale, finish, ranks, targets, elems, addresses }))
    }

    /// Carries it out; marks and meetings are the queue's business.
    pub(super) fn run(self) {
        match self {
            Work::Mark(_) | Work::Await(_) | Work::AwaitWord(..) | Work::Meet(_) => {}
            Work::WriteWord(word, value) => memory::write_word(word, value),
            Work::Call(HostCall(call)) => call(),
            Work::Copy(copies) => copies.iter().for_each(copy),
            Work::ToHost { source, target, bytes } => memory::read(source, memory::pinned(target, bytes)),
            Work::FromHost { source, target, bytes } => memory::write(target, memory::pinned(source, bytes)),
            Work::Fold(folding) => folding.run(),
            Work::Adasum(combining) => combining.run(),
        }
    }
}

fn copy(copy: &DeviceCopy) {
    let mut bytes = vec![0; copy.bytes as usize];
    memory::read(copy.source, &mut bytes);
    memory::write(copy.target, &bytes);
}

impl OwnedFolding {
    fn lent(&self) -> DeviceFold<'_> {
        let OwnedFolding { dtype, stored, op, prescale, finish, ranks, targets, ref elems, ref addresses } = *self;
        DeviceFold { dtype, stored, op, prescale, finish, ranks, targets, elems, addresses }
    }

    fn run(&self) {
        for (elems, addresses) in self.elems.iter().zip(self.addresses.chunks(self.ranks + self.targets)) {
            let (contributions, targets) = addresses.split_at(self.ranks);
            let len_bytes = *elems as usize * self.dtype.size_bytes();
            let input = |&address: &u64| {
                let mut bytes = vec![0; len_bytes];
                memory::read(address, &mut bytes);
                bytes
            };
            let inputs: Vec<Vec<u8>> = contributions.iter().map(input).collect();
            let result = host_fold::result(&self.lent(), &inputs);
            let targets = if targets.is_empty() { contributions } else { targets };
            targets.iter().for_each(|address| memory::write(*address, &result));
        }
    }
}

impl OwnedAdasum {
    fn run(&self) {
        let OwnedAdasum { dtype, prescale, result, ref pairs, ref targets, scratch } = *self;
        let combining = DeviceAdasum { dtype, prescale, result, pairs, targets, scratch };
        // As the real one: what lies in scratch memory is lost, and it must be large enough.
        let bytes = DeviceAdasum::scratch_bytes(pairs.iter().map(|pair| pair.elems));
        memory::write(scratch, &vec![0xff; bytes as usize]);
        let read = |address: u64, bytes: usize| {
            let mut contents = vec![0; bytes];
            memory::read(address, &mut contents);
            contents
        };
        for (pair, targets) in pairs.iter().zip(targets.chunks(combining.width())) {
            let result = host_fold::combination(&combining, pair, read);
            targets.iter().for_each(|address| memory::write(*address, &result));
        }
    }
}
