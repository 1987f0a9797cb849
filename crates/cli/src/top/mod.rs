//! `farandole top`: what the ranks of running jobs are doing, now.
//!
//! `farandole_cluster::live` finds the jobs and asks them; here is what becomes of the answers. `column` is what a
//! rank's line consists of, `summary` what is said of all ranks and of those of a host, `text` prints both once, `view`
//! is what somebody at a terminal looks at and what keys do to it, `screen` paints it, `watch` is the loop around. Only
//! `watch` touches a terminal.

mod column;
mod screen;
mod summary;
mod text;
mod view;
mod watch;

#[cfg(test)]
mod samples;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use farandole_cluster::live::{FoundJob, find};
use serde_json::json;

use column::Sort;
use view::View;

/// Watch running jobs: pace, bytes, waiting and stalls of every rank.
///
/// Finds the jobs of this user that `farandole run` has started from this machine, and those of other launchers whose
/// rank 0 runs here. On a terminal the picture is renewed every second, and ? explains the keys; otherwise it is
/// printed once.
#[derive(Args, Clone, Debug)]
pub(crate) struct TopArgs {
    /// Only this job: the process of its launcher, or of one of its ranks
    #[arg(value_name = "PID")]
    job: Option<u32>,

    /// Print the picture once and leave, on a terminal as well
    #[arg(long)]
    once: bool,

    /// The same for programs: one line of JSON with everything that is known
    #[arg(long)]
    json: bool,

    /// Which ranks come first
    #[arg(long, value_enum, default_value_t = Sort::Rank, value_name = "BY")]
    sort: Sort,

    /// A line for each host instead of each rank
    #[arg(long)]
    hosts: bool,
}

/// Shows what there is to see. The code is 1 where there is no job.
pub(crate) fn run(args: &TopArgs) -> Result<ExitCode> {
    let printed = args.once || args.json || !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal();
    let jobs = wanted(args.job).context("looking for jobs")?;
    let code = if jobs.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    let out = if args.json {
        json(&jobs)
    } else if jobs.is_empty() {
        eprintln!("farandole: {}", nobody(args.job));
        return Ok(code);
    } else if printed {
        jobs.iter().map(|found| text::page(found, args.sort, args.hosts)).collect::<Vec<_>>().join("\n")
    } else {
        let view = View::new(args.sort, args.hosts, jobs);
        let job = args.job;
        watch::watch(view, move || wanted(job))?;
        return Ok(code);
    };
    match std::io::stdout().write_all(out.as_bytes()) {
        // Whoever reads has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(code),
        written => written.map(|()| code).context("writing to standard output"),
    }
}

/// The jobs that are asked for.
fn wanted(job: Option<u32>) -> std::io::Result<Vec<FoundJob>> {
    let mut jobs = find()?;
    jobs.retain(|found| job.is_none_or(|pid| belongs(found, pid)));
    Ok(jobs)
}

/// Whether a process is the launcher of a job or one of its ranks.
fn belongs(found: &FoundJob, pid: u32) -> bool {
    let of_rank = |found: &FoundJob| match &found.snapshot {
        Ok(snapshot) => snapshot.ranks.iter().any(|rank| rank.pid == Some(pid)),
        Err(_) => false,
    };
    found.pid == pid || of_rank(found)
}

fn nobody(job: Option<u32>) -> String {
    match job {
        Some(pid) => format!("process {pid} is neither the launcher nor a rank of a job of yours on this machine"),
        None => "no job of yours runs on this machine: none that `farandole run` has started from here, and none whose rank 0 is \
                 here"
        .to_owned(),
    }
}

fn json(jobs: &[FoundJob]) -> String {
    let seen: Vec<_> = jobs.iter().filter_map(|found| found.snapshot.as_ref().ok()).collect();
    let unseen =
        jobs.iter().filter_map(|found| Some(json!({"pid": found.pid, "error": found.snapshot.as_ref().err()?})));
    format!("{}\n", json!({"jobs": seen, "unreadable": unseen.collect::<Vec<_>>()}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_found_by_its_launcher_and_by_its_ranks() {
        let found = samples::found(samples::snapshot(3, 1));
        assert!(belongs(&found, found.pid) && belongs(&found, 1002));
        assert!(!belongs(&found, 99));
        let unreadable = FoundJob { snapshot: Err("stopped".into()), ..found };
        assert!(belongs(&unreadable, unreadable.pid) && !belongs(&unreadable, 1002));
    }

    #[test]
    fn programs_get_one_line_whatever_names_contain() {
        let mut snapshot = samples::snapshot(1, 1);
        snapshot.ranks[0].phase = Some("a\nb\u{1b}[2J".into());
        let unreadable = FoundJob { name: "x".into(), pid: 5, snapshot: Err("it is stopped".into()) };
        let line = json(&[samples::found(snapshot), unreadable]);
        assert_eq!(line.matches('\n').count(), 1);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["jobs"][0]["ranks"][0]["phase"], "a\nb\u{1b}[2J");
        assert_eq!(value["unreadable"][0]["error"], "it is stopped");
    }
}
