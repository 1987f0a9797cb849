//! What a viewer shows (chrome://tracing, ui.perfetto.dev) of one rank while it runs: [`horovod`]. That of all ranks
//! afterwards is in `farandole-insight`.

pub mod horovod;
pub(crate) mod live;

pub use horovod::Cycles;
