//! Where agents on other hosts call back.
//!
//! The launcher listens at its own addresses from which the other hosts are reached, one socket for each, and nowhere
//! else. Callers prove that they hold the job's key before anything they say is read; who does not is forgotten after a
//! moment.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use farandole_transport::Key;

use super::job_spec::JobSpec;
use super::socket::Socket;
use super::{addresses, ssh};
use crate::channel::{ChannelPurpose, Polled, Received};
use crate::error::{Error, Result};
use crate::strangers;

/// A handshake that takes longer is dropped; the agent calls again.
const PATIENCE: Duration = Duration::from_secs(5);

/// The listening sockets and whoever is shaking hands.
#[derive(Debug, Default)]
pub(super) struct AgentListener {
    listeners: Vec<TcpListener>,
    /// By age.
    callers: BTreeMap<u64, (Polled<Socket>, Instant)>,
    next_id: u64,
}

/// Somebody who holds the key.
#[derive(Debug)]
pub(super) struct Caller {
    /// The host that it speaks for.
    pub(super) host: u32,
    /// The channel to it.
    pub(super) channel: Polled<Socket>,
    /// What it has said already.
    pub(super) first: Option<Vec<u8>>,
}

impl AgentListener {
    /// Listens where these hosts can reach us.
    pub(super) fn open(spec: &JobSpec, hosts: &[&str]) -> Result<AgentListener> {
        let mut at: Vec<IpAddr> = Vec::new();
        for host in hosts {
            at.extend(address_towards(spec, host));
        }
        at.sort();
        at.dedup();
        if at.is_empty() || !spec.network.is_empty() {
            at = addresses::offered(&spec.network);
        }
        let listeners = at.into_iter().map(listen_at).collect::<Result<Vec<TcpListener>>>()?;
        if listeners.is_empty() {
            let none =
                io::Error::new(io::ErrorKind::AddrNotAvailable, "this host has no address that others could call");
            return Err(Error::local("listening for agents", none));
        }
        Ok(AgentListener { listeners, ..AgentListener::default() })
    }

    /// Listens where one more host can reach us, unless the user has said where.
    pub(super) fn also_towards(&mut self, spec: &JobSpec, host: &str) -> Result<()> {
        if !spec.network.is_empty() {
            return Ok(());
        }
        let known: Vec<IpAddr> = self.addresses().iter().map(SocketAddr::ip).collect();
        for address in address_towards(spec, host).filter(|address| !known.contains(address)) {
            self.listeners.push(listen_at(address)?);
        }
        Ok(())
    }

    /// Where agents call.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// What to poll for reading.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.listeners.iter().map(AsFd::as_fd).chain(self.callers.values().map(|(caller, _)| caller.fd()))
    }

    /// Takes new callers in and gives out those that have proved themselves.
    pub(super) fn answer(&mut self, key: &Key, now: Instant) -> Vec<Caller> {
        for listener in &self.listeners {
            while let Ok((stream, _)) = listener.accept() {
                strangers::make_room(&mut self.callers, |_| true);
                if let Ok(caller) =
                    Socket::from_tcp(stream).and_then(|wire| Polled::accept(wire, key, ChannelPurpose::Agent))
                {
                    self.callers.insert(self.next_id, (caller, now));
                    self.next_id += 1;
                }
            }
        }
        let mut proved = Vec::new();
        for (id, (mut caller, since)) in std::mem::take(&mut self.callers) {
            // The handshake happens inside. An agent speaks as soon as it is over, so the first message may come with
            // its end.
            let heard = caller.receive();
            match (heard, caller.caller()) {
                (Ok(Received::NothingYet), Some(host)) => proved.push(Caller { host, channel: caller, first: None }),
                (Ok(Received::Message(first)), Some(host)) => {
                    proved.push(Caller { host, channel: caller, first: Some(first) });
                }
                (Ok(Received::NothingYet), None) if now.saturating_duration_since(since) < PATIENCE => {
                    self.callers.insert(id, (caller, since));
                }
                _ => {}
            }
        }
        proved
    }
}

fn listen_at(address: IpAddr) -> Result<TcpListener> {
    TcpListener::bind(SocketAddr::new(address, 0))
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .map_err(|error| Error::local(format!("listening at {address}"), error))
}

/// Our address on the way to a host, by asking the kernel's routes. Nothing is sent.
fn address_towards(spec: &JobSpec, host: &str) -> impl Iterator<Item = IpAddr> {
    let bare = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let (name, port) = ssh::resolve(&spec.ssh, host).unwrap_or_else(|| (bare.to_owned(), spec.ssh.port.unwrap_or(22)));
    let targets = (name.as_str(), port).to_socket_addrs().map(Vec::from_iter).unwrap_or_default();
    targets.into_iter().filter_map(|target| {
        let from: SocketAddr = match target {
            SocketAddr::V4(_) => (std::net::Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(from).ok()?;
        socket.connect(target).ok()?;
        Some(socket.local_addr().ok()?.ip())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::Channel;
    use farandole_transport::Countdown;
    use std::net::TcpStream;

    fn agent_listener() -> (AgentListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        (AgentListener { listeners: vec![listener], ..AgentListener::default() }, address)
    }

    #[test]
    fn a_crowd_of_strangers_gets_nothing_and_keeps_nobody_out() {
        use std::io::{Read, Write};
        let key = Key::random().unwrap();
        let (mut agent_listener, address) = agent_listener();
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut crowd: Vec<TcpStream> = (0..600)
            .map(|number: usize| {
                let mut stranger = TcpStream::connect(address).unwrap();
                match number % 3 {
                    0 => {}
                    1 => stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap(),
                    // The right words with the wrong key.
                    _ => {
                        let wire = Socket::from_tcp(stranger.try_clone().unwrap()).unwrap();
                        let mut wrong =
                            Polled::connect(wire, &Key::random().unwrap(), ChannelPurpose::Agent, 1).unwrap();
                        let _ = wrong.flush();
                        stranger.set_nonblocking(false).unwrap();
                    }
                }
                assert!(agent_listener.answer(&key, Instant::now()).is_empty(), "a stranger was let in");
                stranger
            })
            .collect();
        assert!(agent_listener.callers.len() <= strangers::MOST_STRANGERS);
        let agent_key = key.clone();
        let agent = std::thread::spawn(move || {
            let wire = Socket::from_tcp(TcpStream::connect(address).unwrap()).unwrap();
            Channel::connect(wire, &agent_key, ChannelPurpose::Agent, 3, &Countdown::until(deadline)).unwrap()
        });
        let let_in = || agent_listener.answer(&key, Instant::now()).pop();
        let caller = farandole_testing::wait_for("the agent", PATIENCE, let_in);
        assert_eq!(caller.host, 3);
        agent.join().unwrap();
        // After a while the last of the crowd is sent away as well; nobody has heard more than our version.
        assert!(agent_listener.answer(&key, Instant::now() + PATIENCE).is_empty());
        assert!(agent_listener.callers.is_empty());
        let mut heard = Vec::new();
        for stranger in &mut crowd {
            stranger.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let mut bytes = Vec::new();
            let _ = stranger.read_to_end(&mut bytes);
            heard.push(bytes.len());
        }
        assert!(heard.iter().all(|&bytes| bytes <= 8), "{heard:?}");
    }

    /// The confirmation of the key and the first message in one packet once cost an agent its connection.
    #[test]
    fn an_agent_that_speaks_at_once_is_heard() {
        let key = Key::random().unwrap();
        let (mut agent_listener, address) = agent_listener();
        let (agent_key, deadline) = (key.clone(), Instant::now() + PATIENCE);
        let agent = std::thread::spawn(move || {
            let wire = Socket::from_tcp(TcpStream::connect(address).unwrap()).unwrap();
            let deadline = Countdown::until(deadline);
            let mut channel = Channel::connect(wire, &agent_key, ChannelPurpose::Agent, 7, &deadline).unwrap();
            channel.send(b"here", &deadline).unwrap();
            channel
        });
        let caller = farandole_testing::wait_for("the agent", PATIENCE, || {
            // Seldom enough for what comes after the handshake to lie beside its end.
            farandole_testing::lapse("the launcher", Duration::from_millis(20));
            agent_listener.answer(&key, Instant::now()).pop()
        });
        assert_eq!((caller.host, caller.first), (7, Some(b"here".to_vec())));
        agent.join().unwrap();
    }
}
