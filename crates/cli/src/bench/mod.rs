//! `farandole bench`: how long collectives take here, whether their results are right, and how that compares.
//!
//! The parent process (`driver`, `entrant`) starts all contestants, lets them take turns and does the arithmetic; it
//! takes no part in any collective. The ranks (`contestant`) take orders over a `line`. On real hosts, and inside of
//! jobs that others have started, rank 0 drives (`job`). Nothing in this module knows how a collective works; it knows
//! tasks, times and what the right result is.

pub(crate) mod args;
mod busy;
pub(crate) mod contestant;
mod device_limit;
mod direct;
mod driver;
mod entrant;
mod job;
mod limit;
mod line;
pub(crate) mod machine;
mod named;
pub(crate) mod on_device;
pub(crate) mod ours;
mod pattern;
pub(crate) mod placement;
mod report;
pub(crate) mod sizes;
mod statistics;
mod table;
pub(crate) mod task;

use std::cell::RefCell;
use std::fs;
use std::io::{self, Write};
use std::process::ExitCode;
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use farandole_trace::TemporaryFolder;

use args::BenchArgs;
use busy::Busy;
use device_limit::DeviceLimit;
use entrant::{Entrant, FIRST, Processes, Twin, twins};
use limit::{Limit, Rates};
use machine::Machine;
use report::{Entry, Report, Row};
use task::{DevicePlane, On, Task};

/// Starts the ranks, here or on other hosts, or is one of a job. Fails if a contestant breaks or results of farandole
/// are wrong.
pub(crate) fn run(args: &BenchArgs) -> Result<ExitCode> {
    if let Some(environment) = job::environment(args)? {
        job::check(args)?;
        args.check(environment.size)?;
        job::serve(args, &environment, |entrants, ranks, hosts| compete(args, ranks, hosts, entrants, None))?;
    } else if let Some(hosts) = args.named_hosts()? {
        job::check(args)?;
        args.check(args.ranks.unwrap_or(1))?;
        return job::start(args, hosts);
    } else {
        let ranks = args.ranks.context("how many ranks? Give -np 2, or hosts with slots, as in -H h1:2,h2:2")?;
        args.check(ranks)?;
        let directory = TemporaryFolder::new("farandole-bench").context("making a directory for sockets")?;
        let entrants = start_all(args, ranks, &directory)?;
        let hosts = if args.host_prefix.is_some() { args.pretended_hosts() } else { 1 };
        compete(args, ranks, hosts, entrants, bound(args, ranks)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Measures the contestants and writes the table.
fn compete(
    args: &BenchArgs,
    ranks: usize,
    hosts: usize,
    mut entrants: Vec<Box<dyn Entrant>>,
    bound: Option<(Box<dyn Entrant>, Rates)>,
) -> Result<()> {
    let (limit, rates) = bound.unzip();
    let entry = |entrant: &dyn Entrant| Entry {
        word: entrant.word().into(),
        product: entrant.product().into(),
        twin: entrant.is_twin(),
    };
    let tasks = args.tasks(ranks);
    let mut report = Report {
        machine: Machine::this(),
        ranks,
        hosts,
        busy_cores: args.busy,
        plane: args.plane.map(DevicePlane::word),
        task: tasks.first().cloned().context("--sizes names no size")?,
        entries: entrants.iter().map(|entrant| entry(entrant.as_ref())).collect(),
        rates,
        rows: Vec::new(),
    };
    let mut out = table_output(args);
    out.write_all(table::heading(&report).as_bytes())?;
    writeln!(out)?;
    out.write_all(table::column_names(&report).as_bytes())?;
    entrants.extend(limit);
    // They begin when everybody has started and the machine's own rates are known.
    let _busy = Busy::start(args.busy);
    for task in &tasks {
        let row = measure_row(&mut entrants, task, args)?;
        out.write_all(table::line(&report, &row).as_bytes())?;
        out.flush()?;
        report.rows.push(row);
    }
    writeln!(out)?;
    out.write_all(table::footnotes(&report).as_bytes())?;
    write_json(args, &report)?;
    match report.wrong() {
        0 => Ok(()),
        wrong => bail!("{wrong} elements of results were wrong"),
    }
}

/// The machine's bound as a contestant, and the rates behind it, if they are wanted.
fn bound(args: &BenchArgs, ranks: usize) -> Result<Option<(Box<dyn Entrant>, Rates)>> {
    Ok(match (args.limit, args.device) {
        (false, _) => None,
        (true, On::Cpu) => {
            let limit = Box::new(Limit::new(ranks, args.pinning()));
            Some((limit, limit::rates(ranks, args.pinning())))
        }
        (true, On::Cuda) => {
            let mut limit = DeviceLimit::open(ranks)?;
            let rates = limit.rates()?;
            Some((Box::new(limit), rates))
        }
    })
}

fn measure_row(entrants: &mut [Box<dyn Entrant>], task: &Task, args: &BenchArgs) -> Result<Row> {
    let mut showings = driver::measure(entrants, task, args.effort())?;
    let limit = if args.limit { showings.pop() } else { None };
    Ok(Row { bytes: task.bytes, showings, limit })
}

fn start_all(args: &BenchArgs, ranks: usize, directory: &TemporaryFolder) -> Result<Vec<Box<dyn Entrant>>> {
    let mut entrants: Vec<Box<dyn Entrant>> = Vec::new();
    let placement = args.placement(ranks)?;
    if !args.peers_only {
        let socket = directory.path().join(FIRST);
        let launcher = ours::launcher(args, ranks, &socket, directory.path())?;
        let processes = Rc::new(RefCell::new(Processes::start(FIRST, ranks, &socket, vec![launcher])?));
        let product = processes.borrow().product().to_owned();
        entrants.extend(twins(args, &product, |word, product, recording| {
            Box::new(Twin { word, product, recording, processes: Rc::clone(&processes) })
        }));
    }
    let mut peers = args.against.clone();
    peers.dedup();
    for peer in peers {
        let word = peer.word();
        let socket = directory.path().join(word);
        let commands = peer.commands(&placement, &socket, directory.path(), args.pinning())?;
        entrants.push(Box::new(Processes::start(word, ranks, &socket, commands)?));
    }
    Ok(entrants)
}

fn table_output(args: &BenchArgs) -> Box<dyn Write> {
    match &args.json {
        Some(file) if file.as_os_str() == "-" => Box::new(io::stderr()),
        _ => Box::new(io::stdout()),
    }
}

fn write_json(args: &BenchArgs, report: &Report) -> Result<()> {
    let Some(file) = &args.json else { return Ok(()) };
    let mut text = serde_json::to_string_pretty(&report.to_json()).context("writing the result as JSON")?;
    text.push('\n');
    if file.as_os_str() == "-" {
        io::stdout().write_all(text.as_bytes()).context("writing the result to standard output")
    } else {
        fs::write(file, text).with_context(|| format!("writing {}", file.display()))
    }
}
