//! Horovod's own C functions, with its signatures and return values, as its Python class uses them through ctypes.
//!
//! They act on the job that the other functions act on. What was wrong is in `farandole_last_error`.
//!
//! This library links no MPI, so it cannot look into a communicator: `horovod_init_multi_comm` refuses one, and says
//! what to pass instead. The Python package asks mpi4py for the ranks and passes those.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};

use farandole::{Environment, GroupId, Launcher, ReduceOp, Setup};

use crate::job;
use crate::lifecycle::{
    asked, begin, current, farandole_cross_rank, farandole_cross_size, farandole_local_rank, farandole_local_size,
    farandole_rank, farandole_size, is_homogeneous, read_rank, read_sets,
};
use crate::marks;
use crate::pointer::{array, null, text};
use crate::sets::{self, members, numbers, read_ranks, read_set};
use crate::status::{Fault, Status};

/// Horovod's `bool`. Whoever calls through ctypes without saying so reads an `int`, of which a `bool` leaves most bits
/// undefined; this one is right for both.
type Truth = c_int;

/// Horovod's numbers for what is wrong with a process set.
const ERROR_INIT: c_int = -1;
const ERROR_DYNAMIC: c_int = -2;
const ERROR_UNKNOWN_SET: c_int = -3;
const ERROR_FOREIGN_SET: c_int = -4;
const ERROR_SHUTDOWN: c_int = -5;
const ERROR_EXISTING_SET: c_int = -6;

/// Horovod's number for a fault.
fn number_of(fault: &Fault) -> c_int {
    match fault.status {
        Status::NotInitialized | Status::Forked => ERROR_INIT,
        Status::NotAMember => ERROR_FOREIGN_SET,
        Status::ExistingProcessSet => ERROR_EXISTING_SET,
        Status::UnknownProcessSet | Status::InvalidArgument => ERROR_UNKNOWN_SET,
        _ => ERROR_SHUTDOWN,
    }
}

/// Carries out a call about process sets that says what is wrong by Horovod's numbers.
fn answer(call: impl FnOnce() -> Result<c_int, Fault>) -> c_int {
    let mut number = ERROR_SHUTDOWN;
    let answered = crate::status::answer(None, || call().map(Some).inspect_err(|fault| number = number_of(fault)));
    answered.unwrap_or(number)
}

/// Whether `mpirun` has started this process.
fn started_by_mpi() -> bool {
    Environment::launched().is_some_and(|(launcher, ..)| matches!(launcher, Launcher::OpenMpi | Launcher::Mpich))
}

/// A length, which C has as `int`.
fn length(count: c_int, what: &str) -> Result<usize, Fault> {
    usize::try_from(count).map_err(|_| Fault::argument(format!("{what} is {count}, which is below zero")))
}

/// Begins the job, of which `ranks` are all or nothing.
fn begin_with(ranks: &[i32], process_sets: &[Vec<u32>]) -> Result<Truth, Fault> {
    let mut all = ranks.iter().map(|&rank| read_rank(rank)).collect::<Result<Vec<u32>, Fault>>()?;
    all.sort_unstable();
    let began_here = job::peek().is_none();
    begin(Setup::new(), process_sets)?;
    let size = current()?.world.size();
    if !all.is_empty() && !all.iter().copied().eq(0..u32::try_from(size).unwrap_or(u32::MAX)) {
        if began_here {
            job::end();
        }
        return Err(Fault::argument(format!(
            "the ranks {ranks:?} are not all of this job, which has {size}; pass none, and use process sets for a part"
        )));
    }
    Ok(1)
}

/// The job, if process sets may be changed.
fn check_dynamic() -> Result<(), c_int> {
    match current() {
        Ok(job) if job.dynamic => Ok(()),
        Ok(_) => Err(ERROR_DYNAMIC),
        Err(_) => Err(ERROR_INIT),
    }
}

exported! {
    /// Makes this process a rank. `false` if that fails.
    fn horovod_init(
        ranks: *const c_int,
        nranks: c_int,
        process_set_ranks: *const c_int,
        process_set_sizes: *const c_int,
        num_process_sets: c_int,
    ) -> Truth, otherwise 0; {
        let (nranks, sets) = (length(nranks, "nranks")?, length(num_process_sets, "num_process_sets")?);
        // SAFETY: promised by the caller.
        let (ranks, sets) =
            unsafe { (array(ranks, nranks, "ranks")?, read_sets(process_set_ranks, process_set_sizes, sets)?) };
        begin_with(ranks, &sets)
    }
}

exported! {
    /// The same with communicators of MPI, of which there can be none here.
    fn horovod_init_multi_comm(
        comm: *mut c_void,
        ncomms: c_int,
        process_set_ranks_via_ranks: *const c_int,
        process_set_sizes_via_ranks: *const c_int,
        num_process_sets_via_ranks: c_int,
    ) -> Truth, otherwise 0; {
        let _ = comm;
        if ncomms != 0 {
            return Err(Fault::argument(
                "this library links no MPI and cannot look into communicators; call horovod_init with the ranks of the \
                 process sets (farandole's Python package does so for communicators of mpi4py)",
            ));
        }
        let (ranks, sizes) = (process_set_ranks_via_ranks, process_set_sizes_via_ranks);
        let count = length(num_process_sets_via_ranks, "num_process_sets_via_ranks")?;
        // SAFETY: promised by the caller.
        begin_with(&[], &unsafe { read_sets(ranks, sizes, count) }?)
    }
}

exported! {
    /// Leaves the job.
    fn horovod_shutdown() -> (), otherwise (); {
        job::end();
        Ok(())
    }
}

exported! {
    /// Whether this process is a rank.
    fn horovod_is_initialized() -> c_int, otherwise 0; { Ok(c_int::from(job::peek().is_some())) }
}

/// Functions that are ours under another name.
macro_rules! same {
    ($($(#[$doc:meta])* $name:ident is $ours:ident;)*) => {$(
        exported! {
            $(#[$doc])*
            fn $name() -> c_int, otherwise -1; {
                // SAFETY: there are no pointers.
                Ok(unsafe { $ours() })
            }
        }
    )*};
}

same! {
    /// This rank; -1 where there is none.
    horovod_rank is farandole_rank;
    /// Number of ranks.
    horovod_size is farandole_size;
    /// This rank's number on its host.
    horovod_local_rank is farandole_local_rank;
    /// Number of ranks on this host.
    horovod_local_size is farandole_local_size;
    /// The number of this host among those that have such a local rank.
    horovod_cross_rank is farandole_cross_rank;
    /// How many such hosts there are.
    horovod_cross_size is farandole_cross_size;
}

/// Functions that always answer the same.
macro_rules! constant {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $value:expr;)*) => {$(
        exported! {
            $(#[$doc])*
            fn $name() -> $type, otherwise $value; { Ok($value) }
        }
    )*};
}

constant! {
    /// Jobs may be started by `mpirun`.
    horovod_mpi_built: Truth = 1;
    /// Our own transports stand where Gloo does in Horovod.
    horovod_gloo_enabled: Truth = 1;
    /// As above.
    horovod_gloo_built: Truth = 1;
    /// No DDL.
    horovod_ddl_built: Truth = 0;
    /// No oneCCL.
    horovod_ccl_built: Truth = 0;
    /// No ROCm.
    horovod_rocm_built: Truth = 0;
    /// The number of a reduction.
    horovod_reduce_op_average: c_int = ReduceOp::Average as c_int;
    /// The number of a reduction.
    horovod_reduce_op_sum: c_int = ReduceOp::Sum as c_int;
    /// The number of a reduction.
    horovod_reduce_op_adasum: c_int = ReduceOp::Adasum as c_int;
    /// The number of a reduction.
    horovod_reduce_op_min: c_int = ReduceOp::Min as c_int;
    /// The number of a reduction.
    horovod_reduce_op_max: c_int = ReduceOp::Max as c_int;
    /// The number of a reduction.
    horovod_reduce_op_product: c_int = ReduceOp::Product as c_int;
}

exported! {
    /// Whether all hosts have the same number of ranks; `false` before the beginning.
    fn horovod_is_homogeneous() -> Truth, otherwise 0; { Ok(Truth::from(is_homogeneous(&asked()?.world))) }
}

exported! {
    /// The version of NCCL, if it is there and can be used: 23007 is 2.30.7. Opens it.
    fn horovod_nccl_built() -> c_int, otherwise 0; {
        Ok(farandole::nccl_version(&[]).map_or(0, |version| version.0 as c_int))
    }
}

exported! {
    /// Whether there is a device of CUDA's. Opens the driver.
    fn horovod_cuda_built() -> Truth, otherwise 0; { Ok(Truth::from(farandole::has_cuda())) }
}

exported! {
    /// Whether `mpirun` has started this job.
    fn horovod_mpi_enabled() -> Truth, otherwise 0; { Ok(Truth::from(started_by_mpi())) }
}

exported! {
    /// 1: this library makes no calls of MPI that could be in the way of other threads'. -1 before the beginning.
    fn horovod_mpi_threads_supported() -> c_int, otherwise -1; { asked().map(|_| 1) }
}

exported! {
    /// Makes a process set, in a job that allows it.
    fn horovod_add_process_set(ranks: *const c_int, nranks: c_int) -> c_int, otherwise ERROR_SHUTDOWN; {
        if let Err(number) = check_dynamic() {
            return Ok(number);
        }
        Ok(answer(|| {
            // SAFETY: promised by the caller.
            let ranks = unsafe { read_ranks(ranks, length(nranks, "nranks")?) }?;
            sets::add(&ranks)
        }))
    }
}

exported! {
    /// Ends a process set, in a job that allows it.
    fn horovod_remove_process_set(process_set_id: c_int) -> c_int, otherwise ERROR_SHUTDOWN; {
        if let Err(number) = check_dynamic() {
            return Ok(number);
        }
        Ok(answer(|| sets::remove(read_set(process_set_id)?).map(|()| process_set_id)))
    }
}

exported! {
    /// This rank's number in a process set.
    fn horovod_process_set_rank(process_set_id: c_int) -> c_int, otherwise ERROR_SHUTDOWN; {
        Ok(answer(|| {
            let (job, set) = (asked()?, read_set(process_set_id)?);
            let rank = job.world.engine().rank_in(set)?;
            rank.map(|rank| rank.0 as c_int).ok_or_else(|| farandole::EngineError::ForeignGroup(set).into())
        }))
    }
}

exported! {
    /// Number of members of a process set.
    fn horovod_process_set_size(process_set_id: c_int) -> c_int, otherwise ERROR_SHUTDOWN; {
        Ok(answer(|| Ok(members(&asked()?.world, read_set(process_set_id)?)?.len() as c_int)))
    }
}

exported! {
    /// Whether this rank is a member of a process set.
    fn horovod_process_set_included(process_set_id: c_int) -> c_int, otherwise ERROR_SHUTDOWN; {
        if process_set_id == GroupId::WORLD.0 as c_int {
            return Ok(1);
        }
        Ok(answer(|| Ok(c_int::from(asked()?.world.engine().rank_in(read_set(process_set_id)?)?.is_some()))))
    }
}

exported! {
    /// Number of process sets.
    fn horovod_number_of_process_sets() -> c_int, otherwise 0; { Ok(numbers(&asked()?.world).len() as c_int) }
}

exported! {
    /// The numbers of all process sets, to an array that is large enough.
    fn horovod_process_set_ids(ids_prealloc: *mut c_int) -> (), otherwise (); {
        let list = numbers(&asked()?.world);
        // SAFETY: promised by the caller.
        unsafe { put_all(&list, ids_prealloc) }
    }
}

exported! {
    /// The members of a process set, to an array that is large enough. 0, or what is wrong.
    fn horovod_process_set_ranks(id: c_int, ranks_prealloc: *mut c_int) -> c_int, otherwise ERROR_SHUTDOWN; {
        Ok(answer(|| {
            let members = members(&asked()?.world, read_set(id)?)?;
            let list: Vec<c_int> = members.iter().map(|rank| rank.0 as c_int).collect();
            // SAFETY: promised by the caller.
            unsafe { put_all(&list, ranks_prealloc) }.map(|()| 0)
        }))
    }
}

exported! {
    /// The process set of a communicator of MPI, of which this library knows none.
    fn horovod_comm_process_set(comm: *mut c_void) -> c_int, otherwise ERROR_INIT; {
        let _ = comm;
        if job::peek().is_none() || !started_by_mpi() {
            return Ok(ERROR_INIT);
        }
        Ok(answer(|| {
            let text = "this library links no MPI and cannot look into communicators; look the ranks up among those of \
                        horovod_process_set_ranks";
            Err(Fault::new(Status::UnknownProcessSet, text))
        }))
    }
}

exported! {
    /// Begins a timeline. 1, -1 before the beginning, -2 where the environment has not announced one, -3 if the file
    /// cannot be made.
    fn horovod_start_timeline(file_name: *const c_char, mark_cycles: u8) -> c_int, otherwise -3; {
        match job::peek() {
            None => return Ok(-1),
            Some(job) if !job.world.timeline_prepared() => return Ok(-2),
            Some(_) => {}
        }
        // SAFETY: promised by the caller.
        marks::start(unsafe { text(file_name, "file_name") }?, mark_cycles != 0).map(|()| 1)
    }
}

exported! {
    /// Ends the timeline. 1, -1 before the beginning.
    fn horovod_stop_timeline() -> c_int, otherwise -1; { marks::stop().map(|()| 1) }
}

/// Copies a list to an array of the caller's.
///
/// # Safety
/// Null, or as many places as the list is long.
unsafe fn put_all(list: &[c_int], places: *mut c_int) -> Result<(), Fault> {
    if places.is_null() {
        return Err(null("the array for the answer"));
    }
    // SAFETY: promised by the caller; a list of ours does not overlap it.
    unsafe { std::ptr::copy_nonoverlapping(list.as_ptr(), places, list.len()) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_the_beginning_answers_are_horovods() {
        // SAFETY: no pointers but null.
        unsafe {
            assert_eq!((horovod_rank(), horovod_size(), horovod_is_initialized()), (-1, -1, 0));
            assert_eq!((horovod_mpi_threads_supported(), horovod_is_homogeneous()), (-1, 0));
            assert_eq!(horovod_add_process_set(std::ptr::null(), 0), ERROR_INIT);
            assert_eq!(horovod_process_set_size(1), ERROR_INIT);
            assert_eq!(horovod_process_set_included(0), 1);
            assert_eq!(horovod_start_timeline(c"/t".as_ptr(), 0), -1);
            assert_eq!(horovod_stop_timeline(), -1);
            assert_eq!(horovod_reduce_op_product(), 5);
            assert_eq!(horovod_init(std::ptr::null(), 2, std::ptr::null(), std::ptr::null(), 0), 0);
            assert_eq!(horovod_init_multi_comm(std::ptr::null_mut(), 1, std::ptr::null(), std::ptr::null(), 0), 0);
        }
    }
}
