//! Our decoder against `zune-jpeg`, parts against wholes, and damaged images.

use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use proptest::prelude::*;

use super::super::tests::photo;
use super::super::zune;
use super::*;

const SAMPLINGS: [SamplingFactor; 4] =
    [SamplingFactor::F_1_1, SamplingFactor::F_2_1, SamplingFactor::F_1_2, SamplingFactor::F_2_2];

fn encode(size: Size, sampling: SamplingFactor, quality: u8, restart: u16) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = Encoder::new(&mut file, quality);
    encoder.set_sampling_factor(sampling);
    if restart > 0 {
        encoder.set_restart_interval(restart);
    }
    let Size { height, width } = size;
    encoder.encode(&photo(height, width), width as u16, height as u16, ColorType::Rgb).unwrap();
    file
}

fn decode(file: &[u8], part: Option<Rect>, reduction: usize, colours: Colours) -> Result<Picture, String> {
    let header = Header::parse(file).expect("a JPEG of the usual kind");
    let part = part.unwrap_or(Rect::whole(reduced_size(header.size, reduction)));
    let mut picture = Picture::default();
    Decoder::default().decode(&header, file, part, reduction, colours, &mut picture)?;
    Ok(picture)
}

/// The largest and the mean difference of bytes.
fn differences(one: &Picture, other: &Picture) -> (u8, f64) {
    assert_eq!(one.size(), other.size());
    let pairs = one.pixels().as_flattened().iter().zip(other.pixels().as_flattened());
    let all: Vec<u8> = pairs.map(|(a, b)| a.abs_diff(*b)).collect();
    (all.iter().copied().max().unwrap(), all.iter().map(|&d| f64::from(d)).sum::<f64>() / all.len() as f64)
}

/// Images of 27 x 19 pixels that PIL has written, and the FNV-1a hash of the bytes it decodes them to, with
/// libjpeg-turbo.
const GOLDEN: [(&[u8], u64); 4] = [
    (include_bytes!("golden/444.jpg"), 0x6e98_2f0a_29ed_518f),
    (include_bytes!("golden/422.jpg"), 0x7c17_6581_4e89_c86a),
    (include_bytes!("golden/420.jpg"), 0xf60c_eb72_515e_3bf0),
    (include_bytes!("golden/grey.jpg"), 0x3ba2_40f6_3d5b_60ca),
];

#[test]
fn pixels_have_the_bits_of_libjpeg() {
    for (file, expected) in GOLDEN {
        let image = super::super::decode(file, 3).unwrap();
        let hash = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        assert_eq!(image.bytes.iter().fold(0xcbf2_9ce4_8422_2325, hash), expected);
    }
}

#[test]
fn tiny_images_have_all_their_pixels() {
    for sampling in SAMPLINGS {
        for (height, width) in [(1, 1), (1, 9), (8, 8), (9, 1), (2, 3)] {
            let file = encode(Size { height, width }, sampling, 90, 0);
            assert_eq!(decode(&file, None, 1, Colours::Rgb).unwrap().pixels().len(), height * width);
            assert_eq!(decode(&file, None, 8, Colours::Rgb).unwrap().size(), reduced_size(Size { height, width }, 8));
        }
    }
}

#[test]
fn whole_images_are_those_of_zune_jpeg() {
    for sampling in SAMPLINGS {
        for (height, width) in [(64, 64), (37, 53), (17, 16), (16, 33), (5, 300)] {
            for (quality, restart) in [(90, 0), (40, 3), (100, 1)] {
                let size = Size { height, width };
                let file = encode(size, sampling, quality, restart);
                for colours in [Colours::Rgb, Colours::Grey] {
                    let ours = decode(&file, None, 1, colours).unwrap();
                    let mut theirs = Picture::default();
                    zune::decode(&file, Rect::whole(size), colours, &mut theirs).unwrap();
                    let (most, mean) = differences(&ours, &theirs);
                    // It rounds colour differences at half resolution in its own way. Colours that do not exist in
                    // RGB are cut before grey is made of them, but not where Y is taken.
                    let (worst, usual) = if colours == Colours::Rgb { (6, 0.5) } else { (80, 4.0) };
                    assert!(most <= worst && mean < usual, "{sampling:?} {size:?} {quality}: {most} {mean}");
                }
            }
        }
    }
}

#[test]
fn a_part_has_the_pixels_of_the_whole() {
    for sampling in SAMPLINGS {
        let size = Size { height: 61, width: 83 };
        for restart in [0, 2, 5] {
            let file = encode(size, sampling, 85, restart);
            for reduction in [1, 2, 4, 8] {
                let whole = decode(&file, None, reduction, Colours::Rgb).unwrap();
                let all = whole.size();
                assert_eq!(all, reduced_size(size, reduction));
                for (top, left, height, width) in
                    [(0, 0, 1, 1), (3, 5, 2, 3), (7, 9, 30, 20), (16, 32, 16, 16), (60, 82, 1, 1), (1, 0, 60, 83)]
                {
                    let (top, left) = (top / reduction, left / reduction);
                    let (height, width) = (height.min(all.height - top), width.min(all.width - left));
                    let part = Rect { top, left, height, width };
                    let cut = decode(&file, Some(part), reduction, Colours::Rgb).unwrap();
                    for row in 0..height {
                        assert_eq!(cut.row(row), &whole.row(top + row)[left..][..width], "{part:?} {reduction}");
                    }
                }
            }
        }
    }
}

#[test]
fn reduced_images_are_means_of_the_whole() {
    for sampling in SAMPLINGS {
        // Large enough for its waves to be wide where colours have one sample for sixteen pixels.
        let size = Size { height: 512, width: 768 };
        let file = encode(size, sampling, 95, 0);
        let whole = decode(&file, None, 1, Colours::Rgb).unwrap();
        for reduction in [2, 4, 8] {
            let small = decode(&file, None, reduction, Colours::Rgb).unwrap();
            let mut sum = 0.0;
            for (number, pixel) in small.pixels().iter().enumerate() {
                let (y, x) = (number / (768 / reduction) * reduction, number % (768 / reduction) * reduction);
                for (band, &small) in pixel.iter().enumerate().take(3) {
                    let rows = (y..y + reduction).flat_map(|y| &whole.row(y)[x..x + reduction]);
                    let mean = rows.map(|pixel| f64::from(pixel[band])).sum::<f64>() / (reduction * reduction) as f64;
                    sum += (f64::from(small) - mean).abs();
                }
            }
            let mean = sum / (small.pixels().len() * 3) as f64;
            assert!(mean < 3.0, "{sampling:?} 1/{reduction}: {mean}");
        }
    }
}

#[test]
fn grey_images_have_one_component() {
    let (height, width) = (21, 35);
    let grey: Vec<u8> = photo(height, width).chunks_exact(3).map(|pixel| pixel[0]).collect();
    let mut file = Vec::new();
    Encoder::new(&mut file, 90).encode(&grey, width as u16, height as u16, ColorType::Luma).unwrap();
    let ours = decode(&file, None, 1, Colours::Rgb).unwrap();
    let mut theirs = Picture::default();
    zune::decode(&file, Rect::whole(Size { height, width }), Colours::Rgb, &mut theirs).unwrap();
    assert!(differences(&ours, &theirs).0 <= 1);
}

#[test]
fn other_kinds_are_left_to_zune_jpeg() {
    let mut progressive = Vec::new();
    let mut encoder = Encoder::new(&mut progressive, 80);
    encoder.set_progressive(true);
    encoder.encode(&photo(32, 32), 32, 32, ColorType::Rgb).unwrap();
    let mut cmyk = Vec::new();
    Encoder::new(&mut cmyk, 80).encode(&[9; 32 * 32 * 4], 32, 32, ColorType::Cmyk).unwrap();
    let mut unusual = Vec::new();
    let mut encoder = Encoder::new(&mut unusual, 80);
    encoder.set_sampling_factor(SamplingFactor::F_4_1);
    encoder.encode(&photo(32, 32), 32, 32, ColorType::Rgb).unwrap();
    for file in [progressive, cmyk, unusual] {
        assert!(Header::parse(&file).is_none());
        let image = super::super::decode(&file, 3).unwrap();
        assert_eq!((image.height, image.width), (32, 32));
        assert!(super::super::decode(&file[..file.len() / 2], 3).is_err());
    }
}

#[test]
fn an_image_without_its_end_is_an_error_at_every_length() {
    let file = encode(Size { height: 40, width: 40 }, SamplingFactor::F_2_2, 80, 2);
    for length in 0..file.len() - 1 {
        assert!(super::super::decode(&file[..length], 3).is_err(), "{length}");
    }
    // Also where no more than the first pixel is wanted, and where the end is there, but not all before it.
    let header = Header::parse(&file).unwrap();
    let first = Rect { top: 0, left: 0, height: 1, width: 1 };
    for length in header.scan_at..file.len() - 1 {
        assert!(decode(&file[..length], Some(first), 1, Colours::Rgb).is_err(), "{length}");
    }
    let whole = encode(Size { height: 40, width: 40 }, SamplingFactor::F_2_2, 80, 0);
    let half = [&whole[..(header.scan_at + whole.len()) / 2], &[0xff, 0xd9]].concat();
    assert!(decode(&half, None, 1, Colours::Rgb).is_err());
}

#[test]
fn a_decoder_keeps_nothing_of_the_image_before() {
    let mut decoder = Decoder::default();
    let mut picture = Picture::default();
    for round in 0..3 {
        for (number, sampling) in SAMPLINGS.into_iter().enumerate() {
            let size = Size { height: 30 + 9 * number, width: 70 - 11 * number };
            let file = encode(size, sampling, 30 + 20 * round, number as u16);
            let header = Header::parse(&file).unwrap();
            decoder.decode(&header, &file, Rect::whole(size), 1, Colours::Rgb, &mut picture).unwrap();
            assert_eq!(picture, decode(&file, None, 1, Colours::Rgb).unwrap());
        }
    }
}

/// Decodes what may be no image. All of it, and a part at a reduced size.
fn try_all(file: &[u8]) {
    if let Ok(image) = super::super::decode(file, 3) {
        assert_eq!(image.bytes.len(), image.height * image.width * 3);
    }
    if let Some(header) = Header::parse(file).filter(|header| header.size.height * header.size.width < 1 << 20) {
        let Size { height, width } = reduced_size(header.size, 2);
        let part = Rect { top: height / 2, left: width / 2, height: height - height / 2, width: width - width / 2 };
        let mut picture = Picture::default();
        // Not through what catches panics: there are none.
        let _ = Decoder::default().decode(&header, file, part, 2, Colours::Rgb, &mut picture);
        let _ = Decoder::default().decode(&header, file, Rect::whole(header.size), 1, Colours::Rgb, &mut picture);
    }
}

proptest! {
    #[test]
    fn bytes_by_chance_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        try_all(&bytes);
        try_all(&[&[0xff, 0xd8], &bytes[..]].concat());
    }

    #[test]
    fn damaged_images_never_panic(
        sampling in 0usize..4,
        restart in 0u16..4,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
    ) {
        let mut file = encode(Size { height: 40, width: 56 }, SAMPLINGS[sampling], 70, restart);
        for (place, byte) in damage {
            let place = place.index(file.len());
            file[place] = byte;
        }
        try_all(&file);
    }

    #[test]
    fn scans_of_garbage_never_panic(scan in prop::collection::vec(any::<u8>(), 0..4000)) {
        let file = encode(Size { height: 40, width: 56 }, SamplingFactor::F_2_2, 70, 0);
        let header = Header::parse(&file).unwrap();
        try_all(&[&file[..header.scan_at], &scan[..], &[0xff, 0xd9]].concat());
    }
}
