//! One node of a graph, or one kind of call in eager mode: [`Kernel`]. It turns a call of TensorFlow's into
//! submissions.
//!
//! TensorFlow makes a kernel once for each node, and keeps it; what does not change from call to call is read then.
//! Ranks match requests by the node's name, so that the order in which an executor comes to its nodes does not matter.
//! A grouped op is one batch: one request for each tensor, named after the node, and they run together.
//!
//! Memory: a call's inputs and outputs live until its callback has run, and the callback runs after the engine has
//! given all memory back. So regions need no owner here. Where TensorFlow lets an output take over the memory of its
//! input, the engine works in place; otherwise it reads the one and writes the other. Results whose size only the
//! agreement tells come in the engine's memory, which the output tensor takes over without a copy.
//!
//! This is an unsafe module: it lends the memory of tensors, and gives the engine's memory to TensorFlow.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

use farandole::{Batch, Collective, Dtype, GroupId, Outcome, Rank, ReduceOp, Region, Request, Submission};

use super::api::{Opaque, Status, Tensor, api};
use super::definitions::Kind;
use crate::op_error::{FAILED_PRECONDITION, OpError};
use crate::world::Job;

/// `TF_INT32`, the type of splits, ranks and sizes.
const INT32: c_int = 3;

/// `TF_DataType` of each element type, in the order of [`Dtype::ALL`].
const DATA_TYPES: [(c_int, Dtype); 13] = [
    (10, Dtype::Bool),
    (4, Dtype::U8),
    (6, Dtype::I8),
    (17, Dtype::U16),
    (5, Dtype::I16),
    (22, Dtype::U32),
    (INT32, Dtype::I32),
    (23, Dtype::U64),
    (9, Dtype::I64),
    (19, Dtype::F16),
    (14, Dtype::BF16),
    (1, Dtype::F32),
    (2, Dtype::F64),
];

/// So many iterations of a loop have requests of different names: more than TensorFlow runs at once unless a script
/// asks for it, and few enough for the names to be known after a while.
const ITERATIONS_APART: i64 = 64;

/// What Horovod says of a process set that does not exist.
const UNKNOWN_SET: i32 = -3;

/// What stays the same from call to call.
pub(crate) struct Kernel {
    pub(crate) kind: Kind,
    /// Whether the caller waits for the call anyway (eager mode), so that it may be carried out on the caller's thread.
    pub(crate) caller_waits: bool,
    pub(super) name: Arc<str>,
    /// Names of a group's members; of other ops, one.
    pub(super) members: Vec<Arc<str>>,
    pub(super) group: GroupId,
    pub(super) op: ReduceOp,
    pub(super) prescale: f64,
    pub(super) postscale: f64,
    pub(super) root: i64,
}

impl Kernel {
    /// Reads a node's attributes.
    ///
    /// # Safety
    /// `construction` is a `TF_OpKernelConstruction` that lives.
    pub(crate) unsafe fn read(kind: Kind, construction: Opaque) -> Result<Kernel, OpError> {
        // SAFETY: promised by the caller.
        let attrs = unsafe { Attrs::of(construction) };
        let (collects, reduces) = (!kind.is_local(), kind.reduces());
        // SAFETY: promised by the caller. The name lives as long as the construction.
        let node = unsafe {
            let view = (api().kernel_name)(construction);
            String::from_utf8_lossy(std::slice::from_raw_parts(view.data.cast::<u8>(), view.len)).into_owned()
        };
        let eager_name = if collects { attrs.string(c"eager_name")? } else { String::new() };
        let caller_waits = !eager_name.is_empty();
        let full = if caller_waits { eager_name } else { node };
        let scoped = collects && kind != Kind::Join;
        let ignore_scope = scoped && !kind.is_many() && attrs.bool(c"ignore_name_scope")?;
        let name = if ignore_scope { full.rsplit('/').next().unwrap_or(&full) } else { &full };
        let count = if kind.is_grouped() { attrs.int(c"num_tensors")? } else { 1 };
        let members = match kind.is_many() {
            true => attrs.strings(c"tensor_names")?.into_iter().map(Arc::from).collect(),
            false => Kernel::names_of_members(kind, name, count),
        };
        let has_set = scoped || matches!(kind, Kind::Size | Kind::ProcessSetIncluded);
        let group = if has_set { attrs.int(c"process_set_id")? } else { 0 };
        let op = if reduces { attrs.int(c"reduce_op")? } else { 1 };
        Ok(Kernel {
            kind,
            caller_waits,
            name: name.into(),
            members,
            group: u32::try_from(group)
                .map(GroupId)
                .map_err(|_| OpError::wrong_use(format!("there is no process set {group}")))?,
            op: u8::try_from(op)
                .ok()
                .and_then(ReduceOp::from_wire)
                .ok_or_else(|| OpError::wrong_use(format!("there is no reduction operation with the number {op}")))?,
            prescale: if reduces { attrs.float(c"prescale_factor")? } else { 1.0 },
            postscale: if reduces { attrs.float(c"postscale_factor")? } else { 1.0 },
            root: if matches!(kind, Kind::Broadcast | Kind::BroadcastMany) { attrs.int(c"root_rank")? } else { 0 },
        })
    }

    /// The names of an op's requests.
    pub(super) fn names_of_members(kind: Kind, name: &str, count: i64) -> Vec<Arc<str>> {
        match kind.is_grouped() {
            true => (1..=count).map(|index| format!("{name}_{index}of{count}").into()).collect(),
            false => vec![name.into()],
        }
    }

    /// The request of an op that has no tensor.
    pub(super) fn submission_without_memory(&self) -> Option<Submission> {
        let (collective, name) = match self.kind {
            Kind::Join => (Collective::Join, "join".into()),
            Kind::Barrier => (Collective::Barrier, Arc::clone(&self.name)),
            _ => return None,
        };
        let request = Request { name, ..self.request(0, collective, Dtype::U8, Vec::new()) };
        Some(Submission::without_memory(request).in_group(self.group))
    }

    /// The requests of one call.
    ///
    /// # Safety
    /// `context` is the `TF_OpKernelContext` of a call whose callback runs after the submissions' memory has been given
    /// back.
    pub(crate) unsafe fn submissions(&self, job: &Job, context: Opaque) -> Result<Vec<Submission>, OpError> {
        if let Some(submission) = self.submission_without_memory() {
            return Ok(vec![submission]);
        }
        // SAFETY: promised by the caller.
        let splits = if self.kind == Kind::Alltoall { unsafe { read_splits(context)? } } else { None };
        let collective = self.collective(job, splits)?;
        let mut submissions = Vec::with_capacity(self.members.len());
        for index in 0..self.members.len() {
            // SAFETY: promised by the caller. TensorFlow refuses an index that is too large.
            submissions.push(unsafe { self.submission(context, index, collective.clone())? });
        }
        if !self.caller_waits {
            // SAFETY: promised by the caller.
            let iteration = unsafe { iteration(context) };
            submissions.iter_mut().for_each(|submission| name_iteration(&mut submission.request, iteration));
        }
        Ok(submissions)
    }

    /// What an op with tensors asks for.
    pub(super) fn collective(&self, job: &Job, splits: Option<Vec<u64>>) -> Result<Collective, OpError> {
        let (op, prescale, postscale) = (self.op, self.prescale, self.postscale);
        Ok(match self.kind {
            Kind::Allreduce | Kind::GroupedAllreduce | Kind::AllreduceMany => {
                Collective::Allreduce { op, prescale, postscale }
            }
            Kind::Reducescatter | Kind::GroupedReducescatter => Collective::ReduceScatter { op, prescale, postscale },
            Kind::Allgather | Kind::GroupedAllgather => Collective::Allgather,
            Kind::Broadcast | Kind::BroadcastMany => Collective::Broadcast { root: self.root_in_group(job)? },
            Kind::Alltoall => Collective::Alltoall { splits },
            _ => unreachable!("invariant: ops without a tensor have no collective on one"),
        })
    }

    /// # Safety
    /// As for [`Kernel::submissions`].
    unsafe fn submission(&self, context: Opaque, index: usize, collective: Collective) -> Result<Submission, OpError> {
        let number = index as c_int;
        // SAFETY: promised by the caller.
        let input = unsafe { get_input(context, number)? };
        let dims = input.dims();
        let (data, len_bytes, dtype) = (input.data(), input.len_bytes(), dtype_of(input.data_type())?);
        // Whoever holds on to an input keeps its output from taking over the memory.
        drop(input);
        let shape = dims.iter().map(|&dim| dim as u64).collect();
        let request = self.request(index, collective, dtype, shape);
        // SAFETY: the context holds the input until the callback has run, which is after the region is gone. Others may
        // read it meanwhile; nobody writes to it, and neither does the engine where there is an output.
        let lent = |data: *mut u8| unsafe { Region::from_raw_parts(data, len_bytes, dtype, ()) };
        if !self.kind.is_in_place() {
            return Ok(Submission::new(request, lent(data)).in_group(self.group));
        }
        // SAFETY: promised by the caller; the context holds the output, too.
        let (output, taken_over) = unsafe { forward(context, number, &dims)? };
        let submission = Submission::new(request, lent(if taken_over { output } else { data })).in_group(self.group);
        Ok(if taken_over { submission } else { submission.with_output(lent(output)) })
    }

    pub(super) fn request(&self, index: usize, collective: Collective, dtype: Dtype, shape: Vec<u64>) -> Request {
        let members = self.members.len() as u32;
        let batch = self.kind.is_grouped().then(|| Batch { name: Arc::clone(&self.name), members });
        let name = Arc::clone(&self.members[index]);
        Request::new(name, collective, dtype, shape).in_batch(batch)
    }

    /// The number inside the process set of the root, which callers name by its number in the world.
    fn root_in_group(&self, job: &Job) -> Result<Rank, OpError> {
        let members = job.world.engine().group(self.group).map_err(|error| OpError::from(&error))?;
        let number = members.iter().position(|rank| i64::from(rank.0) == self.root).ok_or_else(|| {
            let (root, group) = (self.root, self.group);
            let text = format!("broadcast received invalid root rank {root} for provided process set {group}");
            OpError { code: FAILED_PRECONDITION, text }
        })?;
        Ok(Rank::from(number))
    }

    /// Gives TensorFlow what came of one member of a call.
    ///
    /// # Safety
    /// `context` is the `TF_OpKernelContext` of a call whose callback has not run.
    pub(crate) unsafe fn put_result(&self, context: Opaque, index: usize, mut outcome: Outcome) -> Result<(), OpError> {
        if self.kind == Kind::Join {
            let last = outcome.last_joined.map_or(-1, |rank| rank.0 as i32);
            // SAFETY: promised by the caller.
            return unsafe { put_numbers(context, 0, None, &[last]) };
        }
        if self.kind.is_in_place() || self.kind == Kind::Barrier {
            return Ok(());
        }
        let region = outcome.output.take().expect("invariant: results of their own size bring their memory");
        // SAFETY: promised by the caller.
        unsafe { put_region(context, index as c_int, &outcome.shape, region)? };
        if self.kind == Kind::Alltoall {
            let received: Vec<i32> = outcome.received_splits.iter().map(|&rows| rows as i32).collect();
            // SAFETY: promised by the caller.
            unsafe { put_numbers(context, 1, Some(received.len()), &received)? };
        }
        Ok(())
    }

    /// Answers an op that needs no other rank.
    ///
    /// # Safety
    /// As for [`Kernel::put_result`].
    pub(crate) unsafe fn answer_locally(&self, job: &Job, context: Opaque) -> Result<(), OpError> {
        let number = self.local_number(job)?;
        // SAFETY: promised by the caller.
        unsafe { put_numbers(context, 0, None, &[number]) }
    }

    /// What this rank answers.
    pub(super) fn local_number(&self, job: &Job) -> Result<i32, OpError> {
        let engine = job.world.engine();
        let number = match self.kind {
            Kind::Rank => job.world.rank(),
            Kind::LocalRank => job.world.local_rank(),
            Kind::LocalSize => job.world.local_size(),
            Kind::Size => engine.group(self.group).map_err(|error| OpError::from(&error))?.len(),
            _ => return Ok(engine.rank_in(self.group).map_or(UNKNOWN_SET, |rank| i32::from(rank.is_some()))),
        };
        Ok(i32::try_from(number).unwrap_or(i32::MAX))
    }
}

impl Kind {
    fn reduces(self) -> bool {
        let scatters = matches!(self, Kind::Reducescatter | Kind::GroupedReducescatter);
        scatters || matches!(self, Kind::Allreduce | Kind::GroupedAllreduce | Kind::AllreduceMany)
    }
}

/// A loop may have several iterations under way, and then one node several requests. Those of later iterations get
/// names of their own.
fn name_iteration(request: &mut Request, iteration: i64) {
    let iteration = iteration % ITERATIONS_APART;
    if iteration == 0 {
        return;
    }
    request.name = format!("{}/iteration{iteration}", request.name).into();
    if let Some(batch) = &mut request.batch {
        batch.name = format!("{}/iteration{iteration}", batch.name).into();
    }
}

/// Attributes of a node that is being made.
pub(super) struct Attrs {
    construction: Opaque,
    status: Status,
}

impl Attrs {
    /// # Safety
    /// `construction` is a `TF_OpKernelConstruction` that lives as long as this is used.
    pub(super) unsafe fn of(construction: Opaque) -> Attrs {
        Attrs { construction, status: Status::new() }
    }

    fn checked<V>(&self, value: V) -> Result<V, OpError> {
        match self.status.error() {
            None => Ok(value),
            Some(text) => Err(OpError::wrong_use(text)),
        }
    }

    fn int(&self, name: &CStr) -> Result<i64, OpError> {
        let mut value = 0;
        // SAFETY: the construction lives (promised to `Attrs::of`), and so do name, value and status; here and below.
        unsafe { (api().attr_int)(self.construction, name.as_ptr(), &mut value, self.status.raw()) };
        self.checked(value)
    }

    fn float(&self, name: &CStr) -> Result<f64, OpError> {
        let mut value = 0.0;
        // SAFETY: as above.
        unsafe { (api().attr_float)(self.construction, name.as_ptr(), &mut value, self.status.raw()) };
        self.checked(f64::from(value))
    }

    pub(super) fn bool(&self, name: &CStr) -> Result<bool, OpError> {
        let mut value = 0;
        // SAFETY: as above.
        unsafe { (api().attr_bool)(self.construction, name.as_ptr(), &mut value, self.status.raw()) };
        self.checked(value != 0)
    }

    fn strings(&self, name: &CStr) -> Result<Vec<String>, OpError> {
        let (mut entries, mut len_bytes) = (0, 0);
        // SAFETY: as above.
        unsafe {
            (api().attr_size)(self.construction, name.as_ptr(), &mut entries, &mut len_bytes, self.status.raw());
        }
        let count = self.checked(usize::try_from(entries).unwrap_or(0))?;
        let mut storage = vec![0u8; usize::try_from(len_bytes).unwrap_or(0)];
        let (mut starts, mut lens) = (vec![std::ptr::null_mut::<c_char>(); count], vec![0usize; count]);
        // SAFETY: as above; the lists have as many entries as are said, and so has the storage, into which the
        // addresses point.
        unsafe {
            (api().attr_strings)(
                self.construction,
                name.as_ptr(),
                starts.as_mut_ptr(),
                lens.as_mut_ptr(),
                entries,
                storage.as_mut_ptr().cast(),
                storage.len(),
                self.status.raw(),
            );
        }
        self.checked(())?;
        let base = storage.as_ptr().addr();
        let text = |(start, len): (&*mut c_char, &usize)| {
            let at = if *len == 0 { 0 } else { start.addr() - base };
            String::from_utf8_lossy(&storage[at..at + len]).into_owned()
        };
        Ok(starts.iter().zip(&lens).map(text).collect())
    }

    pub(super) fn string(&self, name: &CStr) -> Result<String, OpError> {
        let (mut entries, mut len_bytes) = (0, 0);
        // SAFETY: as above.
        unsafe {
            (api().attr_size)(self.construction, name.as_ptr(), &mut entries, &mut len_bytes, self.status.raw());
        }
        let mut bytes = vec![0u8; self.checked(usize::try_from(len_bytes).unwrap_or(0))?];
        let start = bytes.as_mut_ptr().cast::<c_char>();
        // SAFETY: as above, and the buffer has as many bytes as are said.
        unsafe { (api().attr_string)(self.construction, name.as_ptr(), start, bytes.len(), self.status.raw()) };
        self.checked(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// # Safety
/// `context` is the context of a call that is under way.
unsafe fn iteration(context: Opaque) -> i64 {
    // SAFETY: promised by the caller.
    unsafe { (api().iteration)(context) }
}

/// # Safety
/// `context` is the context of a call that is under way.
pub(super) unsafe fn get_input(context: Opaque, index: c_int) -> Result<Tensor, OpError> {
    let (status, mut tensor) = (Status::new(), std::ptr::null_mut());
    // SAFETY: promised by the caller; the tensor is ours to delete.
    let tensor = unsafe {
        (api().get_input)(context, index, &mut tensor, status.raw());
        Tensor::from_raw(tensor)
    };
    tensor.filter(|_| status.error().is_none()).ok_or_else(|| no_tensor(&status))
}

/// The output's memory, and whether it is that of the input of the same number.
///
/// # Safety
/// As for [`get_input`], with a context that holds the output until the callback has run.
unsafe fn forward(context: Opaque, index: c_int, dims: &[i64]) -> Result<(*mut u8, bool), OpError> {
    let (status, mut from) = (Status::new(), -1);
    let rank = dims.len() as c_int;
    // SAFETY: promised by the caller; everything passed lives during the call, and the tensor is ours to delete.
    let output = unsafe {
        Tensor::from_raw((api().forward_input)(context, &index, 1, index, dims.as_ptr(), rank, &mut from, status.raw()))
    };
    let output = output.filter(|_| status.error().is_none()).ok_or_else(|| no_tensor(&status))?;
    Ok((output.data(), from == index))
}

/// # Safety
/// As for [`get_input`].
unsafe fn read_splits(context: Opaque) -> Result<Option<Vec<u64>>, OpError> {
    // SAFETY: promised by the caller.
    let splits = unsafe { get_input(context, 1)? };
    let count = splits.len_bytes() / size_of::<i32>();
    if count == 0 {
        return Ok(None);
    }
    // SAFETY: a tensor of int32 (the op says so) with so many elements, aligned as TensorFlow does.
    let numbers = unsafe { std::slice::from_raw_parts(splits.data().cast::<i32>(), count) };
    let read = |&rows: &i32| {
        u64::try_from(rows).map_err(|_| OpError::wrong_use(format!("splits holds {rows}, which is below zero")))
    };
    numbers.iter().map(read).collect::<Result<_, _>>().map(Some)
}

/// Sets an output of int32: a scalar, or a vector of this length.
///
/// # Safety
/// As for [`get_input`].
unsafe fn put_numbers(context: Opaque, index: c_int, length: Option<usize>, numbers: &[i32]) -> Result<(), OpError> {
    let (status, dim) = (Status::new(), length.unwrap_or(0) as i64);
    let (len_bytes, rank) = (size_of_val(numbers), c_int::from(length.is_some()));
    // SAFETY: promised by the caller; the tensor is ours to delete, and the context holds on to its memory.
    let output = unsafe {
        Tensor::from_raw((api().allocate_output)(context, index, INT32, &dim, rank, len_bytes, status.raw()))
    };
    let output = output.filter(|_| status.error().is_none()).ok_or_else(|| no_tensor(&status))?;
    if len_bytes > 0 {
        // SAFETY: both have so many bytes, and the output was just allocated.
        unsafe { std::ptr::copy_nonoverlapping(numbers.as_ptr().cast::<u8>(), output.data(), len_bytes) };
    }
    Ok(())
}

/// Sets an output to memory of the engine's.
///
/// # Safety
/// As for [`get_input`].
unsafe fn put_region(context: Opaque, index: c_int, shape: &[u64], region: Region) -> Result<(), OpError> {
    let (data_type, len_bytes) = (data_type_of(region.dtype()), region.len_bytes());
    let dims: Vec<i64> = shape.iter().map(|&dim| dim as i64).collect();
    let owner = Box::into_raw(Box::new(region));
    let status = Status::new();
    // SAFETY: the region lives until TensorFlow frees the tensor's memory, or has copied it because it wants another
    // alignment; then `free_region` drops it.
    let tensor = unsafe {
        let data = (*owner).as_bytes_mut().as_mut_ptr().cast::<c_void>();
        let rank = dims.len() as c_int;
        Tensor::from_raw((api().new_tensor)(data_type, dims.as_ptr(), rank, data, len_bytes, free_region, owner.cast()))
    };
    let tensor = tensor.ok_or_else(|| no_tensor(&status))?;
    // SAFETY: promised by the caller.
    unsafe { (api().set_output)(context, index, tensor.raw(), status.raw()) };
    if status.error().is_some() { Err(no_tensor(&status)) } else { Ok(()) }
}

unsafe extern "C" fn free_region(_data: *mut c_void, _len_bytes: usize, owner: *mut c_void) {
    // SAFETY: the box that `put_region` has leaked, freed once.
    drop(unsafe { Box::from_raw(owner.cast::<Region>()) });
}

fn no_tensor(status: &Status) -> OpError {
    let text = status.error().unwrap_or_else(|| "TensorFlow gave no tensor".to_owned());
    OpError { code: FAILED_PRECONDITION, text }
}

pub(super) fn dtype_of(data_type: c_int) -> Result<Dtype, OpError> {
    let found = DATA_TYPES.iter().find(|(number, _)| *number == data_type);
    found
        .map(|(_, dtype)| *dtype)
        .ok_or_else(|| OpError::wrong_use(format!("no op takes the element type {data_type}")))
}

fn data_type_of(dtype: Dtype) -> c_int {
    let found = DATA_TYPES.iter().find(|(_, candidate)| *candidate == dtype);
    found.map(|(number, _)| *number).expect("invariant: every element type has a number")
}
