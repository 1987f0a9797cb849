//! Measures how long a job takes from the command to its end: start the ranks, one allreduce of four bytes, exit.
//!
//! `farandole run` and the launchers of both MPI libraries take turns, so that whatever else the machine does hits all
//! alike. Each starts a program that joins its job, adds four bytes over all ranks, checks the sum and leaves. Nobody
//! is bound to cores, nobody is tuned; the words are those that a launcher needs to start at all on a small machine as
//! root.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::shell::Shell;
use crate::tools;

/// How many ranks: fewer, as many and more than this machine is likely to have cores.
const RANKS: [usize; 3] = [2, 4, 8];

/// Rounds unless `--rounds` says otherwise. The quarter-second starts of Open MPI make this half a minute in all.
const ROUNDS: usize = 20;

/// Rounds that are thrown away: they bring programs and libraries into the page cache.
const WARM_UPS: usize = 2;

/// A launcher with the words that start a rank's program, for any number of ranks.
struct Contestant {
    name: &'static str,
    launcher: PathBuf,
    words: &'static [&'static str],
    program: PathBuf,
    program_words: &'static [&'static str],
}

/// `cargo xtask startup [--rounds N]`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let rounds = match words {
        [] => ROUNDS,
        [flag, count] if flag == "--rounds" => count.parse().context("--rounds takes a number")?,
        _ => bail!("`cargo xtask startup` takes `--rounds N` and nothing else"),
    };
    ensure!(rounds > 0, "no rounds, nothing measured");
    let contestants = contestants()?;
    println!("start, one allreduce of 4 bytes on every rank, exit; {rounds} rounds, in turns; times in ms");
    println!("machine: {}\n", machine());
    println!("{:>4} | {:>10} {:>8} {:>8} {:>8} | ratio to farandole", "np", "", "median", "p90", "min");
    let mut slower = Vec::new();
    for ranks in RANKS {
        let medians = print_rows(&contestants, ranks, &measure(&contestants, ranks, rounds)?);
        let beaten = contestants.iter().zip(&medians).skip(1).filter(|(_, median)| **median <= medians[0]);
        slower.extend(beaten.map(|(contestant, _)| format!("{} with {ranks} ranks", contestant.name)));
    }
    ensure!(slower.is_empty(), "farandole starts no faster than {}", slower.join(", "));
    Ok(())
}

/// What the numbers depend on beside the contestants.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    format!("{cores} cores, load average {}", load.split(' ').next().unwrap_or("unknown"))
}

/// Builds what is started; farandole comes first.
fn contestants() -> Result<Vec<Contestant>> {
    let release = ["build", "--release", "--package", "farandole-cli", "--bin", "farandole", "--example"];
    Shell::cargo(&release).words(&["obedient_rank"]).run()?;
    let built = tools::target_dir().join("release");
    let farandole = built.join("farandole");
    let mpi = |name, launcher: &str, words, program_words| Contestant {
        name,
        launcher: launcher.into(),
        words,
        program: farandole.clone(),
        program_words,
    };
    Ok(vec![
        Contestant {
            name: "farandole",
            launcher: farandole.clone(),
            words: &["run"],
            program: built.join("examples/obedient_rank"),
            program_words: &["once"],
        },
        mpi(
            "openmpi",
            "mpirun.openmpi",
            &["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"],
            &["bench-peer", "mpi-once", "--lib", "libmpi.so.40"],
        ),
        mpi("mpich", "mpirun.mpich", &[], &["bench-peer", "mpi-once", "--lib", "libmpich.so.12"]),
    ])
}

/// The times of each contestant.
fn measure(contestants: &[Contestant], ranks: usize, rounds: usize) -> Result<Vec<Vec<Duration>>> {
    let mut times = vec![Vec::with_capacity(rounds); contestants.len()];
    for round in 0..WARM_UPS + rounds {
        for turn in 0..contestants.len() {
            // Whoever comes first in a round comes second in the next one.
            let number = (turn + round) % contestants.len();
            let time = contestants[number].start(ranks)?;
            if round >= WARM_UPS {
                times[number].push(time);
            }
        }
    }
    times.iter_mut().for_each(|times| times.sort());
    Ok(times)
}

impl Contestant {
    /// One job, from its command to its end.
    fn start(&self, ranks: usize) -> Result<Duration> {
        let mut command = Command::new(&self.launcher);
        command.args(self.words).args(["-np", &ranks.to_string()]).arg(&self.program).args(self.program_words);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let began = Instant::now();
        let output = command.output().with_context(|| not_startable(&self.launcher))?;
        let time = began.elapsed();
        ensure!(output.status.success(), "{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
        Ok(time)
    }
}

fn not_startable(launcher: &Path) -> String {
    format!("{} cannot be started; `cargo xtask peers` installs the MPI libraries", launcher.display())
}

/// Shows the sorted times of all contestants and returns their medians.
fn print_rows(contestants: &[Contestant], ranks: usize, times: &[Vec<Duration>]) -> Vec<f64> {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let quantile = |times: &[Duration], per_cent: usize| ms(times[(times.len() - 1) * per_cent / 100]);
    let medians: Vec<f64> = times.iter().map(|times| quantile(times, 50)).collect();
    for ((contestant, times), median) in contestants.iter().zip(times).zip(&medians) {
        let (p90, min, ratio) = (quantile(times, 90), ms(times[0]), median / medians[0]);
        println!("{ranks:>4} | {:>10} {median:>8.1} {p90:>8.1} {min:>8.1} | {ratio:.2}", contestant.name);
    }
    medians
}
