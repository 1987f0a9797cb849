//! Which files are meant by a path, and what they are.

use std::sync::Arc;

use super::table::Labelled;
use super::{npy, pattern, table};
use crate::DataError;
use crate::format::{StoredFile, tar, tfrecord, tiff};
use crate::source::image_folder::TABLE;
use crate::storage::{Object, Storage};

/// What files are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// One image each.
    Images,
    TfRecord,
    Tar,
    Parquet,
    /// Of NumPy.
    Arrays,
}

/// Names of folders, and words of other names, that are parts of a data set and no classes.
pub(crate) const PARTS: [&str; 4] = ["train", "val", "validation", "test"];

/// Files of one format.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) format: Format,
    /// Sorted by the bytes of their paths; for a pattern with braces in its order.
    pub(crate) files: Vec<Object>,
    /// The folder that was named, with a slash at its end; empty for the whole storage, and for files.
    pub(crate) root: String,
    /// Which part is meant, where a file has several.
    pub(crate) part: Option<&'static str>,
    /// What a table says about images, one line for each of the files.
    pub(crate) table: Option<Labelled>,
}

/// What lies at a path.
pub(crate) enum Looked {
    /// Files with records.
    Records(Found),
    /// Patches of satellites, which are no records; a file of one of them.
    Patches(String),
}

/// Bytes that tell what a file is: a header of tar is the longest.
const HEAD_BYTES: usize = 512;

/// What is read, for errors.
const READ: &str = "TFRecord (.tfrecord), WebDataset (.tar), Parquet (.parquet), NumPy (.npz, .npy) and images (.jpg, \
                    .png) in a folder for each class are read";

/// Finds the files of a path.
pub(crate) fn find(storage: &Arc<dyn Storage>, path: &str) -> Result<Found, DataError> {
    match look(storage, path)? {
        Looked::Records(found) => Ok(found),
        Looked::Patches(file) => Err(DataError(format!(
            "{} holds patches of satellites ({file}): `farandole train` reads them; twelve bands are no image for others",
            shown(storage, path.trim_end_matches('/'))
        ))),
    }
}

/// Finds out what lies at a path.
pub(crate) fn look(storage: &Arc<dyn Storage>, path: &str) -> Result<Looked, DataError> {
    let fail = |cause: String| DataError(cause);
    if pattern::is_pattern(path) {
        let files = of_pattern(storage, path)?;
        let format = same_format(storage, &files)?;
        return Ok(Looked::Records(Found { format, files, root: String::new(), part: None, table: None }));
    }
    let path = path.trim_end_matches('/');
    let listed = match storage.list(path) {
        Ok(listed) => listed,
        Err(error) => vec![named_file(storage, path).ok_or_else(|| fail(error.to_string()))?],
    };
    if let Some(file) = listed.iter().find(|object| object.path == path) {
        let files = vec![file.clone()];
        let format = same_format(storage, &files)?;
        return Ok(Looked::Records(Found { format, files, root: String::new(), part: None, table: None }));
    }
    let root = if path.is_empty() || path == "." { String::new() } else { format!("{path}/") };
    let files: Vec<Object> = listed.into_iter().filter(|object| object.path.starts_with(&root)).collect();
    let shown = shown(storage, path);
    if files.is_empty() {
        return Err(DataError(format!("{shown}: there is no such file, and no folder with files")));
    }
    match files.iter().find(|file| tiff::is_label_file(&file.path)) {
        Some(file) => Ok(Looked::Patches(file.path.clone())),
        None => of_folder(storage, files, root, &shown).map(Looked::Records),
    }
}

/// The path, as people would write it.
pub(crate) fn shown(storage: &Arc<dyn Storage>, path: &str) -> String {
    storage.local_path(path).map_or_else(|| path.to_owned(), |path| path.display().to_string())
}

/// A file that is named in full, in a storage that lists nothing, as most web servers are.
fn named_file(storage: &Arc<dyn Storage>, path: &str) -> Option<Object> {
    let is_named = matches!(by_name(path), Ok(Some(format)) if format != Format::Images);
    let bytes = if is_named { storage.size(path).ok() } else { None };
    bytes.map(|bytes| Object { path: path.to_owned(), bytes })
}

fn of_pattern(storage: &Arc<dyn Storage>, path: &str) -> Result<Vec<Object>, DataError> {
    let expanded = pattern::expand(path).map_err(DataError)?;
    let mut files: Vec<Object> = Vec::new();
    let mut listed: Option<(&str, Vec<Object>)> = None;
    for pattern in &expanded {
        let folder = pattern::folder_of(pattern);
        // Patterns of one folder follow each other: it is listed once.
        if listed.as_ref().is_none_or(|(known, _)| *known != folder) {
            match storage.list(folder) {
                Ok(there) => listed = Some((folder, there)),
                Err(error) => {
                    let named = if pattern.contains(['*', '?']) { None } else { named_file(storage, pattern) };
                    files.push(named.ok_or_else(|| DataError(error.to_string()))?);
                    continue;
                }
            }
        }
        let (_, there) = listed.as_ref().expect("invariant: it was listed above");
        let before = files.len();
        match there.binary_search_by(|object| object.path.as_str().cmp(pattern)) {
            Ok(exact) => files.push(there[exact].clone()),
            Err(_) if pattern.contains(['*', '?']) => {
                files.extend(there.iter().filter(|object| pattern::matches(pattern, &object.path)).cloned());
            }
            Err(_) => {}
        }
        if files.len() == before {
            let (named, shown) = (files.len(), shown(storage, pattern));
            let rest = if expanded.len() == 1 { String::new() } else { format!(" ({named} of `{path}` are there)") };
            return Err(DataError(format!("{shown}: there is no such file{rest}")));
        }
    }
    Ok(files)
}

/// What the end of a name says.
pub(super) fn by_name(path: &str) -> Result<Option<Format>, DataError> {
    let name = path.rsplit('/').next().unwrap_or_default().to_lowercase();
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
    let compressed = ["tar.gz", "tgz", "tar.zst", "tar.xz", "tar.bz2", "tfrecord.gz"];
    if compressed.iter().any(|ending| name.ends_with(ending)) {
        return Err(DataError(format!("{path} is compressed: no record in it can be read alone; unpack it")));
    }
    // `train.tfrecord-00000-of-00010` is a usual name, too; `a.tfrecord.idx` is something else.
    let is_tfrecord = ["tfrecord", "tfrecords", "tfrec"].contains(&ending.split('-').next().unwrap_or_default());
    Ok(match ending {
        _ if is_tfrecord => Some(Format::TfRecord),
        "tar" => Some(Format::Tar),
        "npy" | "npz" => Some(Format::Arrays),
        "parquet" => Some(Format::Parquet),
        "jpg" | "jpeg" | "png" | "ppm" | "pgm" => Some(Format::Images),
        _ => None,
    })
}

/// What the first bytes of a file say.
pub(super) fn by_head(storage: &Arc<dyn Storage>, object: &Object) -> Result<Option<Format>, DataError> {
    let file = StoredFile::known(Arc::clone(storage), &object.path, object.bytes);
    let head = file.head(HEAD_BYTES).map_err(|error| DataError(error.to_string()))?;
    Ok(if tfrecord::is_tfrecord(&head) {
        Some(Format::TfRecord)
    } else if tar::is_tar(&head) {
        Some(Format::Tar)
    } else if head.starts_with(b"PAR1") {
        Some(Format::Parquet)
    } else if head.starts_with(b"\x93NUMPY") || head.starts_with(b"PK\x03\x04") {
        Some(Format::Arrays)
    } else {
        None
    })
}

/// The format that all these files have.
fn same_format(storage: &Arc<dyn Storage>, files: &[Object]) -> Result<Format, DataError> {
    let mut first: Option<(Format, &str)> = None;
    for file in files {
        let format = match by_name(&file.path)? {
            Some(format) => Some(format),
            None => by_head(storage, file)?,
        };
        let shown = shown(storage, &file.path);
        let Some(format) = format.filter(|format| *format != Format::Images) else {
            return Err(DataError(format!("{shown} is no file with records: {READ}")));
        };
        match first {
            Some((before, path)) if before != format => {
                return Err(DataError(format!("{shown} is of another format than {path}: open them one by one")));
            }
            _ => first = Some((format, &file.path)),
        }
    }
    Ok(first.expect("invariant: patterns and paths without files were refused").0)
}

/// The shards of a folder, or else its images. What else lies there is passed over.
fn of_folder(storage: &Arc<dyn Storage>, files: Vec<Object>, root: String, shown: &str) -> Result<Found, DataError> {
    let mut formats = Vec::with_capacity(files.len());
    for file in &files {
        formats.push(by_name(&file.path)?);
    }
    let has_shards = formats.iter().flatten().any(|format| *format != Format::Images);
    if !has_shards && !formats.contains(&Some(Format::Images)) {
        // Files without an ending, such as `train-00000-of-01024`.
        for (file, format) in files.iter().zip(&mut formats) {
            *format = by_head(storage, file)?;
        }
    }
    if let Some(table) = files.iter().find(|file| file.path.strip_prefix(&root) == Some(TABLE)).filter(|_| !has_shards)
    {
        let (labelled, files) = table::read(storage, table, &root, &files)?;
        return Ok(Found { format: Format::Images, files, root, part: None, table: Some(labelled) });
    }
    let is_wanted = |format: &Option<Format>| format.is_some_and(|format| !has_shards || format != Format::Images);
    let is_wanted = |file: &Object, format: &Option<Format>| {
        is_wanted(format) && (*format != Some(Format::Arrays) || npy::holds_images(&file.path))
    };
    let files = files.into_iter().zip(&formats).filter(|(file, format)| is_wanted(file, format));
    let files: Vec<Object> = files.map(|(file, _)| file).collect();
    if files.is_empty() {
        return Err(DataError(format!("{shown} holds neither shards nor images: {READ}")));
    }
    let format = if formats.contains(&Some(Format::Images)) && !has_shards {
        Format::Images
    } else {
        same_format(storage, &files)?
    };
    Ok(Found { format, files, root, part: None, table: None })
}
