//! Pages of a column, each checked before the `parquet` crate allocates for it.
//!
//! The crate believes the header of a page: it reserves the unpacked size, unpacks gzip to any size, and makes room for
//! the number of values. [`CheckedPages`] reads each header first, and compares what it claims with the limit.
//!
//! **Invariant:** a page that is handed out has at most the bytes and values that the limit allows.
//!
//! What is deliberately not here: pages of indexes within a column, which no writer makes. They are refused by name.

use std::io::{self, Read as _};
use std::sync::Arc;

use flate2::read::MultiGzDecoder;
use parquet::basic::{Compression, Encoding};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::data_type::ByteArray;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::properties::ReaderProperties;
use parquet::file::reader::ChunkReader as _;
use parquet::file::serialized_reader::SerializedPageReader;

use super::ROWS;
use super::source::Source;
use super::thrift::{BINARY, BOOL, Field, I32, I64, Reader, STRUCT};
use crate::limit::{Limit, TooLarge};

/// Bytes that a value takes in memory apart from its contents, with its levels: that of a list's or dictionary's value.
const VALUE_BYTES: usize = size_of::<ByteArray>() + 2 * size_of::<i16>();

/// Pages of one column in one row group.
pub(super) struct CheckedPages {
    pages: SerializedPageReader<Source>,
    source: Source,
    limit: Limit,
    compression: Compression,
    /// Levels before the values of a page: of repetition, of definition.
    levels: [bool; 2],
    /// Where the header of the next page begins, and where the column ends.
    offset: u64,
    end: u64,
    /// The header at the offset, once it was checked.
    next: Option<Head>,
}

/// What the header of a page claims.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    kind: i64,
    unpacked_bytes: i64,
    packed_bytes: i64,
    values: i64,
    /// Bytes of levels that precede the packed values without being packed.
    level_bytes: u64,
    header_bytes: u64,
}

/// Kinds of the fields of a page's header: its kind, two sizes and a checksum, then a structure for each kind of page.
const HEADER: [u8; 8] = [I32, I32, I32, I32, STRUCT, STRUCT, STRUCT, STRUCT];
const DATA_HEADER: [u8; 5] = [I32, I32, I32, I32, STRUCT];
const DICTIONARY_HEADER: [u8; 3] = [I32, I32, BOOL];
const SECOND_DATA_HEADER: [u8; 8] = [I32, I32, I32, I32, I32, I32, BOOL, STRUCT];
const STATISTICS: [u8; 8] = [BINARY, BINARY, I64, I64, BINARY, BINARY, BOOL, BOOL];

/// The kinds of pages, as the format numbers them.
const DICTIONARY: i64 = 2;
const DATA: [i64; 2] = [0, 3];

fn damaged(what: impl Into<String>) -> ParquetError {
    ParquetError::General(what.into())
}

fn too_large(error: TooLarge) -> ParquetError {
    ParquetError::External(Box::new(error))
}

impl CheckedPages {
    pub(super) fn new(source: &Source, chunk: &ColumnChunkMetaData, rows: usize, limit: Limit) -> Result<CheckedPages> {
        let (offset, bytes) = chunk.byte_range();
        let end = offset.checked_add(bytes).ok_or_else(|| damaged("a column ends out of range"))?;
        let column = chunk.column_descr();
        // Frames of LZ4, which some writers of 2019 have used in place of Hadoop's blocks, unpack to any size.
        let properties = ReaderProperties::builder().set_backward_compatible_lz4(false).build();
        Ok(CheckedPages {
            pages: SerializedPageReader::new_with_properties(
                Arc::new(source.clone()),
                chunk,
                rows,
                None,
                Arc::new(properties),
            )?,
            source: source.clone(),
            limit,
            compression: chunk.compression(),
            levels: [column.max_rep_level() > 0, column.max_def_level() > 0],
            offset,
            end,
            next: None,
        })
    }

    /// Reads and checks the header of the next page, if there is one.
    fn head(&mut self) -> Result<Option<Head>> {
        if self.next.is_none() && self.offset < self.end {
            let head = Head::read(self.source.get_read(self.offset)?, self.limit)?;
            self.check(&head)?;
            self.next = Some(head);
        }
        Ok(self.next)
    }

    fn check(&self, head: &Head) -> Result<()> {
        if head.kind != DICTIONARY && !DATA.contains(&head.kind) {
            return Err(damaged(format!("a page of kind {} is not read", head.kind)));
        }
        let whole = |number: i64| u64::try_from(number).map_err(|_| damaged("a page claims a negative size"));
        let (unpacked, packed, values) = (whole(head.unpacked_bytes)?, whole(head.packed_bytes)?, whole(head.values)?);
        self.limit.check(unpacked.max(packed)).map_err(too_large)?;
        self.limit.check_all(values, VALUE_BYTES).map_err(too_large)?;
        let begin = self.offset + head.header_bytes;
        if packed > self.end.saturating_sub(begin) {
            return Err(ParquetError::EOF("a page ends behind its column".to_owned()));
        }
        if matches!(self.compression, Compression::GZIP(_)) {
            self.check_gzip(begin, packed, unpacked, head.level_bytes)?;
        }
        Ok(())
    }

    /// Unpacks a page and keeps nothing: the `parquet` crate would keep all that comes out, whatever was claimed.
    fn check_gzip(&self, begin: u64, packed: u64, unpacked: u64, level_bytes: u64) -> Result<()> {
        let packed = self.source.get_bytes(begin, packed as usize)?;
        let Some(packed) = packed.get(usize::try_from(level_bytes).unwrap_or(usize::MAX)..) else { return Ok(()) };
        let mut out = MultiGzDecoder::new(packed).take(unpacked + 1);
        match io::copy(&mut out, &mut io::sink()) {
            Ok(bytes) if bytes > unpacked => Err(damaged(format!("a page unpacks to more than {unpacked} bytes"))),
            // Damage is for the decoder to report.
            _ => Ok(()),
        }
    }

    /// Moves behind the next page.
    fn step(&mut self) {
        if let Some(head) = self.next.take() {
            self.offset += head.header_bytes + head.packed_bytes.cast_unsigned();
        }
    }

    /// Checks the counts of lengths in encodings that have such lists before the values.
    fn check_encoding(&self, page: &Page) -> Result<()> {
        let lists = match page.encoding() {
            _ if matches!(page, Page::DictionaryPage { .. }) => return Ok(()),
            Encoding::DELTA_LENGTH_BYTE_ARRAY => 1,
            // Lengths of prefixes, and of what follows them. Each value may be as long as all bytes before it.
            Encoding::DELTA_BYTE_ARRAY => {
                self.limit.divided_by(2 * ROWS as u64).check(page.buffer().len() as u64).map_err(too_large)?;
                2
            }
            _ => return Ok(()),
        };
        let mut rest = self.values_of(page).ok_or_else(|| damaged("a page ends within its levels"))?;
        for _ in 0..lists {
            let list = delta_list(rest).ok_or_else(|| damaged("a page ends within its lengths"))?;
            let values = page.num_values();
            if list.count > u64::from(values) {
                return Err(damaged(format!("a page of {values} values claims {} lengths", list.count)));
            }
            rest = rest.get(list.bytes..).ok_or_else(|| damaged("a page ends within its lengths"))?;
        }
        Ok(())
    }

    /// The bytes of a page behind its levels.
    fn values_of<'a>(&self, page: &'a Page) -> Option<&'a [u8]> {
        match page {
            Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, .. } => {
                buf.get((*def_levels_byte_len as usize).checked_add(*rep_levels_byte_len as usize)?..)
            }
            page => self.levels.iter().filter(|there| **there).try_fold(page.buffer().as_ref(), |rest, _| {
                let (length, rest) = rest.split_first_chunk::<4>()?;
                rest.get(u32::from_le_bytes(*length) as usize..)
            }),
        }
    }
}

impl Head {
    fn read(from: impl io::Read, limit: Limit) -> io::Result<Head> {
        let mut reader = Reader::new(from, limit);
        let mut head = Head::default();
        reader.structure(&HEADER, |reader, field| {
            match field.id {
                1 => head.kind = reader.number()?,
                2 => head.unpacked_bytes = reader.number()?,
                3 => head.packed_bytes = reader.number()?,
                5 => head.read_part(reader, &DATA_HEADER, 0)?,
                7 => head.read_part(reader, &DICTIONARY_HEADER, 0)?,
                // Two numbers of bytes: levels of definition, of repetition.
                8 => head.read_part(reader, &SECOND_DATA_HEADER, 2)?,
                _ => reader.skip(field)?,
            }
            Ok(())
        })?;
        head.header_bytes = reader.bytes;
        Ok(head)
    }

    /// What is said of a page of one kind. It begins with the number of values; field 5 may begin numbers of bytes.
    fn read_part<R: io::Read>(&mut self, reader: &mut Reader<R>, kinds: &[u8], sizes: i16) -> io::Result<()> {
        let mut level_bytes: u64 = 0;
        reader.structure(kinds, |reader, field| {
            match field {
                Field { id: 1, .. } => self.values = reader.number()?.max(self.values),
                Field { id, .. } if (5..5 + sizes).contains(&id) => {
                    level_bytes = level_bytes.saturating_add(reader.number()?.max(0).cast_unsigned());
                }
                Field { kind: STRUCT, .. } => reader.structure(&STATISTICS, Reader::skip)?,
                field => reader.skip(field)?,
            }
            Ok(())
        })?;
        if sizes > 0 {
            self.level_bytes = level_bytes;
        }
        Ok(())
    }
}

/// A list of whole numbers as differences: how many it claims, and its bytes.
struct DeltaList {
    count: u64,
    bytes: usize,
}

/// Follows a list without decoding it: a head of four numbers (values of a block, parts of a block, values, the first
/// value), then blocks of a number (the smallest difference), the bits of a value in each part, and the parts.
fn delta_list(bytes: &[u8]) -> Option<DeltaList> {
    let mut at = 0;
    let (block, parts, count) = (varint(bytes, &mut at)?, varint(bytes, &mut at)?, varint(bytes, &mut at)?);
    varint(bytes, &mut at)?;
    let part_values = block.checked_div(parts).filter(|values| *values > 0)?;
    let mut left = count.saturating_sub(1);
    while left > 0 {
        varint(bytes, &mut at)?;
        let bits = bytes.get(at..at.checked_add(usize::try_from(parts).ok()?)?)?;
        at += bits.len();
        for bits in bits {
            // Parts behind the last value have no bytes, whatever their bits are.
            if left > 0 {
                at = at.checked_add(usize::try_from(part_values.checked_mul((*bits).into())? / 8).ok()?)?;
            }
            left = left.saturating_sub(part_values);
        }
    }
    Some(DeltaList { count, bytes: at })
}

fn varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0;
    for place in 0..10 {
        let byte = bytes.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

impl Iterator for CheckedPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for CheckedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        if self.head()?.is_none() {
            return Ok(None);
        }
        let page = self.pages.get_next_page()?;
        self.step();
        page.as_ref().map_or(Ok(()), |page| self.check_encoding(page))?;
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        if self.head()?.is_none() { Ok(None) } else { self.pages.peek_next_page() }
    }

    fn skip_next_page(&mut self) -> Result<()> {
        if self.head()?.is_some() {
            self.pages.skip_next_page()?;
            self.step();
        }
        Ok(())
    }

    fn supports_deferred_dictionary(&self) -> bool {
        self.pages.supports_deferred_dictionary()
    }

    fn take_deferred_dictionary(&mut self) -> Result<Option<Page>> {
        self.pages.take_deferred_dictionary()
    }
}
