//! Which files there are.
//!
//! Folders are walked to any depth; links are followed, for data is often linked into place, but never into a folder
//! that the walk is already in. Names need not be UTF-8. Everything comes sorted by the bytes of its name, so that all
//! hosts and all ranks see the same order. What is hidden is passed over. A folder that may not be read is an error:
//! half a data set would look like a whole one.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::DataError;

/// A folder whose images are of one class.
pub(super) struct ClassFolder {
    pub(super) path: PathBuf,
    /// Its name, and for people.
    pub(super) folder: OsString,
    pub(super) name: String,
}

/// Folders within folders, at most. Nobody keeps images deeper, and the stack is finite.
const DEPTH: usize = 64;

/// The folders in a folder, by name.
pub(super) fn class_folders(root: &Path) -> Result<Vec<ClassFolder>, DataError> {
    let mut folders = Vec::new();
    for folder in names(root)? {
        let path = root.join(&folder);
        // Follows links; a link that leads nowhere is no folder.
        if path.is_dir() {
            folders.push(ClassFolder { path, name: folder.to_string_lossy().into_owned(), folder });
        }
    }
    Ok(folders)
}

/// All JPEG and PNG files in a folder and the folders in it. A link that leads back to one of the folders `above` it is
/// not followed: images of all classes would become images of one.
pub(super) fn images(folder: &Path, above: &[&Path]) -> Result<Vec<PathBuf>, DataError> {
    let mut within = above.iter().map(|folder| identity(folder)).collect::<Result<Vec<_>, DataError>>()?;
    let mut found = Vec::new();
    walk(folder, &mut within, &mut found)?;
    Ok(found)
}

/// What the system tells a folder by, whatever names lead to it.
fn identity(folder: &Path) -> Result<(u64, u64), DataError> {
    let metadata = std::fs::metadata(folder).map_err(|error| unreadable(folder, &error))?;
    Ok((metadata.dev(), metadata.ino()))
}

fn walk(folder: &Path, within: &mut Vec<(u64, u64)>, found: &mut Vec<PathBuf>) -> Result<(), DataError> {
    let identity = identity(folder)?;
    if within.contains(&identity) || within.len() == DEPTH {
        return Ok(());
    }
    within.push(identity);
    for name in names(folder)? {
        let path = folder.join(&name);
        // A file that has gone meanwhile, or a link that leads nowhere.
        let Ok(metadata) = std::fs::metadata(&path) else { continue };
        if metadata.is_dir() {
            walk(&path, within, found)?;
        } else if metadata.is_file() && is_image(&name) {
            found.push(path);
        }
    }
    within.pop();
    Ok(())
}

/// What is in a folder and not hidden, sorted.
fn names(folder: &Path) -> Result<Vec<OsString>, DataError> {
    let entries = std::fs::read_dir(folder).map_err(|error| unreadable(folder, &error))?;
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(|error| unreadable(folder, &error))?.file_name();
        if !name.as_encoded_bytes().starts_with(b".") {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn unreadable(folder: &Path, error: &std::io::Error) -> DataError {
    DataError(format!("the folder {} cannot be read: {error}", folder.display()))
}

/// By the end of its name; what a file really is, its first bytes say when it is read.
fn is_image(name: &OsStr) -> bool {
    let extension = Path::new(name).extension().map(OsStr::to_ascii_lowercase);
    extension.is_some_and(|extension| extension == "jpg" || extension == "jpeg" || extension == "png")
}
