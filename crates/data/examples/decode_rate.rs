//! How many samples a second one thread decodes, crops, mirrors and normalises, and where the time goes.
//!
//! Makes 64 photo-like JPEGs of 500 x 375 pixels (quality 90, 4:2:0) and does to them what training on ImageNet does:
//! a random resized crop to 224, a flip and a normalisation to `f32`. Rounds of two ways take turns, so that both see
//! the same machine: *ours* gives the JPEG to the recipe; *zune* decodes all of it with `zune-jpeg` and gives raw
//! pixels to the same recipe.
//!
//! `decode_rate [ROUNDS] [FOLDER]`: more rounds, or JPEGs of a folder. `decode_rate write FOLDER` writes those that it
//! makes.

#![allow(clippy::print_stdout, reason = "a program for people")]

use std::time::{Duration, Instant};

use farandole_data::StageTimes;
use farandole_data::chance::{Chance, StreamPurpose};
use farandole_data::transform::{Element, Layout, Recipe, Scratch, steps};
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};

const HEIGHT: usize = 375;
const WIDTH: usize = 500;
const IMAGES: usize = 64;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [command, folder] = &arguments[..]
        && command == "write"
    {
        for number in 0..IMAGES {
            std::fs::write(format!("{folder}/{number:02}.jpg"), jpeg(number as u64))
                .expect("the folder can be written");
        }
        return;
    }
    let rounds: usize = arguments.first().map_or(10, |text| text.parse().expect("a number of rounds"));
    let images: Vec<Vec<u8>> = match arguments.get(1) {
        Some(folder) => read(folder),
        None => (0..IMAGES).map(|number| jpeg(number as u64)).collect(),
    };
    let bytes: usize = images.iter().map(Vec::len).sum();
    println!("{} images, {} kB each", images.len(), bytes / images.len() / 1000);

    let text = "random-resized-crop=224,flip,normalize=imagenet";
    let recipe = Recipe::new(steps(text).expect("known steps"), 3, Element::F32, Layout::Nchw).expect("a sound recipe");
    let mut out = vec![0; recipe.sample_bytes()];
    let (mut ours, mut theirs) = (Scratch::default(), Scratch::default());
    let (mut our_time, mut their_time, mut zune_time) = (Vec::new(), Vec::new(), Duration::ZERO);
    for round in 0..rounds {
        let clock = Instant::now();
        for (number, image) in images.iter().enumerate() {
            recipe.apply(image, &mut chance(round, number), &mut out, &mut ours).expect("our own image");
        }
        our_time.push(clock.elapsed());
        let clock = Instant::now();
        for (number, image) in images.iter().enumerate() {
            let decoding = Instant::now();
            let raw = decode_by_zune(image);
            zune_time += decoding.elapsed();
            recipe.apply(&raw, &mut chance(round, number), &mut out, &mut theirs).expect("raw pixels");
        }
        their_time.push(clock.elapsed());
    }
    let samples = (rounds * images.len()) as f64;
    print_line("ours", &mut our_time, images.len(), ours.take_times(), Duration::ZERO, samples);
    print_line("zune", &mut their_time, images.len(), theirs.take_times(), zune_time, samples);
}

/// The same for both ways.
fn chance(round: usize, number: usize) -> Chance {
    Chance::new(1, StreamPurpose::Augmentation, round as u64, number as u64)
}

fn print_line(
    name: &str,
    rounds: &mut [Duration],
    images: usize,
    times: StageTimes,
    decoded_before: Duration,
    samples: f64,
) {
    rounds.sort();
    let rate = |round: Duration| images as f64 / round.as_secs_f64();
    let us = |ns: u64| ns as f64 / 1000.0 / samples;
    let decode_us = us(times.decode_ns + decoded_before.as_nanos() as u64);
    println!(
        "{name}: {:.0} samples/s (median round; best {:.0}); us each: entropy and IDCT {:.0}, colour {:.0}, \
         resize {:.0}, store {:.0}",
        rate(rounds[rounds.len() / 2]),
        rate(rounds[0]),
        decode_us - us(times.colour_ns),
        us(times.colour_ns),
        us(times.transform_ns),
        us(times.store_ns)
    );
}

fn read(folder: &str) -> Vec<Vec<u8>> {
    let files = std::fs::read_dir(folder).expect("a folder");
    let mut paths: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("a file that can be read")).collect()
}

/// Raw pixels of a whole image, with the header of a PNM.
fn decode_by_zune(image: &[u8]) -> Vec<u8> {
    use zune_jpeg::zune_core::bytestream::ZCursor;
    let mut decoder = zune_jpeg::JpegDecoder::new(ZCursor::new(image));
    decoder.decode_headers().expect("a JPEG");
    let (width, height) = decoder.dimensions().expect("a JPEG with a size");
    let mut raw = format!("P6 {width} {height} 255\n").into_bytes();
    let begin = raw.len();
    raw.resize(begin + width * height * 3, 0);
    decoder.decode_into(&mut raw[begin..]).expect("a whole JPEG");
    raw
}

/// A picture with the spectrum of photos: noise of many sizes, the finer the weaker, and some edges.
fn jpeg(seed: u64) -> Vec<u8> {
    let mut chance = Chance::new(seed, StreamPurpose::World, 0, 0);
    let mut planes = vec![[0.0f32; 3]; HEIGHT * WIDTH];
    let (mut cell, mut strength) = (128usize, 60.0f32);
    while cell > 0 {
        let (rows, columns) = (HEIGHT / cell + 2, WIDTH / cell + 2);
        let knots: Vec<[f32; 3]> = (0..rows * columns)
            .map(|_| {
                // Colours vary less than brightness.
                let grey = chance.normal();
                [0; 3].map(|_: u8| (grey + 0.3 * chance.normal()) * strength)
            })
            .collect();
        for (number, pixel) in planes.iter_mut().enumerate() {
            let (y, x) = ((number / WIDTH) as f32 / cell as f32, (number % WIDTH) as f32 / cell as f32);
            let (row, column, down, across) = (y as usize, x as usize, y.fract(), x.fract());
            for (band, value) in pixel.iter_mut().enumerate() {
                let knot = |row: usize, column: usize| knots[row * columns + column][band];
                let upper = knot(row, column) * (1.0 - across) + knot(row, column + 1) * across;
                let lower = knot(row + 1, column) * (1.0 - across) + knot(row + 1, column + 1) * across;
                *value += upper * (1.0 - down) + lower * down;
            }
        }
        (cell, strength) = (cell / 2, strength * 0.65);
    }
    for _ in 0..12 {
        // Discs of one colour more.
        let (y, x) = (chance.between(0.0, HEIGHT as f32), chance.between(0.0, WIDTH as f32));
        let (radius, shift) = (chance.between(10.0, 90.0), [0; 3].map(|_: u8| chance.between(-60.0, 60.0)));
        for (number, pixel) in planes.iter_mut().enumerate() {
            let (down, across) = ((number / WIDTH) as f32 - y, (number % WIDTH) as f32 - x);
            if down * down + across * across < radius * radius {
                pixel.iter_mut().zip(shift).for_each(|(value, shift)| *value += shift);
            }
        }
    }
    let bytes: Vec<u8> = planes.iter().flatten().map(|value| (value + 120.0).clamp(0.0, 255.0) as u8).collect();
    let mut file = Vec::new();
    let mut encoder = Encoder::new(&mut file, 90);
    encoder.set_sampling_factor(SamplingFactor::F_2_2);
    encoder.encode(&bytes, WIDTH as u16, HEIGHT as u16, ColorType::Rgb).expect("memory can be written");
    file
}
