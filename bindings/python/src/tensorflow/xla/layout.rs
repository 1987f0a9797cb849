//! The structures of XLA's FFI, as `xla/ffi/api/c_api.h` has them.
//!
//! Each begins with its size, and fields are only added at the end. What they are used for is in `ffi`.

use std::ffi::{c_char, c_int, c_void};

use super::super::api::Opaque;

/// Functions in the table of TensorFlow 2.20 that are known here: all but the last.
pub(super) const WITH_FUTURES: usize = 17;

#[repr(C)]
pub(super) struct Extension {
    pub(super) size: usize,
    pub(super) kind: c_int,
    pub(super) next: *mut Extension,
}

#[repr(C)]
pub(super) struct Version {
    pub(super) size: usize,
    pub(super) extension: *mut Extension,
    pub(super) major: c_int,
    pub(super) minor: c_int,
}

#[repr(C)]
pub(super) struct Metadata {
    pub(super) size: usize,
    pub(super) version: Version,
    pub(super) traits: u32,
}

#[repr(C)]
pub(super) struct MetadataExtension {
    pub(super) base: Extension,
    pub(super) metadata: *mut Metadata,
}

/// The beginning of [`Api`], the same in all versions.
#[repr(C)]
pub(super) struct Head {
    pub(super) size: usize,
    pub(super) extension: *mut Extension,
    pub(super) version: Version,
}

#[repr(C)]
pub(super) struct Api {
    pub(super) size: usize,
    pub(super) extension: *mut Extension,
    pub(super) version: Version,
    pub(super) internal: Opaque,
    pub(super) functions: [Opaque; WITH_FUTURES],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ByteSpan {
    pub(super) data: *const u8,
    pub(super) len: usize,
}

#[repr(C)]
pub(super) struct Buffers {
    pub(super) size: usize,
    pub(super) extension: *mut Extension,
    pub(super) len: i64,
    pub(super) types: *const c_int,
    pub(super) buffers: *const *const RawBuffer,
}

#[repr(C)]
pub(super) struct Attributes {
    pub(super) size: usize,
    pub(super) extension: *mut Extension,
    pub(super) len: i64,
    pub(super) types: *const c_int,
    pub(super) names: *const *const ByteSpan,
    pub(super) values: *const *const c_void,
}

/// `XLA_FFI_Buffer`.
#[repr(C)]
pub(super) struct RawBuffer {
    pub(super) size: usize,
    pub(super) extension: *mut Extension,
    pub(super) primitive_type: c_int,
    pub(super) data: *mut u8,
    pub(super) rank: i64,
    pub(super) dims: *const i64,
}

#[repr(C)]
pub(super) struct Frame {
    pub(super) size: usize,
    pub(super) extension: *mut Extension,
    pub(super) api: *const Api,
    pub(super) context: Opaque,
    pub(super) stage: c_int,
    pub(super) operands: Buffers,
    pub(super) results: Buffers,
    pub(super) attributes: Attributes,
    pub(super) future: Opaque,
}

#[repr(C)]
pub(super) struct RegisterArguments {
    pub(super) size: usize,
    pub(super) extension: *mut Extension,
    pub(super) name: ByteSpan,
    pub(super) platform: ByteSpan,
    pub(super) instantiate: Opaque,
    pub(super) prepare: Opaque,
    pub(super) initialize: Opaque,
    pub(super) execute: Handler,
    pub(super) traits: u32,
}

#[repr(C)]
pub(super) struct ErrorArguments {
    pub(super) size: usize,
    pub(super) extension: *mut Extension,
    pub(super) message: *const c_char,
    pub(super) code: c_int,
}

#[repr(C)]
pub(super) struct MessageArguments {
    pub(super) size: usize,
    pub(super) extension: *mut Extension,
    pub(super) error: Opaque,
    pub(super) message: *const c_char,
}

#[repr(C)]
pub(super) struct DestroyArguments {
    pub(super) size: usize,
    pub(super) extension: *mut Extension,
    pub(super) error: Opaque,
}

#[repr(C)]
pub(super) struct FutureArguments {
    pub(super) size: usize,
    pub(super) extension: *mut Extension,
    pub(super) future: Opaque,
    pub(super) error: Opaque,
}

pub(super) type Handler = unsafe extern "C" fn(*mut Frame) -> Opaque;
