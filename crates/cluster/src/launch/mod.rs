//! Starting a job: from what a user asked for to ranks that run, on this host and on others.
//!
//! A [`JobSpec`] says everything that is to be done and leaves nothing to be looked up: which rank runs where
//! ([`JobPlacement`], made of hosts that [`hosts`] and [`hostfile`] read), which command, which variables, how output
//! is shown, how long to wait. Whoever reads a command line, a configuration file or arguments of a function makes one;
//! nothing in here reads any of these. [`variables`] says what of this host's environment may go to another one, and
//! [`gpus`] what GPUs a host has.
//!
//! [`run`] runs the job of a spec. The *launcher* is the process that the user sees (`launcher` drives, `supervision`
//! decides); it has one [`agent`] on every host, its own included, which starts that host's ranks, each through an
//! [`exec_shim`]. Launcher and agents talk in the words of [`message`].

mod addresses;
pub mod agent;
mod agent_listener;
mod ask;
mod bootstrap;
pub mod connectivity;
pub mod exec_shim;
mod failure;
pub mod gpus;
pub mod hostfile;
pub mod hosts;
pub mod job_spec;
mod launcher;
mod live_publisher;
pub mod message;
pub mod mps_control;
mod output;
pub mod placement;
mod process_tree;
mod results;
mod signal;
mod socket;
mod ssh;
mod supervision;
pub mod variables;

pub use launcher::run;

pub use job_spec::{
    Alias, Colour, Drawer, Gpus, HostSlots, JobSpec, Mps, OutputOptions, Prefix, Ssh, TaskFiles, Timestamps, Verbose,
};
pub use placement::{JobPlacement, RankPlacement};
pub(crate) use socket::Socket;
