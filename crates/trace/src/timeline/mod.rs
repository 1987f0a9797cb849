//! What a viewer shows (chrome://tracing, ui.perfetto.dev): [`horovod`] of one rank while it runs.

pub mod horovod;
pub(crate) mod live;

pub use horovod::Cycles;
