//! The note in a folder that says which conversion fills it.
//!
//! It is a hidden file of JSON, written before the first shard. A folder with the same note is gone on with; one with
//! another note, or with files and no note, is refused: shards of two conversions side by side would be read as one
//! data set.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Conversion, ImageChange, TargetFormat};
use crate::DataError;
use crate::format::NewFile;
use crate::source::Records;

/// The file. Readers pass over hidden files.
const NAME: &str = ".farandole-conversion.json";

/// All that decides what is written.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    /// Raised when the same words lead to other bytes.
    version: u32,
    source: String,
    fingerprint: u64,
    records: usize,
    to: TargetFormat,
    shards: usize,
    change: ImageChange,
    shuffle_seed: Option<u64>,
    leave_out_broken: bool,
}

/// Leaves the note, or finds that it is there already.
pub(super) fn agree(records: &dyn Records, conversion: &Conversion, shards: usize) -> Result<(), DataError> {
    let note = Note {
        version: 1,
        source: records.describe(),
        fingerprint: records.fingerprint(),
        records: records.len(),
        to: conversion.to,
        shards,
        change: conversion.change,
        shuffle_seed: conversion.shuffle_seed,
        leave_out_broken: conversion.leave_out_broken,
    };
    let folder = &conversion.folder;
    let path = folder.join(NAME);
    match std::fs::read(&path) {
        Ok(bytes) => match serde_json::from_slice::<Note>(&bytes) {
            // Where the source lies may change; what it holds may not.
            Ok(found) if (Note { source: note.source.clone(), ..found }) == note => Ok(()),
            _ => Err(DataError(format!(
                "{} holds another conversion: take another folder, or remove this one ({NAME} says what it is)",
                folder.display()
            ))),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            if !is_empty(folder)? {
                return Err(DataError(format!("{} has files already: take an empty folder", folder.display())));
            }
            let text = serde_json::to_vec_pretty(&note).map_err(|error| DataError(error.to_string()))?;
            let mut file = NewFile::create(&path)?;
            file.write(&text)?;
            file.finish()
        }
        Err(error) => Err(DataError(format!("{}: {error}", path.display()))),
    }
}

/// Whether a folder has no files, or is not there.
fn is_empty(folder: &Path) -> Result<bool, DataError> {
    match std::fs::read_dir(folder) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(DataError(format!("{}: {error}", folder.display()))),
    }
}
