//! Object stores and web servers, read over loopback from a server that fails on purpose.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod harness;
#[path = "harness/proxy.rs"]
mod proxy;

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use farandole_storage::{Storage, StorageError, StorageErrorKind, StorageOptions, StorageVariables, open};
use harness::{Fault, Manner, SECRET, Server, TOKEN, pattern, quick};
use proxy::Proxy;

/// What the role program reads.
const ROLE_URL: &str = "FARANDOLE_TEST_STORAGE_URL";

/// An S3 server with one object of this many bytes.
fn with_object(bytes: usize) -> (Server, Vec<u8>) {
    let server = Server::start(Manner::S3);
    let object = pattern(bytes);
    server.put("bucket/folder/object", &object);
    (server, object)
}

fn open_at(url: &str, options: &StorageOptions) -> (Arc<dyn Storage>, String) {
    open(url, options).unwrap()
}

fn read(storage: &dyn Storage, path: &str, offset: usize, bytes: usize) -> Result<Vec<u8>, StorageError> {
    let mut buffer = vec![0; bytes];
    storage.read_at(path, offset as u64, &mut buffer)?;
    Ok(buffer)
}

#[test]
fn ranges_sizes_and_pages_of_lists_are_those_of_the_objects() {
    let (server, object) = with_object(100_000);
    for number in 0..8 {
        server.put(&format!("bucket/folder/part {number}&+é.tar"), &pattern(number * 10 + 1));
    }
    server.put("bucket/folder/deep", b"");
    server.put("bucket/folder/deep/er", b"x");
    server.put("bucket/other/object", b"other");
    let (storage, path) = open_at("s3://bucket/folder/object", &server.options());
    assert_eq!(path, "folder/object");
    assert_eq!(storage.size(&path).unwrap(), 100_000);
    for (offset, bytes) in [(0, 100_000), (0, 1), (99_999, 1), (1234, 5678)] {
        assert_eq!(read(&*storage, &path, offset, bytes).unwrap(), object[offset..offset + bytes]);
    }
    read(&*storage, &path, 5, 0).unwrap();
    let listed: Vec<(String, u64)> =
        storage.list("folder/").unwrap().into_iter().map(|object| (object.path, object.bytes)).collect();
    let mut expected = vec![("folder/deep/er".to_owned(), 1), ("folder/object".to_owned(), 100_000)];
    expected.extend((0..8).map(|number| (format!("folder/part {number}&+é.tar"), number * 10 + 1)));
    assert_eq!(listed, expected);
    assert_eq!(storage.list("folder/part 3").unwrap().len(), 1);
    assert_eq!(storage.list("").unwrap().len(), 11);
    assert_eq!(read(&*storage, "folder/part 7&+é.tar", 3, 68).unwrap(), pattern(71)[3..]);
    // Sizes were listed: nobody has to ask again.
    let asked = server.asked().len();
    assert_eq!(storage.size("folder/part 6&+é.tar").unwrap(), 61);
    assert_eq!(server.asked().len(), asked);
}

#[test]
fn a_large_read_is_split_into_parts_at_once() {
    let (server, object) = with_object(1_000_000);
    let mut options = server.options();
    (options.part_bytes, options.parts_at_once) = (64 << 10, 5);
    let (storage, path) = open_at("s3://bucket/folder/object", &options);
    assert_eq!(read(&*storage, &path, 7, 999_000).unwrap(), object[7..999_007]);
    let mut ranges = server.ranges();
    ranges.sort();
    assert_eq!(ranges.len(), 999_000_usize.div_ceil(64 << 10));
    assert!(ranges.contains(&"bytes=7-65542".to_owned()), "{ranges:?}");
    assert_eq!(storage.counts().bytes_fetched, 999_000);
}

#[test]
fn errors_that_pass_are_repeated() {
    let (server, object) = with_object(5000);
    let (storage, path) = open_at("s3://bucket/folder/object", &server.options());
    let faults = [
        Fault::Status(500, "InternalError"),
        Fault::Status(503, "SlowDown"),
        Fault::Silent,
        Fault::Status(429, "TooManyRequests"),
    ];
    server.fail(faults);
    assert_eq!(read(&*storage, &path, 0, 5000).unwrap(), object);
    assert_eq!(storage.counts().retries, 4);
    server.fail([Fault::Status(503, "SlowDown")]);
    assert_eq!(storage.list("").unwrap().len(), 1);
    server.fail([Fault::Silent]);
    let (fresh, path) = open_at("s3://bucket/folder/object", &server.options());
    assert_eq!(fresh.size(&path).unwrap(), 5000);
}

#[test]
fn a_download_that_breaks_goes_on_where_it_broke() {
    let (server, object) = with_object(3_000_000);
    let (storage, path) = open_at("s3://bucket/folder/object", &server.options());
    server.fail([Fault::ResetAfter(1_000_000), Fault::EndAfter(700_000), Fault::SilentAfter(300_000)]);
    assert_eq!(read(&*storage, &path, 0, 3_000_000).unwrap(), object);
    let ranges = server.ranges();
    let firsts: Vec<usize> =
        ranges.iter().map(|range| range[6..].split('-').next().unwrap().parse().unwrap()).collect();
    assert_eq!(firsts.len(), 4, "{ranges:?}");
    // A reset may take what was not read yet with it; what arrived is not asked for again.
    assert!(firsts[0] == 0 && firsts[1] > 0 && firsts[1] <= 1_000_000, "{firsts:?}");
    assert_eq!(firsts[2] - firsts[1], 700_000);
    assert_eq!(firsts[3] - firsts[2], 300_000);
    let again = server.asked().pop().unwrap();
    assert!(again.headers.contains_key("if-match"), "{again:?}");
    assert_eq!(storage.counts().bytes_fetched, 3_000_000);
}

#[test]
fn an_object_that_changes_is_an_error_and_no_mixture() {
    let (server, _) = with_object(50_000);
    let other = vec![9; 50_000];
    // Between two reads.
    let (storage, path) = open_at("s3://bucket/folder/object", &server.options());
    read(&*storage, &path, 0, 100).unwrap();
    server.fail([Fault::Replaced(other.clone())]);
    let error = read(&*storage, &path, 100, 100).unwrap_err();
    assert!(error.to_string().contains("has changed since"), "{error}");
    assert!(error.to_string().starts_with("s3://bucket/folder/object, at byte 100: "), "{error}");
    // Between the parts of one read.
    let mut options = server.options();
    (options.part_bytes, options.parts_at_once) = (10_000, 1);
    let (storage, path) = open_at("s3://bucket/folder/object", &options);
    server.fail([Fault::Fine, Fault::Fine, Fault::Fine, Fault::Replaced(pattern(50_000))]);
    assert!(read(&*storage, &path, 0, 50_000).unwrap_err().to_string().contains("has changed since"));
    // Within an answer that breaks.
    let (storage, path) = open_at("s3://bucket/folder/object", &server.options());
    server.fail([Fault::EndAfter(20_000), Fault::Replaced(other)]);
    assert!(read(&*storage, &path, 0, 50_000).unwrap_err().to_string().contains("has changed since"));
}

#[test]
fn attempts_end_by_their_number_and_by_time() {
    let (server, _) = with_object(1000);
    let (storage, path) = open_at("s3://bucket/folder/object", &server.options());
    server.fail(vec![Fault::Status(503, "SlowDown"); 5]);
    let error = read(&*storage, &path, 0, 1000).unwrap_err();
    assert!(error.cause.contains("503") && error.cause.contains("SlowDown") && error.cause.contains("try again later"));
    assert_eq!(server.asked().len(), 5);
    // By time: attempts are many and silence is long.
    let mut options = server.options();
    (options.retries, options.deadline) = (1_000_000, Duration::from_millis(700));
    let (storage, path) = open_at("s3://bucket/folder/object", &options);
    server.fail(vec![Fault::Silent; 100]);
    let error = read(&*storage, &path, 0, 1000).unwrap_err();
    assert_eq!(error.kind, StorageErrorKind::TimedOut, "{error}");
    let (storage, path) = open_at("s3://bucket/folder/object", &options);
    assert_eq!(storage.size(&path).unwrap_err().kind, StorageErrorKind::TimedOut);
}

/// The address of a listener whose queue is full: the kernel drops what would begin a connection, as a firewall does.
/// What fills the queue comes with it.
fn deaf() -> (String, TcpListener, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let address = listener.local_addr().unwrap();
    let limit = Duration::from_millis(300);
    let queued = std::iter::from_fn(|| TcpStream::connect_timeout(&address, limit).ok()).take(100).collect();
    (address.to_string(), listener, queued)
}

#[test]
fn a_host_that_drops_packets_is_named_when_time_is_over() {
    let (address, _listener, queued) = deaf();
    assert!(queued.len() < 100, "the queue of the listener has no end");
    let with_limits = |deadline: u64, connect: u64| {
        let mut options = quick();
        options.retries = 1_000_000;
        (options.deadline, options.connect_timeout) = (Duration::from_millis(deadline), Duration::from_millis(connect));
        options
    };
    // Time is over within the second attempt, and within the first one if it were not cut short.
    for options in [with_limits(900, 500), with_limits(900, 5000)] {
        let (storage, path) = open_at(&format!("http://{address}/object"), &options);
        let errors = [
            storage.size(&path),
            storage.list("folder/").map(|_| 0),
            storage.read_at(&path, 0, &mut [0; 9]).map(|()| 0),
        ];
        for error in errors.map(Result::unwrap_err) {
            assert!(error.cause.contains(&format!("no connection to {address}")), "{error}");
        }
    }
    // A server that takes connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut options = with_limits(900, 5000);
    options.silence_timeout = Duration::from_secs(20);
    let (storage, path) = open_at(&format!("http://{}/object", silent.local_addr().unwrap()), &options);
    let error = storage.read_at(&path, 0, &mut [0; 9]).unwrap_err();
    assert!(error.kind == StorageErrorKind::TimedOut && error.cause.contains("silent for 0.45 seconds"), "{error}");
}

#[test]
fn errors_say_what_is_wrong_and_what_to_do() {
    let (server, _) = with_object(1000);
    let ask = |url: &str, fault: Fault, options: &StorageOptions| {
        server.fail([fault]);
        let (storage, path) = open_at(url, options);
        read(&*storage, &path, 0, 10).unwrap_err()
    };
    let options = server.options();
    let object = "s3://bucket/folder/object";
    let is = |error: &StorageError, kind: StorageErrorKind, words: &[&str]| {
        assert_eq!(error.kind, kind, "{error}");
        for word in words {
            assert!(error.to_string().contains(word), "{word} in {error}");
        }
    };
    use StorageErrorKind::{Denied, Failed, NotFound, Truncated};
    let missing = ask("s3://bucket/folder/none", Fault::Fine, &options);
    is(&missing, NotFound, &["s3://bucket/folder/none", "NoSuchKey", "there is no such object"]);
    is(&ask("s3://none/x", Fault::Fine, &options), NotFound, &["there is no bucket or container none"]);
    is(&ask(object, Fault::Status(403, "AccessDenied"), &options), Denied, &["may not read it", "AWS_PROFILE"]);
    is(&ask(object, Fault::OtherRegion, &options), Failed, &["set AWS_REGION=mars-north-7"]);
    let skewed = ask(object, Fault::Status(403, "RequestTimeTooSkewed"), &options);
    is(&skewed, Denied, &["clock", "01 Jan 2025", "NTP"]);
    is(&ask(object, Fault::Status(400, "ExpiredToken"), &options), Denied, &["AWS_SESSION_TOKEN"]);
    let (storage, path) = open_at(object, &options);
    is(&read(&*storage, &path, 990, 11).unwrap_err(), Truncated, &["only 1000 bytes", "at byte 990"]);
    is(&read(&*storage, &path, 5000, 1).unwrap_err(), Truncated, &["at byte 5000"]);
    is(&storage.size("folder/none").unwrap_err(), NotFound, &["NoSuchKey"]);
    is(&storage.size("folder/none").unwrap_err(), NotFound, &["s3://bucket/folder/none"]);
    // Another secret makes another signature, which the server refuses.
    let mut wrong = server.options();
    let variables = server.variables().into_iter();
    let variables =
        variables.map(|(name, value)| if value == SECRET { (name, "wrong".to_owned()) } else { (name, value) });
    wrong.variables = variables.collect();
    let refused = ask(object, Fault::Fine, &wrong);
    is(&refused, Denied, &["SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"]);
    // Nobody listens there.
    let mut elsewhere = server.options();
    elsewhere.retries = 1;
    elsewhere.variables = server
        .variables()
        .into_iter()
        .filter(|(name, _)| name != "AWS_ENDPOINT_URL")
        .chain([("AWS_ENDPOINT_URL".to_owned(), "http://127.0.0.1:9".to_owned())])
        .collect();
    is(&ask(object, Fault::Fine, &elsewhere), Failed, &["no connection to 127.0.0.1:9", "AWS_ENDPOINT_URL"]);
}

#[test]
fn no_secret_is_in_an_error() {
    let (server, _) = with_object(1000);
    let (storage, path) = open_at("s3://bucket/folder/object", &server.options());
    server.fail([Fault::Echo(format!("{SECRET} and {TOKEN}")), Fault::Echo(TOKEN.to_owned())]);
    for error in [read(&*storage, &path, 0, 10).unwrap_err(), storage.list("").unwrap_err()] {
        let text = format!("{error} {error:?}");
        assert!(!text.contains(SECRET) && !text.contains(TOKEN), "{text}");
        assert!(text.contains("what is (hidden)"), "{text}");
    }
    let shown = format!("{storage:?} {:?} {}", server.options(), storage.describe());
    assert!(!shown.contains(SECRET) && !shown.contains(TOKEN), "{shown}");
}

#[test]
fn missing_credentials_are_named_without_delay() {
    let (server, _) = with_object(10);
    let mut options = quick();
    let pairs = [
        ("AWS_ENDPOINT_URL", format!("http://{}", server.address)),
        // Where instances have theirs from: nobody answers there.
        ("AWS_METADATA_ENDPOINT", "http://169.254.0.1:9".to_owned()),
    ];
    options.variables = pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let (storage, path) = open_at("s3://bucket/folder/object", &options);
    let error = read(&*storage, &path, 0, 10).unwrap_err();
    assert_eq!(error.kind, StorageErrorKind::Denied, "{error}");
    for word in ["AWS_ACCESS_KEY_ID", "~/.aws/credentials", "AWS_SKIP_SIGNATURE"] {
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn a_web_server_is_read_by_ranges_and_named_by_its_urls() {
    let server = Server::start(Manner::Web);
    let object = pattern(70_000);
    server.put("data/a file.bin", &object);
    let url = format!("http://{}/data/a%20file.bin", server.address);
    let (storage, path) = open_at(&url, &quick());
    assert_eq!(path, "data/a file.bin");
    assert_eq!(storage.size(&path).unwrap(), 70_000);
    assert_eq!(read(&*storage, &path, 500, 60_000).unwrap(), object[500..60_500]);
    assert_eq!(server.ranges(), ["bytes=500-60499"]);
    let listed = storage.list("data/").unwrap_err().to_string();
    assert!(listed.contains("does not list folders"), "{listed}");
    assert_eq!(storage.size("data/none").unwrap_err().kind, StorageErrorKind::NotFound);
}

#[test]
fn a_server_without_ranges_is_read_as_a_whole_if_the_object_is_small() {
    let server = Server::start(Manner::WebWithoutRanges);
    let object = pattern(70_000);
    server.put("object", &object);
    let url = format!("http://{}/object", server.address);
    let mut options = quick();
    let (storage, path) = open_at(&url, &options);
    assert_eq!(read(&*storage, &path, 500, 60_000).unwrap(), object[500..60_500]);
    server.fail([Fault::EndAfter(40_000)]);
    assert_eq!(read(&*storage, &path, 30_000, 30_000).unwrap(), object[30_000..60_000]);
    options.whole_bytes = 69_999;
    let (storage, path) = open_at(&url, &options);
    let error = read(&*storage, &path, 500, 100).unwrap_err().to_string();
    assert!(error.contains("sends whole objects only") && error.contains("70000"), "{error}");
}

#[test]
fn a_proxy_passes_requests_on_and_is_named_when_it_does_not() {
    // A server that gets a whole URL answers as a proxy would.
    let server = Server::start(Manner::Web);
    server.put("http://far.example/object", b"through the proxy");
    let mut options = quick();
    options.retries = 0;
    let proxy = |address: &str| [("http_proxy".to_owned(), address.to_owned())].into_iter().collect();
    options.variables = proxy(&format!("http://me:pass@{}", server.address));
    let (storage, path) = open_at("http://far.example/object", &options);
    assert_eq!(read(&*storage, &path, 0, 17).unwrap(), b"through the proxy");
    options.variables = proxy("http://me:pass@127.0.0.1:9");
    let (storage, path) = open_at("http://far.example/object", &options);
    let error = read(&*storage, &path, 0, 17).unwrap_err().to_string();
    assert!(
        error.contains("the proxy 127.0.0.1:9") && error.contains("NO_PROXY") && !error.contains("pass@"),
        "{error}"
    );
    // A proxy that makes no tunnel for TLS.
    let https = [("https_proxy".to_owned(), format!("http://{}", server.address))];
    options.variables = https.into_iter().collect();
    server.fail([Fault::Status(407, "x")]);
    let (storage, path) = open_at("https://far.example/object", &options);
    let error = read(&*storage, &path, 0, 17).unwrap_err().to_string();
    assert!(error.contains("407"), "{error}");
}

#[test]
fn connections_are_used_again_and_no_more_are_open_than_allowed() {
    let (server, object) = with_object(200_000);
    let mut options = server.options();
    options.connections = 3;
    let (storage, path) = open_at("s3://bucket/folder/object", &options);
    std::thread::scope(|scope| {
        for worker in 0..8_usize {
            let (storage, path, object) = (&storage, &path, &object);
            scope.spawn(move || {
                for turn in 0..10 {
                    let at = (worker * 10 + turn) * 2000;
                    assert_eq!(read(&**storage, path, at, 2000).unwrap(), object[at..at + 2000]);
                }
            });
        }
    });
    assert_eq!(storage.counts().requests, 80);
    assert!(server.connections() <= 3, "{} connections", server.connections());
}

/// Reads an object and says what it is, or what went wrong.
#[test]
#[ignore = "role program: other tests start it"]
fn reader() {
    let url = std::env::var(ROLE_URL).expect("another test starts this one, with its task in the environment");
    let options = StorageOptions { variables: StorageVariables::of_this_process(), ..quick() };
    let (storage, path) = open_at(&url, &options);
    match storage.size(&path).and_then(|bytes| read(&*storage, &path, 0, bytes as usize)) {
        Ok(bytes) => eprintln!("read {}", blake3::hash(&bytes).to_hex()),
        Err(error) => eprintln!("failed: {error}"),
    }
}

/// What [`reader`] says. Certificates and proxies are those of a process, so another process reads.
fn read_elsewhere(url: &str, variables: &[(&str, &str)]) -> String {
    let mut reader = std::process::Command::new(std::env::current_exe().unwrap());
    reader.args(["--ignored", "--exact", "reader", "--nocapture"]).env(ROLE_URL, url).env_remove("SSL_CERT_DIR");
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"] {
        reader.env_remove(name).env_remove(name.to_lowercase());
    }
    reader.envs(variables.iter().copied());
    let output = farandole_testing::finish(&mut reader, Duration::from_secs(60));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn proxies_get_credentials_and_tls_and_are_never_passed_by() {
    let server = Server::start(Manner::Web);
    let object = pattern(300_000);
    server.put("object", &object);
    let port = harness::tls::in_front_of(&server.address);
    let (_, plain_port) = server.address.rsplit_once(':').unwrap();
    let (plain, with_tls) = (Proxy::start(), Proxy::start_with_tls());
    let expected = format!("read {}", blake3::hash(&object).to_hex());
    let through = |url: &str, proxy: &str| {
        read_elsewhere(url, &[("ALL_PROXY", proxy), ("SSL_CERT_FILE", harness::tls::AUTHORITY)])
    };
    // The name far.example has no address here: only the proxy reaches it.
    let http = format!("http://far.example:{plain_port}/object");
    let https = format!("https://localhost:{port}/object");
    for (proxy, scheme) in [(&plain, "http"), (&with_tls, "https")] {
        let address = format!("{scheme}://me:pass@localhost:{}", proxy.port);
        for url in [&http, &https] {
            let said = through(url, &address);
            assert!(said.contains(&expected), "{url} by {address}: {said}");
        }
        let requests = proxy.requests();
        assert!(requests.iter().any(|request| request.starts_with(&format!("GET {http} "))), "{requests:?}");
        assert!(
            requests.iter().any(|request| *request == format!("CONNECT localhost:{port} HTTP/1.1")),
            "{requests:?}"
        );
    }
    // No origin server was given the credentials of the proxy.
    assert!(server.asked().iter().all(|asked| !asked.headers.contains_key("proxy-authorization")));
    // Without credentials, and with proxies that cannot be used, no request arrives.
    let asked = server.asked().len();
    let near = format!("http://{}/object", server.address);
    for url in [&near, &https] {
        let said = through(url, &format!("localhost:{}", plain.port));
        assert!(said.contains(&format!("the proxy localhost:{} does not let us through", plain.port)), "{said}");
        assert!(said.contains("407"), "{said}");
        let said = through(url, "socks5://me:pass@localhost:9");
        assert!(said.contains("ALL_PROXY: SOCKS proxies are not supported") && !said.contains("pass@"), "{said}");
        let said = through(url, &format!("https://127.0.0.1:{}", with_tls.port));
        assert!(said.contains("no TLS with 127.0.0.1"), "{said}");
    }
    assert_eq!(server.asked().len(), asked);
    // An exception by network.
    for proxy in ["localhost:9", "socks5://localhost:9"] {
        let said = read_elsewhere(&near, &[("ALL_PROXY", proxy), ("NO_PROXY", "10.0.0.0/8,127.0.0.0/8")]);
        assert!(said.contains(&expected), "{said}");
    }
}

#[test]
fn certificates_are_checked_against_the_authorities_of_the_environment() {
    let server = Server::start(Manner::Web);
    let object = pattern(300_000);
    server.put("object", &object);
    let port = harness::tls::in_front_of(&server.address);
    let read_as = |host: &str, authority: &str| {
        read_elsewhere(&format!("https://{host}:{port}/object"), &[("SSL_CERT_FILE", authority)])
    };
    let said = read_as("localhost", harness::tls::AUTHORITY);
    assert!(said.contains(&format!("read {}", blake3::hash(&object).to_hex())), "{said}");
    // Another name than the certificate's, and an authority that nobody here knows.
    let said = read_as("127.0.0.1", harness::tls::AUTHORITY);
    assert!(said.contains("failed: https://127.0.0.1") && said.contains("no TLS with 127.0.0.1"), "{said}");
    let said = read_as("localhost", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls/server.pem"));
    assert!(said.contains("no TLS with localhost") && said.contains("SSL_CERT_FILE"), "{said}");
}
