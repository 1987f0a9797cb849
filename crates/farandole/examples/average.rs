//! The smallest job: every rank averages a loss and a gradient with all others.
//!
//! ```console
//! $ cargo build --release --bin farandole --example average
//! $ target/release/farandole run -np 4 target/release/examples/average
//! ```

use farandole::ReduceOp::Average;

#[allow(clippy::print_stdout, reason = "an example shows its result")]
fn main() -> farandole::Result<()> {
    let mut world = farandole::init()?; // a rank of its job, or a world of one
    let mut loss = [world.rank() as f32];
    world.allreduce(&mut loss, Average)?; // direct: all ranks make this call together
    let gradient = world.named("layer1/weight").allreduce(vec![1.0f32; 1024], Average)?; // named: in any order
    let gradient = gradient.wait()?;
    println!("rank {} of {}: {} {}", world.rank(), world.size(), loss[0], gradient[0]);
    Ok(())
}
