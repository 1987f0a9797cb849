//! Writes records into shards: one way for all formats.
//!
//! A [`ShardWriter`] takes records one after another, and its file has its name when `finish` has returned. What is
//! written is what `source` finds again by itself: names of fields and endings are those that other libraries use.
//!
//! What is deliberately not here: how many shards there are and which record goes into which; that is the caller's.

use std::collections::HashSet;
use std::path::{Component, Path, PathBuf};

use super::NewFile;
use super::example::{Example, Feature};
use super::tar::TarWriter;
use super::tfrecord::TfRecordWriter;
use crate::DataError;
use crate::limit::Limit;
use crate::sample::Label;

/// A record that is to be written.
#[derive(Clone, Copy, Debug)]
pub struct NewRecord<'a> {
    /// What it is called: the path of the file that it comes from, within its data set.
    pub name: &'a str,
    /// The encoded image.
    pub encoded: &'a [u8],
    /// What is known about it.
    pub label: &'a Label,
}

/// Takes records for one shard. One that is dropped before it is finished leaves nothing behind.
pub trait ShardWriter: Send {
    /// Adds a record.
    fn write(&mut self, record: &NewRecord<'_>) -> Result<(), DataError>;

    /// Bytes so far, about: when to begin the next shard is the caller's to decide.
    fn bytes(&self) -> u64;

    /// Writes what is left, waits until all is on the disk and gives the shard its name.
    fn finish(self: Box<Self>) -> Result<(), DataError>;
}

/// What a record says, in a form that every format can write.
pub(crate) enum Said {
    /// One of several classes.
    Class(i64),
    /// The numbers of all labels that apply.
    Labels(Vec<i64>),
    /// A number.
    Value(f32),
}

/// What of a label is written.
pub(crate) fn said(record: &NewRecord<'_>) -> Result<Said, DataError> {
    // Readers have the same limit.
    let fits = Limit::of_process().check(record.encoded.len() as u64);
    fits.map_err(|error| DataError(format!("{}: {error}", record.name)))?;
    match record.label {
        Label::Class(class) => Ok(Said::Class(i64::from(*class))),
        Label::Labels(all) => {
            Ok(Said::Labels((0..).zip(all).filter(|(_, applies)| **applies > 0.5).map(|(number, _)| number).collect()))
        }
        Label::Value(value) => Ok(Said::Value(*value)),
        Label::Image(_) => {
            Err(DataError(format!("{}: pairs of images are not written: write the larger image alone", record.name)))
        }
    }
}

/// What kind of image begins with these bytes, by the usual ending of its file.
pub(crate) fn image_ending(encoded: &[u8]) -> Option<&'static str> {
    match encoded {
        [0xff, 0xd8, ..] => Some("jpg"),
        [0x89, b'P', b'N', b'G', ..] => Some("png"),
        [b'P', b'5', ..] => Some("pgm"),
        [b'P', b'6', ..] => Some("ppm"),
        _ => None,
    }
}

fn checked_ending(record: &NewRecord<'_>) -> Result<&'static str, DataError> {
    image_ending(record.encoded)
        .ok_or_else(|| DataError(format!("{} is neither a JPEG nor a PNG or PNM image", record.name)))
}

/// A TFRecord file of examples with the fields of TensorFlow's own conversion of ImageNet.
#[derive(Debug)]
pub struct TfRecordShard {
    writer: TfRecordWriter,
    class_names: Vec<String>,
    bytes: u64,
}

impl TfRecordShard {
    /// Begins a file. The names of classes, if there are any, are written beside their numbers.
    pub fn create(path: &Path, class_names: &[String]) -> Result<TfRecordShard, DataError> {
        let writer = TfRecordWriter::new(NewFile::create(path)?);
        Ok(TfRecordShard { writer, class_names: class_names.to_vec(), bytes: 0 })
    }
}

impl ShardWriter for TfRecordShard {
    fn write(&mut self, record: &NewRecord<'_>) -> Result<(), DataError> {
        let format = match checked_ending(record)? {
            "jpg" => "JPEG",
            "png" => "PNG",
            _ => "PNM",
        };
        let mut example = Example::default();
        example.set("image/encoded", Feature::Bytes(vec![record.encoded]));
        example.set("image/format", Feature::Bytes(vec![format.as_bytes()]));
        example.set("image/filename", Feature::Bytes(vec![record.name.as_bytes()]));
        let label = match said(record)? {
            Said::Class(class) => {
                if let Some(name) = usize::try_from(class).ok().and_then(|class| self.class_names.get(class)) {
                    example.set("image/class/text", Feature::Bytes(vec![name.as_bytes()]));
                }
                Feature::Ints(vec![class])
            }
            Said::Labels(labels) => Feature::Ints(labels),
            Said::Value(value) => Feature::Floats(vec![value]),
        };
        example.set("image/class/label", label);
        let encoded = example.encode();
        self.bytes += encoded.len() as u64;
        self.writer.write(&encoded)
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn finish(self: Box<Self>) -> Result<(), DataError> {
        self.writer.finish()
    }
}

/// A shard of WebDataset: for each record an image and what is known about it, under the same key.
#[derive(Debug)]
pub struct TarShard {
    writer: TarWriter,
    keys: HashSet<String>,
}

impl TarShard {
    /// Begins a file.
    pub fn create(path: &Path) -> Result<TarShard, DataError> {
        Ok(TarShard { writer: TarWriter::new(NewFile::create(path)?), keys: HashSet::new() })
    }

    /// The key of a record: its name without ending, and without dots in its last part, for the first one ends a key.
    /// A key that is taken already gets a number.
    fn key(&mut self, name: &str) -> String {
        let name = within(name).to_string_lossy().into_owned();
        let (folder, file) = name.rsplit_once('/').map_or(("", name.as_str()), |(folder, file)| (folder, file));
        let stem = file.rsplit_once('.').map_or(file, |(stem, _)| stem).replace('.', "_");
        let key = if folder.is_empty() { stem } else { format!("{folder}/{stem}") };
        let mut unique = key.clone();
        let mut number = 1;
        while !self.keys.insert(unique.clone()) {
            number += 1;
            unique = format!("{key}-{number}");
        }
        unique
    }
}

impl ShardWriter for TarShard {
    fn write(&mut self, record: &NewRecord<'_>) -> Result<(), DataError> {
        let ending = checked_ending(record)?;
        let (label_ending, label) = match said(record)? {
            Said::Class(class) => ("cls", class.to_string()),
            Said::Labels(labels) => ("json", serde_json::json!({ "labels": labels }).to_string()),
            Said::Value(value) => ("json", serde_json::json!({ "label": value }).to_string()),
        };
        let key = self.key(record.name);
        self.writer.write(&format!("{key}.{ending}"), record.encoded)?;
        self.writer.write(&format!("{key}.{label_ending}"), label.as_bytes())
    }

    fn bytes(&self) -> u64 {
        self.writer.bytes()
    }

    fn finish(self: Box<Self>) -> Result<(), DataError> {
        self.writer.finish()
    }
}

/// A folder of files: one folder for each class, or a table where there are no classes.
#[derive(Debug)]
pub struct FolderWriter {
    root: PathBuf,
    class_names: Vec<String>,
    bytes: u64,
    /// What the table says, and which word its header has.
    table: Vec<String>,
    header: Option<&'static str>,
}

impl FolderWriter {
    /// Writes below this folder, which is made if it is not there. Classes without names are named by their numbers.
    pub fn create(root: &Path, class_names: &[String]) -> Result<FolderWriter, DataError> {
        std::fs::create_dir_all(root)
            .map_err(|error| DataError(format!("the folder {} cannot be made: {error}", root.display())))?;
        let class_names = class_names.to_vec();
        Ok(FolderWriter { root: root.to_owned(), class_names, bytes: 0, table: Vec::new(), header: None })
    }

    fn class_folder(&self, class: i64) -> Result<String, String> {
        let name = usize::try_from(class).ok().and_then(|class| self.class_names.get(class));
        // Six digits hold every number of a class, and sort as numbers do.
        name.map_or_else(|| Ok(format!("{class:06}")), |name| class_folder(name))
    }
}

impl ShardWriter for FolderWriter {
    fn write(&mut self, record: &NewRecord<'_>) -> Result<(), DataError> {
        let mut name = within(record.name);
        name.set_extension(checked_ending(record)?);
        let (header, said) = match said(record)? {
            Said::Class(class) => {
                let folder = self.class_folder(class).map_err(|why| DataError(format!("{}: {why}", record.name)))?;
                if !name.starts_with(&folder) {
                    name = Path::new(&folder).join(name);
                }
                ("class", None)
            }
            Said::Labels(labels) => ("labels", Some(labels.iter().map(i64::to_string).collect::<Vec<_>>().join(";"))),
            Said::Value(value) => ("value", Some(value.to_string())),
        };
        if *self.header.get_or_insert(header) != header {
            return Err(DataError(format!("{} has a label of another kind than those before it", record.name)));
        }
        let mut file = NewFile::create_below(&self.root, &name)?;
        file.write(record.encoded)?;
        // All of them are synced together in the end: a wait for the disk for every image would take hours.
        file.finish_unsynced()?;
        self.bytes += record.encoded.len() as u64;
        self.table.extend(said.map(|said| format!("\"{}\",{said}\n", name.display().to_string().replace('"', "\"\""))));
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn finish(self: Box<Self>) -> Result<(), DataError> {
        let show = self.root.display();
        let synced = std::fs::File::open(&self.root).and_then(|folder| Ok(rustix::fs::syncfs(folder)?));
        synced.map_err(|error| DataError(format!("the folder {show} cannot be brought to the disk: {error}")))?;
        if let Some(header) = self.header.filter(|_| !self.table.is_empty()) {
            let mut table = NewFile::create(&self.root.join("labels.csv"))?;
            table.write(format!("file,{header}\n").as_bytes())?;
            self.table.iter().try_for_each(|line| table.write(line.as_bytes()))?;
            table.finish()?;
        }
        Ok(())
    }
}

/// Bytes of a name in a folder, at most, on the usual file systems.
const MAX_NAME_BYTES: usize = 255;

/// The folder of a class. Names come from data: one that cannot be a visible folder of its own is refused.
pub(crate) fn class_folder(class: &str) -> Result<String, String> {
    let name = class.replace('/', "_");
    // Readers pass over hidden folders; `.` and `..` are among them.
    let is_folder = !name.is_empty() && !name.starts_with('.') && !name.contains('\0') && name.len() <= MAX_NAME_BYTES;
    if is_folder { Ok(name) } else { Err(format!("its class {class:?} cannot be the name of a folder; rename it")) }
}

/// A name as a path that leads nowhere but down.
fn within(name: &str) -> PathBuf {
    let parts = Path::new(name).components().filter(|part| matches!(part, Component::Normal(_)));
    let path: PathBuf = parts.collect();
    if path.as_os_str().is_empty() { PathBuf::from("record") } else { path }
}
