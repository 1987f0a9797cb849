//! The main function of a program: an error that ends it is what the other ranks are told.
//!
//! A world that is dropped leaves the job, but does not know why: `main` returns its error only afterwards. So ranks
//! that wait for this one could only say that it has left. [`run`] has the error while the world exists.

use std::error::Error;
use std::process::ExitCode;

use crate::setup::init;
use crate::world::World;
use crate::{Exit, Result};

/// Runs a training program as a rank of its job. An error ends the process with exit code 1, and is in the errors of
/// all ranks that wait for this one, under every launcher.
///
/// ```
/// use farandole::ReduceOp;
///
/// fn main() -> std::process::ExitCode {
///     farandole::run(|world| {
///         let mut loss = [world.rank() as f32];
///         world.allreduce(&mut loss, ReduceOp::Average)?;
///         Ok(())
///     })
/// }
/// ```
pub fn run(program: impl FnOnce(&mut World) -> std::result::Result<(), Box<dyn Error>>) -> ExitCode {
    run_in(init(), program)
}

/// The same in a world that [`Setup::init`](crate::Setup::init) has made.
pub fn run_in(
    world: Result<World>,
    program: impl FnOnce(&mut World) -> std::result::Result<(), Box<dyn Error>>,
) -> ExitCode {
    let error = match world {
        Err(error) => Box::from(error),
        Ok(mut world) => {
            let Err(error) = program(&mut world) else { return ExitCode::SUCCESS };
            world.leave(Exit { code: Some(1), cause: None }.because(&format!("ended (exit code 1): {error}")));
            error
        }
    };
    eprintln!("Error: {error}");
    ExitCode::FAILURE
}
