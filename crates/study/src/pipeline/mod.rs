//! The input pipeline alone: what was measured of it, its table, and advice.

mod advice;
mod figures;
mod findings;

pub use figures::PipelineFigures;
pub use findings::{PipelineFindings, PipelineRow};
