//! Data sets by name: those that are generated, folders, shards, patches of satellites, and what a URL names.

use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::job::TrainJob;
use crate::model::Architecture;
use farandole_data::format::tiff::{self, Patches, PatchesConfig};
use farandole_data::sample::ImageShape;
use farandole_data::source::image_folder::{self, FolderConfig, MAX_LABELS, Meaning};
use farandole_data::source::{self, Held, RecordsConfig};
use farandole_data::storage::{self, Storage, StorageOptions};
use farandole_data::synthetic::{self, Sizes};
use farandole_data::{Augment, DataSet};

/// The names of generated data sets.
pub const GENERATED: [&str; 5] = ["cifar-like", "imagenet-like", "bigearthnet-like", "faces-like", "pairs-like"];

/// Samples of a generated data set where nothing is said: enough for a small network to learn from in a minute or two.
const SIZES: Sizes = Sizes { train: 10_240, test: 1024 };

/// Classes of images like those of ImageNet, where nothing is said.
const CLASSES: usize = 1000;

/// How many times larger the images of pairs become, where nothing is said.
const SCALE: usize = 2;

/// Rows and columns of the smaller image of a pair, where nothing is said: what EDSR was published with.
const PAIR_SIDE: usize = 48;

/// Opens what the job is to learn from, with images as large as the architecture was published with unless the job says
/// something else.
///
/// # Errors
/// If there is no such data set, or it cannot be as the job wants it.
pub fn open(job: &TrainJob, architecture: Architecture) -> Result<Arc<dyn DataSet>> {
    let choice = &job.data;
    let sizes = Sizes { train: choice.samples.unwrap_or(SIZES.train), test: choice.test_samples.unwrap_or(SIZES.test) };
    if choice.samples == Some(0) {
        return Err(Error::TrainJob("--samples 0: there is nothing to learn from".to_owned()));
    }
    if let Some(classes) = choice.classes.filter(|classes| !(1..=MAX_LABELS).contains(classes)) {
        return Err(Error::TrainJob(format!("--classes {classes}: 1 to {MAX_LABELS}")));
    }
    let fixed = ["cifar-like", "bigearthnet-like", "faces-like", "pairs-like"].contains(&choice.name.as_str());
    if let Some(classes) = choice.classes.filter(|_| fixed) {
        let name = &choice.name;
        return Err(Error::TrainJob(format!(
            "--classes {classes}: the number cannot be chosen for {name}, only for imagenet-like and for tables of labels"
        )));
    }
    let (seed, classes) = (job.seed, choice.classes.unwrap_or(CLASSES));
    let model_side = architecture.default_image_size();
    let side = |usual: usize| choice.image_size.unwrap_or(usual);
    let made = match choice.name.as_str() {
        "cifar-like" => {
            if choice.image_size.is_some_and(|side| side != 32) {
                return Err(Error::TrainJob(
                    "--image-size: cifar-like images are 32 x 32; take imagenet-like for others".to_owned(),
                ));
            }
            Ok(synthetic::cifar_like(seed, sizes))
        }
        "imagenet-like" => synthetic::imagenet_like(seed, sizes, side(model_side), classes),
        "bigearthnet-like" => synthetic::bigearthnet_like(seed, sizes, side(120)),
        "faces-like" => synthetic::faces_like(seed, sizes, side(model_side)),
        "pairs-like" => synthetic::pairs_like(seed, sizes, side(PAIR_SIDE), SCALE),
        path => return stored(path, job, architecture),
    };
    made.map(|data| Arc::new(data) as Arc<dyn DataSet>)
        .map_err(|error| Error::Data(format!("{}: {error}", choice.name)))
}

/// Whether the data of a job lies in a store, and not on this machine.
pub(crate) fn is_remote(job: &TrainJob) -> bool {
    is_url(&job.data.name)
}

/// Whether there is something at a job's URL that can be opened.
///
/// # Errors
/// With what keeps it from being found.
pub(crate) fn look_for(job: &TrainJob) -> Result<()> {
    let name = &job.data.name;
    let (storage, within) = remote(name)?;
    let held = source::look_for(&storage, &within);
    held.map(drop).map_err(|error| Error::Data(named(name, &error.to_string())))
}

fn is_url(name: &str) -> bool {
    name.contains("://")
}

/// A folder of images, or shards: a file, a pattern of files, or a folder that holds them.
fn stored(name: &str, job: &TrainJob, architecture: Architecture) -> Result<Arc<dyn DataSet>> {
    let path = Path::new(name);
    let is_url = is_url(name);
    let is_sharded = is_url || source::is_sharded(name);
    if !path.is_dir() && !is_sharded {
        let names = GENERATED.join(", ");
        let what = if path.exists() { "that is no folder and no shard" } else { "there is no such folder or file" };
        return Err(Error::Data(format!(
            "--data {name}: {what}, and no generated data set has this name; there are {names}"
        )));
    }
    if !is_sharded && tiff::holds_patches(path) {
        return patches(name, source::local(name), job, architecture);
    }
    let pairs = architecture == Architecture::Edsr;
    let side = job.data.image_size.unwrap_or(if pairs { PAIR_SIDE } else { architecture.default_image_size() });
    let mut config = FolderConfig::new(ImageShape { bands: 3, height: side, width: side });
    if pairs {
        config.meaning = Meaning::Pairs { scale: SCALE };
    }
    config.seed = job.seed;
    config.classes = job.data.classes;
    config.train = job.data.samples;
    config.test = job.data.test_samples;
    let opened = if is_sharded {
        let (storage, within) = if is_url { remote(name)? } else { source::local(name) };
        let data = source::open_data_set(Arc::clone(&storage), &within, &RecordsConfig::default(), &config);
        // Only what holds no records is looked at again: listing a bucket takes time.
        if data.is_err() && is_url && source::look_for(&storage, &within) == Ok(Held::Patches) {
            return patches(name, (storage, within), job, architecture);
        }
        data.map(|data| Arc::new(data) as Arc<dyn DataSet>)
    } else {
        image_folder::open(path, &config).map(|data| Arc::new(data) as Arc<dyn DataSet>)
    };
    opened.map_err(|error| Error::Data(named(name, &error.to_string())))
}

/// An error about a data set, which names it once.
fn named(name: &str, error: &str) -> String {
    if error.starts_with(name) { format!("--data {error}") } else { format!("--data {name}: {error}") }
}

/// Patches of satellites, as BigEarthNet has them. Nothing else has so many bands, so they are no records.
fn patches(
    name: &str,
    (storage, within): (Arc<dyn Storage>, String),
    job: &TrainJob,
    architecture: Architecture,
) -> Result<Arc<dyn DataSet>> {
    let fail = |cause: String| Error::Data(named(name, &cause));
    if architecture == Architecture::Edsr {
        return Err(fail("patches of satellites have labels; EDSR learns to enlarge images of 3 bands".to_owned()));
    }
    let config = PatchesConfig {
        side: job.data.image_size.unwrap_or(tiff::SIDE),
        seed: job.seed,
        train: job.data.samples,
        test: job.data.test_samples,
        ..PatchesConfig::default()
    };
    let data = Patches::open(storage, &within, &config).map_err(|error| fail(error.to_string()))?;
    let labels = data.class_names().len();
    if let Some(classes) = job.data.classes.filter(|classes| *classes != labels) {
        return Err(fail(format!("--classes {classes}: the patches have {labels} labels")));
    }
    Ok(Arc::new(data))
}

/// What a URL is about, as the environment says how to reach it.
fn remote(url: &str) -> Result<(Arc<dyn Storage>, String)> {
    let options = StorageOptions::from_environment().map_err(|wrong| Error::TrainJob(wrong.to_string()))?;
    storage::open(url, &options).map_err(|error| Error::Data(format!("--data {error}")))
}

/// How samples are changed: as the job says, or as is usual for what is learned.
///
/// # Errors
/// If the job's words mean nothing.
pub fn augment(job: &TrainJob, data: &dyn DataSet) -> Result<Augment> {
    match &job.data.augment {
        // Where a shape lies in a generated image is left to chance already, and moving it would push some of it out.
        None if job.data.name == "cifar-like" => Ok(Augment { flip: true, ..Augment::none() }),
        None => Ok(Augment::usual(data.task())),
        Some(words) => words.parse().map_err(|why| Error::TrainJob(format!("--augment {words}: {why}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farandole_data::sample::Split;

    fn job(name: &str) -> TrainJob {
        let mut job = TrainJob::new();
        job.data.name = name.to_owned();
        job
    }

    #[test]
    fn every_generated_data_set_is_found_by_its_name() {
        for name in GENERATED {
            let data = open(&job(name), Architecture::ResNet20).unwrap();
            assert_eq!((data.len(Split::Train), data.len(Split::Test)), (SIZES.train, SIZES.test), "{name}");
        }
    }

    #[test]
    fn classes_are_refused_where_they_would_be_ignored() {
        for (name, classes) in [("cifar-like", 5), ("pairs-like", 2), ("imagenet-like", 0), ("imagenet-like", 1 << 40)]
        {
            let mut odd = job(name);
            odd.data.classes = Some(classes);
            let error = open(&odd, Architecture::ResNet20).err().unwrap().to_string();
            assert!(error.contains(&format!("--classes {classes}")), "{name}: {error}");
        }
    }

    #[test]
    fn shards_are_opened_by_file_by_folder_and_by_pattern() {
        use farandole_data::format::{NewRecord, ShardWriter as _, TarShard};
        use farandole_data::sample::Label;
        let folder = farandole_testing::Folder::new();
        let mut shard = Box::new(TarShard::create(&folder.join("a-0.tar")).unwrap());
        for number in 0..10 {
            // One grey pixel.
            let (encoded, label) = (b"P5\n1 1\n255\n\x80", Label::Class(number % 2));
            shard.write(&NewRecord { name: &format!("{number}"), encoded, label: &label }).unwrap();
        }
        shard.finish().unwrap();
        for name in [folder.file("a-0.tar"), folder.file("a-{0..0}.tar"), folder.file("*.tar"), folder.file("")] {
            let data = open(&job(&name), Architecture::LeNet).unwrap();
            assert_eq!((data.len(Split::Train), data.len(Split::Test)), (8, 2), "{name}");
            assert!(data.sample(Split::Train, 0).is_ok());
        }
        let error = open(&job(&folder.file("b-{0..1}.tar")), Architecture::LeNet).err().unwrap().to_string();
        assert!(error.contains("b-0.tar: there is no such file"), "{error}");
    }

    #[test]
    fn patches_of_satellites_are_opened_by_their_folder() {
        const BAND: &[u8] = include_bytes!("../../data/tests/foreign/band-deflate.tif");
        let folder = farandole_testing::Folder::new();
        for patch in ["p0", "p1", "p2", "p3", "p4"] {
            std::fs::create_dir_all(folder.join(patch)).unwrap();
            for band in tiff::BANDS {
                std::fs::write(folder.join(format!("{patch}/{patch}_{band}.tif")), BAND).unwrap();
            }
            let labels = r#"{"labels": ["Pastures", "Vineyards"]}"#;
            std::fs::write(folder.join(format!("{patch}/{patch}_labels_metadata.json")), labels).unwrap();
        }
        let mut wanted = job(&folder.file(""));
        wanted.data.image_size = Some(24);
        let data = open(&wanted, Architecture::ResNet20).unwrap();
        assert_eq!((data.len(Split::Train), data.len(Split::Test), data.class_names().len()), (4, 1, 2));
        assert_eq!(data.sample(Split::Train, 3).unwrap().image.len(), 12 * 24 * 24);
        // By a URL, and beside a folder whose name begins alike.
        std::fs::create_dir_all(folder.join("p0-other")).unwrap();
        std::fs::write(folder.join("p0-other/x_labels_metadata.json"), r#"{"labels": ["Rivers"]}"#).unwrap();
        for (path, patches) in [("", 6), ("p0", 1)] {
            wanted.data.name = format!("file://{}", folder.file(path));
            let data = open(&wanted, Architecture::ResNet20).unwrap();
            assert_eq!(data.len(Split::Train) + data.len(Split::Test), patches, "{path}");
        }
        let storage: Arc<dyn Storage> = Arc::new(storage::LocalFiles::new(folder.to_path_buf()));
        let one = Patches::open(storage, "p0", &PatchesConfig::default()).unwrap();
        assert_eq!((one.len(Split::Train) + one.len(Split::Test), one.class_names().len()), (1, 2));
        std::fs::remove_dir_all(folder.join("p0-other")).unwrap();
        wanted.data.name = folder.file("");
        wanted.data.classes = Some(3);
        let error = open(&wanted, Architecture::ResNet20).err().unwrap().to_string();
        assert!(error.contains("--classes 3") && error.contains("2 labels"), "{error}");
        let error = open(&job(&folder.file("")), Architecture::Edsr).err().unwrap().to_string();
        assert!(error.contains("EDSR"), "{error}");
    }

    #[test]
    fn a_url_of_files_is_opened_and_one_of_nothing_is_named() {
        let folder = farandole_testing::Folder::new();
        for (class, file) in [("cat", 1), ("cat", 2), ("dog", 3), ("dog", 4)] {
            std::fs::create_dir_all(folder.join(class)).unwrap();
            let grey = b"\x89PNG\r\n\x1a\n".to_vec();
            std::fs::write(folder.join(format!("{class}/{file}.png")), grey).unwrap();
        }
        let data = open(&job(&format!("file://{}", folder.display())), Architecture::LeNet).unwrap();
        assert_eq!(data.len(Split::Train) + data.len(Split::Test), 4);
        let error = open(&job("ftp://host/data"), Architecture::LeNet).err().unwrap().to_string();
        assert!(error.contains("--data ftp://host/data"), "{error}");
        let nothing = format!("file://{}", folder.file("nothing"));
        let error = open(&job(&nothing), Architecture::LeNet).err().unwrap().to_string();
        assert!(error.contains("--data ") && error.matches("nothing").count() == 1, "{error}");
        assert_eq!(named("s3://b/x", "s3://b/x: no bucket"), "--data s3://b/x: no bucket");
        assert_eq!(named("s3://b/x", "x: no file"), "--data s3://b/x: x: no file");
    }

    #[test]
    fn what_is_not_there_is_said_with_what_is() {
        let error = open(&job("/no/such/folder"), Architecture::LeNet).err().unwrap().to_string();
        assert!(error.contains("/no/such/folder") && error.contains("bigearthnet-like"), "{error}");
        let mut large = job("cifar-like");
        large.data.image_size = Some(64);
        assert!(open(&large, Architecture::LeNet).err().unwrap().to_string().contains("--image-size"));
        let mut odd = job("cifar-like");
        odd.data.augment = Some("flop".to_owned());
        let data = open(&odd, Architecture::LeNet).unwrap();
        assert!(augment(&odd, data.as_ref()).unwrap_err().to_string().contains("flop"));
    }
}
