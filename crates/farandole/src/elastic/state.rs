//! What a training must not lose: [`ElasticState`].
//!
//! A state is in the memory of every rank, with the same bits on all of them. It leaves this memory only when a rank is
//! behind, or has just come: one rank writes its state down, it travels in one piece, and the others put it in the
//! place of theirs. A receiver's state is the old one until the new one has arrived, so a sender that is lost half-way
//! leaves nobody with a mixture; it takes memory for a second copy as long as that lasts.

use farandole_tensor::Element;
use farandole_tensor::element::{as_bytes, with_bytes_mut};

use super::state_digest as digest;
use crate::error::{Error, Result};
use crate::world::World;

/// Parameters, what the optimizer remembers, counters: everything from which training goes on.
///
/// Vectors of numbers, pairs of states and, by feature, `burn::Learner` and `candle::Variables` are states already.
pub trait ElasticState {
    /// Writes everything down.
    ///
    /// # Errors
    /// If it cannot be read, from a device for instance.
    fn save(&self) -> Result<Vec<u8>>;

    /// Becomes what another rank has written down. An error leaves it as it was.
    ///
    /// # Errors
    /// If it does not fit: the other rank runs another program, or this one with other arguments.
    fn restore(&mut self, saved: &[u8]) -> Result<()>;

    /// A number that depends on all bits of it. It is compared when a process joins that has got the state before.
    ///
    /// # Errors
    /// If it cannot be read.
    fn digest(&self) -> Result<u64> {
        Ok(digest(&self.save()?))
    }

    /// The ranks are others than before, or the training begins; the state is the same on all of them by now. Whatever
    /// belongs to a world (an averager of gradients, a loader that knows its rank) is made anew here. All ranks call
    /// this together, so it may make collective calls; it is called again if ranks are lost meanwhile.
    ///
    /// # Errors
    /// If ranks are lost, or something cannot be made.
    fn on_change(&mut self, world: &mut World, change: &WorldChange) -> Result<()> {
        let _ = (world, change);
        Ok(())
    }
}

/// What has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorldChange {
    /// Steps that count so far.
    pub steps: u64,
    /// Ranks before; `None` on a rank that has just come.
    pub before: Option<usize>,
    /// Ranks now.
    pub ranks: usize,
    /// How many of them have just come.
    pub joined: usize,
    /// Ranks with which the training began.
    pub founders: usize,
}

impl<T: Element> ElasticState for Vec<T> {
    fn save(&self) -> Result<Vec<u8>> {
        Ok(as_bytes(self).to_vec())
    }

    fn restore(&mut self, saved: &[u8]) -> Result<()> {
        let (own, theirs) = (size_of_val(&self[..]), saved.len());
        if own != theirs {
            return Err(misfit(&format!("{own} bytes of numbers here, {theirs} there")));
        }
        with_bytes_mut(self, |bytes| bytes.copy_from_slice(saved));
        Ok(())
    }

    fn digest(&self) -> Result<u64> {
        Ok(digest(as_bytes(self)))
    }
}

impl<A: ElasticState, B: ElasticState> ElasticState for (A, B) {
    fn save(&self) -> Result<Vec<u8>> {
        Ok(joined(&[&self.0.save()?, &self.1.save()?]))
    }

    fn restore(&mut self, saved: &[u8]) -> Result<()> {
        let [first, second] = &parted(saved)?[..] else { return Err(misfit("the other rank has no pair")) };
        // The first goes back if the second does not fit.
        let before = self.0.save()?;
        self.0.restore(first)?;
        self.1.restore(second).inspect_err(|_| {
            let _ = self.0.restore(&before);
        })
    }

    fn digest(&self) -> Result<u64> {
        Ok(digest(as_bytes(&[self.0.digest()?, self.1.digest()?])))
    }

    fn on_change(&mut self, world: &mut World, change: &WorldChange) -> Result<()> {
        self.0.on_change(world, change)?;
        self.1.on_change(world, change)
    }
}

/// The error of a state that belongs to another program.
pub(crate) fn misfit(what: &str) -> Error {
    Error::Parameters(format!(
        "the state of another rank does not fit this one: {what}. A process that joins must run the same program with \
         the same arguments"
    ))
}

/// Pieces of bytes as one: each with its length before it.
pub(crate) fn joined(pieces: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(pieces.iter().map(|piece| 8 + piece.len()).sum());
    for piece in pieces {
        bytes.extend_from_slice(&(piece.len() as u64).to_le_bytes());
        bytes.extend_from_slice(piece);
    }
    bytes
}

/// The pieces again.
pub(crate) fn parted(mut bytes: &[u8]) -> Result<Vec<&[u8]>> {
    let short = || misfit("what it has sent ends in the middle");
    let mut pieces = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk().ok_or_else(short)?;
        let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| short())?;
        let (piece, rest) = rest.split_at_checked(length).ok_or_else(short)?;
        pieces.push(piece);
        bytes = rest;
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_survive_and_cut_bytes_are_refused() {
        let bytes = joined(&[b"one", b"", b"three"]);
        assert_eq!(parted(&bytes).unwrap(), [&b"one"[..], b"", b"three"]);
        assert!(parted(&[]).unwrap().is_empty());
        for cut in [1, 7, 9, 12, bytes.len() - 1] {
            assert!(parted(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        assert!(parted(&[0xff; 8]).is_err());
    }

    #[test]
    fn a_pair_becomes_another_or_stays_as_it_was() {
        let source = (vec![1.5f32, 2.5], vec![7u64]);
        let mut other = (vec![0.0f32; 2], vec![0u64]);
        other.restore(&source.save().unwrap()).unwrap();
        assert_eq!(other, source);
        assert_eq!(other.digest().unwrap(), source.digest().unwrap());
        let mut odd = (vec![3.0f32, 4.0], vec![1u64, 2]);
        let error = odd.restore(&source.save().unwrap()).unwrap_err().to_string();
        assert!(error.contains("16 bytes of numbers here, 8 there") && error.contains("same program"), "{error}");
        assert_eq!(odd.0, [3.0, 4.0]);
        assert!(other.restore(b"").is_err());
    }
}
