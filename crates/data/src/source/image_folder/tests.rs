//! Folders as users have them: well kept, and otherwise.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::sync::Arc;

use super::*;
use crate::chance::{Chance, StreamPurpose};
use crate::loader::{Broken, Input};
use crate::transform::resample::{Grid, coarsen};
use crate::{Augment, Loader, LoaderConfig, SampleOrder};

const JPEG: &[u8] = include_bytes!("../../../tests/images/ramp.jpg");
const GREY: &[u8] = include_bytes!("../../../tests/images/grey-progressive.jpg");
const CMYK: &[u8] = include_bytes!("../../../tests/images/cmyk.jpg");
const SHAPE: ImageShape = ImageShape { bands: 3, height: 8, width: 8 };

/// A folder of images.
struct Place(farandole_testing::Folder);

impl Place {
    fn new() -> Place {
        Place(farandole_testing::Folder::new())
    }

    fn put(&self, name: &str, bytes: &[u8]) -> &Place {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
        self
    }

    fn open(&self) -> Result<ImageFolder, DataError> {
        open(&self.0, &FolderConfig::new(SHAPE))
    }

    fn error(&self) -> String {
        self.open().unwrap_err().to_string()
    }
}

/// A PNG of one colour.
fn png_of(width: u32, height: u32, colour: png::ColorType, pixel: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(colour);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(&pixel.repeat((width * height) as usize)).unwrap();
    writer.finish().unwrap();
    bytes
}

fn red() -> Vec<u8> {
    png_of(10, 20, png::ColorType::Rgb, &[255, 0, 0])
}

fn names(folder: &ImageFolder, split: Split) -> Vec<String> {
    let strip = |index| folder.name(split, index).rsplit('/').next().unwrap().to_owned();
    (0..folder.len(split)).map(strip).collect()
}

#[test]
fn classes_are_folders_sorted_by_name_and_split_alike_for_one_seed() {
    let place = Place::new();
    for number in 0..10 {
        place.put(&format!("dog/{number}.png"), &red()).put(&format!("cat/deeper/{number}.JPG"), JPEG);
    }
    place.put("dog/notes.txt", b"no image").put(".hidden/1.png", &red()).put("cat/.2.png", &red());
    let folder = place.open().unwrap();
    assert_eq!(folder.class_names(), ["cat", "dog"]);
    assert_eq!(folder.task(), Task::SingleLabel { classes: 2 });
    assert_eq!((folder.len(Split::Train), folder.len(Split::Test)), (16, 4));
    assert_eq!(folder.sample(Split::Train, 0).unwrap().label, Label::Class(0));
    let dog = folder.sample(Split::Train, 15).unwrap();
    assert_eq!(dog.label, Label::Class(1));
    assert!(dog.image[..64].iter().all(|value| (value - 2.0).abs() < 1e-4), "red is bright");
    assert!(dog.image[64..].iter().all(|value| (value + 2.0).abs() < 1e-4), "and green and blue are dark");
    assert_eq!(names(&folder, Split::Test), names(&place.open().unwrap(), Split::Test));
    let seeded = |seed| open(&place.0, &FolderConfig { seed, ..FolderConfig::new(SHAPE) }).unwrap();
    assert!((1..9).any(|seed| names(&seeded(seed), Split::Test) != names(&folder, Split::Test)));
    assert!(folder.describe().contains("16 + 4 images, brought to 3 x 8 x 8, 2 classes"), "{}", folder.describe());
}

#[test]
fn folders_for_training_and_tests_are_taken_as_they_are() {
    for other in ["test", "val", "validation"] {
        let place = Place::new();
        place.put("train/a/1.png", &red()).put("train/b/2.png", &red()).put("train/b/3.png", &red());
        place.put(&format!("{other}/b/4.png"), &red());
        let folder = place.open().unwrap();
        assert_eq!(
            (names(&folder, Split::Train), names(&folder, Split::Test)),
            (vec!["1.png".into(), "2.png".into(), "3.png".into()], vec!["4.png".into()])
        );
        assert_eq!(folder.sample(Split::Test, 0).unwrap().label, Label::Class(1));
        place.put(&format!("{other}/c/5.png"), &red());
        assert!(place.error().contains("class for tests alone"), "{}", place.error());
    }
}

#[test]
fn what_cannot_be_learned_from_is_an_error_that_says_why() {
    let place = Place::new();
    let missing = open(&place.0.join("nowhere"), &FolderConfig::new(SHAPE)).unwrap_err().to_string();
    assert!(missing.contains("nowhere") && missing.contains("No such file"), "{missing}");
    assert!(place.error().contains("holds no JPEG or PNG image"), "{}", place.error());
    place.put("loose.png", &red());
    assert!(place.error().contains("nothing says what they show"), "{}", place.error());
    let file = open(&place.0.join("loose.png"), &FolderConfig::new(SHAPE)).unwrap_err().to_string();
    assert!(file.contains("is no folder"), "{file}");
    place.put("cat/1.png", &red());
    assert!(place.error().contains("one class alone, cat"), "{}", place.error());
    place.put("dog/readme.txt", b"");
    assert!(place.error().contains("dog has no JPEG or PNG image"), "{}", place.error());
    let bands = FolderConfig::new(ImageShape { bands: 12, ..SHAPE });
    assert!(open(&place.0, &bands).unwrap_err().to_string().contains("not 12"));
    let share = FolderConfig { test_share: 1.0, ..FolderConfig::new(SHAPE) };
    assert!(open(&place.0, &share).unwrap_err().to_string().contains("the share of images"));
}

#[test]
fn links_are_followed_but_not_in_circles_and_names_need_not_be_text() {
    let place = Place::new();
    place.put("a/1.png", &red()).put("b/2.png", &red());
    symlink(&place.0, place.0.join("a/round")).unwrap();
    symlink(place.0.join("b/2.png"), place.0.join("a/linked.png")).unwrap();
    symlink("nowhere", place.0.join("a/dangling.png")).unwrap();
    let odd = place.0.join(std::ffi::OsStr::from_bytes(b"\xff\xfe"));
    fs::create_dir(&odd).unwrap();
    fs::write(odd.join(std::ffi::OsStr::from_bytes(b"\xf0.png")), red()).unwrap();
    let folder = place.open().unwrap();
    assert_eq!(folder.class_names().len(), 3);
    let total = folder.len(Split::Train) + folder.len(Split::Test);
    assert_eq!(total, 4, "a way round through the whole folder makes images of other classes images of `a`");
    assert!((0..folder.len(Split::Train)).all(|index| folder.sample(Split::Train, index).is_ok()));
}

#[test]
fn every_kind_of_file_is_brought_to_the_wanted_bands_and_size() {
    let sixteen_bit = {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, 4, 4);
        encoder.set_color(png::ColorType::Grayscale);
        encoder.set_depth(png::BitDepth::Sixteen);
        encoder.write_header().unwrap().write_image_data(&[0xff; 32]).unwrap();
        bytes
    };
    let palette = {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, 4, 4);
        encoder.set_color(png::ColorType::Indexed);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.set_palette(vec![0, 0, 0, 255, 255, 255]);
        encoder.write_header().unwrap().write_image_data(&[1; 16]).unwrap();
        bytes
    };
    let white = [
        png_of(1, 1, png::ColorType::Grayscale, &[255]),
        png_of(9, 5, png::ColorType::GrayscaleAlpha, &[255, 3]),
        png_of(30, 50, png::ColorType::Rgba, &[255, 255, 255, 0]),
        sixteen_bit,
        palette,
    ];
    for bands in [1, 3] {
        let shape = ImageShape { bands, height: 6, width: 9 };
        for bytes in &white {
            let image = fit::decode(bytes, shape, fit::Fit::Resize).unwrap();
            assert_eq!(image.len(), shape.len());
            assert!(image.iter().all(|value| (value - 2.0).abs() < 1e-3), "{image:?}");
        }
        for bytes in [JPEG, GREY, CMYK] {
            let image = fit::decode(bytes, shape, fit::Fit::Resize).unwrap();
            assert_eq!(image.len(), shape.len());
            assert!(image.iter().all(|value| value.abs() < 2.05));
        }
    }
    // The ramp gets redder to the right and greener downwards.
    let image = fit::decode(JPEG, SHAPE, fit::Fit::Resize).unwrap();
    assert!(image[0] < image[7] - 1.0 && image[64] < image[64 + 56] - 1.0);
}

#[test]
fn damaged_files_are_refused_and_never_a_panic() {
    let png = red();
    for whole in [JPEG, GREY, png.as_slice()] {
        // A PNG says all it has to say before its last segment, which has twelve bytes.
        let needed = if whole == png { whole.len() - 12 } else { whole.len() };
        for length in 0..needed {
            let cut = fit::decode(&whole[..length], SHAPE, fit::Fit::Resize);
            assert!(cut.is_err(), "{length} of {} bytes were taken for the whole", whole.len());
        }
        let mut chance = Chance::new(1, StreamPurpose::World, whole.len() as u64, 0);
        for _ in 0..300 {
            let mut bytes = whole.to_vec();
            (0..3).for_each(|_| {
                let place = chance.below(bytes.len());
                bytes[place] = chance.bits() as u8;
            });
            // Whatever it becomes, it has the wanted size or is an error.
            if let Ok(image) = fit::decode(&bytes, SHAPE, fit::Fit::Resize) {
                assert_eq!(image.len(), SHAPE.len());
            }
        }
    }
}

#[test]
fn a_few_bytes_that_claim_to_be_a_wall_of_pixels_cost_nothing() {
    let mut bomb = png_of(1, 1, png::ColorType::Rgb, &[0, 0, 0]);
    bomb[16..24].copy_from_slice(&[0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff]);
    let error = fit::decode(&bomb, SHAPE, fit::Fit::Resize).unwrap_err();
    assert!(error.contains("PNG") || error.contains("claims"), "{error}");
    let mut bomb = JPEG.to_vec();
    let size = bomb.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap() + 5;
    bomb[size..size + 4].copy_from_slice(&[0xff; 4]);
    let error = fit::decode(&bomb, SHAPE, fit::Fit::Resize).unwrap_err();
    assert!(error.contains("65535 x 65535"), "{error}");
}

#[test]
fn corrupt_images_are_replaced_counted_and_named_once() {
    let place = Place::new();
    for number in 0..8 {
        place.put(&format!("train/a/{number}.jpg"), JPEG).put(&format!("train/b/{number}.png"), &red());
    }
    place
        .put("train/a/3.jpg", &JPEG[..200])
        .put("train/b/7.png", b"")
        .put("test/a/0.jpg", b"garbage")
        .put("test/a/1.jpg", JPEG);
    let data: Arc<dyn DataSet> = Arc::new(place.open().unwrap());
    let config = LoaderConfig { batch: 16, ..LoaderConfig::default() };
    let input = |split| Input::Samples { data: Arc::clone(&data), split, augment: Augment::none() };
    let replacing = LoaderConfig { broken: Broken::Replaced, ..config.clone() };
    let loader = Loader::new(input(Split::Train), replacing).unwrap();
    for _ in 0..2 {
        let batch = loader.epoch(0, 0).next().unwrap().unwrap();
        assert_eq!((batch.count, batch.replaced), (16, 2));
    }
    let notices = loader.take_notices().join("\n");
    assert_eq!(notices.lines().count(), 2, "{notices}");
    assert!(
        notices.contains("train/a/3.jpg cannot be read: no whole JPEG")
            && notices.contains("train/b/7.png cannot be read: it is empty")
    );
    let judging = LoaderConfig { broken: Broken::LeftOut, order: SampleOrder::InOrder, ..config };
    let loader = Loader::new(input(Split::Test), judging).unwrap();
    let batch = loader.epoch(0, 0).next().unwrap().unwrap();
    assert_eq!((batch.count, batch.replaced), (1, 1));
}

#[test]
fn a_table_says_what_images_show() {
    let place = Place::new();
    place.put("x/1.png", &red()).put("2.png", &red()).put("3, old.png", &red());
    place.put(
        "labels.csv",
        b"file,class,split\r\nx/1.png,cat,train\r\n2.png,dog,train\r\n\"3, old.png\",\"cat\",test\r\n",
    );
    let folder = place.open().unwrap();
    assert_eq!(
        (folder.task(), folder.class_names().to_vec()),
        (Task::SingleLabel { classes: 2 }, vec!["cat".to_owned(), "dog".to_owned()])
    );
    assert_eq!((folder.len(Split::Train), folder.len(Split::Test)), (2, 1));
    assert_eq!(folder.sample(Split::Test, 0).unwrap().label, Label::Class(0));
    place.put("labels.csv", b"file,labels,split\nx/1.png,water;forest,train\n2.png,,train\n2.png,water,test\n");
    let folder = place.open().unwrap();
    assert_eq!(folder.sample(Split::Train, 0).unwrap().label, Label::Labels(vec![1.0, 1.0]));
    assert_eq!(folder.sample(Split::Train, 1).unwrap().label, Label::Labels(vec![0.0, 0.0]));
    assert_eq!(folder.sample(Split::Test, 0).unwrap().label, Label::Labels(vec![0.0, 1.0]));
    place.put("age.csv", "\u{feff}file,age,split\nx/1.png,10,train\n2.png,30,train\n".as_bytes());
    let config = FolderConfig { meaning: Meaning::Table(place.0.join("age.csv")), ..FolderConfig::new(SHAPE) };
    let folder = open(&place.0, &config).unwrap();
    assert_eq!(folder.unit(), Unit { mean: 20.0, deviation: 10.0, name: "age".to_owned() });
    assert_eq!(folder.sample(Split::Train, 1).unwrap().label, Label::Value(1.0));
}

#[test]
fn mistakes_in_a_table_are_errors_that_name_their_line() {
    let place = Place::new();
    let says = |text: &[u8], classes: Option<usize>, words: &[&str]| {
        place.put("labels.csv", text);
        let error = open(&place.0, &FolderConfig { classes, ..FolderConfig::new(SHAPE) }).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    };
    says(b"", None, &["line 1", "the table is empty"]);
    says(b"1.png,3\n2.png,4\n", None, &["line 1", "is no header"]);
    says(b"file,class\n", None, &["nothing else"]);
    says(b"file,class\n1.png,0\n2.png,10\n", Some(10), &["line 3", "label 10 is out of range", "0 to 9"]);
    says(b"file,labels\n1.png,0;1\n2.png,3;-1\n", None, &["line 3", "label -1 is out of range"]);
    says(b"file,labels\n1.png,0;4294967295\n", None, &["line 2", "label 4294967295 is out of range"]);
    says(b"file,class\n1.png,cat\n\n2.png\n", None, &["line 4", "1 columns instead of 2"]);
    says(b"file,class\n1.png,cat\n2.png,\n", None, &["line 3", "no class is named"]);
    says(b"file,class\n1.png,cat\n2.png,cat\n", None, &["one class alone"]);
    says(b"file,age\n1.png,10\n2.png,old\n", None, &["line 3", "`old` is no number for age"]);
    says(b"file,age\n1.png,10\n2.png,NaN\n", None, &["line 3", "is no number"]);
    says(b"file,age\n1.png,10\n2.png,10\n", None, &["all values of age are the same"]);
    says(b"file,age,split\n1.png,10,train\n2.png,11,later\n", None, &["line 3", "`later` is no split"]);
    says(b"file,age\n\"1.png,10\n", None, &["line 2", "a quote is not closed"]);
    says(b"file,class\n1.png,\xff\n", None, &["line 2", "UTF-8"]);
    says(b"file,age,split\n1.png,10,test\n2.png,12,test\n", None, &["no images to learn from"]);
    // A table names files within its folder and no others.
    says(b"file,age\n1.png,10\n/etc/hostname,12\n", None, &["line 3", "`/etc/hostname` is an absolute path"]);
    says(b"file,age\n1.png,10\n../2.png,12\n", None, &["line 3", "`../2.png` has `..` in it"]);
    says(b"file,age\n\"a/../../2.png\",10\n1.png,12\n", None, &["line 2", "`a/../../2.png` has `..` in it"]);
}

#[test]
fn names_with_dots_that_stay_in_the_folder_are_files_as_any_other() {
    let place = Place::new();
    place.put("..a/1.png", &red()).put("b/..2.png", &red());
    place.put("labels.csv", b"file,class,split\n./..a/1.png,cat,train\nb/..2.png,dog,train\n");
    let folder = place.open().unwrap();
    assert!((0..2).all(|index| folder.sample(Split::Train, index).is_ok()));
}

/// Opening a pipe waits for somebody who writes to it; a loader thread that does so never comes back.
#[test]
fn pipes_devices_and_sockets_are_refused_and_nobody_waits_for_them() {
    let place = Place::new();
    let at = |name: &str| place.0.join(name);
    rustix::fs::mknodat(rustix::fs::CWD, at("pipe.png"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    symlink("/dev/zero", at("device.png")).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(at("socket.png")).unwrap();
    fs::create_dir(at("folder.png")).unwrap();
    let table = "file,age,split\npipe.png,1,train\ndevice.png,2,train\nsocket.png,3,train\nfolder.png,4,train\n";
    place.put("labels.csv", table.as_bytes());
    let folder = place.open().unwrap();
    let (said, heard) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        (0..4).for_each(|index| {
            let _ = said.send(folder.sample(Split::Train, index).map(drop).unwrap_err().to_string());
        });
    });
    for words in [
        "pipe.png cannot be read: it is a pipe",
        "device.png cannot be read: it is a device",
        "socket.png",
        "it is a folder",
    ] {
        let error = heard.recv_timeout(std::time::Duration::from_secs(60)).expect("nobody waits for a file");
        assert!(error.contains(words), "{error}");
    }
    let config = FolderConfig { meaning: Meaning::Table(at("pipe.png")), ..FolderConfig::new(SHAPE) };
    let error = open(&place.0, &config).unwrap_err().to_string();
    assert!(error.contains("pipe.png cannot be read: it is a pipe"), "{error}");
}

#[test]
fn links_in_a_table_are_followed_also_out_of_the_folder() {
    let (place, elsewhere) = (Place::new(), Place::new());
    elsewhere.put("1.png", &red());
    symlink(elsewhere.0.join("1.png"), place.0.join("1.png")).unwrap();
    place.put("2.png", &red()).put("labels.csv", b"file,age,split\n1.png,1,train\n2.png,2,train\n");
    let folder = place.open().unwrap();
    assert!((0..2).all(|index| folder.sample(Split::Train, index).is_ok()));
}

#[test]
fn so_many_images_are_chosen_as_are_wanted_alike_for_one_seed_and_from_all_classes() {
    let place = Place::new();
    for number in 0..20 {
        place.put(&format!("cat/{number}.png"), &red()).put(&format!("dog/{number}.png"), &red());
    }
    let with = |train, test, seed| {
        let config = FolderConfig { train, test, seed, ..FolderConfig::new(SHAPE) };
        open(&place.0, &config).map_err(|error| error.to_string())
    };
    let chosen = |train, test, seed| -> [Vec<String>; 2] {
        let folder = with(train, test, seed).unwrap();
        [Split::Train, Split::Test].map(|split| (0..folder.len(split)).map(|index| folder.name(split, index)).collect())
    };
    let all = chosen(None, None, 1);
    assert_eq!(all.each_ref().map(Vec::len), [32, 8]);
    let few = chosen(Some(6), Some(2), 1);
    assert_eq!(few.each_ref().map(Vec::len), [6, 2]);
    assert_eq!(few, chosen(Some(6), Some(2), 1));
    assert_ne!(few, chosen(Some(6), Some(2), 2));
    for (few, all) in few.iter().zip(&all) {
        assert_eq!(few.iter().filter(|name| name.contains("/cat/")).count(), few.len() / 2, "{few:?}");
        assert!(
            few.iter().all(|name| all.contains(name))
                && few.is_sorted_by_key(|name| all.iter().position(|one| one == name))
        );
    }
    let more = chosen(Some(7), Some(0), 1);
    assert!(few[0].iter().all(|name| more[0].contains(name)), "fewer images are a part of more");
    assert!(more[1].is_empty());
    assert!(with(Some(33), None, 1).unwrap_err().contains("--samples 33: the folder has 32 images"));
    assert!(with(None, Some(9), 1).unwrap_err().contains("--test-samples 9: the folder has 8 images"));
    let fewer_marks = with(Some(6), None, 1).unwrap().fingerprint();
    assert_ne!(fewer_marks, with(None, None, 1).unwrap().fingerprint(), "hosts compare what is used");
}

#[test]
fn a_number_of_classes_that_the_folder_does_not_have_is_refused() {
    let place = Place::new();
    place.put("cat/1.png", &red()).put("dog/2.png", &red());
    let with = |meaning: Meaning, classes| {
        let config = FolderConfig { meaning, classes: Some(classes), ..FolderConfig::new(SHAPE) };
        open(&place.0, &config).map(|folder| folder.task()).map_err(|error| error.to_string())
    };
    assert_eq!(with(Meaning::Found, 2), Ok(Task::SingleLabel { classes: 2 }));
    assert_eq!(with(Meaning::Found, 5).unwrap_err(), "--classes 5: the folder has 2 classes");
    assert!(
        with(Meaning::Pairs { scale: 2 }, 2).unwrap_err().contains("--classes 2: images that are to be made larger")
    );
    place.put("age.csv", b"file,age\ncat/1.png,1\ndog/2.png,2\n");
    assert!(
        with(Meaning::Table(place.0.join("age.csv")), 2).unwrap_err().contains("--classes 2: the table has numbers")
    );
    place.put("classes.csv", b"file,class\ncat/1.png,0\ndog/2.png,1\n");
    assert_eq!(with(Meaning::Table(place.0.join("classes.csv")), 5), Ok(Task::SingleLabel { classes: 5 }));
}

#[test]
fn images_alone_become_pairs() {
    let place = Place::new();
    for number in 0..5 {
        place.put(&format!("{number}.jpg"), JPEG);
    }
    let config = FolderConfig {
        meaning: Meaning::Pairs { scale: 2 },
        ..FolderConfig::new(ImageShape { bands: 3, height: 4, width: 4 })
    };
    let folder = open(&place.0, &config).unwrap();
    assert_eq!((folder.len(Split::Train), folder.len(Split::Test)), (4, 1));
    let pair = folder.sample(Split::Train, 0).unwrap();
    let Label::Image(larger) = &pair.label else { panic!("a pair") };
    assert_eq!((pair.image.len(), larger.len()), (3 * 16, 3 * 64));
    assert_eq!(coarsen(larger, Grid { height: 8, width: 8 }, 2), pair.image);
    // The middle of the image, and its pixels as they are: from the ninth column on.
    let whole = fit::decode(JPEG, ImageShape { bands: 3, height: 16, width: 24 }, fit::Fit::Resize).unwrap();
    assert_eq!(larger[..8], whole[4 * 24 + 8..4 * 24 + 16]);
}
