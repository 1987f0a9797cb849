//! Gradients leave during backward: two real ranks, and what their recorders have seen.

#![allow(clippy::print_stdout, reason = "what a rank says is how it is heard")]

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use burn::module::{Module, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Distribution, Tensor};
use farandole::burn::{Outbox, Wire, broadcast_parameters};
use farandole::{Event, Phase};
use farandole_train::tap::tap;

/// Set in the copies of this program that are ranks.
const ROLE: &str = "FARANDOLE_TEST_ROLE";

/// The longest that a rank may take, on a loaded machine.
const DEADLINE: Duration = Duration::from_secs(90);

const LAYERS: usize = 6;
const WIDTH: usize = 192;

#[test]
fn a_tapped_gradient_is_submitted_before_backward_has_ended() {
    // Ranks that are started without a launcher find each other as under torchrun: rank 0 hosts the meeting at this
    // port.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port").port();
    let children: Vec<_> = (0..2)
        .map(|rank| {
            Command::new(std::env::current_exe().expect("this program has a path"))
                .args(["--ignored", "--exact", "a_rank_plays_its_role", "--nocapture"])
                .env(ROLE, "overlap")
                .envs([("RANK", rank.to_string()), ("LOCAL_RANK", rank.to_string())])
                .envs([("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")])
                .env("MASTER_PORT", port.to_string())
                .env("RAYON_NUM_THREADS", "1")
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("a rank can be started")
        })
        .collect();
    let waiters: Vec<_> = children.into_iter().map(|child| thread::spawn(move || child.wait_with_output())).collect();
    let started = Instant::now();
    while !waiters.iter().all(thread::JoinHandle::is_finished) {
        assert!(started.elapsed() < DEADLINE, "a rank hangs");
        thread::sleep(Duration::from_millis(5));
    }
    for waiter in waiters {
        let output = waiter.join().expect("a waiter does not panic").expect("a child can be waited for");
        let words = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && words.contains("role done"), "{words}");
    }
}

/// A chain of layers without anything between them.
#[derive(Module, Debug)]
struct Chain {
    weights: Vec<Param<Tensor<2>>>,
}

impl Chain {
    fn new(device: &Device) -> Chain {
        let weight = |_| Tensor::random([WIDTH, WIDTH], Distribution::Normal(0.0, 0.05), device);
        Chain { weights: (0..LAYERS).map(weight).map(Param::from_tensor).collect() }
    }

    fn forward(&self, mut x: Tensor<2>, outbox: Option<&Outbox>) -> Tensor<2> {
        for weight in &self.weights {
            let value = match outbox {
                Some(outbox) => tap(weight.val(), weight.id, &x, outbox),
                None => weight.val(),
            };
            x = x.matmul(value);
        }
        x
    }
}

/// The program of a rank.
#[test]
#[ignore = "role program: other tests start it"]
fn a_rank_plays_its_role() {
    assert!(std::env::var(ROLE).is_ok(), "a test starts this, with a role");
    let mut world = farandole::init().expect("ranks find each other");
    let device = Device::flex().autodiff();
    device.seed(world.rank() as u64);
    let chain = broadcast_parameters(&mut world, Chain::new(&device), 0).expect("ranks agree");
    let outbox = Outbox::new(&world, &chain, Wire::F32, 1).expect("ranks agree");
    let inputs = Tensor::<2>::random([256, WIDTH], Distribution::Normal(0.0, 1.0), &device);
    let loss = |outbox| chain.forward(inputs.clone(), outbox).powf_scalar(2.0).mean();

    // A forward pass that is looked at and never differentiated. Burn keeps what belongs to it for a while, so the
    // gradients of its step leave with `collect`; they are right all the same, and the next step is one like others.
    drop(loss(Some(&outbox)));
    let gradients = GradientsParams::from_grads(loss(Some(&outbox)).backward(), &chain);
    let looked_at = outbox.collect(&chain, gradients).expect("ranks average");

    let tapped = loss(Some(&outbox));
    let backward = world.recorder().phase(Phase::Backward);
    let gradients = tapped.backward();
    drop(backward);
    let gradients = GradientsParams::from_grads(gradients, &chain);
    assert_eq!(gradients.len(), 0, "tapped gradients are with the outbox alone");
    let averages = outbox.collect(&chain, gradients).expect("ranks average");

    // The same numbers as without taps.
    let gradients = GradientsParams::from_grads(loss(None).backward(), &chain);
    let plain = outbox.collect(&chain, gradients).expect("ranks average");
    for weight in &chain.weights {
        let all = [&averages, &looked_at, &plain];
        let [tapped, looked_at, plain] =
            all.map(|averages| averages.get::<2>(weight.id).expect("an average").to_data());
        tapped.assert_eq(&plain, true);
        looked_at.assert_eq(&plain, true);
    }
    check_trace(&world);
    println!("role done");
}

fn check_trace(world: &farandole::World) {
    let trace = world.recorder().snapshot("test");
    let phase = |wanted: fn(&Event) -> bool| trace.records.iter().find(|record| wanted(&record.event));
    let begin =
        phase(|event| matches!(event, Event::PhaseBegin { phase: Phase::Backward, .. })).expect("backward begins");
    let end = phase(|event| matches!(event, Event::PhaseEnd { phase: Phase::Backward, .. })).expect("backward ends");
    let submitted: Vec<(f64, &str)> = trace
        .records
        .iter()
        .filter_map(|record| match record.event {
            Event::Submitted { name, .. } if (begin.time_ns..end.time_ns).contains(&record.time_ns) => {
                let share = (record.time_ns - begin.time_ns) as f64 / (end.time_ns - begin.time_ns) as f64;
                Some((share, trace.text(name)))
            }
            _ => None,
        })
        .collect();
    println!("submitted during backward: {submitted:?}");
    let names: Vec<&str> = submitted.iter().map(|(_, name)| *name).collect();
    let expected: Vec<String> = (0..LAYERS).rev().map(|layer| format!("gradient.1/weights.{layer}")).collect();
    assert_eq!(names, expected, "the last layer's gradient leaves first");
    // Layers are alike, so gradients are ready evenly; the first one would come at the end if taps did not know their
    // layers.
    assert!(submitted[0].0 < 0.6, "the first gradient leaves in the middle of backward: {submitted:?}");
}
