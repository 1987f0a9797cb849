//! How an engine starts: it meets the other ranks, makes the group of the world, and starts the worker.

use crate::abort::AbortHandle;
use crate::affinity;
use crate::config::{Config, DevicePlaneChoice};
use crate::connector::Connector;
use crate::driver::{Driver, OnStall};
use crate::driver_lock::DriverLock;
use crate::engine::{Engine, Forming, Hooks};
use crate::error::{Error, Failure, Result};
use crate::exec::backoff::Backoff;
use crate::exec::device::{DevicePlane, OpenDevice};
use crate::exec::nccl::NcclPlane;
use crate::group::{Accelerators, Group, Settings};
use crate::plane::{GroupSeat, Offer, Plane, PlaneGroup};
use crate::record::group::{GroupRecord, Start};
use crate::shared::Shared;
use crate::status_reporter::StatusReporter;
use crate::tensor_table::TensorTable;
use crate::wait_limits::WaitLimits;
use farandole_device::nccl::SharedLibrary;
use farandole_plan::agree::{Joining, Replay, Settings as AgreeSettings};
use farandole_plan::choose::Hierarchical;
use farandole_plan::fuse::BatchFusion;
use farandole_plan::table::Table;
use farandole_plan::topology::host_names;
use farandole_plan::{GroupId, Rank, stall};
use farandole_trace::{Identity, Recorder};
use farandole_transport::shm::ForkGuard;
use farandole_transport::{Mesh, Waiter};
use std::sync::{Arc, Mutex, Once, OnceLock};
use std::time::Duration;

/// Where ranks share memory, an allreduce of this size takes longer to be copied into the fusion buffer and out of it
/// (a quarter of a millisecond) than a bucket of its own costs, even if a sleeping peer has to be woken for it.
const ALONE_FROM_BYTES: u64 = 1 << 20;

impl Engine {
    /// Starts this rank's engine: meets the other ranks and starts the worker. All ranks of the world call this.
    ///
    /// # Errors
    /// [`Error::Failed`] if the ranks do not find each other in time.
    pub fn start(connector: impl Connector + 'static, config: Config) -> Result<Engine> {
        Engine::start_with(connector, config, Hooks::default())
    }

    /// As [`Engine::start`], with hooks.
    pub fn start_with(connector: impl Connector + 'static, config: Config, hooks: Hooks) -> Result<Engine> {
        let mut connector: Box<dyn Connector> = Box::new(connector);
        let (rank, hosts): (Rank, Arc<[String]>) = (connector.rank(), connector.hosts().into());
        let ranks: Arc<[Rank]> = (0..hosts.len()).map(Rank::from).collect();
        let core = affinity::core_of(&config, rank, &hosts)?;
        let waiter = Arc::new(Waiter::new().map_err(not_started)?);
        let fork = ForkGuard::new().map_err(not_started)?;
        let mesh = connector.mesh(GroupId::WORLD, &ranks, &waiter, config.meet_deadline).map_err(not_started)?;
        let awake = config.spin_us.map(Duration::from_micros);
        let backoff = Backoff::of_driver(mesh.topology().local_size(mesh.me()), awake);
        let recorder = hooks.recorder.unwrap_or_else(|| recorder(&config, rank, &hosts));
        let start = Start::now();
        let record = GroupRecord::new(&recorder, GroupId::WORLD, &ranks, start);
        let host_names: Arc<[String]> = host_names(&hosts).into();
        let settings = settings(&config, hooks.table.clone(), GroupId::WORLD, &ranks, &host_names);
        let added = join_planes(&hooks.planes, GroupId::WORLD, &mesh, &waiter).map_err(not_started)?;
        let mut accelerators = accelerators(hooks.devices.as_ref(), hooks.nccl.as_ref(), &waiter);
        accelerators.device = accelerators.device.map(|plane| plane.watching(config.ranks_per_gpu));
        let not_mapped = why_not_mapped(&config, &mesh, &accelerators);
        let world = Group::new(settings, mesh, record, added, accelerators);
        let tensor_table = Arc::new(TensorTable::default());
        tensor_table.add(GroupId::WORLD, ranks, Some(rank), world.device_reach());
        let on_stall: OnStall = hooks
            .on_stall
            .unwrap_or_else(|| Arc::new(|notice| log::warn!(target: farandole_settings::REPORT, "{}", notice.shown())));
        let abort = AbortHandle::new(waiter.bell());
        let status_reporter = StatusReporter::new(Arc::clone(&recorder), hooks.stacks, waiter.bell());
        let (known, woken) = (Arc::clone(&tensor_table), Arc::clone(&waiter));
        let driver = Driver::new(world, start.instant, known, woken, abort.clone(), on_stall, status_reporter);
        let driver_lock = DriverLock::new(driver, waiter, backoff);
        let shared = Arc::new(Shared { driver_lock, tensor_table, fork, recorder: Arc::clone(&recorder) });
        let (is_bound, bound) = std::sync::mpsc::sync_channel(1);
        let worker = std::thread::Builder::new()
            .name(format!("farandole-{rank}"))
            .spawn({
                let shared = Arc::clone(&shared);
                move || {
                    let bound = core.map_or(Ok(()), affinity::bind_to);
                    let works = bound.is_ok();
                    // The engine waits for this word, unless it has gone already.
                    let _ = is_bound.send(bound);
                    if works {
                        shared.driver_lock.work();
                    }
                }
            })
            .map_err(|error| not_started(farandole_transport::Error::local("starting a thread", error)))?;
        bound.recv().expect("invariant: the worker says first whether it is bound")?;
        let forming = Mutex::new(Forming { connector, rounds: 0 });
        let Hooks { table, planes, devices, nccl, .. } = hooks;
        Ok(Engine {
            shared,
            worker: Some(worker),
            abort,
            rank,
            hosts,
            host_names,
            config,
            table,
            planes,
            devices,
            nccl,
            not_mapped,
            not_mapped_logged: Once::new(),
            recorder,
            start,
            forming,
            exit: OnceLock::new(),
        })
    }
}

/// The recorder of an engine that was given none.
pub(crate) fn recorder(config: &Config, rank: Rank, hosts: &[String]) -> Arc<Recorder> {
    let identity = Identity {
        rank: rank.0,
        size: hosts.len() as u32,
        host: hosts[rank.index()].clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        settings: config.shown(),
    };
    Recorder::new(identity, config.recorder_records as usize)
}

pub(crate) fn wait_limits(config: &Config) -> WaitLimits {
    // As for stalls of named requests: a limit that comes before the warning is none.
    let counts = !config.stall_check_disable && config.stall_shutdown > config.stall_warning;
    let stall_shutdown = if counts { config.stall_shutdown } else { Duration::ZERO };
    WaitLimits { timeout: config.deadline, stall_shutdown }
}

pub(crate) fn share_a_host(ranks: &[Rank], host_names: &[String]) -> bool {
    ranks.windows(2).all(|pair| host_names[pair[0].index()] == host_names[pair[1].index()])
}

pub(crate) fn settings(
    config: &Config,
    table: Option<Arc<Table>>,
    id: GroupId,
    ranks: &Arc<[Rank]>,
    host_names: &Arc<[String]>,
) -> Settings {
    let defaults = AgreeSettings::default();
    // A replayed bucket that some rank has not come to must be negotiated before it looks like a failure, and before
    // its stall is reported: only the negotiation shows who has asked for it.
    let before_failure = if config.deadline.is_zero() { Duration::MAX } else { config.deadline / 4 };
    let before_report = if config.stall_check_disable { Duration::MAX } else { config.stall_warning / 2 };
    let longest = before_failure.min(before_report);
    let agree = AgreeSettings {
        threshold_bytes: config.fusion_threshold_bytes,
        alone_from_bytes: if share_a_host(ranks, host_names) { ALONE_FROM_BYTES } else { defaults.alone_from_bytes },
        patience: config.patience.min(longest),
        run_limit: defaults.run_limit.min(longest),
        replay: if config.replay == 0 { Replay::Never } else { Replay::Allowed },
        batches: if config.disable_group_fusion { BatchFusion::Apart } else { BatchFusion::WithOthers },
        joining: if config.join_everything { Joining::Everything } else { Joining::LikeHorovod },
        world_ranks: ranks.to_vec(),
        ..defaults
    };
    let fusion_limit_bytes = config.fusion_threshold_bytes.max(agree.stage_below_bytes) as usize;
    let wait = wait_limits(config);
    let wait_limits = stall::StallLimits { warn_after: config.stall_warning, shut_down_after: config.stall_shutdown };
    Settings {
        id,
        ranks: Arc::clone(ranks),
        hosts: Arc::clone(host_names),
        agree,
        fusion_limit_bytes,
        slice_bytes: config.slice_bytes,
        wait,
        stall: (!config.stall_check_disable).then_some(wait_limits),
        table,
        hierarchical: match config.hierarchical_allreduce {
            None => Hierarchical::Chosen,
            Some(true) => Hierarchical::Always,
            Some(false) => Hierarchical::Never,
        },
        device_plane: config.plane,
    }
}

/// Joins this rank to the others of a group on every plane that was added.
pub(crate) fn join_planes(
    planes: &[Arc<dyn Plane>],
    group: GroupId,
    mesh: &Mesh,
    waiter: &Waiter,
) -> farandole_transport::Result<Vec<(Offer, Box<dyn PlaneGroup>)>> {
    let seat = || GroupSeat { group, me: mesh.me(), topology: mesh.topology(), bell: waiter.bell() };
    planes.iter().map(|plane| Ok((plane.offer(), plane.join(seat())?))).collect()
}

/// What a group needs to work in device memory, if devices are to be used.
pub(crate) fn accelerators(open: Option<&OpenDevice>, nccl: Option<&SharedLibrary>, waiter: &Waiter) -> Accelerators {
    let device = open.map(|open| DevicePlane::new(Arc::clone(open), waiter.bell()));
    Accelerators { device, nccl: nccl.map(|library| NcclPlane::new(Arc::clone(library))) }
}

/// Why ranks of this host do not map each other's device memory although they could try: one line of its first rank.
fn why_not_mapped(config: &Config, mesh: &Mesh, accelerators: &Accelerators) -> Option<String> {
    let is_first = mesh.topology().local_rank(mesh.me()) == 0 && mesh.topology().local_size(mesh.me()) > 1;
    let is_wanted = accelerators.device.is_some() && config.plane != DevicePlaneChoice::Staged;
    let is_refused = is_wanted && !config.plane.may_map(mesh.has_common_pids);
    let instead = if accelerators.nccl.is_some() { "by NCCL" } else { "through host memory" };
    (is_first && is_refused).then(|| {
        format!(
            "ranks of this host: in different PID namespaces, where CUDA may refuse to map the device memory of a peer; \
             tensors on GPUs are reduced {instead}. Run the ranks of a host in one PID namespace (Docker: --pid=host), \
             or set {}=own to map device memory",
            farandole_settings::PLANE.name
        )
    })
}

pub(crate) fn not_started(error: farandole_transport::Error) -> Error {
    let what = format!("the ranks could not meet: {error}");
    Error::from(Failure { what, class: error.class(), rank: error.peer(), tensor: None, elapsed: None })
}
