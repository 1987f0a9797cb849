//! From a `farandole_request` to a submission, and messages between two ranks.
//!
//! Ranks are those of the world here, as everywhere in the header; the engine wants those of the process set. The
//! caller's memory is lent until the ticket is done: `farandole_ticket_free` waits for that.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use farandole::{Batch, Collective, Dtype, GroupId, Rank, Region, Request, Submission};

use crate::direct::{read_dtype, read_op};
use crate::job::Job;
use crate::lifecycle::current;
use crate::pointer::{Place, array, len_bytes, lend, null, overlap, put, sized, text};
use crate::sets::{members, rank_in_set, read_set};
use crate::status::Fault;
use crate::ticket;

/// `FARANDOLE_ANY_RANK`.
const ANY_RANK: i32 = -1;

/// `farandole_request`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Description {
    size: usize,
    name: *const c_char,
    data: *mut c_void,
    shape: *const u64,
    dimensions: usize,
    dtype: i32,
    collective: i32,
    op: i32,
    process_set: i32,
    root: i32,
    priority: i32,
    prescale: f64,
    postscale: f64,
    splits: *const u64,
    split_count: usize,
    output: *mut c_void,
    output_count: usize,
}

impl Description {
    const NONE: Description = Description {
        size: size_of::<Description>(),
        name: std::ptr::null(),
        data: std::ptr::null_mut(),
        shape: std::ptr::null(),
        dimensions: 0,
        dtype: Dtype::F32 as i32,
        collective: 0,
        op: 0,
        process_set: 0,
        root: 0,
        priority: 0,
        prescale: 1.0,
        postscale: 1.0,
        splits: std::ptr::null(),
        split_count: 0,
        output: std::ptr::null_mut(),
        output_count: 0,
    };

    /// Reads one.
    ///
    /// # Safety
    /// Null, or what the header says.
    unsafe fn read(pointer: *const Description) -> Result<Description, Fault> {
        // SAFETY: promised by the caller; every field takes any bits.
        unsafe { sized(pointer, size_of::<Description>(), Description::NONE, "farandole_request") }
    }

    /// The request with its memory, and the members of its process set.
    ///
    /// # Safety
    /// Pointers are null or what the header says; the memory lives until the request is done.
    unsafe fn submission(&self, job: &Job, batch: Option<Batch>) -> Result<(Submission, Arc<[Rank]>), Fault> {
        // SAFETY: promised by the caller.
        let name = unsafe { text(self.name, "name") }?;
        if name.is_empty() {
            return Err(Fault::argument("name is empty"));
        }
        let group = read_set(self.process_set)?;
        let (members, dtype) = (members(&job.world, group)?, read_dtype(self.dtype)?);
        // SAFETY: promised by the caller.
        let collective = unsafe { self.collective(&members, group) }?;
        if matches!(collective, Collective::Barrier | Collective::Join) {
            let request = Request::new(name, collective, Dtype::U8, []).in_batch(batch);
            return Ok((Submission::without_memory(request).in_group(group), members));
        }
        // SAFETY: promised by the caller.
        let shape = unsafe { array(self.shape, self.dimensions, "shape") }?;
        let in_place = matches!(
            collective,
            Collective::Allreduce { .. } | Collective::Broadcast { .. } | Collective::Reduce { .. }
        );
        let elements = shape.iter().try_fold(1usize, |elements, &dim| elements.checked_mul(usize::try_from(dim).ok()?));
        let elements =
            elements.ok_or_else(|| Fault::argument(format!("the shape {shape:?} is more than there is memory")))?;
        let bytes = len_bytes(elements, dtype)?;
        // SAFETY: promised by the caller.
        let (input, output) = unsafe { (lend(self.data, bytes, dtype, "data")?, self.output(dtype, bytes, in_place)?) };
        let request = Request::new(name, collective, dtype, shape).in_batch(batch).with_priority(self.priority);
        Ok((Submission { group, request, input: Some(input), output, ready: None, runs_ahead: false }, members))
    }

    /// The caller's own place for the result, if it has one.
    ///
    /// # Safety
    /// As [`Description::submission`].
    unsafe fn output(&self, dtype: Dtype, input_bytes: usize, in_place: bool) -> Result<Option<Region>, Fault> {
        if self.output.is_null() || in_place && self.output == self.data {
            return Ok(None);
        }
        let bytes = len_bytes(self.output_count, dtype)?;
        let range = |pointer: *mut c_void, len: usize| pointer.addr()..pointer.addr().saturating_add(len);
        if overlap(&range(self.data, input_bytes), &range(self.output, bytes)) {
            return Err(Fault::argument("data and output overlap"));
        }
        // SAFETY: promised by the caller.
        unsafe { lend(self.output, bytes, dtype, "output") }.map(Some)
    }

    /// Which collective, with what is particular to it.
    ///
    /// # Safety
    /// As [`Description::submission`].
    unsafe fn collective(&self, members: &[Rank], group: GroupId) -> Result<Collective, Fault> {
        let &Description { prescale, postscale, .. } = self;
        let op = || read_op(self.op);
        let root = || rank_in_set(members, self.root, group);
        let splits = || {
            // SAFETY: promised by the caller.
            let splits = unsafe { array(self.splits, self.split_count, "splits") }?;
            Ok::<_, Fault>((!self.splits.is_null()).then(|| splits.to_vec()))
        };
        Ok(match self.collective {
            0 => Collective::Allreduce { op: op()?, prescale, postscale },
            1 => Collective::Allgather,
            2 => Collective::Broadcast { root: root()? },
            3 => Collective::Alltoall { splits: splits()? },
            4 => Collective::ReduceScatter { op: op()?, prescale, postscale },
            5 => Collective::Reduce { root: root()?, op: op()?, prescale, postscale },
            6 => Collective::Gather { root: root()? },
            7 => Collective::Scatter { root: root()?, splits: splits()? },
            8 => Collective::Barrier,
            9 => Collective::Join,
            other => return Err(Fault::argument(format!("there is no collective with the number {other}"))),
        })
    }
}

/// Submits, and gives the ticket a number.
fn submit(job: &Arc<Job>, submission: Submission, members: Arc<[Rank]>) -> Result<u64, Fault> {
    match job.world.engine().submit(submission) {
        Ok(submitted) => Ok(ticket::enter(submitted, job, members)),
        Err(error) => Err(job.world.report(error).into()),
    }
}

exported! {
    /// Submits a named request.
    fn farandole_submit(request: *const Description, ticket: Place<'_, u64>) {
        let ticket = ticket.ok_or_else(|| null("ticket"))?;
        let job = current()?;
        // SAFETY: promised by the caller.
        let (submission, members) = unsafe { Description::read(request)?.submission(&job, None) }?;
        ticket.write(submit(&job, submission, members)?);
        Ok(())
    }
}

exported! {
    /// Submits named requests that run together or not at all.
    fn farandole_submit_group(
        group: *const c_char, requests: *const Description, count: usize, tickets: *mut u64,
    ) {
        let job = current()?;
        if count == 0 {
            return Ok(());
        }
        if tickets.is_null() {
            return Err(null("tickets"));
        }
        let members = u32::try_from(count).map_err(|_| Fault::argument("too many requests for one group"))?;
        // SAFETY: promised by the caller.
        let (group, stride) = unsafe { (text(group, "group")?, Description::read(requests)?.size) };
        let batch = Batch { name: group.into(), members };
        let mut submissions = Vec::with_capacity(count);
        for index in 0..count {
            let request = requests.wrapping_byte_add(index * stride);
            // SAFETY: promised by the caller; all requests have the size that the first one says.
            submissions.push(unsafe { Description::read(request)?.submission(&job, Some(batch.clone())) }?);
            // SAFETY: there is a place for each ticket.
            unsafe { tickets.add(index).write(ticket::NONE) };
        }
        for (index, (submission, members)) in submissions.into_iter().enumerate() {
            let number = submit(&job, submission, members)?;
            // SAFETY: as above.
            unsafe { tickets.add(index).write(number) };
        }
        Ok(())
    }
}

/// One side of a message.
enum Side {
    Send,
    Recv,
}

/// Begins one side of a message and gives its ticket a number.
fn transfer(side: Side, memory: Region, peer: i32, tag: u32, process_set: i32) -> Result<u64, Fault> {
    let (job, group) = (current()?, read_set(process_set)?);
    let members = members(&job.world, group)?;
    let engine = job.world.engine();
    let begun = match side {
        Side::Recv if peer == ANY_RANK => engine.recv(group, None, tag, memory),
        Side::Recv => engine.recv(group, Some(rank_in_set(&members, peer, group)?), tag, memory),
        Side::Send => engine.send(group, rank_in_set(&members, peer, group)?, tag, memory),
    };
    begun.map(|begun| ticket::enter(begun, &job, members)).map_err(|error| job.world.report(error).into())
}

exported! {
    /// Sends memory to a rank.
    fn farandole_send(
        data: *const c_void, count: usize, dtype: i32, to: i32, tag: u32, process_set: i32, ticket: Place<'_, u64>,
    ) {
        let (dtype, place) = (read_dtype(dtype)?, ticket.ok_or_else(|| null("ticket"))?);
        // SAFETY: promised by the caller. A send reads its memory and does not write it.
        let memory = unsafe { lend(data.cast_mut(), len_bytes(count, dtype)?, dtype, "data") }?;
        place.write(transfer(Side::Send, memory, to, tag, process_set)?);
        Ok(())
    }
}

exported! {
    /// Receives from a rank into memory.
    fn farandole_recv(
        data: *mut c_void, count: usize, dtype: i32, from: i32, tag: u32, process_set: i32, ticket: Place<'_, u64>,
    ) {
        let dtype = read_dtype(dtype)?;
        if ticket.is_none() {
            return Err(null("ticket"));
        }
        // SAFETY: promised by the caller.
        let memory = unsafe { lend(data, len_bytes(count, dtype)?, dtype, "data") }?;
        put(ticket, "ticket", transfer(Side::Recv, memory, from, tag, process_set)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a world of one makes of a description.
    fn refused(description: Description) -> String {
        let members = [Rank(0)];
        // SAFETY: there is nothing to read.
        let read = unsafe { description.collective(&members, GroupId::WORLD) };
        read.expect_err("it is wrong").text.into_string().expect("UTF-8")
    }

    #[test]
    fn descriptions_that_mean_nothing_are_refused() {
        assert_eq!(
            refused(Description { collective: 10, ..Description::NONE }),
            "there is no collective with the number 10"
        );
        assert_eq!(refused(Description { op: 6, ..Description::NONE }), "there is no reduction with the number 6");
        let foreign = Description { collective: 2, root: 1, ..Description::NONE };
        assert_eq!(refused(foreign), "rank 1 is not in the process set 0");
        let lost = Description { collective: 3, split_count: 2, ..Description::NONE };
        assert_eq!(refused(lost), "splits is a null pointer");
    }

    #[test]
    fn outputs_in_the_input_are_refused_and_the_input_itself_means_in_place() {
        let mut data = [0f32; 4];
        let start: *mut c_void = data.as_mut_ptr().cast();
        let request = Description { data: start, output: start, output_count: 4, ..Description::NONE };
        // SAFETY: the memory lives and is not touched.
        let read = |request: &Description, in_place| unsafe { request.output(Dtype::F32, 16, in_place) };
        assert!(read(&request, true).expect("in place").is_none());
        assert!(read(&request, false).is_err());
        let inside = Description { output: start.wrapping_byte_add(8), output_count: 2, ..request };
        assert!(read(&inside, true).is_err());
        assert!(read(&Description { output: std::ptr::null_mut(), ..request }, false).expect("none").is_none());
    }

    #[test]
    fn the_header_has_the_same_collectives() {
        let members = [Rank(0)];
        for number in 0..10 {
            let description = Description { collective: number, ..Description::NONE };
            // SAFETY: there is nothing to read.
            let collective = unsafe { description.collective(&members, GroupId::WORLD) }.expect("a collective");
            let line = format!("    FARANDOLE_{} = {number},", collective.word().to_uppercase());
            assert!(crate::HEADER.contains(&line), "the header lacks `{line}`");
        }
        assert!(crate::HEADER.contains(&format!("    FARANDOLE_ANY_RANK = {ANY_RANK},")));
    }
}
