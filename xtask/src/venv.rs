//! Virtual environments of Python at the root of the workspace: [`Venv`].
//!
//! There are two. `.venv` has all frameworks that work together; `.venv-mxnet` has MXNet, whose last release wants a
//! NumPy, and therefore a Python, that the others have left behind. What is there already is left alone, so that asking
//! again costs seconds. The package `farandole` is installed into neither; Python finds it through `PYTHONPATH`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::shell::{Shell, root};
use crate::tools;

/// All frameworks but MXNet.
pub(crate) static MAIN: Venv = Venv { folder: ".venv" };

/// MXNet.
pub(crate) static MXNET: Venv = Venv { folder: ".venv-mxnet" };

/// Installs Python packages: in a quarter of the processor time of pip, because it compiles none of their modules.
/// Python compiles those that are imported.
const INSTALLER: &str = "uv>=0.13,<1";

/// Minor versions of Python 3 that our wheel and MXNet 1.9.1 (with NumPy 1.23) have in common, best first.
const FOR_MXNET: [u32; 2] = [11, 10];

/// Succeeds where the loader finds what MXNet's library is linked with and does not bring along.
const HAS_LIBRARIES: &str = "import ctypes; [ctypes.CDLL(name) for name in ('libgomp.so.1', 'libquadmath.so.0')]";

/// Debian's packages with these.
const LIBRARIES: [&str; 2] = ["libgomp1", "libquadmath0"];

/// Succeeds where all requirements are installed in the versions asked for. Asking pip would take seconds and the
/// network.
const ARE_THERE: &str = "
import sys, importlib.metadata as metadata
from packaging.requirements import Requirement
lines = (line.split('#')[0].strip() for line in open(sys.argv[1]))
wanted = [Requirement(line) for line in lines if line]
sys.exit(not all(w.specifier.contains(metadata.version(w.name)) for w in wanted))
";

/// One of them.
#[derive(Debug)]
pub(crate) struct Venv {
    folder: &'static str,
}

impl Venv {
    /// Where it is.
    pub(crate) fn path(&self) -> PathBuf {
        root().join(self.folder)
    }

    /// Its interpreter.
    pub(crate) fn python(&self) -> PathBuf {
        self.path().join("bin/python")
    }

    /// Makes it with the interpreter that is found, unless it is there.
    pub(crate) fn make(&self, find: impl FnOnce() -> Result<String>) -> Result<()> {
        if self.python().is_file() {
            return Ok(());
        }
        let interpreter = find()?;
        Shell::new(interpreter).words(&["-m", "venv", &text(&self.path())?]).run().map(drop)
    }

    /// Installs what a file asks for, unless it is there, with flags for the installer.
    pub(crate) fn need(&self, file: &str, flags: &[&str]) -> Result<()> {
        if Shell::new(self.python()).words(&["-c", ARE_THERE, file]).read().is_ok() {
            return Ok(());
        }
        let wanted = [flags, &["--requirement", file]].concat();
        self.install(&wanted).with_context(|| format!("installing what {file} asks for"))
    }

    /// Installs packages. Where they come from somewhere that only pip is configured for, pip installs them.
    pub(crate) fn install(&self, wanted: &[&str]) -> Result<()> {
        if self.uv(wanted)?.run().is_ok() {
            return Ok(());
        }
        self.pip().words(wanted).run().map(drop)
    }

    /// `uv pip install`. Its cache lies in the same file system, so that files are linked and not copied.
    pub(crate) fn uv(&self, wanted: &[&str]) -> Result<Shell> {
        let installer = self.path().join("bin/uv");
        if !installer.is_file() {
            self.pip().words(&[INSTALLER]).run()?;
        }
        let words = ["pip", "install", "--quiet", "--system-certs", "--python", &text(&self.python())?];
        let shell = Shell::new(installer).words(&words).words(wanted);
        Ok(shell.env("UV_CACHE_DIR", tools::target_dir().join("tools/uv").to_string_lossy()))
    }

    fn pip(&self) -> Shell {
        let words = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"];
        Shell::new(self.python()).words(&words)
    }
}

/// Python 3 with its module for making environments, which Debian has in a package of its own.
pub(crate) fn any_python() -> Result<String> {
    if !makes_environments("python3") {
        tools::install_packages(&["python3", "python3-venv"])?;
    }
    Ok("python3".to_owned())
}

/// Makes the environment of MXNet, with what MXNet's library needs of the system.
pub(crate) fn make_for_mxnet() -> Result<()> {
    MXNET.make(python_for_mxnet)?;
    if !answers(&text(&MXNET.python())?, &["-c", HAS_LIBRARIES]) {
        tools::install_packages(&LIBRARIES).context("installing libraries for MXNet")?;
    }
    MXNET.need("bindings/python/requirements-mxnet.txt", &[])
}

/// An interpreter that MXNet installs on: on the path, of pyenv's, or Debian's.
fn python_for_mxnet() -> Result<String> {
    if let Some(found) = candidates().into_iter().find(|candidate| serves_mxnet(candidate)) {
        return Ok(found);
    }
    for minor in FOR_MXNET {
        let python = format!("python3.{minor}");
        if tools::install_packages(&[&python, &format!("{python}-venv")]).is_ok() && serves_mxnet(&python) {
            return Ok(python);
        }
    }
    bail!(
        "MXNet 1.9.1 needs Python 3.10 or 3.11, and this machine has neither as `python3`, `python3.11` or \
         `python3.10`, nor can apt-get install one; install one, for instance with `pyenv install 3.11`"
    );
}

/// Interpreters to try, best first.
fn candidates() -> Vec<String> {
    let by_name = FOR_MXNET.iter().map(|minor| format!("python3.{minor}"));
    let mut all: Vec<String> = std::iter::once("python3".to_owned()).chain(by_name).collect();
    let pyenv = std::env::var_os("PYENV_ROOT").map(PathBuf::from);
    let pyenv = pyenv.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".pyenv")));
    if let Some(versions) = pyenv.and_then(|pyenv| std::fs::read_dir(pyenv.join("versions")).ok()) {
        let mut own: Vec<String> = versions
            .flatten()
            .map(|version| version.path().join("bin/python3").to_string_lossy().into_owned())
            .collect();
        own.sort();
        all.extend(own.into_iter().rev());
    }
    all
}

fn serves_mxnet(python: &str) -> bool {
    let minors = FOR_MXNET.map(|minor| minor.to_string()).join(", ");
    let right = format!("import sys; sys.exit(sys.version_info[0] != 3 or sys.version_info[1] not in ({minors}))");
    answers(python, &["-c", &right]) && makes_environments(python)
}

fn makes_environments(python: &str) -> bool {
    answers(python, &["-c", "import venv, ensurepip"])
}

/// Whether a command exists and succeeds.
pub(crate) fn answers(program: &str, words: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn text(path: &Path) -> Result<String> {
    path.to_str().map(str::to_owned).with_context(|| format!("{} is not UTF-8", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environments_have_folders_of_their_own_that_git_ignores() {
        let ignored = std::fs::read_to_string(root().join(".gitignore")).unwrap();
        for venv in [&MAIN, &MXNET] {
            assert!(ignored.lines().any(|line| line == format!("/{}", venv.folder)), "{venv:?}");
        }
        assert_ne!(MAIN.python(), MXNET.python());
    }

    #[test]
    fn a_python_of_the_wrong_version_does_not_serve_mxnet() {
        assert!(!serves_mxnet("no-such-program-anywhere"));
        let folder = farandole_testing::Folder::new();
        let python = folder.join("python3");
        std::fs::write(&python, "#!/bin/sh\nexit 1\n").unwrap();
        std::fs::set_permissions(&python, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        assert!(!serves_mxnet(&python.to_string_lossy()));
    }

    #[test]
    fn the_path_comes_before_other_places() {
        assert_eq!(candidates()[..3], ["python3", "python3.11", "python3.10"]);
    }
}
