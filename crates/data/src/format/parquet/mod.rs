//! Parquet files with an image in each row.
//!
//! Columns are decoded by the `parquet` crate; this module finds the columns that matter ([`ParquetFile`]), says where
//! images lie, reads them one after another or by row, and writes files (`write`). An image that is neither compressed
//! nor in a dictionary of another layout lies in one piece in the file: its place is found once, and then it is read
//! like a part of any other file. Of a compressed column the page with the row is unpacked, and kept for a while
//! (`pages`).
//!
//! **Invariant:** a panic of the decoder over a damaged file is an error of that file. What headers claim is checked
//! before the decoder allocates for it: the footer by `thrift`, pages by `checked`.
//!
//! What is deliberately not here: zstd and brotli, which no pure Rust library that is kept well enough unpacks in the
//! `parquet` crate; such columns are refused with the name of the method.

mod checked;
mod column;
mod pages;
mod source;
mod thrift;
mod write;

pub(crate) use pages::PageCache;
pub use write::ParquetShard;

use std::panic::AssertUnwindSafe;

use parquet::basic::{Compression, Encoding, Type};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::schema::types::ColumnDescriptor;

use super::{FormatError, StoredFile};
use crate::limit::Limit;
use column::{Cells, ColumnCells};
use source::Source;

/// Rows of images that are decoded at a time, where they are read one after another: few enough that their bytes are
/// still in the cache of a core when they are handed out.
const ROWS: usize = 8;

/// Columns with images. Hugging Face writes a column `image` with the parts `bytes` and `path`.
const IMAGES: [&str; 7] = ["image", "bytes", "jpg", "img", "jpeg", "png", "image_bytes"];

/// Columns with labels.
const LABELS: [&str; 9] = ["label", "labels", "cls", "class", "fine_label", "target", "y", "class_id", "value"];

/// An opened file. Any thread may read from it.
pub struct ParquetFile {
    file: StoredFile,
    source: Source,
    reader: SerializedFileReader<Source>,
    image: usize,
    label: Option<usize>,
    /// The number of the first row of each row group, and of one behind the last.
    starts: Vec<u64>,
}

/// What a row says about its image.
pub type Label = Cells;

impl std::fmt::Debug for ParquetFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ParquetFile").field("file", &self.file).field("rows", &self.rows()).finish_non_exhaustive()
    }
}

impl ParquetFile {
    /// Reads the end of a file, which says what is in it, and finds the columns of these names, or of the usual ones.
    pub fn open(file: &StoredFile, image: Option<&str>, label: Option<&str>) -> Result<ParquetFile, FormatError> {
        let source = Source::new(file);
        check_footer(file)?;
        let reader = guarded(file, || SerializedFileReader::new(source.clone()))?;
        let schema = reader.metadata().file_metadata().schema_descr_ptr();
        let columns = || schema.columns().iter().map(std::convert::AsRef::as_ref);
        let names = || columns().map(|column| column.path().string()).collect::<Vec<_>>().join(", ");
        let image = find(columns(), image, &IMAGES, is_image).ok_or_else(|| {
            let sought = image.unwrap_or("image");
            file.error_of_all(format!("there is no image: no column {sought} of bytes among {}", names()))
        })?;
        let found = find(columns(), label, &LABELS, is_label);
        if let (Some(label), None) = (label, found) {
            return Err(file.error_of_all(format!("there is no column {label} for labels among {}", names())));
        }
        let mut starts = vec![0];
        for group in reader.metadata().row_groups() {
            for column in [Some(image), found].into_iter().flatten() {
                check_compression(file, group.column(column).compression())?;
            }
            let end = u64::try_from(group.num_rows()).ok().and_then(|rows| rows.checked_add(starts[starts.len() - 1]));
            starts.push(end.ok_or_else(|| file.error_of_all("the number of rows is out of range: it is damaged"))?);
        }
        Ok(ParquetFile { file: file.clone(), source, reader, image, label: found, starts })
    }

    /// How many rows there are.
    pub fn rows(&self) -> u64 {
        self.starts[self.starts.len() - 1]
    }

    /// Calls back with every image in order: its row, where it lies in the file if it lies there in one piece, and its
    /// bytes.
    pub fn each_image(
        &self,
        mut call: impl FnMut(u64, Option<u64>, &[u8]) -> Result<(), FormatError>,
    ) -> Result<(), FormatError> {
        for (group, first) in self.starts[..self.starts.len() - 1].iter().enumerate() {
            let about = self.reader.metadata().row_group(group).column(self.image);
            let plain = [Encoding::PLAIN, Encoding::RLE];
            // Only then is a value that is handed out a part of what was read from the file.
            let in_file =
                about.compression() == Compression::UNCOMPRESSED && about.encodings().all(|it| plain.contains(&it));
            let mut cells = self.guarded(|| ColumnCells::new(&self.source, &self.reader, group, self.image))?;
            let rows = self.starts[group + 1] - first;
            let mut row = 0;
            while row < rows {
                let wanted = ROWS.min(usize::try_from(rows - row).unwrap_or(ROWS));
                let images = self.guarded(|| cells.images(wanted))?;
                if images.is_empty() {
                    let there = first + row;
                    return Err(self
                        .file
                        .error_of_all(format!("the row group {group} ends at row {there}, too early")));
                }
                for image in images {
                    let image = image.ok_or_else(|| self.no_image(first + row))?;
                    let place = if in_file { self.source.place_of(image.data()) } else { None };
                    call(first + row, place, image.data())?;
                    row += 1;
                }
            }
        }
        Ok(())
    }

    /// What all rows say, in order; nothing at all where there is no column for it.
    pub fn labels(&self) -> Result<Option<Vec<Label>>, FormatError> {
        let Some(label) = self.label else { return Ok(None) };
        let (mut all, mut budget) = (Vec::new(), Limit::of_process().budget());
        for group in 0..self.starts.len() - 1 {
            let rows = usize::try_from(self.starts[group + 1] - self.starts[group]).unwrap_or(usize::MAX);
            let cells = || ColumnCells::new(&self.source, &self.reader, group, label)?.cells(rows, &mut budget);
            let labels = self.guarded(cells)?;
            if labels.len() != rows {
                let there = labels.len();
                return Err(self.file.error_of_all(format!("row group {group} has {rows} rows, and {there} labels")));
            }
            all.extend(labels);
        }
        Ok(Some(all))
    }

    /// Replaces what is in the buffer by the image of a row. Pages are kept in the cache under the number of the file.
    pub(crate) fn read(
        &self,
        number: usize,
        row: u64,
        cache: &PageCache,
        image: &mut Vec<u8>,
    ) -> Result<(), FormatError> {
        if row >= self.rows() {
            return Err(self.file.error_of_all(format!("there is no row {row}: the index is out of date")));
        }
        let group = self.starts.partition_point(|start| *start <= row) - 1;
        let within = usize::try_from(row - self.starts[group]).unwrap_or(usize::MAX);
        let page = self.guarded(|| cache.page(number, group, within, (&self.source, &self.reader), self.image))?;
        let found = page.get(within).flatten().ok_or_else(|| self.no_image(row))?;
        image.clear();
        image.extend_from_slice(found.data());
        Ok(())
    }

    fn no_image(&self, row: u64) -> FormatError {
        self.file.error_of_all(format!("row {row} has no image"))
    }

    fn guarded<T>(&self, call: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, FormatError> {
        guarded(&self.file, call)
    }
}

/// The column of a given name, or of the first usual one.
fn find<'a>(
    columns: impl Iterator<Item = &'a ColumnDescriptor> + Clone,
    given: Option<&str>,
    usual: &[&str],
    suits: fn(&ColumnDescriptor, &str) -> bool,
) -> Option<usize> {
    let usual = if given.is_none() { usual } else { &[] };
    let mut names = given.into_iter().chain(usual.iter().copied());
    names.find_map(|name| columns.clone().position(|column| suits(column, name)))
}

/// Whether a column holds one image in each row, under this name or as its part `bytes`.
fn is_image(column: &ColumnDescriptor, name: &str) -> bool {
    let path = column.path().string();
    let named = path == name || path.strip_prefix(name) == Some(".bytes");
    named && column.physical_type() == Type::BYTE_ARRAY && column.max_rep_level() == 0
}

/// Whether a column holds a value, or a list of values, for each row under this name.
fn is_label(column: &ColumnDescriptor, name: &str) -> bool {
    let parts = column.path().parts();
    let is_list = column.max_rep_level() == 1 && parts.first().is_some_and(|first| first == name);
    let types = [Type::INT32, Type::INT64, Type::BYTE_ARRAY, Type::FLOAT, Type::DOUBLE, Type::BOOLEAN];
    (column.path().string() == name || is_list) && types.contains(&column.physical_type())
}

fn check_compression(file: &StoredFile, compression: Compression) -> Result<(), FormatError> {
    let method = match compression {
        Compression::ZSTD(_) => "zstd",
        Compression::BROTLI(_) => "brotli",
        Compression::LZO => "lzo",
        _ => return Ok(()),
    };
    Err(file.error_of_all(format!(
        "its columns are compressed with {method}, which is not read: write them uncompressed (images are small \
         already), or with snappy, gzip or lz4"
    )))
}

/// Checks what the end of a file claims, before the decoder allocates for it. A file without the marks of the format is
/// left to the decoder to refuse.
fn check_footer(file: &StoredFile) -> Result<(), FormatError> {
    let Some(end) = file.bytes().checked_sub(8) else { return Ok(()) };
    let mut tail = [0; 8];
    file.read_at(end, &mut tail)?;
    let [a, b, c, d, mark @ ..] = tail;
    let length = u32::from_le_bytes([a, b, c, d]);
    let Some(begin) = end.checked_sub(length.into()).filter(|_| &mark == b"PAR1") else { return Ok(()) };
    let limit = Limit::of_process();
    limit.check(length.into()).map_err(|error| file.error(begin, format!("the footer: {error}")))?;
    let mut footer = vec![0; length as usize];
    file.read_at(begin, &mut footer)?;
    thrift::check_footer(&footer, limit)
        .map_err(|error| file.error(begin, format!("the file is damaged, or no Parquet file: {error}")))
}

/// Runs the decoder. Its panic is an error of the file.
fn guarded<T>(file: &StoredFile, call: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, FormatError> {
    let result = std::panic::catch_unwind(AssertUnwindSafe(call));
    let result = result.unwrap_or_else(|_| Err(ParquetError::General("the decoder has panicked".to_owned())));
    result.map_err(|error| {
        let cause = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        file.error_of_all(format!("the file is damaged, or no Parquet file: {cause}"))
    })
}

#[cfg(test)]
mod tests;
