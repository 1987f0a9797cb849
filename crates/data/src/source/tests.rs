//! Data sets as users have them: every format, well kept and otherwise.

use std::fs;
use std::path::Path;
use std::sync::Mutex;

use farandole_testing::Folder;

use super::*;
use crate::DataSet as _;
use crate::format::{
    FolderWriter, NewFile, NewRecord, ParquetShard, ShardWriter, TarShard, TfRecordShard, tar::TarWriter,
};
use crate::sample::{ImageShape, Split};
use crate::source::image_folder::FolderConfig;
use crate::storage::LocalFiles;

pub(super) const JPEG: &[u8] = include_bytes!("../../tests/images/ramp.jpg");
const SHAPE: ImageShape = ImageShape { bands: 3, height: 8, width: 8 };

pub(super) fn storage(folder: &Folder) -> Arc<dyn Storage> {
    Arc::new(LocalFiles::new(&**folder))
}

/// A JPEG that differs from others by what follows its end.
pub(super) fn image(number: usize) -> Vec<u8> {
    [JPEG, format!("{number}").as_bytes()].concat()
}

/// Writes `count` records of two classes into a shard.
fn fill(mut shard: Box<dyn ShardWriter>, numbers: std::ops::Range<usize>) {
    for number in numbers {
        let (name, label) = (format!("set/{number:04}.jpg"), Label::Class(number as u32 % 2));
        shard.write(&NewRecord { name: &name, encoded: &image(number), label: &label }).unwrap();
    }
    shard.finish().unwrap();
}

fn tfrecord(path: &Path, numbers: std::ops::Range<usize>) {
    fill(Box::new(TfRecordShard::create(path, &["cat".to_owned(), "dog".to_owned()]).unwrap()), numbers);
}

fn tar(path: &Path, numbers: std::ops::Range<usize>) {
    fill(Box::new(TarShard::create(path).unwrap()), numbers);
}

fn parquet(path: &Path, numbers: std::ops::Range<usize>) {
    fill(Box::new(ParquetShard::create(path, &["cat".to_owned(), "dog".to_owned()]).unwrap()), numbers);
}

fn check(records: &dyn Records, count: usize) {
    assert_eq!(records.len(), count, "{}", records.describe());
    assert_eq!(records.task(), Task::SingleLabel { classes: 2 });
    let mut encoded = Vec::new();
    // Backwards: records are independent of each other.
    for number in (0..count).rev() {
        let label = records.read(number, &mut encoded).unwrap();
        assert_eq!(label, Label::Class(number as u32 % 2));
        assert_eq!(records.label(number), Some(label));
        assert_eq!(encoded, image(number), "{}", records.name(number));
    }
    let error = records.read(count, &mut encoded).unwrap_err();
    assert!(error.to_string().contains(&format!("record {count}")), "{error}");
}

fn error(folder: &Folder, path: &str) -> String {
    open(storage(folder), path, &RecordsConfig::default()).err().expect("it should not open").0
}

#[test]
fn shards_are_found_by_file_by_folder_and_by_pattern() {
    let folder = Folder::new();
    for shard in 0..3 {
        tfrecord(&folder.join(format!("tf/a-{shard:02}.tfrecord")), shard * 4..shard * 4 + 4);
        tar(&folder.join(format!("tar/a-{shard:02}.tar")), shard * 4..shard * 4 + 4);
        parquet(&folder.join(format!("pq/a-{shard:02}.parquet")), shard * 4..shard * 4 + 4);
    }
    fs::write(folder.join("tar/README.md"), "nothing").unwrap();
    let config = RecordsConfig::default();
    for (path, count) in [
        ("tf", 12),
        ("tf/", 12),
        ("tf/a-00.tfrecord", 4),
        ("tf/a-{00..01}.tfrecord", 8),
        ("tf/*.tfrecord", 12),
        ("tar", 12),
        ("pq", 12),
        ("pq/a-0?.parquet", 12),
        ("tar/a-{00,01}.tar", 8),
        ("t?r/*", 12),
    ] {
        if path == "t?r/*" {
            fs::remove_file(folder.join("tar/README.md")).unwrap();
        }
        let records = open(storage(&folder), path, &config).unwrap();
        check(records.as_ref(), count);
    }
    let records = open(storage(&folder), "tar", &config).unwrap();
    assert!(records.name(5).ends_with("a-01.tar, set/0005 at byte 2560"), "{}", records.name(5));
    assert_eq!(records.describe(), "WebDataset: 12 records in 3 files");
    let records = open(storage(&folder), "tf", &config).unwrap();
    assert!(records.name(4).ends_with("a-01.tfrecord, record 0 at byte 0"), "{}", records.name(4));
}

#[test]
fn files_without_an_ending_are_told_by_their_first_bytes() {
    let folder = Folder::new();
    tfrecord(&folder.join("tf/train-00000-of-00001"), 0..3);
    tar(&folder.join("other"), 0..3);
    check(open(storage(&folder), "tf", &RecordsConfig::default()).unwrap().as_ref(), 3);
    check(open(storage(&folder), "other", &RecordsConfig::default()).unwrap().as_ref(), 3);
}

#[test]
fn folders_of_classes_are_records_too() {
    let folder = Folder::new();
    let mut writer = Box::new(FolderWriter::create(&folder, &["cat".to_owned(), "dog".to_owned()]).unwrap());
    for number in 0..6 {
        let (name, label) = (format!("{number}.jpg"), Label::Class(number as u32 / 3));
        writer.write(&NewRecord { name: &name, encoded: &image(number), label: &label }).unwrap();
    }
    let twice = writer.write(&NewRecord { name: "0.jpg", encoded: JPEG, label: &Label::Class(0) }).unwrap_err();
    assert!(twice.0.contains("two records have one name"), "{twice}");
    writer.finish().unwrap();
    let records = open(storage(&folder), "", &RecordsConfig::default()).unwrap();
    assert_eq!(records.class_names(), ["cat", "dog"]);
    let mut encoded = Vec::new();
    assert_eq!(records.read(4, &mut encoded).unwrap(), Label::Class(1));
    assert_eq!(encoded, image(4));
    assert!(records.name(4).ends_with("dog/4.jpg"));
    let before = records.fingerprint();
    fs::rename(folder.join("dog/4.jpg"), folder.join("cat/4.jpg")).unwrap();
    assert_ne!(open(storage(&folder), "", &RecordsConfig::default()).unwrap().fingerprint(), before);
    fs::write(folder.join("alone.png"), "").unwrap();
    assert!(error(&folder, "").contains("alone.png is in no class folder"));
}

#[test]
fn what_is_not_there_or_not_understood_is_said() {
    let folder = Folder::new();
    for (name, contents) in [("a.txt", "text"), ("b.tar.gz", "x"), ("sub/c.bin", "binary")] {
        fs::create_dir_all(folder.join(name).parent().unwrap()).unwrap();
        fs::write(folder.join(name), contents).unwrap();
    }
    tar(&folder.join("s-0.tar"), 0..2);
    tfrecord(&folder.join("s-1.tfrecord"), 0..2);
    for (path, words) in [
        ("nothing", "there is no such file"),
        ("a.txt", "a.txt is no file with records"),
        ("b.tar.gz", "compressed"),
        ("sub", "holds neither shards nor images"),
        ("s-*", "another format"),
        ("s-{0..1}.tar", "s-1.tar: there is no such file (1 of"),
        ("s-{0..1.tar", "brace"),
    ] {
        let error = error(&folder, path);
        assert!(error.contains(words), "{path}: {error}");
    }
}

#[test]
fn an_index_is_kept_and_one_that_is_stale_or_broken_is_made_again() {
    let folder = Folder::new();
    let (shard, index) = (folder.join("a.tar"), folder.join(".a.tar.index"));
    tar(&shard, 0..4);
    let config = RecordsConfig::default();
    check(open(storage(&folder), "a.tar", &config).unwrap().as_ref(), 4);
    let good = fs::read(&index).unwrap();
    // What is in the index counts: with another one under its name, other records are found.
    fs::write(&index, &good[..good.len() / 2]).unwrap();
    check(open(storage(&folder), "a.tar", &config).unwrap().as_ref(), 4);
    assert_eq!(fs::read(&index).unwrap(), good, "it was made again");
    tar(&shard, 0..6);
    check(open(storage(&folder), "a.tar", &config).unwrap().as_ref(), 6);
    assert_ne!(fs::read(&index).unwrap(), good);
    fs::remove_file(&index).unwrap();
    let cache = RecordsConfig { index: IndexPlace::Folder(folder.join("cache")), ..RecordsConfig::default() };
    check(open(storage(&folder), "a.tar", &cache).unwrap().as_ref(), 6);
    assert!(!index.exists());
    assert_eq!(fs::read_dir(folder.join("cache")).unwrap().count(), 1);
    let nowhere = RecordsConfig { index: IndexPlace::Nowhere, ..RecordsConfig::default() };
    check(open(storage(&folder), "a.tar", &nowhere).unwrap().as_ref(), 6);
    assert!(!index.exists());
}

#[test]
fn an_index_saves_reading_the_shard() {
    let folder = Folder::new();
    tfrecord(&folder.join("a.tfrecord"), 0..4);
    let config = RecordsConfig::default();
    check(open(storage(&folder), "", &config).unwrap().as_ref(), 4);
    // Damage that keeps size and time is not seen when the shard is opened, and seen when the record is read.
    let path = folder.join("a.tfrecord");
    let time = fs::metadata(&path).unwrap().modified().unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, bytes).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    let records = open(storage(&folder), "", &config).unwrap();
    let failed = (0..4).filter_map(|number| records.read(number, &mut Vec::new()).err()).collect::<Vec<_>>();
    assert_eq!(failed.len(), 1);
    assert!(failed[0].cause.contains("checksum") && failed[0].sample.contains("a.tfrecord, record"), "{}", failed[0]);
}

#[test]
fn progress_is_told_and_threads_change_nothing() {
    let folder = Folder::new();
    for shard in 0..8 {
        tar(&folder.join(format!("{shard}.tar")), shard * 2..shard * 2 + 2);
    }
    for threads in [1, 3, 100] {
        let told: Arc<Mutex<Vec<ScanProgress>>> = Arc::default();
        let writer = Arc::clone(&told);
        let progress: Arc<dyn Fn(ScanProgress) + Send + Sync> =
            Arc::new(move |progress| writer.lock().unwrap().push(progress));
        let config =
            RecordsConfig { threads, progress: Some(progress), index: IndexPlace::Nowhere, ..RecordsConfig::default() };
        check(open(storage(&folder), "", &config).unwrap().as_ref(), 16);
        let told = told.lock().unwrap();
        assert_eq!(told.len(), 8);
        assert!(told.contains(&ScanProgress { done: 8, shards: 8, records: 16 }), "{told:?}");
    }
}

#[test]
fn damage_is_named_with_file_and_offset() {
    let folder = Folder::new();
    tfrecord(&folder.join("a.tfrecord"), 0..2);
    let mut bytes = fs::read(folder.join("a.tfrecord")).unwrap();
    fs::write(folder.join("short.tfrecord"), &bytes[..bytes.len() - 3]).unwrap();
    bytes[40] ^= 1;
    fs::write(folder.join("damaged.tfrecord"), &bytes).unwrap();
    let second = bytes.len() / 2;
    for (file, words) in [
        ("short.tfrecord", format!("short.tfrecord, at byte {second}: the file ends within a record")),
        ("damaged.tfrecord", "damaged.tfrecord, at byte 0: the checksum of a record".to_owned()),
    ] {
        let error = error(&folder, file);
        assert!(error.contains(&words), "{error}");
    }
    let write = |name: &str, entries: &[(&str, &[u8])]| {
        let mut writer = TarWriter::new(NewFile::create(&folder.join(name)).unwrap());
        entries.iter().for_each(|(name, contents)| writer.write(name, contents).unwrap());
        writer.finish().unwrap();
        error(&folder, name)
    };
    let missing = write("a.tar", &[("1.jpg", JPEG), ("1.cls", b"0"), ("2.cls", b"1")]);
    assert!(missing.contains("a.tar, at byte 2048: the sample 2 has no image"), "{missing}");
    let unlabelled = write("b.tar", &[("1.jpg", JPEG), ("1.cls", b"0"), ("2.jpg", JPEG)]);
    assert!(unlabelled.contains("b.tar, 2 at byte 2560: nothing says what it shows"), "{unlabelled}");
    let wrong = write("c.tar", &[("1.jpg", JPEG), ("1.cls", b"-1")]);
    assert!(wrong.contains("c.tar, 1 at byte 512: label -1 is out of range"), "{wrong}");
    let json = write("d.tar", &[("1.jpg", JPEG), ("1.json", b"{")]);
    assert!(json.contains("d.tar, at byte") && json.contains("1.json: no JSON"), "{json}");
    let twice = write("e.tar", &[("1.jpg", JPEG), ("1.png", JPEG)]);
    assert!(twice.contains("1.png is the second image"), "{twice}");
}

#[test]
fn samples_of_archives_say_what_they_are_in_several_ways() {
    let folder = Folder::new();
    let write = |name: &str, entries: &[(&str, &[u8])]| {
        let mut writer = TarWriter::new(NewFile::create(&folder.join(name)).unwrap());
        entries.iter().for_each(|(name, contents)| writer.write(name, contents).unwrap());
        writer.finish().unwrap();
    };
    write("a.tar", &[("x/1.json", br#"{"label": 2, "x": 7}"#), ("x/1.jpg", JPEG), ("x/1.txt", b"a cat")]);
    write("b.tar", &[("1.jpg", JPEG), ("1.json", br#"{"labels": [0, 3]}"#), ("2.jpg", JPEG), ("2.json", b"[1]")]);
    write("c.tar", &[("__meta__.json", b"?"), ("1.JPEG", JPEG), ("1.seg.png", b"?"), ("1.txt", b"cat\n")]);
    let records = |path: &str, config: &RecordsConfig| open(storage(&folder), path, config).unwrap();
    let config = RecordsConfig::default();
    assert_eq!(records("a.tar", &config).label(0), Some(Label::Class(2)));
    let named = RecordsConfig { label: Some("x".to_owned()), ..RecordsConfig::default() };
    assert_eq!(records("a.tar", &named).label(0), Some(Label::Class(7)), "another index would be wrong here");
    assert_eq!(records("b.tar", &config).label(0), Some(Label::Labels(vec![1.0, 0.0, 0.0, 1.0])));
    assert_eq!(records("c.tar", &config).class_names(), ["cat"]);
}

#[test]
fn a_data_set_is_divided_by_folders_by_names_or_by_chance() {
    let folder = Folder::new();
    tar(&folder.join("folders/train/0.tar"), 0..6);
    tar(&folder.join("folders/val/0.tar"), 6..8);
    tfrecord(&folder.join("names/train-00000-of-00001.tfrecord"), 0..6);
    tfrecord(&folder.join("names/validation-00000-of-00001.tfrecord"), 6..8);
    tar(&folder.join("chance/0.tar"), 0..10);
    let open = |path: &str| open_data_set(storage(&folder), path, &RecordsConfig::default(), &FolderConfig::new(SHAPE));
    for path in ["folders", "names", "chance"] {
        let data = open(path).unwrap();
        let sizes = (data.len(Split::Train), data.len(Split::Test));
        assert_eq!(sizes, if path == "chance" { (8, 2) } else { (6, 2) }, "{path}");
        let sample = data.sample(Split::Test, 0).unwrap();
        assert_eq!(sample.image.len(), SHAPE.len());
        assert!(data.sample(Split::Test, 2).is_err());
        assert_eq!(data.fingerprint(), open(path).unwrap().fingerprint());
    }
    let data = open("chance").unwrap();
    let classes: Vec<Label> = (0..2).map(|index| data.sample(Split::Test, index).unwrap().label).collect();
    assert_eq!(classes, [Label::Class(0), Label::Class(1)], "one of each class");
    let few = FolderConfig { train: Some(3), test: Some(1), ..FolderConfig::new(SHAPE) };
    let data = open_data_set(storage(&folder), "chance", &RecordsConfig::default(), &few).unwrap();
    assert_eq!((data.len(Split::Train), data.len(Split::Test)), (3, 1));
    let many = FolderConfig { train: Some(30), ..FolderConfig::new(SHAPE) };
    let error = open_data_set(storage(&folder), "chance", &RecordsConfig::default(), &many).err().unwrap();
    assert!(error.0.contains("--samples 30"), "{error}");
}

#[test]
fn values_are_normalised_and_labels_written_are_found_again() {
    let folder = Folder::new();
    let labels = [Label::Value(10.5), Label::Value(20.0), Label::Value(30.0)];
    let many = [Label::Labels(vec![1.0, 0.0, 1.0]), Label::Labels(vec![0.0; 3]), Label::Labels(vec![0.0, 1.0, 0.0])];
    for (kind, labels) in [("value", &labels), ("many", &many)] {
        let shards: [(&str, Box<dyn ShardWriter>); 3] = [
            ("tfrecord", Box::new(TfRecordShard::create(&folder.join(format!("{kind}.tfrecord")), &[]).unwrap())),
            ("tar", Box::new(TarShard::create(&folder.join(format!("{kind}.tar"))).unwrap())),
            ("parquet", Box::new(ParquetShard::create(&folder.join(format!("{kind}.parquet")), &[]).unwrap())),
        ];
        for (ending, mut shard) in shards {
            for label in labels {
                shard.write(&NewRecord { name: "../same.name.jpg", encoded: JPEG, label }).unwrap();
            }
            let pair = NewRecord { name: "p", encoded: JPEG, label: &Label::Image(Vec::new()) };
            assert!(shard.write(&pair).unwrap_err().0.contains("pairs"));
            let text = NewRecord { name: "t", encoded: b"text", label: &labels[0] };
            assert!(shard.write(&text).unwrap_err().0.contains("t is neither a JPEG"));
            shard.finish().unwrap();
            let records = open(storage(&folder), &format!("{kind}.{ending}"), &RecordsConfig::default()).unwrap();
            let found: Vec<Label> = (0..3).map(|index| records.label(index).unwrap()).collect();
            assert_eq!(&found, labels, "{kind}.{ending}");
        }
    }
    let config = FolderConfig { test_share: 0.0, ..FolderConfig::new(SHAPE) };
    let data = open_data_set(storage(&folder), "value.tar", &RecordsConfig::default(), &config).unwrap();
    let values: Vec<f32> = (0..3)
        .map(|index| match data.sample(Split::Train, index).unwrap().label {
            Label::Value(value) => value,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(values.iter().sum::<f32>().abs() < 1e-5, "{values:?}");
    assert!((data.unit().mean - 20.166_666).abs() < 1e-4);
}

/// Files that other libraries have written: see the README there.
fn foreign() -> Arc<dyn Storage> {
    Arc::new(LocalFiles::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign")))
}

#[test]
fn what_other_libraries_write_is_read() {
    let config = RecordsConfig { index: IndexPlace::Nowhere, ..RecordsConfig::default() };
    let classes = |classes: [u32; 4]| classes.map(Label::Class).to_vec();
    let list = |labels: [f32; 3]| Label::Labels(labels.to_vec());
    let lists = vec![list([1.0, 0.0, 1.0]), list([0.0; 3]), list([0.0, 1.0, 0.0]), list([0.0, 0.0, 1.0])];
    for (file, labels) in [
        ("images.tfrecord", classes([0, 1, 2, 0])),
        ("images.tar", classes([0, 1, 0, 1])),
        ("snappy.parquet", classes([1, 0, 1, 0])),
        ("lists.parquet", lists),
        ("names.parquet", classes([0, 2, 0, 1])),
    ] {
        let records = open(foreign(), file, &config).unwrap();
        let mut encoded = Vec::new();
        let mut seen = Vec::new();
        for index in 0..4 {
            seen.push(records.read(index, &mut encoded).unwrap_or_else(|error| panic!("{file}: {error}")));
            let image = crate::transform::fit::decode(&encoded, SHAPE, crate::transform::fit::Fit::Resize).unwrap();
            let grey = crate::sample::normalised(40.0 * index as f32 / 255.0);
            assert!((image[20] - grey).abs() < 0.05, "{file}, image {index}: {} instead of {grey}", image[20]);
        }
        assert_eq!(seen, labels, "{file}");
    }
    let error = open(foreign(), "zstd.parquet", &config).err().unwrap().0;
    assert!(error.contains("zstd.parquet") && error.contains("compressed with zstd"), "{error}");
}

#[test]
fn arrays_are_images_with_labels_and_parts() {
    let config = RecordsConfig::default();
    let records = open(foreign(), "stored.npz", &config).unwrap();
    assert_eq!((records.len(), records.label(1)), (4, Some(Label::Class(1))));
    let mut encoded = Vec::new();
    records.read(1, &mut encoded).unwrap();
    let pixels: Vec<u8> = (16..32u8).flat_map(|value| [value; 3]).collect();
    assert_eq!(encoded, [b"P6\n4 4\n255\n".as_slice(), &pixels].concat());
    let records = open(foreign(), "packed.npz", &config).unwrap();
    assert_eq!((records.len(), records.label(2)), (4, Some(Label::Class(2))));
    let data = open_data_set(foreign(), "packed.npz", &config, &FolderConfig::new(SHAPE)).unwrap();
    assert_eq!((data.len(Split::Train), data.len(Split::Test)), (4, 2));
    assert_eq!(data.sample(Split::Test, 0).unwrap().label, Label::Class(2));
}

#[test]
fn files_of_arrays_have_their_labels_beside_them() {
    use crate::format::npy::encode;
    let folder = Folder::new();
    let write = |name: &str, bytes: Vec<u8>| fs::write(folder.join(name), bytes).unwrap();
    let mut floats: Vec<u8> = [0.0f32, 1.0, 0.5, 0.2, 0.4, 0.6].iter().flat_map(|it| it.to_le_bytes()).collect();
    floats.resize(2 * floats.len(), 0);
    write("images-0.npy", encode("<f4", &[2, 3, 1, 2], &floats));
    write("labels-0.npy", encode("|u1", &[2], &[0, 1]));
    let config = RecordsConfig::default();
    let records = open(storage(&folder), "", &config).unwrap();
    assert_eq!((records.len(), records.label(1)), (2, Some(Label::Class(1))));
    let mut encoded = Vec::new();
    records.read(0, &mut encoded).unwrap();
    assert_eq!(encoded, b"P6\n2 1\n255\n\x00\x80\x66\xff\x33\x99", "planes become pixels");
    write("labels-0.npy", encode("|u1", &[3], &[0, 1, 2]));
    assert!(error(&folder, "").contains("2 images, and 3 labels"));
    write("labels-0.npy", encode("|u1", &[2], &[0, 1]));
    write("images-0.npy", encode("<i2", &[2, 1, 1], &[44, 1, 0, 0]));
    let records = open(storage(&folder), "", &config).unwrap();
    assert!(records.read(0, &mut encoded).unwrap_err().cause.contains("300 is no brightness"));
    records.read(1, &mut encoded).unwrap();
    write("images-0.npy", encode("|u1", &[2, 5], &[0; 10]));
    let records = open(storage(&folder), "", &config).unwrap();
    assert!(records.read(0, &mut encoded).unwrap_err().cause.contains("are no images"));
}
