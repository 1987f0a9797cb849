//! Data sets that are folders of images.
//!
//! JPEG and PNG files, and what is known about them, in one of the ways that people keep them:
//!
//! ```text
//! a folder for each class          a table                      nothing but images
//! photos/cat/1.jpg                 faces/labels.csv             landscapes/1.png
//! photos/dog/2.png                 faces/a/1.jpg                landscapes/2.png
//! ```
//!
//! Classes may lie in `train/` and `test/` (or `val/`, `validation/`), or be split by chance, always alike for one
//! seed. A table's header says what it holds (`table`). Images alone are made into pairs, to learn how to enlarge
//! them. The folder is looked through once (`scan`), when it is opened; files are read, by whichever thread wants a
//! sample, when their turn comes (`decode`, `regular`). `draw` divides them and chooses some. What cannot be read then
//! is the loader's to replace and to count. What can be known when the folder is opened is an error at once, with what
//! to do about it.

mod scan;
pub(crate) mod table;

use std::path::{Path, PathBuf};

use crate::sample::{ImageShape, Label, Sample, Split, Task};
use crate::stage_times::{StageTimes, timed};
use crate::transform::fit;
use crate::{DataError, DataSet, SampleError, Unit};
pub use table::MAX_LABELS;

use super::split::{NOTHING, hash, some_of, split_by_chance};

/// How a folder is to be read.
#[derive(Clone, Debug)]
pub struct FolderConfig {
    /// Images are brought to this size; of one band (grey) or three (red, green, blue). Of pairs, that of the smaller
    /// image.
    pub shape: ImageShape,
    /// What is known about images.
    pub meaning: Meaning,
    /// What decides which files are for tests, where the folder does not say so.
    pub seed: u64,
    /// How many of them, then: between 0 and 1.
    pub test_share: f32,
    /// How many classes or labels there are, where a table says which; without it the largest number, or the number of
    /// names, tells. Folders of classes have as many as there are, and may not be given another number.
    pub classes: Option<usize>,
    /// How many files are learned from; all of them where nothing is said.
    pub train: Option<usize>,
    /// How many files are judged by; all of them where nothing is said.
    pub test: Option<usize>,
}

impl FolderConfig {
    /// Images of this shape with whatever is known about them; a fifth of them for tests, where the folder does not say
    /// which.
    pub fn new(shape: ImageShape) -> FolderConfig {
        FolderConfig {
            shape,
            meaning: Meaning::Found,
            seed: 0,
            test_share: 0.2,
            classes: None,
            train: None,
            test: None,
        }
    }
}

/// Where it is said what images show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// In `labels.csv`, if the folder has it; else the folders are classes.
    Found,
    /// In a table. Files are named in relation to the opened folder.
    Table(PathBuf),
    /// Nowhere: images are to be made so many times larger.
    Pairs {
        /// How many times.
        scale: usize,
    },
}

/// The table that is used without being asked for.
pub(crate) const TABLE: &str = "labels.csv";

/// What is known about a file.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Known {
    Class(u32),
    Labels(Vec<u32>),
    Value(f32),
    Nothing,
}

/// A file of the data set.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) path: PathBuf,
    pub(super) known: Known,
}

/// What a folder has turned out to hold.
struct Found {
    train: Vec<Entry>,
    test: Vec<Entry>,
    task: Task,
    names: Vec<String>,
    unit: Unit,
}

/// A folder of images. See the module's text.
#[derive(Clone, Debug)]
pub struct ImageFolder {
    root: PathBuf,
    shape: ImageShape,
    task: Task,
    train: Vec<Entry>,
    test: Vec<Entry>,
    names: Vec<String>,
    unit: Unit,
}

/// Looks through a folder of images.
pub fn open(root: &Path, config: &FolderConfig) -> Result<ImageFolder, DataError> {
    let FolderConfig { shape, meaning, test_share, .. } = config;
    let show = root.display();
    if shape.bands != 1 && shape.bands != 3 {
        let bands = shape.bands;
        return Err(DataError(format!("images of files have 1 band (grey) or 3 (colours), not {bands}")));
    }
    if shape.is_empty() {
        return Err(DataError("images of files cannot be brought to a size without pixels".to_owned()));
    }
    if !(0.0..1.0).contains(test_share) {
        return Err(DataError(format!(
            "the share of images for tests is from 0 up to, but not, 1, and not {test_share}"
        )));
    }
    match std::fs::metadata(root) {
        Err(error) => return Err(DataError(format!("the folder {show} cannot be read: {error}"))),
        Ok(found) if !found.is_dir() => return Err(DataError(format!("{show} is no folder"))),
        Ok(_) => {}
    }
    let found = match meaning {
        Meaning::Pairs { scale } => pairs(root, config, *scale)?,
        Meaning::Table(path) => table::open(root, path, config)?,
        Meaning::Found if root.join(TABLE).is_file() => table::open(root, &root.join(TABLE), config)?,
        Meaning::Found => classes(root, config)?,
    };
    let Found { train, test, task, names, unit } = found;
    if train.is_empty() {
        return Err(DataError(format!("{show} has no images to learn from: all of its {} are for tests", test.len())));
    }
    check_classes(config.classes, task)?;
    let limited = |entries: Vec<Entry>, wanted: Option<usize>, flag: &str| match wanted {
        None => Ok(entries),
        Some(wanted) if wanted > entries.len() => {
            let there = entries.len();
            Err(DataError(format!("{flag} {wanted}: the folder has {there} images for this")))
        }
        Some(wanted) => Ok(some_of(entries, root, config.seed, wanted)),
    };
    let (train, test) = (limited(train, config.train, "--samples")?, limited(test, config.test, "--test-samples")?);
    Ok(ImageFolder { root: root.to_owned(), shape: *shape, task, train, test, names, unit })
}

/// The number of classes that was asked for must be the one that was found.
fn check_classes(wanted: Option<usize>, task: Task) -> Result<(), DataError> {
    let Some(wanted) = wanted else { return Ok(()) };
    let found = match task {
        Task::SingleLabel { classes } if classes == wanted => return Ok(()),
        Task::MultiLabel { labels } if labels == wanted => return Ok(()),
        Task::SingleLabel { classes } => format!("the folder has {classes} classes"),
        Task::MultiLabel { labels } => format!("the folder has {labels} labels"),
        Task::Regression => "the table has numbers and no classes".to_owned(),
        Task::SuperResolution { .. } => "images that are to be made larger have no classes".to_owned(),
    };
    Err(DataError(format!("--classes {wanted}: {found}")))
}

/// A folder for each class.
fn classes(root: &Path, config: &FolderConfig) -> Result<Found, DataError> {
    let divided = root.join("train");
    let (learned, judged) = if divided.is_dir() {
        let others = ["test", "val", "validation"].map(|name| root.join(name));
        let mut judged = None;
        for folder in others.into_iter().filter(|folder| folder.is_dir()) {
            // The test images of some collections have no labels: then those for validation are there for it.
            let classes = scan::class_folders(&folder)?;
            if !classes.is_empty() {
                judged = Some((folder, classes));
                break;
            }
        }
        (divided, judged)
    } else {
        (root.to_owned(), None)
    };
    let learned_classes = scan::class_folders(&learned)?;
    let show = learned.display();
    if learned_classes.is_empty() {
        let what = if scan::images(&learned, &[])?.is_empty() {
            "holds no JPEG or PNG image".to_owned()
        } else {
            format!(
                "holds images, but nothing says what they show: put them into a folder for each class, or add {TABLE}"
            )
        };
        return Err(DataError(format!("{show} {what}")));
    }
    if let [only] = learned_classes.as_slice() {
        return Err(DataError(format!("{show} has one class alone, {}: there is nothing to tell apart", only.name)));
    }
    let names: Vec<String> = learned_classes.iter().map(|class| class.name.clone()).collect();
    let (mut train, mut test) = (Vec::new(), Vec::new());
    for (number, class) in learned_classes.iter().enumerate() {
        let files = scan::images(&class.path, &[root, &learned])?;
        if files.is_empty() {
            let show = class.path.display();
            return Err(DataError(format!("the class folder {show} has no JPEG or PNG image: fill it or remove it")));
        }
        let known = Known::Class(number as u32);
        let entries = files.into_iter().map(|path| Entry { path, known: known.clone() }).collect();
        let share = if judged.is_some() { 0.0 } else { config.test_share };
        let (learn, judge) = split_by_chance(entries, root, config.seed, share);
        train.extend(learn);
        test.extend(judge);
    }
    let judged = judged.iter().flat_map(|(folder, classes)| classes.iter().map(move |class| (folder, class)));
    for (folder, class) in judged {
        let Some(number) = learned_classes.iter().position(|learned| learned.folder == class.folder) else {
            let (name, learned) = (&class.name, learned.display());
            return Err(DataError(format!(
                "{} is a class for tests alone: {learned} has no folder {name}",
                class.path.display()
            )));
        };
        let known = Known::Class(number as u32);
        let files = scan::images(&class.path, &[root, folder])?;
        test.extend(files.into_iter().map(|path| Entry { path, known: known.clone() }));
    }
    let task = Task::SingleLabel { classes: names.len() };
    Ok(Found { train, test, task, names, unit: Unit::default() })
}

/// Nothing but images.
fn pairs(root: &Path, config: &FolderConfig, scale: usize) -> Result<Found, DataError> {
    if !(2..=8).contains(&scale) {
        return Err(DataError(format!("images cannot be made {scale} times larger: 2 to 8 times can")));
    }
    let entries = |folder: &Path| -> Result<Vec<Entry>, DataError> {
        Ok(scan::images(folder, &[])?.into_iter().map(|path| Entry { path, known: Known::Nothing }).collect())
    };
    let divided = root.join("train");
    let judged = ["test", "val", "validation"].map(|name| root.join(name)).into_iter().find(|folder| folder.is_dir());
    let (train, test) = match (divided.is_dir(), judged) {
        (true, Some(judged)) => (entries(&divided)?, entries(&judged)?),
        _ => split_by_chance(entries(root)?, root, config.seed, config.test_share),
    };
    if train.is_empty() && test.is_empty() {
        return Err(DataError(format!("{} holds no JPEG or PNG image", root.display())));
    }
    Ok(Found { train, test, task: Task::SuperResolution { scale }, names: Vec::new(), unit: Unit::default() })
}

impl ImageFolder {
    fn entries(&self, split: Split) -> &[Entry] {
        match split {
            Split::Train => &self.train,
            Split::Test => &self.test,
        }
    }
}

impl DataSet for ImageFolder {
    fn shape(&self) -> ImageShape {
        self.shape
    }

    fn task(&self) -> Task {
        self.task
    }

    fn len(&self, split: Split) -> usize {
        self.entries(split).len()
    }

    fn sample(&self, split: Split, index: usize) -> Result<Sample, SampleError> {
        self.sample_timed(split, index, &mut StageTimes::default())
    }

    fn sample_timed(&self, split: Split, index: usize, times: &mut StageTimes) -> Result<Sample, SampleError> {
        let fail = |cause: String| SampleError { sample: self.name(split, index), cause };
        let entries = self.entries(split);
        let entry = entries
            .get(index)
            .ok_or_else(|| fail(format!("there are {} in this split, and they begin with 0", entries.len())))?;
        let encoded = timed(&mut times.read_ns, || fit::bytes_of(&entry.path)).map_err(fail)?;
        let label = || match (&entry.known, self.task) {
            (Known::Class(class), _) => Label::Class(*class),
            (Known::Value(value), _) => Label::Value((value - self.unit.mean) / self.unit.deviation),
            (Known::Labels(given), Task::MultiLabel { labels }) => {
                let mut all = vec![0.0; labels];
                given.iter().for_each(|label| all[*label as usize] = 1.0);
                Label::Labels(all)
            }
            _ => unreachable!("what is known of a file is of the kind of its data set's task"),
        };
        fit::sample(&encoded, self.shape, self.task, label, times).map_err(fail)
    }

    fn name(&self, split: Split, index: usize) -> String {
        let entry = self.entries(split).get(index);
        entry.map_or_else(|| format!("image {index}"), |entry| entry.path.display().to_string())
    }

    fn fingerprint(&self) -> u64 {
        [&self.train, &self.test].into_iter().flatten().fold(NOTHING, |before, entry| {
            let name = entry.path.strip_prefix(&self.root).unwrap_or(&entry.path);
            let named = hash(before, name.as_os_str().as_encoded_bytes());
            hash(named, format!("\0{:?}\0", entry.known).as_bytes())
        })
    }

    fn unit(&self) -> Unit {
        self.unit.clone()
    }

    fn class_names(&self) -> &[String] {
        &self.names
    }

    fn describe(&self) -> String {
        let ImageShape { bands, height, width } = self.shape;
        let what = match self.task {
            Task::SingleLabel { classes } => format!("{classes} classes"),
            Task::MultiLabel { labels } => format!("any of {labels} labels"),
            Task::Regression => format!("{} to be told", self.unit.name),
            Task::SuperResolution { scale } => format!("to be made {scale} times larger"),
        };
        let (train, test) = (self.train.len(), self.test.len());
        format!("{}: {train} + {test} images, brought to {bands} x {height} x {width}, {what}", self.root.display())
    }
}

#[cfg(test)]
mod tests;
