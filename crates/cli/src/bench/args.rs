//! The command line of `farandole bench`, and what of it does not fit together.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use farandole_cluster::launch::{HostSlots, hostfile, hosts};
use farandole_plan::algorithm::Algorithm;
use farandole_plan::{Dtype, ReduceOp};

use super::driver::Effort;
use super::placement::BenchPlacement;
use super::sizes::Sizes;
use super::task::{DevicePlane, Kind, Memory, On, Pace, Recording, Task, Through, dtype_named, op_named};
use crate::peer::start::{Peer, Pin};
use crate::run::RemoteArgs;

/// More ranks than this on one host can only be a slip of the finger.
const MAX_RANKS: usize = 1024;

/// How ranks are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    /// Shared memory on one host, TCP between hosts.
    Auto,
    /// Shared memory.
    Shm,
    /// Unix sockets on one host, TCP between hosts.
    Unix,
    /// TCP between all ranks, over the loopback device.
    Tcp,
}

/// Measure a collective on this machine, alone or in turns with other libraries.
///
/// Starts the ranks itself, runs the collective at every size, checks every result and prints a table. With --against,
/// the named libraries run the same collective in the same run, round by round in turns, and the table shows how many
/// times as long they take. With --limit it shows how far from the machine's own bound the times are.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  farandole bench allreduce -np 2
  farandole bench allreduce -np 4 --sizes 64K..64M:2 --against openmpi,mpich,gloo --limit
  farandole bench allreduce -np 2 --through engine --tensors 1000 --sizes 1K
  farandole bench alltoall -np 8 --sizes 1M --json -
  farandole bench allreduce -np 2 --device cuda --plane own --limit
  farandole bench allreduce -H node1:2,node2:2            (real hosts, by ssh)
  srun -n 8 farandole bench allreduce                     (inside a job of any launcher)
  farandole bench allreduce -np 4 --hosts 2 --host-prefix 'ip netns exec lab{host}' --host-addresses 10.0.0.1,10.0.0.2")]
pub(crate) struct BenchArgs {
    /// Which collective.
    pub(crate) collective: Kind,

    /// Number of ranks (also written -np), all on this machine unless -H names others. Leave it out inside a job, where
    /// the launcher says it [with -H: one for each slot]
    #[arg(long = "np", short = 'n', value_name = "RANKS")]
    pub(crate) ranks: Option<usize>,

    /// Sizes: a list (4,64K,1M) of single sizes and ranges (4..256M, factor 4; 4..256M:2, factor 2). K, M, G count in
    /// steps of 1024. The size is that of the larger side: the buffer of a rank, or all parts together.
    #[arg(long, default_value = "4..256M", value_name = "SIZES")]
    pub(crate) sizes: Sizes,

    /// Element type: bool, uint8 to uint64, int8 to int64, float16, bfloat16, float32, float64.
    #[arg(long, default_value = "float32", value_parser = parse_dtype)]
    pub(crate) dtype: Dtype,

    /// How contributions are combined: sum, average, min, max or product.
    #[arg(long, default_value = "sum", value_parser = parse_op)]
    pub(crate) op: ReduceOp,

    /// Whose memory: the caller's own, or buffers that the engine owns and all ranks of this machine have mapped.
    #[arg(long, value_enum, default_value_t = Memory::Own)]
    pub(crate) memory: Memory,

    /// Where the buffers lie: in host memory, or in that of the GPUs, which the ranks take in turn. On GPUs an
    /// allreduce goes through the engine.
    #[arg(long, value_enum, default_value_t = On::Cpu)]
    pub(crate) device: On,

    /// On GPUs: by which plane tensors are reduced [default: as FARANDOLE_PLANE says].
    #[arg(long, value_enum)]
    pub(crate) plane: Option<DevicePlane>,

    /// By which door: direct calls in the same order on all ranks, or the engine, by name (submit, agree, fuse, wait).
    #[arg(long, value_enum, default_value_t = Through::Direct)]
    pub(crate) through: Through,

    /// Through the engine: so many tensors of the size, submitted one after the other and then awaited, make one
    /// iteration.
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    pub(crate) tensors: usize,

    /// How the ranks of farandole are joined.
    #[arg(long, value_enum, default_value_t = Transport::Auto)]
    pub(crate) transport: Transport,

    /// Hosts and how many ranks each may hold, as `farandole run` takes them: h1:2,h2:2. Or a number: spread the ranks
    /// over so many hosts, neighbouring ranks on one; unless --host-prefix says how to get there, these are pretended,
    /// by farandole alone: between them it uses TCP over the loopback device.
    #[arg(long, short = 'H', default_value = "1", value_name = "HOSTS")]
    pub(crate) hosts: String,

    /// A file with a host on each line, as `farandole run` takes it.
    #[arg(long, value_name = "FILE", conflicts_with = "hosts")]
    pub(crate) hostfile: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) remote: RemoteArgs,

    // For the ranks of a job that this command has started itself.
    #[arg(long, hide = true)]
    pub(crate) in_job: bool,

    /// Words that run a command on a host, with {host} for its number from 0, such as 'ip netns exec lab{host}'. All
    /// contestants are started behind them. Hosts must share this machine's files.
    #[arg(long, value_name = "WORDS", requires = "host_addresses")]
    pub(crate) host_prefix: Option<String>,

    /// With --host-prefix: the address at which each host is reached from the others.
    #[arg(long, value_name = "ADDRESSES", value_delimiter = ',', requires = "host_prefix")]
    pub(crate) host_addresses: Vec<IpAddr>,

    /// Use this algorithm for every allreduce that it fits, instead of the chosen one: ring, doubling, halving, tree,
    /// hierarchical, hierarchical-window, window-tiles or window-whole.
    #[arg(long, value_parser = parse_algorithm)]
    pub(crate) algorithm: Option<Algorithm>,

    /// Timed iterations in each round [default: as many as the time allows, 2 to 2000].
    #[arg(long, value_name = "COUNT")]
    pub(crate) iters: Option<usize>,

    /// Rounds at each size; contestants take turns, one round each.
    #[arg(long, default_value_t = 7, value_name = "COUNT")]
    pub(crate) rounds: usize,

    /// Time for each contestant at each size, in seconds.
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    pub(crate) seconds: f64,

    /// Start each iteration after a barrier (not timed), or as soon as the one before has ended.
    #[arg(long, value_enum, default_value_t = Pace::Aligned)]
    pub(crate) pace: Pace,

    /// Also measure these libraries, in turns: gloo, openmpi, mpich. `cargo xtask peers` installs them.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PEERS")]
    pub(crate) against: Vec<Peer>,

    /// Measure only the libraries of --against; the first is what the others are compared with.
    #[arg(long, requires = "against")]
    pub(crate) peers_only: bool,

    /// Also measure farandole with its recorder switched off, in turns, by the same processes: what recording costs.
    /// The ratio is the time without over the time with it, so 0.99 is one percent.
    #[arg(long, conflicts_with = "peers_only")]
    pub(crate) recorder_off: bool,

    /// Also measure farandole, or with --recorder-off its second contestant, once more, in turns, by the same
    /// processes: how far apart two measurements of the same thing come out here. Smaller differences than this one
    /// mean nothing.
    #[arg(long, conflicts_with = "peers_only")]
    pub(crate) again: bool,

    /// Also measure this machine's own bound: memory rates, and the least time that an allreduce of each size can take.
    /// On GPUs that is a copy of the same bytes within the device.
    #[arg(long)]
    pub(crate) limit: bool,

    /// Bind rank r of every contestant to core r modulo the number of cores [default: the kernel decides].
    #[arg(long)]
    pub(crate) pin: bool,

    /// Keep so many cores busy beside the contestants, as a framework's own threads would: what waking up and taking
    /// turns cost then.
    #[arg(long, default_value_t = 0, value_name = "CORES")]
    pub(crate) busy: usize,

    /// Write the result as JSON to this file; `-` writes it to standard output and the table to standard error.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

impl BenchArgs {
    /// Refuses what does not fit together, before anything is started.
    pub(crate) fn check(&self, ranks: usize) -> Result<()> {
        let hosts = self.pretended_hosts();
        ensure!((1..=MAX_RANKS).contains(&ranks), "-np {ranks}: give 1 to {MAX_RANKS} ranks");
        ensure!(self.busy <= MAX_RANKS, "--busy {}: keep at most {MAX_RANKS} cores busy", self.busy);
        ensure!(self.rounds > 0, "--rounds 0: nothing would be measured");
        ensure!(self.iters != Some(0), "--iters 0: nothing would be measured");
        ensure!(self.tensors > 0, "--tensors 0: nothing would be measured");
        ensure!(self.seconds > 0.0 && self.seconds.is_finite(), "--seconds {}: give a time above zero", self.seconds);
        ensure!(
            self.op != ReduceOp::Adasum,
            "--op adasum: its result cannot be checked exactly, so it is not measured here"
        );
        ensure!(
            self.tensors == 1 || self.through() == Through::Engine,
            "--tensors {}: direct calls run one tensor at a time; add --through engine",
            self.tensors
        );
        ensure!(
            self.tensors == 1 || self.against.is_empty(),
            "--tensors {}: the peers run one tensor at a time; leave out --against",
            self.tensors
        );
        ensure!((1..=ranks).contains(&hosts), "--hosts {hosts}: {ranks} ranks can be spread over 1 to {ranks} hosts");
        ensure!(
            self.transport != Transport::Shm || hosts == 1,
            "--transport shm: hosts do not share memory; leave out --hosts"
        );
        ensure!(
            self.algorithm.is_none() || self.collective == Kind::Allreduce && self.through == Through::Direct,
            "--algorithm: only direct allreduce has several to choose from"
        );
        ensure!(
            self.memory == Memory::Own || self.collective == Kind::Allreduce,
            "--memory mapped: only allreduce works on mapped buffers"
        );
        ensure!(
            self.memory == Memory::Own || self.through == Through::Direct,
            "--memory mapped: the engine maps its fusion buffers itself; leave out --memory or --through engine"
        );
        if self.device == On::Cuda {
            ensure!(self.collective == Kind::Allreduce, "--device cuda: only allreduce works in device memory");
            ensure!(
                ranks.is_multiple_of(hosts),
                "--device cuda: between hosts with different numbers of ranks tensors go through host memory; take a \
                 multiple of --hosts {hosts} as -np"
            );
            ensure!(
                !self.limit || hosts == 1,
                "--limit: a copy within a GPU bounds ranks of one host; leave out --limit or --hosts"
            );
            ensure!(self.memory == Memory::Own, "--device cuda: the memory is that of the GPUs; leave out --memory");
            ensure!(self.against.is_empty(), "--device cuda: the peers work in host memory; leave out --against");
        }
        ensure!(
            self.plane.is_none() || self.device == On::Cuda,
            "--plane: planes are for tensors on GPUs; add --device cuda"
        );
        ensure!(
            !self.limit || self.collective == Kind::Allreduce,
            "--limit: the bound is defined for allreduce, not for {}",
            self.collective
        );
        ensure!(
            !self.limit || self.host_prefix.is_none(),
            "--limit: the bound is that of one machine's memory; leave out --host-prefix"
        );
        self.placement(ranks).map(drop)
    }

    /// How many hosts are pretended, or entered by --host-prefix.
    pub(crate) fn pretended_hosts(&self) -> usize {
        self.hosts.parse().unwrap_or(1)
    }

    /// The hosts that the user names, if any.
    pub(crate) fn named_hosts(&self) -> Result<Option<Vec<HostSlots>>> {
        Ok(match &self.hostfile {
            Some(file) => Some(hostfile::read(file)?),
            None if self.hosts.parse::<usize>().is_ok() => None,
            None => Some(hosts::parse_list(&self.hosts)?),
        })
    }

    /// The tasks of the run, one for each size.
    pub(crate) fn tasks(&self, ranks: usize) -> Vec<Task> {
        let sizes = if self.collective == Kind::Barrier { &[0][..] } else { &self.sizes.0 };
        let rounded = sizes.iter().map(|&size| match self.collective {
            Kind::Barrier => 0,
            kind => kind.round_size(size, self.dtype, ranks),
        });
        let mut rounded: Vec<u64> = rounded.collect();
        rounded.dedup();
        let task = |bytes| Task {
            kind: self.collective,
            bytes,
            dtype: self.dtype,
            op: self.op,
            pace: self.pace,
            memory: if self.device == On::Cuda { Memory::Cuda } else { self.memory },
            through: self.through(),
            tensors: self.tensors,
            recording: Recording::On,
        };
        rounded.into_iter().map(task).collect()
    }

    /// On GPUs there is one door.
    fn through(&self) -> Through {
        if self.device == On::Cuda { Through::Engine } else { self.through }
    }

    /// Which rank runs where.
    pub(crate) fn placement(&self, ranks: usize) -> Result<BenchPlacement> {
        let hosts = self.pretended_hosts();
        match &self.host_prefix {
            None => Ok(BenchPlacement::here(ranks, hosts)),
            Some(prefix) => BenchPlacement::spread(ranks, hosts, prefix, &self.host_addresses),
        }
    }

    pub(crate) fn effort(&self) -> Effort {
        Effort { rounds: self.rounds, iterations: self.iters, budget_s: self.seconds }
    }

    pub(crate) fn pinning(&self) -> Pin {
        if self.pin { Pin::Cores } else { Pin::Free }
    }
}

fn parse_dtype(text: &str) -> Result<Dtype, String> {
    dtype_named(text).ok_or_else(|| {
        let names: Vec<&str> = Dtype::ALL.iter().map(|dtype| dtype.name()).collect();
        format!("there is: {}", names.join(", "))
    })
}

pub(crate) fn parse_algorithm(text: &str) -> Result<Algorithm, String> {
    let wanted =
        Algorithm::ALL.into_iter().find(|algorithm| algorithm.word() == text && *algorithm != Algorithm::Mapped);
    wanted.ok_or_else(|| {
        let words = Algorithm::ALL.into_iter().filter(|algorithm| *algorithm != Algorithm::Mapped).map(Algorithm::word);
        format!("there is: {}", words.collect::<Vec<_>>().join(", "))
    })
}

fn parse_op(text: &str) -> Result<ReduceOp, String> {
    op_named(text).ok_or_else(|| "there is: sum, average, min, max, product".to_string())
}
