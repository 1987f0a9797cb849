//! Measures reading through the stack against reading from a socket: `storage_bench [MIB] [THREADS] [ROUNDS]`.
//!
//! A server on loopback serves one object of so many MiB by ranges. In each round the same bytes are read, by so many
//! threads in pieces of 4 MiB, (1) by GET on a plain `TcpStream`, one connection for each thread, (2) through
//! `storage::open` without a cache, (3) through it with an empty cache on disk, (4) with the full one. The ways take
//! turns, so that whatever else the machine does strikes all of them. At the end stand medians, and their ratios.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use farandole_storage::{Storage, StorageOptions, open};
use farandole_trace::TemporaryFolder;

const PIECE_BYTES: usize = 4 << 20;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let numbers: Vec<usize> = std::env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    let number = |at: usize, usual: usize| numbers.get(at).copied().unwrap_or(usual);
    let (bytes, threads, rounds) = (number(0, 512) << 20, number(1, 4).max(1), number(2, 5).max(1));
    let address = serve(bytes)?;
    let url = format!("http://{address}/object");
    let temporary = TemporaryFolder::new("storage-bench")?;
    let folder = temporary.path().join("cache");
    let mut plain = StorageOptions::default();
    plain.cache.memory_bytes = 0;
    let mut cached = plain.clone();
    cached.cache.folder = Some(folder.clone());
    let ways = ["plain sockets", "without a cache", "with an empty cache", "with a full cache"];
    let mut seconds = vec![Vec::new(); ways.len()];
    for _ in 0..rounds {
        let _ = std::fs::remove_dir_all(&folder);
        seconds[0].push(time(bytes, threads, || Socket::new(&address))?);
        for (way, options) in [(1, &plain), (2, &cached), (3, &cached)] {
            let (storage, path) = open(&url, options)?;
            seconds[way].push(time(bytes, threads, || Ok((Arc::clone(&storage), path.clone())))?);
        }
    }
    let mut out = std::io::stdout().lock();
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let medians: Vec<f64> = seconds.iter_mut().map(median).collect();
    for (way, seconds) in ways.iter().zip(&medians) {
        let rate = bytes as f64 / seconds / 1e6;
        writeln!(out, "{way}: {rate:.0} MB/s, {:.2} of plain sockets", medians[0] / seconds)?;
    }
    Ok(())
}

/// One thread's way to pieces of the object.
trait Source: Send {
    fn read(&mut self, offset: usize, piece: &mut [u8]) -> Result<(), Failure>;
}

impl Source for (Arc<dyn Storage>, String) {
    fn read(&mut self, offset: usize, piece: &mut [u8]) -> Result<(), Failure> {
        Ok(self.0.read_at(&self.1, offset as u64, piece)?)
    }
}

struct Socket(BufReader<TcpStream>);

impl Socket {
    fn new(address: &str) -> Result<Socket, Failure> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Socket(BufReader::with_capacity(256 << 10, stream)))
    }
}

impl Source for Socket {
    fn read(&mut self, offset: usize, piece: &mut [u8]) -> Result<(), Failure> {
        let last = offset + piece.len() - 1;
        // In one piece: the kernel would hold small ones back.
        let ask = format!("GET /object HTTP/1.1\r\nHost: x\r\nRange: bytes={offset}-{last}\r\n\r\n");
        self.0.get_mut().write_all(ask.as_bytes())?;
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            self.0.read_line(&mut line)?;
        }
        Ok(self.0.read_exact(piece)?)
    }
}

/// Has threads read all pieces, each its share, and checks the first byte of each.
fn time<S: Source>(bytes: usize, threads: usize, source: impl Fn() -> Result<S, Failure>) -> Result<f64, Failure> {
    let sources: Vec<S> = (0..threads).map(|_| source()).collect::<Result<_, _>>()?;
    let began = Instant::now();
    std::thread::scope(|scope| {
        let readers: Vec<_> = sources
            .into_iter()
            .enumerate()
            .map(|(thread, mut source)| {
                scope.spawn(move || {
                    let mut piece = vec![0; PIECE_BYTES];
                    for offset in (thread * PIECE_BYTES..bytes).step_by(threads * PIECE_BYTES) {
                        let piece = &mut piece[..PIECE_BYTES.min(bytes - offset)];
                        source.read(offset, piece)?;
                        assert_eq!(piece[0], byte_at(offset), "the piece from {offset} on");
                    }
                    Ok::<(), Failure>(())
                })
            })
            .collect();
        readers.into_iter().try_for_each(|reader| reader.join().map_err(|_| "a reader panicked")?)
    })?;
    Ok(began.elapsed().as_secs_f64())
}

fn byte_at(offset: usize) -> u8 {
    (offset >> 20) as u8
}

/// Serves an object for as long as the program runs. Returns the server's address.
fn serve(bytes: usize) -> Result<String, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    let object: Arc<Vec<u8>> = Arc::new((0..bytes).map(byte_at).collect());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let object = Arc::clone(&object);
            // A client that goes away ends its thread.
            std::thread::spawn(move || answer(&stream, &object).ok());
        }
    });
    Ok(address)
}

fn answer(mut stream: &TcpStream, object: &[u8]) -> Result<(), Failure> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    loop {
        let (mut line, mut range, mut is_head) = (String::new(), None, false);
        while line != "\r\n" {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            is_head |= line.starts_with("HEAD ");
            let lower = line.to_ascii_lowercase();
            range = lower.trim_end().strip_prefix("range: bytes=").map(str::to_owned).or(range);
        }
        let all = object.len();
        let (status, first, end) = match range.as_deref().and_then(|range| range.split_once('-')) {
            Some((first, last)) => ("206 Partial Content", first.parse()?, last.parse::<usize>()? + 1),
            None => ("200 OK", 0, all),
        };
        let length = end - first;
        let place = format!("Content-Range: bytes {first}-{}/{all}\r\nETag: \"one\"\r\n", end - 1);
        let head = format!("HTTP/1.1 {status}\r\n{place}Content-Length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes())?;
        if !is_head {
            stream.write_all(&object[first..end])?;
        }
    }
}
