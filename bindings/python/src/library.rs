//! A framework's library that the process has loaded, and its symbols: [`Library`].
//!
//! No framework is linked. Python has loaded its library when it is asked for here, so that nothing is initialised, and
//! nothing is closed again.
//!
//! This is an unsafe module: it calls the dynamic loader. What a symbol is, the one who asks for it knows.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_void};

/// Objects of a framework that are only known by their address.
pub(crate) type Opaque = *mut c_void;

/// A library that the process has loaded.
pub(crate) struct Library(Opaque);

impl Library {
    /// Opens a library that is in the process, by its path or by its name.
    pub(crate) fn already_loaded(path: &CStr) -> Result<Library, String> {
        // SAFETY: the library is there already or is not opened: no initialiser runs. It is never closed.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        if handle.is_null() {
            return Err(format!("{} is not loaded", path.to_string_lossy()));
        }
        Ok(Library(handle))
    }

    /// The address of a symbol, also of a library that this one needs.
    pub(crate) fn symbol(&self, name: &str) -> Option<Opaque> {
        let name = CString::new(name).expect("invariant: names of symbols hold no zero");
        // SAFETY: an open library, and a name that ends with zero.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    }
}
