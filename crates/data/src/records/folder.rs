//! A folder of images in any storage: one folder for each class.
//!
//! A class is a folder right below the one that was opened; its images may lie deeper. Classes are numbered in the
//! order of their names' bytes.

use std::sync::Arc;

use super::Records;
use super::config::{LabelKind, RecordsConfig};
use super::find::{Found, PARTS, shown};
use super::labels::{Known, Marks, resolve};
use crate::folder::draw::{NOTHING, hash};
use crate::format::MAX_RECORD_BYTES;
use crate::sample::{Label, Task};
use crate::storage::{Object, Storage};
use crate::{DataError, SampleError};

/// Images of a folder. See the module's text.
#[derive(Debug)]
pub(crate) struct FolderRecords {
    storage: Arc<dyn Storage>,
    files: Vec<Object>,
    root: String,
    known: Known,
}

impl FolderRecords {
    /// Images that were found.
    pub(crate) fn open(
        storage: Arc<dyn Storage>,
        found: Found,
        config: &RecordsConfig,
    ) -> Result<FolderRecords, DataError> {
        let Found { files, root, .. } = found;
        let folder = shown(&storage, root.trim_end_matches('/'));
        let class = |object: &Object| object.path[root.len()..].split_once('/').map(|(class, _)| class.to_owned());
        let classes: Vec<Option<String>> = files.iter().map(class).collect();
        if config.kind != LabelKind::Nothing {
            if let Some(bare) = classes.iter().position(Option::is_none) {
                let file = shown(&storage, &files[bare].path);
                return Err(DataError(format!(
                    "{file} is in no class folder: nothing says what it shows; put images into a folder for each class"
                )));
            }
            if classes.iter().flatten().all(|class| PARTS.contains(&class.as_str())) {
                return Err(DataError(format!("{folder} is divided into parts: open one, such as {folder}/train")));
            }
        }
        let marks: Vec<Marks> = classes.into_iter().map(|class| Marks::Names(class.into_iter().collect())).collect();
        let known = resolve(&marks, config, &|index| shown(&storage, &files[index].path))?;
        Ok(FolderRecords { storage, files, root, known })
    }
}

impl Records for FolderRecords {
    fn len(&self) -> usize {
        self.files.len()
    }

    fn read(&self, index: usize, encoded: &mut Vec<u8>) -> Result<Label, SampleError> {
        let fail = |cause: String| SampleError { sample: self.name(index), cause };
        let Some(object) = self.files.get(index) else {
            return Err(fail(format!("there are {} images, and they begin with 0", self.len())));
        };
        if object.bytes > MAX_RECORD_BYTES {
            return Err(fail(format!("the file has {} bytes; images may have {MAX_RECORD_BYTES}", object.bytes)));
        }
        encoded.resize(object.bytes as usize, 0);
        self.storage.read_at(&object.path, 0, encoded).map_err(|error| fail(error.cause))?;
        Ok(self.known.label(index))
    }

    fn label(&self, index: usize) -> Option<Label> {
        (index < self.len()).then(|| self.known.label(index))
    }

    fn task(&self) -> Task {
        self.known.task
    }

    fn name(&self, index: usize) -> String {
        self.files.get(index).map_or_else(|| format!("image {index}"), |object| shown(&self.storage, &object.path))
    }

    fn class_names(&self) -> &[String] {
        &self.known.names
    }

    fn describe(&self) -> String {
        format!("{}: {} images in class folders", shown(&self.storage, &self.root), self.len())
    }

    fn fingerprint(&self) -> u64 {
        self.files.iter().enumerate().fold(NOTHING, |before, (index, object)| {
            let named = hash(before, &object.path.as_bytes()[self.root.len()..]);
            let sized = hash(named, &object.bytes.to_le_bytes());
            match self.known.label(index) {
                Label::Class(class) => hash(sized, &class.to_le_bytes()),
                _ => sized,
            }
        })
    }
}
