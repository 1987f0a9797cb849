//! How a world comes to its measured table, and what it says about it.
//!
//! Rank 0 reads, all ranks agree (`farandole_engine::tables`); here is what reaches the user: a warning about a file
//! that cannot be used, always; where choices come from, at the log level `debug`. Nothing about tables can keep a
//! world from starting, but a peer that is lost meanwhile.

use std::sync::Arc;

use farandole_engine::Communicator;
use farandole_engine::tables::{self, Notice, Shelf};
use farandole_plan::table::Table;

use crate::error::Result;

/// Gets the table of this world from rank 0's shelf, and tells rank 0's user what is worth telling.
pub(crate) fn adopt(communicator: &mut Communicator, shelf: &Shelf) -> Result<Option<Arc<Table>>> {
    let (table, notice) = tables::adopt(communicator, shelf)?;
    match notice {
        Some(Notice::Warning(text)) => log::warn!("{text}"),
        Some(Notice::Debug(text)) => log::debug!("{text}"),
        None => {}
    }
    Ok(table)
}
