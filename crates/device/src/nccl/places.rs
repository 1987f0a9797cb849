//! Where NCCL is looked for: [`open`].
//!
//! 1. The file that the user has named.
//! 2. What is in the process already: a framework has brought it, and two copies would not know of each other's
//!    threads and memory.
//! 3. `libnccl.so.2`, where the dynamic linker finds it.
//! 4. Files that a front end knows of: wheels of frameworks keep theirs in `site-packages/nvidia/nccl/lib`, which no
//!    linker looks at.

#![allow(unsafe_code)]

use std::ffi::{OsStr, c_int};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::SharedLibrary;
use super::api::Api;
use super::linked::Linked;
use crate::{Error, Result};

/// The only name that NCCL's packages have.
const NAME: &str = "libnccl.so.2";

/// `RTLD_NOLOAD` of Linux' dynamic linkers: opens what is there and nothing else.
const NO_LOAD: c_int = 4;

/// Files to look at besides what the process and the linker know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NcclPlaces {
    /// The file that must be used.
    pub chosen: Option<PathBuf>,
    /// Files that may be there.
    pub others: Vec<PathBuf>,
}

/// NCCL, opened once in a process. A failure is not kept: a framework that is imported later may bring it.
///
/// # Errors
/// [`Error::Unavailable`] if there is none, or one that is too old, with what was looked at.
pub fn open(places: &NcclPlaces) -> Result<SharedLibrary> {
    static OPENED: Mutex<Option<&'static Api>> = Mutex::new(None);
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let api = match *opened {
        Some(api) => api,
        None => {
            let api: &'static Api = Box::leak(Box::new(find(places)?));
            log::debug!("NCCL {} is opened", api.version);
            opened.insert(api)
        }
    };
    Ok(Arc::new(Linked(api)))
}

fn find(places: &NcclPlaces) -> Result<Api> {
    if let Some(chosen) = &places.chosen {
        let library = load(chosen.as_os_str(), 0).map_err(|error| {
            Error::Unavailable(format!("NCCL cannot be used: {} cannot be opened ({error})", chosen.display()))
        })?;
        return Api::of(library, &chosen.display().to_string());
    }
    if let Ok(library) = load(NAME.as_ref(), NO_LOAD) {
        return Api::of(library, &format!("the {NAME} of this process"));
    }
    let not_there = match load(NAME.as_ref(), 0) {
        Ok(library) => return Api::of(library, NAME),
        Err(error) => error,
    };
    match places.others.iter().find_map(|file| Some((file, load(file.as_os_str(), 0).ok()?))) {
        Some((file, library)) => Api::of(library, &file.display().to_string()),
        None => Err(Error::Unavailable(format!(
            "NCCL cannot be used: there is no library ({not_there}); frameworks bring it, and FARANDOLE_NCCL_LIBRARY \
             names its file"
        ))),
    }
}

fn load(name: &OsStr, flags: c_int) -> std::result::Result<Library, libloading::Error> {
    // SAFETY: NCCL's library is made to be loaded; its initialisers do nothing that we could break.
    unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL | flags) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_nccl_is_named() {
        let chosen =
            |file: &str| find(&NcclPlaces { chosen: Some(file.into()), others: vec![] }).err().unwrap().to_string();
        assert!(chosen("/nowhere/libnccl.so.2").contains("/nowhere/libnccl.so.2 cannot be opened"));
        assert!(chosen("libc.so.6").contains("libc.so.6 is not NCCL"), "{}", chosen("libc.so.6"));
    }
}
