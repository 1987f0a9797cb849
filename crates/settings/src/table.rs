//! The data: every name, what may be written, the default, and the effect in a sentence, or the reason why there is
//! none.
//!
//! A name that ends in `*` stands for all that begin so. Values and defaults of the engine's settings are those of
//! `farandole_engine::Config`, flags and keys those of `farandole run`; tests of the command compare them.

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The variable that counts first.
    pub name: &'static str,
    /// The name under which Horovod's users know it, where it is another one.
    pub horovod: Option<&'static str>,
    /// The flag of `farandole run`, without dashes.
    pub flag: Option<&'static str>,
    /// The key of its configuration file, with its section.
    pub key: Option<&'static str>,
    /// What may be written.
    pub value: &'static str,
    /// What holds where nothing is written; empty: nothing, and the effect says what that means.
    pub default: &'static str,
    /// What it does.
    pub effect: Effect,
}

/// What a setting does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Something, for users.
    Does(&'static str),
    /// Something between parts of Farandole; users leave it alone.
    Internal(&'static str),
    /// Nothing, for this reason.
    None(&'static str),
}

/// Settings that belong together.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// The heading.
    pub title: &'static str,
    /// What they have in common.
    pub text: &'static str,
    /// The settings.
    pub settings: &'static [Setting],
}

impl Setting {
    /// All its names, the one that counts first.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        [Some(self.name), self.horovod].into_iter().flatten()
    }

    const fn horovod(self, name: &'static str) -> Setting {
        Setting { horovod: Some(name), ..self }
    }

    const fn flag(self, flag: &'static str) -> Setting {
        Setting { flag: Some(flag), ..self }
    }

    const fn key(self, key: &'static str) -> Setting {
        Setting { key: Some(key), ..self }
    }
}

const fn with(name: &'static str, effect: Effect) -> Setting {
    Setting { name, horovod: None, flag: None, key: None, value: "", default: "", effect }
}

const fn does(name: &'static str, value: &'static str, default: &'static str, what: &'static str) -> Setting {
    Setting { value, default, ..with(name, Effect::Does(what)) }
}

const fn internal(name: &'static str, what: &'static str) -> Setting {
    with(name, Effect::Internal(what))
}

const fn none(name: &'static str, why: &'static str) -> Setting {
    with(name, Effect::None(why))
}

/// All settings.
pub const SECTIONS: &[Section] = &[
    Section {
        title: "The engine",
        text: "How collectives run. Where a setting must be the same on all ranks, a difference ends `init` with an error \
               that names\nboth values.",
        settings: ENGINE,
    },
    Section {
        title: "Starting and meeting",
        text: "How ranks are started, find each other and are watched.",
        settings: JOB,
    },
    Section { title: "Recording", text: "What is written down ([insight.md](insight.md)).", settings: RECORDS },
    Section { title: "Python", text: "Read by the Python package.", settings: PYTHON },
    Section {
        title: "Horovod's settings that have no effect",
        text: "Each gets one line when a job starts with it.",
        settings: UNUSED,
    },
    Section {
        title: "Horovod's settings for building it",
        text: "Horovod reads them when it is compiled. They get a line, too.",
        settings: BUILD,
    },
    Section {
        title: "Set by launchers",
        text: "`farandole run` and the commands above it set these for ranks and for each other.",
        settings: LAUNCHED,
    },
    Section { title: "Development", text: "For the tests of this repository.", settings: DEVELOPMENT },
];

const AUTOTUNE_WHY: &str =
    "nothing is tuned while a job runs; `farandole calibrate` measures algorithms once, for all jobs";
const GPU_WHY: &str = "collectives run in host memory, through which tensors of a GPU are staged; NCCL is not used yet";
const MPI_WHY: &str = "data never travels through MPI";
const TIME_WHY: &str =
    "lines of the log carry no time; `farandole run --prefix-output-with-timestamp` puts one before every line";
const BUILD_WHY: &str = "it is read when Horovod is built, and nothing is built here";

const ENGINE: &[Setting] = &[
    does(
        "FARANDOLE_FUSION_THRESHOLD",
        "a whole number",
        "67108864",
        "Requests that are ready together travel together up to this many bytes; 0 turns fusion off. Among ranks of \
         one host an allreduce of 1 MiB or more travels alone. The flag and the key are in MiB.",
    )
    .horovod("HOROVOD_FUSION_THRESHOLD")
    .flag("fusion-threshold-mb")
    .key("params.fusion_threshold_mb"),
    does(
        "FARANDOLE_DISABLE_GROUP_FUSION",
        "0 or 1",
        "0",
        "Keeps the requests of a group (a grouped allreduce) out of buckets with other requests. The same on \
         all ranks.",
    )
    .horovod("HOROVOD_DISABLE_GROUP_FUSION"),
    does(
        "FARANDOLE_HIERARCHICAL_ALLREDUCE",
        "0, 1 or auto",
        "auto",
        "Whether a named allreduce between hosts that have several ranks each is hierarchical: always, never, \
         or where that is the fastest. The same on all ranks.",
    )
    .horovod("HOROVOD_HIERARCHICAL_ALLREDUCE")
    .flag("hierarchical-allreduce")
    .key("params.hierarchical_allreduce"),
    does(
        "FARANDOLE_REPLAY",
        "a whole number",
        "1",
        "0: ranks agree on every request anew. Any other number: a learned order is repeated without \
         messages. (Horovod: the capacity of its response cache.)",
    )
    .horovod("HOROVOD_CACHE_CAPACITY")
    .flag("cache-capacity")
    .key("params.cache_capacity"),
    does(
        "FARANDOLE_JOIN_EVERYTHING",
        "0 or 1",
        "1",
        "0: while a rank has joined, only allreduce and barrier are served, as with Horovod.",
    ),
    does(
        "FARANDOLE_PATIENCE_SECONDS",
        "a number of seconds",
        "0.01",
        "How long a request may wait while a learned order cannot go on, before the ranks talk again.",
    ),
    does(
        "FARANDOLE_TIMEOUT_SECONDS",
        "a number of seconds",
        "0",
        "A collective, named or direct, in which nothing moves for this long fails; 0: a late peer is reported as a \
         stall and waited for.",
    )
    .horovod("HOROVOD_GLOO_TIMEOUT_SECONDS")
    .flag("gloo-timeout-seconds")
    .key("library_options.gloo_timeout_seconds"),
    does(
        "FARANDOLE_STALL_CHECK_TIME_SECONDS",
        "a number of seconds",
        "60",
        "After this long without all ranks having asked for a request, a report says who is missing.",
    )
    .horovod("HOROVOD_STALL_CHECK_TIME_SECONDS")
    .flag("stall-check-warning-time-seconds")
    .key("stall_check.warning_time_seconds"),
    does(
        "FARANDOLE_STALL_SHUTDOWN_TIME_SECONDS",
        "a number of seconds",
        "0",
        "After this long the stall ends the job; 0 means never.",
    )
    .horovod("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS")
    .flag("stall-check-shutdown-time-seconds")
    .key("stall_check.shutdown_time_seconds"),
    does(
        "FARANDOLE_STALL_CHECK_DISABLE",
        "0 or 1",
        "0",
        "1: stalls are not reported. The key says the opposite: `enabled`.",
    )
    .horovod("HOROVOD_STALL_CHECK_DISABLE")
    .flag("no-stall-check")
    .key("stall_check.enabled"),
    does(
        "FARANDOLE_WIRE_PROTECTION",
        "off, checksum or encrypt",
        "off",
        "How tensors are protected between hosts: CRC32C finds accidental damage, AES-256-GCM also keeps them \
         secret and unchanged. The same on all ranks. Also `init(wire_protection=…)` in Python and \
         `Setup::wire_protection` in Rust.",
    )
    .flag("wire-protection")
    .key("library_options.wire_protection"),
    does(
        "FARANDOLE_THREAD_AFFINITY",
        "a list of cores, such as 0,2",
        "",
        "The core that the engine's worker thread of each rank of a host is bound to, in the order of local \
         ranks; unset: none. Threads of the program are not bound.",
    )
    .horovod("HOROVOD_THREAD_AFFINITY")
    .flag("thread-affinity")
    .key("library_options.thread_affinity"),
    does(
        "FARANDOLE_SPIN_US",
        "a whole number, or auto",
        "auto",
        "How many microseconds a driver with nothing to do polls before it sleeps.",
    ),
    does(
        "FARANDOLE_TABLES",
        "a folder, or off",
        "",
        "Where measured tables (`farandole calibrate`) are read from; unset: a folder of the user's own \
         (docs/performance.md).",
    ),
    does(
        "FARANDOLE_SIMD",
        "portable, avx2 or avx512",
        "",
        "The widest instructions that arithmetic may use; unset: the best that the processor has. All give \
         the same bits.",
    ),
];

const JOB: &[Setting] = &[
    does(
        "FARANDOLE_START_TIMEOUT",
        "a number of seconds",
        "30",
        "How long hosts may take to answer and ranks to find each other.",
    )
    .horovod("HOROVOD_START_TIMEOUT")
    .flag("start-timeout"),
    does(
        "FARANDOLE_HEARTBEAT_TIMEOUT",
        "a number of seconds",
        "5",
        "A rank or host that is silent for this long counts as dead; 0 means never.",
    )
    .flag("heartbeat-timeout"),
    does(
        "FARANDOLE_GRACE",
        "a number of seconds",
        "5",
        "How long ranks that are told to end may take before they are killed.",
    )
    .flag("grace"),
    does(
        "FARANDOLE_INTERFACE",
        "names of interfaces, separated by commas",
        "",
        "Interfaces whose addresses are offered to other hosts; unset: whatever can be reached. The flag \
         takes addresses and networks as well.",
    )
    .horovod("HOROVOD_GLOO_IFACE")
    .flag("network-interface"),
    does(
        "FARANDOLE_ADDRESS",
        "IP addresses, separated by commas",
        "",
        "Addresses of this host at which other hosts reach it, for launchers other than `farandole run`; \
         unset: the one on the way to the rendezvous.",
    ),
    does(
        "FARANDOLE_HOST",
        "a text",
        "",
        "Identity of this host: ranks with equal ones share memory; unset: host name, boot and network \
         namespace.",
    ),
    does(
        "FARANDOLE_JOB",
        "a text",
        "",
        "Name of the job: ranks of another job with the same key are refused; unset: what the launcher calls it.",
    ),
    does(
        "FARANDOLE_KEY",
        "64 hexadecimal digits",
        "",
        "The job's key, for launchers other than `farandole run` when ranks are on several hosts \
         (docs/launchers.md).",
    ),
    does("FARANDOLE_KEY_FILE", "a file", "", "A file with the job's key; unset: `~/.config/farandole/key`."),
    does(
        "FARANDOLE_METRICS",
        "[ADDRESS:]PORT",
        "",
        "Where metrics of all ranks are shown for Prometheus; unset: nowhere.",
    )
    .flag("metrics"),
    does(
        "FARANDOLE_LOG_LEVEL",
        "trace, debug, info, warning, error, fatal, or 0 to 5",
        "warning",
        "`info`: each rank says at its start who it is; `debug`: rank 0 also says which measured table is \
         used.",
    )
    .horovod("HOROVOD_LOG_LEVEL")
    .flag("log-level")
    .key("logging.level"),
    does(
        "FARANDOLE_HOROVOD_PATH",
        "a folder",
        "",
        "Where `farandole run --horovod` finds the package `horovod`; unset: where the Python of the command \
         has it.",
    ),
    does(
        "FARANDOLE_PEERS_PYTHON",
        "a program",
        "",
        "The Python in which `farandole bench --against` runs other libraries; unset: the one that `cargo \
         xtask peers` makes.",
    ),
];

const RECORDS: &[Setting] = &[
    does("FARANDOLE_TRACE", "a folder", "", "Every rank keeps a trace there (docs/insight.md); unset: none is kept.")
        .flag("trace"),
    does(
        "FARANDOLE_TRACE_TROUBLE",
        "a folder, or 0",
        "",
        "Where a rank that meets an error or a stall leaves the latest of what it recorded; 0: nowhere; \
         unset: among temporary files.",
    ),
    does(
        "FARANDOLE_TRACE_SIGNAL",
        "a whole number",
        "12",
        "The signal at which a rank saves what it recorded; 0: none.",
    ),
    does(
        "FARANDOLE_TIMELINE",
        "a file, or DYNAMIC",
        "",
        "Rank 0 writes Horovod's timeline there; DYNAMIC: when the program calls `start_timeline`.",
    )
    .horovod("HOROVOD_TIMELINE")
    .flag("timeline-filename")
    .key("timeline.filename"),
    does("FARANDOLE_TIMELINE_MARK_CYCLES", "0 or 1", "0", "Marks in the timeline when requests were taken in.")
        .horovod("HOROVOD_TIMELINE_MARK_CYCLES")
        .flag("timeline-mark-cycles")
        .key("timeline.mark_cycles"),
    does(
        "FARANDOLE_RECORDER_RECORDS",
        "a whole number",
        "262144",
        "Records of 32 bytes that a rank keeps in memory for each group; 0 turns the recorder off.",
    ),
    does(
        "FARANDOLE_PHASES",
        "0 or 1",
        "1",
        "0: PyTorch is left as it is; phases of a script are not marked by themselves.",
    ),
];

const PYTHON: &[Setting] = &[
    does("FARANDOLE_DYNAMIC_PROCESS_SETS", "0 or 1", "0", "Process sets may be added and removed after `init`.")
        .horovod("HOROVOD_DYNAMIC_PROCESS_SETS"),
    does(
        "FARANDOLE_COMMAND",
        "a program",
        "",
        "The command `farandole` that `farandole.run` starts; unset: beside the running Python, then on the \
         path.",
    ),
    does(
        "HOROVOD_ELASTIC",
        "0 or 1",
        "0",
        "1: `DistributedOptimizer` submits gradients also where there is one rank. Elastic jobs themselves \
         are not available.",
    ),
];

const UNUSED: &[Setting] = &[
    none("HOROVOD_CYCLE_TIME", "there is no cycle: requests start when they are ready"),
    none(
        "HOROVOD_HIERARCHICAL_ALLGATHER",
        "the form of an allgather is chosen by its size and by which ranks share a host",
    ),
    none("HOROVOD_TORUS_ALLREDUCE", "there is no torus allreduce; the algorithm is chosen by size and placement"),
    none("HOROVOD_AUTOTUNE", AUTOTUNE_WHY),
    none("HOROVOD_AUTOTUNE_*", AUTOTUNE_WHY),
    none("HOROVOD_BATCH_D2D_MEMCOPIES", GPU_WHY),
    none("HOROVOD_NUM_NCCL_STREAMS", GPU_WHY),
    none("HOROVOD_ENABLE_ASYNC_COMPLETION", GPU_WHY),
    none("HOROVOD_ADASUM_MPI_CHUNK_SIZE", MPI_WHY),
    none("HOROVOD_MPI_THREADS_DISABLE", MPI_WHY),
    none("HOROVOD_CCL_CACHE", "oneCCL is not used"),
    none("HOROVOD_CCL_BGT_AFFINITY", "oneCCL is not used"),
    none("HOROVOD_CONTROLLER", "there is one controller, Farandole's own"),
    none("HOROVOD_CPU_OPERATIONS", "collectives on host memory are Farandole's own, over shared memory and TCP"),
    none("HOROVOD_DISABLE_NVTX_RANGES", "no NVTX ranges are written; `farandole timeline` shows when operations ran"),
    none("HOROVOD_ENABLE_XLA_OPS", "it is not needed: XLA compiles collectives for the CPU without a switch"),
    none("HOROVOD_LOG_HIDE_TIME", TIME_WHY),
    none("HOROVOD_LOG_TIMESTAMP", TIME_WHY),
    none("HOROVOD_ELASTIC_*", "elastic jobs are not available yet"),
    none("HOROVOD_SPARK_*", "there is no support for Spark yet"),
    none("_HOROVOD_SECRET_KEY", "it is the secret of Horovod's own launcher; the key of a job is in FARANDOLE_KEY"),
];

const BUILD: &[Setting] = &[
    none("HOROVOD_WITH_*", BUILD_WHY),
    none("HOROVOD_WITHOUT_*", BUILD_WHY),
    none("HOROVOD_GPU", BUILD_WHY),
    none("HOROVOD_GPU_*", BUILD_WHY),
    none("HOROVOD_ALLOW_MIXED_GPU_IMPL", BUILD_WHY),
    none("HOROVOD_CUDA_HOME", BUILD_WHY),
    none("HOROVOD_CUDA_INCLUDE", BUILD_WHY),
    none("HOROVOD_CUDA_LIB", BUILD_WHY),
    none("HOROVOD_ROCM_HOME", BUILD_WHY),
    none("HOROVOD_NCCL_*", BUILD_WHY),
    none("HOROVOD_NVTX_INCLUDE", BUILD_WHY),
    none("HOROVOD_MPI_HOME", BUILD_WHY),
    none("HOROVOD_MPICXX_SHOW", BUILD_WHY),
    none("HOROVOD_BUILD_*", BUILD_WHY),
    none("HOROVOD_CMAKE", BUILD_WHY),
    none("HOROVOD_DEBUG", BUILD_WHY),
    none("HOROVOD_SKIP_COMPILE", BUILD_WHY),
    none("HOROVOD_LOCAL_VERSION", BUILD_WHY),
];

const LAUNCHED: &[Setting] = &[
    internal("FARANDOLE_RANK", "This rank, from 0. By hand: docs/launchers.md.").horovod("HOROVOD_RANK"),
    internal("FARANDOLE_SIZE", "Number of ranks.").horovod("HOROVOD_SIZE"),
    internal("FARANDOLE_LOCAL_RANK", "This rank among those of its host.").horovod("HOROVOD_LOCAL_RANK"),
    internal("FARANDOLE_LOCAL_SIZE", "Number of ranks on this host.").horovod("HOROVOD_LOCAL_SIZE"),
    internal("FARANDOLE_CROSS_RANK", "Number of this host among the hosts.").horovod("HOROVOD_CROSS_RANK"),
    internal("FARANDOLE_CROSS_SIZE", "Number of hosts.").horovod("HOROVOD_CROSS_SIZE"),
    internal("FARANDOLE_RENDEZVOUS", "Where ranks meet: `unix:…`, at the launcher; `tcp:host:port`, in rank 0."),
    internal("FARANDOLE_KEY_FD", "Descriptor from which the job's key is read."),
    internal("FARANDOLE_OPEN_FILES", "The user's soft limit of open files, which an agent gives back to its ranks."),
    internal("FARANDOLE_AGENT_PID", "The agent with which a rank ends."),
    internal("FARANDOLE_TASK_FD", "Descriptor of the function that `farandole.run` calls."),
    internal("FARANDOLE_RESULT_FD", "Descriptor for its result."),
    internal("FARANDOLE_TRAIN_NEWS", "Where ranks of `farandole train` tell the command how far they are."),
    internal("FARANDOLE_STUDY_*", "The point of the sweep, for commands that `farandole study` starts."),
    internal("HOROVOD_GLOO_RENDEZVOUS_ADDR", "With the port: tells jobs of `horovodrun` on one host apart."),
    internal("HOROVOD_GLOO_RENDEZVOUS_PORT", "See `HOROVOD_GLOO_RENDEZVOUS_ADDR`."),
    internal("HOROVOD_HOSTNAME", "Set by `horovodrun`; not passed on to other hosts."),
];

const DEVELOPMENT: &[Setting] = &[
    internal("FARANDOLE_TEST_*", "Roles and switches of tests."),
    internal("FARANDOLE_PROGRAMS", "How many of the engine's random programs are run."),
    internal("FARANDOLE_PROGRAMS_SEED", "From which one on."),
    internal("FARANDOLE_WRITE_SEEDS", "Writes the seeds of the fuzzers anew."),
    internal("FARANDOLE_MEMCHECK", "Makes tests short enough for valgrind."),
];
