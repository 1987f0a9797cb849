//! Two writers, stopped and killed at every call to the disk.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use farandole_testing::Folder;

use super::*;

/// What happens to the calls of one writer.
#[derive(Debug, Default)]
struct Faults {
    /// Calls that were let through.
    calls: Cell<usize>,
    /// The call with this number, and all after it, are pending.
    stops_at: Cell<Option<usize>>,
    /// Calls with this name are pending.
    stops_in: Cell<Option<&'static str>>,
    /// Calls with this name fail.
    fails: Cell<Option<(&'static str, io::ErrorKind)>>,
    /// Bytes that the disk has room for.
    room: Cell<Option<usize>>,
    /// Written bytes get lost: zeros arrive.
    loses_bytes: Cell<bool>,
}

/// The disk of this host with faults.
#[derive(Debug)]
struct FaultyDisk {
    local: LocalDisk,
    faults: Rc<Faults>,
}

impl FaultyDisk {
    fn call<T>(&mut self, name: &str, call: impl FnOnce(&mut LocalDisk) -> Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let Faults { calls, stops_at, stops_in, fails, .. } = &*self.faults;
        if stops_at.get().is_some_and(|at| calls.get() >= at) || stops_in.get() == Some(name) {
            return Poll::Pending;
        }
        match fails.get() {
            Some((failing, kind)) if failing == name => return Poll::Ready(Err(kind.into())),
            _ => {}
        }
        let outcome = call(&mut self.local);
        calls.set(calls.get() + usize::from(outcome.is_ready()));
        outcome
    }
}

impl Disk for FaultyDisk {
    type File = LockedFile;
    type Lock = LockedFile;

    fn poll_lock(&mut self, path: &Path) -> Poll<io::Result<LockedFile>> {
        self.call("lock", |disk| disk.poll_lock(path))
    }

    fn poll_create_new(&mut self, path: &Path) -> Poll<io::Result<LockedFile>> {
        self.call("create", |disk| disk.poll_create_new(path))
    }

    fn poll_write(&mut self, file: &mut LockedFile, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let (room, loses_bytes) = (self.faults.room.get().unwrap_or(usize::MAX), self.faults.loses_bytes.get());
        if room == 0 {
            return Poll::Ready(Err(io::ErrorKind::StorageFull.into()));
        }
        // In pieces, so that a writer can be stopped between two of them.
        let bytes = &bytes[..bytes.len().min(room).min(2000)];
        let zeros = vec![0; bytes.len()];
        let written = self.call("write", |disk| disk.poll_write(file, if loses_bytes { &zeros } else { bytes }));
        if let (Poll::Ready(Ok(count)), Some(room)) = (&written, self.faults.room.get()) {
            self.faults.room.set(Some(room - count));
        }
        written
    }

    fn poll_sync(&mut self, file: &mut LockedFile) -> Poll<io::Result<()>> {
        self.call("sync", |disk| disk.poll_sync(file))
    }

    fn poll_read(&mut self, path: &Path, offset: u64, into: &mut [u8]) -> Poll<io::Result<usize>> {
        self.call("read", |disk| disk.poll_read(path, offset, into))
    }

    fn poll_list(&mut self, folder: &Path) -> Poll<io::Result<Vec<OsString>>> {
        self.call("list", |disk| disk.poll_list(folder))
    }

    fn poll_link(&mut self, from: &Path, to: &Path) -> Poll<io::Result<()>> {
        self.call("link", |disk| disk.poll_link(from, to))
    }

    fn poll_rename(&mut self, from: &Path, to: &Path) -> Poll<io::Result<()>> {
        self.call("rename", |disk| disk.poll_rename(from, to))
    }

    fn poll_remove(&mut self, path: &Path) -> Poll<io::Result<()>> {
        let size = fs::metadata(path).map_or(0, |about| about.len() as usize);
        let removed = self.call("remove", |disk| disk.poll_remove(path));
        if let (Poll::Ready(Ok(())), Some(room)) = (&removed, self.faults.room.get()) {
            self.faults.room.set(Some(room + size));
        }
        removed
    }

    fn poll_remove_abandoned(&mut self, path: &Path) -> Poll<io::Result<()>> {
        self.call("remove_abandoned", |disk| disk.poll_remove_abandoned(path))
    }

    fn poll_sync_folder(&mut self, folder: &Path) -> Poll<io::Result<()>> {
        self.call("sync_folder", |disk| disk.poll_sync_folder(folder))
    }
}

/// One publication that is driven by hand.
struct Writer {
    faults: Rc<Faults>,
    fence: Rc<Cell<Option<&'static str>>>,
    steps: Pin<Box<dyn Future<Output = Result<(), PublishError>>>>,
}

impl Writer {
    fn new(path: &Path, token: Token) -> Writer {
        let (faults, fence) = (Rc::<Faults>::default(), Rc::<Cell<Option<&'static str>>>::default());
        let mut disk = FaultyDisk { local: LocalDisk::default(), faults: Rc::clone(&faults) };
        let (path, asked) = (path.to_path_buf(), Rc::clone(&fence));
        let steps = Box::pin(async move {
            let writer = format!("job-{}", token.generation);
            let publication =
                Publication { path, sealed: SealedFile::new(content(token), token)?, writer, intact: None };
            publish(&mut disk, &publication, || Poll::Ready(asked.get().map_or(Ok(()), |why| Err(why.to_owned()))))
                .await
        });
        Writer { faults, fence, steps }
    }

    fn poll(&mut self) -> Poll<Result<(), PublishError>> {
        self.steps.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Takes away what stops it, and expects it to end.
    fn finish(&mut self) -> Result<(), PublishError> {
        self.faults.stops_at.set(None);
        self.faults.stops_in.set(None);
        match self.poll() {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => panic!("pending"),
        }
    }
}

/// A safetensors file whose length does not depend on the token.
fn content(token: Token) -> Vec<u8> {
    let tensor = vec![(token.run * 16 + token.generation * 4 + token.step) as u8; 5000];
    let mut header = String::from(
        "{\"__metadata__\":{\"farandole\":\"{}\"},\"a\":{\"dtype\":\"U8\",\"shape\":[5000],\"data_offsets\":[0,5000]}}",
    );
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &tensor].concat()
}

fn token(generation: u64, step: u64) -> Token {
    Token { run: 1, generation, step }
}

fn publish_one(path: &Path, token: Token) -> Result<(), PublishError> {
    Writer::new(path, token).finish()
}

fn found(path: &Path) -> SealCheck {
    SealCheck::of(&fs::read(path).unwrap())
}

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    names
}

const NAME: &str = "checkpoint.safetensors";
const PREVIOUS: &str = "checkpoint.previous.safetensors";

fn place() -> (Folder, PathBuf) {
    let folder = Folder::new();
    let path = folder.join(NAME);
    (folder, path)
}

#[test]
fn a_file_is_replaced_and_the_one_before_is_kept() {
    let (folder, path) = place();
    for step in 1..4 {
        publish_one(&path, token(1, step)).unwrap();
    }
    assert_eq!(found(&path), SealCheck::Intact(token(1, 3)));
    assert_eq!(intact_previous(&path), Some((folder.join(PREVIOUS), token(1, 2))));
    assert_eq!(names(&folder), [PREVIOUS, NAME]);
}

/// The old rank 0 sat in fsync while the job continued without it. It came back, and renamed what its successor had
/// written so far.
#[test]
fn a_writer_that_sat_in_sync_does_not_replace_its_successors_file() {
    let (folder, path) = place();
    publish_one(&path, token(2, 300)).unwrap();
    let mut old = Writer::new(&path, token(2, 400));
    old.faults.stops_in.set(Some("sync"));
    assert!(old.poll().is_pending());
    publish_one(&path, token(3, 400)).unwrap();
    let error = old.finish().unwrap_err();
    let words = "checkpoint.safetensors: a newer checkpoint exists (generation 3, step 400); this rank was replaced and \
                 must not write";
    assert!(error.to_string().ends_with(words), "{error}");
    assert!(error.is_of_this_rank_alone());
    assert_eq!(found(&path), SealCheck::Intact(token(3, 400)));
    assert_eq!(names(&folder), [PREVIOUS, NAME]);
}

#[test]
fn a_replaced_writer_is_refused_before_it_writes() {
    let (folder, path) = place();
    publish_one(&path, token(3, 400)).unwrap();
    let mut old = Writer::new(&path, token(2, 400));
    old.faults.fails.set(Some(("create", io::ErrorKind::StorageFull)));
    let error = old.finish().unwrap_err();
    assert!(error.is_of_this_rank_alone(), "{error}");
    assert_eq!(names(&folder), [NAME]);
}

/// Both had the same unfinished file; the second one truncated the first one's.
#[test]
fn two_writers_at_once_write_two_files() {
    let (folder, path) = place();
    let (mut old, mut new) = (Writer::new(&path, token(2, 4)), Writer::new(&path, token(3, 4)));
    for writer in [&mut old, &mut new] {
        writer.faults.stops_in.set(Some("sync"));
        assert!(writer.poll().is_pending());
    }
    assert_eq!(names(&folder).len(), 2);
    old.finish().unwrap();
    new.finish().unwrap();
    assert_eq!(found(&path), SealCheck::Intact(token(3, 4)));
    assert_eq!(intact_previous(&path).unwrap().1, token(2, 4));
}

/// The number of calls of an undisturbed publication over a file.
fn calls() -> usize {
    let (_folder, path) = place();
    publish_one(&path, token(1, 1)).unwrap();
    let mut writer = Writer::new(&path, token(2, 2));
    writer.finish().unwrap();
    writer.faults.calls.get()
}

#[test]
fn a_writer_that_is_stopped_at_any_call_never_replaces_a_newer_file() {
    for at in 0..=calls() {
        let (folder, path) = place();
        publish_one(&path, token(1, 1)).unwrap();
        let (mut old, mut new) = (Writer::new(&path, token(2, 2)), Writer::new(&path, token(3, 2)));
        old.faults.stops_at.set(Some(at));
        let stopped = old.poll().is_pending();
        match new.poll() {
            Poll::Ready(outcome) => {
                outcome.unwrap();
                assert_eq!(found(&path), SealCheck::Intact(token(3, 2)), "call {at}");
                assert!(!stopped || old.finish().is_err(), "call {at}");
            }
            // The old one holds the lock, so the new one waits for it.
            Poll::Pending => {
                old.finish().unwrap_or_else(|error| panic!("call {at}: {error}"));
                new.finish().unwrap_or_else(|error| panic!("call {at}: {error}"));
            }
        }
        assert_eq!(found(&path), SealCheck::Intact(token(3, 2)), "call {at}");
        assert!(intact_previous(&path).is_some(), "call {at}");
        assert_eq!(names(&folder), [PREVIOUS, NAME], "call {at}");
    }
}

#[test]
fn a_writer_that_is_killed_at_any_call_leaves_an_intact_file_and_nothing_for_long() {
    for at in 0..=calls() {
        let (folder, path) = place();
        publish_one(&path, token(1, 1)).unwrap();
        let mut killed = Writer::new(&path, token(2, 2));
        killed.faults.stops_at.set(Some(at));
        let _ = killed.poll();
        drop(killed);
        let left = found(&path);
        assert!([token(1, 1), token(2, 2)].map(SealCheck::Intact).contains(&left), "call {at}: {left:?}");
        publish_one(&path, token(3, 3)).unwrap();
        assert_eq!(found(&path), SealCheck::Intact(token(3, 3)), "call {at}");
        assert!(intact_previous(&path).is_some(), "call {at}");
        assert_eq!(names(&folder), [PREVIOUS, NAME], "call {at}");
    }
}

#[test]
fn a_fence_that_refuses_leaves_the_file_as_it_was() {
    let (folder, path) = place();
    publish_one(&path, token(1, 1)).unwrap();
    let mut writer = Writer::new(&path, token(1, 2));
    writer.fence.set(Some("generation 2 went on without it"));
    let error = writer.finish().unwrap_err();
    assert!(error.is_of_this_rank_alone());
    assert!(error.to_string().ends_with("not written: generation 2 went on without it"), "{error}");
    assert_eq!(found(&path), SealCheck::Intact(token(1, 1)));
    assert!(!names(&folder).iter().any(|name| name.ends_with("unfinished")), "{:?}", names(&folder));
}

#[test]
fn a_job_that_takes_over_a_file_keeps_the_earlier_job_from_it() {
    let (_folder, path) = place();
    publish_one(&path, token(5, 900)).unwrap();
    let run = next_run(&path).unwrap();
    assert_eq!(run, 2);
    publish_one(&path, Token { run, generation: 0, step: 1 }).unwrap();
    let error = publish_one(&path, token(6, 1000)).unwrap_err();
    assert!(!error.is_of_this_rank_alone());
    assert!(error.to_string().contains("another job has written here (run 2, generation 0, step 1)"), "{error}");
    assert_eq!(next_run(&path.with_file_name("absent")).unwrap(), 1);
}

#[test]
fn a_full_disk_leaves_the_file_and_nothing_unfinished() {
    let (folder, path) = place();
    publish_one(&path, token(1, 1)).unwrap();
    let mut writer = Writer::new(&path, token(1, 2));
    writer.faults.room.set(Some(3000));
    let error = writer.finish().unwrap_err();
    assert!(error.to_string().contains("cannot be written") && error.to_string().contains("unchanged"), "{error}");
    assert!(!error.is_of_this_rank_alone());
    assert_eq!(found(&path), SealCheck::Intact(token(1, 1)));
    assert_eq!(names(&folder), [NAME]);
}

#[test]
fn a_disk_with_room_for_two_files_gives_up_the_oldest() {
    let (_folder, path) = place();
    publish_one(&path, token(1, 1)).unwrap();
    publish_one(&path, token(1, 2)).unwrap();
    let mut writer = Writer::new(&path, token(1, 3));
    writer.faults.room.set(Some(3000));
    writer.finish().unwrap();
    assert_eq!(found(&path), SealCheck::Intact(token(1, 3)));
    assert_eq!(intact_previous(&path).unwrap().1, token(1, 2));
}

#[test]
fn content_that_is_lost_on_its_way_is_noticed_before_the_file_is_replaced() {
    let (folder, path) = place();
    publish_one(&path, token(1, 1)).unwrap();
    let mut writer = Writer::new(&path, token(1, 2));
    writer.faults.loses_bytes.set(true);
    let error = writer.finish().unwrap_err().to_string();
    assert!(error.contains("differs when it is read back"), "{error}");
    assert_eq!(found(&path), SealCheck::Intact(token(1, 1)));
    assert_eq!(names(&folder), [NAME]);
}

#[test]
fn a_damaged_file_does_not_take_the_place_of_an_intact_previous_one() {
    let (_folder, path) = place();
    publish_one(&path, token(1, 1)).unwrap();
    publish_one(&path, token(1, 2)).unwrap();
    let mut torn = fs::read(&path).unwrap();
    torn[3000..].fill(0);
    fs::write(&path, &torn).unwrap();
    assert!(check(&torn).unwrap_err().starts_with("checksum differs (expected "));
    publish_one(&path, token(1, 3)).unwrap();
    assert_eq!(intact_previous(&path).unwrap().1, token(1, 1));
}

#[test]
fn a_file_of_an_earlier_version_is_replaced_and_kept() {
    let (folder, path) = place();
    fs::write(&path, content(token(0, 7))).unwrap();
    assert_eq!((check(&fs::read(&path).unwrap()), next_run(&path).unwrap()), (Ok(None), 1));
    publish_one(&path, token(1, 1)).unwrap();
    assert_eq!(fs::read(folder.join(PREVIOUS)).unwrap(), content(token(0, 7)));
    assert_eq!(found(&path), SealCheck::Intact(token(1, 1)));
}

#[test]
fn a_folder_that_cannot_be_synced_is_not_reported_as_an_unchanged_file() {
    let (folder, path) = place();
    publish_one(&path, token(1, 1)).unwrap();
    let mut writer = Writer::new(&path, token(1, 2));
    writer.faults.fails.set(Some(("sync_folder", io::ErrorKind::Other)));
    let text = writer.finish().unwrap_err().to_string();
    assert!(text.contains("written, but") && text.contains("power cut") && !text.contains("unchanged"), "{text}");
    assert_eq!(found(&path), SealCheck::Intact(token(1, 2)));
    assert_eq!(names(&folder), [PREVIOUS, NAME]);
}

#[test]
fn a_publisher_of_a_process_publishes() {
    let (folder, path) = place();
    let mut publisher = Publisher::new("Slurm step 7.0/a", 3);
    for step in 1..3 {
        let length = publisher.publish(&path, content(token(1, step)), token(1, step), || Ok(())).unwrap();
        assert_eq!(length as u64, fs::metadata(&path).unwrap().len());
    }
    let refused = publisher.publish(&path, content(token(1, 2)), token(1, 2), || Ok(()));
    assert!(matches!(refused, Err(PublishError::OtherJob { .. })), "{refused:?}");
    assert_eq!(names(&folder), [PREVIOUS, NAME]);
    // A folder that is not empty cannot be replaced by a file; this holds for root as well.
    let occupied = folder.join("occupied");
    fs::create_dir_all(occupied.join("inside")).unwrap();
    let error = publisher.publish(&occupied, content(token(1, 1)), token(1, 1), || Ok(())).unwrap_err();
    assert!(matches!(error, PublishError::Unchanged { .. }), "{error}");
    assert_eq!(names(&folder), [PREVIOUS, NAME, "occupied"]);
}
