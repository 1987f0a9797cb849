//! Ranks as threads: `ranks(n, transport, |engine| …)` runs the closure once for each rank and collects what it
//! returns.
//!
//! Every run has a hard deadline. A rank that panics fails the test with its own words; a run that hangs ends the test
//! process with a report, because a thread that hangs cannot be stopped.
#![allow(unreachable_pub, clippy::unwrap_used)]

pub mod direct_paths;
pub mod named_strikes;
pub mod pretend_device;
pub mod reference;
pub mod strikes;
pub mod toy_plane;

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use farandole_device::pretend::PretendNccl;
use farandole_engine::connector::{Connector, Medium, ProcessConnector, ThreadWorld};
use farandole_engine::{Communicator, Config, DirectSettings, Engine, Hooks, Submission};
use farandole_plan::{Collective, Dtype, Rank, ReduceOp, Request};
use farandole_tensor::{Element, Region};
use farandole_transport::Key;
use farandole_transport::connect::{Local, Options};
use farandole_transport::listen::Listener;
use toy_plane::ToyPlane;

/// What the ranks talk through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Pipes inside the process.
    Memory,
    /// Unix sockets for control, shared memory for data, as processes of one host do.
    Shm,
    /// TCP over the loopback interface, every rank as if on a host of its own.
    Tcp,
    /// Two hosts, ranks on them in turn: shared memory within, TCP between.
    Hosts,
    /// As `Memory`, with a plane that was added for most allreduces (`toy_plane`).
    Plane,
    /// As `Shm`, with devices that are none (`pretend_device`). Tensors lie there if the test puts them there.
    Device,
    /// As `Hosts`, with such devices.
    DeviceHosts,
    /// As `Hosts`, with such devices and a NCCL that is none.
    Nccl,
}

impl Transport {
    /// Those that every test of collectives runs on.
    pub const ALL: [Transport; 3] = [Transport::Memory, Transport::Shm, Transport::Tcp];
    /// All that there are.
    pub const EVERY: [Transport; 5] =
        [Transport::Memory, Transport::Shm, Transport::Tcp, Transport::Hosts, Transport::Plane];
}

/// Nothing here takes longer unless it hangs.
pub const HARD_DEADLINE: Duration = Duration::from_secs(120);

/// Settings that make a hang show quickly.
pub fn config() -> Config {
    Config {
        deadline: Duration::from_secs(20),
        meet_deadline: Duration::from_secs(20),
        stall_warning: Duration::from_secs(20),
        ..Config::default()
    }
}

/// Runs the closure on `n` ranks with the test settings.
pub fn ranks<R: Send + 'static>(
    n: usize,
    transport: Transport,
    body: impl Fn(Engine) -> R + Send + Sync + 'static,
) -> Vec<R> {
    ranks_with(n, transport, config(), body)
}

/// Runs the closure on `n` ranks.
pub fn ranks_with<R: Send + 'static>(
    n: usize,
    transport: Transport,
    config: Config,
    body: impl Fn(Engine) -> R + Send + Sync + 'static,
) -> Vec<R> {
    let planes = match transport {
        Transport::Plane => ToyPlane::add(),
        _ => vec![],
    };
    let hooks = |rank| match transport {
        Transport::Device | Transport::DeviceHosts => pretend_device::hooks(rank),
        Transport::Nccl => pretend_device::hooks_with_nccl(rank, PretendNccl::default()),
        _ => Hooks { planes: planes.clone(), ..Hooks::default() },
    };
    run_hooked(meetings(n, transport), config, hooks, body)
}

/// Runs the closure on the ranks of these meetings.
pub fn run<R: Send + 'static>(
    meetings: Vec<Box<dyn Connector>>,
    config: Config,
    body: impl Fn(Engine) -> R + Send + Sync + 'static,
) -> Vec<R> {
    run_hooked(meetings, config, |_| Hooks::default(), body)
}

/// As [`run`], with hooks for each rank.
pub fn run_hooked<R: Send + 'static>(
    meetings: Vec<Box<dyn Connector>>,
    config: Config,
    hooks: impl Fn(usize) -> Hooks,
    body: impl Fn(Engine) -> R + Send + Sync + 'static,
) -> Vec<R> {
    let body = Arc::new(body);
    let each = meetings.into_iter().enumerate().map(|(rank, connector)| {
        let (body, config, hooks) = (Arc::clone(&body), config.clone(), hooks(rank));
        move || body(Engine::start_with(Boxed(connector), config, hooks).unwrap())
    });
    as_threads(each)
}

/// Runs the closure on `n` ranks with a communicator for direct calls each.
pub fn direct_ranks<R: Send + 'static>(
    n: usize,
    transport: Transport,
    settings: DirectSettings,
    body: impl Fn(Communicator) -> R + Send + Sync + 'static,
) -> Vec<R> {
    let body = Arc::new(body);
    as_threads(meetings(n, transport).into_iter().map(|connector| {
        let body = Arc::clone(&body);
        move || body(Communicator::join(&mut Boxed(connector), settings, Duration::from_secs(20)).unwrap())
    }))
}

/// Runs every rank on a thread of its own and collects what they return.
fn as_threads<R: Send + 'static>(ranks: impl Iterator<Item = impl FnOnce() -> R + Send + 'static>) -> Vec<R> {
    let (sender, receiver) = mpsc::channel();
    let mut threads = Vec::new();
    for (rank, body) in ranks.enumerate() {
        let sender = sender.clone();
        let work = move || {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            let _ = sender.send((rank, result));
        };
        threads.push(std::thread::Builder::new().name(format!("rank-{rank}")).spawn(work).unwrap());
    }
    let n = threads.len();
    drop(sender);
    let mut results: Vec<Option<R>> = (0..n).map(|_| None).collect();
    for _ in 0..n {
        match receiver.recv_timeout(HARD_DEADLINE) {
            Ok((rank, Ok(result))) => results[rank] = Some(result),
            Ok((rank, Err(panic))) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                panic!("rank {rank} failed: {}", text.unwrap_or_default());
            }
            Err(_) => {
                let missing: Vec<usize> = (0..n).filter(|&rank| results[rank].is_none()).collect();
                eprintln!("ranks {missing:?} of {n} hang");
                std::process::abort();
            }
        }
    }
    for thread in threads {
        thread.join().unwrap();
    }
    results.into_iter().map(Option::unwrap).collect()
}

/// The engine takes meetings by value.
pub struct Boxed(pub Box<dyn Connector>);

impl Connector for Boxed {
    fn rank(&self) -> Rank {
        self.0.rank()
    }
    fn hosts(&self) -> Vec<String> {
        self.0.hosts()
    }
    fn mesh(
        &mut self,
        group: farandole_plan::GroupId,
        ranks: &[Rank],
        waiter: &farandole_transport::Waiter,
        at_most: Duration,
    ) -> farandole_transport::Result<farandole_transport::Mesh> {
        self.0.mesh(group, ranks, waiter, at_most)
    }
}

/// One connector for each of `n` ranks.
pub fn meetings(n: usize, transport: Transport) -> Vec<Box<dyn Connector>> {
    match transport {
        Transport::Memory | Transport::Plane => {
            let thread_world = ThreadWorld::new(n, Medium::Pipes(Default::default()));
            (0..n).map(|rank| Box::new(thread_world.enter(Rank::from(rank))) as Box<dyn Connector>).collect()
        }
        Transport::Shm | Transport::Device => by_contacts(n, |_| "host".to_owned()),
        Transport::Tcp => by_contacts(n, |rank| format!("host-{rank}")),
        Transport::Hosts | Transport::DeviceHosts | Transport::Nccl => {
            by_contacts(n, |rank| format!("host-{}", rank % 2))
        }
    }
}

/// Meetings over sockets, with these host names.
pub fn by_contacts(n: usize, host: impl Fn(usize) -> String) -> Vec<Box<dyn Connector>> {
    let key = Key::from_bytes([7; 32]);
    let anywhere = "127.0.0.1:0".parse().unwrap();
    let listeners: Vec<Arc<Listener>> =
        (0..n).map(|_| Arc::new(Listener::bind(Some(anywhere), &key).unwrap())).collect();
    let contacts: Vec<_> = (0..n).map(|rank| listeners[rank].contact(host(rank))).collect();
    let options = Options { local: Local::Shm, ..Options::default() };
    listeners
        .into_iter()
        .enumerate()
        .map(|(rank, listener)| {
            let (rank, contacts) = (Rank::from(rank), contacts.clone());
            Box::new(ProcessConnector { rank, contacts, listener, options, epoch: 0 }) as Box<dyn Connector>
        })
        .collect()
}

/// A request for the world.
pub fn request(name: &str, collective: Collective, dtype: Dtype, shape: &[u64]) -> Request {
    Request::new(name, collective, dtype, shape)
}

/// An allreduce without factors.
pub fn reduce(op: ReduceOp) -> Collective {
    Collective::Allreduce { op, prescale: 1.0, postscale: 1.0 }
}

/// An allreduce (sum) of a vector.
pub fn sum<T: Element>(name: &str, data: Vec<T>) -> Submission {
    let shape = [data.len() as u64];
    Submission::new(request(name, reduce(ReduceOp::Sum), T::DTYPE, &shape), Region::from_vec(data))
}

/// Submits, waits and gives the vector back.
pub fn result<T: Element>(engine: &Engine, submission: Submission) -> Vec<T> {
    let ticket = engine.submit(submission).unwrap();
    ticket.wait().unwrap().into_result().unwrap().into_vec().unwrap()
}
