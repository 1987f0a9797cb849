//! Parquet files whose headers lie.

use std::io::Write as _;

use crate::{check, read};

/// A structure of Thrift's compact protocol.
#[derive(Default)]
struct Struct {
    bytes: Vec<u8>,
    last: u8,
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn number(value: i64) -> Vec<u8> {
    varint(((value << 1) ^ (value >> 63)).cast_unsigned())
}

impl Struct {
    fn field(mut self, id: u8, kind: u8, value: &[u8]) -> Struct {
        self.bytes.push((id - self.last) << 4 | kind);
        self.bytes.extend(value);
        self.last = id;
        self
    }

    fn int(self, id: u8, value: i64) -> Struct {
        self.field(id, 5, &number(value))
    }

    fn long(self, id: u8, value: i64) -> Struct {
        self.field(id, 6, &number(value))
    }

    fn text(self, id: u8, text: &str) -> Struct {
        self.field(id, 8, &[&varint(text.len() as u64), text.as_bytes()].concat())
    }

    fn part(self, id: u8, part: Struct) -> Struct {
        let bytes = part.done();
        self.field(id, 12, &bytes)
    }

    fn list(self, id: u8, kind: u8, elements: &[Vec<u8>]) -> Struct {
        let mut bytes = vec![0xf0 | kind];
        bytes.extend(varint(elements.len() as u64));
        bytes.extend(elements.concat());
        self.field(id, 9, &bytes)
    }

    fn done(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }
}

const SNAPPY: i64 = 1;
const GZIP: i64 = 2;
const PLAIN: i64 = 0;
const DELTA_LENGTH: i64 = 6;
const DELTA_BYTES: i64 = 7;
const RLE_DICTIONARY: i64 = 8;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

/// One of the images, as plain values have it.
fn plain_image() -> Vec<u8> {
    let image = b"P6 1 1 255\n\x01\x02\x03";
    [(image.len() as u32).to_le_bytes().as_slice(), image].concat()
}

/// A page of data: its values as they are stored, the bytes that they claim to be unpacked, and their number.
fn data_page(stored: &[u8], unpacked: i64, values: i64, encoding: i64) -> Vec<u8> {
    let about = Struct::default().int(1, values).int(2, encoding).int(3, 3).int(4, 3);
    let head = Struct::default().int(1, 0).int(2, unpacked).int(3, stored.len() as i64).part(5, about);
    [head.done(), stored.to_vec()].concat()
}

fn dictionary_page(stored: &[u8], unpacked: i64, values: i64) -> Vec<u8> {
    let about = Struct::default().int(1, values).int(2, PLAIN);
    let head = Struct::default().int(1, 2).int(2, unpacked).int(3, stored.len() as i64).part(7, about);
    [head.done(), stored.to_vec()].concat()
}

/// A column: its pages, whether the first is a dictionary, and its compression.
struct Column {
    pages: Vec<Vec<u8>>,
    has_dictionary: bool,
    compression: i64,
}

fn column(pages: Vec<Vec<u8>>, compression: i64) -> Column {
    Column { pages, has_dictionary: false, compression }
}

fn labels() -> Column {
    column(vec![data_page(&0i32.to_le_bytes(), 4, 1, PLAIN)], 0)
}

fn images() -> Column {
    let plain = plain_image();
    column(vec![data_page(&plain, plain.len() as i64, 1, PLAIN)], 0)
}

/// A file with a column of images and one of labels, of a kind, and so many rows.
fn file(image: &Column, label: &Column, label_kind: i64, rows: i64) -> Vec<u8> {
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

fn with_footer(mut bytes: Vec<u8>, footer: &[u8]) -> Vec<u8> {
    bytes.extend(footer);
    bytes.extend((footer.len() as u32).to_le_bytes());
    bytes.extend(b"PAR1");
    bytes
}

#[test]
fn a_good_file_of_this_kind_is_read() {
    assert_eq!(read("good.parquet", &file(&images(), &labels(), 1, 1)).0, Ok(()));
    let plain = plain_image();
    let packed = column(vec![data_page(&gzip(&plain), plain.len() as i64, 1, PLAIN)], GZIP);
    assert_eq!(read("good.parquet", &file(&packed, &labels(), 1, 1)).0, Ok(()));
}

#[test]
fn a_page_that_claims_two_billion_images_is_refused() {
    let plain = plain_image();
    let page = data_page(&gzip(&plain), plain.len() as i64, i64::from(i32::MAX), PLAIN);
    check("rows.parquet", &file(&column(vec![page], GZIP), &labels(), 1, 1), &["are allowed"]);
}

#[test]
fn a_page_that_claims_to_unpack_to_gigabytes_is_refused() {
    let plain = plain_image();
    for compression in [SNAPPY, GZIP, 5, 7] {
        let page = data_page(&gzip(&plain), i64::from(i32::MAX), 1, PLAIN);
        check("page.parquet", &file(&column(vec![page], compression), &labels(), 1, 1), &["are allowed"]);
    }
}

#[test]
fn a_page_that_unpacks_to_more_than_it_claims_is_refused() {
    let plain = plain_image();
    let bomb = gzip(&[plain.as_slice(), &vec![0; 200 << 20]].concat());
    let page = data_page(&bomb, plain.len() as i64, 1, PLAIN);
    check("bomb.parquet", &file(&column(vec![page], GZIP), &labels(), 1, 1), &["unpacks to more"]);
}

#[test]
fn a_dictionary_that_claims_two_billion_values_is_refused() {
    let plain = plain_image();
    let dictionary = dictionary_page(&plain, plain.len() as i64, i64::from(i32::MAX));
    // One index of no bits.
    let data = data_page(&[0, 2, 0], 3, 1, RLE_DICTIONARY);
    let image = Column { pages: vec![dictionary, data], has_dictionary: true, compression: 0 };
    check("dictionary.parquet", &file(&image, &labels(), 1, 1), &["are allowed"]);
}

#[test]
fn a_label_column_that_claims_two_billion_rows_is_refused() {
    let rows = i64::from(i32::MAX);
    let label = column(vec![data_page(&0i32.to_le_bytes(), 4, rows, PLAIN)], 0);
    check("labels.parquet", &file(&images(), &label, 1, rows), &["are allowed"]);
}

#[test]
fn a_label_in_a_dictionary_that_a_run_repeats_is_charged_for_every_row() {
    let name = vec![b'a'; 60_000];
    let plain = [(name.len() as u32).to_le_bytes().as_slice(), &name].concat();
    let dictionary = dictionary_page(&plain, plain.len() as i64, 1);
    let rows = 100_000;
    // A run of the index 0, of no bits.
    let data = [vec![0], varint(rows << 1)].concat();
    let data = data_page(&data, data.len() as i64, rows as i64, RLE_DICTIONARY);
    let label = Column { pages: vec![dictionary, data], has_dictionary: true, compression: 0 };
    let (result, peak) = read("run.parquet", &file(&images(), &label, 6, rows as i64));
    // A thousand rows are decoded before they are charged.
    assert!(peak < 100 << 20, "{peak} bytes were allocated at once ({result:?})");
    assert!(result.unwrap_err().contains("are allowed"));
}

#[test]
fn images_in_a_dictionary_that_a_run_repeats_are_charged_for_every_row() {
    let plain = plain_image();
    let dictionary = dictionary_page(&plain, plain.len() as i64, 1);
    let rows = 200_000;
    let run = |rows: u64| [vec![0], varint(rows << 1)].concat();
    let page = data_page(&run(rows), run(rows).len() as i64, rows as i64, RLE_DICTIONARY);
    let pages = [vec![dictionary], vec![page; 20]].concat();
    let image = Column { pages, has_dictionary: true, compression: 0 };
    let mut file = file(&image, &labels(), 1, 20 * rows as i64);
    // Under this name nothing is taken for labels.
    while let Some(at) = file.windows(5).position(|window| window == b"label") {
        file[at..at + 5].copy_from_slice(b"other");
    }
    check("rows.parquet", &file, &["are allowed"]);
}

#[test]
fn lengths_that_a_page_has_not_got_are_refused() {
    // 2^40 lengths, in blocks of 128.
    let claimed = [vec![0x80, 1, 4], varint(1 << 40), vec![0]].concat();
    let page = data_page(&claimed, claimed.len() as i64, 1, DELTA_LENGTH);
    check("lengths.parquet", &file(&column(vec![page], 0), &labels(), 1, 1), &["claims 1099511627776 lengths"]);
    let page = data_page(&claimed, claimed.len() as i64, 1, DELTA_BYTES);
    check("prefixes.parquet", &file(&column(vec![page], 0), &labels(), 1, 1), &["DELTA_BYTE_ARRAY"]);
}

#[test]
fn a_schema_that_claims_two_billion_columns_is_refused() {
    let schema = [
        Struct::default().text(4, "root").int(5, i64::from(i32::MAX)).done(),
        Struct::default().int(1, 6).int(3, 0).text(4, "image").done(),
    ];
    let footer = Struct::default().int(1, 1).list(2, 12, &schema).long(3, 1).list(4, 12, &[]);
    check("schema.parquet", &with_footer(b"PAR1".to_vec(), &footer.done()), &["more children than follow"]);
}

#[test]
fn a_schema_of_groups_within_groups_does_not_exhaust_the_stack() {
    let mut schema = vec![Struct::default().text(4, "a").int(5, 1).done(); 200_000];
    schema.push(Struct::default().int(1, 6).int(3, 0).text(4, "image").done());
    let footer = Struct::default().int(1, 1).list(2, 12, &schema).long(3, 1).list(4, 12, &[]);
    check("deep.parquet", &with_footer(b"PAR1".to_vec(), &footer.done()), &["nested too deeply"]);
}
