//! Starting a job: from what a user asked for to ranks that run, on this host and on others.
//!
//! An [`Order`] says everything that is to be done and leaves nothing to be looked up: which rank runs where ([`Placement`], made
//! of hosts that [`hosts`] and [`hostfile`] read), which command, which variables, how output is shown, how long to wait.
//! Whoever reads a command line, a configuration file or arguments of a function makes one; nothing in
//! here reads any of these. [`variables`] says what of this host's environment may go to another one.

pub mod hostfile;
pub mod hosts;
pub mod order;
pub mod placement;
pub mod variables;

pub use order::{Colour, HostSlots, Order, Output, Prefix, Ssh, Timestamps, Verbose};
pub use placement::{Place, Placement};
