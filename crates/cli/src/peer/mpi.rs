//! Open MPI or MPICH, opened at run time, as a contestant.
//!
//! One binary serves both, without their headers, because on the machines we build for an `int` handle (MPICH) and a
//! pointer handle (Open MPI) travel in the same argument slot; [`Handle`] is wide enough for either. MPICH's handles
//! are constants of its published ABI; Open MPI's are addresses of its global objects.
//!
//! This module has unsafe code: it calls C through addresses found by name. The invariant it keeps: every pointer
//! handed to MPI points into an [`OwnedBytes`] of this contestant that is at least as long as the counts say, all calls
//! come from the one thread that initialised MPI, and no call comes before `MPI_Init` or after `MPI_Finalize`.

use std::ffi::{c_char, c_int, c_void};

use anyhow::{Context, Result, ensure};
use farandole_plan::{Dtype, ReduceOp};
use farandole_tensor::OwnedBytes;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use crate::bench::contestant::{Contestant, Refusal, buffer_bytes};
use crate::bench::task::{Kind, Task};

/// A communicator, datatype or operation of either library.
type Handle = usize;
type Buffer = *mut c_void;

/// Room for the text of `MPI_Get_library_version`; larger than the maximum of both libraries (256 and 8192).
const VERSION_BYTES: usize = 16 << 10;

/// Whose handles are in use.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flavour {
    OpenMpi,
    Mpich,
}

/// The functions we call, with the signatures that both libraries share.
struct Functions {
    finalize: unsafe extern "C" fn() -> c_int,
    barrier: unsafe extern "C" fn(Handle) -> c_int,
    allreduce: unsafe extern "C" fn(Buffer, Buffer, c_int, Handle, Handle, Handle) -> c_int,
    reduce_scatter_block: unsafe extern "C" fn(Buffer, Buffer, c_int, Handle, Handle, Handle) -> c_int,
    broadcast: unsafe extern "C" fn(Buffer, c_int, Handle, c_int, Handle) -> c_int,
    allgather: unsafe extern "C" fn(Buffer, c_int, Handle, Buffer, c_int, Handle, Handle) -> c_int,
    alltoall: unsafe extern "C" fn(Buffer, c_int, Handle, Buffer, c_int, Handle, Handle) -> c_int,
}

/// A task with everything that MPI wants to know about it.
struct Prepared {
    task: Task,
    dtype: Handle,
    op: Handle,
    /// Elements of one part: of the whole buffer, or of one rank's share.
    part_elems: c_int,
    input: OwnedBytes,
    /// `None` where the operation works in place.
    output: Option<OwnedBytes>,
}

/// This process as a rank of an MPI job.
pub(crate) struct Mpi {
    library: Library,
    flavour: Flavour,
    functions: Functions,
    world: Handle,
    rank: usize,
    ranks: usize,
    product: String,
    prepared: Option<Prepared>,
}

impl Mpi {
    /// Opens the library and joins the job that `mpirun` has started.
    pub(crate) fn init(library_name: &str) -> Result<Mpi> {
        // Global, because Open MPI's plug-ins look for its symbols there.
        // SAFETY: the initialisers of the two MPI libraries have no requirements on their callers.
        let library = unsafe { Library::open(Some(library_name), RTLD_NOW | RTLD_GLOBAL) }
            .with_context(|| format!("opening {library_name}"))?;
        let open_mpi_world = address(&library, "ompi_mpi_comm_world");
        let (flavour, world) = match open_mpi_world {
            Ok(address) => (Flavour::OpenMpi, address),
            Err(_) => (Flavour::Mpich, 0x4400_0000),
        };
        let functions = functions(&library)?;
        let init: unsafe extern "C" fn(usize, usize) -> c_int = function(&library, "MPI_Init")?;
        // SAFETY: null for both arguments is allowed since MPI 2; nothing was called before.
        check("MPI_Init", unsafe { init(0, 0) })?;
        let rank = number(&library, "MPI_Comm_rank", world)?;
        let ranks = number(&library, "MPI_Comm_size", world)?;
        let product = version(&library)?;
        Ok(Mpi { library, flavour, functions, world, rank, ranks, product, prepared: None })
    }

    /// Leaves the job, so that `mpirun` does not report a failure.
    pub(crate) fn finalize(self) -> Result<()> {
        // SAFETY: initialised by `init`; consuming `self` makes this the last call.
        check("MPI_Finalize", unsafe { (self.functions.finalize)() })
    }

    fn dtype(&self, dtype: Dtype) -> Result<Handle, Refusal> {
        let (open_mpi, mpich) = match dtype {
            Dtype::Bool => ("ompi_mpi_c_bool", 0x4c00_013f),
            Dtype::U8 => ("ompi_mpi_uint8_t", 0x4c00_013b),
            Dtype::I8 => ("ompi_mpi_int8_t", 0x4c00_0137),
            Dtype::U16 => ("ompi_mpi_uint16_t", 0x4c00_023c),
            Dtype::I16 => ("ompi_mpi_int16_t", 0x4c00_0238),
            Dtype::U32 => ("ompi_mpi_uint32_t", 0x4c00_043d),
            Dtype::I32 => ("ompi_mpi_int32_t", 0x4c00_0439),
            Dtype::U64 => ("ompi_mpi_uint64_t", 0x4c00_083e),
            Dtype::I64 => ("ompi_mpi_int64_t", 0x4c00_083a),
            Dtype::F32 => ("ompi_mpi_float", 0x4c00_040a),
            Dtype::F64 => ("ompi_mpi_double", 0x4c00_080b),
            _ => return Err(Refusal::Unsupported(format!("MPI has no {dtype}"))),
        };
        self.handle(open_mpi, mpich)
    }

    fn op(&self, dtype: Dtype, op: ReduceOp) -> Result<Handle, Refusal> {
        let logical = dtype == Dtype::Bool;
        let (open_mpi, mpich) = match op {
            ReduceOp::Sum | ReduceOp::Max if logical => ("ompi_mpi_op_lor", 0x5800_0007),
            ReduceOp::Min | ReduceOp::Product if logical => ("ompi_mpi_op_land", 0x5800_0005),
            ReduceOp::Sum => ("ompi_mpi_op_sum", 0x5800_0003),
            ReduceOp::Min => ("ompi_mpi_op_min", 0x5800_0002),
            ReduceOp::Max => ("ompi_mpi_op_max", 0x5800_0001),
            ReduceOp::Product => ("ompi_mpi_op_prod", 0x5800_0004),
            _ => return Err(Refusal::Unsupported(format!("MPI has no {op}"))),
        };
        self.handle(open_mpi, mpich)
    }

    fn handle(&self, open_mpi: &str, mpich: Handle) -> Result<Handle, Refusal> {
        match self.flavour {
            Flavour::OpenMpi => Ok(address(&self.library, open_mpi)?),
            Flavour::Mpich => Ok(mpich),
        }
    }

    /// The value that says "the input is where the output goes".
    fn in_place(&self) -> Buffer {
        match self.flavour {
            Flavour::OpenMpi => std::ptr::without_provenance_mut(1),
            Flavour::Mpich => std::ptr::without_provenance_mut(usize::MAX),
        }
    }
}

impl Contestant for Mpi {
    fn product(&self) -> String {
        self.product.clone()
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn prepare(&mut self, task: &Task) -> Result<(), Refusal> {
        if self.prepared.as_ref().is_some_and(|prepared| prepared.task == *task) {
            return Ok(());
        }
        if task.tensors != 1 {
            return Err(Refusal::Unsupported("one tensor at a time".into()));
        }
        let (input, output) = buffer_bytes(task, self.ranks);
        let part_bytes = match task.kind {
            Kind::Allreduce | Kind::Broadcast | Kind::Barrier => input,
            Kind::Allgather | Kind::Alltoall | Kind::Reducescatter => task.bytes as usize / self.ranks,
        };
        let part_elems = c_int::try_from(part_bytes / task.dtype.size_bytes())
            .map_err(|_| Refusal::Unsupported("MPI counts elements in 31 bits".into()))?;
        let dtype = self.dtype(task.dtype)?;
        let op = if task.kind.reduces() { self.op(task.dtype, task.op)? } else { 0 };
        // The old buffers go before the new ones come, so that the largest size needs its memory only once.
        self.prepared = None;
        self.prepared = Some(Prepared {
            task: task.clone(),
            dtype,
            op,
            part_elems,
            input: OwnedBytes::zeroed(input),
            output: output.map(OwnedBytes::zeroed),
        });
        Ok(())
    }

    fn inputs(&mut self) -> Vec<&mut [u8]> {
        vec![&mut self.prepared.as_mut().expect("prepare comes before inputs").input]
    }

    fn outputs(&mut self) -> Vec<&[u8]> {
        let prepared = self.prepared.as_ref().expect("prepare comes before outputs");
        vec![prepared.output.as_ref().unwrap_or(&prepared.input)]
    }

    fn run(&mut self) -> Result<()> {
        let (in_place, world) = (self.in_place(), self.world);
        let Prepared { task, dtype, op, part_elems, input, output } =
            self.prepared.as_mut().expect("prepare comes before run");
        let (n, dtype, op) = (*part_elems, *dtype, *op);
        let send: Buffer = input.as_mut_ptr().cast();
        let recv: Buffer = output.as_mut().map_or(send, |memory| memory.as_mut_ptr().cast());
        let call = &self.functions;
        // SAFETY: `prepare` has made `send` and `recv` long enough for `n` elements of `dtype`, times the number of
        // ranks where the operation says so; they are different allocations unless the operation works in place; MPI is
        // initialised and this is its thread (module's invariant).
        let code = unsafe {
            match task.kind {
                Kind::Allreduce => (call.allreduce)(in_place, recv, n, dtype, op, world),
                Kind::Broadcast => (call.broadcast)(recv, n, dtype, 0, world),
                Kind::Allgather => (call.allgather)(send, n, dtype, recv, n, dtype, world),
                Kind::Alltoall => (call.alltoall)(send, n, dtype, recv, n, dtype, world),
                Kind::Reducescatter => (call.reduce_scatter_block)(send, recv, n, dtype, op, world),
                Kind::Barrier => (call.barrier)(world),
            }
        };
        check(task.kind.word(), code)
    }

    fn barrier(&mut self) -> Result<()> {
        // SAFETY: MPI is initialised and this is its thread (module's invariant).
        check("MPI_Barrier", unsafe { (self.functions.barrier)(self.world) })
    }
}

fn functions(library: &Library) -> Result<Functions> {
    Ok(Functions {
        finalize: function(library, "MPI_Finalize")?,
        barrier: function(library, "MPI_Barrier")?,
        allreduce: function(library, "MPI_Allreduce")?,
        reduce_scatter_block: function(library, "MPI_Reduce_scatter_block")?,
        broadcast: function(library, "MPI_Bcast")?,
        allgather: function(library, "MPI_Allgather")?,
        alltoall: function(library, "MPI_Alltoall")?,
    })
}

/// A function of the library. The caller names its type, which must be the one in the MPI standard, with handles as
/// [`Handle`].
fn function<F: Copy>(library: &Library, name: &str) -> Result<F> {
    // SAFETY: every caller is in this file and names the type that the standard gives the function; the library is kept
    // open for as long as the functions are used, because `Mpi` owns both.
    let symbol = unsafe { library.get::<F>(name) }.with_context(|| format!("looking for {name}"))?;
    Ok(*symbol)
}

/// The address of a global object of the library.
fn address(library: &Library, name: &str) -> Result<Handle> {
    // SAFETY: the symbol is only used as an address, never read.
    let symbol = unsafe { library.get::<*const c_void>(name) }.with_context(|| format!("looking for {name}"))?;
    Ok(symbol.into_raw() as usize)
}

fn number(library: &Library, name: &str, world: Handle) -> Result<usize> {
    let get: unsafe extern "C" fn(Handle, *mut c_int) -> c_int = function(library, name)?;
    let mut number: c_int = 0;
    // SAFETY: `number` outlives the call; MPI is initialised (the only caller is `init`, after `MPI_Init`).
    check(name, unsafe { get(world, &mut number) })?;
    usize::try_from(number).with_context(|| format!("{name} answered {number}"))
}

/// The product's name and version, from a text whose first line begins `Open MPI v4.1.4, package: …` or
/// `MPICH Version: 4.0.2`.
fn version(library: &Library) -> Result<String> {
    let get: unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int = function(library, "MPI_Get_library_version")?;
    let mut text = vec![0u8; VERSION_BYTES];
    let mut len: c_int = 0;
    // SAFETY: the buffer is longer than MPI_MAX_LIBRARY_VERSION_STRING of either library.
    check("MPI_Get_library_version", unsafe { get(text.as_mut_ptr().cast(), &mut len) })?;
    let text = String::from_utf8_lossy(&text[..len as usize]).into_owned();
    let first = text.lines().next().unwrap_or_default().split(',').next().unwrap_or_default();
    Ok(first.replace("Version:", "").split_whitespace().collect::<Vec<_>>().join(" "))
}

fn check(doing: &str, code: c_int) -> Result<()> {
    ensure!(code == 0, "{doing} failed with MPI error {code}");
    Ok(())
}
