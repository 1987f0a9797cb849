//! Where a gradient leaves during backward: [`tap`], an identity between a weight and its layer.
//!
//! Burn has no hook for "this gradient is ready". But it lets one add operations of one's own, and the backward of an
//! operation runs when the gradient of its output is complete. An identity on the weight alone would run last of all:
//! Burn goes through the tape by depth, latest first, and such an identity is as early as the weight itself. Therefore
//! the layer's input is a second parent: it changes nothing in the result and gets no gradient from here, but it puts
//! the tap right below its layer, and its backward runs right after that of the layer.
//!
//! The gradient goes to the outbox and nowhere else: Burn keeps none for a tapped weight, so its memory can be handed
//! over without a copy.

// The macro's code for the backends carries no documentation of its own.
#![allow(missing_docs)]

use std::sync::Arc;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, backend_extension, read_sync};
use burn::module::ParamId;
use burn::tensor::Tensor;
use farandole::burn::{AnnouncedGradient, Outbox};

/// Gives a layer its weight, and the outbox the weight's gradient as soon as it is ready in backward. `input` is what
/// the layer is applied to together with the weight: it must be an input of the same operation. Each use of a weight in
/// forward needs a tap of its own. A weight that the outbox does not know (a frozen one) passes through untouched.
pub fn tap<const D: usize, const E: usize>(
    weight: Tensor<D>,
    id: ParamId,
    input: &Tensor<E>,
    outbox: &Outbox,
) -> Tensor<D> {
    if !weight.is_require_grad() {
        return weight;
    }
    let Some(posting) = outbox.expect(id) else { return weight };
    let tapped = Dispatch::tap(weight.into_dispatch(), input.clone().into_dispatch(), Arc::new(posting));
    Tensor::from_dispatch(tapped)
}

/// The operation, for each backend that has it.
#[backend_extension(Autodiff, Flex)]
pub trait TapBackend: Backend {
    /// The weight. In backward its gradient is posted.
    fn tap(weight: FloatTensor<Self>, input: FloatTensor<Self>, posting: Arc<AnnouncedGradient>) -> FloatTensor<Self>;
}

impl TapBackend for Flex {
    fn tap(weight: FloatTensor<Self>, _: FloatTensor<Self>, _: Arc<AnnouncedGradient>) -> FloatTensor<Self> {
        weight
    }
}

impl<B: TapBackend, C: CheckpointStrategy> TapBackend for Autodiff<B, C> {
    fn tap(weight: FloatTensor<Self>, input: FloatTensor<Self>, posting: Arc<AnnouncedGradient>) -> FloatTensor<Self> {
        match Tap.prepare::<C>([weight.node(), input.node()]).compute_bound().stateful() {
            OpsKind::Tracked(step) => step.finish(posting, weight.primitive().clone()),
            OpsKind::UnTracked(step) => step.finish(weight.primitive().clone()),
        }
    }
}

/// The step on the tape.
#[derive(Debug)]
struct Tap;

impl<B: Backend> Backward<B, 2> for Tap {
    type State = Arc<AnnouncedGradient>;

    fn backward(self, ops: Ops<Arc<AnnouncedGradient>, 2>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<B>(&ops.node);
        let data = read_sync(B::float_into_data(gradient)).expect("a gradient that was computed can be read");
        ops.state.post(data);
    }
}
