//! The log of a run: one line of JSON for each thing that happened, written by rank 0.
//!
//! Every line is an object with the key `event`: `start`, `epoch`, `change`, `checkpoint` or `summary`. What they hold
//! is described in docs/train.md, which promises that keys are added and never change their meaning. A line is in the
//! file when the event is over; a run that is resumed goes on in the same file.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// Where the log goes, if anywhere.
#[derive(Debug)]
pub struct Log {
    file: Option<(PathBuf, File)>,
}

/// Whether what is there already stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// It goes.
    Forgotten,
    /// It stays, and new lines come after it.
    Kept,
}

impl Log {
    /// Opens the log. Ranks that write none give no path.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(path: Option<&Path>, before: Before) -> Result<Log> {
        let Some(path) = path else { return Ok(Log { file: None }) };
        let mut options = OpenOptions::new();
        options.create(true).write(true);
        match before {
            Before::Forgotten => options.truncate(true),
            Before::Kept => options.append(true),
        };
        let file = options.open(path).map_err(|cause| Error::File { path: path.to_owned(), cause })?;
        Ok(Log { file: Some((path.to_owned(), file)) })
    }

    /// Writes a line about an event; `facts` must be an object.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&mut self, event: &str, facts: Value) -> Result<()> {
        let Some((path, file)) = &mut self.file else { return Ok(()) };
        let mut line = Map::new();
        line.insert("event".to_owned(), event.into());
        if let Value::Object(facts) = facts {
            line.extend(facts);
        }
        let line = format!("{}\n", Value::Object(line));
        file.write_all(line.as_bytes()).map_err(|cause| Error::File { path: path.clone(), cause })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lines_are_kept_when_a_run_is_resumed_and_forgotten_when_one_begins() {
        let folder = farandole_testing::Folder::new();
        let path = folder.join("log.jsonl");
        let events = || -> Vec<String> {
            let text = std::fs::read_to_string(&path).unwrap();
            let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            lines.map(|line| line["event"].as_str().unwrap().to_owned()).collect()
        };
        Log::open(Some(&path), Before::Forgotten).unwrap().write("start", json!({"ranks": 2})).unwrap();
        Log::open(Some(&path), Before::Kept).unwrap().write("epoch", json!({"epoch": 1})).unwrap();
        assert_eq!(events(), ["start", "epoch"]);
        Log::open(Some(&path), Before::Forgotten).unwrap().write("start", json!({})).unwrap();
        assert_eq!(events(), ["start"]);
        Log::open(None, Before::Kept).unwrap().write("start", json!({})).unwrap();
        assert!(
            Log::open(Some(Path::new("/nowhere/at/all")), Before::Kept).unwrap_err().to_string().contains("/nowhere")
        );
    }
}
