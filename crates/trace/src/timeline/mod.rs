//! What a viewer shows (chrome://tracing, ui.perfetto.dev): [`horovod`] of one rank while it runs, [`merged`] of all
//! ranks afterwards.

pub mod horovod;
pub(crate) mod live;
pub mod merged;

pub use horovod::Cycles;
