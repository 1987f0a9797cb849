//! How TensorFlow's XLA gets to know of the collectives: [`register`].
//!
//! `GetXlaFfiApi`, which hands out the table of functions, is a C++ function and the only one that is called here;
//! TensorFlow exports it from 2.17 on. Up to TensorFlow 2.19 the table says that it is shorter than it is, and the
//! functions for futures were at other places in 2.18; so a table that claims to be shorter than that of 2.20 is
//! refused.
//!
//! This is an unsafe module: it calls functions of XLA's by their addresses.

#![allow(unsafe_code)]

use std::ptr::null_mut;
use std::sync::OnceLock;

use super::super::api::Library;
use super::call;
use crate::op_error::OpError;
use crate::xla_ffi::layout::{Api, ByteSpan, Opaque, RegisterArguments};
use crate::xla_ffi::{Call, HANDLER_REGISTER, Handler, checked_table, run};

/// The collectives of TensorFlow's compiled functions.
struct Collective;

impl Handler for Collective {
    fn execute(call: &mut Call<'_>) -> Result<(), OpError> {
        call::execute(call)
    }

    fn own_table() -> Option<&'static Api> {
        api().ok()
    }
}

/// Makes the collectives known to XLA under this name, for programs that run on the host. The error says what is
/// missing.
pub(super) fn register(target: &str) -> Result<(), String> {
    static REGISTERED: OnceLock<()> = OnceLock::new();
    let api = api()?;
    if REGISTERED.set(()).is_err() {
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
        execute: run::<Collective>,
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
    unsafe {
        let get: unsafe extern "C" fn() -> *const Api = std::mem::transmute(address);
        checked_table(get())
    }
}
