//! A device that is none, for tests: host memory, streams that run late, and faults on request.
//!
//! Work that is queued runs only when somebody looks at an event behind it, and then not at the first look: every
//! stream has a delay, counted in looks. So whatever reads memory before it has waited for the right event gets what
//! was there before, and a test that compares results finds it. Ranks are threads here; their memory is found by number
//! in a table of the process, as a driver finds memory of other processes.
//!
//! [`DeviceFaults`] lets a chosen call fail as the real driver's would.

mod copy_log;
mod faults;
mod memory;
mod nccl;
mod run;

use std::collections::{HashMap, HashSet, VecDeque};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farandole_transport::ProcessId;

pub use copy_log::{CopyLog, HostCopy};
pub use faults::{Call, DeviceFaults};
pub use nccl::{NcclEnds, PretendNccl};

use crate::words;
use crate::{Backend, Device, DeviceAdasum, DeviceCopy, DeviceFold, Error, Export, Info, Result, Uuid};
use nccl::Come;
use run::{HostCall, Work};

/// Numbers of streams, events and devices. All pretended devices of a process share them.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

fn number() -> u64 {
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

/// A pretended device. See the module's text.
#[derive(Debug)]
pub struct Pretend {
    info: Info,
    faults: DeviceFaults,
    /// Whether other ranks can map what is allocated.
    is_shareable: bool,
    /// Looks at an event before it happens.
    delay_looks: u32,
    /// Where copies between device and host are noted as they are queued.
    copies: CopyLog,
    /// Why every call fails from now on.
    failed: Mutex<Option<Error>>,
    /// Its streams. Locked for a moment.
    streams: Mutex<Vec<u64>>,
    /// Whose memory it has.
    process: ProcessId,
}

/// The streams of all pretended devices of this process. A rank waits for events of the program's streams, which belong
/// to the same device in another pair of hands.
static QUEUES: LazyLock<Mutex<Queues>> = LazyLock::new(Mutex::default);

#[derive(Debug, Default)]
struct Queues {
    streams: HashMap<u64, VecDeque<Work>>,
    /// Events that were recorded and have not happened.
    awaited: HashMap<u64, Awaited>,
    /// Streams in which work is being carried out.
    running: HashSet<u64>,
    /// The clock of all of them: every fold and every call for copies takes a microsecond, and nothing else takes time.
    clock_ns: u64,
}

/// When timed events happened; `None`: not yet. Taken after the lock of the streams, if both are: whoever drops an
/// event may hold that.
static TIMED: LazyLock<Mutex<HashMap<u64, Option<u64>>>> = LazyLock::new(Mutex::default);

/// How long a piece of work takes on the pretended clock.
const WORK_NS: u64 = 1000;

#[derive(Clone, Copy, Debug)]
struct Awaited {
    /// Where it was recorded.
    stream: u64,
    /// Looks in vain that are left.
    looks: u32,
}

impl Pretend {
    /// A device without faults, whose events happen at the third look.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Pretend {
        Pretend::with(2, DeviceFaults::default())
    }

    /// A device whose events happen after so many looks in vain, with faults.
    pub fn with(delay_looks: u32, faults: DeviceFaults) -> Pretend {
        let uuid = Uuid(std::array::from_fn(|index| number().to_le_bytes()[index % 8]));
        let info = Info {
            ordinal: 0,
            uuid,
            name: "pretended device".to_owned(),
            memory_bytes: u64::MAX,
            driver: "none".to_owned(),
            runs_processes_at_once: true,
        };
        Pretend {
            info,
            faults,
            is_shareable: true,
            delay_looks,
            copies: CopyLog::default(),
            failed: Mutex::default(),
            streams: Mutex::default(),
            process: ProcessId::own(),
        }
    }

    /// Notes its copies to and from the host there.
    #[must_use]
    pub fn noting(mut self, copies: CopyLog) -> Pretend {
        self.copies = copies;
        self
    }

    /// The same device as another: what lies on one lies on the other.
    #[must_use]
    pub fn sharing(mut self, uuid: Uuid) -> Pretend {
        self.info.uuid = uuid;
        self
    }

    /// In the hands of another process, which maps what other processes allocate.
    #[must_use]
    pub fn in_process(mut self, pid: u32) -> Pretend {
        self.process = ProcessId { pid, namespace: u64::MAX, start_time: 1 };
        self
    }

    /// One on which processes take turns.
    #[must_use]
    pub fn taking_turns(mut self) -> Pretend {
        self.info.runs_processes_at_once = false;
        self
    }

    /// With memory that other ranks cannot map.
    #[must_use]
    pub fn private(mut self) -> Pretend {
        self.is_shareable = false;
        self
    }

    /// As a device.
    pub fn device(self) -> Device {
        Device::new(Arc::new(self))
    }

    /// Lets this call happen, or fail as was asked for.
    fn enter(&self, call: Call) -> Result<MutexGuard<'static, Queues>> {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if failed.is_none()
            && let Some(error) = self.faults.strike(call)
        {
            if !error.is_sticky() {
                return Err(error);
            }
            *failed = Some(error);
            // As the real one: what was queued there is never carried out.
            let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
            queues().streams.retain(|stream, _| !streams.contains(stream));
        }
        match &*failed {
            Some(error) => Err(error.clone()),
            None => Ok(queues()),
        }
    }
}

fn queues() -> MutexGuard<'static, Queues> {
    QUEUES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn timed() -> MutexGuard<'static, HashMap<u64, Option<u64>>> {
    TIMED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queues {
    fn queue(&mut self, stream: u64, work: Work) {
        self.streams.entry(stream).or_default().push_back(work);
    }

    fn mark(&mut self, stream: u64, event: u64, looks: u32) {
        self.awaited.insert(event, Awaited { stream, looks });
        self.queue(stream, Work::Mark(event));
    }

    /// Runs everything that the event stands behind, and what that waits for, as far as other ranks have come. Says
    /// whether the event has happened.
    fn run_until(&mut self, event: u64) -> bool {
        match self.awaited.get(&event) {
            Some(&Awaited { stream, .. }) => {
                self.run(stream, Some(event));
                !self.awaited.contains_key(&event)
            }
            None => true,
        }
    }

    /// Runs what lies in a stream, up to an event, to a word that is not written, or to a collective to which other
    /// ranks have not come.
    fn run(&mut self, stream: u64, until: Option<u64>) {
        if self.running.insert(stream) {
            self.run_on(stream, until);
            self.running.remove(&stream);
        }
    }

    fn run_on(&mut self, stream: u64, until: Option<u64>) {
        while let Some(work) = self.streams.get_mut(&stream).and_then(VecDeque::pop_front) {
            let waits = match &work {
                Work::Await(event) => !self.run_until(*event),
                Work::AwaitWord(word, value) => !self.reaches(*word, *value),
                Work::Meet(meeting) => match meeting.come() {
                    Come::Early => true,
                    // Devices of ranks that came before go on by themselves.
                    Come::Last => {
                        self.run_calls();
                        false
                    }
                    Come::After => false,
                },
                _ => false,
            };
            if waits {
                self.streams.entry(stream).or_default().push_front(work);
                return;
            }
            match work {
                Work::Mark(mark) => {
                    self.awaited.remove(&mark);
                    timed().entry(mark).and_modify(|at_ns| *at_ns = Some(self.clock_ns));
                    if until == Some(mark) {
                        break;
                    }
                }
                work => {
                    let takes_time = matches!(work, Work::Copy(_) | Work::Fold(_) | Work::Adasum(_));
                    self.clock_ns += if takes_time { WORK_NS } else { 0 };
                    let writes = matches!(work, Work::WriteWord(..));
                    work.run();
                    if writes {
                        self.run_calls();
                    }
                }
            }
        }
        if self.streams.get(&stream).is_some_and(VecDeque::is_empty) {
            self.streams.remove(&stream);
        }
    }

    /// Whether a word has come to a value, if all devices that write words go on as far as they can.
    fn reaches(&mut self, word: u64, value: u32) -> bool {
        let is_there = || memory::word(word).is_none_or(|now| words::has_reached(now, value));
        if !is_there() {
            self.run_those(|work| matches!(work, Work::WriteWord(..)));
        }
        is_there()
    }

    /// Runs the streams in which the host is to be called.
    fn run_calls(&mut self) {
        self.run_those(|work| matches!(work, Work::Call(_)));
    }

    /// Runs the streams that have such work.
    fn run_those(&mut self, is_such: fn(&Work) -> bool) {
        let with = |(&stream, works): (&u64, &VecDeque<Work>)| works.iter().any(is_such).then_some(stream);
        let streams: Vec<u64> = self.streams.iter().filter_map(with).collect();
        streams.into_iter().for_each(|stream| self.run(stream, None));
    }
}

impl Backend for Pretend {
    fn info(&self) -> &Info {
        &self.info
    }

    fn process(&self) -> ProcessId {
        self.process
    }

    fn allocate(&self, bytes: usize) -> Result<u64> {
        drop(self.enter(Call::Allocate)?);
        Ok(memory::allocate(bytes, self.is_shareable))
    }

    fn free(&self, address: u64) {
        memory::free(address);
    }

    fn create_stream(&self) -> Result<u64> {
        drop(self.enter(Call::Other)?);
        let stream = number();
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        Ok(stream)
    }

    fn destroy_stream(&self, stream: u64) {
        // As the real one: what was queued still runs, but nobody waits for it.
        if let Ok(mut queues) = self.enter(Call::Other) {
            queues.run(stream, None);
        }
    }

    fn create_event(&self) -> Result<u64> {
        drop(self.enter(Call::Other)?);
        Ok(number())
    }

    fn create_timed_event(&self) -> Result<u64> {
        drop(self.enter(Call::Other)?);
        let event = number();
        timed().insert(event, None);
        Ok(event)
    }

    fn elapsed_ns(&self, from: u64, to: u64) -> Result<Option<u64>> {
        drop(self.enter(Call::Other)?);
        let timed = timed();
        let at_ns = |event: u64| timed.get(&event).copied().flatten();
        Ok(at_ns(from).zip(at_ns(to)).map(|(from_ns, to_ns)| to_ns.saturating_sub(from_ns)))
    }

    fn destroy_event(&self, event: u64) {
        timed().remove(&event);
    }

    fn record(&self, event: u64, stream: u64) -> Result<()> {
        let mut queues = self.enter(Call::Record)?;
        queues.mark(stream, event, self.delay_looks);
        Ok(())
    }

    fn wait_event(&self, stream: u64, event: u64) -> Result<()> {
        let mut queues = self.enter(Call::Other)?;
        queues.queue(stream, Work::Await(event));
        Ok(())
    }

    fn has_happened(&self, event: u64) -> Result<bool> {
        let mut queues = self.enter(Call::Look)?;
        match queues.awaited.get_mut(&event) {
            None => Ok(true),
            Some(Awaited { looks: 0, .. }) => Ok(queues.run_until(event)),
            Some(awaited) => {
                awaited.looks -= 1;
                Ok(false)
            }
        }
    }

    fn call_when_reached(&self, stream: u64, call: Box<dyn FnOnce() + Send>) -> Result<()> {
        let mut queues = self.enter(Call::Other)?;
        queues.queue(stream, Work::Call(HostCall(call)));
        // A driver may call at any time after what is before it; here that is at once, or when a word is written.
        queues.run(stream, None);
        Ok(())
    }

    fn register_words(&self, words: &[AtomicU32]) -> Result<u64> {
        drop(self.enter(Call::Other)?);
        Ok(memory::register_words(words))
    }

    fn unregister_words(&self, words: &[AtomicU32]) {
        memory::unregister_words(words);
    }

    fn set_word(&self, word: &AtomicU32, value: u32) {
        let mut queues = queues();
        word.store(value, Ordering::Release);
        queues.run_calls();
    }

    fn write_word(&self, stream: u64, address: u64, value: u32) -> Result<()> {
        let mut queues = self.enter(Call::Other)?;
        queues.queue(stream, Work::WriteWord(address, value));
        Ok(())
    }

    fn wait_word(&self, stream: u64, address: u64, value: u32) -> Result<()> {
        let mut queues = self.enter(Call::Other)?;
        queues.queue(stream, Work::AwaitWord(address, value));
        Ok(())
    }

    fn wait_until_empty(&self, stream: u64) -> Result<()> {
        let last = number();
        self.enter(Call::Other)?.mark(stream, last, 0);
        while !queues().run_until(last) {
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }

    fn fold(&self, stream: u64, folding: &DeviceFold<'_>) -> Result<()> {
        let mut queues = self.enter(Call::Fold)?;
        queues.queue(stream, Work::fold(folding));
        Ok(())
    }

    fn adasum(&self, stream: u64, combining: &DeviceAdasum<'_>) -> Result<()> {
        let mut queues = self.enter(Call::Fold)?;
        queues.queue(stream, Work::adasum(combining));
        Ok(())
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<NonNull<u8>> {
        drop(self.enter(Call::Allocate)?);
        Ok(memory::allocate_pinned(bytes))
    }

    fn free_pinned(&self, pinned: NonNull<u8>) {
        memory::free_pinned(pinned);
    }

    fn copy_to_pinned(&self, stream: u64, source: u64, target: NonNull<u8>, bytes: usize) -> Result<()> {
        let mut queues = self.enter(Call::Copy)?;
        self.copies.note(HostCopy::ToHost);
        queues.queue(stream, Work::ToHost { source, target: target.as_ptr().expose_provenance(), bytes });
        Ok(())
    }

    fn copy_from_pinned(&self, stream: u64, source: NonNull<u8>, target: u64, bytes: usize) -> Result<()> {
        let mut queues = self.enter(Call::Copy)?;
        self.copies.note(HostCopy::ToDevice);
        queues.queue(stream, Work::FromHost { source: source.as_ptr().expose_provenance(), target, bytes });
        Ok(())
    }

    fn copy(&self, stream: u64, copies: &[DeviceCopy]) -> Result<()> {
        let mut queues = self.enter(Call::Copy)?;
        queues.queue(stream, Work::Copy(copies.to_vec()));
        Ok(())
    }

    fn read_and_wait(&self, address: u64, target: &mut [u8]) -> Result<()> {
        let _queues = self.enter(Call::Other)?;
        memory::read(address, target);
        Ok(())
    }

    fn write_and_wait(&self, address: u64, source: &[u8]) -> Result<()> {
        let _queues = self.enter(Call::Other)?;
        memory::write(address, source);
        Ok(())
    }

    fn export(&self, address: u64) -> Result<Export> {
        drop(self.enter(Call::Export)?);
        let found = find(address)?;
        if !found.is_shareable {
            return Err(Error::NotShareable(format!("{address:#x} lies in private memory")));
        }
        Ok(Export {
            process: self.process,
            device: self.info.uuid,
            allocation: found.id,
            base: found.base,
            bytes: found.bytes,
            handle: [0; 64],
        })
    }

    fn allocation_id(&self, address: u64) -> Result<u64> {
        drop(self.enter(Call::Other)?);
        Ok(find(address)?.id)
    }

    fn import(&self, export: &Export) -> Result<u64> {
        drop(self.enter(Call::Import)?);
        match memory::find(export.base) {
            Some(found) if found.id == export.allocation => Ok(found.base),
            _ => Err(Error::NotShareable("the other process has freed it".to_owned())),
        }
    }

    fn close(&self, _base: u64) {}

    fn call_current(&self, call: &mut dyn FnMut()) -> Result<()> {
        drop(self.enter(Call::Other)?);
        call();
        Ok(())
    }
}

fn find(address: u64) -> Result<memory::Found> {
    memory::find(address).ok_or_else(|| Error::NotShareable(format!("there is no allocation at {address:#x}")))
}

#[cfg(test)]
mod tests {
    use farandole_plan::{Dtype, ReduceOp};
    use farandole_tensor::Finish;

    use super::*;

    fn sum_of_two(device: &Device, addresses: &[u64]) -> crate::Stream {
        let stream = device.stream().unwrap();
        let folding = DeviceFold {
            dtype: Dtype::F32,
            stored: Dtype::F32,
            op: ReduceOp::Sum,
            prescale: 2.0,
            finish: Finish::Multiply(0.5),
            ranks: 2,
            targets: 0,
            elems: &[1],
            addresses,
        };
        stream.fold(&folding).unwrap();
        stream
    }

    #[test]
    fn work_runs_when_its_event_is_waited_for() {
        let device = Pretend::new().device();
        let (a, b) = (device.allocate(4).unwrap(), device.allocate(4).unwrap());
        device.write_and_wait(a.address(), &3f32.to_ne_bytes()).unwrap();
        device.write_and_wait(b.address(), &4f32.to_ne_bytes()).unwrap();
        let stream = sum_of_two(&device, &[a.address(), b.address()]);
        let event = stream.record().unwrap();
        let read = |address| {
            let mut bytes = [0; 4];
            device.read_and_wait(address, &mut bytes).unwrap();
            f32::from_ne_bytes(bytes)
        };
        assert!(!event.has_happened().unwrap() && read(b.address()) == 4.0);
        assert!(!event.has_happened().unwrap() && event.has_happened().unwrap());
        assert_eq!((read(a.address()), read(b.address())), (7.0, 7.0));
    }

    #[test]
    fn streams_wait_for_each_other_through_events() {
        let device = Pretend::new().device();
        let memory = device.allocate(12).unwrap();
        device.write_and_wait(memory.address(), &[1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
        let copy =
            |from: u64| DeviceCopy { source: memory.address() + from, target: memory.address() + from + 4, bytes: 4 };
        first.copy(&[copy(0)]).unwrap();
        second.wait(&first.record().unwrap()).unwrap();
        second.copy(&[copy(4)]).unwrap();
        second.wait_until_empty().unwrap();
        let mut bytes = [0; 12];
        device.read_and_wait(memory.address(), &mut bytes).unwrap();
        assert_eq!(bytes, [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4]);
    }

    #[test]
    fn timed_events_tell_what_lay_between_them() {
        let device = Pretend::with(0, DeviceFaults::default()).device();
        let memory = device.allocate(8).unwrap();
        let stream = device.stream().unwrap();
        let begun = stream.record_timed().unwrap();
        let copy = DeviceCopy { source: memory.address(), target: memory.address() + 4, bytes: 4 };
        stream.copy(&[copy]).unwrap();
        stream.copy(&[copy]).unwrap();
        let ended = stream.record_timed().unwrap();
        assert_eq!(ended.ns_since(&begun).unwrap(), None, "nobody has looked yet");
        assert!(ended.has_happened().unwrap());
        // Streams of other tests share the clock.
        assert!(ended.ns_since(&begun).unwrap().unwrap() >= 2 * WORK_NS);
    }

    #[test]
    fn a_sticky_fault_stays() {
        let faults = DeviceFaults::default().at(Call::Look, 1, DeviceFaults::illegal_address());
        let device = Pretend::with(0, faults).device();
        let stream = device.stream().unwrap();
        let event = stream.record().unwrap();
        assert!(event.has_happened().unwrap());
        assert!(event.has_happened().unwrap_err().is_sticky());
        assert!(device.allocate(1).unwrap_err().is_sticky());
    }
}
