//! From a process to a rank of its job: [`Setup`], and the steps by which it makes a [`World`].
//!
//! What a process can get wrong by itself (settings that cannot be read) is found before it meets anybody. Then it
//! meets the other ranks at the rendezvous, joins the communicator of direct calls, starts recording, agrees on the
//! measured table, and starts the engine of named requests. From the rendezvous on, a rank that is lost ends the
//! attempt with its cause.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hasher as _};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farandole_cluster::blocks::{BlockContact, BlockListener};
use farandole_cluster::environment::apart_on_one_machine;
use farandole_cluster::launch::gpus::VisibleGpus;
use farandole_cluster::rendezvous::silence_from_lookup;
use farandole_cluster::{Environment, Rendezvous, RendezvousAccess};
use farandole_device::nccl::{SharedLibrary, Version};
use farandole_engine::config::{DevicePlaneChoice, SettingValue as _};
use farandole_engine::connector::ProcessConnector;
use farandole_engine::plane::Plane;
use farandole_engine::tables::Shelf;
use farandole_engine::{
    AbortHandle, Communicator, Config, DirectSettings, Engine, Error as EngineError, Hooks, OnStall, OpenDevice, Stacks,
};
use farandole_plan::{Rank, ReduceOp, Topology};
use farandole_settings as settings;
use farandole_trace::event::RecoveryStage;
use farandole_trace::live::Sampler;
use farandole_trace::{Event, Identity, Recorder};
use farandole_transport::connect::Options;
use farandole_transport::contact::Contact;
use farandole_transport::listen::Listener;
use farandole_transport::{Countdown, ProcessId, Protection};

use crate::accelerators::{devices_of, nccl_of, nccl_refuses, prefers_nccl};
use crate::blocks::{self, BlockShare};
use crate::bond::Bond;
use crate::elastic::{BeforeJoining, Member, Sources, stream_contact};
use crate::error::{Error, Result};
use crate::introduction::{self, Introduced, Introduction};
use crate::measured;
use crate::panic_words;
use crate::records::{Place, Records, Wishes};
use crate::world::World;

/// How a world is set up, where the defaults do not do: a builder, whose methods each replace one default.
///
/// ```
/// use std::time::Duration;
///
/// let world = farandole::Setup::new().patience(Duration::from_secs(60)).process_sets(vec![vec![0]]).init()?;
/// assert_eq!(world.process_sets().len(), 1);
/// # Ok::<(), farandole::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "a setup does nothing until `init`"]
pub struct Setup {
    environment: Option<Environment>,
    config: Option<Config>,
    direct: DirectSettings,
    options: Options,
    wire_protection: Option<Protection>,
    address: Option<IpAddr>,
    patience: Duration,
    tables: Option<Shelf>,
    stacks: Option<Stacks>,
    on_stall: Option<OnStall>,
    process_sets: Vec<Vec<usize>>,
    planes: Vec<Arc<dyn Plane>>,
    devices: Option<OpenDevice>,
    nccl: Option<SharedLibrary>,
    nccl_files: Vec<PathBuf>,
    before_joining: Option<BeforeJoining>,
}

impl fmt::Debug for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setup").field("config", &self.config).field("patience", &self.patience).finish_non_exhaustive()
    }
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            environment: None,
            config: None,
            direct: DirectSettings::default(),
            options: Options::default(),
            wire_protection: None,
            address: None,
            patience: start_timeout(),
            tables: None,
            stacks: None,
            on_stall: None,
            process_sets: Vec::new(),
            planes: Vec::new(),
            devices: None,
            nccl: None,
            nccl_files: Vec::new(),
            before_joining: None,
        }
    }
}

/// A value that is no number of seconds is left to the engine's configuration, which complains about it.
fn start_timeout() -> Duration {
    let setting = settings::START_TIMEOUT;
    setting.read(|variable| std::env::var(variable).ok()).unwrap_or_else(|_| setting.default_value())
}

impl Setup {
    /// All defaults.
    pub fn new() -> Setup {
        Setup::default()
    }

    /// Which rank of which job this process is; what the environment says by default.
    pub fn environment(self, environment: Environment) -> Setup {
        Setup { environment: Some(environment), ..self }
    }

    /// Settings of the engine; from the environment by default.
    pub fn config(self, config: Config) -> Setup {
        Setup { config: Some(config), ..self }
    }

    /// Settings of direct collectives. Without a deadline among them, the one of `config` counts.
    pub fn direct(self, direct: DirectSettings) -> Setup {
        Setup { direct, ..self }
    }

    /// How ranks are connected.
    pub fn options(self, options: Options) -> Setup {
        Setup { options, ..self }
    }

    /// How tensors are protected between hosts, the same on all ranks; what `config` says by default, and `options`
    /// where that says nothing.
    pub fn wire_protection(self, wire_protection: Protection) -> Setup {
        Setup { wire_protection: Some(wire_protection), ..self }
    }

    /// The address at which peers on other hosts reach this rank; by default what the environment says, or the one on
    /// the way to the rendezvous, or loopback where all ranks are on one host.
    pub fn address(self, address: IpAddr) -> Setup {
        Setup { address: Some(address), ..self }
    }

    /// How long the ranks have to find each other: what `FARANDOLE_START_TIMEOUT` (or Horovod's variable) says in
    /// seconds, or 30 seconds. Time in which this process is stopped does not count.
    pub fn patience(self, patience: Duration) -> Setup {
        Setup { patience, ..self }
    }

    /// Where rank 0 looks for a measured table; where the environment says, by default.
    pub fn tables(self, tables: Shelf) -> Setup {
        Setup { tables: Some(tables), ..self }
    }

    /// What the program's interpreter is asked by, where it has one, when other ranks wait for this one.
    pub fn stacks(self, stacks: Stacks) -> Setup {
        Setup { stacks: Some(stacks), ..self }
    }

    /// Is given the reports of stalls; they go to standard error by default.
    pub fn on_stall(self, on_stall: OnStall) -> Setup {
        Setup { on_stall: Some(on_stall), ..self }
    }

    /// Process sets that are made at once, by their world ranks; [`World::process_sets`] has them. The same on all
    /// ranks.
    pub fn process_sets(self, process_sets: Vec<Vec<usize>>) -> Setup {
        Setup { process_sets, ..self }
    }

    /// Planes for named allreduces besides the built-in ones; the first whose offer carries a bucket takes it. The same
    /// on all ranks, in the same order. docs/planes.md shows how one is written.
    pub fn planes(self, planes: Vec<Arc<dyn Plane>>) -> Setup {
        Setup { planes, ..self }
    }

    /// Opens the devices in whose memory allreduces are carried out, by their numbers in this process. NVIDIA's by
    /// default, where there are any and `FARANDOLE_PLANE` does not say otherwise. Used if all ranks have it.
    pub fn devices(self, devices: OpenDevice) -> Setup {
        Setup { devices: Some(devices), ..self }
    }

    /// The NCCL by which collectives in device memory are carried out where `FARANDOLE_PLANE` says so. NVIDIA's by
    /// default, where there is one. Used if all ranks have the same version.
    pub fn nccl(self, nccl: SharedLibrary) -> Setup {
        Setup { nccl: Some(nccl), ..self }
    }

    /// Files in which NCCL may be, where neither the process nor the dynamic linker knows it.
    pub fn nccl_files(self, nccl_files: Vec<PathBuf>) -> Setup {
        Setup { nccl_files, ..self }
    }

    /// Called in a process that joins an elastic job whose members stream their states, before it becomes a candidate.
    /// [`Training`](crate::elastic::Training) does without it.
    pub fn before_joining(self, before_joining: BeforeJoining) -> Setup {
        Setup { before_joining: Some(before_joining), ..self }
    }

    /// Makes this process a rank of its job.
    pub fn init(self) -> Result<World> {
        let before_joining = self.before_joining.clone();
        self.init_after(move |sources| before_joining.iter().for_each(|get_state| get_state.call(sources.clone())))
    }

    /// The same. A process that joins a job whose members stream their states calls `get_state` before it becomes a
    /// candidate, and no other one does.
    pub(crate) fn init_after(self, mut get_state: impl FnMut(Sources)) -> Result<World> {
        settings::log_to_stderr();
        panic_words::note();
        let environment = self.environment.clone().map_or_else(Environment::from_process, Ok)?;
        // What this process can get wrong by itself comes first: nobody has met anybody, and it may try again.
        let settled = self.settle()?;
        environment.log();
        environment.warn_of_settings();
        let devices = self.devices.clone().or_else(|| devices_of(&settled.config));
        let nccl = self.nccl.clone().map_or_else(|| nccl_of(&settled.config, &self.nccl_files), Ok);
        let mut broken_since = None;
        loop {
            let has = has(&devices, &nccl);
            let peers = Peers::meet(environment.clone(), &settled, has, (self.address, self.patience), &mut get_state)?;
            let bond = Arc::clone(&peers.bond);
            match self.clone().begin(peers, settled.clone(), devices.clone(), nccl.clone()) {
                Err(error) if bond.meets_again(&error, &mut broken_since, self.patience) => {
                    log::debug!("continuing with the next generation: {error}");
                }
                begun => return begun,
            }
        }
    }

    /// Connects the ranks that have met, and starts everything.
    fn begin(
        self,
        mut peers: Peers,
        settled: Settled,
        devices: Option<OpenDevice>,
        nccl: farandole_device::Result<SharedLibrary>,
    ) -> Result<World> {
        let Settled { mut config, direct, options, .. } = settled;
        if let (DevicePlaneChoice::Nccl, Err(why)) = (config.plane, &peers.nccl) {
            let (name, value) = (settings::PLANE.name, config.plane.show());
            return Err(Error::Settings(format!("{name}={value} needs NCCL on all ranks, but {why}")));
        }
        let lost = |error: Error| peers.bond.with_verdict(error);
        let communicator = Communicator::join(&mut peers.connector(options, 0), direct, self.patience);
        let mut communicator = communicator.map_err(|error| lost(error.into()))?;
        peers.end_on_failure(communicator.abort_handle());
        let topology = peers.topology();
        let records = peers.start_records(&topology, &config);
        communicator.record_with(records.recorder());
        let shelf = self.tables.unwrap_or_else(Shelf::from_env);
        let table = measured::adopt(&mut communicator, &shelf).map_err(lost)?;
        let (recorder, stacks, on_stall) = (Some(Arc::clone(records.recorder())), self.stacks, self.on_stall);
        let devices = devices.filter(|_| peers.all_have_devices);
        if devices.is_some() && config.ranks_per_gpu == 0 {
            config.ranks_per_gpu = ranks_per_gpu(topology.local_size(peers.environment.rank));
        }
        let mut nccl = nccl.ok().filter(|_| peers.nccl.is_ok());
        // All ranks come to this or none does: they have said the same.
        let may_do_without = matches!(config.plane, DevicePlaneChoice::Auto | DevicePlaneChoice::PreferNccl);
        if nccl.is_some() && devices.is_some() && may_do_without {
            let mut refused = [u8::from(nccl_refuses(config.ranks_per_gpu, |name| std::env::var_os(name).is_some()))];
            communicator.allreduce(&mut refused, ReduceOp::Max).map_err(|error| lost(error.into()))?;
            nccl = nccl.filter(|_| refused == [0]);
        }
        let hooks = Hooks { table, recorder, stacks, on_stall, planes: self.planes, devices, nccl };
        let engine = Engine::start_with(peers.connector(options, 1), config, hooks);
        let engine = engine.map_err(|error| lost(error.into()))?;
        peers.end_on_failure(engine.abort_handle());
        peers.bond.note_connected();
        if peers.generation > 0 {
            records.recorder().mark(Event::Recovery { stage: RecoveryStage::Connected });
        }
        communicator.report_stalls_with(&engine);
        let (rank, share) = (peers.environment.rank, peers.share_blocks());
        let processes = peers.processes_of_host();
        let Peers { bond, access, .. } = peers;
        let mut world = World::new(rank, topology, communicator, engine, records, bond, access);
        world.keep_share(share);
        world.keep_processes(processes);
        self.process_sets.iter().try_for_each(|ranks| world.add_process_set(ranks).map(drop))?;
        world.recorder().begin_counting();
        Ok(world)
    }

    /// All settings, from this setup and from the environment.
    fn settle(&self) -> Result<Settled> {
        let lookup = |variable| std::env::var(variable).ok();
        let mut config = self.config.clone().map_or_else(|| Config::from_lookup(lookup), Ok)?;
        if self.config.is_none() && prefers_nccl(lookup) {
            config.plane = DevicePlaneChoice::PreferNccl;
        }
        // A timeout that the user has set counts for direct calls as for named requests.
        let mut direct = self.direct;
        if direct.deadline.is_zero() {
            direct.deadline = config.deadline;
        }
        let options = match self.wire_protection.unwrap_or(config.wire_protection) {
            Protection::Off if self.wire_protection.is_none() => self.options,
            protection => self.options.with_protection(protection),
        };
        config.wire_protection = options.protection();
        let shares: Option<bool> =
            settings::DATA_PEERS.read(lookup).map_err(|wrong| EngineError::Setting(wrong.to_string().into()))?;
        let shares_blocks = shares != Some(false);
        Ok(Settled { config, direct, options, shares_blocks, silence: silence_from_lookup(lookup)? })
    }
}

/// Whether a rank can open devices, and the version of its NCCL or why it has none.
type Has = (bool, std::result::Result<Version, String>);

/// One line if ranks of one machine count as different hosts, as in containers with networks of their own.
fn tell_of_ranks_apart<'a>(contacts: &'a [Contact]) {
    let mut first_of_machine = BTreeMap::new();
    let apart = |(rank, contact): (usize, &'a Contact)| {
        let boot = contact.host.split('/').nth(1)?;
        let (first, host) = *first_of_machine.entry(boot).or_insert((rank, contact.host.as_str()));
        Some((first, rank, apart_on_one_machine(host, &contact.host)?))
    };
    if let Some((one, other, why)) = contacts.iter().enumerate().find_map(apart) {
        log::info!(
            "ranks {one} and {other}: on one machine with different {why}; data between them goes over TCP, as between \
             hosts"
        );
    }
}

fn has(devices: &Option<OpenDevice>, nccl: &farandole_device::Result<SharedLibrary>) -> Has {
    (devices.is_some(), nccl.as_ref().map(|library| library.version()).map_err(ToString::to_string))
}

/// The settings that hold.
#[derive(Clone)]
struct Settled {
    config: Config,
    direct: DirectSettings,
    options: Options,
    /// Whether blocks of remote objects are got from other ranks.
    shares_blocks: bool,
    /// How long a rank may be silent before it is missed; `None`: for ever.
    silence: Option<Duration>,
}

/// The ranks of this job after they have met.
struct Peers {
    /// Hears of the others' end.
    bond: Arc<Bond>,
    /// Counts the generations of an elastic job; connections of one are not taken for those of another.
    generation: u64,
    environment: Environment,
    /// Where each rank is reached, in rank order.
    contacts: Vec<Contact>,
    /// Whether every rank can open devices.
    all_have_devices: bool,
    /// Whether all ranks have the same NCCL, or why not.
    nccl: std::result::Result<(), String>,
    listener: Arc<Listener>,
    /// Where this rank gives blocks of data sets, and where the others do.
    block_listener: Option<BlockListener>,
    blocks: Vec<Vec<u8>>,
    /// Dropped last: rank 0 may host the rendezvous for all.
    access: RendezvousAccess,
}

impl Peers {
    /// Meets the other ranks at the rendezvous. All of it takes at most `patience` of awake time.
    fn meet(
        environment: Environment,
        settled: &Settled,
        (has_devices, nccl): Has,
        (address, patience): (Option<IpAddr>, Duration),
        get_state: &mut dyn FnMut(Sources),
    ) -> Result<Peers> {
        let countdown = Countdown::new(patience);
        let access = environment.open(Instant::now() + countdown.left())?;
        let listen_at = match address {
            Some(address) => vec![SocketAddr::new(address, 0)],
            None => access.listen_at.clone(),
        };
        let shares_blocks = settled.shares_blocks && (environment.size > 1 || environment.elastic.is_some());
        let block_listener = shares_blocks.then(|| blocks::reserve(&environment.host, &listen_at)).flatten();
        let listener = Arc::new(Listener::bind_for(access.job, listen_at, &access.key)?);
        let mut own = Introduction::new(listener.contact(environment.host.clone()), &settled.config, has_devices, nccl);
        own.blocks = block_listener.as_ref().map(|listener| listener.contact().to_vec()).unwrap_or_default();
        let mut environment = environment;
        let (generation, blobs, bond) = match environment.elastic {
            Some(elastic) => {
                own.stream = stream_contact(&access, &environment.host, elastic.number);
                let payload = own.encode();
                let member = Member::get(&elastic, &access, &environment.host, settled.silence, &payload)?;
                if let Some(sources) = member.take_sources() {
                    get_state(sources);
                }
                let deadline = Instant::now() + member.timeout();
                let (generation, losses) = member.next_generation(&payload, deadline)?;
                environment.rank = member.rank(&generation);
                environment.size = generation.members.len();
                let payloads = generation.members.iter().map(|one| one.payload.to_vec()).collect();
                let members = generation.members.iter().map(|member| member.id.0).collect();
                (generation.number, payloads, Bond::Elastic(member, losses, members))
            }
            None => {
                let rendezvous = access.rendezvous.clone().map(|way| way.with_silence(settled.silence));
                let (blobs, bond) = meet_once(rendezvous.as_ref(), environment.rank, own, countdown.left())?;
                (0, blobs, bond)
            }
        };
        let Introduced { contacts, blocks, all_have_devices, nccl } = introduction::read_all(&blobs)?;
        if environment.rank == Rank(0) {
            tell_of_ranks_apart(&contacts);
        }
        let interrupted = Arc::downgrade(&listener);
        bond.on_loss(move |rank, class, cause| {
            if let Some(listener) = interrupted.upgrade() {
                listener.interrupt(rank, class, cause);
            }
        });
        let bond = Arc::new(bond);
        Ok(Peers {
            bond,
            generation,
            environment,
            contacts,
            all_have_devices,
            nccl,
            listener,
            block_listener,
            blocks,
            access,
        })
    }

    /// Connects the ranks: for direct calls in the first epoch of a generation, for the engine in the second.
    fn connector(&self, options: Options, epoch: u32) -> ProcessConnector {
        let epoch = (self.generation as u32).wrapping_mul(2).wrapping_add(epoch);
        ProcessConnector {
            rank: self.environment.rank,
            contacts: self.contacts.clone(),
            listener: Arc::clone(&self.listener),
            options,
            epoch,
        }
    }

    /// Lets the failure of a rank end collectives.
    fn end_on_failure(&self, abort: AbortHandle) {
        let abort = Arc::new(abort);
        self.bond.on_loss(move |rank, class, cause| abort.abort(rank, class, cause));
    }

    /// Lets caches of remote objects get blocks from other ranks.
    fn share_blocks(&mut self) -> Option<BlockShare> {
        let listener = self.block_listener.take()?;
        let places = std::mem::take(&mut self.blocks).into_iter().zip(&self.contacts);
        let contacts = places.map(|(place, contact)| BlockContact { host: contact.host.clone(), place }).collect();
        Some(BlockShare::join(self.environment.rank.index(), contacts, listener, &self.access))
    }

    /// The process of each rank on this host; `None` for ranks of other hosts.
    fn processes_of_host(&self) -> Vec<Option<ProcessId>> {
        let host = &self.contacts[self.environment.rank.index()].host;
        self.contacts.iter().map(|contact| (contact.host == *host).then_some(contact.process)).collect()
    }

    fn topology(&self) -> Topology {
        let hosts: Vec<&str> = self.contacts.iter().map(|contact| contact.host.as_str()).collect();
        Topology::from_host_names(&hosts)
    }

    /// Starts recording what this rank does, and showing it to live views.
    fn start_records(&self, topology: &Topology, config: &Config) -> Records {
        let Environment { rank, host, .. } = &self.environment;
        let entrance = self.bond.entrance(&self.access.job.to_string());
        let mut settings = config.shown();
        settings.extend(entrance.iter().flat_map(|entrance| entrance.view.settings()));
        let identity = Identity {
            rank: rank.0,
            size: self.contacts.len() as u32,
            host: host.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            settings,
        };
        let place = Place {
            job: number_of_job(&self.contacts),
            local_size: topology.local_size(*rank),
            local_rank: topology.local_rank(*rank),
        };
        let wishes = Wishes::from_lookup(|variable| std::env::var(variable).ok());
        let records = Records::start(Recorder::new(identity, config.recorder_records as usize), &wishes, place);
        if let Some(entrance) = &entrance {
            records.note_entrance(entrance);
        }
        if let Some(lifeline) = self.bond.lifeline() {
            let mut sampler = Sampler::new(Arc::clone(records.recorder()));
            lifeline.observe(move || sampler.sample().encode());
        }
        records
    }
}

/// How many of a host's ranks have the same GPU if they share them evenly; zero without a GPU. For ranks that something
/// else than `farandole run` has started, which counts what all of them may see.
fn ranks_per_gpu(local_size: usize) -> u64 {
    match VisibleGpus::of_the_kernel(|variable| std::env::var_os(variable)).count() {
        0 => 0,
        gpus => local_size.div_ceil(gpus) as u64,
    }
}

/// Introduces this rank to all others and gets their introductions; and keeps the connection, to hear of the others'
/// end.
fn meet_once(
    way: Option<&Rendezvous>,
    rank: Rank,
    own: Introduction,
    patience: Duration,
) -> Result<(Vec<Vec<u8>>, Bond)> {
    let Some(rendezvous) = way else { return Ok((vec![own.encode()], Bond::Alone)) };
    let (blobs, lifeline) = rendezvous.join(rank, &own.encode(), Instant::now() + patience)?;
    Ok((blobs, Bond::Job(lifeline)))
}

/// A number that all ranks of this job have and other jobs have not: it is made of where they are reached, which is
/// different each time.
fn number_of_job(contacts: &[Contact]) -> u64 {
    let mut hasher = DefaultHasher::new();
    contacts.iter().for_each(|contact| hasher.write(&contact.encode()));
    hasher.finish()
}

/// Makes this process a rank of the job that it was started in; without a launcher, a world of one.
///
/// A process may leave its world and call this again, as often as it likes: when all ranks have done so they are a
/// world again. Whoever comes first waits for the others. In an elastic job they are those that are left, and those
/// that have come ([`crate::elastic`]).
pub fn init() -> Result<World> {
    Setup::default().init()
}
