//! Named collectives as programs to be struck (`strikes`).
#![allow(unreachable_pub, clippy::unwrap_used)]

use std::sync::Arc;

use farandole_engine::connector::{Connector, Medium};
use farandole_engine::plane::Plane;
use farandole_engine::{Config, Engine, Error, Hooks, Outcome, Result, Submission};
use farandole_plan::{Collective, Dtype, Rank, ReduceOp};
use farandole_tensor::Region;

use super::pretend_device::{self, contents, moved};
use super::strikes::{Run, strike_everywhere};
use crate::harness::{self, reduce, request};

#[derive(Clone, Copy, Debug)]
pub enum What {
    /// An allreduce of this many elements: the size decides which algorithm runs.
    Allreduce(u64),
    Adasum,
    Broadcast,
    Allgather,
    ReduceScatter,
    Alltoall,
    Barrier,
}

impl What {
    fn submission(self, name: &str) -> Submission {
        let op = ReduceOp::Sum;
        let (collective, elems) = match self {
            What::Allreduce(elems) => (reduce(op), elems),
            What::Adasum => (reduce(ReduceOp::Adasum), 100),
            What::Broadcast => (Collective::Broadcast { root: Rank(0) }, 100),
            What::Allgather => (Collective::Allgather, 100),
            What::ReduceScatter => (Collective::ReduceScatter { op, prescale: 1.0, postscale: 1.0 }, 100),
            What::Alltoall => (Collective::Alltoall { splits: None }, 120),
            What::Barrier => {
                return Submission::without_memory(request(name, Collective::Barrier, Dtype::F32, &[]));
            }
        };
        let request = request(name, collective, Dtype::F32, &[elems]);
        Submission::new(request, Region::from_vec(vec![1f32; elems as usize]))
    }

    /// A result, if there is one, is right: all ranks contribute ones.
    fn check(self, outcome: Outcome, size: usize) {
        let each = match self {
            What::Allreduce(_) | What::ReduceScatter => size as f32,
            _ => 1.0,
        };
        if let Some(result) = outcome.into_result() {
            let result = contents(&result);
            assert!(result.chunks_exact(4).all(|x| f32::from_ne_bytes(x.try_into().unwrap()) == each), "{self:?}");
        }
    }
}

/// One collective several times, then whatever it takes for everybody to hear of a fault: something from each rank to
/// each other one, and a point that nobody passes alone.
fn play(run: &Run, engine: &Engine, what: What, times: usize) -> Result<()> {
    for _ in 0..times {
        what.check(engine.run(moved(engine, what.submission("gradient")))?, run.size);
    }
    run.main_part_ends(engine.rank());
    for _ in 0..2 {
        engine.run(What::Alltoall.submission("after"))?;
        engine.run(What::Barrier.submission("all"))?;
    }
    Ok(())
}

/// Strikes a collective that is asked for so many times, on ranks of these worlds.
pub fn strike(what: What, sizes: impl IntoIterator<Item = usize>, medium: Medium, times: usize) -> usize {
    strike_with(what, sizes, medium, times, Vec::new)
}

/// As [`strike`], with planes added.
pub fn strike_with(
    what: What,
    sizes: impl IntoIterator<Item = usize>,
    medium: Medium,
    times: usize,
    planes: fn() -> Vec<Arc<dyn Plane>>,
) -> usize {
    strike_hooked(what, sizes, medium, times, &harness::config(), &|| {
        let planes = planes();
        Box::new(move |_| Hooks { planes: planes.clone(), ..Hooks::default() })
    })
}

/// As [`strike`], with tensors on pretended devices where the engine takes them there, and slices of so many bytes.
pub fn strike_on_devices(
    what: What,
    sizes: impl IntoIterator<Item = usize>,
    medium: Medium,
    slice_bytes: u64,
) -> usize {
    let config = Config { slice_bytes, ..harness::config() };
    strike_hooked(what, sizes, medium, 2, &config, &|| Box::new(pretend_device::hooks))
}

/// Makes the hooks of all ranks of a run.
type MakeHooks<'a> = &'a (dyn Fn() -> Box<dyn Fn(usize) -> Hooks> + Sync);

fn strike_hooked(
    what: What,
    sizes: impl IntoIterator<Item = usize>,
    medium: Medium,
    times: usize,
    config: &Config,
    hooks: MakeHooks<'_>,
) -> usize {
    let program = |run: &Run| -> Vec<Option<Error>> {
        let enter = |rank| Box::new(run.thread_world.enter(Rank::from(rank))) as Box<dyn Connector>;
        let config = Config { deadline: run.deadline, ..config.clone() };
        let meetings = (0..run.size).map(enter).collect();
        harness::run_hooked(meetings, config, hooks(), {
            let run = run.clone();
            move |engine| play(&run, &engine, what, times).err()
        })
    };
    let text = format!("{what:?} over {medium:?}");
    sizes.into_iter().map(|size| strike_everywhere(&text, size, medium, &program)).sum()
}
