//! Eight numbers at once: what the transform is written in, for processors with AVX2 and for all others.
//!
//! Sums of lanes become vectors by themselves, but exchanging rows and columns does not: compilers move such numbers
//! one by one. So there are two ways to do it, the plain one and one with the shuffles of AVX2.
//!
//! **Invariant:** both give the same bits for all numbers.

#![allow(clippy::needless_range_loop, reason = "loops over lanes are unrolled, and read best as the sums they are")]

/// How eight numbers of 32 bits are computed with. Sums and products wrap.
pub(super) trait Vectors: Copy {
    /// Eight numbers.
    type Lanes: Copy;

    fn load(self, numbers: &[i32; 8]) -> Self::Lanes;
    fn add(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    fn sub(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    fn times(self, a: Self::Lanes, factor: i32) -> Self::Lanes;

    /// Divides by a power of two, and rounds.
    fn descale<const BITS: i32>(self, a: Self::Lanes) -> Self::Lanes;

    /// Makes columns of rows.
    fn transposed(self, rows: [Self::Lanes; 8]) -> [Self::Lanes; 8];

    /// Makes rows of samples of columns: cut to -128 to 127, and moved to 0 to 255.
    fn samples(self, columns: [Self::Lanes; 8]) -> [[u8; 8]; 8];
}

/// For any processor.
#[derive(Clone, Copy)]
pub(super) struct Portable;

impl Vectors for Portable {
    type Lanes = [i32; 8];

    #[inline(always)]
    fn load(self, numbers: &[i32; 8]) -> [i32; 8] {
        *numbers
    }

    #[inline(always)]
    fn add(self, mut a: [i32; 8], b: [i32; 8]) -> [i32; 8] {
        for lane in 0..8 {
            a[lane] = a[lane].wrapping_add(b[lane]);
        }
        a
    }

    #[inline(always)]
    fn sub(self, mut a: [i32; 8], b: [i32; 8]) -> [i32; 8] {
        for lane in 0..8 {
            a[lane] = a[lane].wrapping_sub(b[lane]);
        }
        a
    }

    #[inline(always)]
    fn times(self, mut a: [i32; 8], factor: i32) -> [i32; 8] {
        for number in &mut a {
            *number = number.wrapping_mul(factor);
        }
        a
    }

    #[inline(always)]
    fn descale<const BITS: i32>(self, mut a: [i32; 8]) -> [i32; 8] {
        for number in &mut a {
            *number = number.wrapping_add(1 << (BITS - 1)) >> BITS;
        }
        a
    }

    #[inline(always)]
    fn transposed(self, rows: [[i32; 8]; 8]) -> [[i32; 8]; 8] {
        let mut columns = [[0; 8]; 8];
        for row in 0..8 {
            for column in 0..8 {
                columns[column][row] = rows[row][column];
            }
        }
        columns
    }

    #[inline(always)]
    fn samples(self, columns: [[i32; 8]; 8]) -> [[u8; 8]; 8] {
        let mut rows = [[0; 8]; 8];
        for row in 0..8 {
            for column in 0..8 {
                rows[row][column] = (columns[column][row].clamp(-128, 127) + 128) as u8;
            }
        }
        rows
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::__m256i;

    use pulp::cast;
    use pulp::x86::V3;

    use super::Vectors;

    impl Vectors for V3 {
        type Lanes = __m256i;

        #[inline(always)]
        fn load(self, numbers: &[i32; 8]) -> __m256i {
            cast(*numbers)
        }

        #[inline(always)]
        fn add(self, a: __m256i, b: __m256i) -> __m256i {
            self.avx2._mm256_add_epi32(a, b)
        }

        #[inline(always)]
        fn sub(self, a: __m256i, b: __m256i) -> __m256i {
            self.avx2._mm256_sub_epi32(a, b)
        }

        #[inline(always)]
        fn times(self, a: __m256i, factor: i32) -> __m256i {
            self.avx2._mm256_mullo_epi32(a, cast([factor; 8]))
        }

        #[inline(always)]
        fn descale<const BITS: i32>(self, a: __m256i) -> __m256i {
            self.avx2._mm256_srai_epi32::<BITS>(self.add(a, cast([1i32 << (BITS - 1); 8])))
        }

        #[inline(always)]
        fn transposed(self, rows: [__m256i; 8]) -> [__m256i; 8] {
            let unit = self.avx2;
            let [a, b, c, d, e, f, g, h] = rows;
            // Pairs of numbers of two rows, then quads of four rows, then halves of the registers.
            let (ab0, ab1) = (unit._mm256_unpacklo_epi32(a, b), unit._mm256_unpackhi_epi32(a, b));
            let (cd0, cd1) = (unit._mm256_unpacklo_epi32(c, d), unit._mm256_unpackhi_epi32(c, d));
            let (ef0, ef1) = (unit._mm256_unpacklo_epi32(e, f), unit._mm256_unpackhi_epi32(e, f));
            let (gh0, gh1) = (unit._mm256_unpacklo_epi32(g, h), unit._mm256_unpackhi_epi32(g, h));
            let (upper0, upper1) = (unit._mm256_unpacklo_epi64(ab0, cd0), unit._mm256_unpackhi_epi64(ab0, cd0));
            let (upper2, upper3) = (unit._mm256_unpacklo_epi64(ab1, cd1), unit._mm256_unpackhi_epi64(ab1, cd1));
            let (lower0, lower1) = (unit._mm256_unpacklo_epi64(ef0, gh0), unit._mm256_unpackhi_epi64(ef0, gh0));
            let (lower2, lower3) = (unit._mm256_unpacklo_epi64(ef1, gh1), unit._mm256_unpackhi_epi64(ef1, gh1));
            [
                unit._mm256_permute2x128_si256::<0x20>(upper0, lower0),
                unit._mm256_permute2x128_si256::<0x20>(upper1, lower1),
                unit._mm256_permute2x128_si256::<0x20>(upper2, lower2),
                unit._mm256_permute2x128_si256::<0x20>(upper3, lower3),
                unit._mm256_permute2x128_si256::<0x31>(upper0, lower0),
                unit._mm256_permute2x128_si256::<0x31>(upper1, lower1),
                unit._mm256_permute2x128_si256::<0x31>(upper2, lower2),
                unit._mm256_permute2x128_si256::<0x31>(upper3, lower3),
            ]
        }

        #[inline(always)]
        fn samples(self, columns: [__m256i; 8]) -> [[u8; 8]; 8] {
            let unit = self.avx2;
            let [a, b, c, d, e, f, g, h] = columns;
            // Packing cuts numbers to the shorter kind. Halves of the registers have the upper and lower four rows.
            let left = unit._mm256_packs_epi16(unit._mm256_packs_epi32(a, b), unit._mm256_packs_epi32(c, d));
            let right = unit._mm256_packs_epi16(unit._mm256_packs_epi32(e, f), unit._mm256_packs_epi32(g, h));
            // Four columns of four bytes become four rows.
            let order: [u8; 16] = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15];
            let order: __m256i = cast([order, order]);
            let left = unit._mm256_shuffle_epi8(left, order);
            let right = unit._mm256_shuffle_epi8(right, order);
            let even = unit._mm256_xor_si256(unit._mm256_unpacklo_epi32(left, right), cast([0x80u8; 32]));
            let odd = unit._mm256_xor_si256(unit._mm256_unpackhi_epi32(left, right), cast([0x80u8; 32]));
            let ([row0, row1, row4, row5], [row2, row3, row6, row7]): ([[u8; 8]; 4], [[u8; 8]; 4]) =
                (cast(even), cast(odd));
            [row0, row1, row2, row3, row4, row5, row6, row7]
        }
    }
}
