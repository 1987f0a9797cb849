//! Files that we write, that others write, and that nobody should have written.

use std::io::Read as _;
use std::sync::Arc;

use farandole_testing::Folder;
use parquet::basic::GzipLevel;
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type};
use parquet::file::properties::{WriterProperties, WriterVersion};
use parquet::file::reader::ChunkReader as _;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use proptest::prelude::*;

use super::*;
use crate::format::{NewRecord, ShardWriter as _};
use crate::sample::Label as Known;
use crate::storage::LocalFiles;

fn image(number: usize) -> Vec<u8> {
    [&[0xff, 0xd8], vec![number as u8; number * 7 % 90].as_slice()].concat()
}

fn written(labels: &[Known]) -> (Folder, Vec<u8>) {
    let folder = Folder::new();
    let path = folder.join("a.parquet");
    let mut shard = Box::new(ParquetShard::create(&path, &["cat".to_owned(), "dog".to_owned()]).unwrap());
    for (number, label) in labels.iter().enumerate() {
        shard.write(&NewRecord { name: &format!("{number}.jpg"), encoded: &image(number), label }).unwrap();
    }
    shard.finish().unwrap();
    let bytes = std::fs::read(path).unwrap();
    (folder, bytes)
}

fn stored(folder: &Folder, bytes: &[u8]) -> StoredFile {
    std::fs::write(folder.join("b.parquet"), bytes).unwrap();
    StoredFile::open(Arc::new(LocalFiles::new(&**folder)), "b.parquet").unwrap()
}

/// The images and labels of a file.
type Contents = (Vec<Vec<u8>>, Option<Vec<Cells>>);

/// All that can be read of a file, each image in every way that there is.
fn all(file: &StoredFile) -> Result<Contents, FormatError> {
    let opened = ParquetFile::open(file, None, None)?;
    let labels = opened.labels()?;
    let (mut images, mut buffer, cache) = (Vec::new(), Vec::new(), PageCache::default());
    opened.each_image(|row, place, image| {
        assert_eq!(row, images.len() as u64);
        if let Some(offset) = place {
            let mut there = vec![0; image.len()];
            file.read_at(offset, &mut there)?;
            assert_eq!(there, image, "a place is where the image lies");
        }
        opened.read(0, row, &cache, &mut buffer)?;
        assert_eq!(buffer, image);
        images.push(image.to_vec());
        Ok(())
    })?;
    Ok((images, labels))
}

#[test]
fn images_and_every_kind_of_label_come_back() {
    let classes: Vec<Known> = (0..40).map(|number| Known::Class(number % 2)).collect();
    let values = vec![Known::Value(0.5), Known::Value(2.0)];
    let lists = vec![Known::Labels(vec![1.0, 0.0, 1.0]), Known::Labels(vec![0.0; 3]), Known::Labels(vec![0.0, 1.0])];
    let cells: [Vec<Cells>; 3] = [
        (0..40).map(|number| Cells::Ints(vec![number % 2])).collect(),
        vec![Cells::Floats(vec![0.5]), Cells::Floats(vec![2.0])],
        // An empty list cannot be told from none at all; `source` takes both for a row without labels.
        vec![Cells::Ints(vec![0, 2]), Cells::Ints(vec![]), Cells::Ints(vec![1])],
    ];
    for (labels, cells) in [classes, values, lists].into_iter().zip(cells) {
        let (folder, bytes) = written(&labels);
        let (images, found) = all(&stored(&folder, &bytes)).unwrap();
        assert_eq!(images, (0..labels.len()).map(image).collect::<Vec<_>>());
        assert_eq!(found.unwrap(), cells);
    }
}

#[test]
fn images_of_our_files_have_a_place() {
    let (folder, bytes) = written(&[Known::Class(0), Known::Class(1)]);
    let file = stored(&folder, &bytes);
    let opened = ParquetFile::open(&file, None, None).unwrap();
    assert_eq!(opened.rows(), 2);
    let mut places = Vec::new();
    opened
        .each_image(|_, place, _| {
            places.push(place.unwrap());
            Ok(())
        })
        .unwrap();
    assert!(places[0] < places[1]);
}

#[test]
fn a_file_that_ends_too_early_is_an_error_at_every_byte() {
    let (folder, bytes) = written(&[Known::Class(0), Known::Class(1)]);
    for end in 0..bytes.len() {
        let error = all(&stored(&folder, &bytes[..end])).unwrap_err();
        assert!(error.path.ends_with("b.parquet") && error.cause.contains("damaged"), "{end}: {error}");
    }
}

/// The `parquet` crate took empty reads for steps over a list: two million of them for a header of 600 bytes.
#[test]
fn a_header_that_claims_a_long_list_is_read_to_the_end_of_the_file_and_no_further() {
    let (folder, bytes) = written(&[Known::Class(0)]);
    let source = Source::new(&stored(&folder, &bytes));
    let mut reader = source.get_read(bytes.len() as u64 - 3).unwrap();
    reader.read_exact(&mut [0; 3]).unwrap();
    assert_eq!(reader.read(&mut [0; 8]).unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
}

/// A file as others write it: optional columns, two row groups, small pages, any compression.
fn foreign(compression: Compression, dictionary: bool) -> Vec<u8> {
    foreign_of(WriterVersion::PARQUET_1_0, compression, dictionary)
}

/// The second version has pages of another kind, and values without a dictionary in DELTA_BYTE_ARRAY.
fn foreign_of(version: WriterVersion, compression: Compression, dictionary: bool) -> Vec<u8> {
    let schema = "message schema { OPTIONAL group image { OPTIONAL BYTE_ARRAY bytes; OPTIONAL BYTE_ARRAY path (STRING); } \
                  OPTIONAL INT32 label; }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let properties = WriterProperties::builder()
        .set_writer_version(version)
        .set_compression(compression)
        .set_dictionary_enabled(dictionary)
        .set_data_page_size_limit(200)
        .set_write_batch_size(1)
        .build();
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties)).unwrap();
    for first in [0, 30] {
        let mut group = writer.next_row_group().unwrap();
        let images: Vec<ByteArray> = (first..first + 30).map(|number| ByteArray::from(image(number))).collect();
        for (values, level) in [(images, 2), (Vec::new(), 1)] {
            let mut column = group.next_column().unwrap().unwrap();
            column.typed::<ByteArrayType>().write_batch(&values, Some(&[level; 30]), None).unwrap();
            column.close().unwrap();
        }
        let mut column = group.next_column().unwrap().unwrap();
        let labels: Vec<i32> = (0..29).collect();
        let levels: Vec<i16> = (0..30).map(|row| i16::from(row != 29)).collect();
        column.typed::<Int32Type>().write_batch(&labels, Some(&levels), None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.into_inner().unwrap()
}

#[test]
fn compressed_columns_dictionaries_and_empty_cells_are_read() {
    let gzip = Compression::GZIP(GzipLevel::default());
    for compression in [Compression::UNCOMPRESSED, Compression::SNAPPY, gzip, Compression::LZ4_RAW] {
        for (dictionary, version) in [
            (false, WriterVersion::PARQUET_1_0),
            (true, WriterVersion::PARQUET_1_0),
            (false, WriterVersion::PARQUET_2_0),
            (true, WriterVersion::PARQUET_2_0),
        ] {
            let folder = Folder::new();
            let file = stored(&folder, &foreign_of(version, compression, dictionary));
            let (images, labels) = all(&file).unwrap();
            let expected: Vec<_> = (0..60).map(image).collect();
            assert_eq!(images, expected, "{compression:?}, dictionary {dictionary}, {version:?}");
            let labels = labels.unwrap();
            assert_eq!((&labels[31], &labels[29]), (&Cells::Ints(vec![1]), &Cells::Nothing));
        }
    }
}

#[test]
fn columns_that_are_not_there_are_named() {
    let (folder, bytes) = written(&[Known::Class(0)]);
    let file = stored(&folder, &bytes);
    let error = ParquetFile::open(&file, Some("photo"), None).unwrap_err();
    assert!(error.cause.contains("no column photo") && error.cause.contains("image.bytes"), "{error}");
    let error = ParquetFile::open(&file, None, Some("age")).unwrap_err();
    assert!(error.cause.contains("no column age"), "{error}");
    for method in [Compression::ZSTD(parquet::basic::ZstdLevel::default()), Compression::LZO] {
        assert!(check_compression(&file, method).unwrap_err().cause.contains("which is not read"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn damage_ends_in_an_error_or_in_other_images(at in 0usize..10_000, byte: u8, compressed: bool) {
        let compression = if compressed { Compression::SNAPPY } else { Compression::UNCOMPRESSED };
        let mut bytes = foreign(compression, !compressed);
        let at = at % bytes.len();
        bytes[at] = byte;
        let folder = Folder::new();
        // There is no checksum of images: what is damaged may look like another image, and must not do worse.
        let file = stored(&folder, &bytes);
        if let Ok(opened) = ParquetFile::open(&file, None, None) {
            let _ = opened.labels();
            let (cache, mut buffer) = (PageCache::default(), Vec::new());
            let _ = opened.each_image(|_, _, _| Ok(()));
            let _ = opened.read(0, 31, &cache, &mut buffer);
        }
    }

    #[test]
    fn garbage_is_an_error(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), length in 0u32..200) {
        // With the marks of the format the rest is looked at.
        bytes.splice(0..0, *b"PAR1");
        bytes.extend(length.to_le_bytes());
        bytes.extend(b"PAR1");
        let folder = Folder::new();
        prop_assert!(all(&stored(&folder, &bytes)).is_err());
    }
}
