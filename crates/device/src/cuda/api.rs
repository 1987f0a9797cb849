//! The functions of NVIDIA's driver library that we use, found in it at run time: [`Api`].
//!
//! `libcuda.so.1` comes with the driver. Opening it does not touch a device. The signatures are those of CUDA's driver
//! API; names with a suffix are the ones that `cuda.h` maps the plain names to.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::Library;

use crate::{Error, Result};

/// `CUresult`; zero is success.
pub(super) type Code = c_int;
pub(super) type CuDevice = c_int;
pub(super) type Context = *mut c_void;
/// Streams, events, modules and functions are pointers of the driver's.
pub(super) type Handle = *mut c_void;
pub(super) type Pointer = u64;
pub(super) type HostCall = unsafe extern "C" fn(*mut c_void);

/// `CUDA_ERROR_NOT_READY`.
pub(super) const NOT_READY: Code = 600;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(super) const OUT_OF_MEMORY: Code = 2;

/// The oldest driver whose functions we use: CUDA 11.4.
const OLDEST_DRIVER: c_int = 11040;

/// `CUipcMemHandle`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct IpcHandle(pub(super) [u8; 64]);

/// `CUuuid`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct CuUuid(pub(super) [u8; 16]);

macro_rules! functions {
    ($($name:ident($($argument:ty),*) = $symbol:literal;)*) => {
        /// See the module's text.
        pub(super) struct Api {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> Code,)*
            /// `cuStreamWaitValue32`, in drivers whose streams can wait for memory.
            pub(super) stream_wait_value: Option<unsafe extern "C" fn(Handle, Pointer, u32, c_uint) -> Code>,
            /// `cuStreamWriteValue32`, in the same drivers.
            pub(super) stream_write_value: Option<unsafe extern "C" fn(Handle, Pointer, u32, c_uint) -> Code>,
            error_name: unsafe extern "C" fn(Code, *mut *const c_char) -> Code,
            error_string: unsafe extern "C" fn(Code, *mut *const c_char) -> Code,
            /// Never closed: the driver has threads of its own.
            _library: Library,
        }

        impl Api {
            fn from(library: Library) -> std::result::Result<Api, libloading::Error> {
                // SAFETY: the symbols have these signatures in every driver since `OLDEST_DRIVER`, and the library
                // stays open for as long as the pointers live.
                unsafe {
                    Ok(Api {
                        $($name: *library.get(concat!($symbol, "\0").as_bytes())?,)*
                        stream_wait_value: library.get(b"cuStreamWaitValue32_v2\0").ok().map(|found| *found),
                        stream_write_value: library.get(b"cuStreamWriteValue32_v2\0").ok().map(|found| *found),
                        error_name: *library.get(b"cuGetErrorName\0")?,
                        error_string: *library.get(b"cuGetErrorString\0")?,
                        _library: library,
                    })
                }
            }
        }
    };
}

functions! {
    init(c_uint) = "cuInit";
    driver_version(*mut c_int) = "cuDriverGetVersion";
    device_count(*mut c_int) = "cuDeviceGetCount";
    device_get(*mut CuDevice, c_int) = "cuDeviceGet";
    device_name(*mut c_char, c_int, CuDevice) = "cuDeviceGetName";
    device_uuid(*mut CuUuid, CuDevice) = "cuDeviceGetUuid_v2";
    device_total_mem(*mut usize, CuDevice) = "cuDeviceTotalMem_v2";
    device_attribute(*mut c_int, c_int, CuDevice) = "cuDeviceGetAttribute";
    device_can_access_peer(*mut c_int, CuDevice, CuDevice) = "cuDeviceCanAccessPeer";
    primary_ctx_retain(*mut Context, CuDevice) = "cuDevicePrimaryCtxRetain";
    ctx_push(Context) = "cuCtxPushCurrent_v2";
    ctx_pop(*mut Context) = "cuCtxPopCurrent_v2";
    exchange_capture_mode(*mut c_int) = "cuThreadExchangeStreamCaptureMode";
    mem_get_info(*mut usize, *mut usize) = "cuMemGetInfo_v2";
    mem_alloc(*mut Pointer, usize) = "cuMemAlloc_v2";
    mem_free(Pointer) = "cuMemFree_v2";
    mem_host_alloc(*mut *mut c_void, usize, c_uint) = "cuMemHostAlloc";
    mem_free_host(*mut c_void) = "cuMemFreeHost";
    mem_host_register(*mut c_void, usize, c_uint) = "cuMemHostRegister_v2";
    mem_host_unregister(*mut c_void) = "cuMemHostUnregister";
    memcpy_htod_async(Pointer, *const c_void, usize, Handle) = "cuMemcpyHtoDAsync_v2";
    memcpy_dtoh_async(*mut c_void, Pointer, usize, Handle) = "cuMemcpyDtoHAsync_v2";
    mem_host_get_device_pointer(*mut Pointer, *mut c_void, c_uint) = "cuMemHostGetDevicePointer_v2";
    mem_get_address_range(*mut Pointer, *mut usize, Pointer) = "cuMemGetAddressRange_v2";
    pointer_get_attribute(*mut c_void, c_int, Pointer) = "cuPointerGetAttribute";
    memcpy_htod(Pointer, *const c_void, usize) = "cuMemcpyHtoD_v2";
    memcpy_dtoh(*mut c_void, Pointer, usize) = "cuMemcpyDtoH_v2";
    ipc_get_mem_handle(*mut IpcHandle, Pointer) = "cuIpcGetMemHandle";
    ipc_open_mem_handle(*mut Pointer, IpcHandle, c_uint) = "cuIpcOpenMemHandle_v2";
    ipc_close_mem_handle(Pointer) = "cuIpcCloseMemHandle";
    stream_create(*mut Handle, c_uint, c_int) = "cuStreamCreateWithPriority";
    stream_destroy(Handle) = "cuStreamDestroy_v2";
    stream_wait_event(Handle, Handle, c_uint) = "cuStreamWaitEvent";
    stream_synchronize(Handle) = "cuStreamSynchronize";
    ctx_stream_priority_range(*mut c_int, *mut c_int) = "cuCtxGetStreamPriorityRange";
    launch_host_func(Handle, HostCall, *mut c_void) = "cuLaunchHostFunc";
    event_create(*mut Handle, c_uint) = "cuEventCreate";
    event_destroy(Handle) = "cuEventDestroy_v2";
    event_record(Handle, Handle) = "cuEventRecord";
    event_query(Handle) = "cuEventQuery";
    event_elapsed_time(*mut f32, Handle, Handle) = "cuEventElapsedTime";
    module_load_data(*mut Handle, *const c_void) = "cuModuleLoadData";
    module_get_function(*mut Handle, Handle, *const c_char) = "cuModuleGetFunction";
    launch_kernel(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void
    ) = "cuLaunchKernel";
}

impl Api {
    /// The driver's library, opened and initialised once in a process.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if there is no driver, no device, or the driver is too old.
    pub(super) fn get() -> Result<&'static Api> {
        static API: OnceLock<Result<Api>> = OnceLock::new();
        API.get_or_init(Api::open).as_ref().map_err(Error::clone)
    }

    fn open() -> Result<Api> {
        let unavailable = |why: String| Error::Unavailable(format!("CUDA cannot be used: {why}"));
        // SAFETY: the driver's library is made to be loaded; its initialisers do nothing that we could break.
        let library = unsafe { Library::new("libcuda.so.1") };
        let library = library.map_err(|error| unavailable(format!("no driver library ({error})")))?;
        let api = Api::from(library).map_err(|error| unavailable(format!("the driver is too old ({error})")))?;
        let mut version = 0;
        // SAFETY: writes one number.
        api.check("cuDriverGetVersion", unsafe { (api.driver_version)(&raw mut version) })?;
        if version < OLDEST_DRIVER {
            let written = |version: c_int| format!("{}.{}", version / 1000, version % 1000 / 10);
            let (has, needs) = (written(version), written(OLDEST_DRIVER));
            return Err(unavailable(format!("the driver knows CUDA {has}, and {needs} is needed")));
        }
        // SAFETY: takes a number that must be zero.
        let code = unsafe { (api.init)(0) };
        api.check("cuInit", code).map_err(|error| unavailable(error.to_string()))?;
        Ok(api)
    }

    /// What a call has returned, as a result.
    pub(super) fn check(&self, call: &'static str, code: Code) -> Result<()> {
        if code == 0 { Ok(()) } else { Err(self.error(call, code)) }
    }

    pub(super) fn error(&self, call: &'static str, code: Code) -> Error {
        Error::Driver { call, code, name: self.text(self.error_name, code), text: self.text(self.error_string, code) }
    }

    fn text(&self, ask: unsafe extern "C" fn(Code, *mut *const c_char) -> Code, code: Code) -> String {
        let mut text = std::ptr::null();
        // SAFETY: writes a pointer to a string that lives as long as the library, or to nothing.
        let answered = unsafe { ask(code, &raw mut text) };
        if answered != 0 || text.is_null() {
            return "unknown error".to_owned();
        }
        // SAFETY: the driver says that it is a string.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}
