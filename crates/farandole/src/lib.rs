//! Data-parallel training for Rust programs: the public API of Farandole.
//!
//! [`init`] makes this process a rank of its job, whichever launcher started it; without a launcher it is a world of
//! one rank, so the same program runs alone. [`Setup`] does the same with settings of the program. A [`World`] has two
//! kinds of collectives:
//!
//! - *Direct* calls run on the caller's thread, as in MPI: all ranks make the same calls in the same order.
//! - *Named* requests ([`World::named`], or the [`Engine`] itself) may come in any order and from any thread, and run
//!   in the background. Requests of one name on all ranks belong together; small ones are fused. The order of a
//!   training loop is learned, and then no longer negotiated.
//!
//! A [`ProcessSet`] is a part of the world with collectives of its own. The modules `burn` and `candle`, each behind
//! the feature of its name, train networks of Burn and Candle on many ranks.
//!
//! This crate joins the others: it reads the environment, meets the other ranks, starts the engine and the recorder,
//! and re-exports every type that its own API shows. The algorithms and the data path are in the crates below it. When
//! a rank is lost, every call fails with the same cause ([`Error`]); a [`elastic::Training`] goes on without it.
//!
//! ```
//! use farandole::{ReduceOp, init};
//!
//! let mut world = init()?;
//! let mut loss = [world.rank() as f32];
//! world.allreduce(&mut loss, ReduceOp::Average)?;              // direct: all ranks call this together
//!
//! let gradient = vec![1.0f32; 1024];
//! let averaged = world.named("layer1/weight").allreduce(gradient, ReduceOp::Average)?; // named: any order
//! // … compute the next gradient here …
//! let averaged = averaged.wait()?;
//! assert_eq!(averaged.len(), 1024);
//! # Ok::<(), farandole::Error>(())
//! ```

#![forbid(unsafe_code)]

mod accelerators;
#[cfg(any(feature = "burn", feature = "candle"))]
mod agreement;
mod blocks;
mod bond;
#[cfg(feature = "burn")]
pub mod burn;
#[cfg(feature = "candle")]
pub mod candle;
mod direct;
pub mod elastic;
mod error;
mod introduction;
mod measured;
mod named;
mod panic_words;
pub mod parameter_check;
mod records;
mod run;
mod sets;
mod setup;
#[cfg(any(feature = "burn", feature = "candle"))]
mod wire;
mod world;

pub use accelerators::{has_cuda, nccl_version};
pub use error::{Error, Result};
pub use farandole_cluster::environment::{StoreRank, this_host};
/// Files that only a rank of the newest generation replaces ([`World::publisher`]).
pub use farandole_cluster::publish;
pub use farandole_cluster::rendezvous::Address;
pub use farandole_cluster::{Environment, Error as ClusterError, FailureKind, FailureNotice, Launcher, Lifeline};
/// Memory of accelerators ([`Setup::devices`]).
pub use farandole_device as device;
pub use farandole_engine::config::DevicePlaneChoice;
pub use farandole_engine::tables::Shelf;
pub use farandole_engine::{
    AbortHandle, Communicator, Completion, CompletionQueue, Config, DirectSettings, Engine, Error as EngineError,
    Failure, OpenDevice, Outcome, PeerLeft, Returned, SharedBuffer, Submission, Ticket, wait_all,
};
pub use farandole_plan::algorithm::Algorithm;
pub use farandole_plan::table::Table;
pub use farandole_plan::{
    Batch, Collective, Device, Dtype, ErrorClass, Exit, GroupId, Rank, RankDeparture, ReduceOp, Request, Shape,
    Topology,
};
/// The table of settings, and how they are read.
pub use farandole_settings as settings;
pub use farandole_tensor::{Element, OnDevice, Region};
pub use farandole_trace::event::{Phase, RecoveryStage, StepFate, ThreadId};
pub use farandole_trace::{Cycles, Edge, Event, PhaseGuard, Recorder};
pub use farandole_transport::{Error as TransportError, JobId, Protection};
pub use named::{Named, Pending};
pub use run::{run, run_in};
pub use sets::ProcessSet;
pub use setup::{Setup, init};
pub use world::World;

/// How ranks are connected ([`Setup::options`]).
pub mod connect {
    pub use farandole_transport::connect::{Local, Options};
    pub use farandole_transport::frame::Checksum;
    pub use farandole_transport::hello::Seal;
    pub use farandole_transport::shm::layout::Layout;
    pub use farandole_transport::stream::FrameOptions;
}

/// What a program needs to add a plane of its own ([`Setup::planes`]).
pub mod plane {
    pub use farandole_engine::plane::{GroupSeat, Offer, Plane, PlaneGroup, PlaneRun};
    pub use farandole_tensor::Fold;
    pub use farandole_transport::{Bell, Progress, Result};
}

/// What ranks find out about a stall, and how a program's interpreter takes part.
pub mod stall {
    pub use farandole_engine::{OnStall, Stacks, StallNotice};
    pub use farandole_plan::stall::{Interpreter, StallFinding, ThreadStack};
}

/// The example of README.md, compiled and run as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
