//! How records are to be read.

use std::path::PathBuf;
use std::sync::Arc;

use crate::sample::Split;

/// How records are to be read. Where nothing is said, the usual names and kinds are found by themselves.
#[derive(Clone, Default)]
pub struct RecordsConfig {
    /// The field, column or array with the image.
    pub image: Option<String>,
    /// The field, column or array with what is known about it.
    pub label: Option<String>,
    /// What kind of label that is.
    pub kind: LabelKind,
    /// The names of classes or labels by number. Labels that are names must be among them. Where there are none, names
    /// are numbered in their sorted order.
    pub class_names: Vec<String>,
    /// How many classes or labels there are; without it the largest number tells.
    pub classes: Option<usize>,
    /// Which part is meant of a data set that has several: of folders and shards called so (`train/`, `test-….tar`), of
    /// the column `split` of a table, of arrays in one file.
    pub split: Option<Split>,
    /// Where indexes of shards are kept.
    pub index: IndexPlace,
    /// Threads that look through shards; zero for as many as there are cores.
    pub threads: usize,
    /// Is told how far looking through shards has come, by any of these threads.
    pub progress: Option<Arc<dyn Fn(ScanProgress) + Send + Sync>>,
}

impl std::fmt::Debug for RecordsConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordsConfig")
            .field("image", &self.image)
            .field("label", &self.label)
            .field("kind", &self.kind)
            .field("class_names", &self.class_names)
            .field("classes", &self.classes)
            .field("split", &self.split)
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}

/// What labels mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LabelKind {
    /// What they look like: one whole number or one name for each record is a class, lists of them are labels of which
    /// any may apply, and one number with a fraction is a value to be told.
    #[default]
    Found,
    /// One of several classes.
    Class,
    /// The numbers or names of all labels that apply.
    MultiLabel,
    /// For each label 0 or 1.
    MultiHot,
    /// A number to be told.
    Value,
    /// Nothing is known, or it does not matter: all records are of class 0.
    Nothing,
}

/// Where indexes of shards are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum IndexPlace {
    /// Beside the shards, as hidden files, if these lie on this machine and their folder may be written.
    #[default]
    Beside,
    /// In a folder, which is made if it is not there.
    Folder(PathBuf),
    /// Nowhere: shards are looked through whenever they are opened.
    Nowhere,
}

/// How far looking through shards has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanProgress {
    /// Shards that are done.
    pub done: usize,
    /// All shards.
    pub shards: usize,
    /// Records that were found so far.
    pub records: usize,
}
