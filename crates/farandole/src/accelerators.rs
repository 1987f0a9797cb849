//! What this process has for collectives on devices: CUDA's driver, and NCCL.
//!
//! Nothing is opened before it is asked for: importing a front end costs nothing.

use std::path::PathBuf;
use std::sync::Arc;

use farandole_device::nccl::{self, NcclPlaces, SharedLibrary, Version};
use farandole_device::{Error, Result, cuda};
use farandole_engine::config::DevicePlaneChoice;
use farandole_engine::{Config, OpenDevice};
use farandole_settings as settings;

/// Whether CUDA's driver is there and has a device.
pub fn has_cuda() -> bool {
    cuda::is_likely() && cuda::list().is_ok_and(|devices| !devices.is_empty())
}

/// The version of NCCL, if it is there and can be used. `files` are places where a front end expects it.
pub fn nccl_version(files: &[PathBuf]) -> Option<Version> {
    open_nccl(files).ok().map(|library| library.version())
}

/// NVIDIA's devices, if this machine looks as if it had any and the user lets us work in their memory.
pub(crate) fn devices_of(config: &Config) -> Option<OpenDevice> {
    let wanted = match config.plane {
        DevicePlaneChoice::Own | DevicePlaneChoice::Nccl => true,
        DevicePlaneChoice::Auto | DevicePlaneChoice::PreferNccl => cuda::is_likely(),
        DevicePlaneChoice::Staged => false,
    };
    wanted.then(|| Arc::new(cuda::open) as OpenDevice)
}

/// NCCL, if the user lets us use it and this machine looks as if it had devices.
///
/// # Errors
/// Why it is not used.
pub(crate) fn nccl_of(config: &Config, files: &[PathBuf]) -> Result<SharedLibrary> {
    match config.plane {
        DevicePlaneChoice::Own | DevicePlaneChoice::Staged => {
            Err(Error::Unavailable(format!("{} does not ask for it", settings::PLANE.name)))
        }
        _ if !cuda::is_likely() => Err(Error::Unavailable("the machine has no device of NVIDIA's".to_owned())),
        _ => open_nccl(files),
    }
}

/// What Horovod's name for the plane says, where ours says nothing.
pub(crate) fn prefers_nccl(lookup: impl Fn(&'static str) -> Option<String>) -> bool {
    let says_nccl = |(_, text): (_, String)| text.eq_ignore_ascii_case("nccl");
    settings::PLANE.written(&lookup).is_none() && settings::GPU_OPERATIONS.written(&lookup).is_some_and(says_nccl)
}

/// Whether NCCL refuses ranks that share a GPU, so many each: it does, unless it is told to take them for ranks of
/// different hosts, or to allow it.
pub(crate) fn nccl_refuses(ranks_per_gpu: u64, is_set: impl Fn(&str) -> bool) -> bool {
    ranks_per_gpu > 1 && !["NCCL_HOSTID", "NCCL_MULTI_RANK_GPU_ENABLE"].into_iter().any(is_set)
}

fn open_nccl(files: &[PathBuf]) -> Result<SharedLibrary> {
    let chosen = settings::NCCL_LIBRARY.in_environment().map(PathBuf::from);
    nccl::open(&NcclPlaces { chosen, others: files.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_share_a_gpu_have_no_nccl_unless_it_is_told_to_take_them() {
        assert!(nccl_refuses(2, |_| false) && !nccl_refuses(1, |_| false) && !nccl_refuses(0, |_| false));
        assert!(!nccl_refuses(2, |name| name == "NCCL_HOSTID"));
    }

    #[test]
    fn horovods_name_counts_where_ours_is_not_set() {
        let says = |pairs: &'static [(&str, &str)]| {
            prefers_nccl(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
        };
        assert!(says(&[("HOROVOD_GPU_OPERATIONS", "NCCL")]) && says(&[("HOROVOD_GPU_ALLREDUCE", "nccl")]));
        assert!(!says(&[]) && !says(&[("HOROVOD_GPU_OPERATIONS", "MPI")]));
        assert!(!says(&[("HOROVOD_GPU_OPERATIONS", "NCCL"), ("FARANDOLE_PLANE", "auto")]));
    }
}
