//! Conversions of small images: every format, interruptions, refusals, and what cannot be read.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use farandole_testing::Folder;

use super::*;
use crate::SampleError;
use crate::format::{FolderWriter, NewRecord, ShardWriter as _, pnm};
use crate::sample::{Label, Task};
use crate::source::{self, RecordsConfig};
use crate::storage::LocalFiles;

/// Images of bare pixels, each of one colour.
struct Colours {
    length: usize,
    task: Task,
    side: usize,
    broken: Option<usize>,
    names: Vec<String>,
}

fn colours(length: usize) -> Colours {
    let names = ["ant", "bee", "cat"].map(str::to_owned).to_vec();
    Colours { length, task: Task::SingleLabel { classes: 3 }, side: 6, broken: None, names }
}

impl Records for Colours {
    fn len(&self) -> usize {
        self.length
    }
    fn read(&self, index: usize, encoded: &mut Vec<u8>) -> Result<Label, SampleError> {
        if self.broken == Some(index) {
            return Err(SampleError { sample: self.name(index), cause: "the disk is broken".to_owned() });
        }
        *encoded = pnm::encode(self.side, self.side, 3, &vec![index as u8; self.side * self.side * 3]).unwrap();
        Ok(match self.task {
            Task::MultiLabel { labels } => {
                Label::Labels((0..labels).map(|label| f32::from(u8::from(index >> label & 1 == 1))).collect())
            }
            Task::Regression => Label::Value(index as f32 / 4.0),
            _ => Label::Class((index % 3) as u32),
        })
    }
    fn task(&self) -> Task {
        self.task
    }
    fn name(&self, index: usize) -> String {
        format!("colours/number {index}.ppm")
    }
    fn class_names(&self) -> &[String] {
        &self.names
    }
    fn describe(&self) -> String {
        format!("{} colours", self.length)
    }
    fn fingerprint(&self) -> u64 {
        self.length as u64
    }
}

const FORMATS: [TargetFormat; 4] =
    [TargetFormat::TfRecord, TargetFormat::Tar, TargetFormat::Parquet, TargetFormat::Folder];

fn conversion(to: TargetFormat, folder: &Path) -> Conversion {
    Conversion {
        to,
        folder: folder.join("converted"),
        shards: 4,
        change: ImageChange::Nothing,
        shuffle_seed: None,
        threads: 2,
        leave_out_broken: false,
    }
}

fn run(records: &dyn Records, conversion: &Conversion) -> Result<Converted, DataError> {
    convert(records, conversion, &|_| {}, &AtomicBool::new(false))
}

/// All files of a conversion with their contents, without the note.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(folder.join("converted")).unwrap().map(|entry| entry.unwrap());
    let files = entries.filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'));
    let mut files: Vec<(String, Vec<u8>)> =
        files.map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())).collect();
    files.sort();
    files
}

#[test]
fn every_format_holds_what_was_converted() {
    let multi = Colours { task: Task::MultiLabel { labels: 5 }, names: Vec::new(), ..colours(23) };
    let values = Colours { task: Task::Regression, names: Vec::new(), ..colours(23) };
    let classes = colours(23);
    for (to, source) in FORMATS.iter().flat_map(|to| [&classes, &multi, &values].map(|source| (*to, source))) {
        if to == TargetFormat::Folder && !matches!(source.task, Task::SingleLabel { .. }) {
            let folder = Folder::new();
            assert!(run(source, &conversion(to, &folder)).unwrap_err().to_string().contains("for each class"));
            continue;
        }
        let folder = Folder::new();
        let converted = run(source, &conversion(to, &folder)).unwrap();
        let shards = if to == TargetFormat::Folder { 1 } else { 4 };
        assert_eq!((converted.records, converted.shards, converted.kept_shards), (23, shards, 0), "{to:?}");
        let storage = Arc::new(LocalFiles::new(folder.join("converted")));
        let config = RecordsConfig {
            classes: matches!(source.task, Task::MultiLabel { .. }).then_some(5),
            ..RecordsConfig::default()
        };
        let back = source::open(storage, "", &config).unwrap();
        assert_eq!(back.len(), 23, "{to:?}");
        let mut bytes = (Vec::new(), Vec::new());
        for index in 0..23 {
            let label = back.read(index, &mut bytes.1).unwrap();
            // A folder is read class by class.
            let original = bytes.1.last().map(|colour| usize::from(*colour)).unwrap();
            assert_eq!(label, source.read(original, &mut bytes.0).unwrap(), "{to:?} {}", back.name(index));
            assert_eq!(bytes.0, bytes.1);
            assert!(to == TargetFormat::Folder || original == index, "{to:?}: shards keep the order");
        }
    }
}

#[test]
fn threads_and_interruptions_change_nothing() {
    let source = colours(40);
    for to in [TargetFormat::TfRecord, TargetFormat::Tar, TargetFormat::Parquet] {
        let (once, in_parts) = (Folder::new(), Folder::new());
        let whole = Conversion { threads: 1, shuffle_seed: Some(3), ..conversion(to, &once) };
        run(&source, &whole).unwrap();
        let parts = Conversion { threads: 3, folder: in_parts.join("converted"), ..whole.clone() };
        let (stop, limit) = (AtomicBool::new(false), Mutex::new(17));
        let stop_soon = |progress: ConversionProgress| {
            if progress.records >= *limit.lock().unwrap() {
                stop.store(true, Ordering::Relaxed);
            }
        };
        let first = convert(&source, &parts, &stop_soon, &stop).unwrap();
        assert!(first.is_stopped && first.shards < 4, "{first:?}");
        let rest = run(&source, &parts).unwrap();
        assert_eq!((rest.shards + rest.kept_shards, rest.kept_shards), (4, first.shards));
        assert_eq!(files(&once), files(&in_parts), "{to:?}");
        let in_order = Folder::new();
        run(&source, &conversion(to, &in_order)).unwrap();
        assert_ne!(files(&once), files(&in_order), "{to:?}: a seed shuffles");
    }
}

#[test]
fn another_conversion_into_the_same_folder_is_refused() {
    let folder = Folder::new();
    let first = conversion(TargetFormat::Tar, &folder);
    run(&colours(10), &first).unwrap();
    let others = [
        Conversion { shards: 5, ..first.clone() },
        Conversion { to: TargetFormat::TfRecord, ..first.clone() },
        Conversion { shuffle_seed: Some(1), ..first.clone() },
        Conversion { change: ImageChange::Decode { shorter_side: None }, ..first.clone() },
    ];
    for other in others {
        let error = run(&colours(10), &other).unwrap_err().to_string();
        assert!(error.contains("another conversion"), "{error}");
    }
    assert!(run(&colours(11), &first).unwrap_err().to_string().contains("another conversion"));
    assert_eq!(run(&colours(10), &first).unwrap().kept_shards, 4);
    std::fs::remove_file(folder.join("converted/.farandole-conversion.json")).unwrap();
    let error = run(&colours(10), &first).unwrap_err().to_string();
    assert!(error.contains("has files already"), "{error}");
}

#[test]
fn broken_records_are_named_and_left_out_only_if_asked() {
    let folder = Folder::new();
    let source = Colours { broken: Some(7), ..colours(20) };
    let strict = conversion(TargetFormat::Tar, &folder);
    let error = run(&source, &strict).unwrap_err().to_string();
    assert!(error.contains("number 7.ppm") && error.contains("the disk is broken"), "{error}");
    let other = Folder::new();
    let converted =
        run(&source, &Conversion { leave_out_broken: true, ..conversion(TargetFormat::Tar, &other) }).unwrap();
    assert_eq!((converted.records, converted.left_out.len()), (19, 1));
    assert!(converted.left_out[0].contains("number 7.ppm"), "{:?}", converted.left_out);
}

#[test]
fn images_are_reduced_once_and_small_ones_stay() {
    let (large, small) = (Colours { side: 40, ..colours(6) }, colours(6));
    let change = ImageChange::Reduce { shorter_side: 10, quality: 95 };
    for (source, side) in [(&large, 10), (&small, 6)] {
        let folder = Folder::new();
        run(source, &Conversion { change, shards: 1, ..conversion(TargetFormat::Tar, &folder) }).unwrap();
        let storage = Arc::new(LocalFiles::new(folder.join("converted")));
        let back = source::open(storage, "", &RecordsConfig::default()).unwrap();
        let mut encoded = Vec::new();
        back.read(5, &mut encoded).unwrap();
        let image = crate::decode::decode(&encoded, 3).unwrap();
        assert_eq!((image.height, image.width), (side, side));
        assert_eq!(encoded.starts_with(&[0xff, 0xd8]), side == 10);
        assert!(image.bytes.iter().all(|byte| byte.abs_diff(5) <= 3), "{:?}", &image.bytes[..6]);
    }
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let folder = Folder::new();
    // A path through a file: nothing can be written below it.
    std::fs::write(folder.join("file"), "").unwrap();
    let source = colours(10);
    let nowhere = Conversion { folder: folder.join("file/converted"), ..conversion(TargetFormat::Tar, &folder) };
    let error = run(&source, &nowhere).unwrap_err().to_string();
    assert!(error.contains("file/converted"), "{error}");
}

#[test]
fn a_class_name_does_not_lead_out_of_the_folder() {
    for name in ["..", ".", "", ".hidden", "nul\0", &"a".repeat(300)] {
        let folder = Folder::new();
        let mut records = colours(6);
        records.names[1] = name.to_owned();
        let error = run(&records, &conversion(TargetFormat::Folder, &folder.join("jail"))).unwrap_err().0;
        assert!(error.contains("00000001-number-1.ppm: its class ") && error.contains("rename it"), "{error}");
        let outside = std::fs::read_dir(folder.join("jail")).unwrap().count();
        assert_eq!(outside, 1, "{name}: only the folder of the output");
    }
    // Separators become a part of the name.
    let folder = Folder::new();
    let mut records = colours(6);
    records.names[1] = "../../bee".to_owned();
    let error = run(&records, &conversion(TargetFormat::Folder, &folder.join("out"))).unwrap_err().0;
    assert!(error.contains("its class"), "{error}");
    records.names[1] = "/bee".to_owned();
    run(&records, &conversion(TargetFormat::Folder, &folder.join("other"))).unwrap();
    assert!(folder.join("other/converted/_bee").is_dir());
}

#[test]
fn a_link_in_the_folder_does_not_lead_images_elsewhere() {
    let folder = Folder::new();
    for name in ["out", "elsewhere"] {
        std::fs::create_dir(folder.join(name)).unwrap();
    }
    std::os::unix::fs::symlink(folder.join("elsewhere"), folder.join("out/bee")).unwrap();
    let records = colours(6);
    let mut writer = FolderWriter::create(&folder.join("out"), &records.names).unwrap();
    let mut encoded = Vec::new();
    let label = records.read(1, &mut encoded).unwrap();
    let error = writer.write(&NewRecord { name: "1.ppm", encoded: &encoded, label: &label }).unwrap_err().0;
    assert!(error.contains("out/bee/1.ppm cannot be written"), "{error}");
    assert_eq!(std::fs::read_dir(folder.join("elsewhere")).unwrap().count(), 0);
}

#[test]
fn names_of_records_that_are_too_long_for_a_file_are_shortened() {
    let name = shard::plain_name(&format!("a/{}.ppm", "é".repeat(500)), 7);
    assert!(name.len() < 200 && name.starts_with("00000007-é") && name.ends_with("é.ppm"), "{name}");
}

#[test]
fn what_cannot_be_is_refused() {
    let folder = Folder::new();
    let refused = |records: &dyn Records, conversion: Conversion| run(records, &conversion).unwrap_err().to_string();
    let plain = conversion(TargetFormat::Tar, &folder);
    assert!(refused(&colours(0), plain.clone()).contains("no records"));
    assert!(refused(&colours(3), plain.clone()).contains("3 records cannot be divided into 4 shards"));
    let odd = ImageChange::Reduce { shorter_side: 10, quality: 0 };
    assert!(refused(&colours(9), Conversion { change: odd, ..plain.clone() }).contains("quality of 0"));
    let none = ImageChange::Decode { shorter_side: Some(0) };
    assert!(refused(&colours(9), Conversion { change: none, ..plain }).contains("nothing"));
    assert!(!folder.join("converted").exists());
}
