//! Classes that are shapes, with textures and hues where there are many.
//!
//! A class is up to three things at once: one of ten shapes; beyond ten classes one of ten textures; beyond a hundred
//! one of ten differences between the hues of shape and ground. Each is about how parts of an image relate to each
//! other. Where the shape is, how large, how it is turned, what colours there are, from where light comes and what
//! clouds lie over it is left to chance, and whether the shape is brighter or darker than its ground, too: so the mean
//! image of every class is the same grey.

use super::shapes;
use crate::chance::Chance;
use crate::sample::{Label, Sample, normalised};

/// Classes that can be told apart: shapes, textures, differences of hue.
pub const MAX_CLASSES: usize = shapes::SHAPES * shapes::TEXTURES * HUES;

/// Differences between hues: 36 degrees is about what people still tell apart at a glance.
const HUES: usize = 10;

/// See the module's text.
#[derive(Clone, Debug)]
pub(super) struct Patterns {
    pub(super) classes: usize,
}

/// Red, green, blue, from 0 to 1.
pub(super) type Colour = [f32; 3];

/// A shape with its place, turn and colours.
pub(super) struct Figure {
    pub(super) shape: usize,
    pub(super) texture: usize,
    /// The middle and the radius, in pixels.
    pub(super) x: f32,
    pub(super) y: f32,
    pub(super) radius: f32,
    /// Cosine and sine of its turn.
    pub(super) turn: (f32, f32),
    pub(super) colour: Colour,
    /// Of the texture's other parts.
    pub(super) second: Colour,
}

impl Figure {
    /// Lays the figure over what is there. Edges are `softness_pixels` wide.
    pub(super) fn draw(&self, image: &mut [f32], side: usize, softness_pixels: f32) {
        let (cosine, sine) = self.turn;
        let softness = softness_pixels / self.radius;
        // Beyond this no shape reaches.
        let reach = 1.4 * self.radius + softness_pixels;
        let from = |middle: f32| (middle - reach).floor().clamp(0.0, side as f32) as usize;
        let to = |middle: f32| (middle + reach).ceil().clamp(0.0, side as f32) as usize;
        let (red, rest) = image.split_at_mut(side * side);
        let (green, blue) = rest.split_at_mut(side * side);
        for row in from(self.y)..to(self.y) {
            let dy = (row as f32 + 0.5 - self.y) / self.radius;
            for column in from(self.x)..to(self.x) {
                let dx = (column as f32 + 0.5 - self.x) / self.radius;
                let (u, v) = (cosine * dx + sine * dy, cosine * dy - sine * dx);
                let covered = shapes::coverage(shapes::distance(self.shape, u, v), softness);
                if covered > 0.0 {
                    let other = shapes::texture(self.texture, u, v);
                    let place = row * side + column;
                    for (band, plane) in [&mut *red, &mut *green, &mut *blue].into_iter().enumerate() {
                        let paint = self.colour[band] + other * (self.second[band] - self.colour[band]);
                        plane[place] += covered * (paint - plane[place]);
                    }
                }
            }
        }
    }
}

/// A ground of one colour in the light of one side, under thin clouds.
pub(super) fn ground(side: usize, colour: Colour, chance: &mut Chance) -> Vec<f32> {
    let wave = |chance: &mut Chance, cycles: f32, amplitude: f32| {
        let (along_x, along_y) = chance.direction();
        let per_pixel = chance.between(0.4, 1.0) * cycles * std::f32::consts::TAU / side as f32;
        (
            along_x * per_pixel,
            along_y * per_pixel,
            chance.between(0.0, std::f32::consts::TAU),
            chance.between(0.3, 1.0) * amplitude,
        )
    };
    let waves = [wave(chance, 0.5, 0.1), wave(chance, 2.0, 0.05), wave(chance, 2.0, 0.05)];
    let mut light = Vec::with_capacity(side * side);
    // sin(a + n b) for n = 0, 1, ... by rotation, a row at a time: two multiplications instead of a sine.
    let turns = waves.map(|(per_column, ..)| per_column.sin_cos());
    for row in 0..side {
        let mut state = waves.map(|(_, per_row, phase, amplitude)| {
            let (sine, cosine) = (phase + per_row * row as f32).sin_cos();
            (amplitude * sine, amplitude * cosine)
        });
        for _ in 0..side {
            light.push(state[0].0 + state[1].0 + state[2].0);
            for ((sine, cosine), (turn_sine, turn_cosine)) in state.iter_mut().zip(turns) {
                (*sine, *cosine) =
                    (*sine * turn_cosine + *cosine * turn_sine, *cosine * turn_cosine - *sine * turn_sine);
            }
        }
    }
    colour.into_iter().flat_map(|base| light.iter().map(move |light| base + light)).collect()
}

/// Noise on every pixel; then as numbers of an image.
pub(super) fn finish(mut image: Vec<f32>, noise: f32, chance: &mut Chance) -> Vec<f32> {
    if noise > 0.0 {
        image.iter_mut().for_each(|value| *value = normalised(*value + noise * chance.noise()));
    } else {
        image.iter_mut().for_each(|value| *value = normalised(*value));
    }
    image
}

/// Any colour that leaves room for others.
pub(super) fn any_colour(chance: &mut Chance) -> Colour {
    std::array::from_fn(|_| chance.between(0.2, 0.8))
}

/// A colour that is so far away from another one, in any direction: brighter as often as darker.
pub(super) fn apart_from(colour: Colour, contrast: f32, chance: &mut Chance) -> Colour {
    let direction: [f32; 3] = std::array::from_fn(|_| chance.normal());
    let length = direction.iter().map(|part| part * part).sum::<f32>().sqrt().max(1e-3);
    std::array::from_fn(|band| {
        let part = contrast * direction[band] / length;
        // What would leave the range of brightness goes the other way.
        let there = colour[band] + part;
        if (0.0..=1.0).contains(&there) { there } else { colour[band] - part }
    })
}

/// A colour of a hue, in degrees.
fn of_hue(degrees: f32, brightness: f32, chroma: f32) -> Colour {
    std::array::from_fn(|band| brightness + chroma * (degrees - 120.0 * band as f32).to_radians().cos())
}

impl Patterns {
    /// A sample. Classes take turns, so that a data set has as many of each as can be.
    pub(super) fn sample(&self, index: usize, side: usize, noise: f32, chance: &mut Chance) -> Sample {
        let class = index % self.classes;
        let (shape, texture, hue) = (class % 10, class / 10 % 10, class / 100);
        let (ground_colour, colour) = if self.classes <= 100 {
            let ground_colour = any_colour(chance);
            let contrast = chance.between(0.45, 0.8);
            (ground_colour, apart_from(ground_colour, contrast, chance))
        } else {
            let any = chance.between(0.0, 360.0);
            let (dark, bright) = (chance.between(0.25, 0.4), chance.between(0.6, 0.75));
            let (below, above) = if chance.happens(0.5) { (dark, bright) } else { (bright, dark) };
            (of_hue(any, below, 0.2), of_hue(any + 36.0 * hue as f32, above, 0.2))
        };
        let extent = side as f32;
        let figure = Figure {
            shape,
            texture,
            x: extent * chance.between(0.38, 0.62),
            y: extent * chance.between(0.38, 0.62),
            radius: (extent * chance.between(0.3, 0.44)).max(1.0),
            turn: chance.direction(),
            colour,
            // A texture lies between shape and ground, and a little beyond the shape.
            second: std::array::from_fn(|band| 0.35 * colour[band] + 0.65 * ground_colour[band]),
        };
        let mut image = ground(side, ground_colour, chance);
        figure.draw(&mut image, side, 1.0);
        Sample { image: finish(image, noise, chance), label: Label::Class(class as u32) }
    }
}
