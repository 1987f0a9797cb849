//! Makes the PTX of the CUDA kernels: `kernels.ptx` of `kernels.cu`, both in the crate `device`.
//!
//! The PTX is committed, so that building the workspace needs no CUDA; whoever changes the kernels runs
//! `cargo xtask kernels` and commits both. Its first line says what it was made with and carries a hash of the source.
//! A test compares that hash, so continuous integration notices a kernel that was changed alone; that the PTX is byte
//! for byte what comes out of the source only `cargo xtask kernels --check` knows, because it needs the compiler.
//!
//! The compiler is NVIDIA's NVRTC, of a wheel in an environment of its own under `target/tools`; it needs no GPU. What
//! the PTX does is not checked here: the tests of the crate `device` run it, where there is a device.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use crate::shell::{Shell, root};
use crate::{tools, venv};

const SOURCE: &str = "crates/device/src/cuda/kernels.cu";
const PTX: &str = "crates/device/src/cuda/kernels.ptx";

/// Calls NVRTC.
const SCRIPT: &str = "xtask/src/kernels.py";

/// The oldest CUDA 12: its PTX (ISA 8.0) is compiled by every driver from 525 on, of the end of 2022. Exact, because
/// another release makes another PTX of the same source.
const VERSION: &str = "12.0.140";

/// Devices from Volta on, the oldest that may read a table of parameters where it lies (`__grid_constant__`); products
/// and sums are never contracted.
const OPTIONS: [&str; 3] = ["--gpu-architecture=compute_70", "--std=c++17", "--fmad=false"];

/// `cargo xtask kernels [--check]`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        [] => {
            let ptx = compile()?;
            std::fs::write(root().join(PTX), &ptx).with_context(|| format!("writing {PTX}"))?;
            println!("{PTX}: {} bytes", ptx.len());
        }
        ["--check"] => {
            if read(PTX)? != compile()? {
                bail!("{PTX} is not what {SOURCE} becomes; `cargo xtask kernels` makes it anew");
            }
            println!("{PTX} is what {SOURCE} becomes");
        }
        _ => bail!("`cargo xtask kernels` takes `--check` or nothing"),
    }
    Ok(())
}

/// The PTX of the source as it should be committed.
fn compile() -> Result<String> {
    let python = make_environment()?;
    let ptx = Shell::new(python).words(&[SCRIPT, SOURCE]).words(&OPTIONS).read()?;
    Ok(format!("{}\n{ptx}", head(&read(SOURCE)?)))
}

/// The first line of the PTX of this source.
fn head(source: &str) -> String {
    let (hash, options) = (fnv1a(source), OPTIONS.join(" "));
    format!("// Made by `cargo xtask kernels` of kernels.cu, FNV-1a {hash:016x}, with NVRTC {VERSION} {options}")
}

/// The interpreter of the environment with NVRTC, which is made if it is not there.
fn make_environment() -> Result<PathBuf> {
    let folder = tools::target_dir().join(format!("tools/nvrtc-{VERSION}"));
    let python = folder.join("bin/python");
    if !python.is_file() {
        Shell::new(venv::any_python()?).words(&["-m", "venv", &folder.to_string_lossy()]).run()?;
    }
    // Asked for each time: it may have been interrupted between the two.
    if Shell::new(&python).words(&["-c", "import nvidia.cuda_nvrtc"]).read().is_err() {
        let wheel = format!("nvidia-cuda-nvrtc-cu12=={VERSION}");
        let words = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", &wheel];
        Shell::new(&python).words(&words).run()?;
    }
    Ok(python)
}

fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(root().join(path)).with_context(|| format!("reading {path}"))
}

/// Tells texts apart that were not made to be alike.
fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ptx_is_made_of_the_kernels_as_they_are() {
        let (source, ptx) = (read(SOURCE).unwrap(), read(PTX).unwrap());
        assert_eq!(ptx.lines().next(), Some(&*head(&source)), "run `cargo xtask kernels` and commit {PTX}");
    }

    #[test]
    fn the_hash_is_the_one_that_everybody_calls_by_this_name() {
        assert_eq!(fnv1a(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a("foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn every_kernel_is_an_entry_of_the_ptx() {
        let ptx = read(PTX).unwrap();
        let dtypes = ["bool", "u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f16", "bf16", "f32", "f64"];
        for dtype in dtypes {
            for op in ["sum", "min", "max", "product"] {
                assert!(ptx.contains(&format!(".entry fold_{dtype}_{op}(")), "{dtype} {op}");
            }
        }
        assert!(ptx.contains(".entry copy("));
    }
}
