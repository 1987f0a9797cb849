//! Host memory in the place of a device's, for tests of front ends without a device: [`StandIn`].
//!
//! Ranks are processes here, whose frameworks know of no device. Any memory of the process counts as memory of the one
//! device, which all of them share. What is allocated here lies in files in memory that other processes map, as they
//! map allocations of a driver; all other memory cannot be mapped and is packed, as that of a framework's pool is.
//!
//! The invariant: everything is done when the call returns, as for a framework on the processor. So a stream that is to
//! wait for a word lets its caller wait: other processes write it in a moment, or their end is an error.
//!
//! Not here: work that runs late and calls that fail. Those belong to tests of the engine ([`crate::pretend`]).

#![allow(unsafe_code)]

mod passing;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use farandole_transport::ProcessId;

use crate::{
    Backend, Device, DeviceAdasum, DeviceCopy, DeviceFold, Error, Export, Info, Result, Uuid, host_fold, words,
};

/// How long a word is waited for. Its writer is a process that has come to the same place.
const WORD_TIMEOUT: Duration = Duration::from_secs(10);

/// See the module's text.
#[derive(Debug)]
pub struct StandIn {
    info: Info,
    numbers: AtomicU64,
    /// Allocations and mappings, by where they begin. Locked for a moment by any thread.
    mapped: Arc<Mutex<BTreeMap<u64, Mapped>>>,
    /// Whether other processes can fetch the files of allocations, or why not. Set by the first export.
    served: OnceLock<std::result::Result<(), String>>,
}

#[derive(Debug)]
struct Mapped {
    bytes: usize,
    number: u64,
    /// Of an allocation: its file.
    file: Option<OwnedFd>,
}

/// The device. There is one, with the number 0.
///
/// # Errors
/// [`Error::Unavailable`] for any other number.
pub fn open(ordinal: u32) -> Result<Device> {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    if ordinal != 0 {
        return Err(Error::Unavailable(format!(
            "there is one device that stands in for others, and no device {ordinal}"
        )));
    }
    Ok(DEVICE.get_or_init(|| Device::new(Arc::new(StandIn::new()))).clone())
}

impl StandIn {
    fn new() -> StandIn {
        let info = Info {
            ordinal: 0,
            uuid: Uuid(*b"host memory only"),
            name: "host memory in the place of a device".to_owned(),
            memory_bytes: u64::MAX,
            driver: "none".to_owned(),
            runs_processes_at_once: true,
        };
        StandIn { info, numbers: AtomicU64::new(1), mapped: Arc::default(), served: OnceLock::new() }
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Mapped>> {
        lock(&self.mapped)
    }

    /// Lets other processes fetch the files of allocations.
    fn serve(&self) -> Result<()> {
        let begin = || {
            let mapped = Arc::clone(&self.mapped);
            passing::serve(move |number| duplicate(&lock(&mapped), number)).map_err(|error| error.to_string())
        };
        let served = self.served.get_or_init(begin);
        served.as_ref().copied().map_err(|error| refused("export", &std::io::Error::other(error.as_str())))
    }

    /// Maps a file and enters it.
    fn map(&self, file: &impl AsRawFd, bytes: usize, kept: Option<OwnedFd>) -> Result<u64> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of a file that has so many bytes; nothing that exists is touched.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(Error::OutOfMemory { bytes, free_and_total: None });
        }
        let base = base as u64;
        self.lock().insert(base, Mapped { bytes, number: self.number(), file: kept });
        Ok(base)
    }

    fn unmap(&self, base: u64) {
        let Some(mapped) = self.lock().remove(&base) else { return };
        // SAFETY: a mapping of ours, which nothing uses any more: the caller promises that.
        unsafe { libc::munmap(base as *mut libc::c_void, mapped.bytes) };
    }

    /// The allocation in which an address lies.
    fn find<T>(&self, address: u64, then: impl FnOnce(u64, &Mapped, &OwnedFd) -> T) -> Result<T> {
        let table = self.lock();
        let found = table.range(..=address).next_back();
        match found {
            Some((&base, mapped)) if address < base + mapped.bytes as u64 && mapped.file.is_some() => {
                let file = mapped.file.as_ref().expect("invariant: just seen");
                Ok(then(base, mapped, file))
            }
            _ => Err(Error::NotShareable(format!("{address:#x} is memory of this process alone"))),
        }
    }
}

impl Backend for StandIn {
    fn info(&self) -> &Info {
        &self.info
    }

    fn allocate(&self, bytes: usize) -> Result<u64> {
        // SAFETY: makes a file of no name; the text ends with a zero.
        let file = unsafe { libc::memfd_create(c"farandole-stand-in".as_ptr(), libc::MFD_CLOEXEC) };
        if file < 0 {
            return Err(Error::OutOfMemory { bytes, free_and_total: None });
        }
        // SAFETY: just made, and nobody else has it.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        File::from(file.try_clone().map_err(|error| refused("dup", &error))?)
            .set_len(bytes as u64)
            .map_err(|error| refused("ftruncate", &error))?;
        let number = file.as_raw_fd();
        self.map(&number, bytes, Some(file))
    }

    fn free(&self, address: u64) {
        self.unmap(address);
    }

    fn create_stream(&self) -> Result<u64> {
        Ok(self.number())
    }

    fn destroy_stream(&self, _stream: u64) {}

    fn create_event(&self) -> Result<u64> {
        Ok(self.number())
    }

    fn destroy_event(&self, _event: u64) {}

    fn record(&self, _event: u64, _stream: u64) -> Result<()> {
        Ok(())
    }

    fn wait_event(&self, _stream: u64, _event: u64) -> Result<()> {
        Ok(())
    }

    fn has_happened(&self, _event: u64) -> Result<bool> {
        Ok(true)
    }

    fn call_when_reached(&self, _stream: u64, call: Box<dyn FnOnce() + Send>) -> Result<()> {
        call();
        Ok(())
    }

    fn register_words(&self, words: &[AtomicU32]) -> Result<u64> {
        Ok(words.as_ptr().expose_provenance() as u64)
    }

    fn unregister_words(&self, _words: &[AtomicU32]) {}

    fn write_word(&self, _stream: u64, address: u64, value: u32) -> Result<()> {
        word_at(address).store(value, Ordering::Release);
        Ok(())
    }

    fn wait_word(&self, _stream: u64, address: u64, value: u32) -> Result<()> {
        let begun = Instant::now();
        while !words::has_reached(word_at(address).load(Ordering::Acquire), value) {
            if begun.elapsed() > WORD_TIMEOUT {
                return Err(refused("wait_word", &std::io::ErrorKind::TimedOut.into()));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    fn wait_until_empty(&self, _stream: u64) -> Result<()> {
        Ok(())
    }

    fn fold(&self, _stream: u64, folding: &DeviceFold<'_>) -> Result<()> {
        for (elems, addresses) in folding.elems.iter().zip(folding.addresses.chunks(folding.width())) {
            let (contributions, targets) = addresses.split_at(folding.ranks);
            let len_bytes = *elems as usize * folding.dtype.size_bytes();
            let inputs: Vec<Vec<u8>> = contributions.iter().map(|&address| read(address, len_bytes)).collect();
            let result = host_fold::result(folding, &inputs);
            let targets = if targets.is_empty() { contributions } else { targets };
            targets.iter().for_each(|address| write(*address, &result));
        }
        Ok(())
    }

    fn adasum(&self, _stream: u64, combining: &DeviceAdasum<'_>) -> Result<()> {
        for (pair, targets) in combining.pairs.iter().zip(combining.targets.chunks(combining.width())) {
            let result = host_fold::combination(combining, pair, read);
            targets.iter().for_each(|address| write(*address, &result));
        }
        Ok(())
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<NonNull<u8>> {
        let address = self.allocate(bytes)?;
        Ok(NonNull::new(address as *mut u8).expect("invariant: nothing is mapped at zero"))
    }

    fn free_pinned(&self, memory: NonNull<u8>) {
        self.unmap(memory.as_ptr() as u64);
    }

    fn copy_to_pinned(&self, _stream: u64, source: u64, target: NonNull<u8>, bytes: usize) -> Result<()> {
        write(target.as_ptr() as u64, &read(source, bytes));
        Ok(())
    }

    fn copy_from_pinned(&self, _stream: u64, source: NonNull<u8>, target: u64, bytes: usize) -> Result<()> {
        write(target, &read(source.as_ptr() as u64, bytes));
        Ok(())
    }

    fn copy(&self, _stream: u64, copies: &[DeviceCopy]) -> Result<()> {
        copies.iter().for_each(|copy| write(copy.target, &read(copy.source, copy.bytes as usize)));
        Ok(())
    }

    fn read_and_wait(&self, address: u64, target: &mut [u8]) -> Result<()> {
        target.copy_from_slice(&read(address, target.len()));
        Ok(())
    }

    fn write_and_wait(&self, address: u64, source: &[u8]) -> Result<()> {
        write(address, source);
        Ok(())
    }

    fn export(&self, address: u64) -> Result<Export> {
        self.serve()?;
        self.find(address, |base, mapped, _| Export {
            process: ProcessId::own(),
            device: self.info.uuid,
            allocation: mapped.number,
            base,
            bytes: mapped.bytes as u64,
            handle: [0; 64],
        })
    }

    fn allocation_id(&self, address: u64) -> Result<u64> {
        self.find(address, |_, mapped, _| mapped.number)
    }

    fn import(&self, export: &Export) -> Result<u64> {
        let file = passing::fetch(&export.process, export.allocation).map_err(|error| refused("import", &error))?;
        self.map(&file, export.bytes as usize, None)
    }

    fn close(&self, base: u64) {
        self.unmap(base);
    }

    fn call_current(&self, call: &mut dyn FnMut()) -> Result<()> {
        call();
        Ok(())
    }
}

fn lock(mapped: &Mutex<BTreeMap<u64, Mapped>>) -> MutexGuard<'_, BTreeMap<u64, Mapped>> {
    // Valid between any two statements, also if a holder panicked.
    mapped.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A descriptor of the file of an allocation.
fn duplicate(mapped: &BTreeMap<u64, Mapped>, number: u64) -> Option<OwnedFd> {
    mapped.values().find(|mapped| mapped.number == number)?.file.as_ref()?.try_clone().ok()
}

/// A word that is registered.
fn word_at<'a>(address: u64) -> &'a AtomicU32 {
    // SAFETY: words live until they are unregistered, and nobody uses them after that (`Backend`).
    unsafe { AtomicU32::from_ptr(std::ptr::with_exposed_provenance_mut(address as usize)) }
}

fn read(address: u64, bytes: usize) -> Vec<u8> {
    if bytes == 0 {
        return Vec::new();
    }
    // SAFETY: addresses come from whoever promised memory there (the crate's text), and are of this process here.
    unsafe { std::slice::from_raw_parts(address as *const u8, bytes) }.to_vec()
}

fn write(address: u64, source: &[u8]) {
    // SAFETY: as in `read`; the source is memory of its own.
    unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), address as *mut u8, source.len()) };
}

fn refused(call: &'static str, error: &std::io::Error) -> Error {
    Error::Driver {
        call,
        // Below zero: numbers of the driver are above.
        code: -error.raw_os_error().unwrap_or(0),
        name: "the operating system refuses".to_owned(),
        text: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use farandole_plan::{Dtype, ReduceOp};
    use farandole_tensor::Finish;

    use super::*;

    #[test]
    fn memory_of_the_process_is_folded_and_allocations_are_mapped() {
        let device = open(0).unwrap();
        let (mut mine, memory) = ([1_f32, 2.0], device.allocate(8).unwrap());
        device.write_and_wait(memory.address(), &[0; 8]).unwrap();
        assert!(matches!(device.export(mine.as_ptr() as u64), Err(Error::NotShareable(_))));
        // As another process would.
        let export = device.export(memory.address() + 4).unwrap();
        let mapped = device.backend().import(&export).unwrap();
        assert_ne!(mapped, memory.address());
        let addresses = [mine.as_mut_ptr() as u64, mapped];
        let folding = DeviceFold {
            dtype: Dtype::F32,
            stored: Dtype::F32,
            op: ReduceOp::Sum,
            prescale: 1.0,
            finish: Finish::Multiply(3.0),
            ranks: 2,
            targets: 0,
            elems: &[2],
            addresses: &addresses,
        };
        device.stream().unwrap().fold(&folding).unwrap();
        let mut bytes = [0; 8];
        device.read_and_wait(memory.address(), &mut bytes).unwrap();
        assert_eq!((mine, bytes[..4].to_vec()), ([3.0, 6.0], 3_f32.to_ne_bytes().to_vec()));
        device.backend().close(mapped);
    }

    #[test]
    fn whoever_waits_for_a_word_waits_until_it_is_written() {
        struct Shared(Arc<[AtomicU32; 1]>);
        impl AsRef<[AtomicU32]> for Shared {
            fn as_ref(&self) -> &[AtomicU32] {
                &*self.0
            }
        }
        let memory = Arc::new([AtomicU32::new(0)]);
        let words = || open(0).unwrap().words(Box::new(Shared(Arc::clone(&memory)))).unwrap();
        let (waiter, writer) = (words(), words());
        let thread = std::thread::spawn(move || {
            farandole_testing::lapse("the writer, which is late", Duration::from_millis(20));
            open(0).unwrap().stream().unwrap().write_word(&writer, 0, 3).unwrap();
        });
        open(0).unwrap().stream().unwrap().wait_word(&waiter, 0, 3).unwrap();
        assert_eq!(memory[0].load(Ordering::Acquire), 3);
        thread.join().unwrap();
    }

    #[test]
    fn there_is_one_device() {
        assert!(open(1).is_err());
    }
}
