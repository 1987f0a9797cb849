//! The data: Horovod's settings that do nothing here, each with the reason, and variables between parts of Farandole.
//! A name that ends in `*` stands for all that begin so.

use crate::Setting;

const fn none(name: &'static str, why: &'static str) -> Setting {
    Setting::without_effect(name, why)
}

const fn internal(name: &'static str, what: &'static str) -> Setting {
    Setting::internal(name, what)
}

const AUTOTUNE_WHY: &str =
    "nothing is tuned while a job runs; `farandole calibrate` measures algorithms once, for all jobs";
const STREAMS_WHY: &str =
    "a process set runs one bucket at a time, so one stream is all that it can use; process sets have one each";
const PACKING_WHY: &str =
    "tensors on GPUs are packed and unpacked by one kernel for all of them, where they are at all";
const ONE_PLANE_WHY: &str =
    "one plane is chosen for all collectives on GPU tensors: FARANDOLE_PLANE, or HOROVOD_GPU_OPERATIONS";
const MPI_WHY: &str = "data never travels through MPI";
const TIME_WHY: &str =
    "lines of the log carry no time; `farandole run --prefix-output-with-timestamp` puts one before every line";
const BUILD_WHY: &str = "it is read when Horovod is built, and nothing is built here";

pub(crate) const UNUSED: &[Setting] = &[
    none("HOROVOD_CYCLE_TIME", "there is no cycle: requests start when they are ready"),
    none(
        "HOROVOD_HIERARCHICAL_ALLGATHER",
        "the form of an allgather is chosen by its size and by which ranks share a host",
    ),
    none("HOROVOD_TORUS_ALLREDUCE", "there is no torus allreduce; the algorithm is chosen by size and placement"),
    none("HOROVOD_AUTOTUNE", AUTOTUNE_WHY),
    none("HOROVOD_AUTOTUNE_*", AUTOTUNE_WHY),
    none("HOROVOD_BATCH_D2D_MEMCOPIES", PACKING_WHY),
    none("HOROVOD_NUM_NCCL_STREAMS", STREAMS_WHY),
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
    none(
        "HOROVOD_ELASTIC_*",
        "elastic jobs are described by flags (`farandole run --help`); only the timeout is a variable",
    ),
    none("HOROVOD_SPARK_*", "there is no support for Spark yet"),
    none("_HOROVOD_SECRET_KEY", "it is the secret of Horovod's own launcher; the key of a job is in FARANDOLE_KEY"),
];

pub(crate) const BUILD: &[Setting] = &[
    none("HOROVOD_WITH_*", BUILD_WHY),
    none("HOROVOD_WITHOUT_*", BUILD_WHY),
    none("HOROVOD_GPU", BUILD_WHY),
    none("HOROVOD_GPU_ALLGATHER", ONE_PLANE_WHY),
    none("HOROVOD_GPU_ALLTOALL", ONE_PLANE_WHY),
    none("HOROVOD_GPU_BROADCAST", ONE_PLANE_WHY),
    none("HOROVOD_GPU_REDUCESCATTER", ONE_PLANE_WHY),
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

pub(crate) const LAUNCHED: &[Setting] = &[
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
    internal("FARANDOLE_TORCH_STORE", "`MASTER_ADDR:MASTER_PORT` as `farandole run` has chosen them."),
    internal("FARANDOLE_TASK_FD", "Descriptor of the function that `farandole.run` calls."),
    internal("FARANDOLE_RESULT_FD", "Descriptor for its result."),
    internal(
        "FARANDOLE_ELASTIC_MEMBER",
        "Number of this process in an elastic job; no other process of the job has it.",
    ),
    internal("FARANDOLE_ELASTIC_MIN_NP", "With fewer members an elastic job waits."),
    internal("FARANDOLE_ELASTIC_MAX_NP", "The most members of an elastic job; unset: any number."),
    internal("FARANDOLE_VOTES_FD", "Descriptor of the file in which a member of an elastic job records its votes."),
    internal("FARANDOLE_RESTART", "How often `farandole run --restarts` has started the whole job again."),
    internal("FARANDOLE_TRAIN_NEWS", "Where ranks of `farandole train` tell the command how far they are."),
    internal("FARANDOLE_STUDY_*", "The point of the sweep, for commands that `farandole study` starts."),
    internal("HOROVOD_GLOO_RENDEZVOUS_ADDR", "With the port: tells jobs of `horovodrun` on one host apart."),
    internal("HOROVOD_GLOO_RENDEZVOUS_PORT", "See `HOROVOD_GLOO_RENDEZVOUS_ADDR`."),
    internal("HOROVOD_HOSTNAME", "The rank's host, as `horovodrun` sets it; `farandole run --horovod` does, too."),
];

pub(crate) const DEVELOPMENT: &[Setting] = &[
    internal("FARANDOLE_TEST_*", "Roles and switches of tests."),
    internal("FARANDOLE_PROGRAMS", "How many of the engine's random programs are run."),
    internal("FARANDOLE_PROGRAMS_SEED", "From which one on."),
    internal("FARANDOLE_WRITE_SEEDS", "Writes the seeds of the fuzzers anew."),
    internal("FARANDOLE_MEMCHECK", "Makes tests short enough for valgrind."),
];
