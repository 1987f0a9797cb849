//! A small network of Candle, trained by all ranks of a job as if they were one, with plain gradient descent.
//!
//! ```console
//! $ cargo build --release --bin farandole
//! $ cargo build --release -p farandole --features candle --example candle
//! $ target/release/farandole run -np 2 target/release/examples/candle
//! ```

use candle_core::{Device, Tensor, Var};
use farandole::World;
use farandole::candle::{Averager, Wire, broadcast_parameters};

/// Samples of one step, of all ranks together.
const GLOBAL_BATCH: usize = 32;

/// What can go wrong on either side.
type Error = Box<dyn std::error::Error>;

/// A point and the product of its coordinates, which is to be learned.
fn sample(number: usize) -> ([f32; 2], f32) {
    let (x, y) = ((number % 17) as f32 / 8.0 - 1.0, (number % 23) as f32 / 11.0 - 1.0);
    ([x, y], x * y)
}

/// Trains for some steps; gives back the weights and the last loss of this rank.
pub fn train(world: &mut World, steps: usize, wire: Wire) -> Result<(Vec<f32>, f32), Error> {
    let device = Device::Cpu;
    // Every rank starts somewhere else, until it has rank 0's weights.
    let start = |rows: usize, columns: usize| -> Result<Var, Error> {
        let number = |place: usize| ((place * 37 + world.rank() * 11) % 19) as f32 / 19.0 - 0.5;
        Ok(Var::from_vec((0..rows * columns).map(number).collect(), (rows, columns), &device)?)
    };
    let (hidden, output) = (start(2, 16)?, start(16, 1)?);
    let named = [("hidden".to_owned(), hidden.clone()), ("output".to_owned(), output.clone())];
    broadcast_parameters(world, named.clone(), 0)?;
    let averager = Averager::new(world, named, wire)?;
    let share = GLOBAL_BATCH / world.size();
    let mut last_loss = f32::NAN;
    for step in 0..steps {
        let first = step * GLOBAL_BATCH + world.rank() * share;
        let (points, products): (Vec<[f32; 2]>, Vec<f32>) = (first..first + share).map(sample).unzip();
        let inputs = Tensor::from_vec(points.concat(), (share, 2), &device)?;
        let targets = Tensor::from_vec(products, (share, 1), &device)?;
        let outputs = inputs.matmul(&hidden)?.relu()?.matmul(&output)?;
        let loss = (outputs - targets)?.sqr()?.mean_all()?;
        last_loss = loss.to_scalar()?;
        let mut gradients = loss.backward()?;
        averager.average(&mut gradients)?;
        for weight in [&hidden, &output] {
            if let Some(gradient) = gradients.get(weight) {
                weight.set(&(weight.as_tensor() - (gradient * 0.1)?)?)?;
            }
        }
    }
    let mut weights: Vec<f32> = hidden.flatten_all()?.to_vec1()?;
    weights.extend(output.flatten_all()?.to_vec1::<f32>()?);
    Ok((weights, last_loss))
}

#[allow(clippy::print_stdout, reason = "an example shows its result")]
#[allow(dead_code, reason = "a test takes this file in without its main function")]
fn main() -> Result<(), Error> {
    let mut world = farandole::init()?;
    let (weights, loss) = train(&mut world, 200, Wire::F32)?;
    println!("rank {} of {}: loss {loss:.4}, first weight {:.6}", world.rank(), world.size(), weights[0]);
    Ok(())
}
