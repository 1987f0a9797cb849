//! Unpacked pages of compressed columns, kept for a while.
//!
//! Rows of a page that was unpacked for one of them are likely to be wanted soon where a file is read in order, and
//! where a small file is read in any order. The pages that were not used for the longest time go first.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use parquet::column::page::PageReader as _;
use parquet::data_type::ByteArray;
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::SerializedFileReader;

use super::ROWS;
use super::column::{ColumnCells, checked_pages};
use super::source::Source;
use crate::limit::Limit;

/// Bytes of pages that are kept, at most: a few hundred pages as they are usually written.
const KEPT_BYTES: usize = 256 << 20;

/// A page: the file, the row group and the page by number.
type Key = (usize, usize, usize);

/// Unpacked pages. Threads share it; none holds its lock while it reads or unpacks.
#[derive(Debug, Default)]
pub(crate) struct PageCache {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    pages: HashMap<Key, (u64, Arc<Page>)>,
    bytes: usize,
    /// Counts uses.
    clock: u64,
    /// The first row of each page of a row group, and one behind the last, by file and row group.
    tables: HashMap<(usize, usize), Arc<Vec<usize>>>,
}

/// The images of a page.
#[derive(Debug)]
pub(crate) struct Page {
    first_row: usize,
    images: Vec<Option<ByteArray>>,
    bytes: usize,
}

impl Page {
    /// The image of a row of its row group. The outer nothing: it is not in this page.
    pub(crate) fn get(&self, row: usize) -> Option<Option<&ByteArray>> {
        self.images.get(row.checked_sub(self.first_row)?).map(Option::as_ref)
    }
}

impl PageCache {
    /// The page with a row of a row group.
    pub(super) fn page(
        &self,
        number: usize,
        group: usize,
        row: usize,
        (source, file): (&Source, &SerializedFileReader<Source>),
        column: usize,
    ) -> Result<Arc<Page>> {
        let known = self.lock().tables.get(&(number, group)).cloned();
        let table = match known {
            Some(table) => table,
            None => {
                let table = Arc::new(first_rows(source, file, group, column)?);
                self.lock().tables.insert((number, group), Arc::clone(&table));
                table
            }
        };
        let page = table.partition_point(|first| *first <= row).saturating_sub(1);
        let key = (number, group, page);
        if let Some(page) = self.lock().used(key) {
            return Ok(page);
        }
        let (Some(first_row), Some(end)) = (table.get(page).copied(), table.get(page + 1).copied()) else {
            return Err(ParquetError::EOF(format!("row group {group} has no page with row {row}")));
        };
        let mut cells = ColumnCells::new(source, file, group, column)?;
        cells.skip(first_row)?;
        let (images, bytes) = images_of(&mut cells, end.saturating_sub(first_row))?;
        let page = Arc::new(Page { first_row, images, bytes });
        self.lock().keep(key, &page);
        Ok(page)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn used(&mut self, key: Key) -> Option<Arc<Page>> {
        self.clock += 1;
        let (last, page) = self.pages.get_mut(&key)?;
        *last = self.clock;
        Some(Arc::clone(page))
    }

    fn keep(&mut self, key: Key, page: &Arc<Page>) {
        self.bytes += page.bytes;
        if let Some((_, before)) = self.pages.insert(key, (self.clock, Arc::clone(page))) {
            self.bytes -= before.bytes;
        }
        while self.bytes > KEPT_BYTES && self.pages.len() > 1 {
            let oldest = self.pages.iter().min_by_key(|(_, (last, _))| *last).map(|(key, _)| *key);
            let Some((_, gone)) = oldest.and_then(|key| self.pages.remove(&key)) else { break };
            self.bytes -= gone.bytes;
        }
    }
}

/// The images of so many rows, fewer where the column ends, and what they take in memory.
fn images_of(cells: &mut ColumnCells, rows: usize) -> Result<(Vec<Option<ByteArray>>, usize)> {
    let (mut images, mut bytes, mut budget) = (Vec::new(), 0, Limit::of_process().budget());
    // Rows of a dictionary share their bytes: what is in memory already is not charged.
    let mut charged = HashSet::new();
    while images.len() < rows {
        let some = cells.images(ROWS.min(rows - images.len()))?;
        if some.is_empty() {
            break;
        }
        let new = some.iter().flatten().filter(|image| charged.insert(image.data().as_ptr().addr()));
        let new_bytes = size_of_val(some.as_slice()) + new.map(ByteArray::len).sum::<usize>();
        budget.take(new_bytes as u64).map_err(|error| ParquetError::External(Box::new(error)))?;
        bytes += new_bytes;
        images.extend(some);
    }
    Ok((images, bytes))
}

/// The first row of each page, by the headers of pages alone.
fn first_rows(source: &Source, file: &SerializedFileReader<Source>, group: usize, column: usize) -> Result<Vec<usize>> {
    let mut pages = checked_pages(source, file, group, column)?;
    let mut first_rows = vec![0];
    let mut rows = 0usize;
    while let Some(about) = pages.peek_next_page()? {
        if !about.is_dict {
            // A column without lists has as many rows as levels.
            rows = rows.saturating_add(about.num_rows.or(about.num_levels).unwrap_or(0));
            first_rows.push(rows);
        }
        pages.skip_next_page()?;
    }
    Ok(first_rows)
}
