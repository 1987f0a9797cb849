//! The logger of programs that have none: lines on standard error, at the level of the settings.
//!
//! Libraries say things through the `log` crate. A program with a logger of its own gets them there.

use std::io::Write as _;

use log::{LevelFilter, Log, Metadata, Record};

use crate::LogLevel;

/// The target of reports whose lines begin with a word of their own, as Horovod's users know them (`Stall: …`).
pub const REPORT: &str = "farandole::report";

/// How every other line begins.
const PREFIX: &str = "farandole: ";

struct Stderr;

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("farandole")
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            // Nobody is left to be told that standard error is closed.
            drop(std::io::stderr().lock().write_all(line(record.target(), &record.args().to_string()).as_bytes()));
        }
    }

    fn flush(&self) {}
}

fn line(target: &str, text: &str) -> String {
    let prefix = if target == REPORT || text.starts_with(PREFIX) { "" } else { PREFIX };
    format!("{prefix}{text}\n")
}

/// Has what libraries say written to standard error, from the level on that the environment asks for. Does nothing if
/// the program has a logger.
pub fn log_to_stderr() {
    if log::set_logger(&Stderr).is_ok() {
        log::set_max_level(filter(LogLevel::of_this_process()));
    }
}

fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Trace => LevelFilter::Trace,
        LogLevel::Debug => LevelFilter::Debug,
        LogLevel::Info => LevelFilter::Info,
        LogLevel::Warning => LevelFilter::Warn,
        LogLevel::Error => LevelFilter::Error,
        // What ends a process is its error, which is not logged.
        LogLevel::Fatal => LevelFilter::Off,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_where_they_come_from_once() {
        assert_eq!(line("farandole_engine::tables", "no table"), "farandole: no table\n");
        assert_eq!(line("farandole_trace::writer", "farandole: rank 1: wrote x"), "farandole: rank 1: wrote x\n");
        assert_eq!(line(REPORT, "Stall: rank 1 is stopped"), "Stall: rank 1 is stopped\n");
    }

    #[test]
    fn each_level_lets_through_what_is_at_least_as_grave() {
        let levels = LogLevel::WORDS.map(|word| filter(LogLevel::parse(word).expect("a level")));
        assert!(levels.is_sorted_by(|finer, coarser| finer > coarser), "{levels:?}");
        assert_eq!(filter(LogLevel::default()), LevelFilter::Warn);
    }
}
