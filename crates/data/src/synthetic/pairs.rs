//! Images and their coarser selves.
//!
//! The large image is a scene of figures whose edges are two pixels wide, so that it holds little that its grid cannot;
//! the small one is what a camera with coarser pixels would have seen of it, the means over squares of pixels. What was
//! lost is known all the same to whoever has learned that edges are sharp and shapes are regular, and that is what
//! there is to learn.

use super::patterns::{Figure, any_colour, apart_from, finish, ground};
use super::shapes;
use crate::chance::Chance;
use crate::sample::{Label, Sample};
use crate::transform::resample::{Grid, coarsen};

/// A pair: the smaller image of `side` pixels, the larger one as its label.
pub(super) fn sample(side: usize, scale: usize, chance: &mut Chance) -> Sample {
    let fine = side * scale;
    let base = any_colour(chance);
    let mut image = ground(fine, base, chance);
    for _ in 0..chance.below(4) + 3 {
        let contrast = chance.between(0.3, 0.8);
        let colour = apart_from(base, contrast, chance);
        let figure = Figure {
            shape: chance.below(shapes::SHAPES),
            texture: chance.below(3),
            x: fine as f32 * chance.between(0.05, 0.95),
            y: fine as f32 * chance.between(0.05, 0.95),
            radius: (fine as f32 * chance.between(0.1, 0.35)).max(1.0),
            turn: chance.direction(),
            colour,
            second: std::array::from_fn(|band| 0.5 * colour[band] + 0.5 * base[band]),
        };
        figure.draw(&mut image, fine, 2.0);
    }
    let larger = finish(image, 0.0, chance);
    Sample { image: coarsen(&larger, Grid { height: fine, width: fine }, scale), label: Label::Image(larger) }
}
