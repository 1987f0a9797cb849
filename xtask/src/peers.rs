//! Installs the libraries that `farandole bench --against` compares with, and PyTorch, whose launcher the tests start.
//!
//! Open MPI and MPICH come from the distribution (Debian, Ubuntu), side by side under their own names. Gloo comes
//! inside PyTorch, into the virtual environment `.venv` at the root of the workspace, where the benchmark and the tests
//! look for it. What is there already is left alone, so that running this twice costs seconds.

use anyhow::{Context as _, Result, bail};

use crate::tools;
use crate::venv::{self, MAIN};

/// PyTorch's own index has a build without GPU libraries, a tenth of the size; PyPI's build works as well.
const CPU_INDEX: &str = "https://download.pytorch.org/whl/cpu";

/// Installs all of them.
pub(crate) fn install() -> Result<()> {
    tools::need_packages(&tools::MPI).context("installing Open MPI and MPICH")?;
    install_torch().context("installing Gloo (PyTorch)")?;
    println!("the peers are installed: cargo xtask bench allreduce -np 2 --against openmpi,mpich,gloo");
    Ok(())
}

/// Installs PyTorch with Gloo and torchrun.
pub(crate) fn install_torch() -> Result<()> {
    MAIN.make(venv::any_python)?;
    let python = MAIN.python().to_string_lossy().into_owned();
    let gloo = "import torch.distributed as d, sys; sys.exit(not d.is_gloo_available())";
    if venv::answers(&python, &["-c", gloo]) {
        return Ok(());
    }
    if MAIN.uv(&["torch", "numpy", "--index-url", CPU_INDEX])?.env("UV_HTTP_RETRIES", "0").run().is_err() {
        println!("PyTorch's own index cannot be reached; PyPI's build brings GPU libraries along (several GB)");
        MAIN.install(&["torch", "numpy"])?;
    }
    if !venv::answers(&python, &["-c", gloo]) {
        bail!("PyTorch is installed in {}, but has no Gloo", MAIN.path().display());
    }
    Ok(())
}
