//! Words of host memory by which streams of several processes wait for each other: [`Words`].
//!
//! A stream can wait for an event only where the event's process lets it. Ranks that work on each other's memory must
//! wait for each other's streams, without a host in between: each rank has words in memory that all processes of the
//! host map, one for each peer; the peer's stream writes it, and the rank's own stream waits until it has reached a
//! value.
//!
//! Values are compared cyclically: a word that counts up may wrap around. The host can set a word, too: to let streams
//! go on whose peer will never write.
//!
//! **What a waiting stream may hold up.** The driver maps streams to a limited number of hardware queues
//! (`CUDA_DEVICE_MAX_CONNECTIONS`), and a wait holds up whatever is behind it in its queue. Streams of the highest
//! priority, which [`crate::Device::stream`] makes, do not share queues with those of frameworks.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Backend, Result};

/// Memory in which words lie, all in one page. What it gives must not move while it lives.
pub type WordMemory = Box<dyn AsRef<[AtomicU32]> + Send + Sync>;

/// See the module's text.
pub struct Words {
    backend: Arc<dyn Backend>,
    memory: WordMemory,
    /// Where the device finds the first.
    address: u64,
}

impl Words {
    pub(crate) fn new(backend: Arc<dyn Backend>, memory: WordMemory) -> Result<Words> {
        let address = backend.register_words((*memory).as_ref())?;
        Ok(Words { backend, memory, address })
    }

    /// Sets a word from the host, so that whatever waits for this value or an earlier one goes on.
    ///
    /// # Panics
    /// If there is no such word.
    pub fn set(&self, index: usize, value: u32) {
        self.backend.set_word(&(*self.memory).as_ref()[index], value);
    }

    /// Whether a word has a value or a later one.
    ///
    /// # Panics
    /// If there is no such word.
    pub fn has_reached(&self, index: usize, value: u32) -> bool {
        has_reached((*self.memory).as_ref()[index].load(Ordering::Acquire), value)
    }

    /// Where the device finds a word.
    pub(crate) fn address(&self, index: usize) -> u64 {
        assert!(index < (*self.memory).as_ref().len(), "the word is one of these");
        self.address + (index * size_of::<AtomicU32>()) as u64
    }
}

/// Whether a word that has come this far has reached a value.
pub(crate) fn has_reached(word: u32, value: u32) -> bool {
    word.wrapping_sub(value).cast_signed() >= 0
}

impl Drop for Words {
    fn drop(&mut self) {
        self.backend.unregister_words((*self.memory).as_ref());
    }
}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Words({:#x})", self.address)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::pretend::{DeviceFaults, Pretend};
    use crate::{Allocation, Device, DeviceCopy, Stream};

    /// Words that several processes would map.
    #[derive(Clone, Default)]
    struct Shared(Arc<[AtomicU32; 2]>);

    impl AsRef<[AtomicU32]> for Shared {
        fn as_ref(&self) -> &[AtomicU32] {
            &*self.0
        }
    }

    fn device() -> Device {
        Pretend::with(0, DeviceFaults::default()).device()
    }

    /// A stream that copies one byte to another once the word has this value.
    fn copies_after(device: &Device, words: &Words, value: u32) -> (Stream, Allocation) {
        let memory = device.allocate(2).unwrap();
        device.write_and_wait(memory.address(), &[7, 0]).unwrap();
        let stream = device.stream().unwrap();
        stream.wait_word(words, 1, value).unwrap();
        stream.copy(&[DeviceCopy { source: memory.address(), target: memory.address() + 1, bytes: 1 }]).unwrap();
        (stream, memory)
    }

    fn second(device: &Device, memory: &Allocation) -> u8 {
        let mut bytes = [0; 2];
        device.read_and_wait(memory.address(), &mut bytes).unwrap();
        bytes[1]
    }

    #[test]
    fn a_stream_goes_on_when_another_one_has_written() {
        let (here, there, memory) = (device(), device(), Shared::default());
        let (words, same) = (here.words(Box::new(memory.clone())).unwrap(), there.words(Box::new(memory)).unwrap());
        let (stream, bytes) = copies_after(&here, &words, 5);
        let done = stream.record().unwrap();
        assert!(!done.has_happened().unwrap() && second(&here, &bytes) == 0);
        let writer = there.stream().unwrap();
        writer.write_word(&same, 1, 4).unwrap();
        writer.wait_until_empty().unwrap();
        assert!(!done.has_happened().unwrap());
        writer.write_word(&same, 1, 6).unwrap();
        writer.wait_until_empty().unwrap();
        assert!(done.has_happened().unwrap() && second(&here, &bytes) == 7);
    }

    #[test]
    fn the_host_lets_streams_go_on() {
        let device = device();
        let words = device.words(Box::new(Shared::default())).unwrap();
        let (stream, _bytes) = copies_after(&device, &words, 1);
        let (sender, receiver) = mpsc::channel();
        stream.call_when_reached(move || sender.send(()).unwrap()).unwrap();
        assert!(receiver.try_recv().is_err());
        words.set(0, 1 << 30);
        assert!(receiver.try_recv().is_err(), "another word");
        words.set(1, 1 << 30);
        receiver.recv_timeout(Duration::from_secs(10)).unwrap();
    }

    #[test]
    fn values_are_compared_cyclically() {
        assert!(has_reached(5, 5) && has_reached(6, 5) && !has_reached(4, 5));
        assert!(has_reached(1, u32::MAX) && !has_reached(u32::MAX, 1));
    }
}
