//! The driver's calls behind [`crate::Backend`]: [`Cuda`].

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU32;

use farandole_transport::ProcessId;

use super::api::{Api, Context, Handle, IpcHandle, NOT_READY, OUT_OF_MEMORY};
use super::kernels::Kernels;
use super::words;
use crate::{Backend, DeviceAdasum, DeviceCopy, DeviceFold, Error, Export, Info, Result, table};

/// `CU_STREAM_NON_BLOCKING`: does not wait for the default stream.
const NON_BLOCKING: u32 = 1;
/// `CU_EVENT_DEFAULT`: knows when it happened.
const TIMING: u32 = 0;
/// `CU_EVENT_DISABLE_TIMING`: such events cost less to record and to look at.
const DISABLE_TIMING: u32 = 2;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
const ENABLE_PEER_ACCESS: u32 = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_int = 2;
/// The stream of calls that name none.
const DEFAULT_STREAM: u64 = 0;
/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for all contexts.
const PORTABLE: u32 = 1;
/// `CU_POINTER_ATTRIBUTE_BUFFER_ID`: the number of an allocation, unique in a process.
const BUFFER_ID: c_int = 7;

/// One device. See the module `cuda`.
pub(super) struct Cuda {
    api: &'static Api,
    info: Info,
    context: Context,
    kernels: Kernels,
}

// SAFETY: the driver's functions may be called from any thread; the context is made current around each call.
unsafe impl Send for Cuda {}
// SAFETY: as above; nothing here is changed after opening.
unsafe impl Sync for Cuda {}

/// The context is current on this thread for as long as this lives, and calls do not disturb a program that captures a
/// graph: by default the driver lets the capture of one thread fail if another one looks at an event meanwhile.
struct Current<'a> {
    api: &'a Api,
    /// The thread's own mode.
    capture_mode: c_int,
}

impl Current<'_> {
    fn enter(api: &Api, context: Context) -> Result<Current<'_>> {
        // SAFETY: the context lives until the process ends.
        api.check("cuCtxPushCurrent", unsafe { (api.ctx_push)(context) })?;
        let mut capture_mode = RELAXED;
        // SAFETY: reads and writes one number.
        unsafe { (api.exchange_capture_mode)(&raw mut capture_mode) };
        Ok(Current { api, capture_mode })
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut popped = ptr::null_mut();
        // SAFETY: gives the mode back, and takes away what `enter` has pushed.
        unsafe {
            (self.api.exchange_capture_mode)(&raw mut self.capture_mode);
            (self.api.ctx_pop)(&raw mut popped);
        }
    }
}

impl Cuda {
    pub(super) fn open(api: &'static Api, info: Info) -> Result<Cuda> {
        let mut context = ptr::null_mut();
        // SAFETY: writes one handle. The context is kept until the process ends, as frameworks keep it.
        let code = unsafe { (api.primary_ctx_retain)(&raw mut context, info.ordinal as c_int) };
        api.check("cuDevicePrimaryCtxRetain", code)?;
        let current = Current::enter(api, context)?;
        let kernels = Kernels::load(api)?;
        drop(current);
        Ok(Cuda { api, info, context, kernels })
    }

    fn enter(&self) -> Result<Current<'_>> {
        Current::enter(self.api, self.context)
    }

    fn event_with(&self, flags: u32) -> Result<u64> {
        let _current = self.enter()?;
        let mut event = ptr::null_mut();
        // SAFETY: writes one handle.
        let code = unsafe { (self.api.event_create)(&raw mut event, flags) };
        self.api.check("cuEventCreate", code)?;
        Ok(event.expose_provenance() as u64)
    }

    fn free_and_total(&self) -> Option<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two numbers.
        let code = unsafe { (self.api.mem_get_info)(&raw mut free, &raw mut total) };
        (code == 0).then_some((free as u64, total as u64))
    }

    /// What cannot be given back properly is lost with the process; that is worth a word, not an error.
    fn tell(&self, what: Result<()>) {
        if let Err(error) = what {
            log::debug!("{error}");
        }
    }
}

impl Backend for Cuda {
    fn info(&self) -> &Info {
        &self.info
    }

    fn allocate(&self, bytes: usize) -> Result<u64> {
        let _current = self.enter()?;
        let mut address = 0;
        // SAFETY: writes one address.
        match unsafe { (self.api.mem_alloc)(&raw mut address, bytes) } {
            0 => Ok(address),
            OUT_OF_MEMORY => Err(Error::OutOfMemory { bytes, free_and_total: self.free_and_total() }),
            code => Err(self.api.error("cuMemAlloc", code)),
        }
    }

    fn free(&self, address: u64) {
        let Ok(_current) = self.enter() else { return };
        // SAFETY: the address came from `allocate`, and its owner is gone.
        self.tell(self.api.check("cuMemFree", unsafe { (self.api.mem_free)(address) }));
    }

    fn create_stream(&self) -> Result<u64> {
        let _current = self.enter()?;
        let (mut stream, mut least, mut greatest) = (ptr::null_mut(), 0, 0);
        // SAFETY: write numbers and one handle. What ranks wait for together goes first.
        unsafe {
            let code = (self.api.ctx_stream_priority_range)(&raw mut least, &raw mut greatest);
            self.api.check("cuCtxGetStreamPriorityRange", code)?;
            let code = (self.api.stream_create)(&raw mut stream, NON_BLOCKING, greatest);
            self.api.check("cuStreamCreateWithPriority", code)?;
        }
        Ok(stream.expose_provenance() as u64)
    }

    fn destroy_stream(&self, stream: u64) {
        let Ok(_current) = self.enter() else { return };
        // SAFETY: the stream came from `create_stream`, and its owner is gone.
        self.tell(self.api.check("cuStreamDestroy", unsafe { (self.api.stream_destroy)(handle(stream)) }));
    }

    fn create_event(&self) -> Result<u64> {
        self.event_with(DISABLE_TIMING)
    }

    fn create_timed_event(&self) -> Result<u64> {
        self.event_with(TIMING)
    }

    fn elapsed_ns(&self, from: u64, to: u64) -> Result<Option<u64>> {
        let _current = self.enter()?;
        let mut millis = 0_f32;
        // SAFETY: writes one number; both handles live.
        match unsafe { (self.api.event_elapsed_time)(&raw mut millis, handle(from), handle(to)) } {
            0 => Ok(Some((f64::from(millis.max(0.0)) * 1e6) as u64)),
            NOT_READY => Ok(None),
            code => Err(self.api.error("cuEventElapsedTime", code)),
        }
    }

    fn destroy_event(&self, event: u64) {
        let Ok(_current) = self.enter() else { return };
        // SAFETY: the event came from `create_event`, and its owner is gone.
        self.tell(self.api.check("cuEventDestroy", unsafe { (self.api.event_destroy)(handle(event)) }));
    }

    fn record(&self, event: u64, stream: u64) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: both handles live; the stream may be the framework's.
        let code = unsafe { (self.api.event_record)(handle(event), handle(stream)) };
        self.api.check("cuEventRecord", code)
    }

    fn wait_event(&self, stream: u64, event: u64) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: both handles live.
        let code = unsafe { (self.api.stream_wait_event)(handle(stream), handle(event), 0) };
        self.api.check("cuStreamWaitEvent", code)
    }

    fn has_happened(&self, event: u64) -> Result<bool> {
        let _current = self.enter()?;
        // SAFETY: the handle lives.
        match unsafe { (self.api.event_query)(handle(event)) } {
            0 => Ok(true),
            NOT_READY => Ok(false),
            code => Err(self.api.error("cuEventQuery", code)),
        }
    }

    fn call_when_reached(&self, stream: u64, call: Box<dyn FnOnce() + Send>) -> Result<()> {
        let _current = self.enter()?;
        let data = Box::into_raw(Box::new(call)).cast::<c_void>();
        // SAFETY: the driver calls `call_back` once with this pointer, whose box is taken back there.
        let code = unsafe { (self.api.launch_host_func)(handle(stream), call_back, data) };
        self.api.check("cuLaunchHostFunc", code).inspect_err(|_| {
            // SAFETY: the driver has not taken the pointer.
            drop(unsafe { Box::from_raw(data.cast::<Box<dyn FnOnce() + Send>>()) });
        })
    }

    fn register_words(&self, words: &[AtomicU32]) -> Result<u64> {
        let _current = self.enter()?;
        words::register(self.api, words)
    }

    fn unregister_words(&self, words: &[AtomicU32]) {
        let Ok(_current) = self.enter() else { return };
        self.tell(words::unregister(self.api, words));
    }

    fn write_word(&self, stream: u64, address: u64, value: u32) -> Result<()> {
        let _current = self.enter()?;
        words::write(self.api, handle(stream), address, value)
    }

    fn wait_word(&self, stream: u64, address: u64, value: u32) -> Result<()> {
        let _current = self.enter()?;
        words::wait(self.api, handle(stream), address, value)
    }

    fn wait_until_empty(&self, stream: u64) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the handle lives.
        self.api.check("cuStreamSynchronize", unsafe { (self.api.stream_synchronize)(handle(stream)) })
    }

    fn fold(&self, stream: u64, folding: &DeviceFold<'_>) -> Result<()> {
        let _current = self.enter()?;
        table::of_fold(folding)
            .iter()
            .try_for_each(|launch| self.kernels.fold(self.api, handle(stream), launch, folding))
    }

    fn adasum(&self, stream: u64, combining: &DeviceAdasum<'_>) -> Result<()> {
        let _current = self.enter()?;
        // Launches follow each other in the stream, so all of them use the same scratch memory.
        table::of_adasum(combining)
            .iter()
            .try_for_each(|launch| self.kernels.adasum(self.api, handle(stream), launch, combining))
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<NonNull<u8>> {
        let _current = self.enter()?;
        let mut memory = ptr::null_mut();
        // SAFETY: writes one pointer.
        let code = unsafe { (self.api.mem_host_alloc)(&raw mut memory, bytes, PORTABLE) };
        self.api.check("cuMemHostAlloc", code)?;
        Ok(NonNull::new(memory.cast()).expect("invariant: the driver gives memory or an error"))
    }

    fn free_pinned(&self, memory: NonNull<u8>) {
        let Ok(_current) = self.enter() else { return };
        // SAFETY: the memory came from `allocate_pinned`, and its owner is gone.
        self.tell(self.api.check("cuMemFreeHost", unsafe { (self.api.mem_free_host)(memory.as_ptr().cast()) }));
    }

    fn copy_to_pinned(&self, stream: u64, source: u64, target: NonNull<u8>, bytes: usize) -> Result<()> {
        let _current = self.enter()?;
        let target = target.as_ptr().cast();
        // SAFETY: whoever gives the address has promised memory there; the target has so many bytes (`Stream`).
        let code = unsafe { (self.api.memcpy_dtoh_async)(target, source, bytes, handle(stream)) };
        self.api.check("cuMemcpyDtoHAsync", code)
    }

    fn copy_from_pinned(&self, stream: u64, source: NonNull<u8>, target: u64, bytes: usize) -> Result<()> {
        let _current = self.enter()?;
        let source = source.as_ptr().cast_const().cast();
        // SAFETY: as in `copy_to_pinned`.
        let code = unsafe { (self.api.memcpy_htod_async)(target, source, bytes, handle(stream)) };
        self.api.check("cuMemcpyHtoDAsync", code)
    }

    fn copy(&self, stream: u64, copies: &[DeviceCopy]) -> Result<()> {
        let _current = self.enter()?;
        table::of_copies(copies).iter().try_for_each(|launch| self.kernels.copy(self.api, handle(stream), launch))
    }

    fn read_and_wait(&self, address: u64, target: &mut [u8]) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: whoever gives the address has promised memory there; the target's length is given.
        let code = unsafe { (self.api.memcpy_dtoh)(target.as_mut_ptr().cast(), address, target.len()) };
        self.api.check("cuMemcpyDtoH", code)
    }

    fn write_and_wait(&self, address: u64, source: &[u8]) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: as in `read_and_wait`.
        let code = unsafe { (self.api.memcpy_htod)(address, source.as_ptr().cast(), source.len()) };
        self.api.check("cuMemcpyHtoD", code)?;
        // The call returns when the driver has the bytes; the default stream brings them to the device.
        self.wait_until_empty(DEFAULT_STREAM)
    }

    fn export(&self, address: u64) -> Result<Export> {
        let allocation = self.allocation_id(address)?;
        let _current = self.enter()?;
        let (mut base, mut bytes, mut ipc) = (0, 0_usize, IpcHandle([0; 64]));
        // SAFETY: write an address and a number.
        let code = unsafe { (self.api.mem_get_address_range)(&raw mut base, &raw mut bytes, address) };
        self.api.check("cuMemGetAddressRange", code)?;
        // SAFETY: writes one handle.
        let code = unsafe { (self.api.ipc_get_mem_handle)(&raw mut ipc, base) };
        let refused = |error: Error| if error.is_sticky() { error } else { Error::NotShareable(error.to_string()) };
        self.api.check("cuIpcGetMemHandle", code).map_err(refused)?;
        let (process, device) = (ProcessId::own(), self.info.uuid);
        Ok(Export { process, device, allocation, base, bytes: bytes as u64, handle: ipc.0 })
    }

    fn allocation_id(&self, address: u64) -> Result<u64> {
        let _current = self.enter()?;
        let mut id = 0_u64;
        // SAFETY: this attribute is one number of 64 bits.
        let code = unsafe { (self.api.pointer_get_attribute)((&raw mut id).cast(), BUFFER_ID, address) };
        self.api.check("cuPointerGetAttribute", code)?;
        Ok(id)
    }

    fn import(&self, export: &Export) -> Result<u64> {
        let _current = self.enter()?;
        let mut base = 0;
        // SAFETY: writes one address; the driver checks the handle.
        let code =
            unsafe { (self.api.ipc_open_mem_handle)(&raw mut base, IpcHandle(export.handle), ENABLE_PEER_ACCESS) };
        self.api.check("cuIpcOpenMemHandle", code).map_err(|error| {
            if error.is_sticky() {
                return error;
            }
            let Export { process, device, bytes, .. } = export;
            Error::NotShareable(format!(
                "{bytes} bytes of {process} on {device}: {error}; with FARANDOLE_PLANE=nccl or staged, ranks map no memory"
            ))
        })?;
        Ok(base)
    }

    fn close(&self, base: u64) {
        let Ok(_current) = self.enter() else { return };
        // SAFETY: the address came from `import`, and nothing uses it any more.
        self.tell(self.api.check("cuIpcCloseMemHandle", unsafe { (self.api.ipc_close_mem_handle)(base) }));
    }

    fn call_current(&self, call: &mut dyn FnMut()) -> Result<()> {
        let _current = self.enter()?;
        call();
        Ok(())
    }
}

impl std::fmt::Debug for Cuda {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cuda({} {})", self.info.ordinal, self.info.name)
    }
}

/// A handle as the driver knows it.
fn handle(number: u64) -> Handle {
    ptr::with_exposed_provenance_mut(number as usize)
}

unsafe extern "C" fn call_back(data: *mut c_void) {
    // SAFETY: the pointer is the box that `call_when_reached` gave away, and the driver calls once.
    let call = unsafe { Box::from_raw(data.cast::<Box<dyn FnOnce() + Send>>()) };
    // A panic must not unwind into the driver.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
}
