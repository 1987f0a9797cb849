//! States that processes get before they join: [`StreamedState`].
//!
//! A process that joins has nothing. If the members stood still until it has their state, each join would cost all of
//! them the time that the state takes on its way. A state that is *streamed* is sent in the background, while the
//! members go on (`farandole_cluster::streaming`): a copy of it, and then the update of every step, with which the
//! process makes the same steps as the members do. What is left when it is let in is a step or two.
//!
//! So a step must follow from the state and from what all ranks have computed together, and from nothing else. Whether
//! it does is not believed: when the process is let in, a digest of its state is compared with that of a member, and if
//! they differ it gets the whole state, as processes do whose state is not streamed.

use std::sync::OnceLock;

use farandole_cluster::RendezvousAccess;
use farandole_cluster::streaming::{StateSource, StreamLimits, StreamPeer};
use farandole_tensor::Element;
use farandole_tensor::element::{as_bytes, with_bytes_mut};

use super::state::{ElasticState, joined, misfit, parted};
use crate::error::Result;

/// A state that changes in steps by updates alone.
///
/// ```
/// use farandole::elastic::{ElasticState, StreamedState};
///
/// struct Network {
///     weights: Vec<f32>,
///     momentum: Vec<f32>,
/// }
///
/// impl ElasticState for Network {
///     fn save(&self) -> farandole::Result<Vec<u8>> {
///         (self.weights.clone(), self.momentum.clone()).save()
///     }
///
///     fn restore(&mut self, saved: &[u8]) -> farandole::Result<()> {
///         let mut pair = (std::mem::take(&mut self.weights), std::mem::take(&mut self.momentum));
///         let restored = pair.restore(saved);
///         (self.weights, self.momentum) = pair;
///         restored
///     }
/// }
///
/// impl StreamedState for Network {
///     type Update = Vec<f32>;
///
///     fn apply(&mut self, gradient: Vec<f32>) {
///         for ((weight, momentum), slope) in self.weights.iter_mut().zip(&mut self.momentum).zip(gradient) {
///             *momentum = 0.9 * *momentum + slope;
///             *weight -= 0.01 * *momentum;
///         }
///     }
/// }
/// ```
pub trait StreamedState: ElasticState {
    /// What all ranks compute together in a step: the reduced gradient, and whatever else the step depends on.
    type Update: StateUpdate;

    /// Makes a step with it, and with nothing else: a process that joins makes it, too, with the same bits.
    fn apply(&mut self, update: Self::Update);
}

/// What can be sent to a process that joins. Vectors of numbers, and pairs of updates, can.
pub trait StateUpdate: Sized {
    /// Writes it down.
    fn encode(&self) -> Vec<u8>;

    /// The same again.
    ///
    /// # Errors
    /// If it is not what [`StateUpdate::encode`] has written.
    fn decode(bytes: &[u8]) -> Result<Self>;
}

impl<T: Element + Default> StateUpdate for Vec<T> {
    fn encode(&self) -> Vec<u8> {
        as_bytes(self).to_vec()
    }

    fn decode(bytes: &[u8]) -> Result<Vec<T>> {
        if !bytes.len().is_multiple_of(size_of::<T>()) {
            return Err(misfit(&format!("an update of {} bytes is no list of numbers", bytes.len())));
        }
        let mut numbers = vec![T::default(); bytes.len() / size_of::<T>()];
        with_bytes_mut(&mut numbers, |into| into.copy_from_slice(bytes));
        Ok(numbers)
    }
}

impl<A: StateUpdate, B: StateUpdate> StateUpdate for (A, B) {
    fn encode(&self) -> Vec<u8> {
        joined(&[&self.0.encode(), &self.1.encode()])
    }

    fn decode(bytes: &[u8]) -> Result<(A, B)> {
        let [first, second] = &parted(bytes)?[..] else { return Err(misfit("an update is no pair")) };
        Ok((A::decode(first)?, B::decode(second)?))
    }
}

/// When a state is streamed, and what that may cost. See
/// [`Builder::streamed_with`](super::Builder::streamed_with).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Streaming {
    /// States of fewer bytes are sent when the process is let in: that takes no longer than a step or two. 1 MiB.
    pub least_bytes: usize,
    /// Updates wait in the memory of the member that sends them, until they are sent. If they take more than so many
    /// times the memory of the state, the process joins without them. 4.
    pub most_log: usize,
    /// How much is sent in a second, at most, to leave the network to gradients. As much as possible by default.
    pub bytes_per_second: Option<u64>,
}

impl Default for Streaming {
    fn default() -> Streaming {
        Streaming { least_bytes: 1 << 20, most_log: 4, bytes_per_second: None }
    }
}

/// A streamed state without its type: how a training makes steps with updates that come as bytes.
#[derive(Debug)]
pub(super) struct Replay<S> {
    pub(super) streaming: Streaming,
    pub(super) apply: fn(&mut S, &[u8]) -> Result<()>,
}

impl<S> Clone for Replay<S> {
    fn clone(&self) -> Replay<S> {
        *self
    }
}

impl<S> Copy for Replay<S> {}

impl<S: StreamedState> Replay<S> {
    pub(super) fn new(streaming: Streaming) -> Replay<S> {
        let apply = |state: &mut S, bytes: &[u8]| {
            state.apply(S::Update::decode(bytes)?);
            Ok(())
        };
        Replay { streaming, apply }
    }
}

/// The side of this process that sends its state, from the first training on that is streamed.
static SOURCE: OnceLock<StateSource> = OnceLock::new();

/// Makes this process one that sends its state, from the next [`init`](crate::init) on. The limits of the first call
/// count.
pub fn source(streaming: Streaming) -> StateSource {
    let Streaming { least_bytes, most_log, bytes_per_second } = streaming;
    SOURCE.get_or_init(|| StateSource::new(StreamLimits { least_bytes, most_log, bytes_per_second })).clone()
}

/// Where this process sends its state; nothing, if it does not.
pub(crate) fn contact(access: &RendezvousAccess, host: &str, member: u64) -> Vec<u8> {
    let Some(source) = SOURCE.get() else { return Vec::new() };
    let own = StreamPeer { key: access.key.clone(), job: access.job, host: host.to_owned(), member };
    source.listen(&own, &access.listen_at).unwrap_or_else(|error| {
        log::warn!("processes that join get the state of other members: {error}");
        Vec::new()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_survive_their_way_and_others_are_refused() {
        let update = (vec![1.5f32, -0.0], (vec![7u64], Vec::<f64>::new()));
        type Nested = (Vec<f32>, (Vec<u64>, Vec<f64>));
        assert_eq!(Nested::decode(&update.encode()).unwrap(), update);
        assert!(Vec::<f32>::decode(&[0; 7]).is_err());
        assert!(Nested::decode(&[]).is_err());
    }
}
