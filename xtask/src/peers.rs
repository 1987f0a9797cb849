//! Installs the libraries that `farandole bench --against` compares with, and PyTorch, whose launcher the tests start.
//!
//! Open MPI and MPICH come from the distribution (Debian, Ubuntu), side by side under their own names. Gloo comes
//! inside PyTorch, into the virtual environment `.venv` at the root of the workspace, where the benchmark and the tests
//! look for it. What is there already is left alone, so that running this twice costs seconds.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::shell::{Shell, root};
use crate::tools;

/// PyTorch's own index has a build without GPU libraries, a tenth of the size; PyPI's build works as well.
const CPU_INDEX: &str = "https://download.pytorch.org/whl/cpu";

/// Installs Python packages: in a quarter of the processor time of pip, because it compiles none of their modules.
/// Python compiles those that are imported.
const INSTALLER: &str = "uv>=0.13,<1";

/// Installs all of them.
pub(crate) fn install() -> Result<()> {
    tools::need_packages(&tools::MPI).context("installing Open MPI and MPICH")?;
    install_torch().context("installing Gloo (PyTorch)")?;
    println!("the peers are installed: cargo xtask bench allreduce -np 2 --against openmpi,mpich,gloo");
    Ok(())
}

/// Installs PyTorch with Gloo and torchrun.
pub(crate) fn install_torch() -> Result<()> {
    let venv = root().join(".venv");
    let python = venv.join("bin/python");
    if !python.is_file() {
        // Debian has the module in a package of its own, and Python without it.
        if !answers("python3", &["-c", "import venv, ensurepip"]) {
            tools::install_packages(&["python3", "python3-venv"])?;
        }
        Shell::new("python3").words(&["-m", "venv", &text(&venv)?]).run()?;
    }
    let python = text(&python)?;
    let gloo = "import torch.distributed as d, sys; sys.exit(not d.is_gloo_available())";
    if answers(&python, &["-c", gloo]) {
        return Ok(());
    }
    if uv(&["torch", "numpy", "--index-url", CPU_INDEX])?.env("UV_HTTP_RETRIES", "0").run().is_err() {
        println!("PyTorch's own index cannot be reached; PyPI's build brings GPU libraries along (several GB)");
        install_python(&["torch", "numpy"])?;
    }
    if !answers(&python, &["-c", gloo]) {
        bail!("PyTorch is installed in {}, but has no Gloo", venv.display());
    }
    Ok(())
}

/// Installs Python packages into `.venv`. Where the packages come from somewhere that only pip is configured for, pip
/// installs them.
pub(crate) fn install_python(wanted: &[&str]) -> Result<()> {
    if uv(wanted)?.run().is_ok() {
        return Ok(());
    }
    pip().words(wanted).run().map(drop)
}

/// `uv pip install`, for `.venv`. Its cache lies in the same file system, so that files are linked and not copied.
fn uv(wanted: &[&str]) -> Result<Shell> {
    let venv = root().join(".venv/bin");
    if !venv.join("uv").is_file() {
        pip().words(&[INSTALLER]).run()?;
    }
    let words = ["pip", "install", "--quiet", "--system-certs", "--python", &text(&venv.join("python"))?];
    let shell = Shell::new(venv.join("uv")).words(&words).words(wanted);
    Ok(shell.env("UV_CACHE_DIR", tools::target_dir().join("tools/uv").to_string_lossy()))
}

fn pip() -> Shell {
    let words = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"];
    Shell::new(root().join(".venv/bin/python")).words(&words)
}

/// Whether a command exists and succeeds.
fn answers(program: &str, words: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn text(path: &Path) -> Result<String> {
    path.to_str().map(str::to_owned).with_context(|| format!("{} is not UTF-8", path.display()))
}
