//! Huffman codes of a JPEG as tables that give a coefficient, or two of them, in one step.
//!
//! A *symbol* says how many zeros come before a coefficient (its run) and how many bits the coefficient has; these bits
//! follow the symbol's code. A table is looked up with the next [`LOOKUP_BITS`] bits. Where code and bits of a
//! coefficient fit into them, the entry has the coefficient; where those of a second one fit, too, it has both. All
//! else is found by comparing with the largest code of each length.
//!
//! **Invariant:** an entry never claims bits that were not part of the lookup.

/// Bits that a table is looked up with. Two coefficients of a usual photo have twelve bits or fewer; with more, tables
/// leave no room for anything else in the first-level cache.
pub(super) const LOOKUP_BITS: u32 = 11;

const ENTRIES: usize = 1 << LOOKUP_BITS;

/// How far the end of a block takes the number of the coefficient: beyond all that a run can reach by mistake.
pub(super) const END_OF_BLOCK: u32 = 128;

/// Codes as a file lists them.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Spec {
    /// How many codes there are of each length from 1 to 16.
    counts: [u8; 16],
    /// By code.
    symbols: [u8; 256],
}

impl Default for Spec {
    fn default() -> Spec {
        Spec { counts: [0; 16], symbols: [0; 256] }
    }
}

impl Spec {
    /// Reads codes, and returns what follows them.
    pub(super) fn parse(bytes: &[u8]) -> Option<(Spec, &[u8])> {
        let (&counts, rest) = bytes.split_first_chunk()?;
        let total = counts.iter().map(|&count| usize::from(count)).sum();
        let mut symbols = [0; 256];
        let (listed, rest) = rest.split_at_checked(total)?;
        symbols.get_mut(..total)?.copy_from_slice(listed);
        // Codes of one length are consecutive numbers that have to fit into it.
        let mut code = 0u32;
        for (length, &count) in (1..).zip(&counts) {
            code = 2 * code + u32::from(count);
            if code > 1 << length {
                return None;
            }
        }
        Some((Spec { counts, symbols }, rest))
    }

    /// Calls back with length, code and symbol of every code, short ones first.
    fn for_each(&self, mut visit: impl FnMut(u32, u32, u8)) {
        let (mut code, mut number) = (0, 0);
        for (length, &count) in (1..).zip(&self.counts) {
            for _ in 0..count {
                visit(length, code, self.symbols[number]);
                code += 1;
                number += 1;
            }
            code <<= 1;
        }
    }
}

/// Codes of any length.
#[derive(Clone)]
struct Codes {
    /// For each length: the next 16 bits are below this exactly if their code has this length or less.
    limits: [u32; 17],
    /// For each length: what makes a code the number of its symbol.
    offsets: [i32; 17],
    symbols: [u8; 256],
}

impl Codes {
    fn new(spec: &Spec) -> Codes {
        let (mut limits, mut offsets) = ([0; 17], [0; 17]);
        let (mut code, mut number) = (0u32, 0i32);
        for (length, &count) in (1..).zip(&spec.counts) {
            offsets[length] = number - code as i32;
            code += u32::from(count);
            number += i32::from(count);
            limits[length] = code << (16 - length);
            code <<= 1;
        }
        Codes { limits, offsets, symbols: spec.symbols }
    }

    /// The symbol whose code the bits begin with, and the code's length.
    fn find(&self, word: u64) -> Option<(u8, u32)> {
        let bits = (word >> 48) as u32;
        let length = (1..=16).find(|&length| bits < self.limits[length])?;
        let number = (bits >> (16 - length)) as i32 + self.offsets[length];
        Some((self.symbols[usize::try_from(number).ok()? & 255], length as u32))
    }
}

/// The number that `size` bits stand for: those that begin with zero are negative.
#[inline(always)]
fn extend(bits: u32, size: u32) -> i32 {
    let bits = bits as i32;
    if size > 0 && bits < 1 << (size - 1) { bits - (1 << size) + 1 } else { bits }
}

/// One coefficient with its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Coefficient {
    /// Bits of code and coefficient.
    pub(super) bits: u32,
    /// How far it is from the coefficient before: its run, and one.
    pub(super) advance: u32,
    pub(super) value: i32,
}

impl Coefficient {
    fn new(symbol: u8, code_bits: u32, kind: Kind, magnitude: impl FnOnce(u32) -> u32) -> Coefficient {
        let (run, size) = match kind {
            Kind::Dc => (0, u32::from(symbol & 15)),
            Kind::Ac => (u32::from(symbol >> 4), u32::from(symbol & 15)),
        };
        let value = if size == 0 { 0 } else { extend(magnitude(size), size) };
        // No bits mean the end of the block, or sixteen zeros.
        let advance = if kind == Kind::Ac && size == 0 && run < 15 { END_OF_BLOCK } else { run + 1 };
        Coefficient { bits: code_bits + size, advance, value }
    }

    fn pack(self) -> u32 {
        self.bits | self.advance << 8 | (self.value as u32) << 16
    }
}

/// Which coefficients: the first of a block, or all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Dc,
    Ac,
}

/// A table for one kind of coefficients. See the module's text.
pub(super) struct Table {
    spec: Spec,
    codes: Codes,
    kind: Kind,
    entries: Box<[Entry; ENTRIES]>,
}

/// One or two coefficients, or none where a lookup is not enough.
///
/// Lower half: the first coefficient; bits 0 to 7 have its length, 8 to 15 its advance, 16 to 31 its value. Upper half:
/// the second one, with the length of both; with an advance and value of zero where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry(u64);

impl Entry {
    #[inline(always)]
    pub(super) fn is_found(self) -> bool {
        self.0 != 0
    }

    #[inline(always)]
    pub(super) fn first(self) -> Coefficient {
        unpack(self.0 as u32)
    }

    /// The second one; its bits are those of both.
    #[inline(always)]
    pub(super) fn second(self) -> Coefficient {
        unpack((self.0 >> 32) as u32)
    }
}

#[inline(always)]
fn unpack(packed: u32) -> Coefficient {
    Coefficient { bits: packed & 255, advance: packed >> 8 & 255, value: packed as i32 >> 16 }
}

impl Table {
    pub(super) fn new(spec: &Spec, kind: Kind) -> Table {
        let mut table =
            Table { spec: spec.clone(), codes: Codes::new(spec), kind, entries: Box::new([Entry(0); ENTRIES]) };
        table.fill();
        table
    }

    /// Makes it a table for other codes, if they are others: the next image often has the same.
    pub(super) fn renew(&mut self, spec: &Spec) {
        if self.spec != *spec {
            (self.spec, self.codes) = (spec.clone(), Codes::new(spec));
            self.fill();
        }
    }

    fn fill(&mut self) {
        let kind = self.kind;
        let mut single = [0u32; ENTRIES];
        self.spec.for_each(|length, code, symbol| {
            let size = u32::from(symbol & 15);
            let Some(rest) = LOOKUP_BITS.checked_sub(length + size) else { return };
            for magnitude in 0..1 << size {
                let coefficient = Coefficient::new(symbol, length, kind, |_| magnitude);
                let begin = ((code << size | magnitude) << rest) as usize;
                single[begin..begin + (1 << rest)].fill(coefficient.pack());
            }
        });
        for (index, entry) in self.entries.iter_mut().enumerate() {
            let first = single[index];
            let Coefficient { bits, advance, .. } = unpack(first);
            let next = single[index << bits & (ENTRIES - 1)];
            let both = bits + (next & 255);
            let pair = kind == Kind::Ac && first != 0 && next != 0 && advance != END_OF_BLOCK && both <= LOOKUP_BITS;
            let second = if pair { next & !255 | both } else { bits };
            *entry = Entry(u64::from(second) << 32 | u64::from(first));
        }
    }

    /// What the next bits of a word, the highest first, stand for.
    #[inline(always)]
    pub(super) fn look_up(&self, word: u64) -> Entry {
        self.entries[(word >> (64 - LOOKUP_BITS)) as usize]
    }

    /// One coefficient whose bits do not fit into a lookup. Nothing where no code begins so.
    #[cold]
    #[inline(never)]
    pub(super) fn search(&self, word: u64) -> Option<Coefficient> {
        let (symbol, length) = self.codes.find(word)?;
        Some(Coefficient::new(symbol, length, self.kind, |size| ((word << length) >> (64 - size)) as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three codes: 0 for the end of a block, 10 for one bit after no zeros, 110 for ten bits after three zeros.
    fn spec() -> Spec {
        let mut bytes = [0; 19];
        bytes[..3].copy_from_slice(&[1, 1, 1]);
        bytes[16..].copy_from_slice(&[0x00, 0x01, 0x3a]);
        Spec::parse(&bytes).unwrap().0
    }

    #[test]
    fn a_lookup_gives_two_coefficients_or_one_or_none() {
        let table = Table::new(&spec(), Kind::Ac);
        // 10 1, 10 0, end.
        let entry = table.look_up(0b1011_0000 << 56);
        assert_eq!(entry.first(), Coefficient { bits: 3, advance: 1, value: 1 });
        assert_eq!(entry.second(), Coefficient { bits: 6, advance: 1, value: -1 });
        let end = table.look_up(0);
        assert_eq!(end.first(), Coefficient { bits: 1, advance: END_OF_BLOCK, value: 0 });
        assert_eq!(end.second(), Coefficient { bits: 1, advance: 0, value: 0 });
        // A long one: 110 and ten bits.
        let word = 0b1101_0000_0000_1000 << 48;
        assert!(!table.look_up(word).is_found());
        assert_eq!(table.search(word), Some(Coefficient { bits: 13, advance: 4, value: 513 }));
        assert_eq!(table.search(0b111 << 61), None);
    }

    #[test]
    fn codes_that_do_not_fit_are_no_codes() {
        let mut bytes = [0; 16 + 3];
        bytes[0] = 3;
        assert!(Spec::parse(&bytes).is_none());
        assert!(Spec::parse(&bytes[..10]).is_none());
        bytes[..2].copy_from_slice(&[0, 3]);
        assert!(Spec::parse(&bytes).is_some());
        assert!(Spec::parse(&bytes[..18]).is_none());
    }
}
