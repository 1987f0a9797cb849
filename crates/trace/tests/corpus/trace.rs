//! What must hold for any bytes that are taken for a trace.

use farandole_trace::{Trace, TraceEnding};

/// What is read survives its own bytes.
pub(crate) fn check(bytes: &[u8]) {
    let Ok(trace) = Trace::decode(bytes) else { return };
    let again = Trace::decode(&trace.encode()).expect("what was read can be written and read");
    let ending = match &trace.ending {
        TraceEnding::Complete(occasion) => TraceEnding::Complete(occasion.clone()),
        TraceEnding::CutOff | TraceEnding::Damaged { .. } => TraceEnding::CutOff,
    };
    assert_eq!(again, Trace { unknown: 0, ending, ..trace }, "a trace survives its own bytes");
}
