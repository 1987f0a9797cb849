//! JPEG of the usual kind, decoded no further than needed.
//!
//! Nearly all data sets have baseline JPEGs. For those, this decoder gives any part of an image, and the whole or a
//! part at 1/2, 1/4 or 1/8 of its size. It does the work in two phases: `scan` reads codes and transforms the blocks
//! that are wanted into planes of samples; `colour` makes pixels of them. At full size, results are the bits of
//! libjpeg with its usual settings (accurate transform, fancy upsampling), which PIL and torchvision use.
//!
//! **What is checked.** An image without an end is an error, however small the wanted part is. Codes are checked up to
//! the last MCU row with wanted samples; damage behind it is not found. Damage that happens to be made of valid codes
//! is never found: the format has no checksum.
//!
//! **Invariant:** the pixels of a part are those of the same part of the whole image.
//!
//! What is deliberately not here: progressive images, arithmetic codes, four components, 12 bits and unusual sampling;
//! `zune-jpeg` does those.

mod bits;
mod colour;
mod header;
mod huffman;
mod idct;
mod lanes;
mod scan;

use std::time::Instant;

use pulp::{Arch, NullaryFnOnce};

use super::{Colours, Picture, Rect, Size};
use bits::Segments;
use colour::{Geometry, Rows};
pub(super) use header::Header;
use huffman::{Kind, Table};
use lanes::Vectors;
use scan::{Grid, Plane, Track};

/// Memory that is used again.
#[derive(Default)]
pub(super) struct Decoder {
    segments: Segments,
    planes: [Plane; 3],
    dc: [Option<Table>; 4],
    ac: [Option<Table>; 4],
    rows: Rows,
    /// Nanoseconds so far of the second phase.
    pub(super) colour_ns: u64,
}

impl Decoder {
    /// Decodes a part of an image at `1 / reduction` of its size (1, 2, 4 or 8). The part is in pixels of the reduced
    /// image, and lies within it.
    pub(super) fn decode(
        &mut self,
        header: &Header,
        encoded: &[u8],
        part: Rect,
        reduction: usize,
        colours: Colours,
        picture: &mut Picture,
    ) -> Result<(), String> {
        let chroma = self.plan(header, part, reduction, colours);
        let Decoder { segments, planes, dc, ac, rows, colour_ns } = self;
        let mut tracks = Vec::with_capacity(header.components.len());
        for component in &header.components {
            renew(&mut dc[component.dc], &header.dc[component.dc], Kind::Dc);
            renew(&mut ac[component.ac], &header.ac[component.ac], Kind::Ac);
        }
        let built = "invariant: tables were made for all components";
        for component in &header.components {
            tracks.push(Track {
                dc: dc[component.dc].as_ref().expect(built),
                ac: ac[component.ac].as_ref().expect(built),
                steps: scan::steps(&header.quant[component.quant]),
                across: component.across,
                down: component.down,
                last_dc: 0,
            });
        }
        let grid = grid(header);
        let bytes = &encoded[header.scan_at..];
        read(segments, bytes, &grid, &mut tracks, planes)?;
        let clock = Instant::now();
        let grey = colours == Colours::Grey || header.components.len() == 1;
        Arch::new().dispatch(ToPixels { planes, chroma, grey, part, rows, picture });
        *colour_ns += clock.elapsed().as_nanos() as u64;
        Ok(())
    }

    /// Decides which blocks of each component are wanted, and makes room for them. Returns how colour differences lie
    /// in the image.
    fn plan(&mut self, header: &Header, part: Rect, reduction: usize, colours: Colours) -> Geometry {
        let mut chroma = Geometry::default();
        for (number, plane) in self.planes.iter_mut().enumerate() {
            let wanted = number == 0 || (colours == Colours::Rgb && number < header.components.len());
            if !wanted {
                plane.make_room((0, 0), (0, 0), 8 / reduction);
                continue;
            }
            let geometry = geometry(header, number, reduction);
            let points = points(header, number, reduction);
            // Filters look at one more sample on either side.
            let reach = |begin: usize, end: usize, pixels: usize, whole: usize| {
                let more = pixels - 1;
                (
                    (begin / pixels).saturating_sub(more) / points,
                    (end.div_ceil(pixels) + more).min(whole).div_ceil(points),
                )
            };
            let columns = reach(part.left, part.right(), geometry.across, geometry.width);
            let rows = reach(part.top, part.bottom(), geometry.down, geometry.height);
            plane.make_room(columns, rows, points);
            if number == 1 {
                chroma = geometry;
            }
        }
        chroma
    }
}

/// The first phase, with the vectors of this processor.
fn read(
    segments: &mut Segments,
    bytes: &[u8],
    grid: &Grid,
    tracks: &mut [Track<'_>],
    planes: &mut [Plane],
) -> Result<(), String> {
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = pulp::x86::V3::try_new() {
        return simd.vectorize(ToSamples { vectors: simd, segments, bytes, grid, tracks, planes });
    }
    ToSamples { vectors: lanes::Portable, segments, bytes, grid, tracks, planes }.call()
}

/// The first phase. A type of its own, because a closure would not be inlined where vectors are on.
struct ToSamples<'a, 'b, V> {
    vectors: V,
    segments: &'a mut Segments,
    bytes: &'a [u8],
    grid: &'a Grid,
    tracks: &'a mut [Track<'b>],
    planes: &'a mut [Plane],
}

impl<V: Vectors> NullaryFnOnce for ToSamples<'_, '_, V> {
    type Output = Result<(), String>;

    #[inline(always)]
    fn call(self) -> Result<(), String> {
        let Self { vectors, segments, bytes, grid, tracks, planes } = self;
        segments.read(bytes)?;
        scan::read(vectors, segments, grid, tracks, planes)
    }
}

/// The second phase.
struct ToPixels<'a> {
    planes: &'a [Plane; 3],
    chroma: Geometry,
    grey: bool,
    part: Rect,
    rows: &'a mut Rows,
    picture: &'a mut Picture,
}

impl NullaryFnOnce for ToPixels<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { planes, chroma, grey, part, rows, picture } = self;
        let pixels = picture.reshape(part.size());
        for (row, pixels) in (part.top..).zip(pixels.chunks_exact_mut(part.width)) {
            if grey {
                colour::grey_row(&planes[0], row, part.left, pixels);
            } else {
                colour::rgb_row(planes, chroma, row, part.left, rows, pixels);
            }
        }
    }
}

fn renew(table: &mut Option<Table>, spec: &huffman::Spec, kind: Kind) {
    match table {
        Some(table) => table.renew(spec),
        None => *table = Some(Table::new(spec, kind)),
    }
}

fn grid(header: &Header) -> Grid {
    let luma = header.components[0];
    Grid {
        mcus_across: header.size.width.div_ceil(8 * luma.across),
        mcus_down: header.size.height.div_ceil(8 * luma.down),
        restart_interval: header.restart_interval,
    }
}

/// Samples of a block in each direction. Where the image is reduced and colour differences have half of the resolution
/// both ways, they are reduced by half as much, and need no upsampling.
fn points(header: &Header, number: usize, reduction: usize) -> usize {
    let luma = header.components[0];
    if number > 0 && reduction > 1 && (luma.across, luma.down) == (2, 2) { 16 / reduction } else { 8 / reduction }
}

fn geometry(header: &Header, number: usize, reduction: usize) -> Geometry {
    let Size { height, width } = reduced_size(header.size, reduction);
    let luma = header.components[0];
    let halved = number > 0 && points(header, number, reduction) == 8 / reduction;
    let (across, down) = if halved { (luma.across, luma.down) } else { (1, 1) };
    Geometry { across, down, width: width.div_ceil(across), height: height.div_ceil(down) }
}

/// The size of a reduced image.
pub(super) fn reduced_size(size: Size, reduction: usize) -> Size {
    Size { height: size.height.div_ceil(reduction), width: size.width.div_ceil(reduction) }
}

#[cfg(test)]
mod tests;
