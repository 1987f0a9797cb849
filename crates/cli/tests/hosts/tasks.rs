//! Jobs over several hosts that are given more than a command: a task, a function of Python, the alias package.

use std::fs;
use std::path::{Path, PathBuf};

use crate::jobs::program;
use crate::lab::{Family, Lab};
use crate::running::Running;

#[test]
fn a_task_goes_to_ranks_of_every_host_and_results_come_back_whatever_their_length() {
    let lab = Lab::new(3, Family::V4);
    let task = "and so on ".repeat(50_000);
    lab.host(0).write("task", &task);
    fs::create_dir(lab.host(0).path("results")).unwrap();
    // The result is the task three times. On no command line of any host is anything of it.
    let rank = "for time in 1 2 3; do cat /proc/self/fd/$FARANDOLE_TASK_FD; done >> /proc/self/fd/$FARANDOLE_RESULT_FD";
    let caller = format!(
        "{} run --task /run/lab/task --results /run/lab/results --caller $$ -np 6 -H h0:2,h1:2,h2:2 sh -c '{rank}' & wait $!",
        env!("CARGO_BIN_EXE_farandole")
    );
    let ended = Running::start(lab.host(0).command("sh").args(["-c", &caller])).wait();
    assert_eq!(ended.code(), 0, "{}", ended.said());
    for rank in 0..6 {
        assert!(lab.host(0).read(&format!("results/rank.{rank}")) == task.repeat(3), "rank {rank}");
    }
}

#[test]
fn the_alias_is_looked_for_on_every_host() {
    let lab = Lab::new(2, Family::V4);
    for folder in ["alias", "alias/horovod"] {
        fs::create_dir(lab.host(0).path(folder)).unwrap();
    }
    let mut command = lab.host(0).command(env!("CARGO_BIN_EXE_farandole"));
    command.args(["run", "-np", "2", "-H", "h0:1,h1:1", "--horovod"]).env("FARANDOLE_HOROVOD_PATH", "/run/lab/alias");
    let show = [program(), "show".to_owned(), "PYTHONPATH".to_owned()];
    let ended = Running::start(command.args(&show)).wait();
    assert_eq!(ended.code(), 1, "{}", ended.said());
    assert!(ended.last_line().contains("on h1: ") && ended.last_line().contains("has no package"), "{}", ended.said());
    for folder in ["alias", "alias/horovod"] {
        fs::create_dir(lab.host(1).path(folder)).unwrap();
    }
    let ended = Running::start(&mut command).wait();
    assert_eq!(ended.code(), 0, "{}", ended.said());
    assert_eq!(ended.stdout.iter().filter(|line| line.ends_with("PYTHONPATH=/run/lab/alias")).count(), 2);
}

/// The Python package without its module in Rust, which nothing here needs and nobody may have built: a folder with
/// copies, seen by all hosts.
fn package() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings/python/farandole").canonicalize().unwrap();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("package-{}", std::process::id()));
    fs::create_dir_all(folder.join("farandole")).unwrap();
    for file in ["launch.py", "_task.py", "_ending.py"] {
        fs::copy(here.join(file), folder.join("farandole").join(file)).unwrap();
    }
    fs::write(folder.join("farandole/__init__.py"), "from farandole.launch import run\n").unwrap();
    folder
}

#[test]
fn a_function_of_python_runs_on_every_host() {
    let lab = Lab::new(3, Family::V4);
    let package = package();
    let script = "
import os, farandole

def where(prefix, *, size):
    assert len(prefix) == size
    return prefix[:2], os.environ['FARANDOLE_RANK'], os.environ['FARANDOLE_LOCAL_RANK'], os.uname().nodename

def fails():
    if os.environ['FARANDOLE_RANK'] == '4':
        raise ValueError('no such luck')

hosts = 'h0:2,h1:2,h2:2'
print(farandole.run(where, ['ab' * 1_000_000], {'size': 2_000_000}, num_proc=6, hosts=hosts))
try:
    farandole.run(fails, num_proc=6, hosts=hosts)
except farandole.launch.RankFailed as error:
    print(error.rank, repr(error.__cause__), 'in fails' in str(error))
";
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python");
    let mut command = lab.host(0).command(python);
    command.env("PYTHONPATH", &package).env("FARANDOLE_COMMAND", env!("CARGO_BIN_EXE_farandole"));
    let ended = Running::start(command.args(["-c", script])).wait();
    fs::remove_dir_all(&package).unwrap();
    assert_eq!(ended.code(), 0, "{}", ended.said());
    let ranks: Vec<String> = (0..6).map(|rank| format!("('ab', '{rank}', '{}', 'h{}')", rank % 2, rank / 2)).collect();
    assert_eq!(ended.stdout, [format!("[{}]", ranks.join(", ")), "4 ValueError('no such luck') True".to_owned()]);
}
