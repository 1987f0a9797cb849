//! The data: every setting that does something, once. `idle` has Horovod's that do nothing here, and names that are
//! none of a user's business.

use crate::idle::{BUILD, DEVELOPMENT, LAUNCHED, UNUSED};
use crate::{Kind, Reader, Section, Setting};

/// All settings.
pub const SECTIONS: &[Section] = &[
    Section {
        title: "The engine",
        text: "How collectives run. Where a setting must be the same on all ranks, a difference ends `init` with an error \
               that names\nboth values.",
        settings: &[
            FUSION_THRESHOLD,
            DISABLE_GROUP_FUSION,
            HIERARCHICAL_ALLREDUCE,
            REPLAY,
            JOIN_EVERYTHING,
            PATIENCE_SECONDS,
            TIMEOUT_SECONDS,
            STALL_CHECK_TIME_SECONDS,
            STALL_SHUTDOWN_TIME_SECONDS,
            STALL_CHECK_DISABLE,
            CHECK_PARAMETERS,
            WIRE_PROTECTION,
            PLANE,
            GPU_OPERATIONS,
            NCCL_LIBRARY,
            SLICE_BYTES,
            RANKS_PER_GPU,
            THREAD_AFFINITY,
            SPIN_US,
            TABLES,
            SIMD,
        ],
    },
    Section {
        title: "Starting and meeting",
        text: "How ranks are started, find each other and are watched.",
        settings: &[
            START_TIMEOUT,
            HEARTBEAT_TIMEOUT,
            GRACE,
            ELASTIC_TIMEOUT,
            INTERFACE,
            ADDRESS,
            HOST,
            JOB,
            KEY,
            KEY_FILE,
            METRICS,
            LOG_LEVEL,
            HOROVOD_PATH,
            PEERS_PYTHON,
        ],
    },
    Section {
        title: "Recording",
        text: "What is written down ([insight.md](insight.md)).",
        settings: &[
            TRACE,
            TRACE_TROUBLE,
            TRACE_SIGNAL,
            TIMELINE,
            TIMELINE_MARK_CYCLES,
            RECORDER_RECORDS,
            PHASES,
            MEMBERSHIP_LOG,
        ],
    },
    Section {
        title: "Python",
        text: "Read by the Python package.",
        settings: &[DYNAMIC_PROCESS_SETS, ASYNC_COMPLETION, COMMAND, ELASTIC],
    },
    Section {
        title: "Data",
        text: "Where samples are read from ([storage.md](storage.md)).",
        settings: crate::data::SETTINGS,
    },
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

/// `FARANDOLE_FUSION_THRESHOLD`.
pub const FUSION_THRESHOLD: Setting = Setting::does(
    "FARANDOLE_FUSION_THRESHOLD",
    Reader::Ranks,
    Kind::Bytes,
    "67108864",
    "Requests that are ready together travel together up to this many bytes; 0 turns fusion off. Among ranks of one \
     host an allreduce of 1 MiB or more travels alone. The flag and the key are in MiB.",
)
.horovod("HOROVOD_FUSION_THRESHOLD")
.flag("fusion-threshold-mb", "MIB")
.key("params.fusion_threshold_mb");

/// `FARANDOLE_DISABLE_GROUP_FUSION`.
pub const DISABLE_GROUP_FUSION: Setting = Setting::does(
    "FARANDOLE_DISABLE_GROUP_FUSION",
    Reader::Ranks,
    Kind::Switch,
    "0",
    "Keeps the requests of a group (a grouped allreduce) out of buckets with other requests. The same on all ranks.",
)
.horovod("HOROVOD_DISABLE_GROUP_FUSION");

/// `FARANDOLE_HIERARCHICAL_ALLREDUCE`.
pub const HIERARCHICAL_ALLREDUCE: Setting = Setting::does(
    "FARANDOLE_HIERARCHICAL_ALLREDUCE",
    Reader::Ranks,
    Kind::SwitchOrAuto,
    "auto",
    "Whether a named allreduce between hosts that have several ranks each is hierarchical: always, never, or where \
     that is the fastest. The same on all ranks.",
)
.horovod("HOROVOD_HIERARCHICAL_ALLREDUCE")
.switch("hierarchical-allreduce", "no-hierarchical-allreduce")
.key("params.hierarchical_allreduce");

/// `FARANDOLE_REPLAY`.
pub const REPLAY: Setting = Setting::does(
    "FARANDOLE_REPLAY",
    Reader::Ranks,
    Kind::Count,
    "1",
    "0: ranks agree on every request anew. Any other number: a learned order is repeated without messages. (Horovod: \
     the capacity of its response cache.)",
)
.horovod("HOROVOD_CACHE_CAPACITY")
.flag("cache-capacity", "COUNT")
.key("params.cache_capacity");

/// `FARANDOLE_JOIN_EVERYTHING`.
pub const JOIN_EVERYTHING: Setting = Setting::does(
    "FARANDOLE_JOIN_EVERYTHING",
    Reader::Ranks,
    Kind::Switch,
    "1",
    "0: while a rank has joined, only allreduce and barrier are served, as with Horovod.",
);

/// `FARANDOLE_PATIENCE_SECONDS`.
pub const PATIENCE_SECONDS: Setting = Setting::does(
    "FARANDOLE_PATIENCE_SECONDS",
    Reader::Ranks,
    Kind::Seconds,
    "0.01",
    "How long a request may wait while a learned order cannot go on, before the ranks talk again.",
);

/// `FARANDOLE_TIMEOUT_SECONDS`.
pub const TIMEOUT_SECONDS: Setting = Setting::does(
    "FARANDOLE_TIMEOUT_SECONDS",
    Reader::Ranks,
    Kind::Seconds,
    "0",
    "A collective, named or direct, in which nothing moves for this long fails; 0: a late peer is reported as a \
     stall and waited for.",
)
.horovod("HOROVOD_GLOO_TIMEOUT_SECONDS")
.flag("gloo-timeout-seconds", "SECONDS")
.key("library_options.gloo_timeout_seconds");

/// `FARANDOLE_STALL_CHECK_TIME_SECONDS`.
pub const STALL_CHECK_TIME_SECONDS: Setting = Setting::does(
    "FARANDOLE_STALL_CHECK_TIME_SECONDS",
    Reader::Ranks,
    Kind::Seconds,
    "60",
    "After this long without all ranks having asked for a request, a report says who is missing.",
)
.horovod("HOROVOD_STALL_CHECK_TIME_SECONDS")
.flag("stall-check-warning-time-seconds", "SECONDS")
.key("stall_check.warning_time_seconds");

/// `FARANDOLE_STALL_SHUTDOWN_TIME_SECONDS`.
pub const STALL_SHUTDOWN_TIME_SECONDS: Setting = Setting::does(
    "FARANDOLE_STALL_SHUTDOWN_TIME_SECONDS",
    Reader::Ranks,
    Kind::Seconds,
    "0",
    "After this long the stall ends the job; 0 means never.",
)
.horovod("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS")
.flag("stall-check-shutdown-time-seconds", "SECONDS")
.key("stall_check.shutdown_time_seconds");

/// `FARANDOLE_STALL_CHECK_DISABLE`.
pub const STALL_CHECK_DISABLE: Setting = Setting::does(
    "FARANDOLE_STALL_CHECK_DISABLE",
    Reader::Ranks,
    Kind::Switch,
    "0",
    "1: stalls are not reported. The key says the opposite: `enabled`.",
)
.horovod("HOROVOD_STALL_CHECK_DISABLE")
.switch("no-stall-check", "stall-check")
.key("stall_check.enabled");

/// `FARANDOLE_CHECK_PARAMETERS`.
pub const CHECK_PARAMETERS: Setting = Setting::does(
    "FARANDOLE_CHECK_PARAMETERS",
    Reader::Ranks,
    Kind::CountOrAuto,
    "auto",
    "`auto`: optimizers compare a sample of all ranks' parameters once; N: all of them, after every N steps; 0: never.",
);

/// `FARANDOLE_WIRE_PROTECTION`.
pub const WIRE_PROTECTION: Setting = Setting::does(
    "FARANDOLE_WIRE_PROTECTION",
    Reader::Ranks,
    Kind::OneOf(&["off", "checksum", "encrypt"]),
    "off",
    "How tensors are protected between hosts: CRC32C finds accidental damage, AES-256-GCM also keeps them secret and \
     unchanged. The same on all ranks. Also `init(wire_protection=…)` in Python and `Setup::wire_protection` in \
     Rust.",
)
.flag("wire-protection", "HOW")
.key("library_options.wire_protection");

/// `FARANDOLE_PLANE`.
pub const PLANE: Setting = Setting::does(
    "FARANDOLE_PLANE",
    Reader::Ranks,
    Kind::OneOf(&["auto", "own", "nccl", "staged"]),
    "auto",
    "How collectives on GPU tensors are carried out. `own`: in device memory, which the ranks of a host map (CUDA IPC); \
     `nccl`: by NCCL, and it is an error if a rank has none; `staged`: through pinned host memory; `auto`: `own` for \
     groups on one host, `nccl` for others if all ranks have it, `staged` otherwise. What a plane cannot do takes the \
     next. Where ranks of one host are in different PID namespaces, only `own` maps device memory. The same on all \
     ranks.",
);

/// `HOROVOD_GPU_OPERATIONS`, and its older name for allreduces alone.
pub const GPU_OPERATIONS: Setting = Setting::does(
    "HOROVOD_GPU_OPERATIONS",
    Reader::Ranks,
    Kind::Text("the name of a library"),
    "",
    "`NCCL`: collectives on GPU tensors are carried out by NCCL where all ranks have it, unless `FARANDOLE_PLANE` says \
     something. Any other library is not used. (Horovod reads it when it is built.)",
)
.horovod("HOROVOD_GPU_ALLREDUCE");

/// `FARANDOLE_NCCL_LIBRARY`.
pub const NCCL_LIBRARY: Setting = Setting::does(
    "FARANDOLE_NCCL_LIBRARY",
    Reader::Ranks,
    Kind::Text("a file"),
    "",
    "The file of NCCL's library (2.18 or later). Unset: the one that a framework has brought into the process, or \
     `libnccl.so.2` where the linker finds it, or the one of the wheel `nvidia-nccl`.",
);

/// `FARANDOLE_SLICE_BYTES`.
pub const SLICE_BYTES: Setting = Setting::does(
    "FARANDOLE_SLICE_BYTES",
    Reader::Ranks,
    Kind::Bytes,
    "4194304",
    "Between hosts and without NCCL, an allreduce of GPU tensors is exchanged in slices of this many bytes: while one \
     is on the network, the next are copied to the host and those before are copied back. 0: all at once. The same on \
     all ranks.",
);

/// `FARANDOLE_RANKS_PER_GPU`.
pub const RANKS_PER_GPU: Setting = Setting::does(
    "FARANDOLE_RANKS_PER_GPU",
    Reader::Ranks,
    Kind::Count,
    "0",
    "How many ranks of a host are meant to use the same GPU; where more do, one line says so. `farandole run` sets it; 0: \
     as many as there are ranks for each GPU.",
);

/// `FARANDOLE_THREAD_AFFINITY`.
pub const THREAD_AFFINITY: Setting = Setting::does(
    "FARANDOLE_THREAD_AFFINITY",
    Reader::Ranks,
    Kind::Cores,
    "",
    "The core that the engine's worker thread of each rank of a host is bound to, in the order of local ranks; \
     unset: none. Threads of the program are not bound.",
)
.horovod("HOROVOD_THREAD_AFFINITY")
.flag("thread-affinity", "CORES")
.key("library_options.thread_affinity");

/// `FARANDOLE_SPIN_US`.
pub const SPIN_US: Setting = Setting::does(
    "FARANDOLE_SPIN_US",
    Reader::Ranks,
    Kind::MicrosecondsOrAuto,
    "auto",
    "How many microseconds a driver with nothing to do polls before it sleeps.",
);

/// `FARANDOLE_TABLES`.
pub const TABLES: Setting = Setting::does(
    "FARANDOLE_TABLES",
    Reader::Ranks,
    Kind::Path("a folder, or off"),
    "",
    "Where measured tables (`farandole calibrate`) are read from; unset: a folder of the user's own \
     (docs/performance.md).",
);

/// `FARANDOLE_SIMD`.
pub const SIMD: Setting = Setting::does(
    "FARANDOLE_SIMD",
    Reader::Ranks,
    Kind::OneOf(&["portable", "avx2", "avx512"]),
    "",
    "The widest instructions that arithmetic may use; unset: the best that the processor has. All give the same bits.",
);

/// `FARANDOLE_START_TIMEOUT`. Horovod's default; a batch system starts the tasks of a job within seconds.
pub const START_TIMEOUT: Setting = Setting::does(
    "FARANDOLE_START_TIMEOUT",
    Reader::LauncherAndRanks,
    Kind::Seconds,
    "30",
    "How long hosts may take to answer and ranks to find each other.",
)
.horovod("HOROVOD_START_TIMEOUT")
.flag("start-timeout", "SECONDS");

/// `FARANDOLE_HEARTBEAT_TIMEOUT`. Several heartbeats, and longer than the pauses of a machine that swaps; short beside
/// the time that a stuck job wastes.
pub const HEARTBEAT_TIMEOUT: Setting = Setting::does(
    "FARANDOLE_HEARTBEAT_TIMEOUT",
    Reader::LauncherAndRanks,
    Kind::Seconds,
    "5",
    "A rank or host that is silent for this long counts as dead; 0 means never.",
)
.flag("heartbeat-timeout", "SECONDS");

/// `FARANDOLE_GRACE`. Enough to write a last line or close a file, short for somebody who waits at a terminal.
pub const GRACE: Setting = Setting::does(
    "FARANDOLE_GRACE",
    Reader::Launcher,
    Kind::Seconds,
    "5",
    "How long ranks that are told to end may take before they are killed.",
)
.flag("grace", "SECONDS");

/// `FARANDOLE_ELASTIC_TIMEOUT`. Horovod's default: long enough for a cluster to bring another machine.
pub const ELASTIC_TIMEOUT: Setting = Setting::does(
    "FARANDOLE_ELASTIC_TIMEOUT",
    Reader::LauncherAndRanks,
    Kind::Seconds,
    "600",
    "How long an elastic job waits while it has fewer members than it needs, before it ends.",
)
.horovod("HOROVOD_ELASTIC_TIMEOUT")
.flag("elastic-timeout", "SECONDS")
.key("elastic.timeout");

/// `FARANDOLE_INTERFACE`.
pub const INTERFACE: Setting = Setting::does(
    "FARANDOLE_INTERFACE",
    Reader::LauncherAndRanks,
    Kind::Text("names of interfaces, separated by commas"),
    "",
    "Interfaces whose addresses are offered to other hosts; unset: whatever can be reached. The flag takes addresses \
     and networks as well.",
)
.horovod("HOROVOD_GLOO_IFACE")
.flag("network-interface", "NETWORKS");

/// `FARANDOLE_ADDRESS`.
pub const ADDRESS: Setting = Setting::does(
    "FARANDOLE_ADDRESS",
    Reader::Ranks,
    Kind::Text("IP addresses, separated by commas"),
    "",
    "Addresses of this host at which other hosts reach it, for launchers other than `farandole run`; unset: the one \
     on the way to the rendezvous.",
);

/// `FARANDOLE_HOST`.
pub const HOST: Setting = Setting::does(
    "FARANDOLE_HOST",
    Reader::Ranks,
    Kind::Text("a text"),
    "",
    "Identity of this host: ranks with equal ones share memory; unset: host name, boot and network namespace.",
);

/// `FARANDOLE_JOB`.
pub const JOB: Setting = Setting::does(
    "FARANDOLE_JOB",
    Reader::Ranks,
    Kind::Text("a text"),
    "",
    "Name of the job: ranks of another job with the same key are refused; unset: what the launcher calls it.",
);

/// `FARANDOLE_KEY`.
pub const KEY: Setting = Setting::does(
    "FARANDOLE_KEY",
    Reader::Ranks,
    Kind::Text("64 hexadecimal digits"),
    "",
    "The job's key, for launchers other than `farandole run` when ranks are on several hosts (docs/launchers.md).",
);

/// `FARANDOLE_KEY_FILE`.
pub const KEY_FILE: Setting = Setting::does(
    "FARANDOLE_KEY_FILE",
    Reader::Ranks,
    Kind::Path("a file"),
    "",
    "A file with the job's key; unset: `~/.config/farandole/key`.",
);

/// `FARANDOLE_METRICS`.
pub const METRICS: Setting = Setting::does(
    "FARANDOLE_METRICS",
    Reader::Launcher,
    Kind::Text("[ADDRESS:]PORT"),
    "",
    "Where metrics of all ranks are shown for Prometheus; unset: nowhere.",
)
.flag("metrics", "[ADDRESS:]PORT");

/// `FARANDOLE_LOG_LEVEL`.
pub const LOG_LEVEL: Setting = Setting::does(
    "FARANDOLE_LOG_LEVEL",
    Reader::Ranks,
    Kind::Level,
    "warning",
    "How much is said on standard error. `info`: each rank says at its start who it is; `debug`: rank 0 also says \
     which measured table is used. A program with a logger of its own (the `log` crate) decides for itself.",
)
.horovod("HOROVOD_LOG_LEVEL")
.flag("log-level", "LEVEL")
.key("logging.level");

/// `FARANDOLE_HOROVOD_PATH`.
pub const HOROVOD_PATH: Setting = Setting::does(
    "FARANDOLE_HOROVOD_PATH",
    Reader::Commands,
    Kind::Path("a folder"),
    "",
    "Where `farandole run --horovod` finds the package `horovod`; unset: where the Python of the command has it.",
);

/// `FARANDOLE_PEERS_PYTHON`.
pub const PEERS_PYTHON: Setting = Setting::does(
    "FARANDOLE_PEERS_PYTHON",
    Reader::Commands,
    Kind::Path("a program"),
    "",
    "The Python in which `farandole bench --against` runs other libraries; unset: the one that `cargo xtask peers` \
     makes.",
);

/// `FARANDOLE_TRACE`.
pub const TRACE: Setting = Setting::does(
    "FARANDOLE_TRACE",
    Reader::Ranks,
    Kind::Path("a folder"),
    "",
    "Every rank keeps a trace there (docs/insight.md); unset: none is kept.",
)
.flag("trace", "DIR");

/// `FARANDOLE_TRACE_TROUBLE`.
pub const TRACE_TROUBLE: Setting = Setting::does(
    "FARANDOLE_TRACE_TROUBLE",
    Reader::Ranks,
    Kind::Path("a folder, or 0"),
    "",
    "Where a rank that meets an error or a stall leaves the latest of what it recorded; 0: nowhere; unset: among \
     temporary files.",
);

/// `FARANDOLE_MEMBERSHIP_LOG`.
pub const MEMBERSHIP_LOG: Setting = Setting::does(
    "FARANDOLE_MEMBERSHIP_LOG",
    Reader::Ranks,
    Kind::Path("a folder"),
    "",
    "Where each member of an elastic job records all that its agreement with the others was told and has decided, so \
     that it can be repeated; unset: nowhere.",
);

/// `FARANDOLE_TRACE_SIGNAL`. SIGUSR2: schedulers and training libraries use SIGUSR1 to announce that time is running
/// out.
pub const TRACE_SIGNAL: Setting = Setting::does(
    "FARANDOLE_TRACE_SIGNAL",
    Reader::Ranks,
    Kind::Count,
    "12",
    "The signal at which a rank saves what it recorded; 0: none.",
);

/// `FARANDOLE_TIMELINE`.
pub const TIMELINE: Setting = Setting::does(
    "FARANDOLE_TIMELINE",
    Reader::Ranks,
    Kind::Path("a file, or DYNAMIC"),
    "",
    "Rank 0 writes Horovod's timeline there; DYNAMIC: when the program calls `start_timeline`.",
)
.horovod("HOROVOD_TIMELINE")
.flag("timeline-filename", "FILE")
.key("timeline.filename");

/// `FARANDOLE_TIMELINE_MARK_CYCLES`.
pub const TIMELINE_MARK_CYCLES: Setting = Setting::does(
    "FARANDOLE_TIMELINE_MARK_CYCLES",
    Reader::Ranks,
    Kind::Switch,
    "0",
    "Marks in the timeline when requests were taken in.",
)
.horovod("HOROVOD_TIMELINE_MARK_CYCLES")
.switch("timeline-mark-cycles", "no-timeline-mark-cycles")
.key("timeline.mark_cycles");

/// `FARANDOLE_RECORDER_RECORDS`. 8 MiB: a tensor takes one record in each iteration, a bucket some ten, so a model of
/// 160 tensors fills it in about 1,500 iterations and one of 1,000 tensors in 250.
pub const RECORDER_RECORDS: Setting = Setting::does(
    "FARANDOLE_RECORDER_RECORDS",
    Reader::Ranks,
    Kind::Count,
    "262144",
    "Records of 32 bytes that a rank keeps in memory for each group; 0 turns the recorder off.",
);

/// `FARANDOLE_PHASES`.
pub const PHASES: Setting = Setting::does(
    "FARANDOLE_PHASES",
    Reader::Python,
    Kind::Switch,
    "1",
    "0: PyTorch is left as it is; phases of a script are not marked by themselves.",
);

/// `FARANDOLE_ASYNC_COMPLETION`.
pub const ASYNC_COMPLETION: Setting = Setting::does(
    "FARANDOLE_ASYNC_COMPLETION",
    Reader::Python,
    Kind::SwitchOrAuto,
    "auto",
    "Whether waiting for an operation in device memory (`synchronize`, `step`) ends when the ranks have queued it on \
     their devices; the current stream waits for the result. `0`: when the result is there; `1`: when it is queued; \
     `auto`: when it is queued, unless a trace is kept.",
)
.horovod("HOROVOD_ENABLE_ASYNC_COMPLETION");

/// `FARANDOLE_DYNAMIC_PROCESS_SETS`.
pub const DYNAMIC_PROCESS_SETS: Setting = Setting::does(
    "FARANDOLE_DYNAMIC_PROCESS_SETS",
    Reader::Python,
    Kind::Switch,
    "0",
    "Process sets may be added and removed after `init`.",
)
.horovod("HOROVOD_DYNAMIC_PROCESS_SETS");

/// `FARANDOLE_COMMAND`.
pub const COMMAND: Setting = Setting::does(
    "FARANDOLE_COMMAND",
    Reader::Python,
    Kind::Path("a program"),
    "",
    "The command `farandole` that `farandole.run` starts; unset: beside the running Python, then on the path.",
);

/// `FARANDOLE_ELASTIC`.
pub const ELASTIC: Setting = Setting::does(
    "FARANDOLE_ELASTIC",
    Reader::Ranks,
    Kind::Switch,
    "0",
    "`farandole run` sets it for the members of an elastic job (docs/elastic.md). 1: `DistributedOptimizer` submits \
     gradients also where there is one rank.",
)
.horovod("HOROVOD_ELASTIC");
