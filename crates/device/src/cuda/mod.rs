//! NVIDIA's devices, through the driver library that is there at run time.
//!
//! Frameworks work in the *primary context* of a device, so we do, too: their memory, streams and events are ours to
//! use. Threads come without a context; every call pushes it and pops it again, which takes a tenth of a microsecond.
//!
//! The kernels are PTX in this crate (`kernels`); the driver compiles them for its device when it first loads them,
//! and keeps the result.
//!
//! Memory is shared by CUDA IPC. That covers whatever `cudaMalloc` gives, which is where PyTorch's allocator gets its
//! segments; memory that is mapped piece by piece (expandable segments) or comes from a pool is refused by the driver,
//! and the caller packs it into memory of ours.

#![allow(unsafe_code)]

mod api;
mod backend;
mod kernels;
mod words;

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::{Device, Info, Result, Uuid};
use api::{Api, CuUuid};
use backend::Cuda;

/// Whether this machine looks as if it had a device of NVIDIA's, without a look at the driver.
pub fn is_likely() -> bool {
    Path::new("/dev/nvidiactl").exists() || Path::new("/dev/dxg").exists()
}

/// `CU_DEVICE_ATTRIBUTE_MPS_ENABLED`: contexts of several processes are shared through MPS.
const MPS_ENABLED: c_int = 133;

/// The devices that this process may see.
///
/// # Errors
/// [`crate::Error::Unavailable`] if there is no driver.
pub fn list() -> Result<Vec<Info>> {
    let api = Api::get()?;
    let mut count = 0;
    // SAFETY: writes one number.
    api.check("cuDeviceGetCount", unsafe { (api.device_count)(&raw mut count) })?;
    (0..count).map(|ordinal| describe(api, ordinal)).collect()
}

/// Whether one of this process's devices reaches the memory of another.
///
/// # Errors
/// If the driver refuses.
pub fn can_access_peer(device: u32, peer: u32) -> Result<bool> {
    let api = Api::get()?;
    let mut can = 0;
    // SAFETY: writes one number.
    let code = unsafe { (api.device_can_access_peer)(&raw mut can, device as c_int, peer as c_int) };
    api.check("cuDeviceCanAccessPeer", code)?;
    Ok(can != 0)
}

/// A device by its number in this process. All callers get the same one.
///
/// # Errors
/// [`crate::Error::Unavailable`] if there is no such device; whatever the driver refuses.
pub fn open(ordinal: u32) -> Result<Device> {
    static OPEN: Mutex<Option<HashMap<u32, Device>>> = Mutex::new(None);
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let open = open.get_or_insert_default();
    if let Some(device) = open.get(&ordinal) {
        return Ok(device.clone());
    }
    let api = Api::get()?;
    let device = Device::new(Arc::new(Cuda::open(api, describe(api, ordinal as c_int)?)?));
    open.insert(ordinal, device.clone());
    Ok(device)
}

fn describe(api: &Api, ordinal: c_int) -> Result<Info> {
    let (mut device, mut uuid, mut bytes, mut version) = (0, CuUuid([0; 16]), 0_usize, 0);
    let mut name = [0 as c_char; 256];
    // SAFETY: each call writes to the variable of its type; the name's length is given.
    unsafe {
        api.check("cuDeviceGet", (api.device_get)(&raw mut device, ordinal))?;
        api.check("cuDeviceGetUuid", (api.device_uuid)(&raw mut uuid, device))?;
        api.check("cuDeviceTotalMem", (api.device_total_mem)(&raw mut bytes, device))?;
        api.check("cuDeviceGetName", (api.device_name)(name.as_mut_ptr(), 255, device))?;
        api.check("cuDriverGetVersion", (api.driver_version)(&raw mut version))?;
    }
    let mut is_mps = 0;
    // SAFETY: writes one number. Drivers that do not know the attribute refuse, and write nothing.
    let knows_mps = unsafe { (api.device_attribute)(&raw mut is_mps, MPS_ENABLED, device) } == 0;
    // SAFETY: the driver has written a string, and the last byte is still zero.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    Ok(Info {
        ordinal: ordinal as u32,
        uuid: Uuid(uuid.0),
        name,
        memory_bytes: bytes as u64,
        driver: format!("{}.{}", version / 1000, version % 1000 / 10),
        runs_processes_at_once: knows_mps && is_mps != 0,
    })
}
