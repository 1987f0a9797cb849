//! Shapes and textures: where in the plane they are.
//!
//! A shape is a function that is negative inside and positive outside and grows about as fast as the distance from the
//! shape's edge, so that an edge can be drawn as soft as a pixel is wide. Shapes have a radius of about one, around the
//! origin. None of them becomes another one by turning or mirroring, so augmentation changes no class.

/// Number of shapes.
pub(super) const SHAPES: usize = 10;

/// Where a point is in relation to one of the shapes.
pub(super) fn distance(shape: usize, u: f32, v: f32) -> f32 {
    let radius = || (u * u + v * v).sqrt();
    match shape {
        // A disc.
        0 => radius() - 0.85,
        // A ring.
        1 => (radius() - 0.72).abs() - 0.2,
        // A square.
        2 => u.abs().max(v.abs()) - 0.72,
        // A triangle: inside of three lines.
        3 => (0.866 * u - 0.5 * v).max(-0.866 * u - 0.5 * v).max(v) - 0.48,
        // A plus: two bars.
        4 => {
            let bar = |a: f32, b: f32| (a.abs() - 0.27).max(b.abs() - 0.95);
            bar(u, v).min(bar(v, u))
        }
        // A star with five soft rays. cos(5 phi) as a polynomial of cos(phi), which is u / radius.
        5 => {
            let r = radius().max(1e-6);
            let c = u / r;
            let c2 = c * c;
            r - (0.62 + 0.36 * c * (16.0 * c2 * c2 - 20.0 * c2 + 5.0))
        }
        // Three bars, side by side.
        6 => {
            let near = u - (u / 0.62).round().clamp(-1.0, 1.0) * 0.62;
            (near.abs() - 0.16).max(v.abs() - 0.78)
        }
        // A chessboard of four by four.
        7 => {
            let wave = |x: f32| 0.225 - (x.rem_euclid(0.9) - 0.45).abs();
            let (a, b) = (wave(u), wave(v));
            let odd = if (a > 0.0) == (b > 0.0) { a.abs().min(b.abs()) } else { -a.abs().min(b.abs()) };
            odd.max(u.abs().max(v.abs()) - 0.9)
        }
        // Nine dots.
        8 => {
            let near = |x: f32| x - (x / 0.62).round().clamp(-1.0, 1.0) * 0.62;
            let (du, dv) = (near(u), near(v));
            (du * du + dv * dv).sqrt() - 0.19
        }
        // A crescent: a disc without another.
        _ => {
            let (du, dv) = (u - 0.42, v);
            (radius() - 0.9).max(0.68 - (du * du + dv * dv).sqrt())
        }
    }
}

/// Number of textures.
pub(super) const TEXTURES: usize = 10;

/// How much of a texture's second colour is at a point, from 0 to 1.
pub(super) fn texture(texture: usize, u: f32, v: f32) -> f32 {
    let wave = |x: f32| 0.5 + 0.5 * x.sin();
    let step = |x: f32| (0.5 + 2.0 * x).clamp(0.0, 1.0);
    match texture {
        // Nothing.
        0 => 0.0,
        // Fine lines.
        1 => wave(26.0 * v),
        // Broad lines.
        2 => wave(9.0 * v),
        // Squares.
        3 => step((8.0 * u).sin() * (8.0 * v).sin()),
        // Fine dots.
        4 => step((14.0 * u).sin() + (14.0 * v).sin() - 1.0),
        // From dark to bright.
        5 => (0.5 + 0.6 * v).clamp(0.0, 1.0),
        // Rings.
        6 => wave(18.0 * (u * u + v * v).sqrt()),
        // Spokes.
        7 => step((8.0 * v.atan2(u)).sin()),
        // Zigzag.
        8 => wave(14.0 * v + 3.0 * ((2.2 * u).rem_euclid(2.0) - 1.0).abs() * 2.0),
        // A net.
        _ => step(0.8 - ((11.0 * u).sin().abs()).min((11.0 * v).sin().abs()) * 2.5),
    }
}

/// How much of a pixel is inside, where an edge is `softness` wide.
pub(super) fn coverage(distance: f32, softness: f32) -> f32 {
    (0.5 - distance / softness).clamp(0.0, 1.0)
}
