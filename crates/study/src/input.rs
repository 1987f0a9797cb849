//! Studies of the input pipeline: where data lies (`storage`), how it is stored (`format`), and who reads it
//! (`loader`).
//!
//! A point is a source, how many workers read it, how many batches they are ahead, and what is kept of it ([`Cache`]).
//! *Alone*, the pipeline makes batches that nobody uses (`farandole data point`); *in training*, `farandole train`
//! uses them.
//!
//! **Invariant:** no user name, password or query of a URL is kept or shown: points are known by [`shown`] names.

use serde::{Deserialize, Serialize};

use super::error::{Result, refuse};
use super::point::StudyPoint;
use super::sweep::StudyKind;
use crate::pipeline::PipelineFigures;

/// What is kept of a source from one read to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// Nothing.
    Cold,
    /// All of it, in memory.
    Warm,
    /// Blocks of remote objects, on this machine's disk.
    Disk,
}

impl Cache {
    /// All of them, in the order in which they are listed.
    pub const ALL: [Cache; 3] = [Cache::Cold, Cache::Warm, Cache::Disk];

    /// The word on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Cache::Cold => "cold",
            Cache::Warm => "warm",
            Cache::Disk => "disk",
        }
    }

    /// What is kept, in one line.
    pub fn meaning(self) -> &'static str {
        match self {
            Cache::Cold => "Nothing: files are read from the disk, objects over the network",
            Cache::Warm => "Memory: everything was read just before",
            Cache::Disk => "A folder on this machine's disk holds blocks of remote objects, which were read before",
        }
    }
}

/// What a point of these studies has beside the others.
#[derive(Clone, Debug, Eq, Serialize, Deserialize)]
pub struct InputPoint {
    /// What people call the source, or the format of a copy. Points are known by it.
    pub name: String,
    /// What is read. It may hold a password, so it is not written down.
    #[serde(skip)]
    pub source: String,
    /// Threads of each rank that make batches.
    pub workers: usize,
    /// Batches ahead.
    pub prefetch: usize,
    /// What is kept.
    pub cache: Cache,
}

impl PartialEq for InputPoint {
    fn eq(&self, other: &InputPoint) -> bool {
        let of = |point: &InputPoint| (point.workers, point.prefetch, point.cache);
        self.name == other.name && of(self) == of(other)
    }
}

/// What is the same for all points, and must be for runs to be comparable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InputWorkload {
    /// The source of all points, where it is one.
    pub source: Option<String>,
    /// What is done to images, alone.
    pub transform: String,
    /// How long each run takes, alone.
    pub seconds: f64,
    /// Whether a training uses the batches.
    pub in_training: bool,
    /// Records of each copy, in a study of formats.
    pub samples: usize,
}

impl InputWorkload {
    /// One line.
    pub fn text(&self) -> String {
        let InputWorkload { source, transform, seconds, in_training, samples } = self;
        let source = source.as_ref().map_or_else(String::new, |source| format!("{source}, "));
        let records = if *samples > 0 { format!("{samples} records at most, ") } else { String::new() };
        match in_training {
            true => format!("{source}{records}in training"),
            false => format!("{source}{records}{transform}, {seconds} s each"),
        }
    }
}

/// What is varied.
#[derive(Clone, Debug)]
pub struct InputAxes {
    /// Names and what is read.
    pub sources: Vec<(String, String)>,
    /// Threads of each rank that make batches.
    pub workers: Vec<usize>,
    /// Batches ahead.
    pub prefetch: Vec<usize>,
    /// What is kept.
    pub caches: Vec<Cache>,
}

impl InputAxes {
    /// Every source with everything else, in the order in which they are shown.
    pub fn points(&self) -> Vec<InputPoint> {
        let mut points = Vec::new();
        for (name, source) in &self.sources {
            for &cache in &self.caches {
                for &prefetch in &self.prefetch {
                    for &workers in &self.workers {
                        points.push(InputPoint {
                            name: name.clone(),
                            source: source.clone(),
                            workers,
                            prefetch,
                            cache,
                        });
                    }
                }
            }
        }
        points
    }
}

/// Names of sources that nobody confuses, and that hold no secret.
pub fn named(sources: &[String]) -> Result<Vec<(String, String)>> {
    let named: Vec<(String, String)> = sources.iter().map(|source| (shown(source), source.clone())).collect();
    for (position, (name, source)) in named.iter().enumerate() {
        if source.trim().is_empty() {
            return refuse("--sources: an empty name".to_owned());
        }
        if named[..position].iter().any(|(other, _)| other == name) {
            return refuse(format!("--sources: {name} is there twice"));
        }
    }
    Ok(named)
}

/// A source without what may be secret.
pub fn shown(source: &str) -> String {
    let Some((scheme, rest)) = source.split_once("://") else { return source.to_owned() };
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let path = path.split(['?', '#']).next().unwrap_or_default();
    format!("{scheme}://{authority}{path}")
}

/// Why a point cannot be measured here, if it cannot. `is_remote` says whether a source is read over the network,
/// `lies_in_memory` why the files of one cannot be cold.
pub fn refuses(
    point: &StudyPoint,
    is_remote: fn(&str) -> bool,
    lies_in_memory: fn(&str) -> Option<String>,
) -> Option<String> {
    let input = point.input.as_ref()?;
    let remote = is_remote(&input.source);
    match input.cache {
        Cache::Disk if !remote => {
            Some("its files lie on this machine: there is nothing to keep on its disk".to_owned())
        }
        Cache::Cold if !remote => lies_in_memory(&input.source),
        _ => None,
    }
}

/// What distinguishes a point, in words.
pub(crate) fn label(kind: StudyKind, input: &InputPoint) -> String {
    let InputPoint { name, workers, prefetch, cache, .. } = input;
    let workers = format!("{workers} worker{}", if *workers == 1 { "" } else { "s" });
    match kind {
        StudyKind::Loader => format!("{workers}, {prefetch} ahead, {}", cache.word()),
        _ => format!("{}, {}, {workers}", short(name), cache.word()),
    }
}

/// A name that fits beside a bar.
pub(crate) fn short(name: &str) -> String {
    shortened(name, 32)
}

/// About so many characters of a name: the end, which is what differs, from a slash on if one is near; and of a URL
/// what it begins with.
pub(crate) fn shortened(name: &str, long: usize) -> String {
    let count = name.chars().count();
    if count <= long {
        return name.to_owned();
    }
    let scheme = name.split_inclusive("://").next().filter(|scheme| scheme.len() < name.len()).unwrap_or_default();
    let kept = long.saturating_sub(scheme.len()).max(long / 2);
    let end: String = name.chars().skip(count - kept).collect();
    let end = end.find('/').filter(|slash| *slash <= kept / 2).map_or(end.as_str(), |slash| &end[slash..]);
    format!("{scheme}…{end}")
}

/// What is known of a run of these studies beside its throughput.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct InputFigures {
    /// Over all of the run.
    pub mean_per_s: f64,
    /// In the best part of it: a tenth of the time alone, the upper quantile of the steps in training.
    pub peak_per_s: f64,
    /// Bytes of records, alone.
    pub bytes_per_s: Option<f64>,
    /// Samples that could not be read, alone.
    pub broken: u64,
}

impl InputFigures {
    /// Those of a run alone, with the seconds of a sample by stage.
    pub fn alone(measured: &PipelineFigures) -> (InputFigures, Vec<(String, f64)>) {
        let &PipelineFigures { samples_per_s, peak_per_s, bytes_per_s, broken, .. } = measured;
        let figures = InputFigures { mean_per_s: samples_per_s, peak_per_s, bytes_per_s: Some(bytes_per_s), broken };
        let stages = [
            ("read", measured.read_us),
            ("decode", measured.decode_us),
            ("change", measured.transform_us),
            ("store", measured.store_us),
        ];
        (figures, stages.map(|(name, us)| (name.to_owned(), us / 1e6)).to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_of_a_url_is_shown_and_no_name_is_there_twice() {
        assert_eq!(shown("https://me:pass@host/a?sig=secret"), "https://host/a");
        assert_eq!(shown("photos/a@b"), "photos/a@b");
        let twice = named(&["https://a@h/x".into(), "https://b@h/x".into()]).unwrap_err().to_string();
        assert!(twice.contains("https://h/x is there twice"), "{twice}");
        assert!(named(&["a".into(), " ".into()]).is_err());
    }

    #[test]
    fn points_are_all_combinations() {
        let axes = InputAxes {
            sources: vec![("a".into(), "a".into()), ("b".into(), "b".into())],
            workers: vec![1, 2],
            prefetch: vec![2],
            caches: vec![Cache::Cold, Cache::Warm],
        };
        let points = axes.points();
        assert_eq!(points.len(), 8);
        assert_eq!(label(StudyKind::Storage, &points[1]), "a, cold, 2 workers");
        assert_eq!(label(StudyKind::Loader, &points[2]), "1 worker, 2 ahead, warm");
    }

    #[test]
    fn what_is_written_of_a_point_holds_no_source_and_finds_it_again() {
        let point = InputPoint {
            name: "https://h/x".into(),
            source: "https://me:pass@h/x".into(),
            workers: 1,
            prefetch: 2,
            cache: Cache::Cold,
        };
        let text = serde_json::to_string(&point).unwrap();
        assert!(!text.contains("pass"), "{text}");
        assert_eq!(serde_json::from_str::<InputPoint>(&text).unwrap(), point);
    }
}
