//! What rank 0 knows, for everybody: bytes, and how something went.

use farandole::{ReduceOp, World};

use crate::error::Result;

/// Gives all ranks the bytes of rank 0; what the others have is not looked at. All ranks call this together.
///
/// # Errors
/// If ranks are lost.
pub fn bytes(world: &mut World, own: Vec<u8>) -> Result<Vec<u8>> {
    let mut length = [own.len() as u64];
    world.broadcast(&mut length, 0)?;
    let mut bytes = own;
    bytes.resize(length[0] as usize, 0);
    if !bytes.is_empty() {
        world.broadcast(&mut bytes, 0)?;
    }
    Ok(bytes)
}

/// Tells all ranks how something went on rank 0: nothing, or why not. All ranks call this together.
///
/// # Errors
/// If ranks are lost.
pub fn outcome(world: &mut World, own: std::result::Result<(), String>) -> Result<std::result::Result<(), String>> {
    let failed = u8::from(own.is_err());
    let mut message = own.err().unwrap_or_default().into_bytes();
    message.insert(0, failed);
    let message = bytes(world, message)?;
    let text = String::from_utf8_lossy(&message[1..]).into_owned();
    Ok(if message[0] == 0 { Ok(()) } else { Err(text) })
}

/// Waits until another rank has ended, which it does at once: for a rank that has nothing to say about the end, because
/// the other one says it. Whoever looks for the rank that ended first, to name it, finds that one.
pub fn outlive_another(world: &mut World) {
    // The other one never joins this, and fails it by leaving. What becomes of it in a world of one is of no interest.
    let _ = world.allreduce(&mut [0_u8], ReduceOp::Max);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_world_of_one_hears_itself() {
        let mut world = farandole::init().unwrap();
        assert_eq!(bytes(&mut world, vec![1, 2, 3]).unwrap(), [1, 2, 3]);
        assert!(bytes(&mut world, Vec::new()).unwrap().is_empty());
        assert_eq!(outcome(&mut world, Ok(())).unwrap(), Ok(()));
        assert_eq!(outcome(&mut world, Err("full".to_owned())).unwrap(), Err("full".to_owned()));
        assert_eq!(outcome(&mut world, Err(String::new())).unwrap(), Err(String::new()));
    }
}
