//! Faces, whose age is to be told.
//!
//! Age shows where it does on people: eyes are smaller in proportion, hair goes grey and back, wrinkles cross forehead
//! and cheeks. Everybody is a little ahead of their age in one and behind it in another, so that no single sign tells
//! all; place, size, tilt, skin, hair, ground and light are left to chance.

use super::patterns::{any_colour, finish, ground};
use super::shapes::coverage;
use crate::Unit;
use crate::chance::Chance;
use crate::sample::{Label, Sample};

/// Ages are between 0 and this, evenly.
const OLDEST: f32 = 90.0;

/// Years; with the mean and the deviation of an even distribution.
pub(super) fn unit() -> Unit {
    Unit { mean: OLDEST / 2.0, deviation: OLDEST / 12f32.sqrt(), name: "years".to_owned() }
}

struct Face {
    skin: [f32; 3],
    hair: [f32; 3],
    /// Half the width of an eye.
    eye: f32,
    /// How far up the forehead reaches.
    hairline: f32,
    wrinkles: f32,
    wrinkle_phase: f32,
}

impl Face {
    fn of_age(age: f32, chance: &mut Chance) -> Face {
        // Each sign has its own idea of the age.
        let mut sign = || (age / OLDEST + 0.05 * chance.normal()).clamp(0.0, 1.1);
        let (eyes, greyness, baldness, wrinkles) = (sign(), sign(), sign(), sign());
        let tone = chance.between(0.35, 0.9);
        let pigment = chance.between(0.1, 0.35);
        let grey = ((greyness - 0.25) / 0.6).clamp(0.0, 1.0);
        Face {
            skin: [tone, tone * 0.78, tone * 0.64],
            hair: [0.2 + pigment, 0.1 + pigment * 0.6, 0.08].map(|colour| colour + grey * (0.8 - colour)),
            eye: 0.24 - 0.11 * eyes,
            hairline: -0.35 - 0.35 * baldness,
            wrinkles: 0.22 * wrinkles,
            wrinkle_phase: chance.between(0.0, 6.0),
        }
    }

    /// The colour at a point of the head, which reaches from -1 to 1.
    fn colour(&self, u: f32, v: f32, softness: f32) -> [f32; 3] {
        let mut colour = self.skin;
        let mut lay = |over: [f32; 3], share: f32| {
            colour.iter_mut().zip(over).for_each(|(under, over)| *under += share * (over - *under));
        };
        let lines =
            coverage(0.28 - (v + 0.05).abs(), softness) * (0.5 + 0.5 * (26.0 * v + self.wrinkle_phase + 2.0 * u).sin());
        lay(self.skin.map(|part| part * 0.3), self.wrinkles * 3.0 * lines);
        lay(self.hair, coverage(v - self.hairline + 0.25 * u * u, softness));
        let ellipse =
            |x: f32, y: f32, a: f32, b: f32| (((u.abs() - x) / a).powi(2) + ((v - y) / b).powi(2)).sqrt() * b - b;
        lay([0.95; 3], coverage(ellipse(0.36, -0.08, self.eye, self.eye * 0.6), softness));
        lay([0.1, 0.1, 0.15], coverage(ellipse(0.36, -0.08, self.eye * 0.5, self.eye * 0.5), softness));
        lay([0.55, 0.2, 0.2], coverage(ellipse(0.0, 0.55, 0.35, 0.08), softness));
        colour
    }
}

/// A sample: its value is the age, in deviations from the mean.
pub(super) fn sample(side: usize, noise: f32, chance: &mut Chance) -> Sample {
    let age = chance.between(0.0, OLDEST);
    let face = Face::of_age(age, chance);
    let ground_colour = any_colour(chance);
    let mut image = ground(side, ground_colour, chance);
    let extent = side as f32;
    let (x, y) = (extent * chance.between(0.44, 0.56), extent * chance.between(0.44, 0.56));
    let (half_width, half_height) = (extent * chance.between(0.28, 0.36), extent * chance.between(0.36, 0.44));
    let (sine, cosine) = chance.between(-0.15, 0.15).sin_cos();
    let softness = 1.2 / half_width.max(1.0);
    for row in 0..side {
        for column in 0..side {
            let (dx, dy) = (column as f32 + 0.5 - x, row as f32 + 0.5 - y);
            let (u, v) = ((cosine * dx + sine * dy) / half_width, (cosine * dy - sine * dx) / half_height);
            let covered = coverage((u * u + v * v).sqrt() - 1.0, softness);
            if covered > 0.0 {
                let colour = face.colour(u, v, softness);
                for (band, part) in colour.into_iter().enumerate() {
                    let pixel = &mut image[(band * side + row) * side + column];
                    *pixel += covered * (part - *pixel);
                }
            }
        }
    }
    let Unit { mean, deviation, .. } = unit();
    Sample { image: finish(image, noise, chance), label: Label::Value((age - mean) / deviation) }
}
