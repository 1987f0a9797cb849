//! A small network of Burn, trained by all ranks of a job as if they were one.
//!
//! ```console
//! $ cargo build --release --bin farandole
//! $ cargo build --release -p farandole --features burn --example burn
//! $ target/release/farandole run -np 2 target/release/examples/burn
//! ```

use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor, TensorData};
use farandole::World;
use farandole::burn::{DistributedOptimizer, Wire, broadcast_parameters};

/// Samples of one step, of all ranks together.
const GLOBAL_BATCH: usize = 32;

/// Two layers.
#[derive(Module, Debug)]
pub struct Network {
    hidden: Linear,
    output: Linear,
}

impl Network {
    fn new(device: &Device) -> Network {
        Network { hidden: LinearConfig::new(2, 16).init(device), output: LinearConfig::new(16, 1).init(device) }
    }

    fn forward(&self, inputs: Tensor<2>) -> Tensor<2> {
        self.output.forward(relu(self.hidden.forward(inputs)))
    }
}

/// A point and the product of its coordinates, which is to be learned.
fn sample(number: usize) -> ([f32; 2], f32) {
    let (x, y) = ((number % 17) as f32 / 8.0 - 1.0, (number % 23) as f32 / 11.0 - 1.0);
    ([x, y], x * y)
}

/// Trains for some steps; gives back the weights and the last loss of this rank.
pub fn train(world: &mut World, steps: usize, wire: Wire) -> farandole::Result<(Vec<f32>, f32)> {
    let device = Device::flex().autodiff();
    device.seed(world.rank() as u64); // every rank starts somewhere else …
    let mut network = broadcast_parameters(world, Network::new(&device), 0)?; // … until it has rank 0's weights
    let mut optimizer = DistributedOptimizer::new(world, &network, AdamConfig::new().init(), wire)?;
    let share = GLOBAL_BATCH / world.size();
    let mut last_loss = f32::NAN;
    for step in 0..steps {
        let first = step * GLOBAL_BATCH + world.rank() * share;
        let (points, products): (Vec<[f32; 2]>, Vec<f32>) = (first..first + share).map(sample).unzip();
        let inputs = Tensor::<2>::from_data(TensorData::new(points.concat(), [share, 2]), &device);
        let targets = Tensor::<2>::from_data(TensorData::new(products, [share, 1]), &device);
        let loss = MseLoss::new().forward(network.forward(inputs), targets, Reduction::Mean);
        last_loss = loss.clone().into_scalar::<f32>();
        let gradients = GradientsParams::from_grads(loss.backward(), &network);
        network = optimizer.step(0.01, network, gradients)?;
    }
    let weights = [network.hidden.weight.val().to_data(), network.output.weight.val().to_data()];
    Ok((weights.iter().flat_map(|data| data.try_to_vec::<f32>().unwrap_or_default()).collect(), last_loss))
}

#[allow(clippy::print_stdout, reason = "an example shows its result")]
#[allow(dead_code, reason = "a test takes this file in without its main function")]
fn main() -> farandole::Result<()> {
    let mut world = farandole::init()?;
    let (weights, loss) = train(&mut world, 200, Wire::F32)?;
    println!("rank {} of {}: loss {loss:.4}, first weight {:.6}", world.rank(), world.size(), weights[0]);
    Ok(())
}
