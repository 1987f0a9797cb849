//! How fast named requests are: two ranks as threads over shared memory.
//!
//! Prints the time of a blocking allreduce of four bytes and of a thousand allreduces of one kibibyte that are
//! submitted at once and then waited for. Run with `cargo run --release -p farandole-engine --example named_speed`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farandole_engine::connector::{Medium, ThreadWorld};
use farandole_engine::{Config, Engine, Submission, wait_all};
use farandole_plan::{Collective, Dtype, Rank, ReduceOp, Request};
use farandole_tensor::Region;

fn request(name: &Arc<str>, elems: u64) -> Request {
    Request::new(Arc::clone(name), Collective::allreduce(ReduceOp::Sum), Dtype::F32, [elems])
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn small(engine: &Engine, rounds: usize) -> Duration {
    let name: Arc<str> = "small".into();
    let mut region = Region::from_vec(vec![1f32]);
    let mut times = Vec::new();
    for _ in 0..rounds {
        let begun = Instant::now();
        region =
            engine.run(Submission::new(request(&name, 1), region)).expect("it runs").into_result().expect("a result");
        times.push(begun.elapsed());
    }
    median(times)
}

fn many(engine: &Engine, rounds: usize) -> [Duration; 2] {
    let names: Vec<Arc<str>> = (0..1000).map(|i| format!("layer.{i}.weight").into()).collect();
    let mut regions: Vec<Region> = names.iter().map(|_| Region::from_vec(vec![1f32; 256])).collect();
    let (mut submitting, mut all) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let submissions: Vec<Submission> =
            names.iter().zip(regions).map(|(name, region)| Submission::new(request(name, 256), region)).collect();
        let begun = Instant::now();
        let tickets: Vec<_> =
            submissions.into_iter().map(|submission| engine.submit(submission).expect("it fits")).collect();
        submitting.push(begun.elapsed());
        let outcomes = wait_all(tickets);
        all.push(begun.elapsed());
        regions =
            outcomes.into_iter().map(|outcome| outcome.expect("it runs").into_result().expect("a result")).collect();
    }
    [median(submitting), median(all)]
}

fn main() {
    let thread_world = ThreadWorld::new(2, Medium::Windows);
    let ranks: Vec<_> = (0..2u32)
        .map(|rank| {
            let connector = thread_world.enter(Rank(rank));
            std::thread::spawn(move || {
                let engine = Engine::start(connector, Config::from_env().expect("settings")).expect("two ranks");
                (small(&engine, 5000), many(&engine, 300))
            })
        })
        .collect();
    for (rank, thread) in ranks.into_iter().enumerate() {
        let (small, [submitting, all]) = thread.join().expect("no panic");
        eprintln!("rank {rank}: 4 bytes {small:?}; 1000 x 1 KiB: submitted in {submitting:?}, done in {all:?}");
    }
}
