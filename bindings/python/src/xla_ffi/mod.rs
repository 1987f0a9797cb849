//! XLA's C API for functions that compiled programs call (XLA FFI), as far as it is needed: [`run`] and [`Call`].
//!
//! XLA passes a *frame* with the addresses and shapes of operands and results, and the attributes of the call. The
//! function returns nothing if all is well, an error, or leaves a *future* in the frame and fulfils it later; until
//! then XLA keeps operands and results, and runs what does not depend on them.
//!
//! A process may have several copies of XLA: TensorFlow has one and jaxlib another. Each passes the table of its own
//! functions with every frame. The table says its size; one that is too short for futures is refused when XLA asks for
//! the handler's version ([`checked_table`]).
//!
//! This is an unsafe module: XLA calls into it with addresses.
//!
//! What is deliberately not here: what a call does ([`Handler`]), and how XLA gets to know of it (TensorFlow's exports
//! a C++ function, `tensorflow::xla::registration`; JAX takes an address in a capsule, `jax`).

#![allow(unsafe_code)]

pub(crate) mod element_type;
pub(crate) mod layout;
pub(crate) mod resume;

use std::ffi::{CStr, CString, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{NonNull, null, null_mut};

use farandole::{Dtype, OnDevice, Region};

use layout::{
    Api, Buffers, ByteSpan, DestroyArguments, ErrorArguments, Frame, FutureArguments, Head, MessageArguments,
    MetadataExtension, Opaque, OrdinalArguments, StreamArguments,
};

use crate::op_error::{INTERNAL, OpError};

/// Places in the table of functions.
const ERROR_CREATE: usize = 0;
const ERROR_MESSAGE: usize = 1;
const ERROR_DESTROY: usize = 2;
pub(crate) const HANDLER_REGISTER: usize = 3;
const STREAM_GET: usize = 4;
const FUTURE_CREATE: usize = 13;
const FUTURE_SET_AVAILABLE: usize = 14;
const FUTURE_SET_ERROR: usize = 15;

/// The place after those of the table that are always there: `XLA_FFI_DeviceOrdinal_Get`.
const ORDINAL_GET: usize = layout::WITH_FUTURES;

/// `XLA_FFI_ExecutionStage_EXECUTE`.
const EXECUTE: c_int = 3;

/// `XLA_FFI_Extension_Metadata`: the function is asked for which version it was written.
const METADATA: c_int = 1;

/// `XLA_FFI_AttrType_STRING`.
const STRING: c_int = 4;

/// What compiled programs run when they come to a call.
pub(crate) trait Handler {
    fn execute(call: &mut Call<'_>) -> Result<(), OpError>;

    /// The table of functions, for versions of XLA that ask for the handler's version without passing theirs.
    fn own_table() -> Option<&'static Api> {
        None
    }
}

/// The table of functions at this address, if it has what is read of it. The error says what is missing.
///
/// # Safety
/// `table` is one of XLA's, which are statics.
pub(crate) unsafe fn checked_table(table: *const Api) -> Result<&'static Api, String> {
    let head = table.cast::<Head>();
    // SAFETY: promised by the caller. The head is all that is read before the size is known.
    let (size, major) = unsafe { ((*head).size, (*head).version.major) };
    if major != 0 || size < size_of::<Api>() {
        return Err(format!("its XLA has no asynchronous calls (FFI {major}, a table of {size} bytes)"));
    }
    // SAFETY: the table is at least as large as what is read of it.
    Ok(unsafe { &*table })
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
    pub(crate) fn take_text(&self, error: Opaque) -> String {
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

    /// The stream in which a program runs.
    fn stream(&self, context: Opaque) -> Result<u64, OpError> {
        let (size, extension) = (size_of::<StreamArguments>(), null_mut());
        let mut arguments = StreamArguments { size, extension, context, stream: null_mut() };
        // SAFETY: the place in the table has this function, which writes the stream or returns an error of ours.
        let failed = unsafe {
            let get: unsafe extern "C" fn(*mut StreamArguments) -> Opaque =
                std::mem::transmute(self.functions[STREAM_GET]);
            get(&raw mut arguments)
        };
        if failed.is_null() {
            return Ok(arguments.stream as u64);
        }
        Err(OpError { code: INTERNAL, text: format!("XLA does not tell its stream: {}", self.take_text(failed)) })
    }

    /// The number of the device that a program runs on. Older tables cannot tell: then it is the first.
    fn ordinal(&self, context: Opaque) -> Result<u32, OpError> {
        if self.size < size_of::<Api>() + size_of::<Opaque>() {
            return Ok(0);
        }
        let (size, extension) = (size_of::<OrdinalArguments>(), null_mut());
        let mut arguments = OrdinalArguments { size, extension, context, ordinal: 0 };
        // SAFETY: the table says that it is long enough; the place has this function, which writes the number or
        // returns an error of ours.
        let failed = unsafe {
            let function = *(&raw const self.functions).cast::<Opaque>().add(ORDINAL_GET);
            let get: unsafe extern "C" fn(*mut OrdinalArguments) -> Opaque = std::mem::transmute(function);
            get(&raw mut arguments)
        };
        if failed.is_null() {
            return Ok(u32::try_from(arguments.ordinal).unwrap_or(0));
        }
        Err(OpError { code: INTERNAL, text: format!("XLA does not tell its device: {}", self.take_text(failed)) })
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
///
/// # Safety
/// XLA calls this, with a frame that is ours until we return.
pub(crate) unsafe extern "C" fn run<H: Handler>(frame: *mut Frame) -> Opaque {
    // SAFETY: promised by the caller.
    let frame = unsafe { &mut *frame };
    if frame.asks_for_version(H::own_table()) {
        return null_mut();
    }
    if frame.stage != EXECUTE {
        return null_mut();
    }
    // SAFETY: the table outlives everything; its size was checked when XLA asked for the version.
    let api = unsafe { &*frame.api };
    let caught = catch_unwind(AssertUnwindSafe(|| H::execute(&mut Call { frame, api })));
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
    /// Answers the question for which version of XLA's FFI this was written: any whose table has what we read of it. An
    /// XLA whose table has not gets no answer, and refuses the handler.
    fn asks_for_version(&self, own_table: Option<&'static Api>) -> bool {
        let Some(extension) = NonNull::new(self.extension) else { return false };
        // SAFETY: an extension of this kind is a question, with room for the answer.
        unsafe {
            if extension.as_ref().kind != METADATA {
                return false;
            }
            let metadata = (*self.extension.cast::<MetadataExtension>()).metadata;
            let table = if self.api.is_null() { own_table } else { checked_table(self.api).ok() };
            let Some(api) = table else { return true };
            (*metadata).version.major = api.version.major;
            (*metadata).version.minor = api.version.minor;
            (*metadata).traits = 0;
        }
        true
    }
}

/// One run of a call.
pub(crate) struct Call<'a> {
    frame: &'a mut Frame,
    api: &'static Api,
}

/// The memory and shape of an operand or a result.
pub(crate) struct Buffer {
    /// Its number in `xla::PrimitiveType`.
    pub(crate) primitive_type: c_int,
    pub(crate) dims: Vec<u64>,
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
    pub(crate) unsafe fn lend(&self, dtype: Dtype) -> Region {
        let elems: u64 = self.dims.iter().product();
        let len_bytes = elems as usize * dtype.size_bytes();
        // SAFETY: promised by the caller; XLA's buffers have the bytes that their shape needs.
        unsafe { Region::from_raw_parts(self.address, len_bytes, dtype, ()) }
    }

    /// Its bytes, of which it has so many.
    ///
    /// # Safety
    /// The array is in host memory, outlives the result, and is not written during the borrow.
    pub(crate) unsafe fn bytes(&self, len_bytes: usize) -> &[u8] {
        if len_bytes == 0 {
            return &[];
        }
        // SAFETY: promised by the caller.
        unsafe { std::slice::from_raw_parts(self.address, len_bytes) }
    }

    /// The same on the device with this number.
    ///
    /// # Safety
    /// As [`Buffer::lend`], until the stream of the call has passed.
    pub(crate) unsafe fn lend_on_device(&self, dtype: Dtype, ordinal: u32) -> Region {
        let elems: u64 = self.dims.iter().product();
        let place = OnDevice { ordinal, address: self.address as u64 };
        // SAFETY: promised by the caller; XLA's buffers have the bytes that their shape needs.
        unsafe { Region::on_device(place, elems as usize * dtype.size_bytes(), dtype, ()) }
    }

    /// Where it lies.
    pub(crate) fn address(&self) -> u64 {
        self.address as u64
    }

    /// The same array in other memory, for as long as that is borrowed nowhere else.
    pub(crate) fn moved_to(&self, bytes: &mut [u8]) -> Buffer {
        Buffer { primitive_type: self.primitive_type, dims: self.dims.clone(), address: bytes.as_mut_ptr() }
    }

    /// Writes a result.
    ///
    /// # Safety
    /// The call's future is not fulfilled, and the result has so many bytes.
    pub(crate) unsafe fn fill(&self, bytes: &[u8]) {
        if !bytes.is_empty() {
            // SAFETY: promised by the caller.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.address, bytes.len()) };
        }
    }

    /// The elements of an operand of int32.
    ///
    /// # Safety
    /// It is one, and the call's future is not fulfilled.
    pub(crate) unsafe fn numbers(&self) -> Vec<i32> {
        let elems: u64 = self.dims.iter().product();
        // SAFETY: promised by the caller.
        (0..elems as usize).map(|index| unsafe { self.address.cast::<i32>().add(index).read_unaligned() }).collect()
    }
}

impl Call<'_> {
    pub(crate) fn operands(&self) -> Vec<Buffer> {
        self.frame.operands.read()
    }

    pub(crate) fn results(&self) -> Vec<Buffer> {
        self.frame.results.read()
    }

    /// A text among the attributes.
    pub(crate) fn attribute(&self, name: &str) -> Option<&str> {
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

    /// The number of the device that the program runs on, and the handle of its stream.
    pub(crate) fn device_and_stream(&self) -> Result<(u32, u64), OpError> {
        if crate::on_device::device_stands_in() {
            // A program on the processor, whose thread is the stream.
            return Ok((0, 0));
        }
        Ok((self.api.ordinal(self.frame.context)?, self.api.stream(self.frame.context)?))
    }

    /// Promises that the results come later. XLA keeps operands and results until then.
    pub(crate) fn promise(&mut self) -> Future {
        let future = self.api.about_future(FUTURE_CREATE, null_mut(), null_mut());
        self.frame.future = future;
        Future { api: self.api, future }
    }
}

/// The promise of a call's results. XLA waits until it is kept.
pub(crate) struct Future {
    api: &'static Api,
    future: Opaque,
}

// SAFETY: XLA's futures may be fulfilled on any thread.
unsafe impl Send for Future {}

impl Future {
    /// Keeps the promise. Whatever XLA was waiting for this to run, it runs on the calling thread, before this returns.
    pub(crate) fn keep(self, result: Result<(), OpError>) {
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
