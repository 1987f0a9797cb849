//! What users are told about samples that cannot be read: each is named once, and not too many of them.

use std::collections::BTreeSet;

use crate::SampleError;

/// Samples that are named when they cannot be read; more are only counted, so that a bad disk does not fill a log.
pub(super) const NOTICES: usize = 20;

/// Which samples could not be read, each once.
#[derive(Debug, Default)]
pub(super) struct Notices {
    seen: BTreeSet<usize>,
    untold: Vec<String>,
}

impl Notices {
    pub(super) fn note(&mut self, index: usize, error: &SampleError, consequence: &str) {
        if self.seen.insert(index) {
            match self.seen.len() {
                ..=NOTICES => self.untold.push(format!("{error}; {consequence}")),
                told if told == NOTICES + 1 => {
                    self.untold.push("further samples that cannot be read are only counted".to_owned())
                }
                _ => {}
            }
        }
    }

    /// What was not told yet.
    pub(super) fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.untold)
    }
}
