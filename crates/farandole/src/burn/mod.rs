//! Burn on many ranks (feature `burn`).
//!
//! Every rank builds the same module, [`broadcast_parameters`] makes the weights equal, and from then on a
//! [`DistributedOptimizer`] in the place of Burn's averages the gradients of all ranks before each step, so weights
//! stay equal:
//!
//! ```
//! use burn::nn::{LinearConfig, loss::{MseLoss, Reduction}};
//! use burn::optim::{GradientsParams, SgdConfig};
//! use burn::tensor::{Device, Tensor};
//! use farandole::burn::{DistributedOptimizer, Wire, broadcast_parameters};
//!
//! let mut world = farandole::init()?;
//! let device = Device::flex().autodiff();
//! let mut model = broadcast_parameters(&mut world, LinearConfig::new(2, 1).init(&device), 0)?;
//! let mut optimizer = DistributedOptimizer::new(&world, &model, SgdConfig::new().init(), Wire::F32)?;
//! for _ in 0..3 {
//!     let inputs = Tensor::<2>::from_data([[1.0, world.rank() as f32]], &device);  // each rank its own
//!     let targets = Tensor::<2>::from_data([[0.5]], &device);
//!     let loss = MseLoss::new().forward(model.forward(inputs), targets, Reduction::Mean);
//!     let gradients = GradientsParams::from_grads(loss.backward(), &model);
//!     model = optimizer.step(0.1, model, gradients)?;
//! }
//! # Ok::<(), farandole::Error>(())
//! ```
//!
//! Ranks know parameters by their place in the module (`blocks.3.conv1.weight`); Burn's own numbers for them are drawn
//! by each process and mean nothing to the others. Tensors of any backend come by way of host memory: on the processor
//! (Flex) a gradient's memory is handed over and handed back, without a copy; a device's tensor is read and written
//! once. All gradients of a step are under way at the same time, and the engine sends small ones together.
//!
//! An [`Outbox`] is the part that sends and collects. Programs whose layers can tell when a gradient is ready post it
//! there while backward is still running; what nobody has posted leaves in [`Outbox::collect`]. There is no hook in
//! Burn for that, so it is up to the layers; the trainer of this project has such layers.
//!
//! A [`Learner`] is a module with its optimizer as the state of an elastic training, which goes on when ranks leave or
//! join ([`crate::elastic`]).

mod compared;
mod learner;
mod optimizer;
mod outbox;
mod parameters;
mod staging;

pub use crate::wire::Wire;
pub use learner::Learner;
pub use optimizer::{DistributedOptimizer, add_gradients};
pub use outbox::{AnnouncedGradient, Outbox};
pub use parameters::{average_buffers, broadcast_parameters};
