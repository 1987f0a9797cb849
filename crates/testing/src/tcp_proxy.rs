//! A wire between a client and a server that fails on purpose: [`TcpProxy`].
//!
//! It passes on what clients send, and what the server answers until a fault strikes. Each connection meets the faults
//! that are set when it is made.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What a connection meets.
#[derive(Clone, Copy, Debug, Default)]
pub struct WireFaults {
    /// After so many bytes of answers the connection is closed.
    pub cut_after: Option<u64>,
    /// After so many bytes of answers nothing comes any more, and the connection stays open.
    pub silent_after: Option<u64>,
    /// Answers come no faster than so many bytes in a second.
    pub bytes_per_second: Option<u64>,
}

/// See the module's text.
#[derive(Debug)]
pub struct TcpProxy {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    server: String,
    /// The test sets them, the thread that accepts reads them.
    faults: Mutex<WireFaults>,
    /// How many connections were made, and how many bytes of answers were passed on. Tests read them.
    connections: AtomicU64,
    passed: AtomicU64,
}

impl TcpProxy {
    /// Passes everything on to an address, until the process ends.
    pub fn start(server: &str) -> TcpProxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            server: server.to_owned(),
            faults: Mutex::default(),
            connections: AtomicU64::new(0),
            passed: AtomicU64::new(0),
        });
        let of_thread = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                of_thread.connections.fetch_add(1, Ordering::Relaxed);
                let (shared, faults) = (Arc::clone(&of_thread), *of_thread.faults.lock().unwrap());
                std::thread::spawn(move || shared.pass(&client, faults));
            }
        });
        TcpProxy { port, shared }
    }

    /// Where clients connect to, on loopback.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What connections meet that are made from now on.
    pub fn set(&self, faults: WireFaults) {
        *self.shared.faults.lock().unwrap() = faults;
    }

    /// How many connections were made.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// How many bytes of answers were passed on.
    pub fn passed(&self) -> u64 {
        self.shared.passed.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn pass(&self, client: &TcpStream, faults: WireFaults) {
        // A server that does not run is a connection that ends at once.
        let Ok(server) = TcpStream::connect(&self.server) else { return };
        client.set_nodelay(true).unwrap();
        server.set_nodelay(true).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _ = std::io::copy(&mut &*client, &mut &server);
                let _ = server.shutdown(Shutdown::Both);
            });
            self.pass_answers(&server, client, faults);
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        });
    }

    fn pass_answers(&self, mut server: &TcpStream, mut client: &TcpStream, faults: WireFaults) {
        let began = Instant::now();
        let mut piece = vec![0; 64 << 10];
        let mut done = 0;
        let limit = faults.cut_after.into_iter().chain(faults.silent_after).min().unwrap_or(u64::MAX);
        while done < limit {
            // A slow wire passes on little at a time, so that something is always coming.
            let most = faults.bytes_per_second.map_or(piece.len(), |rate| piece.len().min(rate as usize / 50 + 1));
            let most = most.min(usize::try_from(limit - done).unwrap_or(usize::MAX));
            let Ok(count @ 1..) = server.read(&mut piece[..most]) else { return };
            done += count as u64;
            if let Some(rate) = faults.bytes_per_second {
                let due = Duration::from_secs_f64(done as f64 / rate as f64);
                std::thread::sleep(due.saturating_sub(began.elapsed()));
            }
            if client.write_all(&piece[..count]).is_err() {
                return;
            }
            self.passed.fetch_add(count as u64, Ordering::Relaxed);
        }
        if faults.silent_after.is_some() {
            // Until the client gives up; what it still sends has gone to the server.
            while server.read(&mut piece).is_ok_and(|count| count > 0) {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::at_least;

    /// Answers of so many bytes to whoever connects.
    fn server(bytes: usize) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                let _ = client.write_all(&vec![7; bytes]);
            }
        });
        address
    }

    fn received(proxy: &TcpProxy) -> usize {
        let mut client = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
        client.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let mut bytes = Vec::new();
        let _ = client.read_to_end(&mut bytes);
        bytes.len()
    }

    #[test]
    fn faults_strike_where_they_are_set() {
        let proxy = TcpProxy::start(&server(100_000));
        assert_eq!(received(&proxy), 100_000);
        proxy.set(WireFaults { cut_after: Some(70_001), ..WireFaults::default() });
        assert_eq!(received(&proxy), 70_001);
        proxy.set(WireFaults { silent_after: Some(5), ..WireFaults::default() });
        assert_eq!(received(&proxy), 5);
        proxy.set(WireFaults { bytes_per_second: Some(500_000), ..WireFaults::default() });
        assert_eq!(at_least(Duration::from_millis(150), || received(&proxy)), 100_000);
        assert_eq!((proxy.connections(), proxy.passed()), (4, 270_006));
    }
}
