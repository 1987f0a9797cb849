//! The command line of `farandole run`: its flags, and nothing about what they bring about.
//!
//! What farandole does is described here, in groups that `--help` shows. Flags that are settings are in
//! [`mod@super::flags`], flags that horovodrun's users know and farandole answers otherwise in [`super::horovod`]. Of a
//! flag that is given twice the last one counts; that is how the command line overrules the configuration file. Flags
//! that say how ranks are started are [`LaunchArgs`]: every command that starts ranks of its own has them, under the
//! same names.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::{ArgAction, Args, ValueEnum};
use farandole_cluster::launch::Ssh;
use farandole_settings as settings;

use super::elastic::ElasticArgs;
use super::flags::SettingFlags;
use super::horovod::Foreign;

/// Start a command as the ranks of a job, on this machine or many.
///
/// Every rank gets the variables that farandole::init() reads. All ranks live and die as one: when one fails the others
/// are ended, the last line says which one, where and why, and the exit code is that of the first rank to fail. Not so
/// in an elastic job, which has one of the flags below "Elastic jobs": there a rank that fails is replaced. Other
/// hosts are reached through ssh, with your configuration; neither secrets nor variables are ever on a command line.
///
/// Flags stand before the command; what follows it belongs to it. Long flags may be written with one dash, as in -np.
#[derive(Args, Clone, Debug)]
#[command(
    version,
    display_name = "farandole",
    disable_version_flag = true,
    args_override_self = true,
    override_usage = "farandole run [-np RANKS] [-H HOSTS | --hostfile FILE] [FLAGS] COMMAND [WORDS]...",
    after_help = "Examples:
  farandole run python train.py                    (one rank for each GPU of this host)
  farandole run -np 4 python train.py --epochs 90
  farandole run --ranks-per-gpu 2 --mps python train.py
  farandole run -H gpu1:4,gpu2:4 -x WANDB_API_KEY --output-filename logs python train.py
  farandole run -np 8 --min-np 4 -H gpu1:4,gpu2:4 python train.py     (goes on with four ranks)

The flags of horovodrun are understood; docs/run.md says which of them mean something else here."
)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(super) launch: LaunchArgs,

    /// So many ranks use the same GPU, and each of them sees only that one (CUDA_VISIBLE_DEVICES) if it is more than
    /// one. Without -np and hosts, this host gets so many ranks for each of its GPUs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = GPUS)]
    pub(super) ranks_per_gpu: Option<u32>,

    /// Let ranks share GPUs through NVIDIA's Multi-Process Service, with a daemon of the job's own on each host
    #[arg(long, help_heading = GPUS)]
    pub(super) mps: bool,

    /// Let ranks find Farandole under the name horovod, too: scripts that import horovod.torch run unmodified
    #[arg(long, help_heading = VARIABLES)]
    pub(super) horovod: bool,

    // For `farandole.run` of the Python package; what the three mean is in `farandole_cluster::launch::TaskFiles`.
    #[arg(long, hide = true, requires_all = ["results", "caller"])]
    pub(super) task: Option<PathBuf>,
    #[arg(long, hide = true)]
    pub(super) results: Option<PathBuf>,
    #[arg(long, hide = true)]
    pub(super) caller: Option<u32>,

    // For `farandole bench`; what it means is in `farandole_cluster::launch::JobSpec`.
    #[arg(long, hide = true)]
    pub(super) rendezvous_socket: Option<PathBuf>,

    /// Show what was built in and what is found on this machine (also written -cb)
    #[arg(long, alias = "cb", help_heading = CHECKS)]
    pub(super) check_build: bool,

    /// Print version
    #[arg(long, short = 'v', action = ArgAction::Version, help_heading = CHECKS)]
    version: (),

    /// The command of every rank, with its words
    // `spelling` puts two dashes before it, so that a misspelt flag is not taken for the command.
    #[arg(last = true, required_unless_present = "check_build", value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

/// How ranks are started, whatever their command is.
#[derive(Args, Clone, Debug)]
pub(crate) struct LaunchArgs {
    /// Number of ranks (also written -np, --num-proc) [default: one for each slot of the hosts; without hosts, one for
    /// each GPU of this one]
    #[arg(long = "np", short = 'n', alias = "num-proc", value_name = "RANKS", help_heading = RANKS)]
    pub(crate) ranks: Option<usize>,

    /// Hosts and how many ranks each may hold: h1:2,h2:4. Without a number it is one; IPv6 stands in brackets,
    /// `[fe80::1]:2` [default: this host]
    #[arg(long, short = 'H', value_name = "HOSTS", conflicts_with = "hostfile", help_heading = RANKS)]
    pub(crate) hosts: Option<String>,

    /// A file with a host on each line: 'h1 slots=2' (Horovod, Open MPI) or 'h1:2' (MPICH)
    #[arg(long, value_name = "FILE", help_heading = RANKS)]
    pub(crate) hostfile: Option<PathBuf>,

    /// Where the ranks run, on every host [default: the current directory]
    #[arg(long, visible_alias = "wdir", value_name = "DIR", help_heading = RANKS)]
    pub(super) working_dir: Option<PathBuf>,

    /// Show which rank would run where, with which variables, and start nothing
    #[arg(long, help_heading = RANKS)]
    pub(crate) dry_run: bool,

    /// A variable for every rank: NAME=VALUE sets it, NAME takes it from here to other hosts as well, 'NAME*' all that
    /// begin so and do not look like secrets. Repeatable
    #[arg(short = 'x', long = "env", value_name = "NAME[=VALUE]", help_heading = VARIABLES)]
    pub(super) variables: Vec<OsString>,

    /// YAML file with settings, in the form that horovodrun takes. Flags on the command line overrule it
    #[arg(long, value_name = "FILE", help_heading = VARIABLES)]
    pub(super) config_file: Option<PathBuf>,

    /// Also write each rank's output to DIR/rank.N/stdout and DIR/rank.N/stderr
    #[arg(long, value_name = "DIR", help_heading = OUTPUT)]
    pub(super) output_filename: Option<PathBuf>,

    /// Begin each line of output with the time (also written -prefix-timestamp)
    #[arg(long, alias = "prefix-timestamp", help_heading = OUTPUT)]
    pub(super) prefix_output_with_timestamp: bool,

    /// Leave out what stands before each line of output, such as `[1]<stdout>:`
    #[arg(long, help_heading = OUTPUT)]
    pub(super) no_prefix: bool,

    /// When prefixes are coloured
    #[arg(long, visible_alias = "color", value_enum, default_value_t = ColourArg::Auto, value_name = "WHEN", help_heading = OUTPUT)]
    pub(super) colour: ColourArg,

    /// Tell what the launcher does
    #[arg(long, help_heading = OUTPUT)]
    pub(super) verbose: bool,

    #[command(flatten)]
    pub(super) remote: RemoteArgs,

    /// Between hosts farandole speaks TCP anyway; this keeps NCCL off InfiniBand, too (NCCL_IB_DISABLE=1)
    #[arg(long, help_heading = REMOTE)]
    pub(super) tcp: bool,

    #[command(flatten)]
    pub(super) elastic: ElasticArgs,

    #[command(flatten)]
    pub(super) settings: SettingFlags,

    #[command(flatten)]
    pub(super) foreign: Foreign,
}

/// How other hosts are reached.
#[derive(Args, Clone, Debug)]
pub(crate) struct RemoteArgs {
    /// Port of ssh on all hosts [default: as your ssh configuration says]
    #[arg(long, short = 'p', value_name = "PORT", help_heading = REMOTE)]
    ssh_port: Option<u16>,

    /// File with the private key for ssh
    #[arg(long, short = 'i', value_name = "FILE", help_heading = REMOTE)]
    ssh_identity_file: Option<PathBuf>,

    /// One more word for ssh, such as --ssh-option=-oConnectTimeout=5. Repeatable
    #[arg(long, value_name = "WORD", allow_hyphen_values = true, help_heading = REMOTE)]
    ssh_option: Vec<String>,

    /// Offer only these addresses to other hosts: names of interfaces, addresses or networks (eth0,10.0.0.0/8).
    /// Repeatable [default: whatever can be reached]
    #[arg(
        long,
        visible_alias = "network-interfaces",
        value_name = "NETWORKS",
        value_delimiter = ',',
        help_heading = REMOTE
    )]
    network_interface: Vec<String>,
}

impl RemoteArgs {
    /// How ssh is called; `here` is the directory that names of files are relative to.
    pub(crate) fn ssh(&self, here: &Path) -> Ssh {
        let identity = self.ssh_identity_file.as_ref().map(|file| here.join(file));
        Ssh { port: self.ssh_port, identity, words: self.ssh_option.clone() }
    }

    /// Which addresses are offered to other hosts; none: all.
    pub(crate) fn network(&self, variable: impl Fn(&'static str) -> Option<String>) -> Result<Vec<String>> {
        let named = settings::INTERFACE.written(variable);
        let network: Vec<String> = match (self.network_interface.as_slice(), named) {
            ([], Some((_, names))) => names.split(',').map(|name| name.trim().to_owned()).collect(),
            (flags, _) => flags.iter().map(|name| name.trim().to_owned()).collect(),
        };
        ensure!(
            network.iter().all(|name| !name.is_empty()),
            "--network-interface: an empty name; expected for instance eth0"
        );
        Ok(network)
    }
}

#[cfg(feature = "train")]
impl LaunchArgs {
    /// Where traces of all ranks are to be kept, if anywhere.
    pub(crate) fn trace(&self) -> Option<&std::path::Path> {
        self.settings.given(&settings::TRACE).map(std::path::Path::new)
    }

    /// Whether something says how many ranks there are to be.
    pub(crate) fn says_how_many(&self) -> bool {
        self.ranks.is_some() || self.hosts.is_some() || self.hostfile.is_some() || self.elastic.says_how_many()
    }

    /// Whether the user has said how long ranks may take to end.
    pub(crate) fn grace_is_given(&self) -> bool {
        self.settings.given(&settings::GRACE).is_some() || settings::GRACE.in_environment().is_some()
    }
}

const RANKS: &str = "Ranks and hosts";
const GPUS: &str = "GPUs";
const VARIABLES: &str = "Variables and settings";
const OUTPUT: &str = "Output";
const REMOTE: &str = "Other hosts";
const CHECKS: &str = "About";

/// When prefixes are coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ColourArg {
    /// On a terminal
    Auto,
    /// Also into files and pipes
    Always,
    /// Nowhere
    Never,
}
