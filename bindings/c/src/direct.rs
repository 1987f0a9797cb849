//! Direct collectives: of the whole world, on the caller's memory and thread, in the caller's order.

#![allow(unsafe_code)]

use std::ffi::c_void;

use farandole::{Communicator, Dtype, EngineError, ReduceOp};

use crate::lifecycle::{current, read_rank};
use crate::pointer::{array, bytes, bytes_mut, len_bytes, overlap, total};
use crate::status::Fault;

/// An element type by its number.
pub(crate) fn read_dtype(number: i32) -> Result<Dtype, Fault> {
    let dtype = u8::try_from(number).ok().and_then(Dtype::from_wire);
    dtype.ok_or_else(|| Fault::argument(format!("there is no element type with the number {number}")))
}

/// A reduction by its number.
pub(crate) fn read_op(number: i32) -> Result<ReduceOp, Fault> {
    let op = u8::try_from(number).ok().and_then(ReduceOp::from_wire);
    op.ok_or_else(|| Fault::argument(format!("there is no reduction with the number {number}")))
}

/// Makes a direct call, of which one is made at a time. A failure is told to the launcher.
fn call(make: impl FnOnce(&mut Communicator) -> Result<(), EngineError>) -> Result<(), Fault> {
    let job = current()?;
    let called = make(&mut job.world.lock_communicator());
    called.map_err(|error| job.world.report(error).into())
}

/// Number of ranks, and this one.
fn seat() -> Result<(usize, usize), Fault> {
    let job = current()?;
    Ok((job.world.size(), job.world.rank()))
}

/// Refuses buffers that have bytes in common: one is read while the other is written.
fn apart(one: *const c_void, one_bytes: usize, other: *const c_void, other_bytes: usize) -> Result<(), Fault> {
    let range = |pointer: *const c_void, len: usize| pointer.addr()..pointer.addr().saturating_add(len);
    if overlap(&range(one, one_bytes), &range(other, other_bytes)) {
        return Err(Fault::argument("the buffer that is read and the one that is written overlap"));
    }
    Ok(())
}

/// Even shares of so many elements, the first ones one element larger where it does not come out even.
fn shares(elements: usize, ranks: usize) -> Vec<usize> {
    (0..ranks).map(|rank| elements / ranks + usize::from(rank < elements % ranks)).collect()
}

/// Gathers; `counts[r]` elements come from rank `r`.
///
/// # Safety
/// `own` and `all` have so many elements.
unsafe fn gather(own: *const c_void, counts: &[usize], all: *mut c_void, dtype: Dtype) -> Result<(), Fault> {
    let (size, rank) = seat()?;
    if counts.len() != size {
        return Err(Fault::argument(format!("{} counts for {size} ranks", counts.len())));
    }
    let (own_bytes, all_bytes) = (len_bytes(counts[rank], dtype)?, len_bytes(total(counts)?, dtype)?);
    apart(own, own_bytes, all, all_bytes)?;
    // SAFETY: promised by the caller; they do not overlap.
    let (own, all) = unsafe { (bytes(own, own_bytes, "own")?, bytes_mut(all, all_bytes, "all")?) };
    call(|communicator| communicator.allgather_bytes(own, counts, all, dtype))
}

/// Sends `send_counts[r]` elements to each rank `r`, and gets `recv_counts[r]` from it.
///
/// # Safety
/// `data` and `received` have so many elements.
unsafe fn exchange(
    data: *const c_void,
    send_counts: &[usize],
    received: *mut c_void,
    recv_counts: &[usize],
    dtype: Dtype,
) -> Result<(), Fault> {
    let (sent, got) = (len_bytes(total(send_counts)?, dtype)?, len_bytes(total(recv_counts)?, dtype)?);
    apart(data, sent, received, got)?;
    // SAFETY: promised by the caller; they do not overlap.
    let (data, received) = unsafe { (bytes(data, sent, "data")?, bytes_mut(received, got, "received")?) };
    call(|communicator| communicator.alltoall_bytes(data, send_counts, received, recv_counts, dtype))
}

exported! {
    /// Combines the data of all ranks in place.
    fn farandole_allreduce(data: *mut c_void, count: usize, dtype: i32, op: i32) {
        let (dtype, op) = (read_dtype(dtype)?, read_op(op)?);
        // SAFETY: promised by the caller.
        let data = unsafe { bytes_mut(data, len_bytes(count, dtype)?, "data") }?;
        call(|communicator| communicator.allreduce_bytes(data, dtype, op, 1.0, 1.0))
    }
}

exported! {
    /// The same with a factor for each contribution and one for the result.
    fn farandole_allreduce_scaled(
        data: *mut c_void, count: usize, dtype: i32, op: i32, prescale: f64, postscale: f64,
    ) {
        let (dtype, op) = (read_dtype(dtype)?, read_op(op)?);
        // SAFETY: promised by the caller.
        let data = unsafe { bytes_mut(data, len_bytes(count, dtype)?, "data") }?;
        call(|communicator| communicator.allreduce_bytes(data, dtype, op, prescale, postscale))
    }
}

exported! {
    /// Gives all ranks the root's data.
    fn farandole_broadcast(data: *mut c_void, count: usize, dtype: i32, root: i32) {
        let (dtype, root) = (read_dtype(dtype)?, read_rank(root)?);
        // SAFETY: promised by the caller.
        let data = unsafe { bytes_mut(data, len_bytes(count, dtype)?, "data") }?;
        call(|communicator| communicator.broadcast_bytes(data, dtype, farandole::Rank(root)))
    }
}

exported! {
    /// Gives all ranks the data of all, the same number of elements from each.
    fn farandole_allgather(own: *const c_void, count: usize, dtype: i32, all: *mut c_void) {
        let counts = vec![count; seat()?.0];
        // SAFETY: promised by the caller.
        unsafe { gather(own, &counts, all, read_dtype(dtype)?) }
    }
}

exported! {
    /// Gives all ranks the data of all, `counts[r]` elements from rank `r`.
    fn farandole_allgatherv(own: *const c_void, counts: *const usize, dtype: i32, all: *mut c_void) {
        // SAFETY: promised by the caller.
        unsafe { gather(own, array(counts, seat()?.0, "counts")?, all, read_dtype(dtype)?) }
    }
}

exported! {
    /// Combines the data of all ranks and gives each its part: `counts[r]` elements to rank `r`, even shares of
    /// `count` without counts.
    fn farandole_reducescatter(
        data: *const c_void, count: usize, counts: *const usize, dtype: i32, op: i32, own: *mut c_void,
    ) {
        let (dtype, op, (size, rank)) = (read_dtype(dtype)?, read_op(op)?, seat()?);
        let counts = match counts.is_null() {
            true => shares(count, size),
            // SAFETY: promised by the caller.
            false => unsafe { array(counts, size, "counts") }?.to_vec(),
        };
        if total(&counts)? != count {
            return Err(Fault::argument(format!("the counts {counts:?} do not add up to {count} elements")));
        }
        let (data_bytes, own_bytes) = (len_bytes(count, dtype)?, len_bytes(counts[rank], dtype)?);
        apart(data, data_bytes, own, own_bytes)?;
        // SAFETY: promised by the caller; they do not overlap.
        let (data, own) = unsafe { (bytes(data, data_bytes, "data")?, bytes_mut(own, own_bytes, "own")?) };
        call(|communicator| communicator.reduce_scatter_bytes(data, &counts, own, dtype, op))
    }
}

exported! {
    /// Sends each rank `count` elements and gets as many from each.
    fn farandole_alltoall(data: *const c_void, count: usize, dtype: i32, received: *mut c_void) {
        let counts = vec![count; seat()?.0];
        // SAFETY: promised by the caller.
        unsafe { exchange(data, &counts, received, &counts, read_dtype(dtype)?) }
    }
}

exported! {
    /// Sends `send_counts[r]` elements to rank `r` and gets `recv_counts[r]` from it.
    fn farandole_alltoallv(
        data: *const c_void,
        send_counts: *const usize,
        received: *mut c_void,
        recv_counts: *const usize,
        dtype: i32,
    ) {
        let (size, _) = seat()?;
        // SAFETY: promised by the caller.
        unsafe {
            let (send, recv) = (array(send_counts, size, "send_counts")?, array(recv_counts, size, "recv_counts")?);
            exchange(data, send, received, recv, read_dtype(dtype)?)
        }
    }
}

exported! {
    /// Returns when all ranks have called it.
    fn farandole_barrier() { call(Communicator::barrier) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_has_the_same_element_types_and_reductions() {
        for dtype in Dtype::ALL {
            let line = format!("    FARANDOLE_{} = {},", dtype.name().to_uppercase(), dtype as u8);
            assert!(crate::HEADER.contains(&line), "the header lacks `{line}`");
        }
        for op in ReduceOp::ALL {
            let line = format!("    FARANDOLE_{} = {},", op.name().to_uppercase(), op as u8);
            assert!(crate::HEADER.contains(&line), "the header lacks `{line}`");
        }
    }

    #[test]
    fn numbers_that_mean_nothing_are_refused() {
        assert!(read_dtype(-1).is_err() && read_dtype(13).is_err() && read_dtype(300).is_err());
        assert!(read_op(6).is_err() && read_op(-1).is_err());
        assert_eq!((read_dtype(11).expect("a type"), read_op(1).expect("an op")), (Dtype::F32, ReduceOp::Sum));
    }

    #[test]
    fn shares_are_even_and_complete() {
        assert_eq!(shares(7, 3), [3, 2, 2]);
    }
}
