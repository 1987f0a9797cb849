//! Several hosts and the network between them.
//!
//! A host is a set of kernel namespaces (network, host name, processes, mounts, shared memory) that a *keeper* process
//! holds open. Every host has one device, `eth0`, whose cable ends in a switch: a bridge in a network namespace of its
//! own. Nothing has a name outside these namespaces and nothing is written to the machine's file system, so two
//! laboratories never meet and there is nothing to clean up but processes.
//!
//! The invariant: a laboratory ends with the thread that made it. Dropping it kills the first process of every host,
//! and the kernel then kills all others of that host and takes the namespaces down. A test that is killed cannot drop
//! anything; its keepers have asked the kernel to be killed with it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use farandole_testing::Deadline;
use rustix::process::{Pid, Signal};

use crate::host::Host;

/// How long any single step of setting up may take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Makes what a host has for itself, says so, waits for the word to go on, starts the `sshd`, and then holds
/// the namespaces until its standard input ends. The first process of a host inherits orphans; a shell that waits for a
/// command reaps them.
const HOST: &str = r#"
hostname "$1" && ip link set lo up &&
mount -t tmpfs -o mode=755 lab /run && mount -t tmpfs lab /dev/shm &&
mkdir -m 755 /run/sshd /run/lab /run/lab/home /run/lab/etc /run/lab/tmp && mkdir -m 700 /run/lab/home/.ssh &&
ssh-keygen -q -t ed25519 -N '' -C "$1" -f /run/lab/host_key &&
echo up && read -r go &&
for file in passwd shadow hosts; do mount --bind /run/lab/etc/$file /etc/$file || exit; done &&
{ /usr/sbin/sshd -D -f /run/lab/sshd_config -E /run/lab/sshd.log & } &&
cat >/dev/null
"#;

/// Makes the switch and holds it.
const SWITCH: &str = "ip link add switch type bridge && ip link set switch up && echo up && cat >/dev/null";

/// Which addresses the hosts have. None has the other kind, except on its loopback device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    /// The address that ends in this number.
    pub(crate) fn address(self, number: usize) -> String {
        match self {
            Family::V4 => format!("10.77.0.{number}"),
            Family::V6 => format!("fd77::{number:x}"),
        }
    }
}

/// Hosts `h0`, `h1`, … in one network.
pub(crate) struct Lab {
    switch: Keeper,
    hosts: Vec<Host>,
}

impl Lab {
    /// Makes the hosts, with an `sshd` in each, and plugs them in. Each may log in on each, and knows everybody's host
    /// key.
    pub(crate) fn new(hosts: usize, family: Family) -> Lab {
        assert!(rustix::process::geteuid().is_root(), "this test makes network namespaces: run it as root");
        for (program, package) in [("/usr/sbin/sshd", "openssh-server"), ("/usr/bin/ssh", "openssh-client")] {
            assert!(PathBuf::from(program).exists(), "this test needs {program}: apt-get install {package}");
        }
        let switch = Keeper::start(&["--net"], SWITCH, "switch");
        let hosts: Vec<Host> = (0..hosts)
            .map(|number| {
                let name = format!("h{number}");
                let keeper = Keeper::start(&["--net", "--uts", "--ipc", "--mount"], HOST, &name);
                Host::new(name, family.address(number + 1), keeper)
            })
            .collect();
        let lab = Lab { switch, hosts };
        for number in 0..lab.hosts.len() {
            lab.plug_in(number, family);
        }
        lab.introduce(family);
        for host in &lab.hosts {
            host.start_sshd();
        }
        lab
    }

    /// One of them.
    pub(crate) fn host(&self, number: usize) -> &Host {
        &self.hosts[number]
    }

    /// All of them.
    pub(crate) fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// Takes the cable of a host out of the switch: nothing comes through, and no connection is told.
    pub(crate) fn cut(&self, number: usize) {
        self.switch.ip(&["link", "set", &port(number), "down"]);
    }

    /// Puts it back in.
    pub(crate) fn mend(&self, number: usize) {
        self.switch.ip(&["link", "set", &port(number), "up"]);
    }

    /// Keeps two hosts from each other; both go on to reach all others, and are reached by them.
    pub(crate) fn separate(&self, one: usize, other: usize) {
        for number in [one, other] {
            self.switch.ip(&["link", "set", &port(number), "type", "bridge_slave", "isolated", "on"]);
        }
    }

    /// Resets all TCP connections between two hosts, as a middlebox does: what is in flight is lost, and both processes
    /// of each connection live.
    pub(crate) fn reset(&self, one: usize, other: usize) {
        for (from, to) in [(one, other), (other, one)] {
            must(self.hosts[from].command("ss").args(["--kill", "--tcp", "dst", self.hosts[to].address()]));
        }
    }

    /// The network namespaces of switch and hosts, as the kernel names them.
    pub(crate) fn networks(&self) -> Vec<PathBuf> {
        let keepers = self.hosts.iter().map(|host| host.keeper()).chain([&self.switch]);
        keepers.map(|keeper| keeper.namespace("net")).collect()
    }

    fn plug_in(&self, number: usize, family: Family) {
        let keeper = self.hosts[number].keeper();
        let peer = ["peer", "name", "eth0", "netns", &keeper.first.as_raw_nonzero().to_string()];
        self.switch.ip(&[&["link", "add", &port(number), "type", "veth"][..], &peer].concat());
        self.switch.ip(&["link", "set", &port(number), "master", "switch", "up"]);
        let (length, option): (_, &[&str]) = match family {
            Family::V4 => (24, &[]),
            // Without a probe for duplicates the address can be used at once.
            Family::V6 => (64, &["nodad"]),
        };
        let address = format!("{}/{length}", self.hosts[number].address());
        keeper.ip(&[&["address", "add", &address, "dev", "eth0"], option].concat());
        keeper.ip(&["link", "set", "eth0", "up"]);
    }

    /// Gives every host the files that it needs to know the others, and one name that nobody answers to: `nowhere`.
    fn introduce(&self, family: Family) {
        let named: String = self.hosts.iter().map(|host| format!("{} {}\n", host.address(), host.name())).collect();
        let hosts = format!("127.0.0.1 localhost\n::1 localhost\n{named}{} nowhere\n", family.address(99));
        let known: String = self.hosts.iter().map(Host::known_hosts_line).collect();
        let (private, public) = self.hosts[0].make_login_key();
        for host in &self.hosts {
            host.write("etc/hosts", &hosts);
            host.write("home/.ssh/known_hosts", &known);
            host.write_secret("home/.ssh/id_ed25519", &private);
            host.write("authorized_keys", &public);
        }
    }
}

fn port(number: usize) -> String {
    format!("port{number}")
}

/// A process that holds namespaces open, and everything that lives in them.
pub(crate) struct Keeper {
    unshare: Child,
    stdin: Option<ChildStdin>,
    /// The first process inside: when it ends, all others do.
    pub(crate) first: Pid,
}

impl Keeper {
    fn start(namespaces: &[&str], script: &str, name: &str) -> Keeper {
        let mut unshare = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare"])
            .args(namespaces)
            .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["sh", "-c", script, "keeper", name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("setpriv and unshare (util-linux) make namespaces");
        let stdin = unshare.stdin.take();
        let mut said = String::new();
        BufReader::new(unshare.stdout.take().unwrap()).read_line(&mut said).unwrap();
        if said != "up\n" {
            let _ = unshare.kill();
            panic!("{name} could not be made ({:?}); its words are above", unshare.wait());
        }
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", unshare.id())).unwrap();
        let first = children.trim().parse().ok().and_then(Pid::from_raw).expect("unshare has one child");
        Keeper { unshare, stdin, first }
    }

    /// Tells the script to go on.
    pub(crate) fn go_on(&self) {
        self.stdin.as_ref().unwrap().write_all(b"go\n").unwrap();
    }

    /// A command inside, before its words. It is killed when whoever starts it ends.
    pub(crate) fn enter(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.first.as_raw_nonzero().to_string(), "--all", "--"]);
        command.args(["setpriv", "--pdeathsig", "KILL", "--"]);
        command
    }

    /// Changes the kept network. Nothing else of the keeper's is entered, so that processes are named as the test names
    /// them.
    fn ip(&self, words: &[&str]) {
        let target = self.first.as_raw_nonzero().to_string();
        must(Command::new("nsenter").args(["--target", &target, "--net", "--", "ip"]).args(words));
    }

    /// What the kernel calls the namespace of this kind.
    pub(crate) fn namespace(&self, kind: &str) -> PathBuf {
        fs::read_link(format!("/proc/{}/ns/{kind}", self.first.as_raw_nonzero())).expect("the keeper lives")
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Its standard input at an end, the first process ends; the kernel lets it do so only after all others, and
        // unshare waits for it. It has nothing else to do that could keep it, but a test must never hang on its way
        // out.
        drop(self.stdin.take());
        let deadline = Deadline::after(PATIENCE);
        while let Ok(None) = self.unshare.try_wait() {
            if deadline.is_over() {
                let _ = rustix::process::kill_process(self.first, Signal::KILL);
            }
            deadline.rest();
        }
    }
}

/// Runs a command that must succeed, and gives back what it said.
pub(crate) fn must(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {errors}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Waits until something holds.
pub(crate) fn until(what: &str, holds: impl FnMut() -> bool) {
    until_within(PATIENCE, what, holds);
}

/// Waits until something holds, but not longer than this.
pub(crate) fn until_within(patience: Duration, what: &str, holds: impl FnMut() -> bool) {
    farandole_testing::wait_until(what, patience, holds);
}
