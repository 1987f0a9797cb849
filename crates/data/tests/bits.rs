//! One data set in every format and every storage: the same seed gives the same batches, to the byte.
//!
//! Images lie in a folder, are converted to tar, TFRecord, Parquet and another folder, and their pixels to arrays of
//! NumPy. Each is read from local files, from a server of S3 and from a web server, with and without a cache, by 1 to 8
//! workers, by 1 to 4 ranks, and from the middle of an epoch on.
//!
//! A web server lists nothing, so what is read from there are files that are named one by one.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../storage/tests/harness/mod.rs"]
mod harness;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use farandole_data::convert::{Conversion, ImageChange, TargetFormat, convert};
use farandole_data::decode;
use farandole_data::format::npy;
use farandole_data::loader::{Content, Images, Input, Loader, LoaderConfig, Mixing, Pixels};
use farandole_data::sample::{Label, Labels};
use farandole_data::source::{self, IndexPlace, Records, RecordsConfig};
use farandole_data::storage::{self, StorageOptions};
use farandole_data::transform::{Element, Layout, Step};
use farandole_testing::Folder;
use harness::{Manner, Server, quick};

const CLASSES: [&str; 3] = ["ant", "bee", "cat"];
const SAMPLES: usize = 29;
const GLOBAL_BATCH: usize = 8;

/// What is kept as shards. Arrays have pixels, and are no images of any size.
const FORMATS: [(&str, TargetFormat); 4] = [
    ("tar", TargetFormat::Tar),
    ("tfrecord", TargetFormat::TfRecord),
    ("parquet", TargetFormat::Parquet),
    ("folder", TargetFormat::Folder),
];

/// A batch of all ranks.
#[derive(Clone, Debug, PartialEq)]
struct Plain {
    bytes: Vec<u8>,
    /// The class of each image, that of the one that was mixed in, and the bits of its own share.
    labels: Vec<(u32, u32, u32)>,
    indices: Vec<usize>,
}

/// What is done to images.
#[derive(Clone, Copy, Debug)]
enum Changes {
    /// For bare pixels, too: a JPEG is decoded as a whole.
    Crop,
    /// Parts of a JPEG are decoded, at a fraction of its size.
    ResizedCrop,
}

/// JPEG images of one size in class folders.
fn write_images(folder: &Path) {
    for number in 0..SAMPLES {
        let class = folder.join(CLASSES[number * CLASSES.len() / SAMPLES]);
        std::fs::create_dir_all(&class).unwrap();
        let (width, height) = (56, 48);
        let pixel = |at: usize| [(at % width * 4 + number) as u8, (at / width * 5) as u8, (number * 8) as u8];
        let pixels: Vec<u8> = (0..width * height).flat_map(pixel).collect();
        let mut jpeg = Vec::new();
        let encoder = jpeg_encoder::Encoder::new(&mut jpeg, 90);
        encoder.encode(&pixels, width as u16, height as u16, jpeg_encoder::ColorType::Rgb).unwrap();
        std::fs::write(class.join(format!("{number:03}.jpg")), jpeg).unwrap();
    }
}

/// An archive whose members are not compressed.
fn zip(members: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let (mut all, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in members {
        let mut about = vec![20, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        about.extend(crc_fast::crc32_iso_hdlc(data).to_le_bytes());
        about.extend((data.len() as u32).to_le_bytes().repeat(2));
        about.extend((name.len() as u16).to_le_bytes());
        about.extend([0, 0]);
        directory.extend([b"PK\x01\x02\x14\x00".as_slice(), &about, &[0; 10]].concat());
        directory.extend((all.len() as u32).to_le_bytes());
        directory.extend(name.as_bytes());
        all.extend([b"PK\x03\x04".as_slice(), &about, name.as_bytes(), data].concat());
    }
    let count = (members.len() as u16).to_le_bytes().repeat(2);
    let place = [(directory.len() as u32).to_le_bytes(), (all.len() as u32).to_le_bytes()].concat();
    [all, directory, [b"PK\x05\x06\0\0\0\0".as_slice(), &count, &place, &[0; 2]].concat()].concat()
}

/// The pixels of all records, as arrays: a file of images beside one of labels, and both in an archive.
fn write_arrays(records: &dyn Records, folder: &Path) {
    let (mut pixels, mut labels, mut shape) = (Vec::new(), Vec::new(), [0; 4]);
    for index in 0..records.len() {
        let mut encoded = Vec::new();
        let Label::Class(class) = records.read(index, &mut encoded).unwrap() else { panic!("images have a class") };
        let image = decode::decode(&encoded, 3).unwrap();
        shape = [records.len(), image.height, image.width, 3].map(|side| side as u64);
        pixels.extend(image.bytes);
        labels.extend(i64::from(class).to_le_bytes());
    }
    let (images, labels) = (npy::encode("|u1", &shape, &pixels), npy::encode("<i8", &shape[..1], &labels));
    std::fs::create_dir_all(folder.join("npy")).unwrap();
    std::fs::write(folder.join("npy/images.npy"), &images).unwrap();
    std::fs::write(folder.join("npy/labels.npy"), &labels).unwrap();
    std::fs::create_dir_all(folder.join("npz")).unwrap();
    let archive = zip(&[("images.npy", images), ("labels.npy", labels)]);
    std::fs::write(folder.join("npz/all.npz"), archive).unwrap();
}

/// All formats, each in a folder of its name, as several shards where it has any; the source is in `images`.
fn write_all(folder: &Path, shards: usize) {
    write_images(&folder.join("images"));
    let source = open(&folder.join("images").display().to_string(), &quick());
    for (name, to) in FORMATS {
        let conversion = Conversion {
            to,
            folder: folder.join(name),
            shards,
            change: ImageChange::Nothing,
            shuffle_seed: None,
            threads: 2,
            leave_out_broken: false,
        };
        convert(&*source, &conversion, &|_| {}, &AtomicBool::new(false)).unwrap();
    }
    write_arrays(&*source, folder);
}

fn open(url: &str, options: &StorageOptions) -> Arc<dyn Records> {
    let (storage, path) = storage::open(url, options).unwrap();
    let config = RecordsConfig { index: IndexPlace::Nowhere, ..RecordsConfig::default() };
    source::open(storage, &path, &config).unwrap()
}

/// The batches of all ranks of an epoch, side by side, from a step on.
fn batches(
    records: &Arc<dyn Records>,
    changes: Changes,
    workers: usize,
    ranks: usize,
    first_step: usize,
) -> Vec<Plain> {
    let first = match changes {
        Changes::Crop => Step::RandomCrop { height: 24, width: 24, padding: 2 },
        Changes::ResizedCrop => Step::random_resized_crop(16),
    };
    let steps = vec![first, Step::RandomHorizontalFlip { p: 0.5 }, Step::normalize_imagenet()];
    let pixels = Pixels::new(steps, 3, Element::F32, Layout::Nchw).unwrap();
    let mut all: Vec<Plain> = Vec::new();
    for rank in 0..ranks {
        let config = LoaderConfig {
            rank,
            world_size: ranks,
            batch: GLOBAL_BATCH / ranks,
            workers,
            seed: 11,
            mixing: Mixing { mixup_alpha: 0.4, cutmix_alpha: 0.0 },
            ..LoaderConfig::default()
        };
        let input = Input::Records { records: Arc::clone(records), content: Content::Images(pixels.clone()) };
        let loader = Loader::new(input, config).unwrap();
        for (place, batch) in loader.epoch(3, first_step).enumerate() {
            let batch = batch.unwrap();
            let Images::Pixels(memory) = &batch.images else { panic!("images were asked for") };
            let Labels::Mixed { first, second, share } = batch.labels else { panic!("images are mixed") };
            let labels = first.into_iter().zip(second).zip(share);
            let labels = labels.map(|((first, second), share)| (first, second, share.to_bits())).collect();
            let part = Plain { bytes: memory.to_vec(), labels, indices: batch.indices };
            match all.get_mut(place) {
                None => all.push(part),
                Some(whole) => {
                    whole.bytes.extend(part.bytes);
                    whole.labels.extend(part.labels);
                    whole.indices.extend(part.indices);
                }
            }
        }
    }
    all
}

/// Compares the batches of some records with what is expected, for any number of workers and ranks and from any step.
fn compare(what: &str, records: &Arc<dyn Records>, changes: Changes, expected: &[Plain]) {
    assert_eq!(records.len(), SAMPLES, "{what}");
    for workers in [1, 2, 4, 8] {
        assert!(batches(records, changes, workers, 1, 0) == expected, "{what}, {changes:?}: {workers} workers");
    }
    for ranks in [2, 4] {
        assert!(batches(records, changes, 2, ranks, 0) == expected, "{what}, {changes:?}: {ranks} ranks");
    }
    for (first_step, ranks) in [(1, 1), (2, 2), (3, 4)] {
        let rest = batches(records, changes, 2, ranks, first_step);
        assert!(rest == expected[first_step..], "{what}, {changes:?}: {ranks} ranks from step {first_step}");
    }
}

/// Options with a cache in memory alone, with one on the disk as well, or with none.
fn caches(options: &StorageOptions, folder: &Path) -> [(&'static str, StorageOptions); 3] {
    let (mut memory, mut disk) = (options.clone(), options.clone());
    memory.cache.memory_bytes = 16 << 20;
    (memory.cache.block_bytes, disk.cache.block_bytes) = (64 << 10, 64 << 10);
    (disk.cache.memory_bytes, disk.cache.folder) = (1 << 20, Some(folder.to_owned()));
    [("no cache", options.clone()), ("a cache in memory", memory), ("a cache on the disk", disk)]
}

#[test]
fn every_format_gives_the_same_batches_from_local_files() {
    let folder = Folder::new();
    write_all(&folder, 3);
    let source = open(&folder.file("images"), &quick());
    for changes in [Changes::Crop, Changes::ResizedCrop] {
        let expected = batches(&source, changes, 0, 1, 0);
        assert_eq!(expected.len(), SAMPLES.div_ceil(GLOBAL_BATCH));
        compare("images", &source, changes, &expected);
        for (name, _) in FORMATS {
            compare(name, &open(&folder.file(name), &quick()), changes, &expected);
        }
    }
    let expected = batches(&source, Changes::Crop, 0, 1, 0);
    for name in ["npy", "npz"] {
        compare(name, &open(&folder.file(name), &quick()), Changes::Crop, &expected);
    }
}

/// All files below a folder, with their paths from there on.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let storage = storage::LocalFiles::new(folder);
    let listed = storage::Storage::list(&storage, "").unwrap();
    listed.into_iter().map(|object| (object.path.clone(), std::fs::read(folder.join(object.path)).unwrap())).collect()
}

#[test]
fn every_format_gives_the_same_batches_from_s3_with_and_without_a_cache() {
    let folder = Folder::new();
    write_all(&folder, 2);
    let server = Server::start(Manner::S3);
    files(&folder).iter().for_each(|(path, bytes)| server.put(&format!("bucket/{path}"), bytes));
    let expected = batches(&open(&folder.file("images"), &quick()), Changes::Crop, 0, 1, 0);
    let kept = Folder::new();
    for (cache, options) in caches(&server.options(), &kept) {
        for name in ["images", "tar", "tfrecord", "parquet", "npy", "npz"] {
            let records = open(&format!("s3://bucket/{name}"), &options);
            compare(&format!("{name} in S3 with {cache}"), &records, Changes::Crop, &expected);
        }
    }
}

#[test]
fn every_file_gives_the_same_batches_from_a_web_server_with_and_without_a_cache() {
    let folder = Folder::new();
    write_all(&folder, 2);
    let server = Server::start(Manner::Web);
    files(&folder).iter().for_each(|(path, bytes)| server.put(path, bytes));
    let expected = batches(&open(&folder.file("images"), &quick()), Changes::Crop, 0, 1, 0);
    let kept = Folder::new();
    for (cache, options) in caches(&quick(), &kept) {
        for name in ["tar", "tfrecord", "parquet", "npz"] {
            // One file by its name, and several by a pattern.
            let file =
                if name == "npz" { "all.npz".to_owned() } else { format!("shard-{{00000..00001}}-of-00002.{name}") };
            let records = open(&format!("http://{}/{name}/{file}", server.address), &options);
            compare(&format!("{name} from a web server with {cache}"), &records, Changes::Crop, &expected);
        }
    }
}
