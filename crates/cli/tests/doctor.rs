//! The doctor as a user meets it: the page, the report, the exit code, and other hosts through a stand-in for ssh.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use farandole_testing::Folder;
use serde_json::Value;

/// Longer than the doctor may take in the worst case, which is bounded by the deadlines of what it asks.
const PATIENCE: Duration = Duration::from_secs(100);

/// Variables that would change what is found; each test sets those that it is about.
const CLEARED: [&str; 8] = [
    "VIRTUAL_ENV",
    "FARANDOLE_SIMD",
    "FARANDOLE_RANK",
    "FARANDOLE_SIZE",
    "FARANDOLE_RENDEZVOUS",
    "RANK",
    "WORLD_SIZE",
    "NO_COLOR",
];

fn doctor(prepare: impl FnOnce(&mut Command)) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farandole"));
    finish(command.arg("doctor"), prepare)
}

fn finish(command: &mut Command, prepare: impl FnOnce(&mut Command)) -> Output {
    for variable in CLEARED {
        command.env_remove(variable);
    }
    prepare(command);
    farandole_testing::finish(command, PATIENCE)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn finding<'a>(report: &'a Value, key: &str) -> &'a Value {
    let findings = report["findings"].as_array().unwrap();
    findings.iter().find(|finding| finding["key"] == key).unwrap_or_else(|| panic!("no finding {key} in {report:#}"))
}

/// A directory with programs.
struct TestDirectory(Folder);

impl TestDirectory {
    fn new() -> TestDirectory {
        TestDirectory(Folder::new())
    }

    fn program(&self, name: &str, script: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    /// PATH with this directory in front.
    fn path(&self) -> String {
        format!("{}:{}", self.0.display(), std::env::var("PATH").unwrap())
    }
}

#[test]
fn the_page_fits_its_width_and_says_what_will_be_used() {
    let output = doctor(|command| {
        command.args(["-np", "2"]);
    });
    let page = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{page}{}", text(&output.stderr));
    for words in
        ["Machine", "Network", "Python", "Job", "shared-memory", "2 ranks planned", "What will be used, and why"]
    {
        assert!(page.contains(words), "no '{words}' in\n{page}");
    }
    assert!(!page.contains('\x1b'), "colours in a pipe");
    let long: Vec<&str> = page.lines().filter(|line| line.chars().count() > 80 && line.contains(' ')).collect();
    assert!(long.iter().all(|line| line.split_whitespace().count() == 1), "{long:?}");
    assert!(page.trim_end().lines().last().unwrap().starts_with("Nothing is wrong"), "{page}");
}

#[test]
fn the_report_has_the_keys_that_scripts_rely_on() {
    let report = json(&doctor(|command| {
        command.args(["--json", "-np", "3"]);
    }));
    assert_eq!(report["schema"], 1);
    assert_eq!(report["farandole"], env!("CARGO_PKG_VERSION"));
    assert_eq!(report["planned"], serde_json::json!({"ranks": 3, "local_ranks": 3}));
    assert_eq!(report["versions"]["farandole"], env!("CARGO_PKG_VERSION"));
    assert!(report["unix_time_ms"].as_u64().unwrap() > 1_600_000_000_000);
    assert!(!report["outlook"].as_array().unwrap().is_empty());
    for key in [
        "cores",
        "memory",
        "shared-memory",
        "dev-shm",
        "descriptors",
        "locked-memory",
        "addresses",
        "host-name",
        "ssh",
        "python",
        "cuda",
        "nccl",
        "mpi",
        "gpus",
        "launcher",
        "settings",
        "simd",
        "clock",
    ] {
        let finding = finding(&report, key);
        assert!(["ok", "note", "problem"].contains(&finding["state"].as_str().unwrap()), "{finding}");
        for field in ["group", "found", "why"] {
            assert!(!finding[field].as_str().unwrap().is_empty(), "{finding}");
        }
        assert!(finding["state"] != "problem" || finding["fix"].is_string(), "{finding}");
    }
}

#[test]
fn a_problem_changes_the_exit_code_and_carries_its_fix() {
    for (variable, value, key, fix) in [
        ("FARANDOLE_SIMD", "sse9", "simd", "unset FARANDOLE_SIMD"),
        ("FARANDOLE_TIMEOUT_SECONDS", "soon", "settings", "unset FARANDOLE_TIMEOUT_SECONDS"),
        ("FARANDOLE_RANK", "0", "launcher", "env | grep"),
        ("VIRTUAL_ENV", "/nowhere", "python", "deactivate"),
    ] {
        let output = doctor(|command| {
            command.args(["--json", "-np", "2"]).env(variable, value);
        });
        assert_eq!(output.status.code(), Some(1), "{variable}");
        let report = json(&output);
        let finding = finding(&report, key);
        assert_eq!((finding["state"].as_str(), report["state"].as_str()), (Some("problem"), Some("problem")));
        assert!(finding["fix"].as_str().unwrap().contains(fix), "{finding}");
    }
}

#[test]
fn limits_of_the_shell_are_seen() {
    let script = "ulimit -n 128 && ulimit -f 100 && exec \"$0\" doctor --json -np 4";
    let mut shell = Command::new("sh");
    let output = finish(shell.args(["-c", script, env!("CARGO_BIN_EXE_farandole")]), |_| ());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report = json(&output);
    for key in ["descriptors", "file-size", "shared-memory"] {
        assert_eq!(finding(&report, key)["state"], "problem", "{key}");
    }
    assert!(finding(&report, "descriptors")["fix"].as_str().unwrap().contains("limits.conf"));
}

#[test]
fn a_terminal_gets_colours_unless_the_user_declines() {
    let page = |no_color: &str| {
        let mut script = Command::new("script");
        script.args(["-qec", concat!(env!("CARGO_BIN_EXE_farandole"), " doctor -np 1"), "/dev/null"]);
        text(
            &finish(script.env("TERM", "xterm"), |command| {
                command.env("NO_COLOR", no_color);
            })
            .stdout,
        )
    };
    assert!(page("").contains("\x1b[32mok"), "{}", page(""));
    assert!(!page("1").contains('\x1b'));
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let script = "\"$0\" doctor -np 1 | head -n 1; exit ${PIPESTATUS[0]}";
    let mut shell = Command::new("bash");
    let output = finish(shell.args(["-c", script, env!("CARGO_BIN_EXE_farandole")]), |_| ());
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
}

#[test]
fn a_library_that_crashes_when_it_is_opened_does_not_take_the_doctor_down() {
    let directory = TestDirectory::new();
    // The C library, cut off after its first page: the dynamic linker maps the rest and falls into the hole.
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps.lines().filter_map(|line| line.split_whitespace().last()).find(|path| path.contains("libc.so"));
    let whole = fs::read(libc.expect("this test is linked to a C library")).unwrap();
    fs::write(directory.0.join("libmpi.so.40"), &whole[..4096]).unwrap();
    let output = doctor(|command| {
        command.args(["--json", "-np", "1"]).env("LD_LIBRARY_PATH", &*directory.0);
    });
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report = json(&output);
    let mpi = finding(&report, "mpi");
    assert_eq!(mpi["state"], "note", "{mpi}");
    let words = mpi["found"].as_str().unwrap();
    assert!(words.contains("libmpi.so.40 crashes when it is opened (signal 7)"), "{mpi}");
}

#[test]
fn gpus_are_the_default_plan_and_a_daemon_of_mps_is_seen() {
    let directory = TestDirectory::new();
    directory.program("nvidia-cuda-mps-control", "read -r word && [ \"$CUDA_MPS_PIPE_DIRECTORY\" = \"$PIPES\" ]");
    let report = |gpus: &str, pipes: &str| {
        json(&doctor(|command| {
            command.arg("--json").env("FARANDOLE_TEST_GPUS", gpus).env("PATH", directory.path());
            command.env("CUDA_MPS_PIPE_DIRECTORY", &*directory.0).env("PIPES", pipes);
            command.env_remove("CUDA_VISIBLE_DEVICES").env_remove("NVIDIA_VISIBLE_DEVICES");
        }))
    };
    let pipes = directory.0.to_str().unwrap();
    let with_daemon = report("GPU-a,GPU-b,GPU-c", pipes);
    assert_eq!(with_daemon["planned"]["ranks"], 3);
    assert!(finding(&with_daemon, "gpus")["found"].as_str().unwrap().starts_with("3 GPUs"), "{with_daemon:#}");
    let mps = finding(&with_daemon, "mps")["found"].as_str().unwrap();
    assert_eq!(mps, format!("a daemon answers at {pipes}, which ranks use"));
    let without = report("GPU-a", "/elsewhere");
    assert_eq!(without["planned"]["ranks"], 1);
    assert!(finding(&without, "mps")["found"].as_str().unwrap().contains("no daemon runs"), "{without:#}");
    let none = report("", pipes);
    assert_eq!(finding(&none, "gpus")["found"], "no NVIDIA GPU");
    assert!(none["findings"].as_array().unwrap().iter().all(|finding| finding["key"] != "mps"));
}

/// Stands for ssh: h1 and h2 are this machine, h2 with another Python; nobody answers at h3.
const SSH: &str = r#"
while [ "$1" != "--" ]; do
    case "$1" in -V) echo "OpenSSH_0.0 stand-in, none" >&2; exit 0 ;; esac
    shift
done
case "$2" in
    h1) echo "welcome to h1"; exec sh -c "$3" ;;
    h2) exec sh -c "$3 --python $FAKE_PYTHON" ;;
    *) echo "ssh: connect to host $2 port 22: Connection refused" >&2; exit 255 ;;
esac
"#;

#[test]
fn other_hosts_are_asked_compared_and_reported_when_they_do_not_answer() {
    let directory = TestDirectory::new();
    directory.program("ssh", SSH);
    let python = directory.program(
        "python-of-h2",
        r#"echo '{"version":"3.99.0","executable":"/opt/python","packages":{"torch":"9.9"},"nccl":[]}'"#,
    );
    let ask = |words: &[&str]| {
        doctor(|command| {
            command.args(words).env("PATH", directory.path()).env("FAKE_PYTHON", &python);
        })
    };
    let output = ask(&["-H", "h1:2,h2:2,h3:2", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let reports = json(&output);
    let hosts: Vec<&str> =
        reports["hosts"].as_array().unwrap().iter().map(|host| host["host"].as_str().unwrap()).collect();
    assert_eq!(hosts, ["h1", "h2", "h3"]);
    assert_eq!(reports["hosts"][1]["report"]["versions"]["torch"], "9.9");
    assert_eq!(reports["hosts"][1]["report"]["planned"], serde_json::json!({"ranks": 6, "local_ranks": 2}));
    assert!(reports["hosts"][2]["report"].is_null());
    let reach = finding(&reports, "reach");
    assert_eq!(reach["found"], "h3: ssh: connect to host h3 port 22: Connection refused");
    assert!(finding(&reports, "python")["found"].as_str().unwrap().contains("3.99.0 on h2"));
    assert_eq!(finding(&reports, "clocks")["state"], "ok");

    let page = text(&ask(&["-H", "h1,h3"]).stdout);
    for words in ["h1 (", "Hosts compared", "reach", "Fix: start the ssh server there"] {
        assert!(page.contains(words), "no '{words}' in\n{page}");
    }
    assert!(page.trim_end().lines().last().unwrap().starts_with("1 problem"), "{page}");
}

#[test]
fn a_host_without_the_command_is_told_from_one_that_cannot_be_reached() {
    let directory = TestDirectory::new();
    directory.program("ssh", SSH);
    let output = doctor(|command| {
        command.args(["-H", "h1", "--remote-farandole", "/nowhere/farandole", "--json"]).env("PATH", directory.path());
    });
    assert_eq!(output.status.code(), Some(1));
    let reports = json(&output);
    let reach = finding(&reports, "reach");
    assert!(reach["found"].as_str().unwrap().contains("/nowhere/farandole"), "{reach}");
    assert!(reach["fix"].as_str().unwrap().contains("--remote-farandole"), "{reach}");
}

#[test]
fn what_horovods_users_know_as_check_build_is_there() {
    let directory = TestDirectory::new();
    let packages = r#"{"torch":"1.13.1","tensorflow":"2.21.0","keras":"3.15.1","jax":"0.10.2","farandole":"0.1.0"}"#;
    let answer =
        format!(r#"{{"version":"3.11.2","executable":"/p","packages":{packages},"nccl":[],"keras_backend":"jax"}}"#);
    directory.program("python3", &format!("echo '{answer}'"));
    let output = doctor(|command| {
        command.arg("--check-build").env("PATH", directory.path()).env_remove("VIRTUAL_ENV");
    });
    assert_eq!(output.status.code(), Some(0));
    let table = text(&output.stdout);
    assert!(
        table.contains("Available Frameworks:\n    [X] TensorFlow     (2.21.0, farandole.tensorflow)\n"),
        "{table}"
    );
    assert!(table.contains("    [ ] PyTorch        (too old: 1.13.1 < 2.1)\n"), "{table}");
    assert!(table.contains("    [ ] MXNet          (not installed in /p)\n"), "{table}");
    assert!(
        table.contains("    [X] Keras          (3.15.1, farandole.keras on jax (or tensorflow, torch))\n"),
        "{table}"
    );
    assert!(table.contains("    [X] JAX            (0.10.2, farandole.jax)\n"), "{table}");
    assert!(table.contains("    [X] Burn ") && table.contains("    [X] Candle "), "{table}");
}
