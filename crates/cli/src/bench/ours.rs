//! Farandole itself as a contestant: how its ranks are started, and whether they use direct calls or the engine.
//!
//! Each way has connections of its own: the communicator for direct calls, the engine
//! for requests by name. The barrier between iterations is always the communicator's, so that it is no part of what the
//! engine learns.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use farandole_cluster::Environment;
use farandole_cluster::environment::RendezvousPoint;
use farandole_cluster::launch::exec_shim;
use farandole_device::cuda;
use farandole_device::nccl::{self, NcclPlaces};
use farandole_engine::config::DevicePlaneChoice;
use farandole_engine::connector::ProcessConnector;
use farandole_engine::tables::{self, Notice, Shelf};
use farandole_engine::{Communicator, Config, DirectSettings, Engine, Hooks, OpenDevice};
use farandole_plan::algorithm::Algorithm;
use farandole_trace::{Identity, Recorder};
use farandole_transport::connect::{Local, Options};
use farandole_transport::contact::Contact;
use farandole_transport::listen::Listener;

use super::args::{BenchArgs, Transport, parse_algorithm};
use super::contestant::{Contestant, Refusal, serve};
use super::direct::Direct;
use super::named::Named;
use super::on_device::OnDevice;
use super::placement::BenchPlacement;
use super::task::{DevicePlane, Memory, Recording, Task, Through};
use crate::peer::start::{Pin, this_program};

/// How long ranks may take to find each other. They are started at the same moment on one machine.
const MEET_PATIENCE: Duration = Duration::from_secs(60);

/// What a shell does before ranks that share a GPU use NCCL, which refuses that unless it takes them for ranks of
/// different hosts.
pub(crate) const NCCL_SHARES_GPUS: &str = "export NCCL_HOSTID=${NCCL_HOSTID:-farandole-$FARANDOLE_RANK}";

/// What a rank is told on its command line; who it is, it learns from its environment.
#[derive(Args, Debug)]
pub(crate) struct RankArgs {
    /// Where the driver listens.
    #[arg(long)]
    socket: PathBuf,
    /// How ranks are joined.
    #[arg(long, value_enum)]
    transport: Transport,
    /// Algorithm for every allreduce that it fits.
    #[arg(long, value_parser = parse_algorithm)]
    algorithm: Option<Algorithm>,
    /// Number of hosts.
    #[arg(long)]
    hosts: usize,
    /// Words that enter a host.
    #[arg(long)]
    host_prefix: Option<String>,
    /// The address at which each host is reached from the others.
    #[arg(long, value_delimiter = ',')]
    host_addresses: Vec<IpAddr>,
    /// Bind to a core.
    #[arg(long)]
    pin: bool,
}

/// The command that starts the ranks: `farandole run`, behind the exec shim, which makes the launcher end with this
/// process. All ranks start on this host; each enters its own ([`serve_rank`]). They meet at a socket in `directory`,
/// which they find from wherever they run.
pub(crate) fn launcher(args: &BenchArgs, ranks: usize, socket: &Path, directory: &Path) -> Result<Command> {
    let program = this_program()?;
    let mut command = Command::new(&program);
    command.args(["rank", "--"]).arg(&program).env(exec_shim::AGENT, std::process::id().to_string());
    command.args(["run", "--no-prefix", "--np"]).arg(ranks.to_string());
    command.arg("--rendezvous-socket").arg(directory.join("rendezvous"));
    if args.plane == Some(DevicePlane::Nccl) && cuda::list().is_ok_and(|devices| devices.len() < ranks) {
        command.args(["sh", "-c", &format!("{NCCL_SHARES_GPUS}; exec \"$0\" \"$@\"")]);
    }
    command.arg(&program).arg("bench-rank").arg("--socket").arg(socket);
    command.args(["--transport", transport_word(args.transport), "--hosts"]).arg(args.pretended_hosts().to_string());
    if let Some(plane) = args.plane {
        command.env(farandole_settings::PLANE.name, plane.word());
    }
    if let Some(algorithm) = args.algorithm {
        command.args(["--algorithm", algorithm.word()]);
    }
    if args.pin {
        command.arg("--pin");
    }
    if let Some(prefix) = &args.host_prefix {
        let addresses: Vec<String> = args.host_addresses.iter().map(IpAddr::to_string).collect();
        command.args(["--host-prefix", prefix, "--host-addresses", &addresses.join(",")]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null());
    Ok(command)
}

fn transport_word(transport: Transport) -> &'static str {
    match transport {
        Transport::Auto => "auto",
        Transport::Shm => "shm",
        Transport::Unix => "unix",
        Transport::Tcp => "tcp",
    }
}

impl RankArgs {
    fn placement(&self, ranks: usize) -> Result<BenchPlacement> {
        match &self.host_prefix {
            None => Ok(BenchPlacement::here(ranks, self.hosts)),
            Some(prefix) => BenchPlacement::spread(ranks, self.hosts, prefix, &self.host_addresses),
        }
    }
}

/// The whole life of one rank.
pub(crate) fn serve_rank(args: &RankArgs) -> Result<()> {
    let environment = Environment::from_process()?;
    let rank = environment.rank.index();
    let placement = args.placement(environment.size)?;
    // With TCP between all ranks each has a host of its own.
    match args.transport {
        Transport::Tcp => placement.enter(rank, rank)?,
        _ if placement.hosts > 1 || placement.is_spread() => placement.enter(rank, placement.host_of(rank))?,
        _ => {}
    }
    let pin = if args.pin { Pin::Cores } else { Pin::Free };
    pin.bind_this_thread(rank)?;
    let address = placement.address_of(placement.host_of(rank)).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let mut ours = Ours::join(&environment, args.transport, args.algorithm, Some(address))?;
    serve(&mut ours, &args.socket)
}

/// One rank of farandole.
pub(super) struct Ours {
    direct: Direct,
    named: Named,
    on_device: OnDevice,
    way: Way,
    recorder: Arc<Recorder>,
}

/// By which door, and to which memory.
#[derive(Clone, Copy)]
enum Way {
    Direct,
    Named,
    OnDevice,
}

impl Way {
    fn of(task: &Task) -> Way {
        match (task.memory, task.through) {
            (Memory::Cuda, _) => Way::OnDevice,
            (_, Through::Direct) => Way::Direct,
            (_, Through::Engine) => Way::Named,
        }
    }
}

impl Ours {
    /// Meets the other ranks. This one listens at `address`, or where its environment says.
    pub(super) fn join(
        environment: &Environment,
        transport: Transport,
        algorithm: Option<Algorithm>,
        address: Option<IpAddr>,
    ) -> Result<Ours> {
        let settings = DirectSettings { algorithm, ..DirectSettings::default() };
        let mut contacts = meet(environment, transport, address)?;
        let mut communicator = Communicator::join(&mut contacts, settings, MEET_PATIENCE)?;
        let config = Config::from_env()?;
        let (rank, size, host) = (environment.rank.0, contacts.contacts.len() as u32, environment.host.clone());
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let identity = Identity { rank, size, host, version, settings: config.shown() };
        let recorder = Recorder::new(identity, config.recorder_records as usize);
        communicator.record_with(&recorder);
        // As a job does, so that what is measured is what a job gets.
        let (table, notice) = tables::adopt(&mut communicator, &Shelf::from_env())?;
        if let Some(Notice::Warning(text)) = notice {
            eprintln!("farandole: {text}");
        }
        // Opened only if tensors lie there. All ranks are on this machine.
        let devices = cuda::is_likely().then(|| Arc::new(cuda::open) as OpenDevice);
        let wants_nccl = config.plane == DevicePlaneChoice::Nccl;
        let nccl =
            if wants_nccl { Some(nccl::open(&NcclPlaces { chosen: nccl_file(), others: Vec::new() })?) } else { None };
        let hooks = Hooks { table, recorder: Some(Arc::clone(&recorder)), devices, nccl, ..Hooks::default() };
        let engine = Engine::start_with(contacts, config, hooks)?;
        let (direct, named) = (Direct::new(communicator), Named::new(engine));
        Ok(Ours { direct, named, on_device: OnDevice::default(), way: Way::Direct, recorder })
    }
}

impl Ours {
    /// What direct calls go through.
    pub(super) fn communicator(&mut self) -> &mut Communicator {
        self.direct.communicator()
    }
}

impl Contestant for Ours {
    fn product(&self) -> String {
        let version = env!("CARGO_PKG_VERSION");
        match self.direct.table() {
            Some(table) => format!("farandole {version} by {table}"),
            None => format!("farandole {version}"),
        }
    }

    fn rank(&self) -> usize {
        self.direct.rank()
    }

    fn ranks(&self) -> usize {
        self.direct.ranks()
    }

    fn prepare(&mut self, task: &Task) -> Result<(), Refusal> {
        self.way = Way::of(task);
        match task.recording {
            Recording::On => self.recorder.resume(),
            Recording::Off => self.recorder.pause(),
        }
        // To the memory it makes no difference, and the buffers are to stay where they are.
        let task = &Task { recording: Recording::On, ..task.clone() };
        match self.way {
            Way::Direct => self.direct.prepare(task),
            Way::Named => self.named.prepare(task),
            Way::OnDevice => self.on_device.prepare(self.named.engine(), task),
        }
    }

    fn inputs(&mut self) -> Vec<&mut [u8]> {
        match self.way {
            Way::Direct => self.direct.inputs(),
            Way::Named => self.named.inputs(),
            Way::OnDevice => self.on_device.inputs(),
        }
    }

    fn outputs(&mut self) -> Vec<&[u8]> {
        match self.way {
            Way::Direct => self.direct.outputs(),
            Way::Named => self.named.outputs(),
            Way::OnDevice => self.on_device.outputs().unwrap_or_default(),
        }
    }

    fn run(&mut self) -> Result<()> {
        match self.way {
            Way::Direct => self.direct.run(),
            Way::Named => self.named.run(),
            Way::OnDevice => self.on_device.run(self.named.engine()),
        }
    }

    fn barrier(&mut self) -> Result<()> {
        self.direct.barrier()
    }
}

/// The NCCL that the user has named.
fn nccl_file() -> Option<PathBuf> {
    farandole_settings::NCCL_LIBRARY.in_environment().map(PathBuf::from)
}

/// Tells the others where this rank can be reached, and learns where they can.
fn meet(environment: &Environment, transport: Transport, address: Option<IpAddr>) -> Result<ProcessConnector> {
    let deadline = Instant::now() + MEET_PATIENCE;
    let access = environment.open(deadline)?;
    let addresses = address.map_or_else(|| access.listen_at.clone(), |address| vec![SocketAddr::new(address, 0)]);
    let listener = Arc::new(Listener::bind_for(access.job, addresses, &access.key)?);
    let own = listener.contact(environment.host.clone());
    let blobs = match &access.rendezvous {
        Some(rendezvous) => rendezvous.exchange(environment.rank, &own.encode(), deadline)?,
        None => vec![own.encode()],
    };
    let at_launcher = matches!(environment.rendezvous, Some(RendezvousPoint::AtLauncher { .. }));
    if let Some(rendezvous) = access.rendezvous.as_ref().filter(|_| !at_launcher) {
        // Rank 0 hosts the rendezvous: it stays until all have been served.
        rendezvous.exchange(environment.rank, &[], deadline)?;
    }
    let contacts = blobs
        .iter()
        .enumerate()
        .map(|(rank, blob)| Contact::decode(blob).with_context(|| format!("rank {rank} sent no contact")))
        .collect::<Result<_>>()?;
    let local = if transport == Transport::Unix { Local::Stream } else { Local::Shm };
    let options = Options { local, ..Options::default() };
    Ok(ProcessConnector { rank: environment.rank, contacts, listener, options, epoch: 0 })
}
