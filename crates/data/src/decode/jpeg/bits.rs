//! The entropy-coded bytes of a JPEG as a stream of bits.
//!
//! A byte 0xff is followed by a zero there, or begins a marker. [`Segments`] takes all of that out beforehand, in one
//! pass over the bytes that goes at the speed of copying; then [`Bits`] loads eight bytes at a time without a look at
//! them. It also finds out whether the image has an end, however little of it is decoded.
//!
//! **Invariant:** beyond the end of a segment there are zeros, and [`Bits::is_overrun`] says that they were used.

/// Bytes that are looked at in one step: those of a vector register.
const CHUNK: usize = 32;

/// Zeros behind each segment, as many as one load takes: loads near the end are like all others.
const PADDING: usize = 8;

/// Entropy-coded bytes without stuffing, in pieces between restart markers.
#[derive(Default)]
pub(super) struct Segments {
    bytes: Vec<u8>,
    /// Begin and end of each piece.
    pieces: Vec<(usize, usize)>,
}

impl Segments {
    /// Takes the bytes behind the header of a scan, up to the next marker that is not for restarting.
    #[inline(always)]
    pub(super) fn read(&mut self, scan: &[u8]) -> Result<(), String> {
        self.pieces.clear();
        // Without stuffing there are less bytes; each piece has padding in place of a marker of two.
        self.bytes.clear();
        let (mut begin, mut at) = (0, 0);
        loop {
            let plain = plain_bytes(&scan[at..]);
            self.bytes.extend_from_slice(&scan[at..at + plain]);
            at += plain;
            match scan[at..].first_chunk::<2>() {
                Some([_, 0]) => {
                    self.bytes.push(0xff);
                    at += 2;
                }
                // A marker may have any number of these before it.
                Some([_, 0xff]) => at += 1,
                Some([_, marker]) => {
                    self.pieces.push((begin, self.bytes.len()));
                    self.bytes.extend([0; PADDING]);
                    begin = self.bytes.len();
                    if *marker != 0xd0 + ((self.pieces.len() - 1) & 7) as u8 {
                        return Ok(());
                    }
                    at += 2;
                }
                None => return Err("no whole JPEG: the image ends before its last row".to_owned()),
            }
        }
    }

    /// The bits of a piece.
    pub(super) fn piece(&self, number: usize) -> Option<Bits<'_>> {
        let &(begin, end) = self.pieces.get(number)?;
        Some(Bits { bytes: &self.bytes[begin..end + PADDING], at: 0, word: 0, count: 0, length: end - begin })
    }
}

/// How many bytes come before the next 0xff.
#[inline(always)]
fn plain_bytes(bytes: &[u8]) -> usize {
    let (chunks, rest) = bytes.as_chunks::<CHUNK>();
    let plain = chunks.iter().take_while(|chunk| !chunk.iter().fold(false, |found, &byte| found | (byte == 0xff)));
    let begin = plain.count() * CHUNK;
    let last = chunks.get(begin / CHUNK).map_or(rest, |chunk| &chunk[..]);
    begin + last.iter().position(|&byte| byte == 0xff).unwrap_or(last.len())
}

/// A stream of bits, the highest of a byte first.
#[derive(Clone)]
pub(super) struct Bits<'a> {
    bytes: &'a [u8],
    /// The next byte to be loaded.
    at: usize,
    /// The next bits, the first one highest.
    word: u64,
    /// How many bits of the word are counted as loaded; those below may be there already.
    count: u32,
    /// Bytes without padding.
    length: usize,
}

impl Bits<'_> {
    /// The next bits: at least 56 of them after [`Bits::refill`], less those that were skipped since.
    #[inline(always)]
    pub(super) fn word(&self) -> u64 {
        self.word
    }

    /// Loads bits.
    #[inline(always)]
    pub(super) fn refill(&mut self) {
        let next = match self.bytes.get(self.at..self.at + 8) {
            Some(&[a, b, c, d, e, f, g, h]) => u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            _ => self.last_bytes(),
        };
        self.word |= next >> self.count;
        self.at += ((63 - self.count) >> 3) as usize;
        self.count |= 56;
    }

    /// Fewer than eight bytes, with zeros behind them.
    #[cold]
    fn last_bytes(&self) -> u64 {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        rest.iter().take(8).zip((0..8).rev()).fold(0, |word, (&byte, place)| word | u64::from(byte) << (8 * place))
    }

    /// Goes on by so many bits; there are as many.
    #[inline(always)]
    pub(super) fn skip(&mut self, bits: u32) {
        self.word <<= bits;
        self.count = self.count.wrapping_sub(bits);
    }

    /// Whether more bits were used than there are.
    pub(super) fn is_overrun(&self) -> bool {
        8 * self.at > 8 * self.length + self.count as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        let mut segments = Segments::default();
        segments.read(bytes)?;
        Ok(segments.pieces.iter().map(|&(begin, end)| segments.bytes[begin..end].to_vec()).collect())
    }

    #[test]
    fn stuffing_and_markers_are_taken_out() {
        assert_eq!(read(&[1, 0xff, 0, 2, 0xff, 0xd9]).unwrap(), [vec![1, 0xff, 2]]);
        assert_eq!(read(&[1, 0xff, 0xd0, 2, 0xff, 0xff, 0xd1, 0xff, 0xd9]).unwrap(), [vec![1], vec![2], vec![]]);
        // Out of order: the second piece ends the scan.
        assert_eq!(read(&[1, 0xff, 0xd0, 2, 0xff, 0xd4, 3]).unwrap(), [vec![1], vec![2]]);
        let long: Vec<u8> = (0..255).cycle().take(1000).collect();
        let stuffed: Vec<u8> = [&long[..], &[0xff, 0], &long[..], &[0xff, 0xd9]].concat();
        assert_eq!(read(&stuffed).unwrap(), [[&long[..], &[0xff], &long[..]].concat()]);
        for length in 0..stuffed.len() {
            assert!(read(&stuffed[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn bits_come_in_order_and_zeros_behind_them() {
        let mut segments = Segments::default();
        let bytes: Vec<u8> = (0..40).map(|number| number * 6 + 3).collect();
        segments.read(&[&bytes[..], &[0xff, 0xd9]].concat()).unwrap();
        for step in 1..=16 {
            let mut bits = segments.piece(0).unwrap();
            let mut used = 0;
            while used < 8 * bytes.len() + 200 {
                bits.refill();
                for place in 0..step {
                    let bit = used + place;
                    let expected = bytes.get(bit / 8).map_or(0, |byte| byte >> (7 - bit % 8) & 1);
                    assert_eq!((bits.word() >> (63 - place)) as u8 & 1, expected, "bit {bit}");
                }
                bits.skip(step as u32);
                used += step;
                assert_eq!(bits.is_overrun(), used > 8 * bytes.len());
            }
        }
        assert!(segments.piece(1).is_none());
    }
}
