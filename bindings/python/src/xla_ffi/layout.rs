//! The structures of XLA's FFI, as `xla/ffi/api/c_api.h` has them.
//!
//! Each begins with its size, and fields are only added at the end. What they are used for is in the modules beside
//! this one.

use std::ffi::{c_char, c_int, c_void};

/// Objects of XLA that are only known by their address.
pub(crate) type Opaque = *mut c_void;

/// Functions in the table of TensorFlow 2.20 that are known here: all but the last.
pub(crate) const WITH_FUTURES: usize = 17;

#[repr(C)]
pub(crate) struct Extension {
    pub(crate) size: usize,
    pub(crate) kind: c_int,
    pub(crate) next: *mut Extension,
}

#[repr(C)]
pub(crate) struct Version {
    pub(crate) size: usize,
    pub(crate) extension: *mut Extension,
    pub(crate) major: c_int,
    pub(crate) minor: c_int,
}

#[repr(C)]
pub(crate) struct Metadata {
    pub(crate) size: usize,
    pub(crate) version: Version,
    pub(crate) traits: u32,
}

#[repr(C)]
pub(crate) struct MetadataExtension {
    pub(crate) base: Extension,
    pub(crate) metadata: *mut Metadata,
}

/// The beginning of [`Api`], the same in all versions.
#[repr(C)]
pub(crate) struct Head {
    pub(crate) size: usize,
    pub(crate) extension: *mut Extension,
    pub(crate) version: Version,
}

#[repr(C)]
pub(crate) struct Api {
    pub(crate) size: usize,
    pub(crate) extension: *mut Extension,
    pub(crate) version: Version,
    pub(crate) internal: Opaque,
    pub(crate) functions: [Opaque; WITH_FUTURES],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ByteSpan {
    pub(crate) data: *const u8,
    pub(crate) len: usize,
}

#[repr(C)]
pub(crate) struct Buffers {
    pub(crate) size: usize,
    pub(crate) extension: *mut Extension,
    pub(crate) len: i64,
    pub(crate) types: *const c_int,
    pub(crate) buffers: *const *const RawBuffer,
}

#[repr(C)]
pub(crate) struct Attributes {
    pub(crate) size: usize,
    pub(crate) extension: *mut Extension,
    pub(crate) len: i64,
    pub(crate) types: *const c_int,
    pub(crate) names: *const *const ByteSpan,
    pub(crate) values: *const *const c_void,
}

/// `XLA_FFI_Buffer`.
#[repr(C)]
pub(crate) struct RawBuffer {
    pub(crate) size: usize,
    pub(crate) extension: *mut Extension,
    pub(crate) primitive_type: c_int,
    pub(crate) data: *mut u8,
    pub(crate) rank: i64,
    pub(crate) dims: *const i64,
}

#[repr(C)]
pub(crate) struct Frame {
    pub(crate) size: usize,
    pub(crate) extension: *mut Extension,
    pub(crate) api: *const Api,
    pub(crate) context: Opaque,
    pub(crate) stage: c_int,
    pub(crate) operands: Buffers,
    pub(crate) results: Buffers,
    pub(crate) attributes: Attributes,
    pub(crate) future: Opaque,
}

#[repr(C)]
pub(crate) struct RegisterArguments {
    pub(crate) size: usize,
    pub(crate) extension: *mut Extension,
    pub(crate) name: ByteSpan,
    pub(crate) platform: ByteSpan,
    pub(crate) instantiate: Opaque,
    pub(crate) prepare: Opaque,
    pub(crate) initialize: Opaque,
    pub(crate) execute: Handler,
    pub(crate) traits: u32,
}

#[repr(C)]
pub(crate) struct ErrorArguments {
    pub(crate) size: usize,
    pub(crate) extension: *mut Extension,
    pub(crate) message: *const c_char,
    pub(crate) code: c_int,
}

#[repr(C)]
pub(crate) struct MessageArguments {
    pub(crate) size: usize,
    pub(crate) extension: *mut Extension,
    pub(crate) error: Opaque,
    pub(crate) message: *const c_char,
}

#[repr(C)]
pub(crate) struct DestroyArguments {
    pub(crate) size: usize,
    pub(crate) extension: *mut Extension,
    pub(crate) error: Opaque,
}

/// `XLA_FFI_Stream_Get_Args`.
#[repr(C)]
pub(crate) struct StreamArguments {
    pub(crate) size: usize,
    pub(crate) extension: *mut Extension,
    pub(crate) context: Opaque,
    pub(crate) stream: Opaque,
}

/// `XLA_FFI_DeviceOrdinal_Get_Args`.
#[repr(C)]
pub(crate) struct OrdinalArguments {
    pub(crate) size: usize,
    pub(crate) extension: *mut Extension,
    pub(crate) context: Opaque,
    pub(crate) ordinal: i32,
}

#[repr(C)]
pub(crate) struct FutureArguments {
    pub(crate) size: usize,
    pub(crate) extension: *mut Extension,
    pub(crate) future: Opaque,
    pub(crate) error: Opaque,
}

pub(crate) type Handler = unsafe extern "C" fn(*mut Frame) -> Opaque;
