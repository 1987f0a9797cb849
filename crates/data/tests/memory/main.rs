//! Hostile files: what they claim is not allocated. Each test counts the bytes that reading a file allocates at once.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod counting;
mod index;
mod others;
mod parquet;
mod parquet_file;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use counting::peak_of;
use farandole_data::limit::Limit;
use farandole_data::source::{self, IndexPlace, RecordsConfig};
use farandole_data::storage::LocalFiles;
use farandole_testing::Folder;

/// The limit in these tests.
const LIMIT: usize = 8 << 20;

/// What reading a file with this limit may allocate: buffers of reads, and some items of the limit's size.
const ALLOWED: usize = 6 * LIMIT;

/// What a call returns with the limit of these tests, and the bytes that were allocated at once.
fn measured<T>(call: impl FnOnce() -> T) -> (T, usize) {
    // Tests measure one at a time where they share a process. A test that has failed is no reason for others to.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(Limit::set(LIMIT as u64), Limit::of(LIMIT as u64));
    peak_of(call)
}

/// Writes a file, opens it by its name and reads its first record. Returns the error, and the bytes that were allocated
/// at once.
fn read_file(name: &str, write: impl FnOnce(&Path)) -> (Result<(), String>, usize) {
    let folder = Folder::new();
    write(&folder.join(name));
    let config = RecordsConfig { index: IndexPlace::Nowhere, threads: 1, ..RecordsConfig::default() };
    let path = folder.join("");
    measured(|| {
        let records = source::open(Arc::new(LocalFiles::new(path)), name, &config).map_err(|error| error.0)?;
        records.read(0, &mut Vec::new()).map_err(|error| error.to_string())?;
        Ok(())
    })
}

fn read(name: &str, bytes: &[u8]) -> (Result<(), String>, usize) {
    read_file(name, |path| std::fs::write(path, bytes).unwrap())
}

/// Checks that a file is refused with these words, and costs little.
fn check_file(name: &str, words: &[&str], write: impl FnOnce(&Path)) {
    let (result, peak) = read_file(name, write);
    assert!(peak <= ALLOWED, "{name}: {peak} bytes were allocated at once ({result:?})");
    let error = result.unwrap_err();
    assert!(error.contains(name) && words.iter().all(|word| error.contains(word)), "{error}");
}

fn check(name: &str, bytes: &[u8], words: &[&str]) {
    check_file(name, words, |path| std::fs::write(path, bytes).unwrap());
}
