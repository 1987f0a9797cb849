//! Agents on other hosts, started through the system's ssh.
//!
//! It is the user's ssh, with the user's configuration, keys and host-key policy; nothing is weakened, and nothing
//! secret is among its words, which every user of this machine can read: the job's key goes through standard input.
//! `BatchMode` makes ssh fail where it would have asked for a password, because a question among the output of many
//! ranks is a hang.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::job_spec::Ssh;

/// The command that starts the agent of a host. Its file is looked for at the same place as on this host, then in the
/// other host's `PATH`.
pub(super) fn agent_command(ssh: &Ssh, host: &str, program: &Path, patience: Duration) -> Command {
    let mut command = Command::new("ssh");
    command.args(["-o", "BatchMode=yes", "-o"]).arg(format!("ConnectTimeout={}", patience.as_secs().max(1)));
    // No terminal, no forwarding: an agent needs neither.
    command.args(["-T", "-x", "-a"]);
    if let Some(port) = ssh.port {
        command.arg("-p").arg(port.to_string());
    }
    if let Some(identity) = &ssh.identity {
        command.arg("-i").arg(identity);
    }
    command.args(&ssh.words).arg("--").arg(host).arg(remote_words(program));
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// What the other host's login shell is told; `sh` is there whatever the login shell is.
fn remote_words(program: &Path) -> OsString {
    let mut script = b"p=".to_vec();
    script.extend_from_slice(&quoted(program.as_os_str().as_bytes()));
    script.extend_from_slice(
        b"; [ -x \"$p\" ] || p=$(command -v farandole) || { echo \"there is no farandole here, neither at ",
    );
    script.extend_from_slice(b"$p nor in PATH\" >&2; exit 127; }; exec \"$p\" agent");
    // The message names the path that was looked for, which the assignment has replaced by then.
    let mut words = b"exec sh -c ".to_vec();
    words.extend_from_slice(&quoted(&script));
    OsString::from(std::ffi::OsStr::from_bytes(&words))
}

/// In single quotes, as every shell understands them.
fn quoted(word: &[u8]) -> Vec<u8> {
    let mut quoted = vec![b'\''];
    for &byte in word {
        if byte == b'\'' {
            quoted.extend_from_slice(b"'\\''");
        } else {
            quoted.push(byte);
        }
    }
    quoted.push(b'\'');
    quoted
}

/// What ssh would connect to for this host: name and port, after the user's configuration. `None` where ssh does not
/// say.
pub(super) fn resolve(ssh: &Ssh, host: &str) -> Option<(String, u16)> {
    let mut command = Command::new("ssh");
    command.arg("-G").args(&ssh.words);
    if let Some(port) = ssh.port {
        command.arg("-p").arg(port.to_string());
    }
    let told = command.arg("--").arg(host).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let value = |name: &str| {
        told.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ').map(|value| value.trim().to_owned()))
    };
    Some((value("hostname")?, value("port")?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &Command) -> Vec<String> {
        command.get_args().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn the_users_policy_stands() {
        let ssh = Ssh { port: Some(2222), identity: Some("/k".into()), words: vec!["-v".into()] };
        let command = agent_command(&ssh, "me@node-b", Path::new("/opt/it's/farandole"), Duration::from_secs(7));
        let words = words(&command);
        assert!(!words.iter().any(|word| word.contains("StrictHostKeyChecking") || word.contains("UserKnownHosts")));
        let end = words.iter().position(|word| word == "--").unwrap();
        assert_eq!(words[end + 1], "me@node-b");
        assert!(words[..end].windows(2).any(|pair| pair == ["-p", "2222"]));
        assert!(words[..end].contains(&"ConnectTimeout=7".to_owned()));
    }

    #[test]
    fn the_remote_command_survives_a_shell() {
        // The login shell is `sh` here; the program is one that says what it was told.
        let words = remote_words(Path::new("/bin/echo"));
        let told = Command::new("sh").arg("-c").arg(&words).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&told.stdout), "agent\n");
        let words = remote_words(Path::new("/no/such place/it's"));
        let told = Command::new("sh").arg("-c").arg(&words).env("PATH", "/usr/bin:/bin").output().unwrap();
        assert_eq!(told.status.code(), Some(127));
        assert!(String::from_utf8_lossy(&told.stderr).contains("there is no farandole here"));
    }
}
