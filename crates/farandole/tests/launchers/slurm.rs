//! A Slurm cluster of one host: `munged`, `slurmctld` and `slurmd`, with a configuration, a secret and ports of their
//! own.
//!
//! Nothing of a Slurm that this machine may run is touched. The daemons end when the cluster is dropped, and when the
//! test is killed: `setpriv` makes the kernel see to that. `slurmd` starts tasks of other users in general, so it needs
//! root.

use std::fmt::Write as _;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use farandole_testing::{Deadline, Folder};
use rustix::process::{Pid, Signal, kill_process};

use crate::program::{start, wait_until};

/// How long the daemons have to become ready; seconds on a busy machine.
const READY: Duration = Duration::from_secs(45);

/// How long a daemon has to end when it is asked to.
const GRACE: Duration = Duration::from_secs(5);

/// A running cluster.
pub(crate) struct Cluster {
    folder: Folder,
    /// In the order of their start; they end in the opposite one.
    daemons: Vec<Child>,
}

impl Cluster {
    /// Starts the daemons and waits until the host takes jobs.
    pub(crate) fn start() -> Cluster {
        let folder = Folder::new();
        for inside in ["state", "spool"] {
            fs::create_dir(folder.join(inside)).expect("a folder for a daemon");
        }
        let mut cluster = Cluster { folder, daemons: Vec::new() };
        cluster.start_munged();
        fs::write(cluster.configuration(), configuration(&cluster.folder)).expect("the configuration can be written");
        cluster.start_daemon("slurmctld", &["-D", "-i"]);
        cluster.start_daemon("slurmd", &["-D"]);
        cluster.wait_until_ready();
        cluster
    }

    /// A client of this cluster.
    pub(crate) fn command(&self, client: &str) -> Command {
        let mut command = start(client);
        command.env("SLURM_CONF", self.configuration());
        command
    }

    fn configuration(&self) -> PathBuf {
        self.folder.join("slurm.conf")
    }

    fn start_munged(&mut self) {
        let key = self.folder.join("munge.key");
        let mut secret = vec![0; 256];
        fs::File::open("/dev/urandom")
            .and_then(|mut random| std::io::Read::read_exact(&mut random, &mut secret))
            .and_then(|()| fs::write(&key, secret))
            .and_then(|()| fs::set_permissions(&key, fs::Permissions::from_mode(0o600)))
            .expect("a secret for munge");
        let words = ["key", "socket", "pid", "log", "seed"].map(|what| {
            let option = if what == "socket" { "--socket".to_string() } else { format!("--{what}-file") };
            format!("{option}={}", self.folder.join(format!("munge.{what}")).display())
        });
        let words: Vec<&str> =
            ["--foreground", "--force"].into_iter().chain(words.iter().map(String::as_str)).collect();
        self.start_daemon("munged", &words);
        let deadline = Deadline::after(READY);
        while !self.folder.join("munge.socket").exists() {
            deadline.pause(format!("munged, which does not come up: {}", self.logs()));
        }
    }

    fn start_daemon(&mut self, daemon: &str, words: &[&str]) {
        let log = fs::File::create(self.folder.join(format!("{daemon}.out"))).expect("a file for what it says");
        let errors = log.try_clone().expect("a second way into the file");
        let mut command = self.command("setpriv");
        command.args(["--pdeathsig", "KILL", daemon]).args(words);
        // Debian keeps daemons where ordinary users' paths do not lead.
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
        let child = command.stdin(Stdio::null()).stdout(log).stderr(errors).spawn();
        self.daemons.push(child.expect("setpriv (util-linux) can be started"));
    }

    fn wait_until_ready(&mut self) {
        let deadline = Deadline::after(READY);
        loop {
            let idle = self.command("sinfo").args(["--noheader", "--format=%t"]).output();
            let idle = idle.expect("sinfo can be started: cargo xtask ci installs it");
            if String::from_utf8_lossy(&idle.stdout).trim() == "idle" {
                return;
            }
            let ended = self.daemons.iter_mut().any(|daemon| !matches!(daemon.try_wait(), Ok(None)));
            assert!(!ended, "a daemon has ended (are they installed? cargo xtask ci does it): {}", self.logs());
            deadline.pause(format!("the cluster, which does not become ready: {}", self.logs()));
        }
    }

    /// What the daemons have said.
    fn logs(&self) -> String {
        let mut logs = String::new();
        for daemon in ["munged", "slurmctld", "slurmd"] {
            let said = fs::read_to_string(self.folder.join(format!("{daemon}.out"))).unwrap_or_default();
            let _ = writeln!(logs, "--- {daemon}\n{said}");
        }
        logs
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for mut daemon in self.daemons.drain(..).rev() {
            let _ = kill_process(Pid::from_child(&daemon), Signal::TERM);
            if wait_until(&mut daemon, Instant::now() + GRACE).is_none() {
                let _ = daemon.kill();
                let _ = daemon.wait();
            }
        }
    }
}

/// One host, this one, whose tasks are ordinary processes.
fn configuration(folder: &Path) -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").expect("the host has a name");
    let host = name.trim().split('.').next().unwrap_or_default().to_string();
    let (controller, node) = two_free_ports();
    let folder = folder.display();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // Without resource limits and accounting, tasks need no control groups, which a container may not have.
    format!(
        "ClusterName=farandole\n\
         SlurmctldHost={host}(127.0.0.1)\n\
         SlurmctldPort={controller}\n\
         SlurmdPort={node}\n\
         SlurmUser=root\n\
         AuthType=auth/munge\n\
         AuthInfo=socket={folder}/munge.socket\n\
         CredType=cred/munge\n\
         ProctrackType=proctrack/linuxproc\n\
         TaskPlugin=task/none\n\
         SelectType=select/linear\n\
         MpiDefault=none\n\
         JobAcctGatherType=jobacct_gather/none\n\
         AccountingStorageType=accounting_storage/none\n\
         ReturnToService=2\n\
         StateSaveLocation={folder}/state\n\
         SlurmdSpoolDir={folder}/spool\n\
         SlurmctldPidFile={folder}/slurmctld.pid\n\
         SlurmdPidFile={folder}/slurmd.pid\n\
         NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN\n\
         PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8\n"
    )
}

fn two_free_ports() -> (u16, u16) {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port is free"));
    let [first, second] = listeners.each_ref().map(|listener| listener.local_addr().expect("it has an address").port());
    (first, second)
}
