//! Opens one vendor library and asks it for its version.
//!
//! This module has unsafe code: it calls C through addresses found by name. The invariant it keeps: every function is
//! called with the type that its vendor documents, only functions that may be called before any initialisation come
//! first, and everything passed to them outlives the call. Opening a library runs its initialisers, which may crash or
//! hang; so only the hidden subcommand `doctor-probe` comes here, in a process that does nothing else and that `vendor`
//! watches.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use serde::{Deserialize, Serialize};

use super::gpus::Gpu;

/// Room for the text of `MPI_Get_library_version`: larger than what any library may write (8192).
const VERSION_BYTES: usize = 16 << 10;

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_MODE`.
const COMPUTE_MODE: c_int = 20;

/// What an opened library says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sighting {
    pub(crate) version: String,
    /// The file that was opened.
    pub(crate) path: Option<String>,
    /// What else it said: the number of devices, or why there are none.
    pub(crate) more: Option<String>,
    /// Its devices, if it is CUDA's driver.
    pub(crate) gpus: Vec<Gpu>,
    /// Pairs of them that do not reach each other's memory.
    pub(crate) strangers: Pairs,
}

/// Pairs of devices, by their numbers; the lower one first.
pub(crate) type Pairs = Vec<(u32, u32)>;

/// Opens a library by its name or path and asks for its version. The name says what it is.
pub(crate) fn probe(name: &str) -> Result<Sighting> {
    let file = Path::new(name).file_name().and_then(|file| file.to_str()).unwrap_or(name);
    // SAFETY: the initialisers of these libraries have no requirements on their callers; if one crashes nevertheless,
    // it takes a process with it that has nothing to lose (module's text).
    let library = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) }?;
    let mut sighting = if file.starts_with("libcuda.") {
        cuda(&library)?
    } else if file.starts_with("libnccl.") {
        Sighting { version: nccl(&library)?, ..Sighting::default() }
    } else if file.starts_with("libmpi") {
        Sighting { version: mpi(&library)?, ..Sighting::default() }
    } else {
        bail!("{file} is no library that the doctor knows");
    };
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    sighting.path = mapped_file(&maps, file);
    Ok(sighting)
}

/// The driver's version, and its devices. A driver without devices, or one that does not fit its kernel module, has a
/// version, too.
fn cuda(library: &Library) -> Result<Sighting> {
    let get_version: unsafe extern "C" fn(*mut c_int) -> c_int = function(library, "cuDriverGetVersion")?;
    let init: unsafe extern "C" fn(c_uint) -> c_int = function(library, "cuInit")?;
    let get_count: unsafe extern "C" fn(*mut c_int) -> c_int = function(library, "cuDeviceGetCount")?;
    let mut number: c_int = 0;
    // SAFETY: documented as callable before cuInit; `number` outlives the call.
    let code = unsafe { get_version(&mut number) };
    ensure!(code == 0, "cuDriverGetVersion failed with CUDA error {code}");
    let version = format!("{}.{}", number / 1000, number % 1000 / 10);
    // SAFETY: the flags must be zero, and are.
    let code = unsafe { init(0) };
    if code != 0 {
        let more = Some(format!("cuInit failed with CUDA error {code}{}", meaning(code)));
        return Ok(Sighting { version, more, ..Sighting::default() });
    }
    let mut devices: c_int = 0;
    // SAFETY: CUDA is initialised; `devices` outlives the call.
    let code = unsafe { get_count(&mut devices) };
    ensure!(code == 0, "cuDeviceGetCount failed with CUDA error {code}");
    let more = Some(format!("{devices} device{}", if devices == 1 { "" } else { "s" }));
    let sighting = Sighting { version, more, ..Sighting::default() };
    Ok(match gpus(library) {
        Ok((gpus, strangers)) => Sighting { gpus, strangers, ..sighting },
        Err(error) => Sighting { more: Some(format!("its use failed: {error:#}")), ..sighting },
    })
}

/// All devices, and pairs of them that do not reach each other's memory. CUDA is initialised.
fn gpus(library: &Library) -> Result<(Vec<Gpu>, Pairs)> {
    let attribute: unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int = function(library, "cuDeviceGetAttribute")?;
    let devices = farandole_device::cuda::list()?;
    let gpu = |device: &farandole_device::Info| {
        let mut compute_mode: c_int = 0;
        // SAFETY: CUDA is initialised, the driver has counted this device, and `compute_mode` outlives the call.
        let code = unsafe { attribute(&mut compute_mode, COMPUTE_MODE, device.ordinal as c_int) };
        ensure!(code == 0, "cuDeviceGetAttribute failed with CUDA error {code}");
        let (name, uuid) = (device.name.clone(), device.uuid.to_string());
        Ok(Gpu { name, uuid, memory_bytes: device.memory_bytes, compute_mode })
    };
    let gpus = devices.iter().map(gpu).collect::<Result<Vec<Gpu>>>()?;
    let ordinals = || devices.iter().map(|device| device.ordinal);
    let pairs = ordinals().flat_map(|one| ordinals().filter(move |other| one < *other).map(move |other| (one, other)));
    let mut strangers = Vec::new();
    for (one, other) in pairs {
        if !farandole_device::cuda::can_access_peer(one, other)? {
            strangers.push((one, other));
        }
    }
    Ok((gpus, strangers))
}

/// What the errors mean that `cuInit` is known for.
fn meaning(code: c_int) -> &'static str {
    match code {
        100 => " (there is no device)",
        803 => " (driver and kernel module are of different versions)",
        804 => " (the compatibility libraries do not support this device)",
        999 => " (unknown; often the kernel module is not loaded)",
        _ => "",
    }
}

fn nccl(library: &Library) -> Result<String> {
    let get_version: unsafe extern "C" fn(*mut c_int) -> c_int = function(library, "ncclGetVersion")?;
    let mut number: c_int = 0;
    // SAFETY: needs no initialisation; `number` outlives the call.
    let code = unsafe { get_version(&mut number) };
    ensure!(code == 0, "ncclGetVersion failed with NCCL error {code}");
    Ok(nccl_version(number))
}

/// Up to 2.8 the number was made of a thousand and hundreds, since 2.9 of ten thousands and hundreds.
fn nccl_version(number: c_int) -> String {
    let major_factor = if number < 10_000 { 1000 } else { 10_000 };
    format!("{}.{}.{}", number / major_factor, number % major_factor / 100, number % 100)
}

/// The first line of the product's own description, less the word Version and what comes after a comma.
fn mpi(library: &Library) -> Result<String> {
    let get: unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int = function(library, "MPI_Get_library_version")?;
    let mut text = vec![0u8; VERSION_BYTES];
    let mut len: c_int = 0;
    // SAFETY: the standard allows this call before MPI_Init; the buffer is longer than any library's
    // MPI_MAX_LIBRARY_VERSION_STRING, and it and `len` outlive the call.
    let code = unsafe { get(text.as_mut_ptr().cast(), &mut len) };
    ensure!(code == 0, "MPI_Get_library_version failed with MPI error {code}");
    let len = usize::try_from(len).unwrap_or(0).min(VERSION_BYTES);
    Ok(mpi_version(&String::from_utf8_lossy(&text[..len])))
}

fn mpi_version(text: &str) -> String {
    let first = text.lines().next().unwrap_or_default().split(',').next().unwrap_or_default();
    first.replace("Version:", "").replace('\0', "").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A function of the library. The caller names its type, which must be the one that the vendor documents.
fn function<F: Copy>(library: &Library, name: &str) -> Result<F> {
    // SAFETY: every caller is in this file, names the documented type, and uses the function while the library is open.
    let symbol = unsafe { library.get::<F>(name) }.with_context(|| format!("looking for {name}"))?;
    Ok(*symbol)
}

/// The file of this name among those that are mapped. Versioned names may be links to longer ones.
fn mapped_file(maps: &str, file: &str) -> Option<String> {
    let stem = file.split_once(".so").map_or(file, |(stem, _)| stem).to_owned() + ".so";
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    paths.filter(|path| path.rsplit('/').next().is_some_and(|name| name.starts_with(&stem))).map(str::to_owned).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_their_vendors_write_them() {
        assert_eq!(nccl_version(2_804), "2.8.4");
        assert_eq!(nccl_version(22_005), "2.20.5");
        assert_eq!(mpi_version("Open MPI v4.1.4, package: Debian\0"), "Open MPI v4.1.4");
        assert_eq!(mpi_version("MPICH Version:      4.0.2\nMPICH Release date: ...\n"), "MPICH 4.0.2");
    }

    #[test]
    fn the_opened_file_is_found_behind_its_link() {
        let maps = "7f00-7f01 r-xp 0 08:01 12 /usr/lib/libmpich.so.12.2.2\n7f02-7f03 rw-p 0 00:00 0\n";
        assert_eq!(mapped_file(maps, "libmpich.so.12").as_deref(), Some("/usr/lib/libmpich.so.12.2.2"));
        assert_eq!(mapped_file(maps, "libmpi.so.40"), None);
    }

    #[test]
    fn a_library_that_is_not_there_or_not_known_is_an_error() {
        let refusal = |name: &str| format!("{:#}", probe(name).unwrap_err());
        assert!(refusal("libnccl.so.987").contains("libnccl.so.987: cannot open shared object file"));
        assert!(refusal("libc.so.6").contains("no library that the doctor knows"));
    }
}
