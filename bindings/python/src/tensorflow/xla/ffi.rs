//! XLA's C API for functions that compiled programs call (XLA FFI), as far as it is needed: [`register`] and [`Call`].
//!
//! XLA passes a *frame* with the addresses and shapes of operands and results, and the attributes of the call. The
//! function returns nothing if all is well, an error, or leaves a *future* in the frame and fulfils it later; until
//! then XLA keeps operands and results, and runs what does not depend on them.
//!
//! This is an unsafe module. `GetXlaFfiApi`, which hands out the table of functions, is the only C++ function;
//! TensorFlow exports it from 2.17 on. The table says its size. Up to TensorFlow 2.19 it says less than it has, and the
//! functions for futures were at other places in 2.18; so a table that claims to be shorter than that of 2.20 is
//! refused.
//!
//! What is deliberately not here: what a call does (`call`).

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{NonNull, null, null_mut};
use std::sync::OnceLock;

use farandole::{Dtype, Region};

use super::super::api::{Library, Opaque};
use super::super::status::OpError;
use super::layout::{
    Api, Buffers, ByteSpan, DestroyArguments, ErrorArguments, Frame, FutureArguments, Head, MessageArguments,
    MetadataExtension, RegisterArguments,
};

/// Places in the table of functions.
const ERROR_CREATE: usize = 0;
const ERROR_MESSAGE: usize = 1;
const ERROR_DESTROY: usize = 2;
const HANDLER_REGISTER: usize = 3;
const FUTURE_CREATE: usize = 13;
const FUTURE_SET_AVAILABLE: usize = 14;
const FUTURE_SET_ERROR: usize = 15;

/// `XLA_FFI_ExecutionStage_EXECUTE`.
const EXECUTE: c_int = 3;

/// `XLA_FFI_Extension_Metadata`: the function is asked for which version it was written.
const METADATA: c_int = 1;

/// `XLA_FFI_AttrType_STRING`.
const STRING: c_int = 4;

/// `XLA_FFI_Error_Code` and `absl::StatusCode` have the same numbers.
pub(super) const INTERNAL: c_int = 13;

/// What compiled programs run when they come to the call.
pub(super) type Execute = fn(&mut Call<'_>) -> Result<(), OpError>;

static EXECUTE_CALL: OnceLock<Execute> = OnceLock::new();

/// Makes a function known to XLA under this name, for programs that run on the host. The error says what is missing.
pub(super) fn register(target: &str, execute: Execute) -> Result<(), String> {
    let api = api()?;
    if EXECUTE_CALL.set(execute).is_err() {
        return Ok(());
    }
    let span = |text: &str| ByteSpan { data: text.as_ptr(), len: text.len() };
    let mut arguments = RegisterArguments {
        size: size_of::<RegisterArguments>(),
        extension: null_mut(),
        name: span(target),
        platform: span("Host"),
        instantiate: null_mut(),
        prepare: null_mut(),
        initialize: null_mut(),
        execute: run,
        traits: 0,
    };
    // SAFETY: the place in the table has this function; XLA copies the names.
    let error = unsafe {
        let register: unsafe extern "C" fn(*mut RegisterArguments) -> Opaque =
            std::mem::transmute(api.functions[HANDLER_REGISTER]);
        register(&raw mut arguments)
    };
    if error.is_null() { Ok(()) } else { Err(format!("XLA refuses the function {target}: {}", api.take_text(error))) }
}

/// The table of functions, or what is missing.
fn api() -> Result<&'static Api, String> {
    let library = Library::already_loaded(c"libtensorflow_cc.so.2")?;
    let name = "_ZN3xla3ffi12GetXlaFfiApiEv";
    let address = library.symbol(name).ok_or_else(|| format!("libtensorflow_cc.so.2 has no function {name}"))?;
    // SAFETY: the mangled name says that there are no parameters. The table is a static of XLA's.
    let api = unsafe {
        let get: unsafe extern "C" fn() -> *const Head = std::mem::transmute(address);
        get()
    };
    // SAFETY: as above. The head is all that is read before the size is known.
    let (size, major) = unsafe { ((*api).size, (*api).version.major) };
    if major != 0 || size < size_of::<Api>() {
        return Err(format!("its XLA has no asynchronous calls (FFI {major}, a table of {size} bytes)"));
    }
    // SAFETY: the table is at least as large as what is read of it.
    Ok(unsafe { &*api.cast::<Api>() })
}

impl Api {
    /// Makes an error of XLA's.
    fn new_error(&self, error: &OpError) -> Opaque {
        let message = CString::new(error.text.replace('\0', " ")).expect("invariant: zeros have been replaced");
        let mut arguments = ErrorArguments {
            size: size_of::<ErrorArguments>(),
            extension: null_mut(),
            message: message.as_ptr(),
            code: error.code,
        };
        // SAFETY: the place in the table has this function, which copies the text.
        unsafe {
            let create: unsafe extern "C" fn(*mut ErrorArguments) -> Opaque =
                std::mem::transmute(self.functions[ERROR_CREATE]);
            create(&raw mut arguments)
        }
    }

    /// The text of an error, which is destroyed.
    fn take_text(&self, error: Opaque) -> String {
        let mut message =
            MessageArguments { size: size_of::<MessageArguments>(), extension: null_mut(), error, message: null() };
        let mut destroy = DestroyArguments { size: size_of::<DestroyArguments>(), extension: null_mut(), error };
        // SAFETY: the places in the table have these functions; the text is copied before the error is gone.
        unsafe {
            let get: unsafe extern "C" fn(*mut MessageArguments) = std::mem::transmute(self.functions[ERROR_MESSAGE]);
            get(&raw mut message);
            let text = CStr::from_ptr(message.message).to_string_lossy().into_owned();
            let delete: unsafe extern "C" fn(*mut DestroyArguments) =
                std::mem::transmute(self.functions[ERROR_DESTROY]);
            delete(&raw mut destroy);
            text
        }
    }

    /// Calls a function of the table that is about a future. What it returns is an error of ours, if anything.
    fn about_future(&self, place: usize, future: Opaque, error: Opaque) -> Opaque {
        let mut arguments =
            FutureArguments { size: size_of::<FutureArguments>(), extension: null_mut(), future, error };
        // SAFETY: the functions at these places take the first fields of this structure, by its size.
        let failed = unsafe {
            let call: unsafe extern "C" fn(*mut FutureArguments) -> Opaque = std::mem::transmute(self.functions[place]);
            call(&raw mut arguments)
        };
        assert!(failed.is_null(), "XLA did not take a future: {}", self.take_text(failed));
        arguments.future
    }
}

/// XLA's way in.
unsafe extern "C" fn run(frame: *mut Frame) -> Opaque {
    // SAFETY: XLA passes a frame that is ours until we return.
    let frame = unsafe { &mut *frame };
    if frame.asks_for_version() {
        return null_mut();
    }
    if frame.stage != EXECUTE {
        return null_mut();
    }
    // SAFETY: the table outlives everything; its size was checked when this function was registered with it.
    let api = unsafe { &*frame.api };
    let execute = EXECUTE_CALL.get().expect("invariant: set before XLA knows this function");
    let caught = catch_unwind(AssertUnwindSafe(|| execute(&mut Call { frame, api })));
    match caught {
        Ok(Ok(())) => null_mut(),
        Ok(Err(error)) => api.new_error(&error),
        Err(_) => {
            let text = "a panic in farandole; its text is in this rank's output".to_owned();
            api.new_error(&OpError { code: INTERNAL, text })
        }
    }
}

impl Frame {
    /// Answers the question for which version of XLA's FFI this was written: any whose table has what we read of it.
    fn asks_for_version(&self) -> bool {
        let Some(extension) = NonNull::new(self.extension) else { return false };
        // SAFETY: an extension of this kind is a question, with room for the answer.
        unsafe {
            if extension.as_ref().kind != METADATA {
                return false;
            }
            let metadata = (*self.extension.cast::<MetadataExtension>()).metadata;
            let Ok(api) = api() else { return false };
            (*metadata).version.major = api.version.major;
            (*metadata).version.minor = api.version.minor;
            (*metadata).traits = 0;
        }
        true
    }
}

/// One run of a call.
pub(super) struct Call<'a> {
    frame: &'a mut Frame,
    api: &'static Api,
}

/// The memory and shape of an operand or a result.
pub(super) struct Buffer {
    /// Its number in `xla::PrimitiveType`.
    pub(super) primitive_type: c_int,
    pub(super) dims: Vec<u64>,
    address: *mut u8,
}

// SAFETY: an address, which any thread may have. Whoever uses it promises that the memory is there.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Its memory, for the engine.
    ///
    /// # Safety
    /// Until the region is gone, the call's future is not fulfilled; nobody writes the memory, and nobody reads a
    /// result.
    pub(super) unsafe fn lend(&self, dtype: Dtype) -> Region {
        let elems: u64 = self.dims.iter().product();
        let len_bytes = elems as usize * dtype.size_bytes();
        // SAFETY: promised by the caller; XLA's buffers have the bytes that their shape needs.
        unsafe { Region::from_raw_parts(self.address, len_bytes, dtype, ()) }
    }

    /// Writes a result.
    ///
    /// # Safety
    /// The call's future is not fulfilled, and the result has so many bytes.
    pub(super) unsafe fn fill(&self, bytes: &[u8]) {
        if !bytes.is_empty() {
            // SAFETY: promised by the caller.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.address, bytes.len()) };
        }
    }

    /// The elements of an operand of int32.
    ///
    /// # Safety
    /// It is one, and the call's future is not fulfilled.
    pub(super) unsafe fn numbers(&self) -> Vec<i32> {
        let elems: u64 = self.dims.iter().product();
        // SAFETY: promised by the caller.
        (0..elems as usize).map(|index| unsafe { self.address.cast::<i32>().add(index).read_unaligned() }).collect()
    }
}

impl Call<'_> {
    pub(super) fn operands(&self) -> Vec<Buffer> {
        self.frame.operands.read()
    }

    pub(super) fn results(&self) -> Vec<Buffer> {
        self.frame.results.read()
    }

    /// A text among the attributes.
    pub(super) fn attribute(&self, name: &str) -> Option<&str> {
        let attributes = &self.frame.attributes;
        // SAFETY: the arrays have as many elements as the frame says, and live until we return.
        unsafe {
            (0..usize::try_from(attributes.len).unwrap_or(0))
                .find(|&index| (**attributes.names.add(index)).bytes() == name.as_bytes())
                .filter(|&index| *attributes.types.add(index) == STRING)
                .and_then(|index| {
                    std::str::from_utf8((*(*attributes.values.add(index)).cast::<ByteSpan>()).bytes()).ok()
                })
        }
    }

    /// Promises that the results come later. XLA keeps operands and results until then.
    pub(super) fn promise(&mut self) -> Future {
        let future = self.api.about_future(FUTURE_CREATE, null_mut(), null_mut());
        self.frame.future = future;
        Future { api: self.api, future }
    }
}

/// The promise of a call's results. XLA waits until it is kept.
pub(super) struct Future {
    api: &'static Api,
    future: Opaque,
}

// SAFETY: XLA's futures may be fulfilled on any thread.
unsafe impl Send for Future {}

impl Future {
    /// Keeps the promise. Whatever XLA was waiting for this to run, it runs on the calling thread, before this returns.
    pub(super) fn keep(self, result: Result<(), OpError>) {
        match result {
            Ok(()) => self.api.about_future(FUTURE_SET_AVAILABLE, self.future, null_mut()),
            Err(error) => self.api.about_future(FUTURE_SET_ERROR, self.future, self.api.new_error(&error)),
        };
    }
}

impl Buffers {
    fn read(&self) -> Vec<Buffer> {
        // SAFETY: the arrays have as many elements as the frame says, and live until the handler returns.
        unsafe {
            (0..usize::try_from(self.len).unwrap_or(0))
                .map(|index| {
                    let buffer = &**self.buffers.add(index);
                    let rank = usize::try_from(buffer.rank).unwrap_or(0);
                    let dims = (0..rank).map(|dim| (*buffer.dims.add(dim)).cast_unsigned()).collect();
                    Buffer { primitive_type: buffer.primitive_type, address: buffer.data, dims }
                })
                .collect()
        }
    }
}

impl ByteSpan {
    /// # Safety
    /// The bytes live as long as the span is borrowed.
    unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: promised by the caller.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }
}
