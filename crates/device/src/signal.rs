//! What the host tells streams: [`Signal`].
//!
//! A stream can wait for an event only if it was recorded before. What ranks do together is queued later, when all of
//! them have come; so whoever wants a stream to wait for that, without waiting on the host, lets it wait for a signal,
//! which the host sets when it knows.
//!
//! A signal is a word in host memory that the device reads. It is set once, by the last of those that have to set it,
//! and at the latest when its last clone is dropped: a stream never waits for something that nobody can set any more.
//!
//! **What a waiting stream may hold up.** The driver maps streams to a limited number of hardware queues
//! (`CUDA_DEVICE_MAX_CONNECTIONS`), and a wait holds up whatever is behind it in its queue. Streams of the highest
//! priority, which [`crate::Device::stream`] makes, do not share queues with those of frameworks.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::{Backend, Result};

/// A word and the value that it has once the signal is set. Numbers of the backend's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalWord {
    /// Which word.
    pub word: u64,
    /// It is set when the word has this value or a later one.
    pub value: u32,
}

/// See the module's text. Clones are the same signal.
#[derive(Clone)]
pub struct Signal(Arc<Owned>);

struct Owned {
    backend: Arc<dyn Backend>,
    word: SignalWord,
    /// How many have yet to set it. Counted down by them, on any thread.
    setters: AtomicUsize,
    /// Written by the last of them; read by whoever drops it last, and by askers.
    is_set: AtomicBool,
}

impl Signal {
    pub(crate) fn new(backend: Arc<dyn Backend>, setters: usize) -> Result<Signal> {
        let word = backend.create_signal()?;
        let (setters, is_set) = (AtomicUsize::new(setters), AtomicBool::new(false));
        Ok(Signal(Arc::new(Owned { backend, word, setters, is_set })))
    }

    /// Lets everything go on that waits for it, if nobody else has yet to set it.
    pub fn set(&self) {
        let counted = self.0.setters.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1));
        if counted.unwrap_or(0) <= 1 {
            self.0.set();
        }
    }

    /// Whether it is set.
    pub fn is_set(&self) -> bool {
        self.0.is_set.load(Ordering::Acquire)
    }

    /// Makes what comes into a stream from now on wait for it. `stream` is the driver's handle.
    ///
    /// # Errors
    /// If the driver refuses, or the device has failed.
    pub fn make_wait(&self, stream: u64) -> Result<()> {
        if self.is_set() { Ok(()) } else { self.0.backend.wait_signal(stream, self.0.word) }
    }
}

impl Owned {
    fn set(&self) {
        if !self.is_set.swap(true, Ordering::AcqRel) {
            self.backend.set_signal(self.word);
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.set();
        self.backend.destroy_signal(self.word);
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signal({:#x}, {})", self.0.word.word, if self.is_set() { "set" } else { "not set" })
    }
}

#[cfg(test)]
mod tests {
    use crate::pretend::Pretend;
    use crate::{Device, DeviceCopy};

    /// A stream that copies one byte to another once the signal is set.
    fn copies_after(device: &Device, signal: &crate::Signal) -> (crate::Stream, crate::Allocation) {
        let memory = device.allocate(2).unwrap();
        device.write_and_wait(memory.address(), &[7, 0]).unwrap();
        let stream = device.stream().unwrap();
        signal.make_wait(stream.handle()).unwrap();
        stream.copy(&[DeviceCopy { source: memory.address(), target: memory.address() + 1, bytes: 1 }]).unwrap();
        (stream, memory)
    }

    fn second(device: &Device, memory: &crate::Allocation) -> u8 {
        let mut bytes = [0; 2];
        device.read_and_wait(memory.address(), &mut bytes).unwrap();
        bytes[1]
    }

    #[test]
    fn a_stream_goes_on_when_its_signal_is_set() {
        let device = Pretend::with(0, crate::pretend::DeviceFaults::default()).device();
        let signal = device.signal().unwrap();
        let (stream, memory) = copies_after(&device, &signal);
        let done = stream.record().unwrap();
        assert!(!done.has_happened().unwrap() && second(&device, &memory) == 0);
        signal.set();
        assert!(done.has_happened().unwrap() && second(&device, &memory) == 7);
        signal.set();
        assert!(signal.is_set());
    }

    #[test]
    fn a_signal_that_nobody_can_set_any_more_is_set() {
        let device = Pretend::with(0, crate::pretend::DeviceFaults::default()).device();
        let signal = device.signal().unwrap();
        let (stream, memory) = copies_after(&device, &signal);
        let clone = signal.clone();
        drop(signal);
        let done = stream.record().unwrap();
        assert!(!done.has_happened().unwrap());
        drop(clone);
        assert!(done.has_happened().unwrap() && second(&device, &memory) == 7);
    }

    #[test]
    fn the_last_of_several_sets_a_signal() {
        let device = Pretend::new().device();
        let signal = device.signal_of(3).unwrap();
        signal.set();
        signal.set();
        assert!(!signal.is_set());
        signal.set();
        assert!(signal.is_set());
    }

    #[test]
    fn calls_behind_a_signal_come_when_it_is_set() {
        let device = Pretend::with(0, crate::pretend::DeviceFaults::default()).device();
        let (signal, stream) = (device.signal().unwrap(), device.stream().unwrap());
        let (sender, receiver) = std::sync::mpsc::channel();
        signal.make_wait(stream.handle()).unwrap();
        stream.call_when_reached(move || sender.send(()).unwrap()).unwrap();
        assert!(receiver.try_recv().is_err());
        signal.set();
        receiver.recv_timeout(std::time::Duration::from_secs(10)).unwrap();
    }
}
