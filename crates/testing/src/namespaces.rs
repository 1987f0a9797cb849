//! Runs a test in namespaces of its own: [`in_namespaces`].
//!
//! They have a network with nothing but loopback, so that a server of a test may have the port that it always has; a
//! file system in memory for temporary files, another one for `/run`; and a tree of processes that ends, as a whole,
//! with the test.

use std::process::Command;
use std::time::Duration;

use crate::{Folder, finish};

/// Set in the namespaces, to the name of the test.
const WITHIN: &str = "FARANDOLE_TEST_NAMESPACES";

/// Whether this is the test within its namespaces. Outside of them it is started there, as another process with the
/// same name, and waited for; then there is nothing left to do. Needs root, and `unshare`, `setpriv`, `mount` and `ip`.
///
/// # Panics
/// If the test fails there, with its words, or does not end within the limit.
pub fn in_namespaces(test: &str, limit: Duration) -> bool {
    if std::env::var(WITHIN).is_ok_and(|name| name == test) {
        let temporary = std::env::temp_dir();
        run("ip", &["link", "set", "lo", "up"]);
        run("mount", &["-t", "tmpfs", "run", "/run"]);
        run("mount", &["-t", "tmpfs", "temporary", temporary.to_str().unwrap()]);
        return true;
    }
    let folder = Folder::new();
    // Should this process be killed, so is unshare, and with it the first process of the namespaces and all others.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child"]);
    command.arg("--mount-proc").arg(std::env::current_exe().unwrap()).args(["--exact", test, "--nocapture"]);
    command.env(WITHIN, test).env("TMPDIR", &*folder);
    let output = finish(&mut command, limit);
    let words = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    let has_passed = output.status.success() && words.contains("test result: ok. 1 passed");
    assert!(has_passed, "{test}, in namespaces of its own, which only root may make ({}):\n{words}", output.status);
    false
}

fn run(program: &str, words: &[&str]) {
    let output = finish(Command::new(program).args(words), Duration::from_secs(10));
    assert!(output.status.success(), "{program} {words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_namespaces_are_alone_and_end() {
        let mark = "86399.25";
        if in_namespaces("namespaces::tests::processes_of_namespaces_are_alone_and_end", Duration::from_secs(60)) {
            assert_eq!(std::process::id(), 1);
            std::net::TcpListener::bind("127.0.0.1:111").unwrap();
            // It outlives this process, if anything may.
            run("sh", &["-c", &format!("sleep {mark} > /dev/null 2>&1 &")]);
            return;
        }
        let is_left = std::fs::read_dir("/proc").unwrap().flatten().any(|process| {
            let words = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            words.starts_with(b"sleep\0") && String::from_utf8_lossy(&words).contains(mark)
        });
        assert!(!is_left);
    }
}
