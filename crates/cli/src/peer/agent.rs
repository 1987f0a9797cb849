//! What Open MPI needs to start ranks on hosts that are entered by words before a command.
//!
//! Its launcher runs on the first host and starts a daemon on each of the others through a *remote agent*, a program
//! that it calls like ssh: options, name of the host, command. Our agent is a small shell script that enters the host
//! instead. Open MPI tells hosts apart by their names and names shared memory after them, so every command on a host
//! gets a name of its own for it, in a namespace of its own.

use std::fmt::Write;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::bench::placement::BenchPlacement;

/// Gives the host the name that is the first word, then becomes the command that is the rest.
const RENAME: &str = r#"hostname "$0" && exec "$@""#;

/// The name by which Open MPI knows a host.
fn host_name(host: usize) -> String {
    format!("farandole-bench-{host}")
}

/// `launcher` on the first host, with the words that make it start ranks on all of them.
pub(super) fn launch(launcher: &Path, placement: &BenchPlacement, directory: &Path) -> Result<Command> {
    let agent = write_agent(placement, directory)?;
    let slots = (0..placement.hosts).map(|host| format!("{}:{}", host_name(host), placement.ranks_on(host)));
    let network = common_network(placement)?;
    let mut command = placement.command(0, "unshare");
    command.args(["--uts", "sh", "-c", RENAME, &host_name(0)]).arg(launcher);
    command.arg("--host").arg(slots.collect::<Vec<_>>().join(","));
    command.args(["--mca", "plm_rsh_agent"]).arg(agent);
    command.args(["--mca", "btl_tcp_if_include", &network, "--mca", "oob_tcp_if_include", &network]);
    Ok(command)
}

/// The smallest network that has the addresses of all hosts, as address and length of the prefix. Open MPI does not
/// understand networks of a single address, so a prefix leaves at least two bits.
fn common_network(placement: &BenchPlacement) -> Result<String> {
    let mut bits = Vec::with_capacity(placement.hosts);
    for host in 0..placement.hosts {
        match placement.address_of(host) {
            Some(IpAddr::V4(address)) => bits.push(address.to_bits()),
            other => bail!("Open MPI finds hosts by IPv4 addresses here, not by {other:?}"),
        }
    }
    let differing = bits.iter().fold(0, |differing, &address| differing | (address ^ bits[0]));
    let prefix_bits = differing.leading_zeros().clamp(1, 30);
    let network = Ipv4Addr::from_bits(bits[0] & (u32::MAX << (32 - prefix_bits)));
    Ok(format!("{network}/{prefix_bits}"))
}

fn write_agent(placement: &BenchPlacement, directory: &Path) -> Result<PathBuf> {
    let path = directory.join("openmpi-agent");
    fs::write(&path, script(placement)).with_context(|| format!("writing {}", path.display()))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700))
        .with_context(|| format!("making {} executable", path.display()))?;
    Ok(path)
}

fn script(placement: &BenchPlacement) -> String {
    let mut script = String::from("#!/bin/sh\nwhile case \"$1\" in -*) ;; *) false ;; esac do shift; done\n");
    script.push_str("host=$1\nshift\ncase \"$host\" in\n");
    for host in 0..placement.hosts {
        let entry: Vec<String> = placement.entry_words(host).iter().map(|word| quoted(word)).collect();
        let (name, entry, rename) = (host_name(host), entry.join(" "), quoted(RENAME));
        // Like ssh, the agent leaves the words of the command to a shell on the other side.
        writeln!(script, "{name}) exec {entry} unshare --uts sh -c {rename} \"$host\" sh -c \"$*\" ;;")
            .expect("invariant: writing to a string does not fail");
    }
    script.push_str("*) echo \"there is no host $host\" >&2; exit 1 ;;\nesac\n");
    script
}

/// The word as a shell needs it to take it literally.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_enters_the_named_host_as_ssh_would() {
        let addresses = [IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2])];
        // `env` stands in for what enters a host; what would rename it is cut away, since it needs a privilege.
        let placement = BenchPlacement::spread(2, 2, "env AT={host}", &addresses).unwrap();
        let script = script(&placement).replace("unshare --uts ", "").replace("hostname \"$0\" && ", "");
        let output = Command::new("sh")
            .args(["-c", &script, "agent", "-x", "farandole-bench-1", "echo", "\"$AT  of\"", "'$AT'"])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "1  of $AT\n", "{output:?}\n{script}");
    }

    #[test]
    fn the_network_is_the_smallest_that_has_all_hosts() {
        let network = |last: &[u8]| {
            let addresses: Vec<IpAddr> = last.iter().map(|&last| IpAddr::from([10, 77, 9, last])).collect();
            common_network(&BenchPlacement::spread(last.len(), last.len(), "on {host}", &addresses).unwrap()).unwrap()
        };
        assert_eq!(network(&[1, 2]), "10.77.9.0/30");
        assert_eq!(network(&[7]), "10.77.9.4/30");
        assert_eq!(network(&[1, 2, 130]), "10.77.9.0/24");
    }
}
