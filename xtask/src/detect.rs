//! Measures how soon everybody knows that a rank is gone: killed, and stopped.
//!
//! Four ranks allreduce without end; one of them gets a signal. What is timed is the user's view: from the signal to
//! the arrival of each survivor's error on the launcher's standard error, and to the end of the launcher. Every error
//! must name the rank.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::shell::Shell;
use crate::tools;

/// Ranks of the job, and the one that gets the signal.
const RANKS: usize = 4;
const VICTIM: usize = 2;

/// Rounds unless `--rounds` says otherwise.
const ROUNDS: usize = 20;

/// A stopped rank counts as dead after this many seconds in these rounds; the default is five.
const SILENCE_S: u64 = 2;

/// Nothing here takes longer unless it hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// `cargo xtask detect [--rounds N]`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let rounds: usize = match words {
        [] => ROUNDS,
        [flag, count] if flag == "--rounds" => count.parse().context("--rounds takes a number")?,
        _ => bail!("`cargo xtask detect` takes `--rounds N` and nothing else"),
    };
    ensure!(rounds > 0, "no rounds, nothing measured");
    let release = ["build", "--release", "--package", "farandole-cli", "--bin", "farandole", "--example"];
    Shell::cargo(&release).words(&["obedient_rank"]).run()?;
    println!("{RANKS} ranks allreduce, rank {VICTIM} gets a signal; {rounds} rounds; times in ms from the signal");
    println!("{:>8} | {:>28} | {:>20}", "", "error on the last survivor", "end of the launcher");
    println!("{:>8} | {:>8} {:>9} {:>9} | {:>9} {:>10}", "signal", "median", "p90", "max", "median", "max");
    for signal in ["KILL", "STOP"] {
        let mut known = Vec::new();
        let mut over = Vec::new();
        for _ in 0..rounds {
            let (knew, ended) = strike(signal)?;
            known.push(knew);
            over.push(ended);
        }
        known.sort();
        over.sort();
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let at = |times: &[Duration], per_cent: usize| ms(times[(times.len() - 1) * per_cent / 100]);
        println!(
            "{signal:>8} | {:>8.1} {:>9.1} {:>9.1} | {:>9.1} {:>10.1}",
            at(&known, 50),
            at(&known, 90),
            at(&known, 100),
            at(&over, 50),
            at(&over, 100)
        );
    }
    println!("(a stopped rank counts as dead after {SILENCE_S} s here: --heartbeat-timeout {SILENCE_S})");
    Ok(())
}

/// A line of the launcher, and when it came.
type Line = (Instant, String);

/// One job whose victim gets the signal: when the last survivor had its error, and when the launcher had ended.
fn strike(signal: &str) -> Result<(Duration, Duration)> {
    let built = tools::target_dir().join("release");
    let mut job = Job(Command::new(built.join("farandole"))
        .args(["run", "--verbose", "-np", &RANKS.to_string(), "--heartbeat-timeout", &SILENCE_S.to_string()])
        .arg(built.join("examples/obedient_rank"))
        .arg("loop")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?);
    let lines = listen(&mut job.0);
    let deadline = Instant::now() + PATIENCE;
    let (mut pid, mut dancing) = (None, 0);
    while pid.is_none() || dancing < RANKS {
        let (_, line) = next(&lines, deadline)?;
        dancing += usize::from(line.ends_with(">:dancing"));
        let place = line.strip_prefix(&format!("farandole: rank {VICTIM} runs on "));
        if let Some((_, number)) = place.and_then(|place| place.split_once("(pid ")) {
            pid = Some(number.trim_end_matches(')').to_owned());
        }
    }
    let pid = pid.context("the launcher did not say who the victim is")?;
    let struck = Instant::now();
    ensure!(Command::new("kill").args([&format!("-{signal}"), &pid]).status()?.success(), "kill -{signal} {pid}");
    let mut last = struck;
    let mut survivors = 0;
    while survivors < RANKS - 1 {
        let (at, line) = next(&lines, deadline)?;
        if line.contains("<stderr>:failed: ") {
            ensure!(line.contains(&format!("rank {VICTIM}")), "the rank is not named: {line}");
            survivors += 1;
            last = at;
        }
    }
    let status = job.0.wait()?;
    let ended = Instant::now();
    ensure!(!status.success(), "the launcher says that all is well");
    Ok((last - struck, ended - struck))
}

/// A job that ends with this value, whatever happens.
struct Job(Child);

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// All lines of both streams, as they come.
fn listen(child: &mut Child) -> Receiver<Line> {
    let (sender, lines) = channel();
    let streams: [Option<Box<dyn std::io::Read + Send>>; 2] =
        [child.stdout.take().map(|s| Box::new(s) as _), child.stderr.take().map(|s| Box::new(s) as _)];
    for stream in streams.into_iter().flatten() {
        let sender = sender.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                let _ = sender.send((Instant::now(), line));
            }
        });
    }
    lines
}

fn next(lines: &Receiver<Line>, deadline: Instant) -> Result<Line> {
    let left = deadline.saturating_duration_since(Instant::now());
    lines.recv_timeout(left).context("the job says nothing any more, or has ended")
}
