//! Words of host memory that streams wait for: [`Signals`].
//!
//! A word counts up. A signal takes a free word and waits for one more than its last value, so a word can be used again
//! as soon as its signal is set: what still waits for the old value has it.

use std::ffi::{c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use super::api::{Api, Handle, Pointer};
use crate::signal::SignalWord;
use crate::{Error, Result};

/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`.
const PORTABLE_AND_MAPPED: c_uint = 1 | 2;
/// `CU_STREAM_WAIT_VALUE_GEQ`: compares cyclically.
const AT_LEAST: c_uint = 0;
/// Words that are allocated at once. Each has a cache line of its own.
const WORDS: usize = 64;
/// Bytes from one word to the next.
const STRIDE_BYTES: usize = 64;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Signals {
    /// Words that no signal uses, with the value that they have. Locked for a moment by any thread.
    free: Mutex<Vec<SignalWord>>,
}

impl Signals {
    /// A word, and the value to wait for. The context is current.
    pub(super) fn take(&self, api: &Api) -> Result<SignalWord> {
        if api.stream_wait_value.is_none() {
            return Err(Error::Unavailable(
                "the driver's streams cannot wait for memory (it is older than CUDA 12)".into(),
            ));
        }
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.is_empty() {
            free.extend(allocate(api)?);
        }
        let SignalWord { word, value } = free.pop().expect("invariant: words were just added");
        Ok(SignalWord { word, value: value.wrapping_add(1) })
    }

    /// Gives the word of a signal back that is set.
    pub(super) fn give_back(&self, word: SignalWord) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(word);
    }
}

/// Sets a signal.
pub(super) fn set(SignalWord { word, value }: SignalWord) {
    let word: *const AtomicU32 = ptr::with_exposed_provenance(word as usize);
    // SAFETY: the word lies in memory that `allocate` has made and that is never freed. The device only reads it.
    unsafe { &*word }.store(value, Ordering::Release);
}

/// Lets a stream wait for a signal. The context is current.
pub(super) fn wait(api: &Api, stream: Handle, SignalWord { word, value }: SignalWord) -> Result<()> {
    let wait_value = api.stream_wait_value.expect("invariant: there are signals only where streams can wait for them");
    let mut address: Pointer = 0;
    let host: *mut c_void = ptr::with_exposed_provenance_mut(word as usize);
    // SAFETY: the word lies in memory that `allocate` has made; writes one address.
    let code = unsafe { (api.mem_host_get_device_pointer)(&raw mut address, host, 0) };
    api.check("cuMemHostGetDevicePointer", code)?;
    // SAFETY: the address is that of a word that is never freed.
    api.check("cuStreamWaitValue32", unsafe { wait_value(stream, address, value, AT_LEAST) })
}

fn allocate(api: &Api) -> Result<impl Iterator<Item = SignalWord> + use<>> {
    let mut host = ptr::null_mut();
    // SAFETY: writes one pointer. The memory is kept until the process ends: streams may wait for it at any time.
    let code = unsafe { (api.mem_host_alloc)(&raw mut host, WORDS * STRIDE_BYTES, PORTABLE_AND_MAPPED) };
    api.check("cuMemHostAlloc", code)?;
    // SAFETY: the memory was just allocated with this length.
    unsafe { ptr::write_bytes(host.cast::<u8>(), 0, WORDS * STRIDE_BYTES) };
    let first = host.expose_provenance();
    Ok((0..WORDS).map(move |index| SignalWord { word: (first + index * STRIDE_BYTES) as u64, value: 0 }))
}
