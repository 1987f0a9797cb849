//! Whole images of all formats, and what is no image.

use super::*;

/// A picture with gradients and detail, as RGB bytes.
pub(crate) fn photo(height: usize, width: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(height * width * 3);
    for row in 0..height {
        for column in 0..width {
            let (y, x) = (row as f32 / height as f32, column as f32 / width as f32);
            let wave = |f: f32, g: f32| ((x * f + y * g).sin() * 0.5 + 0.5) * 255.0;
            bytes.extend([wave(9.0, 3.0), wave(2.0, 17.0), wave(31.0, 25.0)].map(|value| value as u8));
        }
    }
    bytes
}

pub(crate) fn pnm(bytes: &[u8], height: usize, width: usize) -> Vec<u8> {
    let kind = if bytes.len() == height * width { 5 } else { 6 };
    [format!("P{kind}\n# made by a test\n{width} {height}\n255\n").into_bytes(), bytes.to_vec()].concat()
}

fn png_file(bytes: &[u8], height: usize, width: usize) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = ::png::Encoder::new(&mut file, width as u32, height as u32);
    encoder.set_color(if bytes.len() == height * width { ::png::ColorType::Grayscale } else { ::png::ColorType::Rgb });
    encoder.write_header().unwrap().write_image_data(bytes).unwrap();
    file
}

#[test]
fn raw_pixels_and_png_are_what_was_encoded() {
    let bytes = photo(13, 17);
    let grey: Vec<u8> = bytes.chunks_exact(3).map(|pixel| pixel[1]).collect();
    for encode in [pnm, png_file] {
        let image = decode(&encode(&bytes, 13, 17), 3).unwrap();
        assert_eq!((image.height, image.width, image.bands), (13, 17, 3));
        assert_eq!(image.bytes, bytes);
        assert_eq!(decode(&encode(&grey, 13, 17), 1).unwrap().bytes, grey);
        let spread: Vec<u8> = grey.iter().flat_map(|&grey| [grey; 3]).collect();
        assert_eq!(decode(&encode(&grey, 13, 17), 3).unwrap().bytes, spread);
        let weighed = |pixel: &[u8]| {
            (0.299 * f64::from(pixel[0]) + 0.587 * f64::from(pixel[1]) + 0.114 * f64::from(pixel[2])).round() as u8
        };
        let brightness: Vec<u8> = bytes.chunks_exact(3).map(weighed).collect();
        let close = |(a, b): (&u8, &u8)| a.abs_diff(*b) <= 1;
        assert!(decode(&encode(&bytes, 13, 17), 1).unwrap().bytes.iter().zip(&brightness).all(close));
    }
}

#[test]
fn what_is_no_image_says_so() {
    let cases: [(&[u8], &str); 8] = [
        (b"", "empty"),
        (b"GIF89a", "neither"),
        (b"P6 4 4 255", "blank"),
        (b"P6 4 4 65535 ", "largest value"),
        (b"P5 4 x 255 ", "number at byte 5"),
        (b"P5 4 4 255 too short", "9 bytes of pixels where 16"),
        (b"P5 0 4 255 ", "pixels"),
        (b"P5 100000 100000 255 ", "pixels"),
    ];
    for (bytes, cause) in cases {
        let error = decode(bytes, 3).unwrap_err();
        assert!(error.contains(cause), "{error}");
    }
    assert!(decode(&pnm(&[0; 3], 1, 1), 2).unwrap_err().contains("not 2"));
}

#[test]
fn a_png_that_ends_too_early_is_an_error_at_every_length() {
    let whole = png_file(&photo(9, 9), 9, 9);
    // The last chunk has no pixels; all before it is needed.
    for length in 0..whole.len() - 16 {
        assert!(decode(&whole[..length], 3).is_err(), "{length}");
    }
}
