//! What a job asks to be written down, and the thread that writes it.
//!
//! Every rank records what it does (`trace`). The environment says what becomes of it: section "Recording" of
//! docs/settings.md.
//!
//! Nothing here can fail a job: what cannot be written is told on standard error.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use farandole_settings::{self as settings, Setting};
use farandole_trace::event::RecoveryStage;
use farandole_trace::{Cycles, Event, FallbackFolder, Recorder, TraceWriter, WriterOptions};

use crate::elastic::Entrance;

/// The rank that writes a timeline, as in Horovod.
const TELLER: u32 = 0;

/// What the environment asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wishes {
    trace: Option<PathBuf>,
    trouble: Trouble,
    signal: Option<i32>,
    /// `None`: there will be no timeline.
    timeline: Option<Timeline>,
    mark_cycles: bool,
}

/// Where traces of trouble go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Trouble {
    /// Among temporary files.
    #[default]
    LastResort,
    /// To this folder.
    Folder(PathBuf),
    Nowhere,
}

/// Which place this rank has in its job, as far as files are concerned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// The same on all ranks of the job, and different from other jobs'.
    pub(crate) job: u64,
    /// Ranks of this host, and how many of them come before this one.
    pub(crate) local_size: usize,
    pub(crate) local_rank: usize,
}

impl Place {
    /// Where the traces go that nobody has asked for.
    fn fallback(self) -> FallbackFolder {
        let owner = std::fs::metadata("/proc/self").map_or(0, |process| process.uid());
        let prefix = format!("farandole-trace-{owner}-");
        let folder = std::env::temp_dir().join(format!("{prefix}{:016x}", self.job));
        FallbackFolder { folder, prefix, announces: self.local_size <= ALL_TELL_UP_TO || self.local_rank == 0 }
    }
}

/// On hosts with up to so many ranks each tells where it has left a trace; on larger ones the first does, for all.
const ALL_TELL_UP_TO: usize = 8;

/// When there is a timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Timeline {
    /// From the start, in this file.
    File(PathBuf),
    /// When the program says so.
    Dynamic,
}

impl Wishes {
    pub(crate) fn from_lookup(lookup: impl Fn(&'static str) -> Option<String>) -> Wishes {
        let written = |setting: Setting| setting.written(&lookup).map(|(_, text)| text);
        // What cannot be understood must not fail a job: then the default holds.
        let signal: u64 =
            settings::TRACE_SIGNAL.read(&lookup).unwrap_or_else(|_| settings::TRACE_SIGNAL.default_value());
        Wishes {
            trace: written(settings::TRACE).map(PathBuf::from),
            trouble: match written(settings::TRACE_TROUBLE).as_deref() {
                None => Trouble::LastResort,
                Some("0") => Trouble::Nowhere,
                Some(folder) => Trouble::Folder(folder.into()),
            },
            signal: i32::try_from(signal).ok().filter(|signal| *signal != 0),
            timeline: written(settings::TIMELINE).map(|text| match text.as_str() {
                "DYNAMIC" => Timeline::Dynamic,
                _ => Timeline::File(text.into()),
            }),
            mark_cycles: settings::TIMELINE_MARK_CYCLES.read(&lookup).unwrap_or(false),
        }
    }

    fn cycles(&self) -> Cycles {
        if self.mark_cycles { Cycles::Marked } else { Cycles::Unmarked }
    }
}

/// A rank's recorder and its trace writer.
#[derive(Debug)]
pub(crate) struct Records {
    recorder: Arc<Recorder>,
    writer: Option<TraceWriter>,
    timeline_prepared: bool,
}

impl Records {
    /// Starts what is wished for.
    pub(crate) fn start(recorder: Arc<Recorder>, wishes: &Wishes, place: Place) -> Records {
        let timeline_prepared = wishes.timeline.is_some();
        if !recorder.is_on() {
            return Records { recorder, writer: None, timeline_prepared };
        }
        let rank = recorder.header().rank;
        let timeline = match &wishes.timeline {
            Some(Timeline::File(path)) if rank == TELLER => {
                Some((of_generation(path, recorder.header().generation()), wishes.cycles()))
            }
            _ => None,
        };
        let (dump_in, fallback) = match &wishes.trouble {
            Trouble::Folder(folder) => (Some(folder.clone()), None),
            Trouble::LastResort => (None, Some(place.fallback())),
            Trouble::Nowhere => (None, None),
        };
        let (trace_in, signal) = (wishes.trace.clone(), wishes.signal);
        let wanted = WriterOptions { trace_in, dump_in, fallback, signal, timeline };
        let started = TraceWriter::start(&recorder, wanted).or_else(|error| {
            log::warn!("rank {rank} writes no trace and no timeline by itself: {error}");
            TraceWriter::start(&recorder, WriterOptions::default())
        });
        Records { recorder, writer: started.ok(), timeline_prepared }
    }

    /// How this member of an elastic job has come to its generation.
    pub(crate) fn note_entrance(&self, entrance: &Entrance) {
        let recorder = &self.recorder;
        let (name, members) = entrance.view.members_setting();
        recorder.note_setting(name, &members);
        let stage = |at_ns, stage| recorder.mark_at(at_ns, Event::Recovery { stage });
        if let Some(noticed_ns) = entrance.noticed_ns {
            stage(noticed_ns, RecoveryStage::Noticed);
        }
        stage(entrance.asked_ns, RecoveryStage::Asked);
        stage(entrance.agreed_ns, RecoveryStage::Agreed);
        for (member, cause) in &entrance.lost {
            let name = recorder.intern(&cause.as_str().into(), &[]);
            recorder.mark_at(entrance.agreed_ns, Event::MemberLost { name, member: *member });
        }
    }

    pub(crate) fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    /// Whether the environment has announced a timeline.
    pub(crate) fn timeline_prepared(&self) -> bool {
        self.timeline_prepared
    }

    pub(crate) fn start_timeline(&self, path: &Path, cycles: Cycles) -> std::io::Result<()> {
        match &self.writer {
            Some(writer) if self.recorder.header().rank == TELLER => writer.start_timeline(path, cycles),
            Some(_) => Ok(()),
            None => Err(std::io::Error::other("the recorder is switched off (FARANDOLE_RECORDER_RECORDS=0)")),
        }
    }

    pub(crate) fn stop_timeline(&self) -> std::io::Result<()> {
        self.writer.as_ref().map_or(Ok(()), TraceWriter::stop_timeline)
    }
}

/// Where the timeline of a generation goes: to the file that was asked for in the first, and beside it in later ones.
fn of_generation(path: &Path, generation: u64) -> PathBuf {
    if generation <= 1 {
        return path.to_owned();
    }
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!(".generation-{generation}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
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
    fn a_generation_does_not_write_over_the_timeline_of_another() {
        assert_eq!(of_generation(Path::new("/t/a.json"), 0), Path::new("/t/a.json"));
        assert_eq!(of_generation(Path::new("/t/a.json"), 1), Path::new("/t/a.json"));
        assert_eq!(of_generation(Path::new("/t/a.json"), 4), Path::new("/t/a.generation-4.json"));
        assert_eq!(of_generation(Path::new("a"), 4), Path::new("a.generation-4"));
    }

    #[test]
    fn trouble_goes_to_a_folder_to_temporary_files_or_nowhere() {
        assert_eq!(with(&[]).trouble, Trouble::LastResort);
        assert_eq!(with(&[("FARANDOLE_TRACE_TROUBLE", "/t")]).trouble, Trouble::Folder("/t".into()));
        assert_eq!(with(&[("FARANDOLE_TRACE_TROUBLE", "0")]).trouble, Trouble::Nowhere);
        let place = |local_rank, local_size| Place { job: 7, local_size, local_rank }.fallback();
        assert_eq!(place(0, 2).folder, place(1, 2).folder, "all ranks of a job leave theirs together");
        assert!(place(1, 8).announces && place(0, 9).announces && !place(1, 9).announces);
    }

    #[test]
    fn the_signal_can_be_another_or_none() {
        assert_eq!(with(&[]).signal, Some(12));
        assert_eq!(with(&[("FARANDOLE_TRACE_SIGNAL", "10")]).signal, Some(10));
        assert_eq!(with(&[("FARANDOLE_TRACE_SIGNAL", "0")]).signal, None);
    }
}
