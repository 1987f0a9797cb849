//! How a world comes to its measured table, and what it says about it.
//!
//! Rank 0 reads, all ranks agree (`farandole_engine::tables`); here is what reaches the user: a warning about a file that cannot be
//! used, always; where choices come from, at the log level `debug`. Nothing about tables can keep a world from starting, but
//! a peer that is lost meanwhile.

use std::sync::Arc;

use farandole_engine::Communicator;
use farandole_engine::tables::{self, Notice, Shelf};
use farandole_plan::table::Table;

use crate::error::Result;

/// The log level, under our name and under that of Horovod; the first one that is set counts.
const LOG_LEVEL: [&str; 2] = ["FARANDOLE_LOG_LEVEL", "HOROVOD_LOG_LEVEL"];

/// Gets the table of this world from rank 0's shelf, and tells rank 0's user what is worth telling.
pub(crate) fn adopt(communicator: &mut Communicator, shelf: &Shelf) -> Result<Option<Arc<Table>>> {
    let (table, notice) = tables::adopt(communicator, shelf)?;
    match notice {
        Some(Notice::Warning(text)) => eprintln!("farandole: {text}"),
        Some(Notice::Debug(text)) if wants_debug(|variable| std::env::var(variable).ok()) => {
            eprintln!("farandole: {text}");
        }
        Some(Notice::Debug(_)) | None => {}
    }
    Ok(table)
}

fn wants_debug(lookup: impl Fn(&str) -> Option<String>) -> bool {
    let level = LOG_LEVEL.into_iter().find_map(lookup).unwrap_or_default();
    ["debug", "trace"].iter().any(|fine| level.trim().eq_ignore_ascii_case(fine))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_choices_come_from_is_said_to_those_who_want_to_know() {
        let with = |pairs: &'static [(&str, &str)]| {
            wants_debug(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
        };
        assert!(!with(&[]) && !with(&[("FARANDOLE_LOG_LEVEL", "info")]));
        assert!(with(&[("FARANDOLE_LOG_LEVEL", "DEBUG")]) && with(&[("HOROVOD_LOG_LEVEL", "trace")]));
        assert!(!with(&[("FARANDOLE_LOG_LEVEL", "warning"), ("HOROVOD_LOG_LEVEL", "debug")]));
    }
}
