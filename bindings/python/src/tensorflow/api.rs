//! TensorFlow's C API, found by name in the library that Python has loaded: [`Api`].
//!
//! Nothing of TensorFlow is linked or compiled. `libtensorflow_framework.so.2` is in the process when this is called,
//! and its functions are looked up once. A function that is missing is an error that names it: this TensorFlow is too
//! old.
//!
//! This is an unsafe module. The invariant it keeps: every function has the type that
//! `tensorflow/c/{kernels,ops,tf_status,tf_tensor}.h` documents, the same from TensorFlow 2.12 on, and every object
//! made here is deleted once ([`Status`], [`Tensor`]).
//!
//! What is deliberately not here: what the functions are used for (`shapes`, `kernel`, `calls`).

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;

pub(crate) use crate::library::{Library, Opaque};

/// `TF_StringView`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct StringView {
    pub(crate) data: *const c_char,
    pub(crate) len: usize,
}

/// `TF_OK`. The codes of errors are in `op_error`.
pub(crate) const OK: c_int = 0;

pub(crate) type CreateKernel = unsafe extern "C" fn(Opaque) -> Opaque;
pub(crate) type ComputeKernel = unsafe extern "C" fn(Opaque, Opaque);
pub(crate) type ComputeKernelAsync = unsafe extern "C" fn(Opaque, Opaque, Opaque);
pub(crate) type DeleteKernel = unsafe extern "C" fn(Opaque);
pub(crate) type InferShapes = unsafe extern "C" fn(Opaque, Opaque);
pub(crate) type FreeTensorMemory = unsafe extern "C" fn(*mut c_void, usize, *mut c_void);

macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions, by what they do.
        pub(crate) struct Api {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// Missing in TensorFlow 2.12, whose C API has no asynchronous kernels.
            pub(crate) asynchronous: Option<Asynchronous>,
        }

        impl Api {
            fn look_up(library: &Library) -> Result<Api, String> {
                Ok(Api {
                    $($field: {
                        let address = library.symbol($symbol).ok_or_else(|| $symbol.to_owned())?;
                        // SAFETY: the symbol of this name has this type (module's text), and the library stays.
                        unsafe {
                            std::mem::transmute::<Opaque, unsafe extern "C" fn($($argument),*) $(-> $result)?>(address)
                        }
                    },)*
                    asynchronous: Asynchronous::look_up(library),
                })
            }
        }
    };
}

type NewAsyncKernelBuilder =
    unsafe extern "C" fn(*const c_char, *const c_char, CreateKernel, ComputeKernelAsync, DeleteKernel) -> Opaque;

/// The functions for asynchronous kernels.
#[derive(Clone, Copy)]
pub(crate) struct Asynchronous {
    pub(crate) new_kernel_builder: NewAsyncKernelBuilder,
    pub(crate) run_done: unsafe extern "C" fn(Opaque),
}

impl Asynchronous {
    fn look_up(library: &Library) -> Option<Asynchronous> {
        let new = library.symbol("TF_NewAsyncKernelBuilder")?;
        let run_done = library.symbol("TF_RunAsyncOpKernelDoneCallback")?;
        // SAFETY: the symbols of these names have these types (module's text), and the library stays.
        unsafe {
            Some(Asynchronous {
                new_kernel_builder: std::mem::transmute::<Opaque, NewAsyncKernelBuilder>(new),
                run_done: std::mem::transmute::<Opaque, unsafe extern "C" fn(Opaque)>(run_done),
            })
        }
    }
}

functions! {
    new_status = "TF_NewStatus": fn() -> Opaque;
    delete_status = "TF_DeleteStatus": fn(Opaque);
    set_status = "TF_SetStatus": fn(Opaque, c_int, *const c_char);
    get_code = "TF_GetCode": fn(Opaque) -> c_int;
    message = "TF_Message": fn(Opaque) -> *const c_char;

    new_op = "TF_NewOpDefinitionBuilder": fn(*const c_char) -> Opaque;
    add_input = "TF_OpDefinitionBuilderAddInput": fn(Opaque, *const c_char);
    add_output = "TF_OpDefinitionBuilderAddOutput": fn(Opaque, *const c_char);
    add_attr = "TF_OpDefinitionBuilderAddAttr": fn(Opaque, *const c_char);
    set_stateful = "TF_OpDefinitionBuilderSetIsStateful": fn(Opaque, bool);
    set_shape_function = "TF_OpDefinitionBuilderSetShapeInferenceFunction": fn(Opaque, InferShapes);
    register_op = "TF_RegisterOpDefinition": fn(Opaque, Opaque);

    new_shape = "TF_NewShapeHandle": fn() -> Opaque;
    delete_shape = "TF_DeleteShapeHandle": fn(Opaque);
    shape_inputs = "TF_ShapeInferenceContextNumInputs": fn(Opaque) -> i64;
    shape_input = "TF_ShapeInferenceContextGetInput": fn(Opaque, c_int, Opaque, Opaque);
    shape_rank_known = "TF_ShapeInferenceContextRankKnown": fn(Opaque, Opaque) -> c_int;
    shape_rank = "TF_ShapeInferenceContextRank": fn(Opaque, Opaque) -> i64;
    shape_scalar = "TF_ShapeInferenceContextScalar": fn(Opaque) -> Opaque;
    shape_vector = "TF_ShapeInferenceContextVectorFromSize": fn(Opaque, usize) -> Opaque;
    shape_part = "TF_ShapeInferenceContextSubshape": fn(Opaque, Opaque, i64, i64, Opaque, Opaque);
    shape_concatenate = "TF_ShapeInferenceContextConcatenateShapes": fn(Opaque, Opaque, Opaque, Opaque, Opaque);
    shape_set_output = "TF_ShapeInferenceContextSetOutput": fn(Opaque, c_int, Opaque, Opaque);

    new_kernel_builder = "TF_NewKernelBuilder":
        fn(*const c_char, *const c_char, CreateKernel, ComputeKernel, DeleteKernel) -> Opaque;
    host_memory = "TF_KernelBuilder_HostMemory": fn(Opaque, *const c_char);
    register_kernel = "TF_RegisterKernelBuilder": fn(*const c_char, Opaque, Opaque);

    kernel_name = "TF_OpKernelConstruction_GetName": fn(Opaque) -> StringView;
    attr_size = "TF_OpKernelConstruction_GetAttrSize": fn(Opaque, *const c_char, *mut i32, *mut i32, Opaque);
    attr_int = "TF_OpKernelConstruction_GetAttrInt64": fn(Opaque, *const c_char, *mut i64, Opaque);
    attr_float = "TF_OpKernelConstruction_GetAttrFloat": fn(Opaque, *const c_char, *mut f32, Opaque);
    attr_bool = "TF_OpKernelConstruction_GetAttrBool": fn(Opaque, *const c_char, *mut u8, Opaque);
    attr_string = "TF_OpKernelConstruction_GetAttrString": fn(Opaque, *const c_char, *mut c_char, usize, Opaque);
    attr_strings = "TF_OpKernelConstruction_GetAttrStringList":
        fn(Opaque, *const c_char, *mut *mut c_char, *mut usize, c_int, *mut c_void, usize, Opaque);
    construction_failed = "TF_OpKernelConstruction_Failure": fn(Opaque, Opaque);

    num_inputs = "TF_NumInputs": fn(Opaque) -> c_int;
    iteration = "TF_GetIterId": fn(Opaque) -> i64;
    get_input = "TF_GetInput": fn(Opaque, c_int, *mut Opaque, Opaque);
    set_output = "TF_SetOutput": fn(Opaque, c_int, Opaque, Opaque);
    allocate_output = "TF_AllocateOutput": fn(Opaque, c_int, c_int, *const i64, c_int, usize, Opaque) -> Opaque;
    forward_input = "TF_ForwardInputOrAllocateOutput":
        fn(Opaque, *const c_int, c_int, c_int, *const i64, c_int, *mut c_int, Opaque) -> Opaque;
    compute_failed = "TF_OpKernelContext_Failure": fn(Opaque, Opaque);

    new_tensor = "TF_NewTensor":
        fn(c_int, *const i64, c_int, *mut c_void, usize, FreeTensorMemory, *mut c_void) -> Opaque;
    delete_tensor = "TF_DeleteTensor": fn(Opaque);
    tensor_type = "TF_TensorType": fn(Opaque) -> c_int;
    num_dims = "TF_NumDims": fn(Opaque) -> c_int;
    dim = "TF_Dim": fn(Opaque, c_int) -> i64;
    byte_size = "TF_TensorByteSize": fn(Opaque) -> usize;
    data = "TF_TensorData": fn(Opaque) -> *mut c_void;
}

static API: OnceLock<Api> = OnceLock::new();

/// The functions, for code that TensorFlow calls: it was registered with them.
pub(crate) fn api() -> &'static Api {
    API.get().expect("invariant: kernels are registered after the functions were found")
}

/// Finds the functions. The error is the name of one that is missing.
pub(crate) fn load(library: &Library) -> Result<&'static Api, String> {
    let found = Api::look_up(library)?;
    Ok(API.get_or_init(|| found))
}

/// A `TF_Status` of our own.
pub(crate) struct Status(Opaque);

impl Status {
    pub(crate) fn new() -> Status {
        // SAFETY: makes an object that `drop` deletes.
        Status(unsafe { (api().new_status)() })
    }

    pub(crate) fn raw(&self) -> Opaque {
        self.0
    }

    /// Sets a code and a text on any status, ours or one that TensorFlow passed in.
    ///
    /// # Safety
    /// `status` is a `TF_Status` that lives.
    pub(crate) unsafe fn set_raw(status: Opaque, code: c_int, text: &str) {
        let text = CString::new(text.replace('\0', " ")).expect("invariant: zeros have been replaced");
        // SAFETY: promised by the caller; the text is copied.
        unsafe { (api().set_status)(status, code, text.as_ptr()) };
    }

    pub(crate) fn set(&self, code: c_int, text: &str) {
        // SAFETY: our own status lives.
        unsafe { Status::set_raw(self.0, code, text) };
    }

    /// The text, unless all is well.
    pub(crate) fn error(&self) -> Option<String> {
        // SAFETY: our own status lives, and its message as long as it is not set again.
        unsafe {
            if (api().get_code)(self.0) == OK {
                return None;
            }
            Some(CStr::from_ptr((api().message)(self.0)).to_string_lossy().into_owned())
        }
    }
}

impl Drop for Status {
    fn drop(&mut self) {
        // SAFETY: made in `new`, deleted once.
        unsafe { (api().delete_status)(self.0) };
    }
}

/// A `TF_Tensor` that we hold on to.
pub(crate) struct Tensor(NonNull<c_void>);

impl Tensor {
    /// # Safety
    /// `tensor` was given to the caller to delete, or is null.
    pub(crate) unsafe fn from_raw(tensor: Opaque) -> Option<Tensor> {
        NonNull::new(tensor).map(Tensor)
    }

    pub(crate) fn raw(&self) -> Opaque {
        self.0.as_ptr()
    }

    /// The number of the element type in `TF_DataType`.
    pub(crate) fn data_type(&self) -> c_int {
        // SAFETY: a tensor that lives, here and below.
        unsafe { (api().tensor_type)(self.raw()) }
    }

    pub(crate) fn dims(&self) -> Vec<i64> {
        // SAFETY: as above; the index is below the number of dimensions.
        unsafe { (0..(api().num_dims)(self.raw())).map(|index| (api().dim)(self.raw(), index)).collect() }
    }

    pub(crate) fn len_bytes(&self) -> usize {
        // SAFETY: as above.
        unsafe { (api().byte_size)(self.raw()) }
    }

    pub(crate) fn data(&self) -> *mut u8 {
        // SAFETY: as above.
        unsafe { (api().data)(self.raw()) }.cast()
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: ours to delete, once.
        unsafe { (api().delete_tensor)(self.raw()) };
    }
}
