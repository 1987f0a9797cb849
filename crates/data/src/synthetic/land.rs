//! Land as a satellite sees it: twelve bands of three resolutions, and labels that keep company.
//!
//! An image shows a *landscape* (a coast, fields, a town, ...). Labels that belong to it are likely, a few others may
//! be there, and many never are: so labels occur together or exclude each other as they do on maps, some are common and
//! some are rare. The ground is divided among the labels of the image, each around some points that are nearest (a
//! Voronoi diagram with uneven edges). Each label has a spectrum, one brightness for each band, and a grain, both the
//! same in all images of the data set. Light and haze differ from image to image.
//!
//! Bands are painted on their own grids, 10, 20 and 60 metres, and then brought to the finest one, as everybody does
//! who feeds them to one network.

use crate::chance::{Chance, StreamPurpose};
use crate::sample::{Label, Sample, normalised};
use crate::transform::resample::{Grid, resample};

/// Bands.
pub(super) const BANDS: usize = 12;
/// Labels, as many as BigEarthNet has kinds of land cover.
pub(super) const LABELS: usize = 43;
/// A pixel of the coarsest bands is so many of the finest on a side.
pub(super) const COARSEST: usize = 6;

/// How many pixels of the finest grid a pixel of each band is on a side: B01 to B12 of Sentinel-2 without B10.
const COARSENESS: [usize; BANDS] = [6, 1, 1, 1, 2, 2, 2, 1, 2, 6, 2, 2];

/// Labels on one image, at most.
const MOST_LABELS: usize = 12;

/// Landscapes: a share of all images, and the first and the last of the labels that belong there. Neighbours overlap,
/// so that some labels belong to two.
const LANDSCAPES: [(f32, usize, usize); 7] =
    [(0.12, 0, 10), (0.26, 9, 18), (0.16, 17, 22), (0.24, 20, 28), (0.06, 27, 33), (0.08, 32, 37), (0.08, 36, 42)];

/// See the module's text.
#[derive(Clone, Debug)]
pub(super) struct Land {
    covers: Vec<Cover>,
}

/// What a label looks like.
#[derive(Clone, Debug)]
struct Cover {
    spectrum: [f32; BANDS],
    /// Brightness changes so much from place to place,
    grain: f32,
    /// so many times on the way across the image, and in this direction.
    cycles: f32,
    along: (f32, f32),
}

/// A point of an image and the label of what is nearest to it.
struct Site {
    x: f32,
    y: f32,
    label: usize,
}

impl Land {
    /// What labels look like in the data set of this seed.
    pub(super) fn new(seed: u64) -> Land {
        let cover = |label: usize| {
            let mut chance = Chance::new(seed, StreamPurpose::World, label as u64, 0);
            let spectrum = std::array::from_fn(|_| chance.between(0.15, 0.85));
            let (grain, cycles) = (chance.between(0.03, 0.12), chance.between(4.0, 24.0));
            Cover { spectrum, grain, cycles, along: chance.direction() }
        };
        Land { covers: (0..LABELS).map(cover).collect() }
    }

    /// The labels of an image: those of a landscape, the first of them more often, and rarely one from elsewhere.
    fn labels(chance: &mut Chance) -> Vec<usize> {
        let mut draw = chance.share();
        let landscape = LANDSCAPES.iter().find(|(share, ..)| {
            draw -= share;
            draw < 0.0
        });
        let (_, first, last) = landscape.unwrap_or(&LANDSCAPES[1]);
        // Three on average, as in BigEarthNet, and seldom many.
        let mut wanted = 1;
        while wanted < MOST_LABELS && chance.happens(0.66) {
            wanted += 1;
        }
        let mut labels: Vec<usize> = Vec::with_capacity(wanted);
        for _ in 0..wanted {
            let label = if chance.happens(0.06) {
                chance.below(LABELS)
            } else {
                // The square of an even number: small ones are common.
                let place = chance.share();
                first + ((place * place) * (last - first + 1) as f32) as usize
            };
            if !labels.contains(&label) {
                labels.push(label);
            }
        }
        labels
    }

    /// A sample of `side` pixels, a multiple of [`COARSEST`].
    pub(super) fn sample(&self, side: usize, noise: f32, chance: &mut Chance) -> Sample {
        let labels = Land::labels(chance);
        // Two sites for each label, so that none is covered up by its neighbours.
        let mut place = |label: usize| Site { x: chance.share(), y: chance.share(), label };
        let sites: Vec<Site> = labels.iter().chain(&labels).map(|label| place(*label)).collect();
        let (light, haze) = (chance.between(0.85, 1.15), chance.between(-0.06, 0.06));
        let bends = [chance.between(0.0, 6.0), chance.between(0.0, 6.0)];
        let fine = Grid { height: side, width: side };
        let mut image = Vec::with_capacity(BANDS * side * side);
        let maps = [1, 2, COARSEST].map(|coarseness| (coarseness, map(&sites, side / coarseness, bends)));
        let mut seen = [false; LABELS];
        maps[0].1.iter().for_each(|label| seen[*label as usize] = true);
        for (band, coarseness) in COARSENESS.into_iter().enumerate() {
            let own_side = side / coarseness;
            let own = maps.iter().find(|(of, _)| *of == coarseness).map_or(&maps[0].1, |(_, map)| map);
            let painted = self.paint(own, own_side, band, light, haze, noise, chance);
            image.extend(resample(&painted, Grid { height: own_side, width: own_side }, fine));
        }
        let label = seen.map(|seen| f32::from(u8::from(seen))).to_vec();
        Sample { image, label: Label::Labels(label) }
    }

    #[allow(clippy::too_many_arguments, reason = "light and haze are those of one image, noise that of the data set")]
    fn paint(
        &self,
        map: &[u8],
        side: usize,
        band: usize,
        light: f32,
        haze: f32,
        noise: f32,
        chance: &mut Chance,
    ) -> Vec<f32> {
        let per_pixel = std::f32::consts::TAU / side as f32;
        let pixel = |(place, label): (usize, &u8)| {
            let Cover { spectrum, grain, cycles, along } = &self.covers[*label as usize];
            let (row, column) = ((place / side) as f32, (place % side) as f32);
            let wave = (cycles * per_pixel * (along.0 * column + along.1 * row)).sin();
            normalised((spectrum[band] + grain * wave) * light + haze + noise * chance.noise())
        };
        map.iter().enumerate().map(pixel).collect()
    }
}

/// Which label is where, on a grid of `side` pixels.
fn map(sites: &[Site], side: usize, bends: [f32; 2]) -> Vec<u8> {
    let mut labels = Vec::with_capacity(side * side);
    let step = 1.0 / side as f32;
    for row in 0..side {
        let y = (row as f32 + 0.5) * step;
        let bend_x = 0.04 * (9.0 * y + bends[0]).sin();
        for column in 0..side {
            let x = (column as f32 + 0.5) * step;
            let (at_x, at_y) = (x + bend_x, y + 0.04 * (9.0 * x + bends[1]).sin());
            let distance = |site: &Site| (site.x - at_x).powi(2) + (site.y - at_y).powi(2);
            let mut nearest = (f32::INFINITY, 0);
            for site in sites {
                let from_here = distance(site);
                if from_here < nearest.0 {
                    nearest = (from_here, site.label);
                }
            }
            labels.push(nearest.1 as u8);
        }
    }
    labels
}
