//! Recipes as a whole: what comes out, what is drawn, and what is refused.

use super::*;
use crate::chance::StreamPurpose;
use crate::decode::tests::{photo, pnm};

fn chance(sample: u64) -> Chance {
    Chance::new(5, StreamPurpose::Augmentation, 1, sample)
}

fn recipe(text: &str, bands: usize, element: Element, layout: Layout) -> Result<Recipe, String> {
    Recipe::new(steps(text)?, bands, element, layout)
}

fn apply(recipe: &Recipe, encoded: &[u8], sample: u64) -> Vec<u8> {
    let mut out = vec![0xaa; recipe.sample_bytes()];
    recipe.apply(encoded, &mut chance(sample), &mut out, &mut Scratch::default()).unwrap();
    out
}

/// Bytes, pixel by pixel.
fn bytes(text: &str, encoded: &[u8], sample: u64) -> Vec<u8> {
    apply(&recipe(text, 3, Element::U8, Layout::Nhwc).unwrap(), encoded, sample)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&number| f32::from_ne_bytes(number)).collect()
}

/// A triangle filter in double precision: `from` numbers along an axis become `to`.
fn reference_weights(from: usize, to: usize) -> Vec<Vec<f64>> {
    let step = from as f64 / to as f64;
    let radius = step.max(1.0);
    let row = |new: usize| {
        let middle = (new as f64 + 0.5) * step;
        let weights: Vec<f64> =
            (0..from).map(|old| (1.0 - (old as f64 + 0.5 - middle).abs() / radius).max(0.0)).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / sum).collect()
    };
    (0..to).map(row).collect()
}

/// A part of RGB bytes, resized in double precision.
fn reference_resize(bytes: &[u8], width: usize, part: Rect, to: Size) -> Vec<f64> {
    let (down, across) = (reference_weights(part.height, to.height), reference_weights(part.width, to.width));
    let mut result = Vec::new();
    for row in &down {
        for column in &across {
            for band in 0..3 {
                let at = |y: usize, x: usize| f64::from(bytes[((part.top + y) * width + part.left + x) * 3 + band]);
                let line = |y: usize| column.iter().enumerate().map(|(x, weight)| weight * at(y, x)).sum::<f64>();
                let weighed = row.iter().enumerate().filter(|(_, weight)| **weight > 0.0);
                result.push(weighed.map(|(y, weight)| weight * line(y)).sum());
            }
        }
    }
    result
}

fn assert_close(bytes: &[u8], expected: &[f64], most: f64) {
    assert_eq!(bytes.len(), expected.len());
    let worst = bytes.iter().zip(expected).map(|(&a, b)| (f64::from(a) - b).abs()).fold(0.0, f64::max);
    assert!(worst <= most, "off by {worst}");
}

#[test]
fn resizing_is_that_of_a_triangle_filter_in_double_precision() {
    let (height, width) = (37, 53);
    let image = photo(height, width);
    let encoded = pnm(&image, height, width);
    let whole = Rect::whole(Size { height, width });
    for (high, wide) in [(20, 20), (37, 20), (90, 100), (5, 53), (36, 52), (1, 1), (13, 160)] {
        let to = Size { height: high, width: wide };
        let expected = reference_resize(&image, width, whole, to);
        // Both passes round once, to a half each.
        assert_close(&bytes(&format!("resize={high}x{wide}"), &encoded, 0), &expected, 1.1);
    }
}

#[test]
fn a_crop_after_a_resize_is_a_part_of_the_resized_image() {
    let (height, width) = (61, 83);
    let image = photo(height, width);
    let encoded = pnm(&image, height, width);
    // The shorter side becomes 30, the longer one 83 * 30 / 61 = 40.8 without its fraction.
    let resized = reference_resize(&image, width, Rect::whole(Size { height, width }), Size { height: 30, width: 40 });
    let cut = bytes("resize=30,center-crop=20x24", &encoded, 0);
    let rows = resized.chunks_exact(40 * 3).skip(5).take(20);
    let expected: Vec<f64> = rows.flat_map(|row| row[8 * 3..32 * 3].to_vec()).collect();
    assert_close(&cut, &expected, 1.1);
}

#[test]
fn a_random_resized_crop_is_a_crop_and_then_a_resize() {
    let (height, width) = (61, 83);
    let image = photo(height, width);
    let encoded = pnm(&image, height, width);
    for sample in 0..20 {
        let step = Step::random_resized_crop(24);
        let one = Recipe::new(vec![step.clone()], 3, Element::U8, Layout::Nhwc).unwrap();
        let view = View::whole(Size { height, width }).after(&step, || one.stream(0, &chance(sample))).unwrap();
        let expected = reference_resize(&image, width, view.allowed, Size { height: 24, width: 24 });
        assert_close(&apply(&one, &encoded, sample), &expected, 1.1);
    }
}

#[test]
fn random_resized_crops_have_the_wanted_areas_and_proportions() {
    let size = Size { height: 375, width: 500 };
    let step = Step::random_resized_crop(224);
    let mut areas = Vec::new();
    for sample in 0..2000 {
        let Rect { height, width, .. } = View::whole(size).after(&step, || chance(sample)).unwrap().part();
        let ratio = width as f64 / height as f64;
        assert!((0.74..1.35).contains(&ratio), "{ratio}");
        areas.push((height * width) as f64 / (375.0 * 500.0));
    }
    assert!(areas.iter().all(|area| (0.079..=1.0).contains(area)));
    let mean = areas.iter().sum::<f64>() / areas.len() as f64;
    // Large areas often do not fit in drawn proportions and are drawn again: 0.432, by the integral over both.
    assert!((mean - 0.432).abs() < 0.02, "{mean}");
    // Where nothing fits, the middle is taken with the nearest allowed proportions.
    let long = View::whole(Size { height: 10, width: 1000 }).after(&step, || chance(0)).unwrap().part();
    assert_eq!(long, Rect { top: 0, left: 494, height: 10, width: 13 });
}

#[test]
fn crops_pad_with_black_where_images_are_too_small() {
    let image = photo(5, 6);
    let encoded = pnm(&image, 5, 6);
    let padded = bytes("center-crop=8x4", &encoded, 0);
    // One row above, two below; one column is cut on either side.
    let row = |number: usize| &padded[number * 12..][..12];
    assert_eq!(row(0), [0; 12]);
    assert_eq!(row(1), &image[3..15]);
    assert_eq!(row(5), &image[4 * 18 + 3..][..12]);
    assert_eq!(row(6), [0; 12]);
    let mut offsets = std::collections::BTreeSet::new();
    for sample in 0..200 {
        let cut = bytes("random-crop=5x6:padding=1", &encoded, sample);
        let found = (-1isize..=1).flat_map(|top| (-1isize..=1).map(move |left| (top, left))).find(|&(top, left)| {
            cut.chunks_exact(3).enumerate().all(|(number, pixel)| {
                let (y, x) = ((number / 6) as isize + top, (number % 6) as isize + left);
                let inside = (0..5).contains(&y) && (0..6).contains(&x);
                let expected = if inside { &image[(y * 6 + x) as usize * 3..][..3] } else { &[0; 3][..] };
                pixel == expected
            })
        });
        offsets.insert(found.expect("the crop is a shifted image"));
    }
    assert_eq!(offsets.len(), 9);
    let small = recipe("random-crop=9", 3, Element::U8, Layout::Nhwc).unwrap();
    let mut out = vec![0; small.sample_bytes()];
    let error = small.apply(&encoded, &mut chance(0), &mut out, &mut Scratch::default()).unwrap_err();
    assert!(error.contains("random-crop=9") && error.contains("6 x 5"), "{error}");
}

#[test]
fn elements_and_layouts_hold_the_same_numbers() {
    let image = photo(4, 7);
    let encoded = pnm(&image, 4, 7);
    let text = "center-crop=4x7,normalize=imagenet";
    let planes = floats(&apply(&recipe(text, 3, Element::F32, Layout::Nchw).unwrap(), &encoded, 0));
    let pixels = floats(&apply(&recipe(text, 3, Element::F32, Layout::Nhwc).unwrap(), &encoded, 0));
    let (mean, std) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
    for (number, byte) in image.iter().enumerate() {
        let (pixel, band) = (number / 3, number % 3);
        let expected = (f64::from(*byte) / 255.0 - mean[band]) / std[band];
        assert!((f64::from(pixels[number]) - expected).abs() < 2e-6);
        assert_eq!(planes[band * 28 + pixel], pixels[number]);
    }
    for layout in [Layout::Nchw, Layout::Nhwc] {
        let full = floats(&apply(&recipe(text, 3, Element::F32, layout).unwrap(), &encoded, 0));
        let halves = apply(&recipe(text, 3, Element::F16, layout).unwrap(), &encoded, 0);
        let brains = apply(&recipe(text, 3, Element::BF16, layout).unwrap(), &encoded, 0);
        for ((full, half), brain) in full.iter().zip(halves.as_chunks().0).zip(brains.as_chunks().0) {
            assert_eq!(half::f16::from_ne_bytes(*half), half::f16::from_f32(*full));
            assert_eq!(half::bf16::from_ne_bytes(*brain), half::bf16::from_f32(*full));
        }
    }
    let unscaled = floats(&apply(&recipe("center-crop=4x7", 3, Element::F32, Layout::Nhwc).unwrap(), &encoded, 0));
    assert!(unscaled.iter().zip(&image).all(|(a, b)| (a - f32::from(*b) / 255.0).abs() < 1e-7));
    let grey = apply(&recipe("center-crop=4x7", 1, Element::U8, Layout::Nchw).unwrap(), &encoded, 0);
    assert_eq!(grey, crate::decode::decode(&encoded, 1).unwrap().bytes);
}

#[test]
fn flips_mirror_half_of_the_samples_and_come_in_any_order() {
    let image = photo(3, 4);
    let encoded = pnm(&image, 3, 4);
    let mirrored = |columns: bool, rows: bool| -> Vec<u8> {
        let place = |y: usize, x: usize| (if rows { 2 - y } else { y } * 4 + if columns { 3 - x } else { x }) * 3;
        (0..12).flat_map(|number| image[place(number / 4, number % 4)..][..3].to_vec()).collect()
    };
    let mut seen = [0; 4];
    for sample in 0..400 {
        let out = bytes("center-crop=3x4,flip,vertical-flip", &encoded, sample);
        let which = (0..4).find(|which| out == mirrored(which & 1 > 0, which & 2 > 0)).unwrap();
        seen[which] += 1;
        // A step that is left out does not change what the other draws.
        assert_eq!(bytes("center-crop=3x4,flip", &encoded, sample), mirrored(which & 1 > 0, false));
        // Before a crop, pixels are mirrored at once.
        let early = bytes("flip,center-crop=3x2", &encoded, sample);
        assert_eq!(early[..6], mirrored(which & 1 > 0, false)[3..9]);
    }
    assert!(seen.iter().all(|count| (60..140).contains(count)), "{seen:?}");
}

#[test]
fn erasing_fills_a_part_in_the_units_of_its_place() {
    let encoded = pnm(&[255; 20 * 30 * 3], 20, 30);
    let text = "center-crop=20x30,erase=1:scale=0.1..0.2:fill=0";
    let erased = |out: &[f32], value: f32| out.iter().filter(|number| (**number - value).abs() < 1e-6).count();
    let mut places = std::collections::BTreeSet::new();
    for sample in 0..40 {
        for layout in [Layout::Nchw, Layout::Nhwc] {
            let last = recipe(&format!("{text},normalize=0.5:0.5"), 3, Element::F32, layout).unwrap();
            let before = floats(&apply(&last, &encoded, sample));
            let share = erased(&before, -1.0) as f64 / 1800.0;
            assert!((0.08..0.22).contains(&share), "{share}");
            assert_eq!(erased(&before, 1.0) + erased(&before, -1.0), 1800);
            let first = recipe("center-crop=20x30,normalize=0.5:0.5,erase=1:scale=0.1..0.2", 3, Element::F32, layout);
            let after = floats(&apply(&first.unwrap(), &encoded, sample));
            assert!(before.iter().zip(&after).all(|(a, b)| (*a == -1.0) == (*b == 0.0)));
        }
        let out = bytes(text, &encoded, sample);
        places.insert(out.iter().position(|byte| *byte == 0).unwrap());
        // A flip behind it moves the erased part, too.
        let flipped = bytes(&format!("{text},flip=1"), &encoded, sample);
        let back: Vec<u8> = flipped.chunks_exact(90).flat_map(|row| row.rchunks_exact(3).flatten()).copied().collect();
        assert_eq!(back, out);
    }
    assert!(places.len() > 20);
    let noise = recipe("center-crop=20x30,normalize=0.5:0.5,erase=1:fill=noise", 3, Element::F32, Layout::Nchw);
    let out = floats(&apply(&noise.unwrap(), &encoded, 1));
    let drawn: std::collections::BTreeSet<u32> = out.iter().map(|number| number.to_bits()).collect();
    assert!(drawn.len() > 30);
}

#[test]
fn colours_turns_and_grey_can_stand_anywhere_before_numbers() {
    let image = photo(20, 20);
    let encoded = pnm(&image, 20, 20);
    let grey = bytes("center-crop=20,grayscale", &encoded, 0);
    assert!(grey.chunks_exact(3).all(|pixel| pixel[0] == pixel[1] && pixel[1] == pixel[2]));
    let same = bytes("center-crop=20,rotate=0,color-jitter=0:0:0:0", &encoded, 0);
    assert_eq!(same, image);
    let turned = bytes("rotate=30,color-jitter=0.4:0.4:0.4:0.1,random-resized-crop=9,flip,grayscale", &encoded, 3);
    assert!(turned.iter().any(|byte| *byte != turned[0]));
    // With one band, colours are changed before they become grey.
    let one = recipe("center-crop=20,color-jitter=0:0:0.9:0,grayscale", 1, Element::U8, Layout::Nchw).unwrap();
    assert_eq!(one.colours, Colours::Rgb);
    assert_eq!(recipe("center-crop=20,grayscale", 1, Element::U8, Layout::Nchw).unwrap().colours, Colours::Grey);
    assert_eq!(apply(&one, &encoded, 0).len(), 400);
}

#[test]
fn results_do_not_depend_on_the_thread_or_on_what_was_done_before() {
    let images: Vec<Vec<u8>> =
        [(37, 53), (64, 20), (9, 9), (128, 128)].iter().map(|&(h, w)| pnm(&photo(h, w), h, w)).collect();
    let text = "random-resized-crop=16,flip,color-jitter=0.4:0.4:0.4:0.1,rotate=10,normalize=imagenet,erase";
    let recipe = recipe(text, 3, Element::F32, Layout::Nchw).unwrap();
    let expected: Vec<Vec<u8>> = (0..16).map(|sample| apply(&recipe, &images[sample % 4], sample as u64)).collect();
    std::thread::scope(|scope| {
        for stride in [1, 3, 5, 7] {
            let (recipe, images, expected) = (&recipe, &images, &expected);
            scope.spawn(move || {
                let mut scratch = Scratch::default();
                let mut out = vec![0; recipe.sample_bytes()];
                for sample in (0..16).map(|number| number * stride % 16) {
                    let mut chance = chance(sample as u64);
                    recipe.apply(&images[sample % 4], &mut chance, &mut out, &mut scratch).unwrap();
                    assert_eq!(out, expected[sample]);
                }
                assert!(recipe.apply(b"no image", &mut chance(0), &mut out, &mut scratch).is_err());
                recipe.apply(&images[0], &mut chance(0), &mut out, &mut scratch).unwrap();
                assert_eq!(out, expected[0]);
                let times = scratch.take_times();
                assert!(times.decode_ns > 0 && times.transform_ns > 0 && times.store_ns > 0);
            });
        }
    });
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (text, bands, element, cause) in [
        ("flip", 3, Element::U8, "different sizes"),
        ("resize=256,flip", 3, Element::U8, "different sizes"),
        ("resize=9x9", 2, Element::U8, "not 2"),
        ("resize=9x9,normalize=imagenet", 3, Element::U8, "bytes"),
        ("resize=9x9,normalize=imagenet", 1, Element::F32, "one for each of 1"),
        ("resize=9x9,erase:fill=noise", 3, Element::U8, "no step"),
        ("resize=9x9,erase=0.5:fill=noise", 3, Element::U8, "constant"),
        ("resize=9x9,normalize=0:1,center-crop=8", 3, Element::F32, "stands behind `normalize=0:1`"),
        ("resize=9x9,erase,grayscale", 3, Element::F32, "stands behind"),
        ("resize=9x9,normalize=0:1,normalize=0:1", 3, Element::F32, "twice"),
        ("resize=9x9,normalize=0:0", 3, Element::F32, "above 0"),
        ("resize=0x9", 3, Element::F32, "1 to 65535"),
        ("resize=0,center-crop=1", 3, Element::F32, "1 to 65535"),
        ("center-crop=65535", 3, Element::F32, "too many"),
        ("random-crop=9:padding=70000", 3, Element::F32, "padding"),
        ("center-crop=9,flip=2", 3, Element::F32, "probability"),
        ("random-resized-crop=9:scale=0..1", 3, Element::F32, "scale"),
        ("random-resized-crop=9:ratio=2..1", 3, Element::F32, "scale"),
        ("center-crop=9,rotate=200", 3, Element::F32, "degrees"),
        ("center-crop=9,color-jitter=0:0:0:0.6", 3, Element::F32, "hue"),
    ] {
        let error = recipe(text, bands, element, Layout::Nchw).map(|_| ()).unwrap_err();
        assert!(error.contains(cause), "{text}: {error}");
    }
    // A shorter side is enough where a size is known already.
    assert_eq!(
        recipe("center-crop=20x10,resize=5", 3, Element::U8, Layout::Nchw).unwrap().size,
        Size { height: 10, width: 5 }
    );
    let huge = recipe("resize=65535,rotate=3,center-crop=4", 3, Element::U8, Layout::Nchw).unwrap();
    let mut out = vec![0; huge.sample_bytes()];
    let encoded = pnm(&[0; 300], 1, 100);
    let error = huge.apply(&encoded, &mut chance(0), &mut out, &mut Scratch::default()).unwrap_err();
    assert!(error.contains("too large"), "{error}");
}
