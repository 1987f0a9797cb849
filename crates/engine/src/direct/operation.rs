//! One direct operation under way, on whichever road it takes.

use farandole_plan::Rank;
use farandole_transport::{Mesh, Progress, Result};

use super::single_copy::Reads;
use crate::footprints::{self, Footprints};
use crate::run::{Memory, Run};
use crate::window::{Shared, WindowRun};

/// An operation and its memory.
pub(super) enum Operation<'a> {
    /// One hand-over: everybody has come, and what they show can be read.
    Meeting {
        /// Bytes that come with it.
        bytes: usize,
    },
    /// Through shared memory.
    Windows { run: WindowRun, memory: Shared<'a> },
    /// Out of the peers' own memory.
    Reads(Reads<'a>),
    /// Over links.
    Messages { run: Run, memory: Memory<'a> },
}

impl Operation<'_> {
    /// Does what can be done now.
    #[inline]
    pub(super) fn advance(&mut self, mesh: &mut Mesh) -> Result<Progress> {
        match self {
            Operation::Messages { run, memory } => run.advance(mesh, memory),
            shared => {
                let windows = mesh.windows.as_mut().expect("invariant: these operations are for ranks with windows");
                match shared {
                    Operation::Meeting { .. } if windows.all_begun()? => Ok(Progress::Done),
                    Operation::Meeting { .. } => Ok(Progress::Pending),
                    Operation::Windows { run, memory } => run.advance(windows, memory),
                    Operation::Reads(reads) => reads.advance(windows),
                    Operation::Messages { .. } => unreachable!("handled above"),
                }
            }
        }
    }

    /// Bytes that it works on.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Operation::Meeting { bytes } => *bytes,
            Operation::Windows { memory, .. } => {
                memory.mapped.as_ref().map_or(memory.work.len(), |mapped| mapped.own().len())
            }
            Operation::Reads(reads) => reads.bytes(),
            Operation::Messages { memory, .. } => memory.work.len(),
        }
    }

    /// Leaves footprints if it is large.
    pub(super) fn watch(&mut self) {
        if (self.bytes() as u64) < footprints::FROM_BYTES {
            return;
        }
        match self {
            Operation::Windows { run, .. } => run.watch(),
            Operation::Messages { run, .. } => run.watch(),
            Operation::Meeting { .. } | Operation::Reads(_) => {}
        }
    }

    /// The footprints, if it leaves any.
    pub(super) fn footprints(&mut self) -> Option<&mut Footprints> {
        match self {
            Operation::Windows { run, .. } => run.footprints(),
            Operation::Messages { run, .. } => run.footprints(),
            Operation::Meeting { .. } | Operation::Reads(_) => None,
        }
    }

    /// The peer that is being waited for, if one can be named.
    pub(super) fn waiting_for(&self, mesh: &Mesh) -> Option<Rank> {
        let windows = mesh.windows.as_ref();
        match self {
            Operation::Messages { run, .. } => run.waiting_for(),
            Operation::Windows { run, .. } => windows.and_then(|windows| run.waiting_for(windows)),
            Operation::Reads(reads) => windows.and_then(|windows| reads.waiting_for(windows)),
            Operation::Meeting { .. } => {
                windows.and_then(|windows| windows.first_absent().map(|seat| windows.rank(seat)))
            }
        }
    }

    /// All peers that are known to be waited for: those of this host that have not begun, or else the one that can be
    /// named.
    pub(super) fn missing(&self, mesh: &Mesh) -> Vec<Rank> {
        let absent = mesh.windows.iter().flat_map(|windows| windows.absent().map(|seat| windows.rank(seat)));
        let mut missing: Vec<Rank> = absent.collect();
        if let Some(peer) = self.waiting_for(mesh).filter(|peer| !missing.contains(peer)) {
            missing.push(peer);
        }
        missing
    }
}
