//! The doctor on other hosts: through the system's ssh, all at once.
//!
//! Each host runs `farandole doctor --json` and what it prints is the report. ssh asks nothing (`BatchMode`), and
//! whatever the user's configuration says about keys of hosts stays as it is. A host that does not answer is a problem
//! that carries ssh's own last line. This host is looked at directly, as the launcher would do.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use farandole_cluster::launch::{HostSlots, JobPlacement, hostfile, hosts};
use serde::Serialize;

use super::ask::{Answer, Ending, ask};
use super::compare::{Host, compare};
use super::finding::{Finding, Group, Report, SCHEMA, State, worst};
use super::page::{self, Ink};
use super::{DoctorArgs, examine, exit_code, say, unix_time_ms};

/// How long ssh may take to connect, in seconds: that of a network round the world with lost packets.
const CONNECT_SECONDS: u32 = 10;
/// How long a host may take for everything: connecting, and the longest that its doctor waits for each thing in turn.
const PATIENCE: Duration = Duration::from_secs(90);
/// What a shell ends with if it does not find the command.
const NOT_FOUND: i32 = 127;

/// What `--json` prints for several hosts.
#[derive(Serialize)]
struct Reports<'a> {
    schema: u32,
    state: State,
    hosts: Vec<HostReport<'a>>,
    /// How hosts differ, and which did not answer.
    findings: &'a [Finding],
}

#[derive(Serialize)]
struct HostReport<'a> {
    host: &'a str,
    report: Option<&'a Report>,
}

/// Looks at all hosts and compares them.
pub(super) fn run(args: &DoctorArgs) -> Result<ExitCode> {
    let named = match (&args.hosts, &args.hostfile) {
        (Some(list), _) => hosts::parse_list(list)?,
        (None, Some(file)) => hostfile::read(file)?,
        (None, None) => Vec::new(),
    };
    // Every host that was named is looked at, also one that so few ranks would leave empty.
    let placement = JobPlacement::fill(named, None)?;
    let answers = ask_all(args, placement.hosts(), args.ranks.map_or(placement.size(), |ranks| ranks as usize))?;
    let (mut answered, mut findings) = (Vec::new(), Vec::new());
    for answer in answers {
        match answer {
            Ok(host) => answered.push(host),
            Err(finding) => findings.push(finding),
        }
    }
    findings.extend(compare(&answered));
    show(args, placement.hosts(), &answered, &findings)
}

fn show(args: &DoctorArgs, hosts: &[HostSlots], answered: &[Host], findings: &[Finding]) -> Result<ExitCode> {
    let all = answered.iter().flat_map(|host| &host.report.findings).chain(findings);
    let all: Vec<Finding> = all.cloned().collect();
    let state = worst(&all);
    if args.json {
        let report_of = |name: &str| answered.iter().find(|host| host.name == name).map(|host| &host.report);
        let hosts = hosts.iter().map(|host| HostReport { host: &host.name, report: report_of(&host.name) });
        let hosts = hosts.collect();
        let reports = Reports { schema: SCHEMA, state, hosts, findings };
        say(&(serde_json::to_string_pretty(&reports).context("writing the reports")? + "\n"))?;
        return Ok(exit_code(state));
    }
    let ink = Ink::for_stdout();
    let pages = answered.iter().map(|host| page::page(&host.report, &host.name, ink) + "\n");
    let text = pages.collect::<String>() + page::sections(findings, ink).trim_start();
    say(&(text + "\n" + &page::summary(&all, ink)))?;
    Ok(exit_code(state))
}

/// One thread for each host: they spend their time waiting.
fn ask_all(args: &DoctorArgs, hosts: &[HostSlots], ranks: usize) -> Result<Vec<Result<Host, Finding>>> {
    let here = std::env::current_dir().context("finding the current directory")?;
    let program = match &args.remote_farandole {
        Some(path) => path.clone(),
        None => std::env::current_exe().context("finding the path of this program")?,
    };
    Ok(thread::scope(|scope| {
        let ask = |host| {
            let order = JobSpec { args, program: &program, here: &here, ranks };
            scope.spawn(move || order.ask(host))
        };
        let asked: Vec<_> = hosts.iter().map(ask).collect();
        asked.into_iter().map(|thread| thread.join().expect("invariant: asking a host does not panic")).collect()
    }))
}

/// What one host is to do.
struct JobSpec<'a> {
    args: &'a DoctorArgs,
    program: &'a Path,
    here: &'a Path,
    ranks: usize,
}

impl JobSpec<'_> {
    fn ask(&self, host: &HostSlots) -> Result<Host, Finding> {
        let name = host.name.clone();
        if hosts::is_this_host(&name) {
            let args = DoctorArgs {
                ranks: Some(self.ranks as u32),
                local_ranks: Some(host.slots as u32),
                python: self.args.python.clone(),
                ..DoctorArgs::default()
            };
            return Ok(Host { name, report: examine(&args), ahead_ms: 0 });
        }
        let answer = ask(&mut self.ssh(host), PATIENCE);
        let report = understand(&name, self.args.ssh_port, self.program, &answer)?;
        let ahead_ms = report.unix_time_ms as i64 - unix_time_ms(answer.heard) as i64;
        Ok(Host { name, report, ahead_ms })
    }

    fn ssh(&self, host: &HostSlots) -> Command {
        let mut ssh = Command::new("ssh");
        ssh.args(["-T", "-x", "-o", "BatchMode=yes", "-o", &format!("ConnectTimeout={CONNECT_SECONDS}")]);
        if let Some(port) = self.args.ssh_port {
            ssh.args(["-p", &port.to_string()]);
        }
        if let Some(file) = &self.args.ssh_identity_file {
            ssh.arg("-i").arg(file);
        }
        ssh.args(["--", &host.name, &self.words(host.slots)]);
        ssh
    }

    /// The command for the other side's shell.
    fn words(&self, local_ranks: usize) -> String {
        let (ranks, local_ranks) = (self.ranks.to_string(), local_ranks.to_string());
        let program = self.program.display().to_string();
        let mut words = vec![program, "doctor".into(), "--json".into(), "--np".into(), ranks];
        words.extend(["--local-ranks".into(), local_ranks]);
        words.extend(["--directory".into(), self.here.display().to_string()]);
        if let Some(python) = self.python() {
            words.extend(["--python".into(), python.display().to_string()]);
        }
        words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
    }

    /// The Python that ranks would use: as the user said, else that of the active environment here.
    fn python(&self) -> Option<PathBuf> {
        let active = || std::env::var_os("VIRTUAL_ENV").filter(|folder| !folder.is_empty());
        self.args.python.clone().or_else(|| active().map(|folder| PathBuf::from(folder).join("bin/python")))
    }
}

/// A word that any common shell leaves as it is.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The report in what a host printed; start-up files of its shell may have printed something before.
fn understand(host: &str, port: Option<u16>, program: &Path, answer: &Answer) -> Result<Report, Finding> {
    let from = if answer.stdout.starts_with('{') { Some(0) } else { answer.stdout.find("\n{").map(|at| at + 1) };
    let text = from.map_or("", |at| &answer.stdout[at..]);
    if let Some(Ok(report)) = serde_json::Deserializer::from_str(text).into_iter::<Report>().next()
        && matches!(answer.ending, Ending::Exited(0 | 1))
    {
        return Ok(report);
    }
    let words = answer.last_complaint().map_or_else(|| answer.ending.to_string(), str::to_owned);
    Err(Finding::problem(
        Group::Hosts,
        "reach",
        format!("{host}: {words}"),
        "No rank can be started on a host that does not answer.",
        cure(&reached(host, port), program, &answer.ending, &words),
    ))
}

/// The host as a person would write it after `ssh`.
fn reached(host: &str, port: Option<u16>) -> String {
    port.map_or_else(|| host.to_owned(), |port| format!("-p {port} {host}"))
}

/// What to do about a host that did not answer, by what ssh said.
fn cure(host: &str, program: &Path, ending: &Ending, words: &str) -> String {
    let program = program.display();
    if matches!(ending, Ending::Exited(NOT_FOUND)) {
        return format!("copy the command to {program} there, or say where it is with `--remote-farandole PATH`.");
    }
    if words.contains("Host key verification failed") {
        return format!("log in once by hand, `ssh {host}`, compare the key and accept it.");
    }
    if words.contains("Permission denied") {
        return format!("`ssh-copy-id {host}`, or name the key with `-i FILE`.");
    }
    if words.contains("resolve hostname") {
        return "check the name, or add the host to /etc/hosts or to ~/.ssh/config.".to_owned();
    }
    if words.contains("onnection refused") || words.contains("timed out") || words.contains("No route") {
        return "start the ssh server there, open its port, or name another port with `-p PORT`.".to_owned();
    }
    format!("`ssh {host} {program} doctor` shows what happens there.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    fn failed(code: i32, stderr: &str) -> Finding {
        let (stdout, stderr) = (String::new(), stderr.to_owned());
        let answer = Answer { ending: Ending::Exited(code), stdout, stderr, heard: SystemTime::now() };
        understand("h3", None, Path::new("/opt/farandole"), &answer).unwrap_err()
    }

    #[test]
    fn a_host_that_cannot_be_reached_carries_sshs_last_line_and_what_to_do() {
        for (code, stderr, fix) in [
            (255, "Warning: x\nssh: connect to host h3 port 22: Connection refused\r\n", "-p PORT"),
            (255, "ssh: connect to host h3 port 22: Connection timed out\n", "-p PORT"),
            (255, "ssh: Could not resolve hostname h3: Name or service not known\n", "/etc/hosts"),
            (255, "Host key verification failed.\n", "`ssh h3`"),
            (255, "me@h3: Permission denied (publickey).\n", "`ssh-copy-id h3`"),
            (127, "sh: 1: /opt/farandole: not found\n", "--remote-farandole"),
            (2, "error: unrecognized subcommand 'doctor'\n", "`ssh h3 /opt/farandole doctor`"),
        ] {
            let finding = failed(code, stderr);
            assert_eq!(finding.state, State::Problem);
            assert_eq!(finding.found, format!("h3: {}", stderr.lines().last().unwrap().trim()));
            assert!(finding.fix.as_ref().unwrap().contains(fix), "{finding:?}");
        }
    }

    #[test]
    fn a_command_that_mends_something_has_the_port_in_it() {
        let words = "Host key verification failed.";
        let fix = cure(&reached("h3", Some(2222)), Path::new("/opt/farandole"), &Ending::Exited(255), words);
        assert!(fix.contains("`ssh -p 2222 h3`"), "{fix}");
    }

    #[test]
    fn silence_and_garbage_are_problems_too() {
        assert!(failed(255, "").found.contains("status 255"));
        assert!(failed(0, "").found.contains("status 0"));
    }

    #[test]
    fn the_command_line_weakens_nothing_and_quotes_everything() {
        let args = DoctorArgs { ssh_port: Some(2222), ssh_identity_file: Some("k".into()), ..DoctorArgs::default() };
        let (program, here) = (Path::new("/opt/it's here/farandole"), Path::new("/w $HOME"));
        let order = JobSpec { args: &args, program, here, ranks: 4 };
        let command = order.ssh(&HostSlots { name: "h1".into(), slots: 2 });
        let words: Vec<&str> = command.get_args().map(|word| word.to_str().unwrap()).collect();
        assert_eq!(words[2..10], ["-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-p", "2222", "-i", "k"]);
        assert_eq!(words[10..12], ["--", "h1"]);
        assert!(words[12].starts_with(r"'/opt/it'\''s here/farandole' 'doctor' '--json' '--np' '4'"), "{}", words[12]);
        assert!(words[12].contains("'/w $HOME'"));
        assert!(!words.iter().any(|word| word.contains("StrictHostKeyChecking") || word.contains("KnownHosts")));
    }
}
