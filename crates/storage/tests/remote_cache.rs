//! The cache of blocks: one fetch for a host, and what is left when processes are killed, disks are full and folders
//! have anything in them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod harness;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use farandole_storage::cache::ReadAhead;
use farandole_storage::{Storage, StorageCounts, StorageOptions, open};
use farandole_testing::{Deadline, Folder, finish, finish_child, wait_until};
use harness::{Fault, Server, pattern};

const BLOCK: usize = 64 << 10;
const LIMIT: Duration = Duration::from_secs(60);

/// What role programs read their task from.
const ROLE_URL: &str = "FARANDOLE_TEST_STORAGE_URL";
const ROLE_FOLDER: &str = "FARANDOLE_TEST_STORAGE_FOLDER";

/// A web server with an object of this many blocks and a half.
fn with_blocks(blocks: usize) -> (Server, Vec<u8>, String) {
    harness::with_blocks(blocks, BLOCK)
}

/// Small blocks, kept in this folder alone and fetched when they are asked for.
fn cached_in(folder: &Path) -> StorageOptions {
    let mut options = harness::quick();
    options.cache.folder = Some(folder.to_path_buf());
    options.cache.block_bytes = BLOCK;
    options.cache.read_ahead = ReadAhead::Off;
    options
}

fn read(storage: &dyn Storage, offset: usize, bytes: usize) -> Vec<u8> {
    let mut buffer = vec![0; bytes];
    storage.read_at("object", offset as u64, &mut buffer).unwrap();
    buffer
}

fn open_at(url: &str, options: &StorageOptions) -> Arc<dyn Storage> {
    open(url, options).unwrap().0
}

/// All blocks on disk.
fn blocks(folder: &Path) -> Vec<PathBuf> {
    let own = folder.join("farandole-blocks-1");
    let is_block = |path: &PathBuf| path.parent().unwrap().file_name().unwrap().len() == 2;
    let folders = fs::read_dir(own).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    let files = folders.flat_map(|folder| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()));
    files.filter(is_block).collect()
}

#[test]
fn blocks_are_fetched_once_and_found_again_in_memory_and_on_disk() {
    let (server, object, url) = with_blocks(5);
    let folder = Folder::new();
    let mut options = cached_in(&folder);
    options.cache.memory_bytes = 64 << 20;
    let storage = open_at(&url, &options);
    for (offset, bytes) in [(10, 20), (BLOCK - 5, 10), (0, object.len()), (object.len() - 1, 1), (3 * BLOCK, BLOCK)] {
        assert_eq!(read(&*storage, offset, bytes), object[offset..offset + bytes]);
    }
    let counts = storage.counts();
    assert_eq!((counts.misses, counts.bytes_fetched, counts.disk_hits), (6, object.len() as u64, 0));
    assert_eq!(counts.memory_hits, 5, "{counts}");
    assert_eq!(server.ranges().len(), 6);
    // Another process would find them on disk, the last and shorter one, too.
    let again = open_at(&url, &cached_in(&folder));
    assert_eq!(read(&*again, 0, object.len()), object);
    assert_eq!(read(&*again, BLOCK - 3, 6), object[BLOCK - 3..BLOCK + 3]);
    assert_eq!((again.counts().disk_hits, again.counts().misses), (8, 0));
    assert_eq!(server.ranges().len(), 6);
    let error = again.read_at("object", object.len() as u64 - 3, &mut [0; 4]).unwrap_err().to_string();
    assert!(error.contains("has only"), "{error}");
    // An object with another content has other blocks.
    let other = vec![3; object.len()];
    server.put("object", &other);
    assert_eq!(read(&*open_at(&url, &cached_in(&folder)), 0, other.len()), other);
    assert_eq!(server.ranges().len(), 12);
}

#[test]
fn threads_that_want_the_same_block_fetch_it_once() {
    let (server, object, url) = with_blocks(8);
    let folder = Folder::new();
    let mut options = cached_in(&folder);
    options.cache.memory_bytes = 64 << 20;
    let storage = open_at(&url, &options);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let (storage, object) = (&storage, &object);
            scope.spawn(move || assert_eq!(read(&**storage, 0, object.len()), *object));
        }
    });
    assert_eq!(server.ranges().len(), 9);
    // An error is for those who wait, and the next one tries again.
    server.put("bad", &pattern(100));
    server.fail(vec![Fault::Fine, Fault::Status(403, "AccessDenied")]);
    assert!(storage.read_at("bad", 0, &mut [0; 10]).is_err());
    storage.read_at("bad", 0, &mut [0; 10]).unwrap();
}

#[test]
fn the_next_block_is_fetched_ahead_of_reads_in_order() {
    let (server, object, url) = with_blocks(6);
    let mut options = harness::quick();
    options.cache.memory_bytes = 64 << 20;
    options.cache.block_bytes = BLOCK;
    let storage = open_at(&url, &options);
    assert_eq!(read(&*storage, 0, 1000), object[..1000]);
    wait_until("the second block", LIMIT, || server.ranges().len() == 2);
    assert_eq!(read(&*storage, 1000, BLOCK), object[1000..1000 + BLOCK]);
    wait_until("the third block", LIMIT, || server.ranges().len() == 3);
    // Out of order: that block alone.
    assert_eq!(read(&*storage, 5 * BLOCK, 10), object[5 * BLOCK..5 * BLOCK + 10]);
    assert_eq!(server.ranges().len(), 4);
}

#[test]
fn blocks_that_were_not_used_for_longest_make_room() {
    let (_server, object, url) = with_blocks(20);
    let folder = Folder::new();
    let mut options = cached_in(&folder);
    options.cache.disk_bytes = 10 * (BLOCK as u64 + 200);
    let storage = open_at(&url, &options);
    for block in 0..8 {
        read(&*storage, block * BLOCK, 1);
    }
    // As if all were an hour old; then the first one is used, which is noted.
    let old = SystemTime::now() - Duration::from_secs(3600);
    for path in blocks(&folder) {
        fs::File::open(path).unwrap().set_modified(old).unwrap();
    }
    read(&*storage, 0, 1);
    for block in 8..12 {
        read(&*storage, block * BLOCK, 1);
    }
    let held: u64 = blocks(&folder).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    assert!(held <= options.cache.disk_bytes, "{held}");
    assert!(storage.counts().evicted_blocks >= 2);
    let misses = storage.counts().misses;
    assert_eq!(read(&*storage, 0, 5), object[..5]);
    assert_eq!(storage.counts().misses, misses, "the block that was used is still there");
}

#[test]
fn broken_blocks_are_fetched_again_and_garbage_does_no_harm() {
    let (server, object, url) = with_blocks(4);
    let folder = Folder::new();
    read(&*open_at(&url, &cached_in(&folder)), 0, object.len());
    let own = folder.join("farandole-blocks-1");
    let paths = blocks(&folder);
    let mut damaged = fs::read(&paths[0]).unwrap();
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    fs::write(&paths[0], damaged).unwrap();
    fs::write(&paths[1], b"garbage").unwrap();
    fs::write(&paths[2], b"").unwrap();
    fs::remove_file(&paths[3]).unwrap();
    fs::create_dir(&paths[3]).unwrap();
    fs::write(own.join("usage"), b"no number").unwrap();
    fs::write(own.join("note.txt"), b"of somebody").unwrap();
    fs::write(own.join("tmp/999999-7f00-12"), b"half a block").unwrap();
    fs::write(own.join("tmp/notes-of-the-user"), b"text").unwrap();
    let old = SystemTime::now() - Duration::from_secs(3600);
    for name in ["tmp/999999-7f00-12", "tmp/notes-of-the-user"] {
        fs::File::open(own.join(name)).unwrap().set_modified(old).unwrap();
    }
    let asked = server.ranges().len();
    let storage = open_at(&url, &cached_in(&folder));
    assert_eq!(read(&*storage, 0, object.len()), object);
    assert_eq!(server.ranges().len(), asked + 4);
    assert!(!own.join("tmp/999999-7f00-12").exists() && own.join("note.txt").exists());
    assert!(own.join("tmp/notes-of-the-user").exists());
    // Three are whole again; the name of the fourth is taken, so it is fetched each time.
    assert_eq!(read(&*open_at(&url, &cached_in(&folder)), 0, object.len()), object);
    assert_eq!(server.ranges().len(), asked + 5);
}

#[test]
fn a_folder_that_cannot_be_written_is_no_error() {
    let (server, object, url) = with_blocks(2);
    let folder = Folder::new();
    fs::write(folder.join("file"), b"").unwrap();
    let storage = open_at(&url, &cached_in(&folder.join("file")));
    assert_eq!(read(&*storage, 0, object.len()), object);
    // With nothing to keep blocks in, ranges are asked for as they are.
    assert_eq!(read(&*storage, 5, 7), object[5..12]);
    assert_eq!(server.ranges().last().unwrap(), "bytes=5-11");
    // Permissions of its folders that went away meanwhile. Root may write all the same.
    let storage = open_at(&url, &cached_in(&folder));
    fs::set_permissions(folder.join("farandole-blocks-1/tmp"), fs::Permissions::from_mode(0o500)).unwrap();
    assert_eq!(read(&*storage, 0, object.len()), object);
    fs::remove_dir_all(folder.join("farandole-blocks-1")).unwrap();
    assert_eq!(read(&*storage, 0, object.len()), object);
}

/// A copy of this test binary that reads the object as its environment says.
fn role(name: &str, url: &str, folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", name, "--nocapture"]).env(ROLE_URL, url).env(ROLE_FOLDER, folder);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn of_role(name: &str) -> String {
    std::env::var(name).expect("another test starts this one, with its task in the environment")
}

/// Reads the whole object and says what was counted.
#[test]
#[ignore = "role program: other tests start it"]
fn reader() {
    farandole_settings::log_to_stderr();
    let storage = open_at(&of_role(ROLE_URL), &cached_in(Path::new(&of_role(ROLE_FOLDER))));
    let bytes = storage.size("object").unwrap() as usize;
    let hash = blake3::hash(&read(&*storage, 0, bytes));
    let StorageCounts { misses, disk_hits, .. } = storage.counts();
    eprintln!("read {} {misses} {disk_hits}", hash.to_hex());
}

/// Reads blocks of objects that never were read before, for ever.
#[test]
#[ignore = "role program: other tests start it"]
fn endless_filler() {
    let folder = of_role(ROLE_FOLDER);
    let end = Deadline::after(Duration::from_secs(100));
    let mut turn = 0;
    while !end.is_over() {
        // Another length of blocks gives them other names.
        let mut options = cached_in(Path::new(&folder));
        options.cache.block_bytes = BLOCK + turn;
        let storage = open_at(&of_role(ROLE_URL), &options);
        read(&*storage, 0, storage.size("object").unwrap() as usize);
        turn = (turn + 1) % BLOCK;
    }
}

#[test]
fn processes_of_a_host_fetch_every_block_once() {
    let (server, object, url) = with_blocks(40);
    let folder = Folder::new();
    let mut readers: Vec<Child> = (0..3).map(|_| role("reader", &url, &folder).spawn().unwrap()).collect();
    let hash = blake3::hash(&object).to_hex().to_string();
    let mut misses = 0;
    for reader in &mut readers {
        let output = finish_child(reader, LIMIT);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let said = said.lines().find_map(|line| line.strip_prefix("read ")).unwrap_or_else(|| panic!("{said}"));
        let words: Vec<&str> = said.split(' ').collect();
        assert_eq!(words[0], hash);
        misses += words[1].parse::<usize>().unwrap();
    }
    assert_eq!(misses, 41);
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    server.ranges().into_iter().for_each(|range| *times.entry(range).or_default() += 1);
    assert_eq!(times.len(), 41);
    assert!(times.values().all(|count| *count == 1), "{times:?}");
}

#[test]
fn a_process_that_is_killed_leaves_a_whole_cache() {
    let (_server, object, url) = with_blocks(12);
    let folder = Folder::new();
    for turn in 0..6 {
        let mut filler = role("endless_filler", &url, &folder).spawn().unwrap();
        let before = if turn == 0 { 0 } else { blocks(&folder).len() };
        wait_until("blocks of the process", LIMIT, || {
            folder.join("farandole-blocks-1/locks").exists() && blocks(&folder).len() > before + 7 * turn
        });
        filler.kill().unwrap();
        filler.wait().unwrap();
        let storage = open_at(&url, &cached_in(&folder));
        assert_eq!(read(&*storage, 0, object.len()), object);
        assert_eq!(storage.counts().broken_blocks, 0);
        assert_eq!(storage.counts().waits, 0, "a lease of the dead is nobody's");
    }
    // What was counted is what is there, as soon as somebody has opened it.
    let counted = fs::read(folder.join("farandole-blocks-1/usage")).unwrap();
    let held: u64 = blocks(&folder).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    assert_eq!(u64::from_le_bytes(counted.try_into().unwrap()), held);
}

/// Starts a process with a cache in this folder. It must read the object without the disk, and say this once.
fn is_refused(url: &str, object: &[u8], folder: &Path, why: &str) {
    let output = finish(&mut role("reader", url, folder), LIMIT);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains(&blake3::hash(object).to_hex().to_string()), "{said}");
    assert_eq!(said.matches(why).count(), 1, "{said}");
    assert_eq!(said.matches("remote objects are not cached on disk").count(), 1, "{said}");
}

#[test]
fn a_link_in_place_of_the_cache_does_not_remove_files_behind_it() {
    let (_server, object, url) = with_blocks(2);
    let (shared, victim) = (Folder::new(), Folder::new());
    // Names with the form of the cache's own, so that only the link protects them.
    let old = SystemTime::now() - Duration::from_secs(3600);
    for name in ["tmp", "locks"] {
        fs::create_dir(victim.join(name)).unwrap();
        fs::set_permissions(victim.join(name), fs::Permissions::from_mode(0o700)).unwrap();
        let file = victim.join(name).join("999999-7f00-12");
        fs::write(&file, "kept").unwrap();
        fs::File::open(&file).unwrap().set_modified(old).unwrap();
    }
    fs::set_permissions(&*victim, fs::Permissions::from_mode(0o700)).unwrap();
    let own = shared.join("farandole-blocks-1");
    symlink(&*victim, &own).unwrap();
    is_refused(&url, &object, &shared, "farandole-blocks-1: it is a symbolic link or not a directory");
    // A link one level below.
    fs::remove_file(&own).unwrap();
    fs::DirBuilder::new().mode(0o700).create(&own).unwrap();
    symlink(victim.join("tmp"), own.join("tmp")).unwrap();
    is_refused(&url, &object, &shared, "farandole-blocks-1: folder tmp: it is a symbolic link or not a directory");
    for name in ["tmp", "locks"] {
        let left: Vec<_> = fs::read_dir(victim.join(name)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["999999-7f00-12"], "{name}");
    }
}

#[test]
fn a_folder_of_another_user_is_not_used_as_a_cache() {
    let (_server, object, url) = with_blocks(2);
    let shared = Folder::new();
    let own = shared.join("farandole-blocks-1");
    fs::DirBuilder::new().mode(0o700).create(&own).unwrap();
    chown(&own, Some(65534), None).expect("this test needs root");
    is_refused(&url, &object, &shared, "farandole-blocks-1: it belongs to user 65534, not to user");
    // Its own folder, in which others may put blocks.
    chown(&own, Some(rustix::process::geteuid().as_raw()), None).unwrap();
    fs::set_permissions(&own, fs::Permissions::from_mode(0o770)).unwrap();
    is_refused(&url, &object, &shared, "farandole-blocks-1: its mode 0770 gives access to other users");
    assert_eq!(fs::read_dir(&own).unwrap().count(), 0);
}

/// A disk of a test's own, of this many bytes.
struct SmallDisk(Folder);

impl SmallDisk {
    fn new(bytes: usize) -> SmallDisk {
        let folder = Folder::new();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "farandole-test"]).arg(&*folder);
        let output = finish(&mut mount, LIMIT);
        assert!(output.status.success(), "this test needs root: {}", String::from_utf8_lossy(&output.stderr));
        SmallDisk(folder)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        finish(Command::new("umount").arg("--lazy").arg(&*self.0), LIMIT);
    }
}

#[test]
fn a_full_disk_turns_the_cache_off_and_fails_no_read() {
    let (server, object, url) = with_blocks(20);
    let disk = SmallDisk::new(10 * BLOCK);
    let storage = open_at(&url, &cached_in(&disk.0));
    assert_eq!(read(&*storage, 0, object.len()), object);
    let kept = blocks(&disk.0).len();
    assert!((4..10).contains(&kept), "{kept}");
    assert_eq!(fs::read_dir(disk.0.join("farandole-blocks-1/tmp")).unwrap().count(), 0);
    // Those that were kept are found, the others fetched, and there is one line about it.
    let asked = server.ranges().len();
    assert_eq!(read(&*storage, 0, object.len()), object);
    assert_eq!(server.ranges().len() - asked, 21 - kept);
    let output = finish(&mut role("reader", &url, &disk.0), LIMIT);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains(&blake3::hash(&object).to_hex().to_string()), "{said}");
    assert_eq!(said.matches("no more remote objects are cached on disk").count(), 1, "{said}");
}
