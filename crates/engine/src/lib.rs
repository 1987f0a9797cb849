//! Drives: takes requests, agrees with peers, carries collectives out.
//!
//! A front end hands an [`Engine`] requests with memory ([`Submission`]) and gets [`Ticket`]s. Requests are matched by
//! name, so ranks may submit in any order; they run as soon as every rank of the group has asked for them. From the
//! second iteration on the ranks know the order and no longer talk about it.
//!
//! The path of a gradient: `submission` (checks, enters the name) → `command_queue` → `driver` (the loop) → `group`
//! (agreement, the active bucket) → `bucket` (into the fusion buffer) → `exec` (plane, schedule, steps) and back
//! through `bucket` and `completion` to the `ticket`. `driver_lock` says which thread drives; ARCHITECTURE.md has every
//! file.
//!
//! ```
//! use farandole_engine::{Config, Engine, Submission};
//! use farandole_engine::connector::{ThreadWorld, Medium};
//! use farandole_plan::{Collective, Dtype, Rank, ReduceOp, Request};
//! use farandole_tensor::Region;
//!
//! // Two ranks, here as threads of one process.
//! let thread_world = ThreadWorld::new(2, Medium::Pipes(Default::default()));
//! std::thread::scope(|threads| {
//!     for rank in 0..2u32 {
//!         let connector = thread_world.enter(Rank(rank));
//!         threads.spawn(move || {
//!             let engine = Engine::start(connector, Config::default()).unwrap();
//!             let request = Request::new("gradient", Collective::allreduce(ReduceOp::Average), Dtype::F32, [3u64]);
//!             let gradient = Region::from_vec(vec![rank as f32; 3]);
//!             let ticket = engine.submit(Submission::new(request, gradient)).unwrap();
//!             let mean = ticket.wait().unwrap().into_result().unwrap();
//!             assert_eq!(mean.into_vec::<f32>().unwrap(), [0.5; 3]);
//!         });
//!     }
//! });
//! ```

#![forbid(unsafe_code)]
// Under the model checker only the hand-over protocols are of interest; `tests/loom_ticket.rs` takes them in by itself.
#![cfg(not(loom))]

mod abort;
mod affinity;
mod bucket;
mod command_queue;
mod completion;
mod completion_queue;
pub mod config;
pub mod connector;
pub mod direct;
mod driver;
mod driver_faults;
mod driver_lock;
mod engine;
pub mod error;
mod exec;
mod group;
mod pending;
pub mod plane;
mod process_sets;
mod record;
mod shared;
mod start;
mod status_reporter;
mod submission;
mod sync;
pub mod tables;
mod tensor_table;
mod ticket;
mod transfer;
mod wait_limits;

pub use abort::AbortHandle;
pub use completion_queue::{Completion, CompletionQueue};
pub use config::Config;
pub use direct::{Communicator, DirectSettings, SharedBuffer};
pub use driver::OnStall;
pub use engine::{Engine, Hooks};
pub use error::{Error, Failure, PeerLeft, Result};
pub use exec::device::OpenDevice;
pub use group::StallNotice;
pub use status_reporter::Stacks;
pub use submission::{Outcome, Returned, Submission};
pub use ticket::{QuietTickets, Ticket, wait_all};
