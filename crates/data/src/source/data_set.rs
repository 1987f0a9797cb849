//! Records as a data set: decoded, of one shape, divided into what is learned from and what is judged by.
//!
//! Parts are folders (`train/` beside `test/`, `val/` or `validation/`) or names of shards (`train-00000-of-00008`
//! beside `test-…` or `validation-…`). Without them some records are drawn for tests, by the seed and their numbers
//! alone, of each class the same share. Names of classes are those of the part that is learned from.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::config::{LabelKind, RecordsConfig};
use super::find::{Format, Found, PARTS, find, shown};
use super::{Records, npy, open_found};
use crate::chance::{Chance, StreamPurpose};
use crate::format::StoredFile;
use crate::sample::{ImageShape, Label, Sample, Split, Task};
use crate::source::image_folder::{FolderConfig, Meaning};
use crate::source::split::{drawn_evenly, drawn_for_tests, hash};
use crate::stage_times::{StageTimes, timed};
use crate::storage::Storage;
use crate::transform::fit;
use crate::{DataError, DataSet, SampleError, Unit};

/// Records, decoded. See the module's text.
pub struct RecordsDataSet {
    train: Part,
    test: Part,
    shape: ImageShape,
    task: Task,
    unit: Unit,
}

/// Some of the records, by number.
struct Part {
    records: Arc<dyn Records>,
    chosen: Vec<usize>,
}

/// Opens what lies at a path (see [`super::open`]) as a data set. What of `wanted` is about labels of folders alone
/// (`Meaning::Table`) does not matter here.
///
/// # Errors
/// As [`super::open`] has them, and if nothing is left to learn from.
pub fn open_data_set(
    storage: Arc<dyn Storage>,
    path: &str,
    config: &RecordsConfig,
    wanted: &FolderConfig,
) -> Result<RecordsDataSet, DataError> {
    check(wanted)?;
    let mut config = config.clone();
    config.classes = config.classes.or(wanted.classes);
    if let Meaning::Pairs { .. } = wanted.meaning {
        config.kind = LabelKind::Nothing;
    }
    let found = find(&storage, path)?;
    let (train, test) = match divided(&storage, found.clone())? {
        (learned, Some(judged)) => {
            let train = open_found(Arc::clone(&storage), learned, &config)?;
            config.class_names = train.class_names().to_vec();
            config.classes = match train.task() {
                Task::SingleLabel { classes: count } | Task::MultiLabel { labels: count } => Some(count),
                _ => config.classes,
            };
            let test = open_found(storage, judged, &config)?;
            (Part::all(train), Part::all(test))
        }
        (learned, None) => by_chance(open_found(storage, learned, &config)?, wanted),
    };
    let task = match (&wanted.meaning, train.records.task()) {
        (Meaning::Pairs { scale }, _) => Task::SuperResolution { scale: *scale },
        (_, Task::SingleLabel { classes }) if classes < 2 => {
            return Err(DataError(format!("{path} has one class alone: there is nothing to tell apart")));
        }
        (_, task) => task,
    };
    let train = train.limited(wanted.train, wanted.seed, "--samples")?;
    let test = test.limited(wanted.test, wanted.seed, "--test-samples")?;
    let unit = if task == Task::Regression { unit_of(path, &train)? } else { Unit::default() };
    Ok(RecordsDataSet { train, test, shape: wanted.shape, task, unit })
}

fn check(wanted: &FolderConfig) -> Result<(), DataError> {
    let FolderConfig { shape, test_share, .. } = wanted;
    if shape.is_empty() || (shape.bands != 1 && shape.bands != 3) {
        let bands = shape.bands;
        return Err(DataError(format!("images have 1 band (grey) or 3 (colours), not {bands}, and some pixels")));
    }
    if !(0.0..1.0).contains(test_share) {
        return Err(DataError(format!("the share for tests is from 0 up to, but not, 1, and not {test_share}")));
    }
    if let Meaning::Pairs { scale } = wanted.meaning
        && !(2..=8).contains(&scale)
    {
        return Err(DataError(format!("images cannot be made {scale} times larger: 2 to 8 times can")));
    }
    Ok(())
}

/// What files are learned from and judged by, where their folders or names say so.
pub(super) fn divided(storage: &Arc<dyn Storage>, found: Found) -> Result<(Found, Option<Found>), DataError> {
    if let Some(table) = &found.table {
        if !table.is_divided() {
            return Ok((found, None));
        }
        let take = |split: Split| {
            let lines: Vec<usize> = (0..found.files.len()).filter(|line| table.is_of(*line, split)).collect();
            let files = lines.iter().map(|line| found.files[*line].clone()).collect();
            Found { files, table: Some(table.some(&lines)), ..found.clone() }
        };
        return Ok((take(Split::Train), Some(take(Split::Test))));
    }
    if let ([file], Format::Arrays) = (found.files.as_slice(), found.format)
        && file.path.to_lowercase().ends_with(".npz")
    {
        let there = npy::parts(&StoredFile::known(Arc::clone(storage), &file.path, file.bytes))?;
        let judged = ["test", "val", "validation"].into_iter().find(|part| there.contains(part));
        if there.contains(&"train") && judged.is_some() {
            return Ok((Found { part: Some("train"), ..found.clone() }, Some(Found { part: judged, ..found })));
        }
    }
    let parts: Vec<Option<&str>> = found.files.iter().map(|file| part_of(&file.path, &found)).collect();
    let has = |part: &str| parts.contains(&Some(part));
    if !has("train") {
        return Ok((found, None));
    }
    let judged = ["test", "val", "validation"].into_iter().find(|part| has(part));
    if let Some(odd) = parts.iter().position(Option::is_none).filter(|_| judged.is_some()) {
        let file = shown(storage, &found.files[odd].path);
        return Err(DataError(format!("{file}: neither its folder nor its name says whether it is learned from")));
    }
    let take = |wanted: &str| {
        let files = found.files.iter().zip(&parts).filter(|(_, part)| **part == Some(wanted));
        let files: Vec<_> = files.map(|(file, _)| file.clone()).collect();
        let folder = format!("{}{wanted}/", found.root);
        let root = if files.iter().all(|file| file.path.starts_with(&folder)) { folder } else { found.root.clone() };
        Found { files, root, ..found.clone() }
    };
    match judged {
        Some(judged) => Ok((take("train"), Some(take(judged)))),
        // Everything is in `train/`, or only some shards are called so, which says nothing about the others.
        None if parts.iter().all(Option::is_some) => Ok((take("train"), None)),
        None => Ok((found, None)),
    }
}

/// Which part a file belongs to: its folder right below the root, or how the name of a shard begins.
fn part_of(path: &str, found: &Found) -> Option<&'static str> {
    let below = &path[found.root.len()..];
    if let Some((folder, _)) = below.split_once('/')
        && let Some(part) = PARTS.into_iter().find(|part| *part == folder)
    {
        return Some(part);
    }
    if found.format == Format::Images {
        return None;
    }
    let name = path.rsplit('/').next().unwrap_or_default();
    let begins = |part: &&str| name.strip_prefix(*part).is_some_and(|rest| !rest.starts_with(char::is_alphabetic));
    PARTS.into_iter().find(begins)
}

/// Draws records for tests, the same share of each class.
fn by_chance(records: Arc<dyn Records>, wanted: &FolderConfig) -> (Part, Part) {
    let mut classes: BTreeMap<Option<u32>, Vec<usize>> = BTreeMap::new();
    for index in 0..records.len() {
        classes.entry(class_of(records.as_ref(), index)).or_default().push(index);
    }
    let mut for_tests = vec![false; records.len()];
    for members in classes.values() {
        let draw = |index: &usize| Chance::new(wanted.seed, StreamPurpose::Split, *index as u64, 0).bits();
        let drawn = drawn_for_tests(members.iter().map(draw), wanted.test_share);
        members.iter().zip(drawn).for_each(|(index, drawn)| for_tests[*index] = drawn);
    }
    let (test, train) = (0..records.len()).partition(|index| for_tests[*index]);
    (Part { records: Arc::clone(&records), chosen: train }, Part { records, chosen: test })
}

fn class_of(records: &dyn Records, index: usize) -> Option<u32> {
    match records.label(index) {
        Some(Label::Class(class)) => Some(class),
        _ => None,
    }
}

/// What the numbers that are learned from mean.
fn unit_of(path: &str, train: &Part) -> Result<Unit, DataError> {
    let value = |index: &usize| match train.records.label(*index) {
        Some(Label::Value(value)) => f64::from(value),
        _ => 0.0,
    };
    let count = train.chosen.len() as f64;
    let mean = train.chosen.iter().map(value).sum::<f64>() / count;
    let deviation = (train.chosen.iter().map(|index| (value(index) - mean).powi(2)).sum::<f64>() / count).sqrt();
    if deviation <= mean.abs() * 1e-6 {
        return Err(DataError(format!("{path}: all values are the same: there is nothing to tell")));
    }
    Ok(Unit { mean: mean as f32, deviation: deviation as f32, name: String::new() })
}

impl Part {
    fn all(records: Arc<dyn Records>) -> Part {
        Part { chosen: (0..records.len()).collect(), records }
    }

    fn limited(self, wanted: Option<usize>, seed: u64, flag: &str) -> Result<Part, DataError> {
        let there = self.chosen.len();
        let Some(wanted) = wanted else { return Ok(self) };
        if wanted > there {
            return Err(DataError(format!("{flag} {wanted}: there are {there} images for this")));
        }
        let Part { records, chosen } = self;
        let draws = chosen.iter().map(|index| Chance::new(seed, StreamPurpose::Choice, *index as u64, 0).bits());
        let drawn = drawn_evenly(draws, |place| class_of(records.as_ref(), chosen[place]), wanted);
        let chosen = chosen.into_iter().zip(drawn).filter_map(|(index, drawn)| drawn.then_some(index)).collect();
        Ok(Part { records, chosen })
    }
}

impl RecordsDataSet {
    fn part(&self, split: Split) -> &Part {
        match split {
            Split::Train => &self.train,
            Split::Test => &self.test,
        }
    }
}

impl DataSet for RecordsDataSet {
    fn shape(&self) -> ImageShape {
        self.shape
    }

    fn task(&self) -> Task {
        self.task
    }

    fn len(&self, split: Split) -> usize {
        self.part(split).chosen.len()
    }

    fn sample(&self, split: Split, index: usize) -> Result<Sample, SampleError> {
        self.sample_timed(split, index, &mut StageTimes::default())
    }

    fn sample_timed(&self, split: Split, index: usize, times: &mut StageTimes) -> Result<Sample, SampleError> {
        let fail = |cause: String| SampleError { sample: self.name(split, index), cause };
        let Part { records, chosen } = self.part(split);
        let number = chosen
            .get(index)
            .ok_or_else(|| fail(format!("there are {} in this split, and they begin with 0", chosen.len())))?;
        let mut encoded = Vec::new();
        let label = timed(&mut times.read_ns, || records.read(*number, &mut encoded))?;
        let label = || match label {
            Label::Value(value) => Label::Value((value - self.unit.mean) / self.unit.deviation),
            label => label,
        };
        fit::sample(&encoded, self.shape, self.task, label, times).map_err(fail)
    }

    fn name(&self, split: Split, index: usize) -> String {
        let Part { records, chosen } = self.part(split);
        chosen.get(index).map_or_else(|| format!("record {index}"), |number| records.name(*number))
    }

    fn unit(&self) -> Unit {
        self.unit.clone()
    }

    fn class_names(&self) -> &[String] {
        self.train.records.class_names()
    }

    fn describe(&self) -> String {
        let ImageShape { bands, height, width } = self.shape;
        let (train, test) = (self.train.chosen.len(), self.test.chosen.len());
        let what = self.train.records.describe();
        format!("{what}; {train} + {test} images, brought to {bands} x {height} x {width}")
    }

    fn fingerprint(&self) -> u64 {
        let of = |part: &Part| {
            let chosen = part.chosen.iter().map(|index| *index as u64);
            chosen.fold(part.records.fingerprint(), |all, index| hash(all, &index.to_le_bytes()))
        };
        hash(of(&self.train), &of(&self.test).to_le_bytes())
    }
}
