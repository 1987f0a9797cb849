//! A folder of images in any storage: one folder for each class, or a table.
//!
//! A class is a folder right below the one that was opened; its images may lie deeper. Classes are numbered in the
//! order of their names' bytes. Where there is a table (`labels.csv`), it says which images there are and what they
//! show, and folders have no meaning.

use std::sync::Arc;

use super::Records;
use super::config::{LabelKind, RecordsConfig};
use super::find::{Found, PARTS, shown};
use super::labels::{Known, Marks, resolve};
use crate::limit::Limit;
use crate::sample::{Label, Task};
use crate::source::split::{NOTHING, hash};
use crate::storage::{Object, Storage};
use crate::{DataError, SampleError};

/// Images of a folder. See the module's text.
#[derive(Debug)]
pub(crate) struct FolderRecords {
    storage: Arc<dyn Storage>,
    files: Vec<Object>,
    root: String,
    known: Known,
    /// Where it is said what images show.
    labelled_by: &'static str,
}

impl FolderRecords {
    /// Images that were found.
    pub(crate) fn open(
        storage: Arc<dyn Storage>,
        found: Found,
        config: &RecordsConfig,
    ) -> Result<FolderRecords, DataError> {
        let Found { files, root, table, .. } = found;
        if let Some(table) = table {
            if table.is_divided() {
                let folder = shown(&storage, root.trim_end_matches('/'));
                return Err(DataError(format!("the table of {folder} has a column `split`: say which part is meant")));
            }
            let kind = if config.kind == LabelKind::Found { table.kind } else { config.kind };
            let config = RecordsConfig { kind, ..config.clone() };
            let known = resolve(&table.marks, &config, &|index| shown(&storage, &files[index].path))?;
            return Ok(FolderRecords { storage, files, root, known, labelled_by: "a table" });
        }
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
        Ok(FolderRecords { storage, files, root, known, labelled_by: "class folders" })
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
        Limit::of_process().check(object.bytes).map_err(|error| fail(error.to_string()))?;
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
        let (folder, count, labelled_by) = (shown(&self.storage, &self.root), self.len(), self.labelled_by);
        format!("{folder}: {count} images, labelled by {labelled_by}")
    }

    fn fingerprint(&self) -> u64 {
        self.files.iter().enumerate().fold(NOTHING, |before, (index, object)| {
            let named = hash(before, &object.path.as_bytes()[self.root.len()..]);
            let sized = hash(named, &object.bytes.to_le_bytes());
            match self.known.label(index) {
                Label::Class(class) => hash(sized, &class.to_le_bytes()),
                Label::Value(value) => hash(sized, &value.to_le_bytes()),
                Label::Labels(all) | Label::Image(all) => {
                    all.iter().fold(sized, |before, value| hash(before, &value.to_le_bytes()))
                }
            }
        })
    }
}
