//! The tensors that a bucket in device memory has on this rank: [`Tensors`].
//!
//! Each has an input and, if this rank gets a result, an output. The output is the memory that came with the request,
//! the input itself where results replace it, or memory of the group's ([`super::results`]). Every plane of device
//! memory works on these.

use farandole_device::Event;
use farandole_plan::agree::Bucket;
use farandole_plan::device::Movement;
use farandole_plan::{Collective, Dtype};
use farandole_tensor::{OnDevice, Region};
use farandole_transport::{Error, Result};

use super::{DevicePlane, local};
use crate::bucket::GroupRank;
use crate::pending::{Pending, PendingTable};

/// Bytes of device memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) address: u64,
    /// Zero: there is nothing, wherever the address points.
    pub(crate) bytes: u64,
}

/// One tensor of a bucket on this rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tensor {
    pub(crate) input: Stretch,
    pub(crate) output: Stretch,
    /// The element type in which both lie there. It may be wider than the one that travels.
    pub(crate) dtype: Dtype,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Tensors {
    /// The device, unless this rank has joined and has no memory.
    pub(crate) ordinal: Option<u32>,
    /// In the order of the bucket's parts; none on a rank that has joined.
    pub(crate) tensors: Vec<Tensor>,
    /// After these events they hold their data; none: they do.
    pub(crate) ready: Vec<Event>,
    /// Whether the program lets its streams wait for all results.
    pub(crate) runs_ahead: bool,
    /// Memory that was made for results, by part.
    results: Vec<Option<Region>>,
}

impl Tensors {
    /// Finds the tensors of a bucket, and makes memory for results that have none.
    ///
    /// # Errors
    /// If they lie on several devices, or there is no memory left.
    pub(crate) fn find(
        plane: &mut DevicePlane,
        bucket: &Bucket,
        movement: &Movement,
        table: &PendingTable,
        here: GroupRank,
    ) -> Result<Tensors> {
        let mut found = Tensors { runs_ahead: true, ..Tensors::default() };
        for (part, id) in bucket.requests.iter().enumerate() {
            let Some(id) = id else { continue };
            found.add(plane, bucket, movement, (part, table.get(*id)), here)?;
        }
        Ok(found)
    }

    /// Memory that was made for results, in the order of the requests of this rank.
    pub(crate) fn take_results(&mut self) -> Vec<Option<Region>> {
        std::mem::take(&mut self.results)
    }

    fn add(
        &mut self,
        plane: &mut DevicePlane,
        bucket: &Bucket,
        movement: &Movement,
        (part, pending): (usize, &Pending),
        here: GroupRank,
    ) -> Result<()> {
        let plan = &*bucket.plan;
        let input = pending.input.as_ref().expect("invariant: a collective on tensors has an input");
        let ordinal = place(input).ordinal;
        let first = *self.ordinal.get_or_insert(ordinal);
        let output_ordinal = pending.output.as_ref().map_or(ordinal, |output| place(output).ordinal);
        if let Some(other) = [ordinal, output_ordinal].into_iter().find(|&other| other != first) {
            let both = format!("devices {first} and {other} of this process; FARANDOLE_PLANE=staged takes any");
            return Err(Error::local("working on tensors together", std::io::Error::other(both)));
        }
        let dtype = input.dtype();
        let elem_bytes = dtype.size_bytes() as u64;
        let bytes = movement.ends[here.me.index()][part].output * elem_bytes;
        let replaces = matches!(
            plan.collective,
            Collective::Allreduce { .. } | Collective::Broadcast { .. } | Collective::Reduce { .. }
        );
        let (address, made) = match &pending.output {
            Some(output) if output.len_bytes() as u64 == bytes => (place(output).address, None),
            _ if replaces => (place(input).address, None),
            _ => {
                let opened = plane.opened(first).map_err(|error| local(format!("opening device {first}"), error))?;
                let result = opened.results.take(&opened.device, bytes as usize, plan.dtype);
                let result = result.map_err(|error| local("allocating memory for a result", error))?;
                (place(&result).address, Some(result))
            }
        };
        let input = Stretch { address: place(input).address, bytes: input.len_bytes() as u64 };
        self.runs_ahead &= pending.runs_ahead;
        // Requests that were submitted together share an event.
        let is_new = |ready: &&Event| self.ready.last().is_none_or(|last| last.handle() != ready.handle());
        self.ready.extend(pending.ready.as_ref().filter(is_new).cloned());
        self.tensors.push(Tensor { input, output: Stretch { address, bytes }, dtype });
        self.results.push(made);
        Ok(())
    }
}

fn place(region: &Region) -> OnDevice {
    region.device().expect("invariant: a bucket in device memory has regions there")
}
