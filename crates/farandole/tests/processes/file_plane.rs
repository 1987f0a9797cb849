//! A plane for ranks that are processes: they exchange contributions as files of one folder.
//!
//! A rank writes its contribution under a name made of the group, the operation and its rank, and moves it into place,
//! so that peers see it whole or not at all. When all are there, each rank folds them in the order of the ranks. Files
//! stay: what an operation that was given up has left behind has another number than its successor.
//!
//! The kernel does not tell when a file appears, so a thread of the group rings the bell from time to time.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use farandole::plane::{Fold, GroupSeat, Offer, Plane, PlaneGroup, PlaneRun, Progress, Result};
use farandole::{Dtype, GroupId, Rank, TransportError};

/// Buckets of less than this are left to the built-in planes.
pub(crate) const MIN_BYTES: u64 = 1000;

/// How often the bell is rung.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// See the module's text.
#[derive(Debug)]
pub(crate) struct FilePlane {
    folder: PathBuf,
    /// Buckets that it has reduced; added by the driver, read by the test when they are done.
    reduced: Arc<AtomicUsize>,
}

impl FilePlane {
    pub(crate) fn new(folder: PathBuf) -> FilePlane {
        FilePlane { folder, reduced: Arc::default() }
    }

    pub(crate) fn reduced(&self) -> usize {
        self.reduced.load(Ordering::Relaxed)
    }
}

impl Plane for FilePlane {
    fn offer(&self) -> Offer {
        Offer { name: "files", min_bytes: MIN_BYTES, max_bytes: u64::MAX, dtypes: vec![Dtype::F32] }
    }

    fn join(&self, seat: GroupSeat<'_>) -> Result<Box<dyn PlaneGroup>> {
        let member = Member { group: seat.group, me: seat.me, size: seat.topology.size(), folder: self.folder.clone() };
        let member = Arc::new(member);
        let (alive, bell) = (Arc::downgrade(&member), seat.bell);
        thread::spawn(move || {
            while alive.upgrade().is_some() {
                bell.ring();
                farandole_testing::lapse("the other ranks' files", LOOK_EVERY);
            }
        });
        Ok(Box::new(FileGroup { member, reduced: Arc::clone(&self.reduced) }))
    }
}

#[derive(Debug)]
struct Member {
    group: GroupId,
    me: Rank,
    size: usize,
    folder: PathBuf,
}

impl Member {
    fn file(&self, operation: u64, rank: usize) -> PathBuf {
        self.folder.join(format!("{}-{operation}-{rank}", self.group))
    }

    fn missing(&self, operation: u64) -> Option<Rank> {
        (0..self.size).find(|&rank| !self.file(operation, rank).exists()).map(Rank::from)
    }
}

#[derive(Debug)]
struct FileGroup {
    member: Arc<Member>,
    reduced: Arc<AtomicUsize>,
}

impl PlaneGroup for FileGroup {
    fn begin(&mut self, operation: u64, _elems: u64, _dtype: Dtype) -> Box<dyn PlaneRun> {
        let (member, reduced) = (Arc::clone(&self.member), Arc::clone(&self.reduced));
        Box::new(FileRun { member, reduced, operation, written: false })
    }
}

#[derive(Debug)]
struct FileRun {
    member: Arc<Member>,
    reduced: Arc<AtomicUsize>,
    operation: u64,
    written: bool,
}

impl PlaneRun for FileRun {
    fn advance(&mut self, work: &mut [u8], fold: &Fold) -> Result<Progress> {
        let (member, operation) = (&self.member, self.operation);
        if !self.written {
            write(&member.file(operation, member.me.index()), work)?;
            self.written = true;
        }
        if member.missing(operation).is_some() {
            return Ok(Progress::Pending);
        }
        for rank in 0..member.size {
            let contribution = std::fs::read(member.file(operation, rank));
            let contribution = contribution.map_err(|error| TransportError::local("reading a contribution", error))?;
            if rank == 0 { work.copy_from_slice(&contribution) } else { fold.fold(work, &contribution) }
        }
        self.reduced.fetch_add(1, Ordering::Relaxed);
        Ok(Progress::Done)
    }

    fn waiting_for(&self) -> Option<Rank> {
        self.member.missing(self.operation)
    }
}

fn write(file: &Path, bytes: &[u8]) -> Result<()> {
    let part = file.with_extension("part");
    let written = std::fs::write(&part, bytes).and_then(|()| std::fs::rename(&part, file));
    written.map_err(|error| TransportError::local("writing a contribution", error))
}
