//! What lies at a path, for Python: [`DataRecords`].

use std::path::PathBuf;
use std::sync::Arc;

use farandole_data::sample::{Label, Split, Task};
use farandole_data::source::{self, IndexPlace, LabelKind, Records, RecordsConfig};
use farandole_data::storage::{self, StorageOptions};
use pyo3::exceptions::{PyIndexError, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Samples by number, before they are decoded.
#[pyclass(frozen, module = "farandole._native")]
pub(crate) struct DataRecords(pub(super) Arc<dyn Records>);

/// What is known about a record, for Python: a class, or numbers.
#[derive(IntoPyObject)]
pub(super) enum PyLabel {
    Class(u32),
    Numbers(Vec<f32>),
    Value(f32),
}

impl From<Label> for PyLabel {
    fn from(label: Label) -> PyLabel {
        match label {
            Label::Class(class) => PyLabel::Class(class),
            Label::Labels(numbers) | Label::Image(numbers) => PyLabel::Numbers(numbers),
            Label::Value(value) => PyLabel::Value(value),
        }
    }
}

#[pymethods]
impl DataRecords {
    /// Opens a file, a folder or the files of a pattern, by path or URL. Shards are looked through, without the
    /// interpreter's lock.
    #[staticmethod]
    #[pyo3(signature = (source, *, image=None, label=None, kind="found", class_names=Vec::new(), classes=None,
                        split=None, index=None, threads=0))]
    #[expect(clippy::too_many_arguments, reason = "all but the first are keywords")]
    fn open(
        py: Python<'_>,
        source: &str,
        image: Option<String>,
        label: Option<String>,
        kind: &str,
        class_names: Vec<String>,
        classes: Option<usize>,
        split: Option<&str>,
        index: Option<PathBuf>,
        threads: usize,
    ) -> PyResult<DataRecords> {
        let kind = label_kind(kind)?;
        let split = match split {
            None => None,
            Some("train") => Some(Split::Train),
            Some("test") => Some(Split::Test),
            Some(other) => return Err(PyValueError::new_err(format!("split {other:?}: \"train\" or \"test\""))),
        };
        let index = match index {
            None => IndexPlace::Beside,
            Some(folder) if folder.as_os_str().is_empty() => IndexPlace::Nowhere,
            Some(folder) => IndexPlace::Folder(folder),
        };
        let config = RecordsConfig { image, label, kind, class_names, classes, split, index, threads, progress: None };
        let options = StorageOptions::from_environment().map_err(|wrong| PyValueError::new_err(wrong.to_string()))?;
        let opened = py.detach(|| {
            let (storage, path) = storage::open(source, &options).map_err(|error| error.to_string())?;
            source::open(storage, &path, &config).map_err(|error| error.to_string())
        });
        opened.map(DataRecords).map_err(PyOSError::new_err)
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// Names of classes or labels, by number.
    #[getter]
    fn class_names(&self) -> Vec<String> {
        self.0.class_names().to_vec()
    }

    /// How many classes or labels there are; none for a number to be told.
    #[getter]
    fn classes(&self) -> Option<usize> {
        classes_of(self.0.task())
    }

    /// One line for people.
    fn describe(&self) -> String {
        self.0.describe()
    }

    /// A number that is another one where the records are others.
    #[getter]
    fn fingerprint(&self) -> u64 {
        self.0.fingerprint()
    }

    /// What people call a record.
    fn name(&self, index: usize) -> PyResult<String> {
        self.check(index)?;
        Ok(self.0.name(index))
    }

    /// One record: its bytes and what is known about it.
    fn read<'py>(&self, py: Python<'py>, index: usize) -> PyResult<(Bound<'py, PyBytes>, PyLabel)> {
        self.check(index)?;
        let mut encoded = Vec::new();
        let label = py.detach(|| self.0.read(index, &mut encoded));
        let label = label.map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok((PyBytes::new(py, &encoded), label.into()))
    }
}

impl DataRecords {
    fn check(&self, index: usize) -> PyResult<()> {
        if index < self.0.len() {
            return Ok(());
        }
        Err(PyIndexError::new_err(format!("there is no record {index}: there are {}", self.0.len())))
    }
}

pub(super) fn classes_of(task: Task) -> Option<usize> {
    match task {
        Task::SingleLabel { classes: count } | Task::MultiLabel { labels: count } => Some(count),
        Task::Regression | Task::SuperResolution { .. } => None,
    }
}

fn label_kind(word: &str) -> PyResult<LabelKind> {
    match word {
        "found" => Ok(LabelKind::Found),
        "class" => Ok(LabelKind::Class),
        "multi-label" => Ok(LabelKind::MultiLabel),
        "multi-hot" => Ok(LabelKind::MultiHot),
        "value" => Ok(LabelKind::Value),
        "none" => Ok(LabelKind::Nothing),
        other => {
            let words = "found, class, multi-label, multi-hot, value, none";
            Err(PyValueError::new_err(format!("labels of the kind {other:?} are not known; there are: {words}")))
        }
    }
}
