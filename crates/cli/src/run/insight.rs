//! Flags that say what is to be written down of a job, its traces and its timeline, and who may watch it.
//!
//! All but the last become variables of the ranks; what they do with it is told in docs/insight.md. Files are meant
//! where the launcher stands, so paths are made whole here; on other hosts the same path is used.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use farandole_cluster::live;

/// What is to be written down.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct Insight {
    /// Keep a trace of every rank in DIR, for `farandole report` and `farandole timeline`
    #[arg(long, value_name = "DIR", help_heading = INSIGHT)]
    trace: Option<PathBuf>,

    /// Rank 0 writes Horovod's timeline to FILE while the job runs; DYNAMIC: when the program calls start_timeline
    #[arg(long, value_name = "FILE", help_heading = INSIGHT)]
    timeline_filename: Option<PathBuf>,

    /// Mark in the timeline when requests were taken in
    #[arg(long, overrides_with = "no_timeline_mark_cycles", help_heading = INSIGHT)]
    timeline_mark_cycles: bool,

    #[arg(long, overrides_with = "timeline_mark_cycles", hide = true)]
    no_timeline_mark_cycles: bool,

    /// Show metrics of all ranks at http://ADDRESS:PORT/metrics while the job runs, for Prometheus. A port alone is one
    /// of this machine, which nobody else can reach; 0 finds a free one [default: FARANDOLE_METRICS, or none]
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = live::parse_address, help_heading = INSIGHT)]
    pub(super) metrics: Option<SocketAddr>,
}

const INSIGHT: &str = "Insight";

impl Insight {
    /// Where traces are to be kept, if anywhere.
    #[cfg(feature = "train")]
    pub(super) fn trace(&self) -> Option<&Path> {
        self.trace.as_deref()
    }

    /// The variables that these flags set.
    pub(super) fn variables(&self, here: &Path) -> Vec<(String, String)> {
        let whole = |path: &Path| here.join(path).to_string_lossy().into_owned();
        let mut variables = Vec::new();
        let mut set = |name: &str, value: Option<String>| {
            variables.extend(value.map(|value| (name.to_owned(), value)));
        };
        set("FARANDOLE_TRACE", self.trace.as_deref().map(whole));
        let timeline = self.timeline_filename.as_deref().map(|file| match file.to_str() {
            Some("DYNAMIC") => "DYNAMIC".to_owned(),
            _ => whole(file),
        });
        set("FARANDOLE_TIMELINE", timeline);
        let mark = self.timeline_mark_cycles || self.no_timeline_mark_cycles;
        set("FARANDOLE_TIMELINE_MARK_CYCLES", mark.then(|| u8::from(self.timeline_mark_cycles).to_string()));
        variables
    }
}
