//! What a user wants to have started: the type between those who ask for a job and those who run it.
//!
//! A [`JobSpec`] is complete and consistent when it has been made: every rank is placed on a host, and the command has
//! a first word. Whether hosts can be reached and the command exists shows when it runs. Nothing in here has behaviour
//! beyond its defaults.

use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::elastic::discovery::HostSource;
use super::placement::JobPlacement;

/// A job to be started.
#[derive(Clone, Debug)]
pub struct JobSpec {
    /// Which rank runs where.
    pub placement: JobPlacement,
    /// The command of every rank, with its words. Never empty.
    pub command: Vec<OsString>,
    /// Variables for every rank, on every host; a later one of the same name counts.
    pub set: Vec<(String, OsString)>,
    /// Which variables of this process's environment go to other hosts: names, and patterns that end in `*`. What they
    /// select is decided in [`super::variables::travelling`].
    pub pass: Vec<String>,
    /// How the ranks' output is shown.
    pub output: OutputOptions,
    /// How other hosts are reached.
    pub ssh: Ssh,
    /// How long hosts may take to answer and ranks to find each other.
    pub start_timeout: Duration,
    /// A rank or a host that has been silent for so long counts as dead. Zero means never.
    pub silence: Duration,
    /// How long ranks that are told to end may take before they are killed.
    pub grace: Duration,
    /// Where the command runs, on every host.
    pub working_dir: PathBuf,
    /// Whether the launcher tells what it does.
    pub verbose: Verbose,
    /// Names of interfaces, addresses or networks (`10.0.0.0/8`). Where there are any, only addresses among them are
    /// offered to other hosts.
    pub network: Vec<String>,
    /// What ranks are given besides their command, where somebody waits for what they make of it.
    pub task: Option<TaskFiles>,
    /// Whether ranks find Farandole under the name `horovod`.
    pub alias: Alias,
    /// How ranks use the GPUs of their hosts.
    pub gpus: Gpus,
    /// The Unix socket at which ranks of this host meet, for ranks in network namespaces of their own, which see no
    /// abstract socket of this one.
    pub rendezvous_socket: Option<PathBuf>,
    /// Where metrics of the job are shown to whoever reaches that address; nowhere unless it is said.
    pub metrics: Option<SocketAddr>,
    /// What the job is like if it is elastic. Then the placement only shows how it is meant to begin.
    pub elastic: Option<ElasticSpec>,
    /// How often the whole job is started again when it fails.
    pub restarts: u32,
    /// How often a scheduler has put the job back into its queue and started it again. Ranks find this and the restarts
    /// so far, together, in their environment.
    pub requeues: u32,
}

/// An elastic job: its members come and go while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElasticSpec {
    /// The hosts with which it begins. Each name is there once.
    pub hosts: Vec<HostSlots>,
    /// Where other hosts come from.
    pub source: HostSource,
    /// How many members found the job, if there are so many: at least `min_np`.
    pub np: usize,
    /// With fewer members the job waits. At least one.
    pub min_np: usize,
    /// It never has more members, if there is a bound: at least `np`.
    pub max_np: Option<usize>,
    /// So many processes wait to take the place of members that are lost.
    pub spares: usize,
    /// How often its membership may change.
    pub reset_limit: Option<u64>,
    /// A member that keeps the others waiting over so many iterations is replaced.
    pub replace_slow: Option<u64>,
    /// How long it waits below `min_np`.
    pub timeout: Duration,
    /// For how long hosts that fail are left alone, from and to. Unless it is said, the first failure of a host has no
    /// consequence, and others have short ones.
    pub cool_down: Option<(Duration, Duration)>,
}

/// Bytes for every rank, and a place for the bytes that each one answers with. What they mean is between whoever gives
/// the spec and the ranks' program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskFiles {
    /// The file with the bytes.
    pub file: PathBuf,
    /// The folder for results: `rank.N` for each rank that has one, and `failure` if the job failed.
    pub results: PathBuf,
    /// The process that waits for them. The job ends with it.
    pub caller: u32,
}

/// Whether ranks find Farandole under the name `horovod`, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Alias {
    /// They find whatever is installed.
    #[default]
    None,
    /// Their `PYTHONPATH` begins with the alias package.
    Horovod,
}

/// How ranks use the GPUs of their hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gpus {
    /// So many ranks have the same GPU: the first ones of a host have its first GPU, and so on. A host that has not
    /// enough GPUs for its ranks then starts none. Not said: ranks choose for themselves.
    pub ranks_each: Option<u32>,
    /// Whether they share GPUs through MPS.
    pub mps: Mps,
}

/// Whether ranks use GPUs through a daemon of NVIDIA's Multi-Process Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mps {
    /// Through whatever the user has started.
    #[default]
    AsItIs,
    /// Through a daemon of the job's own on each host.
    OfTheJob,
}

impl JobSpec {
    /// A spec with every setting at its default: the command runs in `working_dir`, and what
    /// [`super::variables::ALLOWED`] names goes to other hosts.
    ///
    /// # Panics
    ///
    /// If the command has no word.
    pub fn new(placement: JobPlacement, command: Vec<OsString>, working_dir: PathBuf) -> JobSpec {
        assert!(!command.is_empty(), "invariant: a command has a first word");
        JobSpec {
            placement,
            command,
            set: Vec::new(),
            pass: super::variables::ALLOWED.iter().map(|&name| name.to_owned()).collect(),
            output: OutputOptions::default(),
            ssh: Ssh::default(),
            start_timeout: farandole_settings::START_TIMEOUT.default_value(),
            silence: farandole_settings::HEARTBEAT_TIMEOUT.default_value(),
            grace: farandole_settings::GRACE.default_value(),
            working_dir,
            verbose: Verbose::No,
            network: Vec::new(),
            task: None,
            alias: Alias::None,
            gpus: Gpus::default(),
            rendezvous_socket: None,
            metrics: None,
            elastic: None,
            restarts: 0,
            requeues: 0,
        }
    }
}

/// A host, and how many ranks it has room for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSlots {
    /// What ssh is told: a name or an address (IPv6 without brackets), possibly with `user@` before it.
    pub name: String,
    /// How many ranks it may hold.
    pub slots: usize,
}

/// As users write it: `h1:2`, `[fe80::1]:2`.
impl fmt::Display for HostSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HostSlots { name, slots } = self;
        match name.rsplit_once('@') {
            _ if !name.contains(':') => write!(f, "{name}:{slots}"),
            Some((user, address)) => write!(f, "{user}@[{address}]:{slots}"),
            None => write!(f, "[{name}]:{slots}"),
        }
    }
}

/// How the ranks' output is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputOptions {
    /// What stands before a line.
    pub prefix: Prefix,
    /// Whether a time stands there, too.
    pub timestamps: Timestamps,
    /// Whether prefixes have colours.
    pub colour: Colour,
    /// Where copies go: `rank.N/stdout` and `rank.N/stderr` under this directory, N with leading zeros.
    pub directory: Option<PathBuf>,
    /// Who draws on the same terminal.
    pub drawer: Option<Drawer>,
}

/// Somebody who keeps something drawn on the terminal, such as a bar, and takes it away while lines are written there.
#[derive(Clone)]
pub struct Drawer(Arc<StepAside>);

/// Calls what it is given once, at a moment when nothing is drawn.
type StepAside = dyn Fn(&mut dyn FnMut()) + Send + Sync;

impl Drawer {
    /// `step_aside` has to call what it is given, once. It is called by the thread that writes, for each piece of
    /// output.
    pub fn new(step_aside: impl Fn(&mut dyn FnMut()) + Send + Sync + 'static) -> Drawer {
        Drawer(Arc::new(step_aside))
    }

    pub(crate) fn step_aside(&self, write: &mut dyn FnMut()) {
        (self.0)(write);
    }
}

impl std::fmt::Debug for Drawer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Drawer").finish_non_exhaustive()
    }
}

impl PartialEq for Drawer {
    fn eq(&self, other: &Drawer) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Drawer {}

/// What stands before a line of output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefix {
    /// Rank and stream: `[1]<stdout>:`.
    #[default]
    Rank,
    /// Nothing.
    None,
}

/// Whether a line of output begins with the time at which it came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timestamps {
    /// It does.
    On,
    /// It does not.
    #[default]
    Off,
}

/// When prefixes are coloured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Colour {
    /// On a terminal, unless the variable `NO_COLOR` is set.
    #[default]
    Auto,
    /// Also into files and pipes.
    Always,
    /// Nowhere.
    Never,
}

/// How other hosts are reached. What is not said here is up to the user's ssh configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ssh {
    /// The port of the other side.
    pub port: Option<u16>,
    /// The file with the user's key.
    pub identity: Option<PathBuf>,
    /// More words for ssh, before the host.
    pub words: Vec<String>,
}

/// Whether the launcher tells what it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verbose {
    /// It speaks only of what the user has to know.
    #[default]
    No,
    /// It tells of each step, with times.
    Yes,
}
