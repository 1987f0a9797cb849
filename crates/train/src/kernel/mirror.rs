//! The gradient of a convolution's input is a convolution itself: of the output's gradient, with the kernel mirrored.
//!
//! With a stride s, input pixels fall into s times s phases by their row and column modulo s. Each phase sees taps of
//! its own and is a convolution with stride one whose results are s pixels apart.

use super::planes::Geometry;

/// One phase: a convolution of the output's gradient, and where its results are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mirror {
    /// The convolution of the gradient.
    pub(super) geometry: Geometry,
    /// The first input pixel of the phase; the next is a stride away.
    pub(super) first: [usize; 2],
    phase: [usize; 2],
    stride: usize,
    columns: usize,
}

impl Mirror {
    /// All phases that have pixels and taps. Input pixels of other phases have no gradient. For a geometry that
    /// [`fits`].
    pub(super) fn all(geometry: Geometry) -> impl Iterator<Item = Self> {
        let stride = geometry.stride;
        (0..stride * stride).filter_map(move |phase| Self::new(geometry, [phase / stride, phase % stride]))
    }

    fn new(geometry: Geometry, phase: [usize; 2]) -> Option<Self> {
        let Geometry { input, output, kernel, stride, padding } = geometry;
        let each = |number: &dyn Fn(usize) -> usize| [number(0), number(1)];
        let taps = each(&|axis| (kernel[axis] + stride - 1).saturating_sub(phase[axis]) / stride);
        // Pixels of a phase: their place plus the padding is `phase` modulo the stride.
        let first = each(&|axis| (phase[axis] + stride * padding[axis] - padding[axis]) % stride);
        let count = each(&|axis| (input[axis] + stride - 1).saturating_sub(first[axis]) / stride);
        if taps.contains(&0) || count.contains(&0) {
            return None;
        }
        // The first pixel sees, with tap number t of its phase, the output's pixel `shift` minus t.
        let shift = each(&|axis| (first[axis] + padding[axis]) / stride);
        let padding = each(&|axis| taps[axis] - 1 - shift[axis]);
        let geometry = Geometry { input: output, output: count, kernel: taps, stride: 1, padding };
        Some(Self { geometry, first, phase, stride, columns: kernel[1] })
    }

    /// How many taps of the kernel the phase sees.
    pub(super) fn taps(&self) -> usize {
        self.geometry.kernel[0] * self.geometry.kernel[1]
    }

    /// The place in the kernel of the phase's tap with this number.
    pub(super) fn tap(&self, number: usize) -> usize {
        let [rows, columns] = self.geometry.kernel;
        let y = self.phase[0] + self.stride * (rows - 1 - number / columns);
        let x = self.phase[1] + self.stride * (columns - 1 - number % columns);
        y * self.columns + x
    }
}

/// Whether every phase sees some of the output's gradient from its first pixel on, so that its convolution has a
/// padding. So it is for strides up to two with less padding than the kernel is large.
pub(super) fn fits(kernel: usize, stride: usize, padding: usize) -> bool {
    (0..stride).all(|phase| {
        let taps = (kernel + stride - 1).saturating_sub(phase) / stride;
        let first = (phase + stride * padding - padding) % stride;
        taps == 0 || (first + padding) / stride < taps
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_known() {
        assert!(fits(3, 1, 1) && fits(3, 2, 1) && fits(1, 2, 0) && fits(7, 2, 3) && fits(11, 4, 2) && fits(2, 2, 0));
        assert!(!fits(1, 1, 1), "more padding than kernel");
        assert!(!fits(3, 3, 1), "the first phase begins with the second pixel");
    }
}
