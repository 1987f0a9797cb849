//! What a job asks to be written down, and the thread that writes it.
//!
//! Every rank records what it does (`trace`). The environment says what becomes of it:
//!
//! | variable | meaning |
//! |---|---|
//! | `FARANDOLE_TRACE` | a folder: each rank keeps a trace of the whole run there |
//! | `FARANDOLE_TRACE_TROUBLE` | a folder: each rank that meets an error or a stall leaves there what it did before |
//! | `FARANDOLE_TRACE_SIGNAL` | number of the signal on which a rank does so; `12` (SIGUSR2) by default, `0` for none |
//! | `FARANDOLE_TIMELINE`, `HOROVOD_TIMELINE` | a file: rank 0 writes a timeline while it runs. `DYNAMIC`: when the program says so |
//! | `FARANDOLE_TIMELINE_MARK_CYCLES`, `HOROVOD_TIMELINE_MARK_CYCLES` | `1`: with marks where requests were taken in |
//!
//! Nothing here can fail a job: what cannot be written is told on standard error.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use farandole_engine::config::SettingValue;
use farandole_trace::{Cycles, Duties, Recorder, Scribe};

/// SIGUSR2. Schedulers and training libraries use SIGUSR1 to announce that time is running out.
const SIGNAL: u64 = 12;

/// The rank that writes a timeline, as in Horovod.
const TELLER: u32 = 0;

/// What the environment asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wishes {
    trace: Option<PathBuf>,
    trouble: Option<PathBuf>,
    signal: Option<i32>,
    /// `None`: there will be no timeline.
    timeline: Option<Timeline>,
    mark_cycles: bool,
}

/// When there is a timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Timeline {
    /// From the start, in this file.
    File(PathBuf),
    /// When the program says so.
    Dynamic,
}

impl Wishes {
    pub(crate) fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Wishes {
        let first = |names: &[&str]| names.iter().find_map(|name| lookup(name)).filter(|text| !text.is_empty());
        let folder = |name: &str| first(&[name]).map(PathBuf::from);
        let timeline = first(&["FARANDOLE_TIMELINE", "HOROVOD_TIMELINE"]).map(|text| match text.as_str() {
            "DYNAMIC" => Timeline::Dynamic,
            _ => Timeline::File(text.into()),
        });
        let mark = first(&["FARANDOLE_TIMELINE_MARK_CYCLES", "HOROVOD_TIMELINE_MARK_CYCLES"]);
        let signal = first(&["FARANDOLE_TRACE_SIGNAL"]).and_then(|text| u64::parse(&text)).unwrap_or(SIGNAL);
        Wishes {
            trace: folder("FARANDOLE_TRACE"),
            trouble: folder("FARANDOLE_TRACE_TROUBLE"),
            signal: i32::try_from(signal).ok().filter(|signal| *signal != 0),
            timeline,
            mark_cycles: mark.and_then(|text| bool::parse(&text)).unwrap_or(false),
        }
    }

    fn cycles(&self) -> Cycles {
        if self.mark_cycles { Cycles::Marked } else { Cycles::Unmarked }
    }
}

/// A rank's recorder and its scribe.
#[derive(Debug)]
pub(crate) struct Records {
    recorder: Arc<Recorder>,
    scribe: Option<Scribe>,
    timeline_prepared: bool,
}

impl Records {
    /// Starts what is wished for.
    pub(crate) fn start(recorder: Arc<Recorder>, wishes: &Wishes) -> Records {
        let timeline_prepared = wishes.timeline.is_some();
        if !recorder.is_on() {
            return Records { recorder, scribe: None, timeline_prepared };
        }
        let rank = recorder.header().rank;
        let timeline = match &wishes.timeline {
            Some(Timeline::File(path)) if rank == TELLER => Some((path.clone(), wishes.cycles())),
            _ => None,
        };
        let (keep_in, save_trouble_in, signal) = (wishes.trace.clone(), wishes.trouble.clone(), wishes.signal);
        let wanted = Duties { keep_in, save_trouble_in, signal, timeline };
        let started = Scribe::start(&recorder, wanted).or_else(|error| {
            eprintln!("farandole: rank {rank} writes no trace and no timeline by itself: {error}");
            Scribe::start(&recorder, Duties::default())
        });
        Records { recorder, scribe: started.ok(), timeline_prepared }
    }

    pub(crate) fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    /// Whether the environment has announced a timeline.
    pub(crate) fn timeline_prepared(&self) -> bool {
        self.timeline_prepared
    }

    pub(crate) fn start_timeline(&self, path: &Path, cycles: Cycles) -> std::io::Result<()> {
        match &self.scribe {
            Some(scribe) if self.recorder.header().rank == TELLER => scribe.start_timeline(path, cycles),
            Some(_) => Ok(()),
            None => Err(std::io::Error::other("the recorder is switched off (FARANDOLE_RECORDER_RECORDS=0)")),
        }
    }

    pub(crate) fn stop_timeline(&self) -> std::io::Result<()> {
        self.scribe.as_ref().map_or(Ok(()), Scribe::stop_timeline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &'static [(&'static str, &'static str)]) -> Wishes {
        Wishes::from_lookup(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn horovods_variables_count_where_ours_are_silent() {
        let wishes = with(&[("HOROVOD_TIMELINE", "/t.json"), ("HOROVOD_TIMELINE_MARK_CYCLES", "1")]);
        assert_eq!(wishes.timeline, Some(Timeline::File("/t.json".into())));
        assert!(wishes.mark_cycles);
        let wishes = with(&[("HOROVOD_TIMELINE", "DYNAMIC"), ("FARANDOLE_TIMELINE", "/ours.json")]);
        assert_eq!(wishes.timeline, Some(Timeline::File("/ours.json".into())));
        assert_eq!(with(&[("HOROVOD_TIMELINE", "DYNAMIC")]).timeline, Some(Timeline::Dynamic));
        assert_eq!(with(&[("HOROVOD_TIMELINE", "")]).timeline, None);
    }

    #[test]
    fn the_signal_can_be_another_or_none() {
        assert_eq!(with(&[]).signal, Some(12));
        assert_eq!(with(&[("FARANDOLE_TRACE_SIGNAL", "10")]).signal, Some(10));
        assert_eq!(with(&[("FARANDOLE_TRACE_SIGNAL", "0")]).signal, None);
    }
}
