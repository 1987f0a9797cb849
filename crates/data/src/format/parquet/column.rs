//! The cells of one column in one row group, one after another.

use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::{ByteArray, ByteArrayType, DataType};
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{FileReader as _, SerializedFileReader};

use super::checked::CheckedPages;
use super::source::Source;
use crate::limit::{Budget, Limit};

/// Rows that are decoded at a time: what they take is charged before the next ones are decoded.
const ROWS: usize = 1 << 10;

/// Bytes of a text, at most: it is a name, and [`ROWS`] of them are held before they are charged.
const MAX_TEXT_BYTES: usize = 64 << 10;

/// What a row holds in a column: one value, or as many as its list has.
#[derive(Clone, Debug, PartialEq)]
pub enum Cells {
    /// The cell is empty (null).
    Nothing,
    /// Whole numbers and truth values.
    Ints(Vec<i64>),
    /// Numbers with a fraction.
    Floats(Vec<f32>),
    /// Texts.
    Texts(Vec<String>),
}

/// Reads the cells of a column.
pub(super) struct ColumnCells {
    reader: ColumnReader,
    max_def_level: i16,
    max_rep_level: i16,
}

impl ColumnCells {
    pub(super) fn new(
        source: &Source,
        file: &SerializedFileReader<Source>,
        group: usize,
        column: usize,
    ) -> Result<ColumnCells> {
        let descriptor = file.metadata().file_metadata().schema_descr().column(column);
        let pages = checked_pages(source, file, group, column)?;
        let (max_def_level, max_rep_level) = (descriptor.max_def_level(), descriptor.max_rep_level());
        let reader = get_column_reader(descriptor, Box::new(pages));
        Ok(ColumnCells { reader, max_def_level, max_rep_level })
    }

    /// Steps over rows.
    pub(super) fn skip(&mut self, rows: usize) -> Result<()> {
        let skipped = self.bytes()?.skip_records(rows)?;
        if skipped == rows { Ok(()) } else { Err(ParquetError::EOF("a column ends too early".to_owned())) }
    }

    /// The bytes of the next rows; nothing for a row without any.
    pub(super) fn images(&mut self, rows: usize) -> Result<Vec<Option<ByteArray>>> {
        let max_def_level = self.max_def_level;
        // Grows with what is decoded: headers claim any number of rows.
        let (mut values, mut levels) = (Vec::new(), Vec::new());
        let wanted = (max_def_level > 0).then_some(&mut levels);
        let (count, _, _) = self.bytes()?.read_records(rows, wanted, None, &mut values)?;
        if max_def_level == 0 {
            return Ok(values.into_iter().map(Some).collect());
        }
        let mut values = values.into_iter();
        Ok(levels.iter().take(count).map(|level| if *level == max_def_level { values.next() } else { None }).collect())
    }

    /// What the next rows hold, fewer where the column ends. Their memory is charged.
    pub(super) fn cells(&mut self, rows: usize, budget: &mut Budget) -> Result<Vec<Cells>> {
        let mut all = Vec::new();
        while all.len() < rows {
            let some = self.some_cells(ROWS.min(rows - all.len()))?;
            if some.is_empty() {
                break;
            }
            let bytes = some.iter().map(Cells::memory_bytes).sum();
            budget.take(bytes).map_err(|error| ParquetError::External(Box::new(error)))?;
            all.extend(some);
        }
        Ok(all)
    }

    fn some_cells(&mut self, rows: usize) -> Result<Vec<Cells>> {
        let levels = (self.max_def_level, self.max_rep_level);
        match &mut self.reader {
            ColumnReader::Int32ColumnReader(reader) => {
                lists(reader, rows, levels, |values| Ok(Cells::Ints(values.into_iter().map(i64::from).collect())))
            }
            ColumnReader::Int64ColumnReader(reader) => lists(reader, rows, levels, |values| Ok(Cells::Ints(values))),
            ColumnReader::BoolColumnReader(reader) => {
                lists(reader, rows, levels, |values| Ok(Cells::Ints(values.into_iter().map(i64::from).collect())))
            }
            ColumnReader::FloatColumnReader(reader) => lists(reader, rows, levels, |values| Ok(Cells::Floats(values))),
            ColumnReader::DoubleColumnReader(reader) => lists(reader, rows, levels, |values| {
                Ok(Cells::Floats(values.into_iter().map(|it| it as f32).collect()))
            }),
            ColumnReader::ByteArrayColumnReader(reader) => lists(reader, rows, levels, |values| {
                let texts = values.iter().map(text).collect::<Result<Vec<_>>>();
                Ok(Cells::Texts(texts?))
            }),
            _ => Err(ParquetError::General("a label is of a kind that is not read".to_owned())),
        }
    }

    fn bytes(&mut self) -> Result<&mut ColumnReaderImpl<ByteArrayType>> {
        match &mut self.reader {
            ColumnReader::ByteArrayColumnReader(reader) => Ok(reader),
            _ => Err(ParquetError::General("the column holds no bytes".to_owned())),
        }
    }
}

impl Cells {
    /// What it takes in memory.
    fn memory_bytes(&self) -> u64 {
        let values = match self {
            Cells::Nothing => 0,
            Cells::Ints(values) => size_of_val(values.as_slice()),
            Cells::Floats(values) => size_of_val(values.as_slice()),
            Cells::Texts(texts) => texts.iter().map(|text| size_of::<String>() + text.len()).sum(),
        };
        (size_of::<Cells>() + values) as u64
    }
}

/// The pages of a column in a row group, with the limit of this process.
pub(super) fn checked_pages(
    source: &Source,
    file: &SerializedFileReader<Source>,
    group: usize,
    column: usize,
) -> Result<CheckedPages> {
    let group = file.metadata().row_group(group);
    CheckedPages::new(source, group.column(column), usize::try_from(group.num_rows())?, Limit::of_process())
}

/// A name of a class or label. A dictionary has it once for any number of rows, and each row gets a copy.
fn text(value: &ByteArray) -> Result<String> {
    if value.len() > MAX_TEXT_BYTES {
        return Err(ParquetError::General(format!("a label has {} bytes; {MAX_TEXT_BYTES} are read", value.len())));
    }
    Ok(value.as_utf8()?.to_owned())
}

/// Reads rows and puts the values of each together.
///
/// For each value, or for the place where there is none, there is a pair of levels. A repetition level of 0 begins a
/// row; a definition level below the largest says that there is no value. A row whose only level is that is empty.
fn lists<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    rows: usize,
    (max_def_level, max_rep_level): (i16, i16),
    made: impl Fn(Vec<T::T>) -> Result<Cells>,
) -> Result<Vec<Cells>> {
    let (mut values, mut defs, mut reps) = (Vec::new(), Vec::new(), Vec::new());
    let mut read = 0;
    // A call ends with a page: there is no more when one reads nothing.
    while read < rows {
        let (count, _, _) = reader.read_records(
            rows - read,
            (max_def_level > 0).then_some(&mut defs),
            (max_rep_level > 0).then_some(&mut reps),
            &mut values,
        )?;
        if count == 0 {
            break;
        }
        read += count;
    }
    let count = if max_def_level > 0 { defs.len() } else { values.len() };
    let mut values = values.into_iter();
    let mut cells = Vec::new();
    let mut place = 0;
    while place < count {
        let mut row = Vec::new();
        let mut is_null = max_rep_level == 0;
        loop {
            if max_def_level == 0 || defs[place] == max_def_level {
                row.extend(values.next());
                is_null = false;
            }
            place += 1;
            if place == count || max_rep_level == 0 || reps.get(place).is_none_or(|level| *level == 0) {
                break;
            }
        }
        cells.push(if is_null { Cells::Nothing } else { made(row)? });
    }
    Ok(cells)
}
