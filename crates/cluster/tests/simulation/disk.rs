//! A simulated disk that all processes write to, and the checkpoints on it.
//!
//! Calls take time, syncs the longest. Until a file is synced a power cut may tear or lose what was written; until a
//! folder is synced it may undo the last changes of names. A disk can be full, and it can lose writes without saying
//! so. The publication itself is the production one (`farandole_cluster::publish`), polled like a thread that a disk
//! keeps waiting.
//!
//! **Checked at every rename:** the file is whole, newer than the one that it replaces, and holds a state that the
//! generation in its token had reached. **After a power cut:** so is the file that is there, and it is not older than
//! the last one whose publication succeeded.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use farandole_cluster::publish::{Disk, Publication, PublishError, SealCheck, SealedFile, Token, publish};

use super::kernel::MILLISECOND;
use super::node::Learned;
use super::random::Random;

/// The name of the checkpoint.
const PATH: &str = "/checkpoints/state.safetensors";

/// A writer that waits for a lock looks again after this time.
const LOCK_INTERVAL: u64 = 20 * MILLISECOND;

/// What a disk does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiskFaults {
    /// The longest that a sync takes, in microseconds.
    pub(crate) slowest_sync: u64,
    /// Bytes that fit.
    pub(crate) room: usize,
    /// Of 256 writes, as many store zeros.
    pub(crate) lost_writes: u64,
    /// Syncs that do nothing: for tests of the simulation itself.
    pub(crate) ignores_syncs: bool,
}

#[derive(Debug, Default)]
struct File {
    content: Vec<u8>,
    /// As much as survives a power cut.
    durable: Vec<u8>,
    lock: Option<u64>,
}

type Names = BTreeMap<PathBuf, usize>;

/// The disk.
#[derive(Debug)]
pub(crate) struct DiskState {
    pub(crate) now: u64,
    faults: DiskFaults,
    random: Random,
    files: Vec<File>,
    names: Names,
    /// The names after each change since the folder was synced last; the first are durable.
    versions: Vec<Names>,
    next_lock: u64,
    /// Calls that will be ready. The world takes them.
    pub(crate) due: Vec<(u64, usize)>,
    /// Every state that a generation has reached.
    reached: BTreeSet<(u64, Learned)>,
    /// The newest publication that succeeded.
    published: Option<Token>,
    pub(crate) publications: u64,
}

pub(crate) type SharedDisk = Rc<RefCell<DiskState>>;

impl DiskState {
    pub(crate) fn new(faults: DiskFaults, random: Random) -> DiskState {
        DiskState {
            now: 0,
            faults,
            random,
            files: Vec::new(),
            names: Names::new(),
            versions: vec![Names::new()],
            next_lock: 0,
            due: Vec::new(),
            reached: BTreeSet::from([(1, Learned::default())]),
            published: None,
            publications: 0,
        }
    }

    /// A member of a generation has this state.
    pub(crate) fn reach(&mut self, generation: u64, learned: Learned) {
        self.reached.insert((generation, learned));
    }

    /// A publication has succeeded.
    fn note_published(&mut self, token: Token) {
        self.publications += 1;
        self.published = self.published.max(Some(token));
    }

    /// All processes are dead, and what was not synced is torn, lost or there.
    pub(crate) fn cut_power(&mut self) {
        let survives = self.random.below(self.versions.len() as u64) as usize;
        self.names = self.versions.swap_remove(survives);
        self.versions = vec![self.names.clone()];
        for file in &mut self.files {
            let lost = file.content.len().saturating_sub(file.durable.len());
            if file.content != file.durable && lost > 0 {
                let kept = file.durable.len() + self.random.below(lost as u64 + 1) as usize;
                file.content.truncate(kept);
                // The length may be there before the bytes are.
                let torn = kept - self.random.below((kept - file.durable.len()) as u64 + 1) as usize;
                file.content[torn..].fill(0);
            }
        }
        match self.names.get(Path::new(PATH)) {
            Some(file) => {
                let token = self.check(*file);
                assert!(Some(token) >= self.published, "{token} is there, and {:?} was published", self.published);
            }
            None => assert_eq!(self.published, None, "a published checkpoint is gone"),
        }
    }

    /// A checkpoint must be whole and of the history of its generation.
    fn check(&self, file: usize) -> Token {
        let content = &self.files[file].content;
        let SealCheck::Intact(token) = SealCheck::of(content) else { panic!("a checkpoint is torn") };
        let learned = learned_in(content);
        assert_eq!(learned.position, token.step);
        assert!(self.reached.contains(&(token.generation, learned)), "a checkpoint is of no generation: {token}");
        token
    }

    fn changed(&mut self) {
        self.versions.push(self.names.clone());
    }

    fn file(&self, path: &Path) -> io::Result<usize> {
        self.names.get(path).copied().ok_or(io::ErrorKind::NotFound.into())
    }

    fn used(&self) -> usize {
        let linked: BTreeSet<usize> = self.names.values().copied().collect();
        linked.into_iter().map(|file| self.files[file].content.len()).sum()
    }
}

/// The disk as one process has it.
#[derive(Debug)]
struct SimulatedDisk {
    disk: SharedDisk,
    node: usize,
    /// When the call that is pending is ready.
    ready_at: Option<u64>,
}

/// A lock; dropping it releases it.
#[derive(Debug)]
pub(crate) struct Lock {
    disk: SharedDisk,
    file: usize,
    id: u64,
}

impl Drop for Lock {
    fn drop(&mut self) {
        let lock = &mut self.disk.borrow_mut().files[self.file].lock;
        *lock = lock.filter(|id| *id != self.id);
    }
}

impl SimulatedDisk {
    /// Makes a call take time.
    fn wait(&mut self, slowest: u64) -> Poll<()> {
        let mut disk = self.disk.borrow_mut();
        let now = disk.now;
        let ready_at = *self.ready_at.get_or_insert_with(|| now + disk.random.below(slowest.max(1)));
        if now >= ready_at {
            self.ready_at = None;
            return Poll::Ready(());
        }
        disk.due.push((ready_at, self.node));
        Poll::Pending
    }

    fn quick<T>(&mut self, call: impl FnOnce(&mut DiskState) -> io::Result<T>) -> Poll<io::Result<T>> {
        match self.wait(MILLISECOND) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => Poll::Ready(call(&mut self.disk.borrow_mut())),
        }
    }

    fn lock(&self, file: usize) -> Option<Lock> {
        let mut disk = self.disk.borrow_mut();
        disk.next_lock += 1;
        let id = disk.next_lock;
        if disk.files[file].lock.is_some() {
            return None;
        }
        disk.files[file].lock = Some(id);
        Some(Lock { disk: Rc::clone(&self.disk), file, id })
    }
}

impl Disk for SimulatedDisk {
    type File = Lock;
    type Lock = Lock;

    fn poll_lock(&mut self, path: &Path) -> Poll<io::Result<Lock>> {
        let file = {
            let mut disk = self.disk.borrow_mut();
            if !disk.names.contains_key(path) {
                disk.files.push(File::default());
                let file = disk.files.len() - 1;
                disk.names.insert(path.to_owned(), file);
                disk.changed();
            }
            disk.names[path]
        };
        match self.lock(file) {
            Some(lock) => Poll::Ready(Ok(lock)),
            None => {
                let mut disk = self.disk.borrow_mut();
                let later = disk.now + LOCK_INTERVAL;
                disk.due.push((later, self.node));
                Poll::Pending
            }
        }
    }

    fn poll_create_new(&mut self, path: &Path) -> Poll<io::Result<Lock>> {
        let created = self.quick(|disk| {
            if disk.names.contains_key(path) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            disk.files.push(File::default());
            disk.names.insert(path.to_owned(), disk.files.len() - 1);
            disk.changed();
            Ok(disk.files.len() - 1)
        });
        created.map_ok(|file| self.lock(file).expect("a new file has no lock"))
    }

    fn poll_write(&mut self, file: &mut Lock, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.quick(|disk| {
            let room = disk.faults.room.saturating_sub(disk.used());
            if room == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let count = bytes.len().min(room).min(1 + disk.random.below(4096) as usize);
            let is_lost = disk.random.below(256) < disk.faults.lost_writes;
            let content = &mut disk.files[file.file].content;
            content.extend(bytes[..count].iter().map(|byte| if is_lost { 0 } else { *byte }));
            Ok(count)
        })
    }

    fn poll_sync(&mut self, file: &mut Lock) -> Poll<io::Result<()>> {
        let slowest = self.disk.borrow().faults.slowest_sync;
        match self.wait(slowest) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => {
                let mut disk = self.disk.borrow_mut();
                if !disk.faults.ignores_syncs {
                    disk.files[file.file].durable = disk.files[file.file].content.clone();
                }
                Poll::Ready(Ok(()))
            }
        }
    }

    fn poll_read(&mut self, path: &Path, offset: u64, into: &mut [u8]) -> Poll<io::Result<usize>> {
        self.quick(|disk| {
            let content = &disk.files[disk.file(path)?].content;
            let rest = &content[content.len().min(offset as usize)..];
            let count = rest.len().min(into.len());
            into[..count].copy_from_slice(&rest[..count]);
            Ok(count)
        })
    }

    fn poll_list(&mut self, folder: &Path) -> Poll<io::Result<Vec<OsString>>> {
        self.quick(|disk| {
            let inside = disk.names.keys().filter(|path| path.parent() == Some(folder));
            Ok(inside.filter_map(|path| path.file_name().map(ToOwned::to_owned)).collect())
        })
    }

    fn poll_link(&mut self, from: &Path, to: &Path) -> Poll<io::Result<()>> {
        self.quick(|disk| {
            if disk.names.contains_key(to) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            let file = disk.file(from)?;
            disk.names.insert(to.to_owned(), file);
            disk.changed();
            Ok(())
        })
    }

    fn poll_rename(&mut self, from: &Path, to: &Path) -> Poll<io::Result<()>> {
        self.quick(|disk| {
            let file = disk.file(from)?;
            let token = disk.check(file);
            if let Ok(present) = disk.file(to) {
                let replaced = disk.check(present);
                assert!(replaced < token, "{token} replaces {replaced}");
            }
            disk.names.remove(from);
            disk.names.insert(to.to_owned(), file);
            disk.changed();
            Ok(())
        })
    }

    fn poll_remove(&mut self, path: &Path) -> Poll<io::Result<()>> {
        self.quick(|disk| {
            disk.file(path)?;
            disk.names.remove(path);
            disk.changed();
            Ok(())
        })
    }

    fn poll_remove_abandoned(&mut self, path: &Path) -> Poll<io::Result<()>> {
        self.quick(|disk| {
            let file = disk.file(path)?;
            if disk.files[file].lock.is_none() {
                disk.names.remove(path);
                disk.changed();
            }
            Ok(())
        })
    }

    fn poll_sync_folder(&mut self, _folder: &Path) -> Poll<io::Result<()>> {
        self.quick(|disk| {
            if !disk.faults.ignores_syncs {
                disk.versions = vec![disk.names.clone()];
            }
            Ok(())
        })
    }
}

/// A publication in flight.
pub(crate) struct Publishing {
    pub(crate) token: Token,
    /// Whether the writer may still publish, as far as it knows.
    pub(crate) may_publish: Rc<Cell<bool>>,
    disk: SharedDisk,
    steps: Pin<Box<dyn Future<Output = Result<(), PublishError>>>>,
}

impl Publishing {
    pub(crate) fn begin(disk: &SharedDisk, node: usize, generation: u64, learned: Learned) -> Publishing {
        let token = Token { run: 1, generation, step: learned.position };
        let may_publish = Rc::new(Cell::new(true));
        let (shared, asked) = (Rc::clone(disk), Rc::clone(&may_publish));
        let steps = Box::pin(async move {
            let mut own = SimulatedDisk { disk: shared, node, ready_at: None };
            let (path, writer) = (PathBuf::from(PATH), format!("simulated-{node}"));
            let publication =
                Publication { path, sealed: SealedFile::new(content(learned), token)?, writer, intact: None };
            let fence = || if asked.get() { Ok(()) } else { Err("it is in another generation".to_owned()) };
            publish(&mut own, &publication, || Poll::Ready(fence())).await
        });
        Publishing { token, may_publish, disk: Rc::clone(disk), steps }
    }

    /// Says whether it is over.
    pub(crate) fn poll(&mut self) -> bool {
        match self.steps.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => {
                if outcome.is_ok() {
                    self.disk.borrow_mut().note_published(self.token);
                }
                true
            }
            Poll::Pending => false,
        }
    }
}

/// A safetensors file that holds a state.
fn content(learned: Learned) -> Vec<u8> {
    let tensor: Vec<u8> = learned.encode().repeat(400);
    let tail = format!("{{\"dtype\":\"U8\",\"shape\":[{0}],\"data_offsets\":[0,{0}]}}}}", tensor.len());
    let mut header = format!("{{\"__metadata__\":{{\"farandole\":\"simulated\"}},\"state\":{tail}");
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &tensor].concat()
}

/// The state in such a file.
fn learned_in(content: &[u8]) -> Learned {
    let header_bytes = u64::from_le_bytes(content[..8].try_into().unwrap()) as usize;
    Learned::decode(&content[8 + header_bytes..])
}
