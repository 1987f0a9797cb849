//! A file that is there in one piece or not at all.
//!
//! The bytes go to a file beside it, with a name of its own; that is pushed to the disk, takes the name of the real one
//! in a single step, and then the folder is pushed to the disk, too. Whenever the machine stops, whoever looks
//! afterwards finds the old file or the new one. What was begun and could not be finished is removed; where even that
//! is impossible (the process was killed) the name shows what it is, and the next one who writes takes it away.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The name of the checkpoint in its folder.
pub const NAME: &str = "checkpoint.safetensors";

/// What the name of an unfinished file ends with.
const UNFINISHED: &str = "unfinished";

/// Why a file was not replaced for good.
#[derive(Debug)]
pub enum ReplaceError {
    /// The new file could not be written; the old one, if there was one, is untouched.
    Untouched(io::Error),
    /// The new file is in place and can be read, but the folder could not be synced: after a power cut the old file
    /// may be back.
    Unsynced(io::Error),
}

impl std::fmt::Display for ReplaceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ReplaceError::Untouched(why) => {
                write!(f, "could not be written: {why}; one that was there before is untouched")
            }
            ReplaceError::Unsynced(why) => {
                write!(f, "is in place, but may not survive a power cut, because its folder could not be synced: {why}")
            }
        }
    }
}

impl std::error::Error for ReplaceError {}

/// Puts the bytes where `path` says.
///
/// # Errors
/// With whatever the system says, and which of the two files is there now.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<(), ReplaceError> {
    replace_and(path, bytes, |folder| File::open(folder)?.sync_all())
}

/// The same with another way to sync the folder.
fn replace_and(
    path: &Path,
    bytes: &[u8],
    sync_folder: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<(), ReplaceError> {
    let unfinished = beside(path);
    let written = write(&unfinished, bytes).and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        // It may not even have been made; there is nothing to say about that.
        let _ = fs::remove_file(&unfinished);
    }
    written.map_err(ReplaceError::Untouched)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    sync_folder(folder).map_err(ReplaceError::Unsynced)
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// One name for all processes that ever write here: rank 0 alone does, and what a killed one has left is overwritten.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(UNFINISHED);
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farandole_testing::Folder;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_and_nothing_is_left_beside_it() {
        let folder = Folder::new();
        let path = folder.join(NAME);
        replace(&path, b"old").unwrap();
        fs::write(beside(&path), b"what a killed process has left").unwrap();
        replace(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(names(&folder), [NAME]);
    }

    #[test]
    fn a_folder_that_cannot_be_synced_is_not_reported_as_an_untouched_file() {
        let folder = Folder::new();
        let path = folder.join(NAME);
        replace(&path, b"old").unwrap();
        let mut asked = None;
        let failed = replace_and(&path, b"new", |folder| {
            asked = Some(folder.to_owned());
            Err(io::Error::other("the disk is on fire"))
        });
        assert_eq!(asked.as_deref(), Some(&*folder));
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(names(&folder), [NAME]);
        let text = failed.unwrap_err().to_string();
        assert!(text.contains("is in place") && text.contains("power cut") && text.contains("on fire"), "{text}");
        assert!(!text.contains("untouched"), "{text}");
    }

    #[test]
    fn what_cannot_be_written_leaves_the_old_file_and_nothing_else() {
        let folder = Folder::new();
        let path = folder.join(NAME);
        // A folder that is not empty cannot be replaced by a file; this holds for root, too.
        fs::create_dir_all(path.join("inside")).unwrap();
        let text = replace(&path, b"new").unwrap_err().to_string();
        assert!(text.contains("could not be written") && text.contains("untouched"), "{text}");
        assert_eq!(names(&folder), [NAME]);
        assert!(replace(&folder.join("missing").join(NAME), b"new").is_err());
    }
}
