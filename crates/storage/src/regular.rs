//! Opens files that can be read to an end without waiting for anybody.
//!
//! Opening a pipe waits until somebody writes to it, and reading a device may never end; either would hold up a loader
//! thread, and with it all ranks. So a file is opened without waiting (`O_NONBLOCK`, which means nothing to an
//! ordinary file) and looked at before it is read: what was opened counts and not what had the name a moment before.
//! Links are followed, and what they lead to counts.

use std::fs::{File, FileType, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;

/// An ordinary file, and how many bytes it has.
/// # Errors
/// If there is none, it may not be read, or it is something else than an ordinary file.
pub fn open(path: &Path) -> io::Result<(File, u64)> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other(format!("it is {}, and no ordinary file", kind(metadata.file_type()))));
    }
    Ok((file, metadata.len()))
}

/// What is in the place of a file.
fn kind(file: FileType) -> &'static str {
    if file.is_dir() {
        "a folder"
    } else if file.is_fifo() {
        "a pipe"
    } else if file.is_block_device() || file.is_char_device() {
        "a device"
    } else {
        "something else"
    }
}
