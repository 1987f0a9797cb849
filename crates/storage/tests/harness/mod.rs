//! A server for tests: HTTP/1.1 on loopback that speaks as much of S3 as reading needs, and fails on purpose.
//!
//! It serves objects by ranges, lists them in pages, and recomputes the signature of every request (`signature`). The
//! faults of its queue strike one request each, in their order; everything that was asked for is written down.

#![allow(dead_code, reason = "each test binary uses a part of it")]

mod signature;
pub(crate) mod tls;

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farandole_storage::{StorageOptions, StorageVariables};

/// What requests are signed with.
pub(crate) const KEY_ID: &str = "AKIDTESTTESTTEST";
pub(crate) const SECRET: &str = "secret/of/the/tests+0123456789";
pub(crate) const TOKEN: &str = "session-token-of-the-tests";

/// What happens to a request.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// A status with a code of S3's.
    Status(u16, &'static str),
    /// The connection is reset after so many bytes of the body.
    ResetAfter(usize),
    /// The connection is closed after so many bytes of the body.
    EndAfter(usize),
    /// So many bytes of the body, and then nothing.
    SilentAfter(usize),
    /// No answer at all.
    Silent,
    /// The answer names another region.
    OtherRegion,
    /// The object is replaced by this before the request is served.
    Replaced(Vec<u8>),
    /// An error whose text repeats what the client sent and should have kept secret.
    Echo(String),
    /// None; for faults that strike a later request.
    Fine,
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// S3, with signed requests.
    S3,
    /// A web server.
    Web,
    /// A web server that does not know ranges.
    WebWithoutRanges,
}

/// A request that came.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) method: String,
    /// With the query, as it was sent.
    pub(crate) target: String,
    /// By names in small letters.
    pub(crate) headers: BTreeMap<String, String>,
}

pub(crate) struct Server {
    pub(crate) address: String,
    shared: Arc<Shared>,
}

struct Shared {
    manner: Manner,
    objects: Mutex<BTreeMap<String, Arc<Vec<u8>>>>,
    faults: Mutex<VecDeque<Fault>>,
    asked: Mutex<Vec<Asked>>,
    connections: AtomicUsize,
    page: usize,
}

impl Server {
    pub(crate) fn start(manner: Manner) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared = Shared {
            manner,
            objects: Mutex::default(),
            faults: Mutex::default(),
            asked: Mutex::default(),
            connections: AtomicUsize::new(0),
            page: 3,
        };
        let shared = Arc::new(shared);
        let of_thread = Arc::clone(&shared);
        // It ends with the process, which runs one test.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&of_thread);
                std::thread::spawn(move || shared.serve(&stream));
            }
        });
        Server { address, shared }
    }

    pub(crate) fn put(&self, path: &str, bytes: &[u8]) {
        self.shared.objects.lock().unwrap().insert(path.to_owned(), Arc::new(bytes.to_vec()));
    }

    /// Has the next requests meet these.
    pub(crate) fn fail(&self, faults: impl IntoIterator<Item = Fault>) {
        self.shared.faults.lock().unwrap().extend(faults);
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().unwrap().clone()
    }

    /// How many connections were made.
    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// The ranges that were asked for with GET, in their order.
    pub(crate) fn ranges(&self) -> Vec<String> {
        let asked = self.asked().into_iter().filter(|asked| asked.method == "GET");
        asked.filter_map(|asked| asked.headers.get("range").cloned()).collect()
    }

    /// StorageVariables with which a client reaches this server as S3.
    pub(crate) fn variables(&self) -> Vec<(String, String)> {
        let pairs = [
            ("AWS_ENDPOINT_URL", format!("http://{}", self.address)),
            ("AWS_ACCESS_KEY_ID", KEY_ID.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
            ("AWS_SESSION_TOKEN", TOKEN.to_owned()),
            ("AWS_REGION", "eu-test-1".to_owned()),
        ];
        pairs.map(|(name, value)| (name.to_owned(), value)).to_vec()
    }

    /// Options with these variables, little patience and no cache.
    pub(crate) fn options(&self) -> StorageOptions {
        let mut options = quick();
        options.variables = self.variables().into_iter().collect();
        options
    }
}

/// Options for tests that wait for errors.
pub(crate) fn quick() -> StorageOptions {
    let mut options = StorageOptions { variables: StorageVariables::default(), ..StorageOptions::default() };
    options.first_pause = Duration::from_millis(2);
    options.silence_timeout = Duration::from_millis(400);
    options.deadline = Duration::from_secs(60);
    options.retries = 4;
    options.cache.memory_bytes = 0;
    options
}

/// A web server with an object of this many blocks and a half, and its URL.
pub(crate) fn with_blocks(blocks: usize, block_bytes: usize) -> (Server, Vec<u8>, String) {
    let server = Server::start(Manner::Web);
    let object = pattern(blocks * block_bytes + block_bytes / 2);
    server.put("object", &object);
    let url = format!("http://{}/object", server.address);
    (server, object, url)
}

/// Bytes that tell where they are.
pub(crate) fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at % 251) as u8 ^ (at / 251 % 256) as u8).collect()
}

impl Shared {
    /// Answers requests until the connection ends or a fault ends it.
    fn serve(&self, stream: &TcpStream) {
        stream.set_nodelay(true).unwrap();
        self.connections.fetch_add(1, Ordering::Relaxed);
        let mut reader = BufReader::new(stream);
        while let Some(asked) = read_request(&mut reader) {
            self.asked.lock().unwrap().push(asked.clone());
            let fault = self.faults.lock().unwrap().pop_front().unwrap_or(Fault::Fine);
            let wrong = if self.manner == Manner::S3 { signature::check(&asked).err() } else { None };
            let answer = match (wrong, &fault) {
                (Some(code), _) => refusal(403, code, "the signature is wrong"),
                (None, Fault::Status(status, code)) => refusal(*status, code, "on purpose"),
                (None, Fault::Echo(secret)) => refusal(400, "InvalidToken", &format!("what is {secret}?")),
                (None, Fault::OtherRegion) => Answer {
                    headers: "x-amz-bucket-region: mars-north-7\r\n".to_owned(),
                    ..refusal(301, "PermanentRedirect", "elsewhere")
                },
                (None, Fault::Silent) => return sleep_until_closed(stream),
                (None, _) => self.answer(&asked, &fault),
            };
            if !send(stream, &asked, &answer, &fault) {
                return;
            }
        }
    }

    fn answer(&self, asked: &Asked, fault: &Fault) -> Answer {
        let (path, query) = asked.target.split_once('?').unwrap_or((&asked.target, ""));
        // A proxy is asked for whole URLs, and has objects by those names.
        let path = decoded(path.trim_start_matches('/'));
        if query.contains("list-type=2") {
            return self.listing(&path, query);
        }
        if asked.method != "GET" && asked.method != "HEAD" {
            return refusal(405, "MethodNotAllowed", "only reading is known here");
        }
        if let Fault::Replaced(bytes) = fault {
            self.objects.lock().unwrap().insert(path.clone(), Arc::new(bytes.clone()));
        }
        let objects = self.objects.lock().unwrap();
        let Some(object) = objects.get(&path).cloned() else {
            let bucket = path.split('/').next().unwrap_or_default();
            let has_bucket = objects.keys().any(|key| key.split('/').next() == Some(bucket));
            return refusal(404, if has_bucket { "NoSuchKey" } else { "NoSuchBucket" }, "it is not here");
        };
        drop(objects);
        let etag = format!("\"{}\"", blake3::hash(&object).to_hex());
        if asked.headers.get("if-match").is_some_and(|wanted| *wanted != etag) {
            return refusal(412, "PreconditionFailed", "it has changed");
        }
        let date = "Last-Modified: Wed, 01 Jan 2025 00:00:00 GMT\r\n";
        let headers = format!("ETag: {etag}\r\n{date}");
        let range = asked.headers.get("range").filter(|_| self.manner != Manner::WebWithoutRanges);
        let Some(range) = range else { return Answer { status: 200, headers, body: object.to_vec() } };
        let (first, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        let first: usize = first.parse().unwrap();
        let end = last.parse::<usize>().map_or(object.len(), |last| (last + 1).min(object.len()));
        if first >= object.len() {
            return refusal(416, "InvalidRange", "behind the end");
        }
        let headers = format!("{headers}Content-Range: bytes {first}-{}/{}\r\n", end - 1, object.len());
        Answer { status: 206, headers, body: object[first..end].to_vec() }
    }

    /// A page of objects behind the one that the token names.
    fn listing(&self, bucket: &str, query: &str) -> Answer {
        let get = |name: &str| {
            let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs
                .filter(|(key, _)| *key == name)
                .map(|(_, value)| decoded(&value.replace('+', " ")))
                .next()
                .unwrap_or_default()
        };
        let bucket = bucket.trim_end_matches('/');
        let (prefix, token) = (format!("{bucket}/{}", get("prefix")), get("continuation-token"));
        let objects = self.objects.lock().unwrap();
        if !objects.keys().any(|key| key.starts_with(&format!("{bucket}/"))) {
            return refusal(404, "NoSuchBucket", "there is no such bucket");
        }
        let mut rest = objects.iter().filter(|(key, _)| key.starts_with(&prefix) && key.as_str() > token.as_str());
        let page: Vec<_> = rest.by_ref().take(self.page).collect();
        let next = rest.next().and_then(|_| page.last()).map(|(key, _)| (*key).clone());
        let contents: String = page
            .iter()
            .map(|(key, bytes)| {
                let key = key.strip_prefix(&format!("{bucket}/")).unwrap().replace('&', "&amp;");
                let etag = blake3::hash(bytes).to_hex();
                format!(
                    "<Contents><Key>{key}</Key><LastModified>2025-01-01T00:00:00.000Z</LastModified><ETag>&quot;{etag}\
                     &quot;</ETag><Size>{}</Size><StorageClass>STANDARD</StorageClass></Contents>",
                    bytes.len()
                )
            })
            .collect();
        let next = next.map(|token| token.replace('&', "&amp;"));
        let next = next.map(|token| format!("<NextContinuationToken>{token}</NextContinuationToken>"));
        let body = format!(
            "<?xml version=\"1.0\"?><ListBucketResult><Name>{bucket}</Name><KeyCount>{}</KeyCount><IsTruncated>{}\
             </IsTruncated>{contents}{}</ListBucketResult>",
            page.len(),
            next.is_some(),
            next.unwrap_or_default()
        );
        Answer { status: 200, headers: "Content-Type: application/xml\r\n".to_owned(), body: body.into_bytes() }
    }
}

struct Answer {
    status: u16,
    headers: String,
    body: Vec<u8>,
}

fn refusal(status: u16, code: &str, message: &str) -> Answer {
    let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>{message}</Message></Error>");
    let headers = "Content-Type: application/xml\r\nDate: Wed, 01 Jan 2025 00:00:00 GMT\r\n".to_owned();
    Answer { status, headers, body: body.into_bytes() }
}

/// Writes an answer as the fault has it. Whether the connection goes on.
fn send(mut stream: &TcpStream, asked: &Asked, answer: &Answer, fault: &Fault) -> bool {
    let head =
        format!("HTTP/1.1 {} Said\r\n{}Content-Length: {}\r\n\r\n", answer.status, answer.headers, answer.body.len());
    let body: &[u8] = if asked.method == "HEAD" { &[] } else { &answer.body };
    let cut = match fault {
        Fault::ResetAfter(bytes) | Fault::EndAfter(bytes) | Fault::SilentAfter(bytes) => Some(*bytes),
        _ => None,
    };
    let body = &body[..cut.unwrap_or(body.len()).min(body.len())];
    if stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).is_err() {
        return false;
    }
    match fault {
        Fault::ResetAfter(_) => {
            // What was sent should arrive before the reset: the kernel drops what the peer has not read.
            farandole_testing::lapse("the server, before it resets", Duration::from_millis(50));
            rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO)).unwrap();
            false
        }
        Fault::EndAfter(_) => false,
        Fault::SilentAfter(_) => {
            sleep_until_closed(stream);
            false
        }
        _ => true,
    }
}

fn sleep_until_closed(stream: &TcpStream) {
    let mut reader = BufReader::new(stream);
    while reader.fill_buf().is_ok_and(|bytes| !bytes.is_empty()) {
        let count = reader.buffer().len();
        reader.consume(count);
    }
}

fn read_request(reader: &mut BufReader<&TcpStream>) -> Option<Asked> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    Some(Asked { method, target, headers })
}

/// A text with `%41` as `A`.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        match (first, behind) {
            (b'%', [a, b, tail @ ..]) => {
                let code = [*a, *b];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&code).unwrap(), 16).unwrap());
                rest = tail;
            }
            _ => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    String::from_utf8(bytes).unwrap()
}
