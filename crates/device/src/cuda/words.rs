//! Words of host memory that streams write and wait for (`crate::words`), by the driver's stream memory operations.

use std::ffi::{c_uint, c_void};
use std::ptr;
use std::sync::atomic::AtomicU32;

use super::api::{Api, Handle, Pointer};
use crate::{Error, Result};

/// `CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP`.
const PORTABLE_AND_MAPPED: c_uint = 1 | 2;
/// `CU_STREAM_WAIT_VALUE_GEQ`: compares cyclically.
const AT_LEAST: c_uint = 0;
/// `CU_STREAM_WRITE_VALUE_DEFAULT`: what the stream has stored before is visible to whoever sees the value.
const AFTER_STORES: c_uint = 0;
/// Host memory is registered in whole pages.
const PAGE_BYTES: usize = 4096;

/// Lets the device find the page of words; returns where the first is. The context is current.
pub(super) fn register(api: &Api, words: &[AtomicU32]) -> Result<u64> {
    if api.stream_wait_value.is_none() || api.stream_write_value.is_none() {
        let what = "the driver's streams cannot wait for memory (it is older than CUDA 12)";
        return Err(Error::Unavailable(what.into()));
    }
    let (page, offset) = page_of(words);
    // SAFETY: the page is mapped for as long as the words live, which the caller keeps until `unregister`.
    let code = unsafe { (api.mem_host_register)(page, PAGE_BYTES, PORTABLE_AND_MAPPED) };
    api.check("cuMemHostRegister", code)?;
    let mut address: Pointer = 0;
    // SAFETY: the page was just registered; writes one address.
    let code = unsafe { (api.mem_host_get_device_pointer)(&raw mut address, page, 0) };
    api.check("cuMemHostGetDevicePointer", code)?;
    Ok(address + offset)
}

/// Takes the page of words from the device. The context is current.
pub(super) fn unregister(api: &Api, words: &[AtomicU32]) -> Result<()> {
    // SAFETY: `register` has registered the page, and nothing in a stream uses it any more.
    api.check("cuMemHostUnregister", unsafe { (api.mem_host_unregister)(page_of(words).0) })
}

/// Queues a store to a word. The context is current.
pub(super) fn write(api: &Api, stream: Handle, address: u64, value: u32) -> Result<()> {
    let write_value = api.stream_write_value.expect("invariant: there are words only where streams can write them");
    // SAFETY: the address is that of a registered word, which lives until the stream has come here.
    api.check("cuStreamWriteValue32", unsafe { write_value(stream, address, value, AFTER_STORES) })
}

/// Queues a wait for a word. The context is current.
pub(super) fn wait(api: &Api, stream: Handle, address: u64, value: u32) -> Result<()> {
    let wait_value = api.stream_wait_value.expect("invariant: there are words only where streams can wait for them");
    // SAFETY: as in `write`.
    api.check("cuStreamWaitValue32", unsafe { wait_value(stream, address, value, AT_LEAST) })
}

/// The page in which words lie, and where in it.
fn page_of(words: &[AtomicU32]) -> (*mut c_void, u64) {
    let address = words.as_ptr().expose_provenance();
    (ptr::with_exposed_provenance_mut(address & !(PAGE_BYTES - 1)), (address % PAGE_BYTES) as u64)
}
