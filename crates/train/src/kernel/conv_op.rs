//! Convolution as an operation on tensors, with its backward.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{Shape, Tensor, TensorData};

use super::conv::{Convolution, bias_gradient};
use super::depthwise::Depthwise;
use super::mirror::fits;
use super::planes::Geometry;

/// How a kernel moves.
#[derive(Clone, Copy, Debug)]
pub struct Moves {
    /// Steps between neighbouring outputs.
    pub stride: usize,
    /// Zeros above and below, left and right.
    pub padding: [usize; 2],
}

impl Moves {
    /// Whether [`convolve`] can do this with a kernel of so many rows and columns.
    pub fn fit(self, kernel: [usize; 2]) -> bool {
        kernel.iter().zip(self.padding).all(|(taps, padding)| fits(*taps, self.stride, padding))
    }
}

/// The convolution of `[samples, input, height, width]` with `[output, input, rows, columns]`, plus a bias for each
/// output. With `[input, 1, rows, columns]` each channel is convolved with a kernel of its own.
pub fn convolve(input: Tensor<4>, weight: Tensor<4>, bias: Option<Tensor<1>>, moves: Moves) -> Tensor<4> {
    let (input, weight) = (input.into_dispatch(), weight.into_dispatch());
    Tensor::from_dispatch(match bias {
        None => Dispatch::convolve(input, weight, moves),
        Some(bias) => Dispatch::convolve_bias(input, weight, bias.into_dispatch(), moves),
    })
}

/// The backends that can convolve.
#[backend_extension(Autodiff, Flex)]
pub trait ConvBackend: burn::backend::Backend {
    /// Without a bias.
    fn convolve(input: FloatTensor<Self>, weight: FloatTensor<Self>, moves: Moves) -> FloatTensor<Self>;

    /// With a bias.
    fn convolve_bias(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        moves: Moves,
    ) -> FloatTensor<Self>;
}

type Plain = FloatTensor<Flex>;

impl ConvBackend for Flex {
    fn convolve(input: Plain, weight: Plain, moves: Moves) -> Plain {
        forward(&input, &weight, None, moves).0
    }

    fn convolve_bias(input: Plain, weight: Plain, bias: Plain, moves: Moves) -> Plain {
        forward(&input, &weight, Some(&bias), moves).0
    }
}

/// What backward needs of forward.
#[derive(Clone, Debug)]
struct Kept {
    input: Plain,
    weight: Plain,
    moves: Moves,
}

impl<C: CheckpointStrategy> ConvBackend for Autodiff<Flex, C> {
    fn convolve(input: FloatTensor<Self>, weight: FloatTensor<Self>, moves: Moves) -> FloatTensor<Self> {
        let (output, kept) = forward(input.primitive(), weight.primitive(), None, moves);
        match Convolve.prepare::<C>([input.node(), weight.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish(kept, output),
            OpsKind::UnTracked(prepared) => prepared.finish(output),
        }
    }

    fn convolve_bias(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        moves: Moves,
    ) -> FloatTensor<Self> {
        let (output, kept) = forward(input.primitive(), weight.primitive(), Some(bias.primitive()), moves);
        match ConvolveBias.prepare::<C>([input.node(), weight.node(), bias.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish(kept, output),
            OpsKind::UnTracked(prepared) => prepared.finish(output),
        }
    }
}

#[derive(Debug)]
struct Convolve;

impl Backward<Flex, 2> for Convolve {
    type State = Kept;

    fn backward(self, ops: Ops<Kept, 2>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<Flex>(&ops.node).to_contiguous();
        let [input, weight] = &ops.parents;
        if let Some(input) = input {
            gradients.register::<Flex>(input.id, ops.state.input_gradient(&gradient));
        }
        if let Some(weight) = weight {
            gradients.register::<Flex>(weight.id, ops.state.weight_gradient(&gradient));
        }
    }
}

#[derive(Debug)]
struct ConvolveBias;

impl Backward<Flex, 3> for ConvolveBias {
    type State = Kept;

    fn backward(self, ops: Ops<Kept, 3>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<Flex>(&ops.node).to_contiguous();
        let [input, weight, bias] = &ops.parents;
        if let Some(input) = input {
            gradients.register::<Flex>(input.id, ops.state.input_gradient(&gradient));
        }
        if let Some(weight) = weight {
            gradients.register::<Flex>(weight.id, ops.state.weight_gradient(&gradient));
        }
        if let Some(bias) = bias {
            let [samples, channels, _, _] = gradient.shape().dims();
            let found = bias_gradient(gradient.storage(), samples, channels);
            gradients.register::<Flex>(bias.id, tensor(found, Shape::from([channels])));
        }
    }
}

impl Kept {
    fn input_gradient(&self, gradient: &Plain) -> Plain {
        let (gradient, weight) = (gradient.storage(), self.weight.storage());
        let found = match Kind::of(&self.input, &self.weight, self.moves) {
            Kind::Full(convolution) => convolution.input_gradient(gradient, weight),
            Kind::Depthwise(convolution) => convolution.input_gradient(gradient, weight),
        };
        tensor(found, self.input.shape())
    }

    fn weight_gradient(&self, gradient: &Plain) -> Plain {
        let (input, gradient) = (self.input.storage(), gradient.storage());
        let found = match Kind::of(&self.input, &self.weight, self.moves) {
            Kind::Full(convolution) => convolution.weight_gradient(input, gradient),
            Kind::Depthwise(convolution) => convolution.weight_gradient(input, gradient),
        };
        tensor(found, self.weight.shape())
    }
}

fn forward(input: &Plain, weight: &Plain, bias: Option<&Plain>, moves: Moves) -> (Plain, Kept) {
    let (input, weight) = (input.to_contiguous(), weight.to_contiguous());
    let bias = bias.map(|bias| bias.to_contiguous());
    let bias = bias.as_ref().map(|bias| bias.storage::<f32>());
    let (output, shape) = match Kind::of(&input, &weight, moves) {
        Kind::Full(convolution) => {
            let [height, width] = convolution.geometry.output;
            let shape = [convolution.images, convolution.output, height, width];
            (convolution.forward(input.storage(), weight.storage(), bias), shape)
        }
        Kind::Depthwise(convolution) => {
            let [height, width] = convolution.geometry.output;
            let shape = [convolution.images, convolution.channels, height, width];
            (convolution.forward(input.storage(), weight.storage(), bias), shape)
        }
    };
    (tensor(output, Shape::from(shape)), Kept { input, weight, moves })
}

/// What shapes say of a convolution.
enum Kind {
    /// Every output channel sees all input channels.
    Full(Convolution),
    /// Every output channel sees the input channel of the same number.
    Depthwise(Depthwise),
}

impl Kind {
    fn of(input: &Plain, weight: &Plain, Moves { stride, padding }: Moves) -> Self {
        let [images, channels, height, width] = input.shape().dims();
        let [output, from, rows, columns] = weight.shape().dims();
        let size = |pixels: usize, taps: usize, padding: usize| {
            let room = (pixels + 2 * padding).checked_sub(taps);
            room.expect("a kernel is not larger than the image with its padding") / stride + 1
        };
        let geometry = Geometry {
            input: [height, width],
            output: [size(height, rows, padding[0]), size(width, columns, padding[1])],
            kernel: [rows, columns],
            stride,
            padding,
        };
        if from == 1 && output == channels {
            return Self::Depthwise(Depthwise { images, channels, geometry });
        }
        assert_eq!(channels, from, "a convolution's weights are for as many channels as its input has");
        Self::Full(Convolution { images, input: channels, output, geometry })
    }
}

fn tensor(values: Vec<f32>, shape: Shape) -> Plain {
    Plain::from_data(TensorData::new(values, shape))
}
