//! Gets what a bare machine lacks: packages of the distribution and cargo's subcommands.
//!
//! A machine with rustup's cargo and a C linker is enough to start. What is already on the path is used as it is; what
//! is missing is installed once: packages through `apt-get` (as root or through sudo), subcommands compiled into
//! `target/tools`, so that nothing of the user's own is touched. What cannot be installed ends the chore: a check that
//! quietly does not run is worse than none.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::shell::{Shell, root};

/// A program and the Debian package that has it.
#[derive(Clone, Copy)]
pub(crate) struct Package {
    /// What must be on the path; or, with slashes, what file must be there.
    pub(crate) program: &'static str,
    /// What `apt-get install` calls it.
    pub(crate) package: &'static str,
}

/// A subcommand of cargo. Versions are exact, so that two machines check the same.
#[derive(Clone, Copy)]
pub(crate) struct Subcommand {
    /// The crate, which is also the program.
    pub(crate) name: &'static str,
    /// What is compiled when none is on the path.
    version: &'static str,
    /// More words for `cargo install`.
    more: &'static [&'static str],
}

/// The tests join network namespaces by shaped links.
pub(crate) const IPROUTE: Package = Package { program: "ip", package: "iproute2" };
/// `chaos` drops packets with it.
pub(crate) const NFTABLES: Package = Package { program: "nft", package: "nftables" };
/// What a launcher reaches other hosts with, and what answers there.
pub(crate) const SSH: Package = Package { program: "ssh", package: "openssh-client" };
/// Its daemon.
pub(crate) const SSHD: Package = Package { program: "sshd", package: "openssh-server" };
/// The tests compile C programs against the C library.
pub(crate) const COMPILERS: [Package; 2] =
    [Package { program: "cc", package: "gcc" }, Package { program: "g++", package: "g++" }];
/// Both MPI libraries with their launchers, which the tests start and the benchmark compares with.
pub(crate) const MPI: [Package; 2] = [
    Package { program: "mpirun.openmpi", package: "openmpi-bin" },
    Package { program: "mpirun.mpich", package: "mpich" },
];
/// The tests start a cluster of one host.
pub(crate) const SLURM: [Package; 4] = [
    Package { program: "srun", package: "slurm-client" },
    Package { program: "slurmctld", package: "slurmctld" },
    Package { program: "slurmd", package: "slurmd" },
    Package { program: "munged", package: "munge" },
];
/// The tests start an NFS server with a portmapper.
pub(crate) const NFS: [Package; 3] = [
    Package { program: "ganesha.nfsd", package: "nfs-ganesha" },
    Package { program: GANESHA_VFS, package: "nfs-ganesha-vfs" },
    Package { program: "rpcbind", package: "rpcbind" },
];
/// What the server reads local files with, a library without a program.
const GANESHA_VFS: &str = if cfg!(target_arch = "aarch64") {
    "/usr/lib/aarch64-linux-gnu/ganesha/libfsalvfs.so"
} else {
    "/usr/lib/x86_64-linux-gnu/ganesha/libfsalvfs.so"
};
/// `memcheck` runs tests under it.
pub(crate) const VALGRIND: Package = Package { program: "valgrind", package: "valgrind" };
/// `page` looks at pages with it.
pub(crate) const CHROMIUM: Package = Package { program: "chromium", package: "chromium" };
/// Runs tests, each in a process of its own with a deadline.
/// Without what it is able to update itself with: sixty crates, a client for HTTPS among them.
pub(crate) const NEXTEST: Subcommand =
    Subcommand { name: "cargo-nextest", version: "0.9.143", more: &["--no-default-features"] };
/// Looks at the licences and sources of dependencies.
pub(crate) const DENY: Subcommand = Subcommand { name: "cargo-deny", version: "0.20.2", more: &[] };

/// Where cargo puts what it builds.
pub(crate) fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// Whether somebody works in this clone: cargo has kept, of other crates than this program, what it would compile their
/// next change faster with. It does so unless it is told otherwise.
pub(crate) fn is_worked_in() -> bool {
    has_kept(&target_dir())
}

fn has_kept(target: &Path) -> bool {
    let kept = std::fs::read_dir(target.join("debug/incremental"));
    kept.is_ok_and(|kept| kept.flatten().any(|krate| !krate.file_name().to_string_lossy().starts_with("xtask-")))
}

/// Where subcommands that we compiled lie; [`Shell`] has it on its path.
pub(crate) fn tools_bin() -> PathBuf {
    target_dir().join("tools/bin")
}

/// Installs the packages whose programs are not on the path.
pub(crate) fn need_packages(packages: &[Package]) -> Result<()> {
    let missing: Vec<&str> = packages.iter().filter(|p| !is_there(p.program)).map(|p| p.package).collect();
    if missing.is_empty() { Ok(()) } else { install_packages(&missing) }
}

/// Installs packages, whatever is there already.
pub(crate) fn install_packages(missing: &[&str]) -> Result<()> {
    let by_hand = format!("apt-get install {}", missing.join(" "));
    if !answers("apt-get") {
        bail!("this machine lacks {} and has no apt-get; install them and start again", missing.join(", "));
    }
    let is_root = Shell::new("id").words(&["-u"]).read()?.trim() == "0";
    if !is_root && !answers("sudo") {
        bail!("this machine lacks {}; as root: {by_hand}", missing.join(", "));
    }
    let apt = || if is_root { Shell::new("apt-get") } else { Shell::new("sudo").words(&["apt-get"]) };
    apt().words(&["update"]).run()?;
    let install = apt().words(&["install", "--yes", "--no-install-recommends"]).words(missing);
    install.env("DEBIAN_FRONTEND", "noninteractive").run().with_context(|| format!("as root: {by_hand}"))?;
    Ok(())
}

/// Compiles the subcommand if it is not on the path. Without optimisation: they spend their time waiting for others,
/// and compile in a third of the time.
pub(crate) fn need_subcommand(tool: Subcommand) -> Result<()> {
    if answers(tool.name) {
        return Ok(());
    }
    let tools = target_dir().join("tools");
    let build = tools.join("build");
    let version = format!("={}", tool.version);
    Shell::cargo(&["install", "--locked", "--debug", "--version", &version, "--root"])
        .words(&[&tools.to_string_lossy(), tool.name])
        .words(tool.more)
        .env("CARGO_TARGET_DIR", build.to_string_lossy())
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .run()?;
    std::fs::remove_dir_all(&build).with_context(|| format!("removing {}", build.display()))
}

/// Fails, loudly and with the cure, where there is no nightly toolchain with this component's subcommand of cargo.
pub(crate) fn need_nightly(component: &str) -> Result<()> {
    let cure = "rustup toolchain install nightly --profile minimal";
    if Shell::nightly_cargo(&["--version"]).read().is_err() {
        bail!("this chore needs a nightly toolchain, and there is none: {cure}");
    }
    if Shell::nightly_cargo(&[component, "--version"]).read().is_err() {
        bail!("the nightly toolchain lacks {component}: rustup component add {component} rust-src --toolchain nightly");
    }
    Ok(())
}

/// Whether a package's program is there. Asking it for its version would be too much: `sshd` tells nobody, and some of
/// Slurm's programs want to be configured first. Daemons lie where ordinary users' paths do not lead.
fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.any(|folder| folder.join(program).is_file())
}

/// Whether there is such a program that says its version.
fn answers(program: &str) -> bool {
    let asked = |path: PathBuf| {
        let status = Command::new(path).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    asked(PathBuf::from(program)) || asked(tools_bin().join(program))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_answers_and_a_made_up_program_does_not() {
        assert!(answers("cargo"));
        assert!(!answers("no-such-program-anywhere"));
        assert!(is_there("cargo") && !is_there("no-such-program-anywhere"));
    }

    #[test]
    fn a_clone_in_which_only_this_program_was_compiled_is_not_worked_in() {
        let target = farandole_testing::Folder::new();
        assert!(!has_kept(&target));
        std::fs::create_dir_all(target.join("debug/incremental/xtask-0h4p3rm0zl8jq")).unwrap();
        assert!(!has_kept(&target));
        std::fs::create_dir_all(target.join("debug/incremental/farandole_plan-2433wkrnhxylt")).unwrap();
        assert!(has_kept(&target));
    }

    #[test]
    fn nothing_is_installed_when_nothing_is_missing() {
        need_packages(&[Package { program: "cargo", package: "no-such-package" }]).unwrap();
    }
}
