//! Starting a job: from what a user asked for to ranks that run, on this host and on others.
//!
//! An [`Order`] says everything that is to be done and leaves nothing to be looked up: which rank runs where
//! ([`Placement`], made of hosts that [`hosts`] and [`hostfile`] read), which command, which variables, how output is
//! shown, how long to wait. Whoever reads a command line, a configuration file or arguments of a function makes one;
//! nothing in here reads any of these. [`variables`] says what of this host's environment may go to another one.
//!
//! [`run`] carries an order out. The *launcher* is the process that the user sees (`launcher` drives, `supervision`
//! decides); it has one [`agent`] on every host, its own included, which starts that host's ranks, each through a
//! [`stub`]. Launcher and agents talk in the words of [`message`].

mod addresses;
pub mod agent;
mod bootstrap;
mod doorway;
mod failure;
pub mod hostfile;
pub mod hosts;
mod kin;
mod launcher;
mod mailbox;
pub mod message;
mod onlookers;
pub mod order;
mod output;
pub mod placement;
pub mod reach;
mod results;
mod signal;
mod ssh;
pub mod stub;
mod supervision;
pub mod variables;
mod wire;

pub use launcher::run;

pub use order::{Alias, Colour, Drawer, HostSlots, Order, Output, Prefix, Ssh, Task, Timestamps, Verbose};
pub use placement::{Place, Placement};
