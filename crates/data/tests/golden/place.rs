//! The files that golden batches are made of: images in folders and tables, shards of every format, arrays, patches.

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use farandole_data::convert::{Conversion, ImageChange, TargetFormat, convert};
use farandole_data::decode;
use farandole_data::format::{npy, tiff};
use farandole_data::sample::Label;
use farandole_data::source::{self, RecordsConfig};
use farandole_testing::Folder;

const CLASSES: [&str; 3] = ["ant", "bee", "cat"];

/// Images of a data set; odd, so that pairs and shares of ranks do not come out even.
const IMAGES: usize = 21;

const RAMP: &[u8] = include_bytes!("../images/ramp.jpg");
const BANDS: [&[u8]; 3] = [
    include_bytes!("../foreign/band-plain.tif"),
    include_bytes!("../foreign/band-deflate.tif"),
    include_bytes!("../foreign/band-lzw.tif"),
];

/// A folder of images with a table: its name, the table's columns behind the file's, and a row's values.
type Table<'a> = (&'a str, &'a str, &'a dyn Fn(usize) -> String);

/// All formats, each in a folder of its name.
pub(super) fn formats() -> Folder {
    let folder = Folder::new();
    // Sizes differ, and every seventh image is a JPEG.
    let image = |number: usize| match number % 7 {
        6 => RAMP.to_vec(),
        _ => png(20 + number % 5, 18 + number % 3, number),
    };
    class_folders(&folder.join("images"), &image);
    class_folders(&folder.join("broken"), &|number| if number % 5 == 3 { b"broken".to_vec() } else { image(number) });
    class_folders(&folder.join("even"), &|number| png(22, 19, number));
    let split = |number: usize| if number % 4 == 3 { "test" } else { "train" };
    let class = |number: usize| format!("{},{}", CLASSES[number % 3], split(number));
    let age = |number: usize| format!("{}.5", number * 3);
    let some = |number: usize| if number.is_multiple_of(2) { "1;2".to_owned() } else { "0".to_owned() };
    let tables: [Table<'_>; 3] = [("table", "class,split", &class), ("ages", "age", &age), ("labels", "labels", &some)];
    for (name, header, said) in tables {
        let root = folder.join(name);
        fs::create_dir_all(&root).unwrap();
        let mut table = format!("file,{header}\n");
        for number in 0..IMAGES {
            fs::write(root.join(format!("{number:02}.png")), png(20, 20 + number % 4, number)).unwrap();
            table.push_str(&format!("{number:02}.png,{}\n", said(number)));
        }
        fs::write(root.join("labels.csv"), table).unwrap();
    }
    for (to, name) in
        [(TargetFormat::Tar, "tar"), (TargetFormat::TfRecord, "tfrecord"), (TargetFormat::Parquet, "parquet")]
    {
        let (storage, path) = source::local(&folder.file("images"));
        let source = source::open(storage, &path, &RecordsConfig::default()).unwrap();
        let conversion = Conversion {
            to,
            folder: folder.join(name),
            shards: 2,
            change: ImageChange::Nothing,
            shuffle_seed: None,
            threads: 1,
            leave_out_broken: false,
        };
        convert(&*source, &conversion, &|_| {}, &AtomicBool::new(false)).unwrap();
    }
    arrays(&folder);
    patches(&folder.join("patches"));
    folder
}

fn class_folders(root: &Path, image: &dyn Fn(usize) -> Vec<u8>) {
    for number in 0..IMAGES {
        let class = root.join(CLASSES[number % CLASSES.len()]);
        fs::create_dir_all(&class).unwrap();
        let image = image(number);
        let ending = if image.starts_with(&[0xff, 0xd8]) { "jpg" } else { "png" };
        fs::write(class.join(format!("{number:02}.{ending}")), image).unwrap();
    }
}

/// An image in colours, without noise that a filter would average away.
fn png(width: usize, height: usize, number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width as u32, height as u32);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().unwrap();
    let pixel = |at: usize| [at % width * 11 + number * 5, at / width * 13, (at * 7 + number * 29) % 256];
    let pixels: Vec<u8> = (0..width * height).flat_map(pixel).map(|value| value as u8).collect();
    writer.write_image_data(&pixels).unwrap();
    writer.finish().unwrap();
    bytes
}

/// The pixels of images of one size: two files of arrays, and the same with other types.
fn arrays(folder: &Folder) {
    let (storage, path) = source::local(&folder.file("even"));
    let records = source::open(storage, &path, &RecordsConfig::default()).unwrap();
    let (mut pixels, mut labels, mut shape) = (Vec::new(), Vec::new(), [0; 4]);
    for index in 0..records.len() {
        let mut encoded = Vec::new();
        let Label::Class(class) = records.read(index, &mut encoded).unwrap() else { panic!("images have a class") };
        let image = decode::decode(&encoded, 3).unwrap();
        shape = [records.len(), image.height, image.width, 3].map(|side| side as u64);
        pixels.extend(image.bytes);
        labels.push(class);
    }
    let write = |name: &str, images: Vec<u8>, labels: Vec<u8>| {
        fs::create_dir_all(folder.join(name)).unwrap();
        fs::write(folder.join(name).join("images.npy"), images).unwrap();
        fs::write(folder.join(name).join("labels.npy"), labels).unwrap();
    };
    let wide: Vec<u8> = labels.iter().flat_map(|class| i64::from(*class).to_le_bytes()).collect();
    write("npy", npy::encode("|u1", &shape, &pixels), npy::encode("<i8", &shape[..1], &wide));
    let narrow: Vec<u8> = labels.iter().map(|class| *class as u8).collect();
    let brightness: Vec<u8> = pixels.iter().flat_map(|byte| (f32::from(*byte) / 255.0).to_le_bytes()).collect();
    write("floats", npy::encode("<f4", &shape, &brightness), npy::encode("|u1", &shape[..1], &narrow));
}

fn patches(root: &Path) {
    for number in 0..11 {
        let patch = format!("p{number:02}");
        fs::create_dir_all(root.join(&patch)).unwrap();
        for (at, band) in tiff::BANDS.iter().enumerate() {
            fs::write(root.join(format!("{patch}/{patch}_{band}.tif")), BANDS[(at + number) % 3]).unwrap();
        }
        let labels = if number.is_multiple_of(2) { r#"["Pastures", "Forest"]"# } else { r#"["Forest"]"# };
        let json = format!(r#"{{"labels": {labels}}}"#);
        fs::write(root.join(format!("{patch}/{patch}_labels_metadata.json")), json).unwrap();
    }
}
