//! Installs the libraries that `farandole bench --against` compares with.
//!
//! Open MPI and MPICH come from the distribution (Debian, Ubuntu), side by side under their own names. Gloo comes inside
//! PyTorch, into the virtual environment `.venv` at the root of the workspace, where the benchmark looks for it. What is there
//! already is left alone, so that running this twice costs seconds.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::shell::{Shell, root};

/// Packages with both MPI libraries and their launchers; no headers, since nothing is compiled against them.
const MPI_PACKAGES: [&str; 4] = ["openmpi-bin", "libopenmpi3", "mpich", "libmpich12"];

/// The launchers that the benchmark calls.
const LAUNCHERS: [&str; 2] = ["mpirun.openmpi", "mpirun.mpich"];

/// PyTorch's own index has a build without GPU libraries, a tenth of the size; PyPI's build works as well.
const CPU_INDEX: &str = "https://download.pytorch.org/whl/cpu";

/// Installs all of them.
pub(crate) fn install() -> Result<()> {
    install_mpi().context("installing Open MPI and MPICH")?;
    install_gloo().context("installing Gloo (PyTorch)")?;
    println!("the peers are installed: cargo xtask bench allreduce -np 2 --against openmpi,mpich,gloo");
    Ok(())
}

fn install_mpi() -> Result<()> {
    if LAUNCHERS.iter().all(|launcher| answers(launcher, &["--version"])) {
        return Ok(());
    }
    if !answers("apt-get", &["--version"]) {
        bail!(
            "this machine has no apt-get: install Open MPI and MPICH so that {} are in PATH",
            LAUNCHERS.join(" and ")
        );
    }
    let apt = |words: &[&str]| {
        let shell = if is_root() { Shell::new("apt-get") } else { Shell::new("sudo").words(&["apt-get"]) };
        shell.words(words).env("DEBIAN_FRONTEND", "noninteractive").run().map(drop)
    };
    apt(&["update", "-q"])?;
    apt(&["install", "-y", "-q", "--no-install-recommends"].iter().chain(&MPI_PACKAGES).copied().collect::<Vec<_>>())
}

fn install_gloo() -> Result<()> {
    let venv = root().join(".venv");
    let python = venv.join("bin/python");
    if !python.is_file() {
        Shell::new("python3").words(&["-m", "venv", &text(&venv)?]).run()?;
    }
    let python = text(&python)?;
    let gloo = "import torch.distributed as d, sys; sys.exit(not d.is_gloo_available())";
    if answers(&python, &["-c", gloo]) {
        return Ok(());
    }
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "torch", "numpy"];
    let small = Shell::new(&python).words(&pip).words(&["--retries", "0", "--index-url", CPU_INDEX]).run();
    if small.is_err() {
        println!("PyTorch's own index cannot be reached; PyPI's build brings GPU libraries along (several GB)");
        Shell::new(&python).words(&pip).run()?;
    }
    if !answers(&python, &["-c", gloo]) {
        bail!("PyTorch is installed in {}, but has no Gloo", venv.display());
    }
    Ok(())
}

/// Whether a command exists and succeeds.
fn answers(program: &str, words: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    uids.split_whitespace().nth(1) == Some("0")
}

fn text(path: &Path) -> Result<String> {
    path.to_str().map(str::to_owned).with_context(|| format!("{} is not UTF-8", path.display()))
}
