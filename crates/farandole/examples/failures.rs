//! The program in Rust of `cargo xtask failures`: trains for a few steps, until the fault that `FAILURE` names strikes.
//!
//! It takes the same variables as the programs in `bindings/python/failures`; `faults.py` there says what they mean.

use std::error::Error;
use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use farandole::{Pending, ReduceOp, World};
use rustix::process::{Signal, getpid, kill_process};

const STEPS: u64 = 6;

/// The step in which a fault strikes.
const STEP: u64 = 3;

type Outcome = Result<(), Box<dyn Error>>;

/// The fault of this job, and whether it strikes this rank.
struct Fault {
    name: String,
    strikes_here: bool,
}

impl Fault {
    fn from_environment() -> Result<Fault, Box<dyn Error>> {
        let name = std::env::var("FAILURE").unwrap_or_default();
        let variables = ["FARANDOLE_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK"];
        let rank = variables.iter().find_map(|name| std::env::var(name).ok()).ok_or("no launcher has set a rank")?;
        let victim = if name == "disk full" { "0" } else { "1" };
        Ok(Fault { strikes_here: rank == victim, name })
    }

    fn is(&self, name: &str) -> bool {
        self.strikes_here && self.name == name
    }

    /// Faults of a step.
    fn strike(&self) -> Outcome {
        if !self.strikes_here {
            return Ok(());
        }
        match self.name.as_str() {
            "exception" => return Err("a bad batch".into()),
            "panic" => panic!("a bad batch"),
            "logged exception" => {
                eprintln!("a bad batch");
                std::process::exit(1);
            }
            "exit 0" => std::process::exit(0),
            "os._exit" => std::process::exit(3),
            "out of memory" => drop(vec![1_u8; 1 << 46]),
            "endless loop" => loop {
                std::thread::sleep(Duration::from_secs(1));
            },
            "loader" => drop(File::open("images/0017.jpg").map_err(|error| format!("images/0017.jpg: {error}"))?),
            "killed" => send(Signal::KILL)?,
            "segmentation fault" => {
                // Rust's handler, which looks for stack overflows, takes itself away at the first.
                send(Signal::SEGV)?;
                send(Signal::SEGV)?;
            }
            "abort" => send(Signal::ABORT)?,
            "terminated" => send(Signal::TERM)?,
            "stopped" => send(Signal::STOP)?,
            _ => {}
        }
        Ok(())
    }
}

fn send(signal: Signal) -> Outcome {
    Ok(kill_process(getpid(), signal)?)
}

/// Averages the gradients of all ranks, by name.
fn reduce(world: &World, fault: &Fault) -> Outcome {
    let mut names = vec!["first.weight", "first.bias", "last.weight", "last.bias"];
    if fault.is("other model") {
        names.push("extra.weight");
    }
    if fault.is("frozen parameter") {
        names.retain(|name| *name != "first.bias");
    }
    let submit = |name: &&str| world.named(name).allreduce(vec![1.0_f32; 16], ReduceOp::Average);
    let pending: Vec<Pending<Vec<f32>>> = names.iter().map(submit).collect::<farandole::Result<_>>()?;
    for gradient in pending {
        gradient.wait()?;
    }
    Ok(())
}

/// What a program does besides, once: a metric of all ranks and a checkpoint of rank 0.
fn evaluate(world: &World, fault: &Fault) -> Outcome {
    let name = if fault.is("other name") { "accuracy" } else { "loss" };
    let elements = if fault.is("other shape") { 3 } else { 2 };
    if fault.is("other dtype") {
        world.named(name).allreduce(vec![1_i32; elements], ReduceOp::Sum)?.wait()?;
    } else {
        world.named(name).allreduce(vec![1.0_f32; elements], ReduceOp::Sum)?.wait()?;
    }
    if fault.is("extra collective") {
        world.named("extra").allreduce(vec![1.0_f32; 2], ReduceOp::Sum)?.wait()?;
    }
    if fault.is("disk full") {
        let path = Path::new(&std::env::var("FAILURE_FOLDER")?).join("checkpoint");
        match std::os::unix::fs::symlink("/dev/full", &path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error.into()),
            _ => {}
        }
        let write = || File::options().write(true).open(&path)?.write_all(&[0; 100]);
        write().map_err(|error: std::io::Error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

fn train(world: &World, fault: &Fault) -> Outcome {
    let root = usize::from(fault.is("other root"));
    world.named("weights").broadcast(vec![world.rank() as f32; 16], root)?.wait()?;
    let steps = if fault.is("fewer batches") { STEP } else { STEPS };
    for step in 0..steps {
        world.mark_iteration(step);
        if step == STEP {
            fault.strike()?;
        }
        reduce(world, fault)?;
        if step == STEP {
            evaluate(world, fault)?;
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    let fault = Fault::from_environment().expect("the variables of a launcher");
    if fault.is("exit before init") {
        return ExitCode::from(4);
    }
    farandole::run(|world| train(world, &fault))
}
