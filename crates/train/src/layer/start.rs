//! What weights are before anything is learned.
//!
//! Every parameter of a network has a number, in the order in which the network is put together. Its first values come
//! from the seed, that number and the place within the parameter, and from nothing else: no generator is shared, so the
//! values are the same on all ranks and threads, and a parameter is not filled before it is used. A network of which
//! only the size is asked takes no memory.

use burn::module::{Param, ParamId};
use burn::tensor::{Device, Shape, Tensor, TensorData};

/// A distribution of first values, with fans counted as PyTorch counts them: `fan_in` is what one output sums over,
/// `fan_out` is the number of outputs times the kernel's area.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Filling {
    /// Normal, variance `2 / fan_out`: keeps gradients' size through rectified layers.
    Kaiming,
    /// Uniform within one by the square root of `fan_in`.
    FanIn,
    /// Normal with this deviation.
    Normal(f32),
    /// Normal with this deviation, drawn again beyond two deviations.
    TruncatedNormal(f32),
    /// One value everywhere.
    Constant(f32),
}

/// What a parameter's outputs sum over and how many there are of them.
#[derive(Clone, Copy, Debug)]
pub struct Fans {
    /// Inputs of one output.
    pub fan_in: usize,
    /// Outputs, times the kernel's area.
    pub fan_out: usize,
}

/// Puts a network together: numbers its parameters and knows how they start.
#[derive(Debug)]
pub struct Start {
    device: Device,
    seed: u64,
    thin: usize,
    next: u64,
    parameters: usize,
}

impl Start {
    /// Parameters on `device`, from `seed`. All layers between input and output have one `thin`-th of the published
    /// channels.
    pub fn new(device: &Device, seed: u64, thin: usize) -> Self {
        Self { device: device.clone(), seed, thin: thin.max(1), next: 0, parameters: 0 }
    }

    /// How many numbers all parameters that were made have together.
    pub fn parameters(&self) -> usize {
        self.parameters
    }

    /// Where the parameters are.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// How many channels a layer gets that has `published` of them: never fewer than two.
    pub fn width(&self, published: usize) -> usize {
        if self.thin == 1 { published } else { (published / self.thin).max(2) }
    }

    /// The number of the layer that is being made, for what is random in it.
    pub fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A parameter with this shape. It is filled when it is first used.
    pub fn parameter<const D: usize>(&mut self, shape: [usize; D], filling: Filling, fans: Fans) -> Param<Tensor<D>> {
        let stream = Stream::new(self.seed, self.number());
        self.parameters += shape.iter().product::<usize>();
        let fill = move |device: &Device, require_grad: bool| {
            let values = filling.values(shape.iter().product(), fans, stream);
            Tensor::from_data(TensorData::new(values, shape), device).set_require_grad(require_grad)
        };
        Param::uninitialized(ParamId::new(), fill, self.device.clone(), true, Shape::from(shape))
    }
}

impl Filling {
    fn values(self, count: usize, fans: Fans, stream: Stream) -> Vec<f32> {
        let normal = |deviation: f32| (0..count as u64).map(|i| stream.normal(i) * deviation).collect();
        match self {
            Filling::Kaiming => normal((2.0 / fans.fan_out as f32).sqrt()),
            Filling::FanIn => {
                let bound = 1.0 / (fans.fan_in as f32).sqrt();
                (0..count as u64).map(|i| (2.0 * stream.uniform(i) - 1.0) * bound).collect()
            }
            Filling::Normal(deviation) => normal(deviation),
            Filling::TruncatedNormal(deviation) => {
                (0..count as u64).map(|i| stream.truncated_normal(i) * deviation).collect()
            }
            Filling::Constant(value) => vec![value; count],
        }
    }
}

/// Random numbers that are asked for by their place: the n-th is the same whoever asks, and whatever was asked before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    key: u64,
}

impl Stream {
    /// The stream with this number of all streams of a seed.
    pub(super) fn new(seed: u64, number: u64) -> Self {
        Self { key: scramble(scramble(seed).wrapping_add(number)) }
    }

    /// A stream of this one's streams.
    pub(super) fn within(self, number: u64) -> Self {
        Self::new(self.key, number)
    }

    fn bits(self, place: u64) -> u64 {
        scramble(self.key.wrapping_add(place))
    }

    /// Evenly in `0..1`.
    pub(super) fn uniform(self, place: u64) -> f32 {
        // The upper 24 bits: as many as an f32 between one half and one can tell apart.
        (self.bits(place) >> 40) as f32 / (1u32 << 24) as f32
    }

    /// Normal, after Box and Muller: both halves of one 64-bit number give the radius and the angle.
    fn normal(self, place: u64) -> f32 {
        let bits = self.bits(place);
        // Half a step up, so that the logarithm never sees zero.
        let radius = (((bits >> 32) as f32 + 0.5) / 4_294_967_296.0).ln() * -2.0;
        let angle = (bits as u32) as f32 / 4_294_967_296.0 * std::f32::consts::TAU;
        radius.sqrt() * angle.cos()
    }

    fn truncated_normal(self, place: u64) -> f32 {
        // One draw in 22 lies beyond two deviations; it is drawn again from a stream of its own.
        let mut stream = self;
        loop {
            let value = stream.normal(place);
            if value.abs() <= 2.0 {
                return value;
            }
            stream = stream.within(1);
        }
    }
}

/// The finishing steps of SplitMix64: every bit of the result depends on every bit of the argument.
fn scramble(value: u64) -> u64 {
    let mut bits = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: usize = 100_000;

    fn moments(filling: Filling, fans: Fans) -> (f64, f64, f32) {
        let values = filling.values(COUNT, fans, Stream::new(7, 3));
        let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / COUNT as f64;
        let variance = values.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / COUNT as f64;
        (mean, variance.sqrt(), values.iter().fold(0.0, |most, v| most.max(v.abs())))
    }

    #[test]
    fn first_values_have_the_moments_of_their_distribution() {
        let fans = Fans { fan_in: 100, fan_out: 50 };
        let (mean, deviation, _) = moments(Filling::Kaiming, fans);
        assert!(mean.abs() < 0.002 && (deviation - 0.2).abs() < 0.002, "{mean} {deviation}");
        let (mean, deviation, most) = moments(Filling::FanIn, fans);
        assert!(
            mean.abs() < 0.001 && (deviation - 0.1 / 3f64.sqrt()).abs() < 0.001 && most <= 0.1,
            "{mean} {deviation}"
        );
        let (_, deviation, most) = moments(Filling::TruncatedNormal(0.1), fans);
        // A normal distribution cut at two deviations has 0.8796 of its deviation left.
        assert!((deviation - 0.08796).abs() < 0.001 && most <= 0.2, "{deviation} {most}");
    }

    #[test]
    fn the_same_seed_gives_the_same_weights_and_another_seed_gives_others() {
        let device = Device::flex();
        let weights = |seed| {
            let mut start = Start::new(&device, seed, 1);
            let fans = Fans { fan_in: 4, fan_out: 4 };
            let (first, second): (Param<Tensor<2>>, Param<Tensor<2>>) =
                (start.parameter([4, 4], Filling::FanIn, fans), start.parameter([4, 4], Filling::FanIn, fans));
            // The order in which they are used is not the order in which they were made.
            let second = second.val().into_data();
            (first.val().into_data(), second)
        };
        assert_eq!(weights(1), weights(1));
        assert_ne!(weights(1), weights(2));
        assert_ne!(weights(1).0, weights(1).1);
    }
}
