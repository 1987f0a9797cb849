//! NCCL's calls behind [`Library`] and [`Handle`].
//!
//! NCCL asks CUDA's runtime which device is current, so every call runs with the communicator's device current.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr;
use std::time::{Duration, Instant};

use farandole_plan::{Dtype, ReduceOp};

use super::api::{Api, Code, Comm, Config, IN_PROGRESS, Id, SUCCESS, StreamHandle};
use super::{Call, Handle, Library, Reduction, UNIQUE_ID_BYTES, UniqueId, Version};
use crate::{Device, Result};

/// `ncclUint8`: what is only moved is bytes.
const BYTES: c_int = 1;

/// How often a communicator that is being ended is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// NCCL in this process.
pub(super) struct Linked(pub(super) &'static Api);

impl fmt::Debug for Linked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NCCL {}", self.0.version)
    }
}

impl Library for Linked {
    fn version(&self) -> Version {
        self.0.version
    }

    fn unique_id(&self) -> Result<UniqueId> {
        let mut id = Id([0; UNIQUE_ID_BYTES]);
        // SAFETY: writes one id.
        let code = unsafe { (self.0.get_unique_id)(&raw mut id) };
        self.0.check("ncclGetUniqueId", code, ptr::null_mut())?;
        Ok(UniqueId(id.0))
    }

    fn join(&self, device: &Device, id: &UniqueId, size: usize, rank: usize) -> Result<Box<dyn Handle>> {
        let (api, mut comm, mut config) = (self.0, ptr::null_mut(), Config::non_blocking());
        let (size, rank) = (size as c_int, rank as c_int);
        let code = device.run_current(|| {
            // SAFETY: writes one handle; the configuration is only read during the call.
            unsafe { (api.comm_init)(&raw mut comm, size, Id(id.0), rank, &raw mut config) }
        })?;
        api.check("ncclCommInitRankConfig", code, comm)?;
        Ok(Box::new(LinkedHandle { api, comm, device: device.clone() }))
    }
}

/// One rank of a communicator.
struct LinkedHandle {
    api: &'static Api,
    comm: Comm,
    device: Device,
}

// SAFETY: a communicator may be used by any thread, by one at a time, and this has one owner.
unsafe impl Send for LinkedHandle {}

impl LinkedHandle {
    /// Runs a call with the device current.
    fn run(&self, name: &'static str, call: impl FnOnce(&Api) -> Code) -> Result<()> {
        let code = self.device.run_current(|| call(self.api))?;
        self.api.check(name, code, self.comm)
    }

    fn tell(&self, what: Result<()>) {
        if let Err(error) = what {
            log::debug!("{error}");
        }
    }

    /// Queues one call.
    fn queue(&self, stream: StreamHandle, call: &Call) -> (&'static str, Code) {
        let (api, comm) = (self.api, self.comm);
        // SAFETY: whoever gives the addresses has promised memory there until the stream has passed; the communicator
        // and the stream live.
        unsafe {
            match *call {
                Call::AllReduce { source, target, elems, reduction } => {
                    let (dtype, op) = numbers(reduction);
                    let code = (api.all_reduce)(at(source), at(target), elems as usize, dtype, op, comm, stream);
                    ("ncclAllReduce", code)
                }
                Call::Reduce { source, target, elems, reduction, root } => {
                    let ((dtype, op), elems) = (numbers(reduction), elems as usize);
                    let root = root as c_int;
                    ("ncclReduce", (api.reduce)(at(source), at(target), elems, dtype, op, root, comm, stream))
                }
                Call::Broadcast { source, target, bytes, root } => {
                    let root = root as c_int;
                    let code = (api.broadcast)(at(source), at(target), bytes as usize, BYTES, root, comm, stream);
                    ("ncclBroadcast", code)
                }
                Call::AllGather { source, target, bytes } => {
                    let code = (api.all_gather)(at(source), at(target), bytes as usize, BYTES, comm, stream);
                    ("ncclAllGather", code)
                }
                Call::ReduceScatter { source, target, elems, reduction } => {
                    let ((dtype, op), elems) = (numbers(reduction), elems as usize);
                    let code = (api.reduce_scatter)(at(source), at(target), elems, dtype, op, comm, stream);
                    ("ncclReduceScatter", code)
                }
                Call::Send { source, bytes, peer } => {
                    ("ncclSend", (api.send)(at(source), bytes as usize, BYTES, peer as c_int, comm, stream))
                }
                Call::Recv { target, bytes, peer } => {
                    ("ncclRecv", (api.recv)(at(target), bytes as usize, BYTES, peer as c_int, comm, stream))
                }
            }
        }
    }
}

impl Handle for LinkedHandle {
    fn is_ready(&self) -> Result<bool> {
        let mut state = SUCCESS;
        // SAFETY: the communicator lives; writes one number.
        let code = unsafe { (self.api.comm_async_error)(self.comm, &raw mut state) };
        self.api.check("ncclCommGetAsyncError", code, self.comm)?;
        match state {
            SUCCESS => Ok(true),
            IN_PROGRESS => Ok(false),
            code => Err(self.api.error("ncclCommGetAsyncError", code, self.comm)),
        }
    }

    fn call(&self, stream: u64, calls: &[Call]) -> Result<()> {
        let stream = at(stream);
        let (name, code) = self.device.run_current(|| {
            // SAFETY: takes nothing.
            let code = unsafe { (self.api.group_start)() };
            if code != SUCCESS {
                return ("ncclGroupStart", code);
            }
            let refused = |(_, code): &(_, Code)| *code != SUCCESS && *code != IN_PROGRESS;
            let first = calls.iter().map(|call| self.queue(stream, call)).find(refused);
            // A group that was begun has to be ended on this thread, whatever has become of its calls.
            // SAFETY: takes nothing.
            let ended = unsafe { (self.api.group_end)() };
            first.unwrap_or(("ncclGroupEnd", ended))
        })?;
        self.api.check(name, code, self.comm)
    }

    fn register(&self, address: u64, bytes: usize) -> Option<u64> {
        let register = self.api.comm_register?;
        let mut handle = ptr::null_mut();
        // SAFETY: the memory is there for as long as it is registered; writes one handle.
        let registered = self
            .run("ncclCommRegister", |_| unsafe { register(self.comm, at::<c_void>(address), bytes, &raw mut handle) });
        match registered {
            Ok(()) if !handle.is_null() => Some(handle.expose_provenance() as u64),
            // It works without, only slower.
            registered => {
                self.tell(registered);
                None
            }
        }
    }

    fn deregister(&self, registration: u64) {
        let Some(deregister) = self.api.comm_deregister else { return };
        // SAFETY: the handle came from `register`.
        self.tell(self.run("ncclCommDeregister", |_| unsafe { deregister(self.comm, at::<c_void>(registration)) }));
    }

    fn abort(self: Box<Self>) {
        // SAFETY: the communicator lives, and nobody uses it after this.
        self.tell(self.run("ncclCommAbort", |api| unsafe { (api.comm_abort)(self.comm) }));
    }

    fn end(self: Box<Self>, limit: Duration) {
        let began = Instant::now();
        // SAFETY: the communicator lives.
        let mut over = self.run("ncclCommFinalize", |api| unsafe { (api.comm_finalize)(self.comm) }).is_ok();
        while over {
            match self.is_ready() {
                Ok(true) => break,
                Ok(false) if began.elapsed() < limit => std::thread::sleep(LOOK_EVERY),
                _ => over = false,
            }
        }
        if !over {
            return self.abort();
        }
        // SAFETY: the communicator lives, and nobody uses it after this.
        self.tell(self.run("ncclCommDestroy", |api| unsafe { (api.comm_destroy)(self.comm) }));
    }
}

impl fmt::Debug for LinkedHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LinkedHandle({:?})", self.comm)
    }
}

/// An address, or a handle, as NCCL knows it.
fn at<T>(number: u64) -> *mut T {
    ptr::with_exposed_provenance_mut(number as usize)
}

/// `ncclDataType_t` and `ncclRedOp_t`.
fn numbers(reduction: Reduction) -> (c_int, c_int) {
    let dtype = match reduction.dtype {
        Dtype::I8 => 0,
        Dtype::Bool | Dtype::U8 => 1,
        Dtype::I32 => 2,
        Dtype::U32 => 3,
        Dtype::I64 => 4,
        Dtype::U64 => 5,
        Dtype::F16 => 6,
        Dtype::F32 => 7,
        Dtype::F64 => 8,
        Dtype::BF16 => 9,
        _ => unreachable!("a reduction has a type of NCCL's"),
    };
    let op = match reduction.op {
        ReduceOp::Sum => 0,
        ReduceOp::Product => 1,
        ReduceOp::Max => 2,
        ReduceOp::Min => 3,
        _ => unreachable!("a reduction has an operation of NCCL's"),
    };
    (dtype, op)
}
