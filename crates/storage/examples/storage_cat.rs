//! Reads from any storage: `storage_cat list URL`, `storage_cat cat URL [OFFSET BYTES]`, `storage_cat counts URL`.
//!
//! `cat` writes the object, or a range of it, to standard output. `counts` reads the object twice, through the cache,
//! and says what was counted. Settings and credentials are those of docs/storage.md.

use std::io::Write as _;
use std::process::ExitCode;

use farandole_storage::{StorageOptions, open};

/// What is asked for at once.
const PIECE_BYTES: u64 = 16 << 20;

fn main() -> ExitCode {
    farandole_settings::log_to_stderr();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["list", url] => list(url),
        ["cat", url] => cat(url, None),
        ["cat", url, offset, bytes] => match (offset.parse(), bytes.parse()) {
            (Ok(offset), Ok(bytes)) => cat(url, Some((offset, bytes))),
            _ => Err("OFFSET and BYTES are numbers".into()),
        },
        ["counts", url] => counts(url),
        _ => Err("storage_cat list URL | cat URL [OFFSET BYTES] | counts URL".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn list(url: &str) -> Result<(), Box<dyn std::error::Error>> {
    let (storage, path) = open(url, &StorageOptions::from_environment()?)?;
    let mut out = std::io::stdout().lock();
    for object in storage.list(&path)? {
        writeln!(out, "{} {}", object.bytes, object.path)?;
    }
    Ok(())
}

fn cat(url: &str, range: Option<(u64, u64)>) -> Result<(), Box<dyn std::error::Error>> {
    let (storage, path) = open(url, &StorageOptions::from_environment()?)?;
    let (mut at, bytes) = match range {
        Some(range) => range,
        None => (0, storage.size(&path)?),
    };
    let end = at.saturating_add(bytes);
    let mut out = std::io::stdout().lock();
    let mut piece = Vec::new();
    while at < end {
        piece.resize((end - at).min(PIECE_BYTES) as usize, 0);
        storage.read_at(&path, at, &mut piece)?;
        out.write_all(&piece)?;
        at += piece.len() as u64;
    }
    Ok(out.flush()?)
}

fn counts(url: &str) -> Result<(), Box<dyn std::error::Error>> {
    let (storage, path) = open(url, &StorageOptions::from_environment()?)?;
    let mut bytes = vec![0; storage.size(&path)? as usize];
    storage.read_at(&path, 0, &mut bytes)?;
    let first = bytes.clone();
    storage.read_at(&path, 0, &mut bytes)?;
    assert!(bytes == first, "both reads have the same bytes");
    writeln!(std::io::stdout(), "{}", storage.counts())?;
    Ok(())
}
