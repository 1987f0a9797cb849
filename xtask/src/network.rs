//! Measures farandole and its peers over TCP between hosts that are network namespaces of this machine.
//!
//! Two namespaces are joined by a pair of virtual Ethernet devices: once as they are, which shows what the software
//! costs, and once with the rate of both directions cut down to 1 Gbit/s, which shows how much of a line is used.
//!
//! The chore starts itself anew in a mount namespace of its own. The names of network namespaces are mounts, so these
//! are seen in there alone: they collide with nobody's, and the kernel removes them, with the devices, when the last
//! process has left, however it ended. Nothing has to be cleaned up.

use anyhow::{Context as _, Result, bail};

use crate::shell::Shell;
use crate::tools;

/// The word that says that the mount namespace has been entered.
const INSIDE: &str = "--inside";

/// Where `ip netns` keeps the names.
const NAMES: &str = "/run/netns";

/// The address of each host; its number is its place.
const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];

/// What cuts a device down to the rate of a line. The bucket must hold several of the packets of 64 KB that the kernel
/// hands over at once, and the queue what a congestion window of a few milliseconds brings.
const LINE: [&str; 8] = ["root", "tbf", "rate", "1gbit", "burst", "256kb", "latency", "50ms"];

/// How the shaped line is measured. A token bucket fills while nothing is sent, so a barrier before each iteration,
/// which is not timed, would be worth the more to a contestant the slower its barrier is.
const WITHOUT_PAUSES: [&str; 2] = ["--pace", "back-to-back"];

/// How often the two algorithms of four ranks take turns.
const FOUR_RANKS_TURNS: usize = 2;

/// Two ranks, one on each host, from small tensors to large ones, against the peers.
const TWO_RANKS: [&str; 8] = ["-np", "2", "--sizes", "4K..64M", "--against", "openmpi,gloo", "--rounds", "5"];

/// Four ranks, two on each host: here what goes between hosts should go there once, not once for each rank.
const FOUR_RANKS: [&str; 6] = ["-np", "4", "--sizes", "16M,64M", "--rounds", "3"];

/// `cargo xtask network`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    match words {
        [] => enter(),
        [word] if word == INSIDE => measure(),
        [word, ..] => bail!("`cargo xtask network` takes no words, but got `{word}`"),
    }
}

/// Starts this chore again where the names of namespaces are its own.
fn enter() -> Result<()> {
    tools::need_packages(&[tools::IPROUTE])?;
    // Built out here: in there it would be too, but a compiler's messages belong before the tables.
    Shell::cargo(&["build", "--release", "--bin", "farandole"]).run()?;
    let this = std::env::current_exe().context("finding the path of this program")?;
    let inside = Shell::new("unshare").words(&["--mount", "--propagation", "private"]);
    inside.words(&[&this.to_string_lossy(), "network", INSIDE]).run().map(drop)
}

fn measure() -> Result<()> {
    join_hosts().context("this needs root, with the right to make namespaces, and the kernel's veth devices")?;
    println!("\n=== the devices as they are ===");
    bench(&TWO_RANKS, &["--seconds", "0.5"])?;
    println!("\n=== a line of 1 Gbit/s in each direction, that is 0.125 GB/s ===");
    for host in 0..ADDRESSES.len() {
        let place = ["-n", &name(host), "qdisc", "add", "dev", &device(host)];
        let shape = Shell::new("tc").words(&place).words(&LINE).run();
        shape.context("this needs the kernel's token bucket filter (sch_tbf)")?;
    }
    bench(&TWO_RANKS, &[&["--seconds", "0.5"][..], &WITHOUT_PAUSES].concat())?;
    println!("\n=== the same line, two ranks on each host: the chosen algorithm and a flat ring, in turns ===");
    bench(&FOUR_RANKS, &[&["--against", "openmpi,gloo"][..], &WITHOUT_PAUSES].concat())?;
    for _ in 0..FOUR_RANKS_TURNS {
        bench(&FOUR_RANKS, &[&["--algorithm", "ring"][..], &WITHOUT_PAUSES].concat())?;
        bench(&FOUR_RANKS, &WITHOUT_PAUSES)?;
    }
    Ok(())
}

/// Makes both hosts and what joins them.
fn join_hosts() -> Result<()> {
    Shell::new("mkdir").words(&["-p", NAMES]).run()?;
    Shell::new("mount").words(&["-t", "tmpfs", "names", NAMES]).run()?;
    let ip = |words: &[&str]| Shell::new("ip").words(words).run();
    for host in 0..ADDRESSES.len() {
        ip(&["netns", "add", &name(host)])?;
    }
    let pair = ["type", "veth", "peer", "name", &device(1), "netns", &name(1)];
    ip(&[&["link", "add", &device(0), "netns", &name(0)][..], &pair].concat())?;
    for (host, address) in ADDRESSES.iter().enumerate() {
        let (name, device) = (name(host), device(host));
        ip(&["-n", &name, "address", "add", &format!("{address}/24"), "dev", &device])?;
        ip(&["-n", &name, "link", "set", "lo", "up"])?;
        ip(&["-n", &name, "link", "set", &device, "up"])?;
    }
    Ok(())
}

fn name(host: usize) -> String {
    format!("farandole{host}")
}

fn device(host: usize) -> String {
    format!("veth{host}")
}

fn bench(words: &[&str], more: &[&str]) -> Result<()> {
    let addresses = ADDRESSES.join(",");
    let hosts =
        ["--hosts", "2", "--host-prefix", "ip netns exec farandole{host}", "--host-addresses", addresses.as_str()];
    let words = [&["run", "--release", "--bin", "farandole", "--", "bench", "allreduce"], words, &hosts, more].concat();
    Shell::cargo(&words).run().map(drop)
}
