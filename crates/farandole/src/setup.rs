//! From a process to a rank of its job: [`Setup`], and the steps by which it makes a [`World`].
//!
//! What a process can get wrong by itself (settings that cannot be read) is found before it meets anybody. Then it meets
//! the other ranks at the rendezvous, joins the communicator of direct calls, starts recording, agrees on the measured
//! table, and starts the engine of named requests. From the rendezvous on, a rank that is lost ends the attempt with
//! its cause.

use std::fmt;
use std::hash::{DefaultHasher, Hasher as _};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use farandole_cluster::rendezvous::silence_from_lookup;
use farandole_cluster::{Environment, Lifeline, Rendezvous};
use farandole_engine::connector::ProcessConnector;
use farandole_engine::tables::Shelf;
use farandole_engine::{AbortHandle, Communicator, Config, DirectSettings, Engine, Hooks, OnStall, Stacks};
use farandole_plan::{Rank, Topology};
use farandole_settings as settings;
use farandole_trace::live::Sampler;
use farandole_trace::{Identity, Recorder};
use farandole_transport::connect::Options;
use farandole_transport::contact::Contact;
use farandole_transport::listen::Listener;
use farandole_transport::{Countdown, Protection};

use crate::error::{Error, Result};
use crate::introduction::{self, Introduction};
use crate::measured;
use crate::records::{Place, Records, Wishes};
use crate::world::World;

/// How a world is set up, where the defaults do not do.
#[derive(Clone)]
pub struct Setup {
    /// Settings of the engine; from the environment by default.
    pub config: Option<Config>,
    /// Settings of direct collectives. Without a deadline among them, the one of `config` counts.
    pub direct: DirectSettings,
    /// How ranks are connected.
    pub options: Options,
    /// How tensors are protected between hosts, the same on all ranks; what `config` says by default, and `options`
    /// where that says nothing.
    pub wire_protection: Option<Protection>,
    /// The address at which peers on other hosts reach this rank; by default what the environment says, or the one on
    /// the way to the rendezvous, or loopback where all ranks are on one host.
    pub address: Option<IpAddr>,
    /// How long the ranks have to find each other: what `FARANDOLE_START_TIMEOUT` (or Horovod's variable) says in
    /// seconds, or 30 seconds. Time in which this process is stopped does not count.
    pub patience: Duration,
    /// Where rank 0 looks for a measured table; where the environment says, by default.
    pub tables: Option<Shelf>,
    /// What the program's interpreter is asked by, where it has one, when other ranks wait for this one.
    pub stacks: Option<Stacks>,
    /// Is given the reports of stalls; they go to standard error by default.
    pub on_stall: Option<OnStall>,
    /// Process sets that are made at once, by their world ranks; [`World::process_sets`] has them. The same on all
    /// ranks.
    pub process_sets: Vec<Vec<usize>>,
}

impl fmt::Debug for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setup").field("config", &self.config).field("patience", &self.patience).finish_non_exhaustive()
    }
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
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
        }
    }
}

/// A value that is no number of seconds is left to the engine's configuration, which complains about it.
fn start_timeout() -> Duration {
    let setting = settings::START_TIMEOUT;
    setting.read(|variable| std::env::var(variable).ok()).unwrap_or_else(|_| setting.default_value())
}

impl Setup {
    /// Makes this process a rank of its job.
    pub fn init(self) -> Result<World> {
        settings::log_to_stderr();
        let environment = Environment::from_process()?;
        // What this process can get wrong by itself comes first: nobody has met anybody, and it may try again.
        let mut config = match self.config {
            Some(config) => config,
            None => Config::from_lookup(|variable| std::env::var(variable).ok())?,
        };
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
        let silence = silence_from_lookup(|variable| std::env::var(variable).ok())?;
        environment.log();
        environment.warn_of_settings();
        // In awake time; each step is told what is left.
        let countdown = Countdown::new(self.patience);
        let access = environment.open(Instant::now() + countdown.left())?;
        let listen_at = match self.address {
            Some(address) => vec![SocketAddr::new(address, 0)],
            None => access.listen_at.clone(),
        };
        let listener = Arc::new(Listener::bind_for(access.job, listen_at, &access.key)?);
        let own = listener.contact(environment.host.clone());
        let way = access.rendezvous.clone().map(|way| way.with_silence(silence));
        let own = Introduction::new(own, &config);
        let (contacts, lifeline) = exchange(way.as_ref(), environment.rank, own, Instant::now() + countdown.left())?;
        let meeting = |epoch| ProcessConnector {
            rank: environment.rank,
            contacts: contacts.clone(),
            listener: Arc::clone(&listener),
            options,
            epoch,
        };
        if let Some(lifeline) = &lifeline {
            let listener = Arc::downgrade(&listener);
            lifeline.on_failure(move |verdict| {
                if let Some(listener) = listener.upgrade() {
                    listener.interrupt(verdict.rank, verdict.to_string());
                }
            });
        }
        let lost = |error: Error| with_verdict(error, lifeline.as_ref());
        let mut communicator =
            Communicator::join(&mut meeting(0), direct, self.patience).map_err(|error| lost(error.into()))?;
        heed(lifeline.as_ref(), communicator.abort_handle());
        let wishes = Wishes::from_lookup(|variable| std::env::var(variable).ok());
        let identity = Identity {
            rank: environment.rank.0,
            size: contacts.len() as u32,
            host: environment.host.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            settings: config.shown(),
        };
        let hosts: Vec<&str> = contacts.iter().map(|contact| contact.host.as_str()).collect();
        let topology = Topology::from_host_names(&hosts);
        let place = Place {
            job: number_of_job(&contacts),
            local_size: topology.local_size(environment.rank),
            local_rank: topology.local_rank(environment.rank),
        };
        let recorder = Recorder::new(identity, config.recorder_records as usize);
        let records = Records::start(recorder, &wishes, place);
        let recorder = records.recorder();
        communicator.record_with(recorder);
        if let Some(lifeline) = &lifeline {
            let mut sampler = Sampler::new(Arc::clone(recorder));
            lifeline.observe(move || sampler.sample().encode());
        }
        let shelf = self.tables.unwrap_or_else(Shelf::from_env);
        let table = measured::adopt(&mut communicator, &shelf).map_err(lost)?;
        let (stacks, on_stall) = (self.stacks, self.on_stall);
        let hooks = Hooks { table, recorder: Some(Arc::clone(recorder)), stacks, on_stall, ..Hooks::default() };
        let engine = Engine::start_with(meeting(1), config, hooks).map_err(|error| lost(error.into()))?;
        heed(lifeline.as_ref(), engine.abort_handle());
        communicator.report_stalls_with(&engine);
        let world = World::new(environment.rank, topology, communicator, engine, records, lifeline, access);
        self.process_sets.iter().try_for_each(|ranks| world.add_process_set(ranks).map(drop))?;
        Ok(world)
    }
}

/// Introduces this rank to all others and gets their contacts; and keeps the connection, to hear of the others' end.
fn exchange(
    way: Option<&Rendezvous>,
    rank: Rank,
    own: Introduction,
    deadline: Instant,
) -> Result<(Vec<Contact>, Option<Lifeline>)> {
    let Some(rendezvous) = way else { return Ok((vec![own.contact], None)) };
    let (blobs, lifeline) = rendezvous.join(rank, &own.encode(), deadline)?;
    Ok((introduction::read_all(&blobs)?, Some(lifeline)))
}

/// A number that all ranks of this job have and other jobs have not: it is made of where they are reached, which is
/// different each time.
fn number_of_job(contacts: &[Contact]) -> u64 {
    let mut hasher = DefaultHasher::new();
    contacts.iter().for_each(|contact| hasher.write(&contact.encode()));
    hasher.finish()
}

/// How long a rank that could not be connected waits to hear why. Verdicts reach all ranks within moments of each
/// other; whoever hears one first leaves, and those who were being connected to it see that before they hear the
/// verdict.
const VERDICT_MAY_FOLLOW: Duration = Duration::from_secs(1);

/// Why ranks could not be connected: what has become of one of them, if that comes to light, or what this rank saw.
fn with_verdict(error: Error, lifeline: Option<&Lifeline>) -> Error {
    let Some(lifeline) = lifeline else { return error };
    let (teller, told) = mpsc::channel();
    lifeline.on_failure(move |verdict| drop(teller.send(verdict.clone())));
    told.recv_timeout(VERDICT_MAY_FOLLOW).map_or(error, Error::Lost)
}

/// Lets a verdict end collectives.
fn heed(lifeline: Option<&Lifeline>, abort: AbortHandle) {
    if let Some(lifeline) = lifeline {
        lifeline.on_failure(move |verdict| abort.abort(verdict.rank, verdict.to_string()));
    }
}

/// Makes this process a rank of the job that it was started in; without a launcher, a world of one.
///
/// A process may leave its world and call this again, as often as it likes: when all ranks have done so they are a
/// world again. Whoever comes first waits for the others.
pub fn init() -> Result<World> {
    Setup::default().init()
}
