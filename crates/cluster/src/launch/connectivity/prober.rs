//! Answers probes of other hosts, and probes them.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use farandole_transport::{Countdown, Key, Waiter};

use super::{Attempt, HostProbe};
use crate::channel::{Channel, ChannelFault, ChannelPurpose};
use crate::error::{Error, Result};
use crate::launch::socket::Socket;
use crate::strangers::Strangers;

/// The time limit of one probe. A path across the world answers in a third of a second; a firewall that swallows
/// packets never does.
const PATIENCE: Duration = Duration::from_secs(3);

/// A connection attempt needs some time, also when the countdown ends just now: zero is refused.
const LEAST: Duration = Duration::from_millis(1);

/// Answers probes of a host's addresses as long as it lives.
#[derive(Debug)]
pub(crate) struct ProbeListener {
    addresses: Vec<SocketAddr>,
    stop: farandole_transport::Bell,
    thread: Option<std::thread::JoinHandle<()>>,
    closing: Arc<std::sync::atomic::AtomicBool>,
}

impl ProbeListener {
    /// Listens at each of these addresses on behalf of a host. An address that no longer exists is skipped.
    pub(crate) fn open(at: &[IpAddr], host: u32, key: &Key) -> Result<ProbeListener> {
        let waiter = Waiter::new().map_err(|error| Error::local("listening for probes", io::Error::other(error)))?;
        let mut listeners = Vec::new();
        for &address in at {
            let Ok(listener) = TcpListener::bind(SocketAddr::new(address, 0)) else { continue };
            listener.set_nonblocking(true).map_err(|error| Error::local("listening for probes", error))?;
            waiter.watch(&listener).map_err(|error| Error::local("listening for probes", io::Error::other(error)))?;
            listeners.push(listener);
        }
        let addresses = listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect();
        let (stop, key) = (waiter.bell(), key.clone());
        let closing = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let seen = Arc::clone(&closing);
        let thread = std::thread::Builder::new()
            .name("farandole-probes".into())
            .spawn(move || {
                let strangers = Strangers::default();
                while !seen.load(Ordering::Acquire) {
                    for listener in &listeners {
                        while let Ok((stream, _)) = listener.accept() {
                            answer(stream, host, &key, &strangers);
                        }
                    }
                    let _ = waiter.wait(Duration::from_secs(1));
                }
            })
            .map_err(|error| Error::local("starting a thread", error))?;
        Ok(ProbeListener { addresses, stop, thread: Some(thread), closing })
    }

    /// The addresses that it listens at.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

impl Drop for ProbeListener {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Release);
        self.stop.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Answers one probe on its own thread, because the other side may be slow.
fn answer(stream: TcpStream, host: u32, key: &Key, strangers: &Strangers) {
    let Ok(stranger) = strangers.enter(&stream) else { return };
    let key = key.clone();
    let answering = move || {
        let say_who = || -> io::Result<()> {
            stream.set_nonblocking(false)?;
            let deadline = Countdown::new(PATIENCE);
            let mut channel = Channel::accept(Socket::from_tcp(stream)?, &key, ChannelPurpose::Probe, &deadline)?;
            channel.send(&host.to_le_bytes(), &deadline)
        };
        // A stranger, or a host that stopped waiting: the answer is not needed.
        let _ = say_who();
        drop(stranger);
    };
    // Without a thread, the connection is closed.
    let _ = std::thread::Builder::new().name("farandole-probe".into()).spawn(answering);
}

/// Runs all probes, many at once, and returns the results in the order of the probes.
pub(crate) fn probe_all(probes: &[HostProbe], key: &Key) -> Vec<Attempt> {
    /// So many threads probe; a job of a thousand hosts is through in a few rounds of patience at worst.
    const PROBERS: usize = 64;
    let next = AtomicUsize::new(0);
    let mut attempts: Vec<(usize, Attempt)> = std::thread::scope(|scope| {
        let prober = || {
            let mut mine = Vec::new();
            while let Some((index, probe)) = {
                let index = next.fetch_add(1, Ordering::Relaxed);
                probes.get(index).map(|probe| (index, probe))
            } {
                let began = Instant::now();
                let outcome = probe_once(probe, key).map(|()| began.elapsed().as_micros() as u64);
                mine.push((index, Attempt { probe: probe.clone(), outcome }));
            }
            mine
        };
        let probers: Vec<_> = (0..PROBERS.min(probes.len())).map(|_| scope.spawn(prober)).collect();
        probers.into_iter().flat_map(|prober| prober.join().unwrap_or_default()).collect()
    });
    attempts.sort_by_key(|(index, _)| *index);
    attempts.into_iter().map(|(_, attempt)| attempt).collect()
}

fn probe_once(probe: &HostProbe, key: &Key) -> std::result::Result<(), String> {
    let deadline = Countdown::new(PATIENCE);
    let once = || -> io::Result<Option<Vec<u8>>> {
        let stream = Socket::from_tcp(TcpStream::connect_timeout(&probe.address, deadline.left().max(LEAST))?)?;
        let mut channel = Channel::connect(stream, key, ChannelPurpose::Probe, probe.host, &deadline)?;
        channel.receive(&deadline)
    };
    // The kernel's limit for connecting may have passed while this process was stopped. Then the countdown has time
    // left.
    let reached = loop {
        match once() {
            Err(error) if error.kind() == io::ErrorKind::TimedOut && !deadline.is_over() => {}
            outcome => break outcome,
        }
    };
    match reached {
        Ok(Some(host)) if host == probe.host.to_le_bytes() => Ok(()),
        Ok(_) => Err("another host of this job is there".to_owned()),
        Err(error) => Err(match ChannelFault::of(&error) {
            Some(_) => "something else is there".to_owned(),
            None => error.to_string(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strangers::MOST_STRANGERS;

    #[test]
    fn silent_strangers_do_not_keep_a_host_from_its_probe() {
        let key = Key::random().unwrap();
        let listener = ProbeListener::open(&["127.0.0.1".parse().unwrap()], 3, &key).unwrap();
        let address = listener.addresses()[0];
        // They are accepted before the probe, which connects last.
        let _crowd: Vec<TcpStream> = (0..MOST_STRANGERS + 8).map(|_| TcpStream::connect(address).unwrap()).collect();
        let probe = HostProbe { host: 3, address };
        assert_eq!(probe_once(&probe, &key), Ok(()));
    }

    #[test]
    fn the_right_host_is_told_from_others() {
        let key = Key::random().unwrap();
        let probe_addresses =
            ProbeListener::open(&["127.0.0.1".parse().unwrap(), "::1".parse().unwrap()], 3, &key).unwrap();
        let stranger = ProbeListener::open(&["127.0.0.1".parse().unwrap()], 3, &Key::random().unwrap()).unwrap();
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let probe = |host, address: SocketAddr| HostProbe { host, address };
        let attempts = probe_all(
            &[
                probe(3, probe_addresses.addresses()[0]),
                probe(4, probe_addresses.addresses()[0]),
                probe(3, stranger.addresses()[0]),
                probe(3, nobody),
            ],
            &key,
        );
        let outcomes: Vec<_> = attempts.into_iter().map(|attempt| attempt.outcome).collect();
        assert!(outcomes[0].is_ok());
        assert_eq!(outcomes[1], Err("another host of this job is there".to_owned()));
        assert!(outcomes[2].is_err() && outcomes[3].is_err(), "{outcomes:?}");
    }
}
