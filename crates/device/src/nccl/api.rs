//! The functions of NCCL that we use, found in its library at run time: [`Api`].
//!
//! The signatures and numbers are those of `nccl.h`, and are the same in all versions from [`super::OLDEST`] on.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use libloading::os::unix::Library;

use super::{UNIQUE_ID_BYTES, Version};
use crate::{Error, Result};

/// `ncclResult_t`.
pub(super) type Code = c_int;
/// `ncclComm_t`.
pub(super) type Comm = *mut c_void;
/// `cudaStream_t`.
pub(super) type StreamHandle = *mut c_void;

/// `ncclSuccess`.
pub(super) const SUCCESS: Code = 0;
/// `ncclInProgress`.
pub(super) const IN_PROGRESS: Code = 7;

/// `ncclUniqueId`, which is passed by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Id(pub(super) [u8; UNIQUE_ID_BYTES]);

/// `ncclConfig_t` as it was in 2.18. Later versions have fields behind it, and look at `size` and `version` to know
/// which of them were given.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
    /// What was padding in 2.18 and has a meaning since.
    traffic_class: c_int,
}

/// `NCCL_API_MAGIC`.
const MAGIC: c_uint = 0xcafe_beef;
/// `NCCL_CONFIG_UNDEF_INT`: NCCL decides.
const UNDEFINED: c_int = c_int::MIN;

impl Config {
    /// A communicator whose calls do not block.
    pub(super) fn non_blocking() -> Config {
        Config {
            size: size_of::<Config>(),
            magic: MAGIC,
            version: super::OLDEST.0,
            blocking: 0,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: std::ptr::null(),
            split_share: UNDEFINED,
            traffic_class: UNDEFINED,
        }
    }
}

macro_rules! functions {
    ($($name:ident($($argument:ty),*) = $symbol:literal;)*) => {
        /// See the module's text.
        pub(super) struct Api {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> Code,)*
            error_string: unsafe extern "C" fn(Code) -> *const c_char,
            last_error: unsafe extern "C" fn(Comm) -> *const c_char,
            /// From 2.19 on.
            pub(super) comm_register: Option<unsafe extern "C" fn(Comm, *mut c_void, usize, *mut *mut c_void) -> Code>,
            pub(super) comm_deregister: Option<unsafe extern "C" fn(Comm, *mut c_void) -> Code>,
            pub(super) version: Version,
            /// Never closed: NCCL has threads of its own.
            _library: Library,
        }

        impl Api {
            fn from(library: Library, version: Version) -> std::result::Result<Api, libloading::Error> {
                // SAFETY: the symbols have these signatures in every version since `OLDEST`, and the library stays open
                // for as long as the pointers live.
                unsafe {
                    Ok(Api {
                        $($name: *library.get(concat!($symbol, "\0").as_bytes())?,)*
                        error_string: *library.get(b"ncclGetErrorString\0")?,
                        last_error: *library.get(b"ncclGetLastError\0")?,
                        comm_register: library.get(b"ncclCommRegister\0").ok().map(|symbol| *symbol),
                        comm_deregister: library.get(b"ncclCommDeregister\0").ok().map(|symbol| *symbol),
                        version,
                        _library: library,
                    })
                }
            }
        }
    };
}

functions! {
    get_unique_id(*mut Id) = "ncclGetUniqueId";
    comm_init(*mut Comm, c_int, Id, c_int, *mut Config) = "ncclCommInitRankConfig";
    comm_finalize(Comm) = "ncclCommFinalize";
    comm_destroy(Comm) = "ncclCommDestroy";
    comm_abort(Comm) = "ncclCommAbort";
    comm_async_error(Comm, *mut Code) = "ncclCommGetAsyncError";
    group_start() = "ncclGroupStart";
    group_end() = "ncclGroupEnd";
    all_reduce(*const c_void, *mut c_void, usize, c_int, c_int, Comm, StreamHandle) = "ncclAllReduce";
    reduce(*const c_void, *mut c_void, usize, c_int, c_int, c_int, Comm, StreamHandle) = "ncclReduce";
    broadcast(*const c_void, *mut c_void, usize, c_int, c_int, Comm, StreamHandle) = "ncclBroadcast";
    all_gather(*const c_void, *mut c_void, usize, c_int, Comm, StreamHandle) = "ncclAllGather";
    reduce_scatter(*const c_void, *mut c_void, usize, c_int, c_int, Comm, StreamHandle) = "ncclReduceScatter";
    send(*const c_void, usize, c_int, c_int, Comm, StreamHandle) = "ncclSend";
    recv(*mut c_void, usize, c_int, c_int, Comm, StreamHandle) = "ncclRecv";
}

impl Api {
    /// The functions of an opened library.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it is not NCCL, or too old.
    pub(super) fn of(library: Library, shown: &str) -> Result<Api> {
        let unavailable = |why: String| Error::Unavailable(format!("NCCL cannot be used: {why}"));
        let mut code: c_int = 0;
        // SAFETY: the function writes one number, and needs no initialisation.
        let answered = unsafe {
            let symbol = library.get::<unsafe extern "C" fn(*mut c_int) -> Code>(b"ncclGetVersion\0");
            let get_version = symbol.map_err(|error| unavailable(format!("{shown} is not NCCL ({error})")))?;
            get_version(&raw mut code)
        };
        if answered != SUCCESS {
            return Err(unavailable(format!("{shown} does not tell its version (error {answered})")));
        }
        let (version, oldest) = (Version(code as u32), super::OLDEST);
        if version < oldest {
            return Err(unavailable(format!("{shown} is NCCL {version}, and {oldest} or later is needed")));
        }
        Api::from(library, version).map_err(|error| unavailable(format!("{shown}, NCCL {version}: {error}")))
    }

    /// What a call has returned, as a result. What goes on in the background is a success.
    pub(super) fn check(&self, call: &'static str, code: Code, comm: Comm) -> Result<()> {
        if code == SUCCESS || code == IN_PROGRESS { Ok(()) } else { Err(self.error(call, code, comm)) }
    }

    pub(super) fn error(&self, call: &'static str, code: Code, comm: Comm) -> Error {
        // SAFETY: both return strings that live at least until the next call on this communicator; none may be given.
        let (text, detail) = unsafe { ((self.error_string)(code), (self.last_error)(comm)) };
        let read = |text: *const c_char| {
            // SAFETY: NCCL says that it is a string, or nothing.
            let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) });
            text.map(|text| text.to_string_lossy().trim().to_owned()).unwrap_or_default()
        };
        Error::Nccl { call, code, text: read(text), detail: read(detail) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_has_the_form_of_2_18() {
        let at = std::mem::offset_of!(Config, split_share);
        assert_eq!((size_of::<Config>(), at, std::mem::offset_of!(Config, net_name)), (48, 40, 32));
        assert_eq!(size_of::<Id>(), UNIQUE_ID_BYTES);
    }
}
