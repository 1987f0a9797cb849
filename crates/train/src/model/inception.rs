//! Inception v3 without its auxiliary output: modules of several branches, with kernels cut into a row and a column.

use burn::module::Module;
use burn::tensor::Tensor;

use crate::layer::pool::{Window, max_pool, mean_image, mean_pool};
use crate::layer::{Activation, BatchNorm, Conv2d, ConvSpec, Dropout, Filling, ForwardPass, Linear, Start};

/// A convolution, its normalisation and a rectification: what all branches are made of, here and in GoogLeNet.
#[derive(Module, Debug)]
pub(super) struct Unit {
    conv: Conv2d,
    norm: BatchNorm,
}

impl Unit {
    pub(super) fn new(spec: ConvSpec, start: &mut Start) -> Self {
        let spec = spec.filling(Filling::TruncatedNormal(0.1));
        Self { conv: spec.start(start), norm: BatchNorm::with_epsilon(spec.output, 1e-3, start) }
    }

    pub(super) fn forward(&self, input: Tensor<4>, pass: &ForwardPass<'_>) -> Tensor<4> {
        self.norm.forward(self.conv.forward(input, pass), Activation::Relu, pass)
    }
}

/// Inception v3.
#[derive(Module, Debug)]
pub struct Inception {
    stem: Vec<Unit>,
    modules: Vec<Mixed>,
    dropout: Dropout,
    dense: Linear,
}

/// Branches over the same image, put together by channels.
#[derive(Module, Debug)]
struct Mixed {
    branches: Vec<Branch>,
    pooling: Pooling,
}

/// What the branch that pools does.
#[derive(Module, Debug)]
struct Pooling {
    /// Means with stride one, then a unit; else the largest with stride two and nothing after it.
    unit: Option<Unit>,
}

/// Units one after the other; the last may be two next to each other.
#[derive(Module, Debug)]
struct Branch {
    units: Vec<Unit>,
    fork: Vec<Unit>,
}

impl Branch {
    fn forward(&self, x: Tensor<4>, pass: &ForwardPass<'_>) -> Vec<Tensor<4>> {
        let x = self.units.iter().fold(x, |x, unit| unit.forward(x, pass));
        if self.fork.is_empty() {
            return vec![x];
        }
        self.fork.iter().map(|unit| unit.forward(x.clone(), pass)).collect()
    }
}

impl Mixed {
    fn forward(&self, x: Tensor<4>, pass: &ForwardPass<'_>) -> Tensor<4> {
        let mut parts: Vec<_> = self.branches.iter().flat_map(|branch| branch.forward(x.clone(), pass)).collect();
        parts.push(match &self.pooling.unit {
            Some(unit) => unit.forward(mean_pool(x, Window::new(3, 1).padding(1)), pass),
            None => max_pool(x, Window::new(3, 2)),
        });
        Tensor::cat(parts, 1)
    }
}

/// A unit of a branch: published channels, kernel, and whether it halves the image (stride two, no padding).
#[derive(Clone, Copy)]
struct Link {
    output: usize,
    kernel: [usize; 2],
    halves: bool,
}

const fn link(output: usize, rows: usize, columns: usize) -> Link {
    Link { output, kernel: [rows, columns], halves: false }
}

const fn half(output: usize) -> Link {
    Link { output, kernel: [3, 3], halves: true }
}

/// Puts modules together and knows how many channels there are.
struct Maker<'a> {
    start: &'a mut Start,
    channels: usize,
}

impl Maker<'_> {
    fn unit(&mut self, input: usize, link: Link) -> (Unit, usize) {
        let output = self.start.width(link.output);
        let spec = ConvSpec::rectangle(input, output, link.kernel);
        let spec = if link.halves { spec.stride(2).padding(0) } else { spec };
        (Unit::new(spec, self.start), output)
    }

    /// Units one after the other, and the channels of the last.
    fn chain(&mut self, links: &[Link]) -> (Vec<Unit>, usize) {
        let mut channels = self.channels;
        let units = links.iter().map(|link| {
            let (unit, output) = self.unit(channels, *link);
            channels = output;
            unit
        });
        (units.collect(), channels)
    }

    fn mixed(&mut self, chains: &[&[Link]], pooled: Option<usize>) -> Mixed {
        let mut total = 0;
        let branches = chains.iter().map(|links| {
            let (units, channels) = self.chain(links);
            total += channels;
            Branch { units, fork: Vec::new() }
        });
        let branches = branches.collect();
        self.finish(branches, total, pooled)
    }

    /// Adds the branch that pools. From here on there are as many channels as the module gives.
    fn finish(&mut self, branches: Vec<Branch>, total: usize, pooled: Option<usize>) -> Mixed {
        let (unit, channels) = match pooled {
            Some(output) => {
                let (unit, channels) = self.unit(self.channels, link(output, 1, 1));
                (Some(unit), channels)
            }
            None => (None, self.channels),
        };
        self.channels = total + channels;
        Mixed { branches, pooling: Pooling { unit } }
    }

    /// 35x35.
    fn square(&mut self, pooled: usize) -> Mixed {
        let five = [link(48, 1, 1), link(64, 5, 5)];
        let three = [link(64, 1, 1), link(96, 3, 3), link(96, 3, 3)];
        self.mixed(&[&[link(64, 1, 1)], &five, &three], Some(pooled))
    }

    /// 17x17, with kernels of 7 cut into row and column.
    fn cut(&mut self, w: usize) -> Mixed {
        let once = [link(w, 1, 1), link(w, 1, 7), link(192, 7, 1)];
        let twice = [link(w, 1, 1), link(w, 7, 1), link(w, 1, 7), link(w, 7, 1), link(192, 1, 7)];
        self.mixed(&[&[link(192, 1, 1)], &once, &twice], Some(192))
    }

    /// 8x8, with branches that end in a row and a column next to each other.
    fn forked(&mut self) -> Mixed {
        let (one, mut total) = self.chain(&[link(320, 1, 1)]);
        let mut branches = vec![Branch { units: one, fork: Vec::new() }];
        for links in [&[link(384, 1, 1)][..], &[link(448, 1, 1), link(384, 3, 3)]] {
            let (units, channels) = self.chain(links);
            let (row, width) = self.unit(channels, link(384, 1, 3));
            let (column, _) = self.unit(channels, link(384, 3, 1));
            total += 2 * width;
            branches.push(Branch { units, fork: vec![row, column] });
        }
        self.finish(branches, total, Some(192))
    }
}

impl Inception {
    pub(super) fn new(bands: usize, outputs: usize, start: &mut Start) -> Self {
        let [a, b, c, d] = [32, 64, 80, 192].map(|published| start.width(published));
        let stem = [
            ConvSpec::square(bands, a, 3).stride(2).padding(0),
            ConvSpec::square(a, a, 3).padding(0),
            ConvSpec::square(a, b, 3),
            ConvSpec::square(b, c, 1),
            ConvSpec::square(c, d, 3).padding(0),
        ];
        let stem = stem.into_iter().map(|spec| Unit::new(spec, start)).collect();
        let mut maker = Maker { start, channels: d };
        let mut modules = vec![maker.square(32), maker.square(64), maker.square(64)];
        modules.push(maker.mixed(&[&[half(384)], &[link(64, 1, 1), link(96, 3, 3), half(96)]], None));
        modules.extend([128, 160, 160, 192].map(|width| maker.cut(width)));
        let last = [link(192, 1, 1), link(192, 1, 7), link(192, 7, 1), half(192)];
        modules.push(maker.mixed(&[&[link(192, 1, 1), half(320)], &last], None));
        modules.extend([maker.forked(), maker.forked()]);
        let channels = maker.channels;
        let dropout = Dropout::new(0.5, start);
        let dense = Linear::new(channels, outputs, [Filling::TruncatedNormal(0.1), Filling::FanIn], start);
        Self { stem, modules, dropout, dense }
    }

    pub(super) fn forward(&self, images: Tensor<4>, pass: &ForwardPass<'_>) -> Tensor<2> {
        let x = self.stem.iter().enumerate().fold(images, |x, (number, unit)| {
            let x = unit.forward(x, pass);
            // A pooling follows the third and the fifth.
            if number == 2 || number == 4 { max_pool(x, Window::new(3, 2)) } else { x }
        });
        let x = self.modules.iter().fold(x, |x, module| module.forward(x, pass));
        self.dense.forward(self.dropout.forward(mean_image(x), pass), pass)
    }
}
