//! Everything that `Setup`, `World` and `Error` show has a name in this crate: nothing else is imported here.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use farandole::connect::{Checksum, FrameOptions, Layout, Local, Options, Seal};
use farandole::device::pretend::PretendNccl;
use farandole::{
    ClusterError, Communicator, Config, Cycles, DevicePlaneChoice, DirectSettings, Engine, EngineError, Error,
    ErrorClass, Failure, FailureKind, FailureNotice, Lifeline, Pending, PhaseGuard, ProcessSet, Protection, Rank,
    Recorder, ReduceOp, Setup, Table, Topology, TransportError, World,
};

/// A setup with every part of its options.
fn setup() -> Setup {
    let options = Options {
        connections: Some(1),
        shape: FrameOptions { checksum: Checksum::Off, ..FrameOptions::default() },
        seal: Seal::Off,
        socket_buffer_bytes: None,
        local: Local::Stream,
        layout: Some(Layout::standard(1)),
    };
    Setup::new()
        .config(Config::default())
        .direct(DirectSettings::default())
        .options(options)
        .wire_protection(Protection::Off)
        .patience(Duration::from_secs(5))
        .tables(farandole::Shelf::OFF)
        .process_sets(vec![vec![0]])
        .nccl_files(Vec::new())
        .planes(Vec::<std::sync::Arc<dyn farandole::plane::Plane>>::new())
}

#[test]
fn what_a_world_shows_can_be_named() {
    let mut world: World = setup().init().expect("a world of one");
    let topology: &Topology = world.topology();
    assert_eq!((topology.hosts(), topology.host_of(Rank(0))), (1, 0));
    assert!(world.table().is_none_or(|_: &Table| false), "tables are off");
    assert!(world.lifeline().is_none_or(|_: &Lifeline| false), "nobody else can be lost");
    let _recorder: &std::sync::Arc<Recorder> = world.recorder();
    let _phase: PhaseGuard = world.phase("setup");
    let _engine: &Engine = world.engine();
    let _communicator: &mut Communicator = world.communicator();
    let sets: Vec<ProcessSet> = world.process_sets();
    assert_eq!(sets.len(), 1, "a set of all ranks is the world");
    let folder = farandole_testing::Folder::new();
    let file = folder.join("timeline.json");
    world.start_timeline(&file, Cycles::Unmarked).expect("a timeline");
    world.stop_timeline().expect("its end");
    assert!(file.exists());
    world.shutdown();
}

#[test]
fn a_pending_result_has_the_type_of_what_comes() {
    let world = farandole::init().expect("a world of one");
    let sum: Pending<Vec<i64>> = world.named("sum").allreduce(vec![1, 2], ReduceOp::Sum).expect("submit");
    let counted: Pending<(Vec<u8>, Vec<usize>)> = world.named("exchange").alltoallv(vec![7, 8], &[2]).expect("submit");
    let done: Pending<()> = world.named("barrier").barrier().expect("submit");
    assert_eq!(sum.wait_for(Duration::from_secs(5)).expect("sum"), [1, 2]);
    assert_eq!(counted.wait().expect("exchange"), (vec![7, 8], vec![2]));
    done.wait().expect("barrier");
    assert_eq!(world.join().expect("join"), 0);
}

/// The types of what a setup takes have names here.
#[test]
fn a_setup_takes_what_this_crate_names() {
    let _: fn(Setup, farandole::Environment) -> Setup = Setup::environment;
    let _: fn(Setup, std::net::IpAddr) -> Setup = Setup::address;
    let _: fn(Setup, farandole::stall::Stacks) -> Setup = Setup::stacks;
    let _: fn(Setup, farandole::stall::OnStall) -> Setup = Setup::on_stall;
    let _: fn(Setup, farandole::OpenDevice) -> Setup = Setup::devices;
    let _: fn(Setup, farandole::device::nccl::SharedLibrary) -> Setup = Setup::nccl;
    let _: fn(Setup, farandole::elastic::BeforeJoining) -> Setup = Setup::before_joining;
}

#[test]
fn errors_name_their_layer_and_give_the_cause_behind_it() {
    let refused = || std::io::Error::from(std::io::ErrorKind::PermissionDenied);
    let failure = Failure {
        what: "rank 1 is gone".into(),
        class: ErrorClass::RankLost,
        rank: Some(Rank(1)),
        tensor: None,
        elapsed: None,
    };
    let notice = FailureNotice::new(FailureKind::Gone).on_rank(Rank(1));
    let launcher = FailureNotice::new(FailureKind::LauncherLost);
    for (error, words, has_cause, is_rank_lost) in [
        (Error::Cluster(ClusterError::local("binding", refused())), "binding: permission denied", true, false),
        (Error::Transport(TransportError::local("mapping", refused())), "mapping: permission denied", true, false),
        (Error::Engine(EngineError::from(failure)), "rank 1 is gone", true, true),
        (Error::Engine(EngineError::ShutDown), "Farandole has been shut down", false, false),
        (Error::Lost(notice), "rank 1", false, true),
        (Error::Lost(launcher), "the launcher is lost", false, false),
    ] {
        assert_eq!(error.is_rank_lost(), is_rank_lost, "{error}");
        assert!(error.to_string().starts_with(words), "{error}");
        assert_eq!(error.source().is_some(), has_cause, "{error:?}");
    }
    let error = Error::Cluster(ClusterError::local("binding", refused()));
    let cause = error.source().and_then(|cause| cause.downcast_ref::<std::io::Error>());
    assert_eq!(cause.map(std::io::Error::kind), Some(std::io::ErrorKind::PermissionDenied));
}

/// The plane that the user asks for must be there on every rank, or `init` says on which it is not, and why.
#[test]
fn a_plane_that_a_rank_does_not_have_ends_init_with_its_name() {
    let config = Config { plane: DevicePlaneChoice::Nccl, ..Config::default() };
    let asking = || setup().config(config.clone());
    let is_there = farandole::device::cuda::is_likely() && farandole::nccl_version(&[]).is_some();
    match asking().init() {
        Ok(_) => assert!(is_there, "there is no NCCL here"),
        Err(error) => {
            let text = error.to_string();
            assert!(
                !is_there && text.contains("FARANDOLE_PLANE=nccl needs NCCL on all ranks, but rank 0 on "),
                "{text}"
            );
        }
    }
    let pretended = asking().nccl(Arc::new(PretendNccl::default()));
    assert_eq!(pretended.init().expect("a world of one with NCCL").size(), 1);
}
