//! From entropy-coded bytes to samples: the loop over all MCUs of a scan.
//!
//! An *MCU* is the smallest unit that has samples of all components: `across` times `down` blocks of each. Codes have
//! no marks between them, so everything before the last block that is wanted has to be read; but of blocks that nobody
//! wants, no coefficient is kept, and MCUs that lie wholly behind the wanted ones are not read. Where there are restart
//! markers, reading begins at the last one before the first wanted row.
//!
//! **Invariant:** a block of a [`Plane`] that has been read to its end has all its samples, whatever the bytes are.

use super::bits::{Bits, Segments};
use super::huffman::{END_OF_BLOCK, Table};
use super::idct::{self, Block};
use super::lanes::Vectors;

/// The samples of one component that are wanted, and room for them.
#[derive(Default)]
pub(super) struct Plane {
    pub(super) bytes: Vec<u8>,
    /// Samples from one row to the next.
    pub(super) stride: usize,
    /// Wanted blocks: first and end, across and down. None where the component is not wanted.
    pub(super) columns: (usize, usize),
    pub(super) rows: (usize, usize),
    /// Samples of a block in each direction: 8, or less where the image is reduced.
    pub(super) points: usize,
}

impl Plane {
    /// Makes room for wanted blocks.
    pub(super) fn make_room(&mut self, columns: (usize, usize), rows: (usize, usize), points: usize) {
        (self.columns, self.rows, self.points) = (columns, rows, points);
        self.stride = (columns.1 - columns.0) * points;
        self.bytes.resize(self.stride * (rows.1 - rows.0) * points, 0);
    }

    /// Writes the samples of a block, which has been cleared but for its coefficients; clears it again.
    #[inline(always)]
    fn put<V: Vectors>(&mut self, v: V, row: usize, column: usize, block: &mut Block, only_first: bool) {
        let points = self.points;
        let begin = (row - self.rows.0) * points * self.stride + (column - self.columns.0) * points;
        let target = &mut self.bytes[begin..];
        match points {
            8 if only_first => {
                let level = idct::flat(block[0]);
                copy(target, self.stride, [[level; 8]; 8]);
            }
            8 => copy(target, self.stride, idct::full(v, block)),
            4 => copy(target, self.stride, idct::quarter(block)),
            2 => copy(target, self.stride, idct::sixteenth(block)),
            _ => copy(target, self.stride, [[idct::flat(block[0])]]),
        }
        if only_first {
            block[0] = 0;
        } else {
            block[..64].fill(0);
        }
    }
}

#[inline(always)]
fn copy<const POINTS: usize>(target: &mut [u8], stride: usize, samples: [[u8; POINTS]; POINTS]) {
    for (row, samples) in samples.iter().enumerate() {
        target[row * stride..][..POINTS].copy_from_slice(samples);
    }
}

/// What a component needs to be read.
pub(super) struct Track<'a> {
    pub(super) dc: &'a Table,
    pub(super) ac: &'a Table,
    /// By the number of a coefficient in the order of the scan: its place in a block (upper half) and what it is
    /// multiplied with (lower half). Numbers beyond 63 have a place where nobody looks.
    pub(super) steps: [u32; 256],
    /// Blocks of an MCU.
    pub(super) across: usize,
    pub(super) down: usize,
    /// The first coefficient of the last block: those of the next are relative to it.
    pub(super) last_dc: i32,
}

/// The order in which coefficients are coded: from low to high frequencies.
const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21,
    28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54,
    47, 55, 62, 63,
];

/// Behind the coefficients of a block.
const NOWHERE: u32 = 64;

/// The table for [`Track::steps`].
pub(super) fn steps(quant: &[u16; 64]) -> [u32; 256] {
    let step = |number: usize| ZIGZAG.get(number).zip(quant.get(number)).map(|(&place, &q)| (place.into(), q.into()));
    std::array::from_fn(|number| step(number).map_or(NOWHERE << 16, |(place, q): (u32, u32)| place << 16 | q))
}

/// The image as a grid of MCUs.
pub(super) struct Grid {
    pub(super) mcus_across: usize,
    pub(super) mcus_down: usize,
    /// Zero without restart markers.
    pub(super) restart_interval: usize,
}

/// Reads all blocks that planes want.
#[inline(always)]
pub(super) fn read<V: Vectors>(
    v: V,
    segments: &Segments,
    grid: &Grid,
    tracks: &mut [Track<'_>],
    planes: &mut [Plane],
) -> Result<(), String> {
    let wanted = || tracks.iter().zip(planes.iter()).filter(|(_, plane)| plane.rows.0 < plane.rows.1);
    let mcu_rows = |edge: fn(&Plane) -> usize| wanted().map(move |(track, plane)| (edge(plane), track.down));
    let first_row = mcu_rows(|plane| plane.rows.0).map(|(row, down)| row / down).min().unwrap_or(0);
    let end_row = mcu_rows(|plane| plane.rows.1).map(|(row, down)| row.div_ceil(down)).max().unwrap_or(0);
    let interval = if grid.restart_interval == 0 { usize::MAX } else { grid.restart_interval };
    let mut piece = first_row * grid.mcus_across / interval;
    let mut mcu = piece * interval.min(grid.mcus_across * grid.mcus_down);
    let end = end_row.min(grid.mcus_down) * grid.mcus_across;
    let mut block: Block = [0; 128];
    while mcu < end {
        let damaged = |what: &str, mcu: usize| {
            let (row, column) = (mcu / grid.mcus_across, mcu % grid.mcus_across);
            format!("no whole JPEG: {what} in column {column} of row {row} of its MCUs")
        };
        let mut bits = segments.piece(piece).ok_or_else(|| damaged("a restart marker is missing", mcu))?;
        tracks.iter_mut().for_each(|track| track.last_dc = 0);
        let piece_end = mcu.saturating_add(interval).min(end);
        while mcu < piece_end {
            let (row, column) = (mcu / grid.mcus_across, mcu % grid.mcus_across);
            let row_end = piece_end.min((row + 1) * grid.mcus_across);
            let columns = column..column + (row_end - mcu);
            if !read_row(v, &mut bits, row, columns, tracks, planes, &mut block) {
                return Err(damaged("there is an invalid code before the end", row_end - 1));
            }
            if bits.is_overrun() {
                return Err(damaged("the data ends", row_end - 1));
            }
            mcu = row_end;
        }
        piece += 1;
    }
    Ok(())
}

/// Reads MCUs of one row. False where a code is invalid.
#[inline(always)]
fn read_row<V: Vectors>(
    v: V,
    bits: &mut Bits<'_>,
    row: usize,
    columns: std::ops::Range<usize>,
    tracks: &mut [Track<'_>],
    planes: &mut [Plane],
    block: &mut Block,
) -> bool {
    let mut sound = true;
    for column in columns {
        for (track, plane) in tracks.iter_mut().zip(planes.iter_mut()) {
            for y in row * track.down..(row + 1) * track.down {
                let wanted_row = plane.rows.0 <= y && y < plane.rows.1;
                for x in column * track.across..(column + 1) * track.across {
                    let wanted = wanted_row && plane.columns.0 <= x && x < plane.columns.1;
                    if wanted {
                        let end = read_block::<true>(bits, track, block);
                        sound &= !(64..END_OF_BLOCK as usize).contains(&end);
                        plane.put(v, y, x, block, end == END_OF_BLOCK as usize);
                    } else {
                        let end = read_block::<false>(bits, track, block);
                        sound &= !(64..END_OF_BLOCK as usize).contains(&end);
                    }
                }
            }
        }
    }
    sound
}

/// What [`read_block`] returns for a code that does not exist.
const INVALID: usize = 64;

/// Reads the coefficients of a block, and multiplies and keeps them where wanted. Returns the number of the last one:
/// 63, or [`END_OF_BLOCK`] plus the last one before the end. What lies between is an error.
#[inline(always)]
fn read_block<const KEEP: bool>(bits: &mut Bits<'_>, track: &mut Track<'_>, block: &mut Block) -> usize {
    bits.refill();
    let entry = track.dc.look_up(bits.word());
    let first = if entry.is_found() {
        entry.first()
    } else {
        let Some(found) = track.dc.search(bits.word()) else { return INVALID };
        found
    };
    bits.skip(first.bits);
    track.last_dc = track.last_dc.wrapping_add(first.value);
    if KEEP {
        block[0] = track.last_dc.wrapping_mul((track.steps[0] & 0xffff) as i32);
    }
    let steps = &track.steps;
    let mut put = |number: usize, value: i32| {
        if KEEP {
            let step = steps[number & 255];
            // Added, for an entry without a second coefficient adds nothing to the first.
            let place = &mut block[(step >> 16) as usize & 127];
            *place = place.wrapping_add(value.wrapping_mul((step & 0xffff) as i32));
        }
    };
    let mut number = 0;
    loop {
        bits.refill();
        let entry = track.ac.look_up(bits.word());
        if !entry.is_found() {
            let Some(found) = track.ac.search(bits.word()) else { return INVALID };
            number += found.advance as usize;
            put(number, found.value);
            bits.skip(found.bits);
            if number >= 63 {
                return number;
            }
            continue;
        }
        let first = entry.first();
        number += first.advance as usize;
        put(number, first.value);
        if number >= 63 {
            bits.skip(first.bits);
            return number;
        }
        let second = entry.second();
        number += second.advance as usize;
        put(number, second.value);
        bits.skip(second.bits);
        if number >= 63 {
            return number;
        }
    }
}
