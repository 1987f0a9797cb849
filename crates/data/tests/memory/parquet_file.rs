//! Writes Parquet files byte by byte, so that their headers can claim anything.

#![allow(dead_code, reason = "each test binary uses some of them")]

use std::io::Write as _;

/// A structure of Thrift's compact protocol.
#[derive(Default)]
pub(crate) struct Struct {
    bytes: Vec<u8>,
    last: u8,
}

pub(crate) fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

pub(crate) fn number(value: i64) -> Vec<u8> {
    varint(((value << 1) ^ (value >> 63)).cast_unsigned())
}

impl Struct {
    pub(crate) fn field(mut self, id: u8, kind: u8, value: &[u8]) -> Struct {
        self.bytes.push((id - self.last) << 4 | kind);
        self.bytes.extend(value);
        self.last = id;
        self
    }

    pub(crate) fn int(self, id: u8, value: i64) -> Struct {
        self.field(id, 5, &number(value))
    }

    pub(crate) fn long(self, id: u8, value: i64) -> Struct {
        self.field(id, 6, &number(value))
    }

    pub(crate) fn text(self, id: u8, text: &str) -> Struct {
        self.field(id, 8, &[&varint(text.len() as u64), text.as_bytes()].concat())
    }

    pub(crate) fn part(self, id: u8, part: Struct) -> Struct {
        let bytes = part.done();
        self.field(id, 12, &bytes)
    }

    pub(crate) fn list(self, id: u8, kind: u8, elements: &[Vec<u8>]) -> Struct {
        let mut bytes = vec![0xf0 | kind];
        bytes.extend(varint(elements.len() as u64));
        bytes.extend(elements.concat());
        self.field(id, 9, &bytes)
    }

    pub(crate) fn done(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }
}

pub(crate) const SNAPPY: i64 = 1;
pub(crate) const GZIP: i64 = 2;
pub(crate) const PLAIN: i64 = 0;
pub(crate) const DELTA_LENGTH: i64 = 6;
pub(crate) const DELTA_BYTES: i64 = 7;
pub(crate) const RLE_DICTIONARY: i64 = 8;

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

/// One of the images, as plain values have it.
pub(crate) fn plain_image() -> Vec<u8> {
    let image = b"P6 1 1 255\n\x01\x02\x03";
    [(image.len() as u32).to_le_bytes().as_slice(), image].concat()
}

/// A page of data: its values as they are stored, the bytes that they claim to be unpacked, and their number.
pub(crate) fn data_page(stored: &[u8], unpacked: i64, values: i64, encoding: i64) -> Vec<u8> {
    let about = Struct::default().int(1, values).int(2, encoding).int(3, 3).int(4, 3);
    let head = Struct::default().int(1, 0).int(2, unpacked).int(3, stored.len() as i64).part(5, about);
    [head.done(), stored.to_vec()].concat()
}

pub(crate) fn dictionary_page(stored: &[u8], unpacked: i64, values: i64) -> Vec<u8> {
    let about = Struct::default().int(1, values).int(2, PLAIN);
    let head = Struct::default().int(1, 2).int(2, unpacked).int(3, stored.len() as i64).part(7, about);
    [head.done(), stored.to_vec()].concat()
}

/// A column: its pages, whether the first is a dictionary, and its compression.
pub(crate) struct Column {
    pub(crate) pages: Vec<Vec<u8>>,
    pub(crate) has_dictionary: bool,
    pub(crate) compression: i64,
}

pub(crate) fn column(pages: Vec<Vec<u8>>, compression: i64) -> Column {
    Column { pages, has_dictionary: false, compression }
}

pub(crate) fn labels() -> Column {
    column(vec![data_page(&0i32.to_le_bytes(), 4, 1, PLAIN)], 0)
}

pub(crate) fn images() -> Column {
    let plain = plain_image();
    column(vec![data_page(&plain, plain.len() as i64, 1, PLAIN)], 0)
}

/// A file with a column of images and one of labels, of a kind, and so many rows.
pub(crate) fn file(image: &Column, label: &Column, label_kind: i64, rows: i64) -> Vec<u8> {
    let mut bytes = b"PAR1".to_vec();
    let mut columns = Vec::new();
    for (name, kind, column) in [("image", 6, image), ("label", label_kind, label)] {
        let begin = bytes.len();
        bytes.extend(column.pages.concat());
        let size = (bytes.len() - begin) as i64;
        let first_data = begin + if column.has_dictionary { column.pages[0].len() } else { 0 };
        let mut about = Struct::default()
            .int(1, kind)
            .list(2, 5, &[number(0), number(3), number(8)])
            .list(3, 8, &[[varint(name.len() as u64), name.into()].concat()])
            .int(4, column.compression)
            .long(5, rows)
            .long(6, size)
            .long(7, size)
            .long(9, first_data as i64);
        if column.has_dictionary {
            about = about.long(11, begin as i64);
        }
        columns.push(Struct::default().long(2, begin as i64).part(3, about).done());
    }
    let group = Struct::default().list(1, 12, &columns).long(2, bytes.len() as i64).long(3, rows);
    let schema = [
        Struct::default().text(4, "root").int(5, 2).done(),
        Struct::default().int(1, 6).int(3, 0).text(4, "image").done(),
        Struct::default().int(1, label_kind).int(3, 0).text(4, "label").done(),
    ];
    let footer = Struct::default().int(1, 1).list(2, 12, &schema).long(3, rows).list(4, 12, &[group.done()]);
    with_footer(bytes, &footer.done())
}

pub(crate) fn with_footer(mut bytes: Vec<u8>, footer: &[u8]) -> Vec<u8> {
    bytes.extend(footer);
    bytes.extend((footer.len() as u32).to_le_bytes());
    bytes.extend(b"PAR1");
    bytes
}
