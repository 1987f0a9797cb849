//! Files of a real NFS server (NFS-Ganesha), read without mounting it: directly, over wires that fail, and while the
//! server is killed and started again.
//!
//! Each test runs in namespaces of its own (`farandole_testing::in_namespaces`), with its own server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod harness;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::sync::Arc;
use std::time::Duration;

use farandole_storage::{Storage, StorageError, StorageErrorKind, StorageOptions, open};
use farandole_testing::{Folder, NfsExport, NfsServer, TcpProxy, WireFaults, at_least, in_namespaces, wait_until};
use harness::{pattern, quick};

/// How long a test may take, its namespaces included. Most take a second or two.
const LIMIT: Duration = Duration::from_secs(100);

/// An exported folder, its server, and a proxy in front of it.
struct Lab {
    export: Folder,
    server: NfsServer,
    proxy: TcpProxy,
}

impl Lab {
    fn start() -> Lab {
        let export = Folder::new();
        let server = NfsServer::start(&[NfsExport::new(&export)]);
        let proxy = TcpProxy::start(&format!("127.0.0.1:{}", NfsServer::NFS_PORT));
        Lab { export, server, proxy }
    }

    /// A URL of a file, with all ports from the portmapper.
    fn url(&self, path: &str) -> String {
        format!("nfs://127.0.0.1{}", self.export.join(path).display())
    }

    /// A URL of a file by way of the proxy.
    fn proxied(&self, path: &str) -> String {
        format!("nfs://127.0.0.1:{}{}", self.proxy.port(), self.export.join(path).display())
    }

    fn write(&self, path: &str, bytes: &[u8]) {
        fs::create_dir_all(self.export.join(path).parent().unwrap()).unwrap();
        fs::write(self.export.join(path), bytes).unwrap();
    }
}

fn open_at(url: &str, options: &StorageOptions) -> (Arc<dyn Storage>, String) {
    open(url, options).unwrap()
}

fn read(storage: &dyn Storage, path: &str, offset: usize, bytes: usize) -> Result<Vec<u8>, StorageError> {
    let mut buffer = vec![0; bytes];
    storage.read_at(path, offset as u64, &mut buffer).map(|()| buffer)
}

fn read_whole(url: &str, options: &StorageOptions) -> Result<Vec<u8>, StorageError> {
    let (storage, path) = open_at(url, options);
    let bytes = storage.size(&path)?;
    read(&*storage, &path, 0, bytes as usize)
}

fn error_of(url: &str) -> StorageError {
    read_whole(url, &quick()).unwrap_err()
}

#[test]
fn files_are_read_as_they_are() {
    if !in_namespaces("files_are_read_as_they_are", LIMIT) {
        return;
    }
    let lab = Lab::start();
    // A machine that other tests keep busy must not look like a server that is silent.
    let unhurried = StorageOptions { silence_timeout: Duration::from_secs(10), ..quick() };
    let bytes = pattern(9_500_001);
    lab.write("train/large", &bytes);
    lab.write("train/empty", b"");
    lab.write("train/ä & b%20c?d.txt", b"text");
    assert!(read_whole(&lab.url("train/large"), &quick()).unwrap() == bytes);
    assert_eq!(read_whole(&lab.url("train/empty"), &quick()).unwrap(), b"");
    assert_eq!(read_whole(&lab.url("train/ä & b%20c?d.txt"), &quick()).unwrap(), b"text");
    // Any range, by many threads at once, with and without a cache of small blocks.
    let mut cached = unhurried.clone();
    cached.cache.memory_bytes = 16 << 20;
    cached.cache.block_bytes = 300_000;
    for options in [&unhurried, &cached] {
        let (storage, path) = open_at(&lab.url("train/large"), options);
        std::thread::scope(|scope| {
            for worker in 0..8_usize {
                let (storage, path, bytes) = (&storage, &path, &bytes);
                scope.spawn(move || {
                    for turn in 0..12 {
                        let at = (worker * 12 + turn) * 97_001;
                        let end = bytes.len().min(at + 1 + turn * 200_000);
                        assert!(read(&**storage, path, at, end - at).unwrap() == bytes[at..end]);
                    }
                });
            }
        });
        let counts = storage.counts();
        assert!(counts.requests > 0 && counts.retries == 0, "{counts}");
    }
    // A file is fetched once, and found again in the cache.
    let (storage, path) = open_at(&lab.url("train/large"), &cached);
    for _ in 0..2 {
        assert!(read(&*storage, &path, 0, bytes.len()).unwrap() == bytes);
    }
    assert_eq!(storage.counts().bytes_fetched, bytes.len() as u64);
}

#[test]
fn folders_are_listed_with_links_and_without_what_is_hidden() {
    if !in_namespaces("folders_are_listed_with_links_and_without_what_is_hidden", LIMIT) {
        return;
    }
    let lab = Lab::start();
    for name in ["b/2", "b/1", "a", "bc", "b/.hidden", ".git/x", "deep/er/est/file"] {
        lab.write(name, name.as_bytes());
    }
    symlink("../b", lab.export.join("deep/up")).unwrap();
    symlink(&*lab.export, lab.export.join("b/circle")).unwrap();
    symlink("nowhere", lab.export.join("broken")).unwrap();
    symlink("bc", lab.export.join("linked")).unwrap();
    let root = lab.export.to_str().unwrap().trim_start_matches('/').to_owned();
    let (storage, _) = open_at(&lab.url(""), &quick());
    let list = |prefix: &str| -> Vec<String> {
        let found = storage.list(&format!("{root}{prefix}")).unwrap();
        found.into_iter().map(|found| found.path.strip_prefix(&format!("{root}/")).unwrap().to_owned()).collect()
    };
    let all = ["a", "b/1", "b/2", "bc", "deep/er/est/file", "deep/up/1", "deep/up/2", "linked"];
    assert_eq!((list(""), list("/")), (all.map(str::to_owned).to_vec(), all.map(str::to_owned).to_vec()));
    assert_eq!(list("/b"), ["b/1", "b/2", "bc"]);
    assert_eq!(list("/b/2"), ["b/2"]);
    assert_eq!(list("/nothing/x").len(), 0);
    // What lies above the export is known by the export.
    assert_eq!(storage.list("").unwrap().len(), all.len());
    assert_eq!(storage.list(&root[..root.len() - 1]).unwrap().len(), all.len());
    assert_eq!(read_whole(&lab.url("deep/up/1"), &quick()).unwrap(), b"b/1");
    assert_eq!(read_whole(&lab.url("linked"), &quick()).unwrap(), b"bc");
    assert!(error_of(&lab.url("broken")).kind == StorageErrorKind::NotFound);
    // More names than an answer holds.
    for number in 0..3000 {
        lab.write(&format!("many/{number:05}.jpg"), &[7; 3]);
    }
    let (storage, path) = open_at(&lab.proxied("many/"), &quick());
    let expected: Vec<String> = (0..3000).map(|number| format!("{path}{number:05}.jpg")).collect();
    let names = || storage.list(&path).unwrap().into_iter().map(|found| found.path).collect::<Vec<_>>();
    assert!(names() == expected);
    // Answers that break are asked for again, and become smaller.
    lab.proxy.set(WireFaults { cut_after: Some(30_000), ..WireFaults::default() });
    let (storage, path) = open_at(&lab.proxied("many/"), &quick());
    let names: Vec<String> = storage.list(&path).unwrap().into_iter().map(|found| found.path).collect();
    assert!(names == expected);
    assert!(storage.counts().retries > 10, "{}", storage.counts());
}

#[test]
fn errors_name_the_url_and_the_cause() {
    if !in_namespaces("errors_name_the_url_and_the_cause", LIMIT) {
        return;
    }
    use StorageErrorKind::{Denied, Failed, NotFound, Truncated};
    let (export, closed, proved, rooted) = (Folder::new(), Folder::new(), Folder::new(), Folder::new());
    let exports = [
        NfsExport::new(&export),
        NfsExport { id: 2, clients: "192.0.2.1".to_owned(), ..NfsExport::new(&closed) },
        NfsExport { id: 3, options: "SecType = krb5;".to_owned(), ..NfsExport::new(&proved) },
        NfsExport { id: 4, options: "PrivilegedPort = true;".to_owned(), ..NfsExport::new(&rooted) },
    ];
    let mut server = NfsServer::start(&exports);
    fs::write(export.join("file"), b"0123456789").unwrap();
    fs::create_dir(export.join("folder")).unwrap();
    fs::write(export.join("secret"), b"x").unwrap();
    fs::set_permissions(export.join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    let url_of = |folder: &Folder| format!("nfs://127.0.0.1{}", folder.display());
    let open_url = url_of(&export);
    for (url, kind, words) in [
        (format!("{open_url}/none"), NotFound, "there is no such file"),
        (format!("{open_url}/file/x"), NotFound, "no folder"),
        (format!("{open_url}/folder"), Failed, "it is a folder, and not a file"),
        (format!("{open_url}/secret?uid=4711&gid=4711"), Denied, "NFS3ERR_ACCES"),
        (
            "nfs://127.0.0.1/no/export/here".to_owned(),
            NotFound,
            "exports nothing to this machine that holds /no/export/here",
        ),
        (format!("{}/file", url_of(&closed)), NotFound, "exports nothing to this machine"),
        (format!("{}/file", url_of(&proved)), Denied, "sec=krb5"),
        (format!("{}/file", url_of(&rooted)), NotFound, "there is no such file"),
        ("nfs://127.0.0.2:1/a?mountport=1".to_owned(), Failed, "no connection to 127.0.0.2:1"),
        ("nfs://192.0.2.1/a".to_owned(), Failed, "no connection to 192.0.2.1:111"),
        ("nfs://no-such-host.invalid/a".to_owned(), Failed, "no address is known for no-such-host.invalid"),
    ] {
        let error = error_of(&url);
        assert!(error.kind == kind && error.cause.contains(words), "{url}: {error:?}");
        assert!(error.path.starts_with("nfs://") && !error.path.contains('?'), "{error}");
    }
    // Over a proxy, calls do not come from a port that only root has.
    let proxy = TcpProxy::start(&format!("127.0.0.1:{}", NfsServer::NFS_PORT));
    let error = error_of(&format!("nfs://127.0.0.1:{}{}/file", proxy.port(), rooted.display()));
    assert!(error.kind == Denied && error.cause.contains("a port that only root has"), "{error}");
    assert_eq!(read_whole(&format!("{open_url}/secret"), &quick()).unwrap(), b"x");
    let (storage, path) = open_at(&format!("{open_url}/file"), &quick());
    let error = read(&*storage, &path, 5, 6).unwrap_err();
    assert_eq!((error.kind, error.offset), (Truncated, Some(5)));
    assert!(error.cause.contains("only 10 bytes"), "{error}");
    // A server without a portmapper, and without the ports that it would tell.
    server.kill_portmapper();
    assert!(error_of(&format!("{open_url}/file")).cause.contains("127.0.0.1:111"));
    let ports = format!("?nfsport={}&mountport={}", NfsServer::NFS_PORT, NfsServer::MOUNT_PORT);
    assert_eq!(read_whole(&format!("{open_url}/file{ports}"), &quick()).unwrap(), b"0123456789");
}

#[test]
fn reads_go_on_at_the_byte_where_a_connection_broke() {
    if !in_namespaces("reads_go_on_at_the_byte_where_a_connection_broke", LIMIT) {
        return;
    }
    let lab = Lab::start();
    let (large, small) = (pattern(6_000_000), pattern(40_000));
    lab.write("large", &large);
    lab.write("small", &small);
    // Every connection is cut, within an answer of a megabyte or within the first words of one.
    for (name, bytes, cut_after) in [
        ("large", &large, 700_001_u64),
        ("large", &large, 65_537),
        ("large", &large, 30_011),
        ("small", &small, 1_009),
        ("small", &small, 503),
    ] {
        lab.proxy.set(WireFaults { cut_after: Some(cut_after), ..WireFaults::default() });
        let (connections, passed) = (lab.proxy.connections(), lab.proxy.passed());
        let (storage, path) = open_at(&lab.proxied(name), &quick());
        assert!(read(&*storage, &path, 0, bytes.len()).unwrap() == *bytes, "cut after {cut_after}");
        let counts = storage.counts();
        assert_eq!(counts.bytes_fetched, bytes.len() as u64);
        let cuts = lab.proxy.connections() - connections;
        assert!(cuts >= bytes.len() as u64 / cut_after && counts.retries > 0, "{cuts} connections, {counts}");
        // Several answers share a connection, and only the one that was arriving is used; nothing is sent often.
        let passed = lab.proxy.passed() - passed;
        assert!(passed < 3 * bytes.len() as u64 + 1000 * cuts, "{passed} bytes for {}", bytes.len());
    }
    // The first connection ends at every place of an answer.
    lab.write("tiny", &small[..1500]);
    for cut_after in (0..2400).step_by(11) {
        lab.proxy.set(WireFaults { cut_after: Some(cut_after), ..WireFaults::default() });
        let (storage, path) = open_at(&lab.proxied("tiny"), &quick());
        let seen = lab.proxy.connections();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| read(&*storage, &path, 0, 1500).unwrap());
            wait_until("a connection", Duration::from_secs(10), || lab.proxy.connections() > seen);
            lab.proxy.set(WireFaults::default());
            assert!(reader.join().unwrap() == small[..1500], "cut after {cut_after}");
        });
    }
}

#[test]
fn slow_servers_are_waited_for_and_silent_ones_asked_again() {
    if !in_namespaces("slow_servers_are_waited_for_and_silent_ones_asked_again", LIMIT) {
        return;
    }
    let lab = Lab::start();
    let bytes = pattern(2_000_000);
    lab.write("file", &bytes);
    // Slower than the time that a server may be silent, many times over; but it is never silent.
    lab.proxy.set(WireFaults { bytes_per_second: Some(500_000), ..WireFaults::default() });
    let options = StorageOptions { silence_timeout: Duration::from_millis(1500), ..quick() };
    let (storage, path) = open_at(&lab.proxied("file"), &options);
    let slowly = at_least(2 * options.silence_timeout, || read(&*storage, &path, 0, bytes.len()));
    assert!(slowly.unwrap() == bytes);
    assert_eq!((storage.counts().retries, lab.proxy.connections()), (0, 1));
    // Silent in the middle of an answer, on each connection.
    lab.proxy.set(WireFaults { silent_after: Some(900_000), ..WireFaults::default() });
    let (storage, path) = open_at(&lab.proxied("file"), &quick());
    assert!(read(&*storage, &path, 0, bytes.len()).unwrap() == bytes);
    assert!(storage.counts().retries > 0);
    // Silent from the first byte on: an error, in the time that was allowed for all attempts.
    lab.proxy.set(WireFaults { silent_after: Some(0), ..WireFaults::default() });
    let error = error_of(&lab.proxied("file"));
    assert!(error.kind == StorageErrorKind::TimedOut && error.cause.contains("silent"), "{error}");
    let mut options = quick();
    options.deadline = Duration::from_millis(900);
    options.retries = 1000;
    let error = read_whole(&lab.proxied("file"), &options).unwrap_err();
    assert!(error.kind == StorageErrorKind::TimedOut, "{error}");
}

#[test]
fn a_server_that_is_killed_and_started_again_loses_nothing() {
    if !in_namespaces("a_server_that_is_killed_and_started_again_loses_nothing", LIMIT) {
        return;
    }
    let mut lab = Lab::start();
    let exports = [NfsExport::new(&lab.export)];
    let bytes = pattern(6_000_000);
    lab.write("file", &bytes);
    lab.proxy.set(WireFaults { bytes_per_second: Some(4_000_000), ..WireFaults::default() });
    let mut patient = quick();
    patient.retries = 40;
    patient.first_pause = Duration::from_millis(20);
    let (storage, path) = open_at(&lab.proxied("file"), &patient);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read(&*storage, &path, 0, bytes.len()).unwrap());
        for part in [1_000_000, 3_000_000] {
            let proxy = &lab.proxy;
            wait_until("a part of the file", Duration::from_secs(20), || proxy.passed() > part);
            lab.server.kill();
            lab.server.start_again(&exports);
        }
        assert!(reader.join().unwrap() == bytes);
    });
    assert!(storage.counts().retries >= 2, "{}", storage.counts());
    // Handles of another export of the same folder are stale: the path is looked up again, and it is the same file.
    lab.server.kill();
    lab.server.start_again(&[NfsExport { id: 77, ..exports[0].clone() }]);
    assert!(read(&*storage, &path, 1000, 2_000_000).unwrap() == bytes[1000..2_001_000]);
    // A server that stays away is an error.
    lab.server.kill();
    let (storage, path) = open_at(&lab.url("file"), &quick());
    let error = storage.size(&path).unwrap_err();
    assert!(error.kind == StorageErrorKind::Failed && error.cause.contains("no connection"), "{error}");
}

#[test]
fn a_file_that_is_replaced_is_an_error_and_never_a_mixture() {
    if !in_namespaces("a_file_that_is_replaced_is_an_error_and_never_a_mixture", LIMIT) {
        return;
    }
    let lab = Lab::start();
    let (old, new) = (vec![1; 3_000_000], vec![2; 3_000_000]);
    let start = |name: &str| {
        lab.write(name, &old);
        let (storage, path) = open_at(&lab.url(name), &quick());
        assert!(read(&*storage, &path, 0, 1000).unwrap() == old[..1000]);
        (storage, path)
    };
    // Written over, of the same length.
    let (storage, path) = start("over");
    lab.write("over", &new);
    let error = read(&*storage, &path, 1_000_000, 1_500_000).unwrap_err();
    assert!(error.offset == Some(1_000_000) && error.cause.contains("has changed"), "{error}");
    assert!(read(&*open_at(&lab.url("over"), &quick()).0, &path, 0, 10).unwrap() == new[..10]);
    // Another file of that name, and the old one gone.
    let (storage, path) = start("renamed");
    lab.write("other", &new);
    fs::rename(lab.export.join("other"), lab.export.join("renamed")).unwrap();
    match read(&*storage, &path, 0, old.len()) {
        // The server may hold the old file open as long as it likes.
        Ok(bytes) => assert!(bytes == old),
        Err(error) => assert!(error.cause.contains("has changed"), "{error}"),
    }
    // Shorter than it was.
    let (storage, path) = start("short");
    fs::File::options().write(true).open(lab.export.join("short")).unwrap().set_len(5000).unwrap();
    let error = read(&*storage, &path, 2000, 10_000).unwrap_err();
    assert!(error.cause.contains("has changed"), "{error}");
    // Replaced while it is read, slowly.
    lab.write("slow", &old);
    lab.proxy.set(WireFaults { bytes_per_second: Some(3_000_000), ..WireFaults::default() });
    let (storage, path) = open_at(&lab.proxied("slow"), &quick());
    let error = std::thread::scope(|scope| {
        let reader = scope.spawn(|| read(&*storage, &path, 0, old.len()));
        wait_until("some bytes", Duration::from_secs(20), || lab.proxy.passed() > 500_000);
        lab.write("slow", &new);
        // Answers that the server had made before are of the old content; those after are refused.
        reader.join().unwrap().and_then(|bytes| {
            assert!(bytes == old);
            read(&*storage, &path, 0, 10)
        })
    });
    assert!(error.as_ref().unwrap_err().cause.contains("has changed"), "{error:?}");
}
