//! Finds another copy of this library that has a job in this process.
//!
//! `libfarandole.so` and the Python module each hold an engine. Two jobs in one process would be two ranks where the
//! launcher has started one, so the second is refused, with the name of the first. Copies are found among the objects
//! that the dynamic linker has loaded, whichever way they were: each is asked for its `farandole_is_initialized`.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use crate::lifecycle::farandole_is_initialized;

/// The question that every copy answers.
const QUESTION: &CStr = c"farandole_is_initialized";

/// Says, in words, which other copy of this library has a job in this process.
pub(crate) fn with_a_job() -> Option<String> {
    let own = farandole_is_initialized as *const () as usize;
    let others = loaded_objects().into_iter().filter_map(|object| answer_of(&object, own));
    others.into_iter().next().map(|path| {
        format!(
            "this process is a rank already, through another copy of the library: {path}. A process has one engine; \
             load that file instead of this one (in Python: farandole.basics.basics.MPI_LIB_CTYPES)"
        )
    })
}

/// The file that holds the object's copy of the question, if it is not our own and answers yes.
fn answer_of(object: &CStr, own: usize) -> Option<String> {
    // SAFETY: a path from the linker's own list; nothing is loaded that is not there, and the count of users that this
    // raises is lowered again below.
    let handle = unsafe { libc::dlopen(object.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
    if handle.is_null() {
        return None;
    }
    // SAFETY: the handle is open.
    let found = unsafe { libc::dlsym(handle, QUESTION.as_ptr()) };
    let answer = (!found.is_null() && found as usize != own && is_initialized(found)).then(|| file_of(found));
    // SAFETY: opened above, and not used any more.
    unsafe { libc::dlclose(handle) };
    answer
}

/// Asks another copy.
fn is_initialized(question: *mut c_void) -> bool {
    // SAFETY: a function of this name has had this signature since the first version of the ABI; the name is ours.
    let question: extern "C" fn() -> c_int = unsafe { std::mem::transmute(question) };
    question() != 0
}

/// The file that an address was loaded from.
fn file_of(address: *mut c_void) -> String {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: `info` is writable, and the linker only looks the address up.
    let found = unsafe { libc::dladdr(address, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return "an unknown file".to_owned();
    }
    // SAFETY: the linker's own text, which lives as long as the object that was just asked.
    unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy().into_owned()
}

/// The paths of all objects in this process that have one.
fn loaded_objects() -> Vec<CString> {
    unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _: usize, list: *mut c_void) -> c_int {
        // SAFETY: the linker passes a valid record, and `list` is what `loaded_objects` has passed.
        let (name, list) = unsafe { ((*info).dlpi_name, &mut *list.cast::<Vec<CString>>()) };
        if let Some(name) = nonempty(name) {
            list.push(name);
        }
        0
    }
    let mut list: Vec<CString> = Vec::new();
    // SAFETY: the callback has the expected type and gets the list, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut list).cast()) };
    list
}

fn nonempty(name: *const c_char) -> Option<CString> {
    if name.is_null() {
        return None;
    }
    // SAFETY: not null, and a text of the linker's.
    let name = unsafe { CStr::from_ptr(name) };
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loaded_objects_are_found_and_no_other_copy_is_among_them() {
        let objects = loaded_objects();
        assert!(objects.iter().any(|object| object.to_string_lossy().contains("libc.so")), "{objects:?}");
        assert_eq!(with_a_job(), None);
    }
}
