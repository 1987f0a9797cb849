//! Gradients leave during backward: two real ranks, and what their recorders have seen.

#![allow(clippy::print_stdout, reason = "what a rank says is how it is heard")]

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, backend_extension};
use burn::module::{Module, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Distribution, Tensor};
use farandole::burn::{Outbox, Wire, broadcast_parameters};
use farandole::{Event, Phase, Recorder};
use farandole_testing::wait_until;
use farandole_train::tap::tap;

/// Set in the copies of this program that are ranks.
const ROLE: &str = "FARANDOLE_TEST_ROLE";

/// The longest that a rank may take, on a loaded machine.
const DEADLINE: Duration = Duration::from_secs(90);

const LAYERS: usize = 6;
const WIDTH: usize = 192;

#[test]
fn a_tapped_gradient_is_submitted_while_backward_is_at_earlier_layers() {
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
    let have_ended = || waiters.iter().all(thread::JoinHandle::is_finished);
    wait_until("the end of both ranks", DEADLINE, have_ended);
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

    /// `gate` is on the way back from the second half of the layers to the first.
    fn forward(&self, mut x: Tensor<2>, outbox: Option<&Outbox>, gate: Option<Gate>) -> Tensor<2> {
        for (layer, weight) in self.weights.iter().enumerate() {
            if let Some(gate) = gate.clone().filter(|_| layer == LAYERS / 2) {
                x = Tensor::from_dispatch(Dispatch::gate(x.into_dispatch(), gate));
            }
            let value = match outbox {
                Some(outbox) => tap(weight.val(), weight.id, &x, outbox),
                None => weight.val(),
            };
            x = x.matmul(value);
        }
        x
    }
}

/// What backward waits for before it goes on to earlier layers.
#[derive(Clone)]
pub struct Gate(Arc<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gate")
    }
}

/// The operation, for each backend that has it.
#[backend_extension(Autodiff, Flex)]
pub trait GateBackend: Backend {
    /// The same tensor. Backward stops here until the gate opens.
    fn gate(tensor: FloatTensor<Self>, gate: Gate) -> FloatTensor<Self>;
}

impl GateBackend for Flex {
    fn gate(tensor: FloatTensor<Self>, _: Gate) -> FloatTensor<Self> {
        tensor
    }
}

impl<B: GateBackend, C: CheckpointStrategy> GateBackend for Autodiff<B, C> {
    fn gate(tensor: FloatTensor<Self>, gate: Gate) -> FloatTensor<Self> {
        match GateStep.prepare::<C>([tensor.node()]).compute_bound().stateful() {
            OpsKind::Tracked(step) => step.finish(gate, tensor.primitive().clone()),
            OpsKind::UnTracked(step) => step.finish(tensor.primitive().clone()),
        }
    }
}

/// The step on the tape.
#[derive(Debug)]
struct GateStep;

impl<B: Backend> Backward<B, 1> for GateStep {
    type State = Gate;

    fn backward(self, ops: Ops<Gate, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        (ops.state.0)();
        unary::<B, _>(ops.parents, ops.node, gradients, |gradient| gradient);
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
    let loss = |outbox, gate| chain.forward(inputs.clone(), outbox, gate).powf_scalar(2.0).mean();

    // A forward pass that is looked at and never differentiated. Burn keeps what belongs to it for a while, so the
    // gradients of its step leave with `collect`; they are right all the same, and the next step is one like others.
    drop(loss(Some(&outbox), None));
    let gradients = GradientsParams::from_grads(loss(Some(&outbox), None).backward(), &chain);
    let looked_at = outbox.collect(&chain, gradients).expect("ranks average");

    // Backward goes on to the first half of the layers when the gradients of the second have been submitted. It would
    // hang if they left later.
    let recorder = Arc::clone(world.recorder());
    let gate = Gate(Arc::new(move || {
        let have_left = || submitted(&recorder).len() == LAYERS - LAYERS / 2;
        wait_until("the gradients of later layers to leave", DEADLINE, have_left);
    }));
    let tapped = loss(Some(&outbox), Some(gate));
    let backward = world.recorder().phase(Phase::Backward);
    let gradients = tapped.backward();
    drop(backward);
    let gradients = GradientsParams::from_grads(gradients, &chain);
    assert_eq!(gradients.len(), 0, "tapped gradients are with the outbox alone");
    let averages = outbox.collect(&chain, gradients).expect("ranks average");

    // The same numbers as without taps.
    let gradients = GradientsParams::from_grads(loss(None, None).backward(), &chain);
    let plain = outbox.collect(&chain, gradients).expect("ranks average");
    for weight in &chain.weights {
        let all = [&averages, &looked_at, &plain];
        let [tapped, looked_at, plain] =
            all.map(|averages| averages.get::<2>(weight.id).expect("an average").to_data());
        tapped.assert_eq(&plain, true);
        looked_at.assert_eq(&plain, true);
    }
    let names = submitted(world.recorder());
    let expected: Vec<String> = (0..LAYERS).rev().map(|layer| format!("gradient.1/weights.{layer}")).collect();
    assert_eq!(names, expected, "the last layer's gradient leaves first");
    println!("role done");
}

/// What was submitted during backward so far.
fn submitted(recorder: &Recorder) -> Vec<String> {
    let trace = recorder.snapshot("test");
    let (mut is_backward, mut names) = (false, Vec::new());
    for record in &trace.records {
        match record.event {
            Event::PhaseBegin { phase: Phase::Backward, .. } => is_backward = true,
            Event::PhaseEnd { phase: Phase::Backward, .. } => is_backward = false,
            Event::Submitted { name, .. } if is_backward => names.push(trace.text(name).to_owned()),
            _ => {}
        }
    }
    names
}
