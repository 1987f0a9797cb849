//! One host of the laboratory: its files, its `sshd`, its processes, and commands that run on it.
//!
//! Files lie in `/run/lab`, which each host has for itself. The user's home is there, too, because that is what the
//! host's own `/etc/passwd` says: `ssh` finds its configuration, keys and known hosts by itself, as it would for any
//! user, and nothing of the machine's real user is touched.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal};

use crate::lab::{Keeper, must, until};
use crate::running::Running;

/// Where programs are found, as on any Debian machine.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The two users that exist: whoever logs in, and the one as which `sshd` talks to strangers. Neither has a password.
const PASSWD: &str = "root:x:0:0:root:/run/lab/home:/bin/sh\nsshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n";
const SHADOW: &str = "root:*:19000:0:99999:7:::\nsshd:*:19000:0:99999:7:::\n";

/// Log in by key and in no other way.
const SSHD_CONFIG: &str = "Port 22
HostKey /run/lab/host_key
AuthorizedKeysFile /run/lab/authorized_keys
PidFile /run/lab/sshd.pid
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
PermitUserEnvironment no
PrintMotd no
PrintLastLog no
";

/// Strict about host keys, and never a question: a test has nobody to answer it.
const SSH_CONFIG: &str = "StrictHostKeyChecking yes\nBatchMode yes\nIdentitiesOnly yes\n";

/// A host.
pub(crate) struct Host {
    name: String,
    address: String,
    keeper: Keeper,
}

/// A process of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// As the test sees it.
    pub(crate) pid: Pid,
    /// As the host sees it.
    pub(crate) pid_there: i32,
    /// Its command line.
    pub(crate) words: Vec<String>,
}

impl Process {
    /// Whether these words follow each other on its command line.
    pub(crate) fn says(&self, words: &[&str]) -> bool {
        self.words.windows(words.len()).any(|some| some == words)
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid, signal).unwrap_or_else(|error| panic!("{self:?}: {error}"));
    }
}

impl Host {
    pub(crate) fn new(name: String, address: String, keeper: Keeper) -> Host {
        let host = Host { name, address, keeper };
        host.write("etc/passwd", PASSWD);
        host.write("etc/shadow", SHADOW);
        host.write("sshd_config", SSHD_CONFIG);
        host.write("home/.ssh/config", SSH_CONFIG);
        host
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// A command on this host, with the environment of somebody who has just logged in, and the host's own folder for
    /// temporary files.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.keeper.enter();
        command.env_clear().env("PATH", SEARCH_PATH).env("HOME", "/run/lab/home").env("USER", "root");
        command.env("TMPDIR", "/run/lab/tmp").arg(program);
        command
    }

    /// Starts the farandole command on this host.
    pub(crate) fn farandole(&self, words: &[&str]) -> Running {
        Running::start(self.command(env!("CARGO_BIN_EXE_farandole")).args(words))
    }

    /// The path, as the test sees it, of a file in `/run/lab`.
    pub(crate) fn path(&self, file: &str) -> PathBuf {
        let root = format!("/proc/{}/root/run/lab", self.keeper.first.as_raw_nonzero());
        Path::new(&root).join(file)
    }

    pub(crate) fn write(&self, file: &str, text: &str) {
        fs::write(self.path(file), text).unwrap_or_else(|error| panic!("writing {file} of {}: {error}", self.name));
    }

    pub(crate) fn write_secret(&self, file: &str, text: &str) {
        self.write(file, text);
        fs::set_permissions(self.path(file), fs::Permissions::from_mode(0o600)).unwrap();
    }

    pub(crate) fn read(&self, file: &str) -> String {
        fs::read_to_string(self.path(file)).unwrap_or_else(|error| panic!("reading {file} of {}: {error}", self.name))
    }

    /// What others must know of this host to trust it.
    pub(crate) fn known_hosts_line(&self) -> String {
        format!("{},{} {}", self.name, self.address, self.read("host_key.pub"))
    }

    /// A pair of keys to log in with, private and public.
    pub(crate) fn make_login_key(&self) -> (String, String) {
        must(self.command("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", "/run/lab/login"]));
        (self.read("login"), self.read("login.pub"))
    }

    /// Starts the `sshd`, once, and waits until it listens.
    pub(crate) fn start_sshd(&self) {
        self.keeper.go_on();
        until(&format!("{} has an sshd that listens", self.name), || self.path("sshd.pid").exists());
    }

    /// Ends the `sshd`; sessions that are open go on.
    pub(crate) fn stop_sshd(&self) {
        let pid: i32 = self.read("sshd.pid").trim().parse().unwrap();
        let processes = self.processes();
        let sshd = processes.iter().find(|process| process.pid_there == pid).expect("the sshd runs");
        sshd.signal(Signal::KILL);
        until("the sshd has ended", || self.processes().iter().all(|process| process.pid_there != pid));
    }

    /// All processes of this host but its keeper's and its `sshd`; those that have ended and wait to be noticed are not
    /// among them.
    pub(crate) fn guests(&self) -> Vec<Process> {
        let of_the_lab = |process: &Process| {
            process.pid == self.keeper.first
                || process.words == ["cat"]
                || process.words.first().is_some_and(|word| word.contains("[listener]"))
        };
        self.processes().into_iter().filter(|process| !of_the_lab(process)).collect()
    }

    fn processes(&self) -> Vec<Process> {
        let namespace = self.keeper.namespace("pid");
        let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
        let here = |pid: &i32| fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|link| link == namespace);
        pids.filter(here).filter_map(process).collect()
    }
}

/// What `/proc` knows of a process; nothing if it has ended.
fn process(pid: i32) -> Option<Process> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    if field("State:")?.trim_start().starts_with(['Z', 'X']) {
        return None;
    }
    let pid_there = field("NSpid:")?.split_whitespace().last()?.parse().ok()?;
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words = line.split(|&byte| byte == 0).filter(|word| !word.is_empty());
    let words = words.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    Some(Process { pid: Pid::from_raw(pid)?, pid_there, words })
}
