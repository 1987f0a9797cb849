//! Changes of colour: brightness, contrast, saturation, hue, and none at all.
//!
//! Each is torchvision's on bytes: a result is cut to a byte before the next change is made.
//!
//! **Invariant:** a pixel depends on the same pixel before; contrast, on the mean brightness as well.

use pulp::{Arch, NullaryFnOnce};

use crate::chance::Chance;
use crate::decode::{Picture, Pixel, grey_of};

/// How much each property may change, as [`Step::ColorJitter`](super::Step::ColorJitter) has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Jitter {
    pub(super) brightness: f32,
    pub(super) contrast: f32,
    pub(super) saturation: f32,
    pub(super) hue: f32,
}

/// Draws the changes and their order, and makes them. All are drawn whether they are wanted or not, so that one does
/// not change what another does.
pub(super) fn jitter(picture: &mut Picture, much: Jitter, chance: &mut Chance) {
    let mut order = [0, 1, 2, 3];
    for last in (1..order.len()).rev() {
        order.swap(last, chance.below(last + 1));
    }
    let mut factor = |much: f32| chance.between((1.0 - much).max(0.0), 1.0 + much);
    let (brightness, contrast, saturation) = (factor(much.brightness), factor(much.contrast), factor(much.saturation));
    let hue = chance.between(-much.hue, much.hue);
    for property in order {
        match property {
            0 if much.brightness > 0.0 => blend(picture, brightness, |_| 0.0),
            1 if much.contrast > 0.0 => {
                let mean = mean_brightness(picture);
                blend(picture, contrast, |_| mean);
            }
            2 if much.saturation > 0.0 => blend(picture, saturation, brightness_of),
            3 if much.hue > 0.0 => turn_hues(picture, hue),
            _ => {}
        }
    }
}

/// Every band becomes the brightness.
pub(super) fn grayscale(picture: &mut Picture) {
    for_each_pixel(picture, grey_of);
}

/// Changes every pixel on its own.
fn for_each_pixel(picture: &mut Picture, change: impl Fn(Pixel) -> Pixel) {
    Arch::new().dispatch(ForEach { pixels: picture.pixels_mut(), change });
}

/// The loop over all pixels. A type of its own, because a closure would not be inlined where vectors are on.
struct ForEach<'a, F> {
    pixels: &'a mut [Pixel],
    change: F,
}

impl<F: Fn(Pixel) -> Pixel> NullaryFnOnce for ForEach<'_, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for pixel in self.pixels {
            *pixel = (self.change)(*pixel);
        }
    }
}

/// torchvision's weights, and its cut to a whole number.
#[inline(always)]
fn brightness_of([red, green, blue, _]: Pixel) -> f32 {
    (0.2989 * f32::from(red) + 0.587 * f32::from(green) + 0.114 * f32::from(blue)).floor()
}

fn mean_brightness(picture: &Picture) -> f32 {
    // Whole numbers, so the order of the sum does not matter.
    let rows = picture.rows().map(|row| row.iter().map(|&pixel| brightness_of(pixel) as u32).sum::<u32>());
    let sum = rows.map(u64::from).sum::<u64>();
    (sum as f64 / picture.pixels().len() as f64) as f32
}

/// `factor` of each pixel, and the rest of a number that is made of the pixel.
fn blend(picture: &mut Picture, factor: f32, other: impl Fn(Pixel) -> f32) {
    for_each_pixel(
        picture,
        #[inline(always)]
        |pixel| {
            let rest = (1.0 - factor) * other(pixel);
            let band = |byte: u8| (factor * f32::from(byte) + rest).clamp(0.0, 255.0) as u8;
            [band(pixel[0]), band(pixel[1]), band(pixel[2]), 0]
        },
    );
}

/// Moves all hues by a share of the circle.
fn turn_hues(picture: &mut Picture, share: f32) {
    for_each_pixel(
        picture,
        #[inline(always)]
        |pixel| with_hue_turned(pixel, share),
    );
}

#[inline(always)]
fn with_hue_turned([red, green, blue, _]: Pixel, share: f32) -> Pixel {
    let [red, green, blue] = [red, green, blue].map(|byte| f32::from(byte) / 255.0);
    let (value, least) = (red.max(green).max(blue), red.min(green).min(blue));
    let span = value - least;
    // Grey has no hue: any divisor will do.
    let divisor = if span == 0.0 { 1.0 } else { span };
    let [from_red, from_green, from_blue] = [red, green, blue].map(|band| (value - band) / divisor);
    let sixths = if value == red {
        from_blue - from_green
    } else if value == green {
        2.0 + from_red - from_blue
    } else {
        4.0 + from_green - from_red
    };
    let hue = sixths / 6.0 + share + 2.0;
    let sixths = (hue - hue.floor()) * 6.0;
    let band = |offset: f32| {
        // How far this band's own hue is away: it is full within a sixth of it, and absent beyond a third.
        let turned = sixths + offset;
        let place = turned - (turned / 6.0).floor() * 6.0;
        let level = value - span * place.min(4.0 - place).clamp(0.0, 1.0);
        // torchvision's scaling: 1 becomes 255, and so do numbers just below it.
        (level * 255.999).clamp(0.0, 255.0) as u8
    };
    [band(5.0), band(3.0), band(1.0), 0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::StreamPurpose;
    use crate::decode::Size;

    fn picture(pixels: &[[u8; 3]]) -> Picture {
        let mut picture = Picture::default();
        let target = picture.reshape(Size { height: 1, width: pixels.len() });
        target.iter_mut().zip(pixels).for_each(|(to, &[red, green, blue])| *to = [red, green, blue, 0]);
        picture
    }

    fn bytes(picture: &Picture) -> Vec<[u8; 3]> {
        picture.pixels().iter().map(|&[red, green, blue, _]| [red, green, blue]).collect()
    }

    #[test]
    fn blends_are_those_of_torchvision() {
        let mut bright = picture(&[[100, 200, 3]]);
        blend(&mut bright, 1.5, |_| 0.0);
        assert_eq!(bytes(&bright), [[150, 255, 4]]);
        let mut flat = picture(&[[100, 200, 3], [0, 0, 0]]);
        let mean = mean_brightness(&flat);
        // 0.2989 * 100 + 0.587 * 200 + 0.114 * 3 = 147.6; with black, half of 147.
        assert_eq!(mean, 73.5);
        blend(&mut flat, 0.5, |_| mean);
        assert_eq!(bytes(&flat), [[86, 136, 38], [36, 36, 36]]);
        let mut pale = picture(&[[100, 200, 3]]);
        blend(&mut pale, 0.0, brightness_of);
        assert_eq!(bytes(&pale), [[147, 147, 147]]);
    }

    #[test]
    fn hues_go_around_the_circle_and_grey_stays_grey() {
        let pure = [[255, 0, 0], [0, 255, 0], [0, 0, 255], [90, 90, 90], [255, 255, 0]];
        for (share, expected) in [
            (1.0 / 3.0, [[0, 255, 0], [0, 0, 255], [255, 0, 0], [90, 90, 90], [0, 255, 255]]),
            (-1.0 / 3.0, [[0, 0, 255], [255, 0, 0], [0, 255, 0], [90, 90, 90], [255, 0, 255]]),
            (0.5, [[0, 255, 255], [255, 0, 255], [255, 255, 0], [90, 90, 90], [0, 0, 255]]),
        ] {
            let mut turned = picture(&pure);
            turn_hues(&mut turned, share);
            let close = |(a, b): (&[u8; 3], &[u8; 3])| a.iter().zip(b).all(|(a, b)| a.abs_diff(*b) <= 1);
            assert!(bytes(&turned).iter().zip(&expected).all(close), "{share}: {:?}", bytes(&turned));
        }
        let all: Vec<[u8; 3]> = (0..=255).map(|level| [level, 255 - level, level / 2]).collect();
        let mut same = picture(&all);
        turn_hues(&mut same, 0.0);
        let close = |(a, b): (&[u8; 3], &[u8; 3])| a.iter().zip(b).all(|(a, b)| a.abs_diff(*b) <= 1);
        assert!(bytes(&same).iter().zip(&all).all(close));
    }

    #[test]
    fn one_property_does_not_change_what_another_draws() {
        let draw = |much: Jitter| {
            let mut changed = picture(&[[100, 150, 30], [1, 2, 3], [200, 100, 0]]);
            jitter(&mut changed, much, &mut Chance::new(3, StreamPurpose::Augmentation, 0, 0));
            bytes(&changed)
        };
        let none = Jitter { brightness: 0.0, contrast: 0.0, saturation: 0.0, hue: 0.0 };
        assert_eq!(draw(none), [[100, 150, 30], [1, 2, 3], [200, 100, 0]]);
        let bright = draw(Jitter { brightness: 0.5, ..none });
        assert_ne!(bright, draw(none));
        // A hue that is moved by next to nothing leaves the brightness as it was drawn.
        let both = draw(Jitter { brightness: 0.5, hue: 1e-6, ..none });
        let close = |(a, b): (&[u8; 3], &[u8; 3])| a.iter().zip(b).all(|(a, b)| a.abs_diff(*b) <= 2);
        assert!(both.iter().zip(&bright).all(close), "{both:?} {bright:?}");
    }
}
