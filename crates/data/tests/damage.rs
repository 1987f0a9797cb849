//! Data that is damaged after it was opened, as disks and half-copied files have it: what is broken is named with its
//! file and place, ends an epoch unless it may be replaced, and is counted where it may.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use farandole_data::SampleOrder;
use farandole_data::convert::{Conversion, ImageChange, TargetFormat, convert};
use farandole_data::loader::{Broken, Content, Input, Loader, LoaderConfig, Pixels};
use farandole_data::source::{self, Records, RecordsConfig};
use farandole_data::storage::LocalFiles;
use farandole_data::transform::{Element, Layout, Step};
use farandole_testing::Folder;

const SAMPLES: usize = 8;

/// A JPEG with noise in it, so that no part of its bytes can be missed.
fn jpeg(number: usize) -> Vec<u8> {
    let side = 24;
    let noise = |at: usize| (at * at * 31 + number * 7919) as u8;
    let mut bytes = Vec::new();
    let pixels: Vec<u8> = (0..side * side * 3).map(noise).collect();
    let encoder = jpeg_encoder::Encoder::new(&mut bytes, 80);
    encoder.encode(&pixels, side as u16, side as u16, jpeg_encoder::ColorType::Rgb).unwrap();
    bytes
}

/// Images in class folders, and as one shard of a format.
fn place(to: TargetFormat) -> (Folder, PathBuf) {
    let folder = Folder::new();
    for number in 0..SAMPLES {
        let class = folder.join("images").join(["ant", "bee"][number * 2 / SAMPLES]);
        fs::create_dir_all(&class).unwrap();
        fs::write(class.join(format!("{number}.jpg")), jpeg(number)).unwrap();
    }
    if to == TargetFormat::Folder {
        let images = folder.join("images");
        return (folder, images);
    }
    let conversion = Conversion {
        to,
        folder: folder.join("shards"),
        shards: 1,
        change: ImageChange::Nothing,
        shuffle_seed: None,
        threads: 1,
        leave_out_broken: false,
    };
    convert(&*open(&folder.join("images")), &conversion, &|_| {}, &AtomicBool::new(false)).unwrap();
    let shard = folder.join(format!("shards/shard-00000-of-00001.{}", to.ending()));
    (folder, shard)
}

fn open(path: &Path) -> Arc<dyn Records> {
    let (folder, name) =
        if path.is_dir() { (path, "") } else { (path.parent().unwrap(), path.file_name().unwrap().to_str().unwrap()) };
    source::open(Arc::new(LocalFiles::new(folder)), name, &RecordsConfig::default()).unwrap()
}

fn open_loader(records: &Arc<dyn Records>, broken: Broken) -> Loader {
    let pixels = Pixels::new(vec![Step::CenterCrop { height: 24, width: 24 }], 3, Element::U8, Layout::Nchw).unwrap();
    let order = SampleOrder::InOrder;
    let config = LoaderConfig { batch: 4, workers: 2, order, broken, ..LoaderConfig::default() };
    let input = Input::Records { records: Arc::clone(records), content: Content::Images(pixels) };
    Loader::new(input, config).unwrap()
}

/// What is said of the sample 5 of records that were damaged after they were opened.
fn check(what: &str, records: &Arc<dyn Records>, words: &[&str]) {
    let error = open_loader(records, Broken::Refused).epoch(0, 0).find_map(Result::err).unwrap().to_string();
    let name = records.name(5);
    assert!(error.starts_with(&name) && words.iter().all(|word| error.contains(word)), "{what}: {error}");
    let loader = open_loader(records, Broken::Replaced);
    let batches: Vec<_> = loader.epoch(0, 0).map(Result::unwrap).collect();
    assert_eq!(batches[1].indices, [4, 6, 6, 7], "{what}: the next one is taken in its stead");
    assert_eq!((batches[0].replaced, batches[1].replaced, loader.stats().replaced), (0, 1, 1), "{what}");
    let notices = loader.take_notices();
    assert!(notices.len() == 1 && notices[0].contains(&name), "{what}: {notices:?}");
}

/// Where in a file an image lies.
fn find(bytes: &[u8], image: &[u8]) -> usize {
    bytes.windows(image.len()).position(|window| window == image).unwrap()
}

#[test]
fn a_broken_image_is_named_replaced_if_asked_and_counted() {
    for to in [TargetFormat::Tar, TargetFormat::TfRecord, TargetFormat::Parquet] {
        let (_folder, shard) = place(to);
        let records = open(&shard);
        let mut bytes = fs::read(&shard).unwrap();
        let begin = find(&bytes, &jpeg(5));
        // The markers at its beginning: nothing can be decoded.
        bytes[begin + 2..begin + 12].fill(0xff);
        fs::write(&shard, &bytes).unwrap();
        let path = shard.display().to_string();
        match to {
            // A checksum tells before anything is decoded.
            TargetFormat::TfRecord => check("TFRecord", &records, &[&path, "at byte", "the checksum of a record"]),
            TargetFormat::Tar => check("tar", &records, &[&path, "at byte", "JPEG"]),
            _ => check("Parquet", &records, &[&path, "record 5", "JPEG"]),
        }
    }
    let (folder, images) = place(TargetFormat::Folder);
    let records = open(&images);
    fs::write(folder.join("images/bee/5.jpg"), b"no image").unwrap();
    check("folder", &records, &["bee/5.jpg"]);
}

#[test]
fn a_shard_that_is_cut_after_it_was_opened_is_named_with_the_place() {
    for to in [TargetFormat::Tar, TargetFormat::TfRecord] {
        let (_folder, shard) = place(to);
        let records = open(&shard);
        let bytes = fs::read(&shard).unwrap();
        fs::write(&shard, &bytes[..find(&bytes, &jpeg(5)) + 10]).unwrap();
        let error = open_loader(&records, Broken::Refused).epoch(0, 0).find_map(Result::err).unwrap().to_string();
        let words = [records.name(5), shard.display().to_string(), "at byte".to_owned(), "ends too early".to_owned()];
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
        // All behind it are gone, so the first ones stand for them, and are counted as often.
        let loader = open_loader(&records, Broken::Replaced);
        let replaced: usize = loader.epoch(0, 0).map(|batch| batch.unwrap().replaced).sum();
        assert_eq!((replaced, loader.stats().replaced), (3, 3));
        // Whoever opens it anew is told at once.
        let storage = Arc::new(LocalFiles::new(shard.parent().unwrap()));
        let error = source::open(storage, shard.file_name().unwrap().to_str().unwrap(), &RecordsConfig::default());
        let error = error.err().unwrap().to_string();
        assert!(error.contains(&shard.display().to_string()) && error.contains("at byte"), "{error}");
    }
}

#[test]
fn a_file_that_is_gone_is_named() {
    let (folder, images) = place(TargetFormat::Folder);
    let records = open(&images);
    fs::remove_file(folder.join("images/bee/5.jpg")).unwrap();
    check("folder", &records, &["bee/5.jpg", "No such file"]);
}
