//! What this machine has for a study of planes.

use farandole_device::cuda;
use farandole_study::planes::{MPS, PlaneSupport};

/// Asks the driver for GPUs and looks for the program of MPS.
pub(super) fn look() -> PlaneSupport {
    let gpus = cuda::list().map_err(|error| error.to_string()).and_then(|list| match list.len() {
        0 => Err("the driver knows no GPU".to_owned()),
        count => Ok(count),
    });
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let has_mps = std::env::split_paths(&folders).any(|folder| folder.join(MPS).is_file());
    PlaneSupport { gpus, has_mps }
}
