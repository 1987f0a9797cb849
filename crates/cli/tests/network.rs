//! Ranks on two hosts with a network between them: network namespaces, joined by a pair of virtual Ethernet devices.
//!
//! Needs root, or whatever else may make namespaces, and iproute2; without them the test fails and says so. The
//! namespaces have their names in a mount namespace of the test's own and vanish with its last process, however it
//! ends.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::process::{Command, Output};
use std::time::Duration;

use farandole_testing::finish;

/// Far more than any run here needs; a run that hangs is killed and fails.
const PATIENCE: Duration = Duration::from_secs(120);

/// What [`LAB`] ends with when it could not make the namespaces.
const NO_LAB: i32 = 77;

/// Makes two hosts and runs its arguments as a command beside them.
const LAB: &str = r#"
lab() {
    mkdir -p /run/netns && mount -t tmpfs names /run/netns &&
    ip netns add lab0 && ip netns add lab1 &&
    ip link add veth0 netns lab0 type veth peer name veth1 netns lab1 &&
    for host in 0 1; do
        ip -n lab$host address add 10.77.0.$((host + 1))/24 dev veth$host &&
        ip -n lab$host link set lo up && ip -n lab$host link set veth$host up || return 1
    done
}
lab || exit 77
exec "$@"
"#;

/// Runs `farandole bench` with ranks on both hosts.
fn bench(words: &[&str]) -> Output {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "sh", "-c", LAB, "lab"])
        .args([env!("CARGO_BIN_EXE_farandole"), "bench"])
        .args(["--hosts", "2", "--host-prefix", "ip netns exec lab{host}", "--host-addresses", "10.77.0.1,10.77.0.2"])
        .args(words);
    let output = finish(&mut command, PATIENCE);
    let words_of_it = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() != Some(NO_LAB) && !words_of_it.starts_with("unshare:"),
        "no network namespaces here: run this as root, with iproute2 installed, where namespaces may be made: {words_of_it}"
    );
    assert!(output.status.success(), "{words:?}: {words_of_it}");
    output
}

#[test]
fn two_ranks_on_each_of_two_hosts_reduce_over_a_real_network() {
    let quick = ["--rounds", "1", "--iters", "3", "--json", "-"];
    for how in [
        &["--sizes", "4,4K,1M"][..],
        &["--sizes", "1M", "--algorithm", "ring"],
        &["--sizes", "4K", "--transport", "tcp"],
        &["--sizes", "4K", "--through", "engine"],
    ] {
        let output = bench(&[&["allreduce", "-np", "4"], how, &quick].concat());
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let sizes = report["sizes"].as_array().unwrap();
        assert!(!sizes.is_empty());
        for size in sizes {
            assert_eq!(size["farandole"]["wrong"], 0, "{how:?}: {size}");
        }
    }
}
