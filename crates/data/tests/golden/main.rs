//! Batches are what they were: hashes of the batches of many configurations, kept in `hashes.txt`.
//!
//! The table covers the data sets of the trainer and the records of front ends, in every format, with augmentation,
//! mixing, every order, several ranks, epochs, and samples that cannot be read. A change of the table changes what a
//! seed means to users and needs a line in the change log. Drawing mixing shares and turning images call `ln`, `exp`
//! and `sin_cos` of the platform; the hashes are those of glibc.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod place;

use std::fmt::Write as _;
use std::sync::Arc;

use farandole_data::format::tiff::{Patches, PatchesConfig};
use farandole_data::loader::{Broken, Content, Images, Input, Loader, LoaderConfig, Mixing, Pixels};
use farandole_data::sample::{ImageShape, Labels, Split};
use farandole_data::source::image_folder::{self, FolderConfig, Meaning};
use farandole_data::source::{self, IndexPlace, Records, RecordsConfig};
use farandole_data::synthetic::{self, Sizes};
use farandole_data::transform::{Element, Layout, steps};
use farandole_data::{DataSet, SampleOrder};
use farandole_testing::Folder;

const HASHES: &str = include_str!("hashes.txt");

/// What was hashed, and the hash, in the order of the table.
#[derive(Default)]
struct Table(String);

impl Table {
    fn add(&mut self, name: &str, hasher: &blake3::Hasher) {
        let hash = hasher.finalize().to_hex();
        writeln!(self.0, "{} {name}", &hash[..16]).unwrap();
    }

    /// Compares the rows with the kept ones whose names begin alike.
    fn check(&self, kind: &str) {
        let kept: String = HASHES.split_inclusive('\n').filter(|line| line[17..].starts_with(kind)).collect();
        assert!(self.0 == kept, "batches have changed; rows are now\n{}", self.0);
    }
}

fn numbers(hasher: &mut blake3::Hasher, values: &[usize]) {
    values.iter().for_each(|value| {
        hasher.update(&(*value as u64).to_le_bytes());
    });
}

fn floats(hasher: &mut blake3::Hasher, values: &[f32]) {
    numbers(hasher, &[values.len()]);
    values.iter().for_each(|value| {
        hasher.update(&value.to_le_bytes());
    });
}

fn classes(hasher: &mut blake3::Hasher, values: &[u32]) {
    numbers(hasher, &values.iter().map(|class| *class as usize).collect::<Vec<_>>());
}

fn labels(hasher: &mut blake3::Hasher, labels: &Labels) {
    match labels {
        Labels::Classes(values) => classes(hasher, values),
        Labels::Mixed { first, second, share } => {
            classes(hasher, first);
            classes(hasher, second);
            floats(hasher, share);
        }
        Labels::Labels(values) | Labels::Values(values) | Labels::Images(values) => floats(hasher, values),
    }
}

/// Ranks and samples of all of them in a step: one rank, and three with shares that are uneven and cut pairs.
const WORLDS: [(usize, usize); 2] = [(1, 8), (3, 8)];

/// The batches that the trainer gets of a data set.
fn trainer(table: &mut Table, name: &str, data: &Arc<dyn DataSet>, augment: &str) {
    for (split, word) in [(Split::Train, "train"), (Split::Test, "test")] {
        for (world_size, global_batch) in WORLDS {
            let mut hasher = blake3::Hasher::new();
            for rank in 0..world_size {
                let config = LoaderConfig {
                    rank,
                    world_size,
                    batch: 1,
                    global_batch: Some(global_batch),
                    workers: rank,
                    seed: 5,
                    order: if split == Split::Train { SampleOrder::Shuffled } else { SampleOrder::InOrder },
                    broken: if split == Split::Train { Broken::Replaced } else { Broken::LeftOut },
                    ..LoaderConfig::default()
                };
                let input = Input::Samples { data: Arc::clone(data), split, augment: augment.parse().unwrap() };
                let loader = Loader::new(input, config).unwrap();
                for (epoch, first_step) in [(0, 0), (3, 1)] {
                    for batch in loader.epoch(epoch, first_step) {
                        let batch = batch.unwrap().into_samples();
                        numbers(&mut hasher, &[batch.count, batch.global_count, batch.replaced]);
                        floats(&mut hasher, &batch.images);
                        labels(&mut hasher, &batch.labels);
                    }
                }
            }
            table.add(&format!("trainer {name} {augment} {word} of {world_size}"), &hasher);
        }
    }
}

/// How a front end asks for batches.
#[derive(Clone)]
struct Asked {
    name: &'static str,
    steps: &'static str,
    element: Element,
    layout: Layout,
    config: LoaderConfig,
}

impl Asked {
    fn new(name: &'static str, steps: &'static str, element: Element, layout: Layout) -> Asked {
        Asked { name, steps, element, layout, config: LoaderConfig { seed: 7, ..LoaderConfig::default() } }
    }

    fn mixed(self, mixup_alpha: f32, cutmix_alpha: f32) -> Asked {
        Asked { config: LoaderConfig { mixing: Mixing { mixup_alpha, cutmix_alpha }, ..self.config }, ..self }
    }
}

fn asked() -> Vec<Asked> {
    let (nchw, nhwc) = (Layout::Nchw, Layout::Nhwc);
    let view = "resize=18,center-crop=16";
    let mut all = vec![
        Asked::new("view", view, Element::U8, nhwc),
        Asked::new(
            "augmented",
            "random-resized-crop=12,flip,color-jitter=0.4:0.4:0.4:0.1,erase=0.5:fill=noise,normalize=imagenet",
            Element::F32,
            nchw,
        ),
        Asked::new("turned", "resize=16x16,rotate=20,vertical-flip,normalize=imagenet", Element::BF16, nhwc),
        Asked::new("mixup", "random-resized-crop=12,flip,normalize=imagenet", Element::F32, nchw).mixed(0.4, 0.0),
        Asked::new("cutmix", "random-crop=14:padding=2,flip", Element::U8, nhwc).mixed(0.0, 1.0),
        Asked::new("both", view, Element::F16, nchw).mixed(0.4, 1.0),
    ];
    all[0].config.drop_last = true;
    all[1].config.order = SampleOrder::ShuffledNearby { block: 4, window: 2 };
    all[2].config.order = SampleOrder::InOrder;
    all
}

/// The batches that front ends get of records.
fn front_ends(table: &mut Table, name: &str, records: &Arc<dyn Records>, asked: &[Asked], broken: Broken) {
    for Asked { name: what, steps: words, element, layout, config } in asked {
        let pixels = Pixels::new(steps(words).unwrap(), 3, *element, *layout).unwrap();
        hash_records(table, &format!("front-end {name} {what}"), records, Content::Images(pixels), config, broken);
    }
    if broken == Broken::Refused {
        let config = LoaderConfig { seed: 7, ..LoaderConfig::default() };
        hash_records(table, &format!("front-end {name} encoded"), records, Content::Encoded, &config, broken);
    }
}

fn hash_records(
    table: &mut Table,
    name: &str,
    records: &Arc<dyn Records>,
    content: Content,
    config: &LoaderConfig,
    broken: Broken,
) {
    for (world_size, global_batch) in WORLDS {
        let mut hasher = blake3::Hasher::new();
        for rank in 0..world_size {
            let global_batch = Some(global_batch);
            let config = LoaderConfig { rank, world_size, global_batch, workers: rank, broken, ..config.clone() };
            let input = Input::Records { records: Arc::clone(records), content: content.clone() };
            let loader = Loader::new(input, config).unwrap();
            for (epoch, first_step) in [(0, 0), (3, 1)] {
                for batch in loader.epoch(epoch, first_step) {
                    let batch = batch.unwrap();
                    numbers(&mut hasher, &[batch.step, batch.count, batch.global_count, batch.replaced]);
                    numbers(&mut hasher, &batch.indices);
                    labels(&mut hasher, &batch.labels);
                    match &batch.images {
                        Images::Pixels(memory) => {
                            numbers(&mut hasher, &[memory.len()]);
                            hasher.update(memory);
                        }
                        Images::Encoded(encoded) => encoded.iter().for_each(|bytes| {
                            numbers(&mut hasher, &[bytes.len()]);
                            hasher.update(bytes);
                        }),
                        Images::Floats(_) => panic!("records are no floats before they are decoded"),
                    }
                }
            }
        }
        table.add(&format!("{name} of {world_size}"), &hasher);
    }
}

fn opened(folder: &Folder, name: &str) -> Arc<dyn Records> {
    let (storage, path) = source::local(&folder.file(name));
    let config = RecordsConfig { index: IndexPlace::Nowhere, ..RecordsConfig::default() };
    source::open(storage, &path, &config).unwrap()
}

fn opened_data_set(folder: &Folder, name: &str, config: &FolderConfig) -> Arc<dyn DataSet> {
    let (storage, path) = source::local(&folder.file(name));
    let records = RecordsConfig { index: IndexPlace::Nowhere, ..RecordsConfig::default() };
    Arc::new(source::open_data_set(storage, &path, &records, config).unwrap())
}

#[test]
fn generated_samples_are_what_they_were() {
    let sizes = Sizes { train: 21, test: 5 };
    let mut table = Table::default();
    let sets: [(&str, Arc<dyn DataSet>, &[&str]); 5] = [
        ("cifar-like", Arc::new(synthetic::cifar_like(3, sizes)), &["none", "flip,crop=4", "flip,crop=4,mixup=0.3"]),
        ("imagenet-like", Arc::new(synthetic::imagenet_like(3, sizes, 20, 7).unwrap()), &["flip,rotate=10"]),
        ("bigearthnet-like", Arc::new(synthetic::bigearthnet_like(3, sizes, 12).unwrap()), &["flip,turn,mixup"]),
        ("faces-like", Arc::new(synthetic::faces_like(3, sizes, 16).unwrap()), &["flip,rotate=5,mixup=1"]),
        ("pairs-like", Arc::new(synthetic::pairs_like(3, sizes, 8, 2).unwrap()), &["none", "flip,crop=1,turn,mixup"]),
    ];
    for (name, data, augments) in &sets {
        augments.iter().for_each(|augment| trainer(&mut table, &format!("generated {name}"), data, augment));
    }
    table.check("trainer generated ");
}

#[test]
fn samples_of_files_are_what_they_were_to_the_trainer() {
    let folder = place::formats();
    let mut table = Table::default();
    let shape = ImageShape { bands: 3, height: 12, width: 12 };
    let plain = FolderConfig { seed: 2, ..FolderConfig::new(shape) };
    let pairs = FolderConfig {
        meaning: Meaning::Pairs { scale: 2 },
        ..FolderConfig::new(ImageShape { bands: 3, height: 6, width: 7 })
    };
    let grey = FolderConfig { train: Some(13), test: Some(3), ..FolderConfig::new(ImageShape { bands: 1, ..shape }) };
    let local = |name: &str, config: &FolderConfig| -> Arc<dyn DataSet> {
        Arc::new(image_folder::open(&folder.join(name), config).unwrap())
    };
    let mut add = |name: &str, data: Arc<dyn DataSet>| {
        ["none", "flip,crop=2,rotate=8,mixup=0.5"].iter().for_each(|words| trainer(&mut table, name, &data, words));
    };
    add("file folder", local("images", &plain));
    add("file folder grey some", local("images", &grey));
    add("file folder pairs", local("images", &pairs));
    add("file folder table of classes", local("table", &plain));
    add("file folder table of numbers", local("ages", &plain));
    add("file folder table of labels", local("labels", &plain));
    add("file folder with broken images", local("broken", &plain));
    add("file folder as records", opened_data_set(&folder, "images", &plain));
    add("file table as records", opened_data_set(&folder, "labels", &plain));
    for format in ["tar", "tfrecord", "parquet", "npy", "floats"] {
        add(&format!("file {format}"), opened_data_set(&folder, format, &plain));
        add(&format!("file {format} pairs"), opened_data_set(&folder, format, &pairs));
    }
    let (storage, path) = source::local(&folder.file("patches"));
    let config = PatchesConfig { side: 14, seed: 1, test_share: 0.3, ..PatchesConfig::default() };
    add("file patches", Arc::new(Patches::open(storage, &path, &config).unwrap()));
    table.check("trainer file ");
}

#[test]
fn records_are_what_they_were_to_front_ends() {
    let folder = place::formats();
    let mut table = Table::default();
    let asked = asked();
    for name in ["images", "tar", "tfrecord", "parquet", "npy", "floats", "ages", "labels"] {
        front_ends(&mut table, name, &opened(&folder, name), &asked, Broken::Refused);
    }
    front_ends(&mut table, "broken", &opened(&folder, "broken"), &asked, Broken::Replaced);
    table.check("front-end ");
}
