//! What a rank needs to join its job: the key, the rendezvous, and an address to listen at.
//!
//! [`Environment::open`] makes it from what the environment says. Rank 0 also hosts the rendezvous, unless a launcher
//! does. The value must live as long as the rank's world: dropping rank 0's closes the rendezvous, and other ranks may
//! not have arrived yet.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use farandole_plan::Rank;
use farandole_transport::{Countdown, JobId, Key};

use super::local_key::{self, KeyServer};
use super::route::{self, Seen};
use super::{ADDRESS, Environment, RENDEZVOUS, RendezvousPoint};
use crate::error::{Error, Result};
use crate::live::{self, JobState, JobView, LiveEndpoint};
use crate::rendezvous::{Address, Rendezvous, Server};

/// A name that cannot be looked up is tried again after this time: often enough for a person, seldom enough for a name
/// server.
const LOOK_UP_AGAIN: Duration = Duration::from_millis(500);

/// Live views show so many characters of the command: a line of a screen.
const MOST_COMMAND_CHARS: usize = 200;

/// Where this rank meets the others.
#[derive(Debug)]
pub struct RendezvousAccess {
    /// What proves that a process belongs to the job.
    pub key: Key,
    /// Which job that is; other jobs may have the same key.
    pub job: JobId,
    /// The way to the meeting; `None` in a world of one.
    pub rendezvous: Option<Rendezvous>,
    /// Where this rank listens for its peers: at the addresses at which they reach it, loopback if they are all on this
    /// host.
    pub listen_at: Vec<SocketAddr>,
    /// What rank 0 hosts.
    _hosted: Option<RendezvousHost>,
}

/// The meeting of a job that has no launcher of ours.
#[derive(Debug)]
struct RendezvousHost {
    _server: Server,
    _key_server: Option<KeyServer>,
    /// Where the job can be watched.
    _stand: Option<LiveEndpoint>,
}

impl Environment {
    /// Opens the meeting, if that is this rank's part, or finds the way to it before the deadline.
    pub fn open(&self, deadline: Instant) -> Result<RendezvousAccess> {
        match &self.rendezvous {
            None => Ok(self.access(new_key()?, None, None)),
            Some(RendezvousPoint::AtLauncher { address, key }) => {
                Ok(self.access(key.clone(), Some(address.clone()), None))
            }
            Some(RendezvousPoint::OnThisHost { key_socket }) if self.rank == Rank(0) => self.host_here(key_socket),
            Some(RendezvousPoint::OnThisHost { key_socket }) => {
                let key = local_key::fetch(key_socket, self.rank, deadline)?;
                let address = local_address(&key);
                Ok(self.access(key, Some(address), None))
            }
            Some(RendezvousPoint::AtRankZero { address, key }) if self.rank == Rank(0) => {
                self.host_at(address, key, deadline)
            }
            Some(RendezvousPoint::AtRankZero { address, key }) => self.visit_at(address, key, deadline),
        }
    }

    fn host_here(&self, key_socket: &str) -> Result<RendezvousAccess> {
        let key = new_key()?;
        let (state, endpoint) = self.show();
        let server = Server::serve(&local_address(&key), self.job(&key), self.size, &key, state)?;
        // The rendezvous is open before the key socket: a rank that has the key can connect at once.
        let key_server = KeyServer::start(key_socket, &key, self.size - 1)?;
        let address = server.address().clone();
        let hosted = RendezvousHost { _server: server, _key_server: Some(key_server), _stand: endpoint };
        Ok(self.access(key, Some(address), Some(hosted)))
    }

    fn host_at(&self, named: &Address, key: &Key, deadline: Instant) -> Result<RendezvousAccess> {
        let cure = |error| {
            let doing = format!(
                "opening the meeting at {named} in rank 0 on this host (another place: {RENDEZVOUS}=tcp:HOST:PORT, another \
                 address of this host: {ADDRESS})"
            );
            Error::local(doing, error)
        };
        let mut at = look_up(named, deadline).map_err(cure)?.address();
        if let Some(&address) = self.addresses.first() {
            at.set_ip(address);
        }
        let (state, endpoint) = self.show();
        let server = Server::serve(&Address::Tcp(at.to_string()), self.job(key), self.size, key, state);
        let server = server.map_err(|error| match error {
            Error::Local { source, .. } => cure(source),
            other => other,
        })?;
        let address = server.address().clone();
        let hosted = RendezvousHost { _server: server, _key_server: None, _stand: endpoint };
        let mut access = self.access(key.clone(), Some(address), Some(hosted));
        if self.addresses.is_empty() {
            at.set_port(0);
            access.listen_at = vec![at];
        }
        Ok(access)
    }

    /// Opens the endpoint of live views in rank 0. Nothing about that can fail the job; what was asked
    /// for and cannot be had is told.
    fn show(&self) -> (Arc<JobState>, Option<LiveEndpoint>) {
        let command: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
        let job = JobView {
            pid: std::process::id(),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            launcher: self.launcher.to_string(),
            command: command.join(" ").chars().take(MOST_COMMAND_CHARS).collect(),
            size: self.size,
            ..JobView::default()
        };
        let state = Arc::new(JobState::new(job, &[]));
        let wanted = farandole_settings::METRICS.in_environment();
        let address = wanted.map(|text| live::parse_address(&text)).transpose();
        let told = |why: &str| log::warn!("rank {} shows no metrics ({}): {why}", self.rank, live::METRICS);
        let address = address.unwrap_or_else(|why| {
            told(&why);
            None
        });
        let endpoint = LiveEndpoint::open(Arc::clone(&state), address).or_else(|error| {
            told(&error.to_string());
            LiveEndpoint::open(Arc::clone(&state), None)
        });
        (state, endpoint.ok())
    }

    fn visit_at(&self, named: &Address, key: &Key, deadline: Instant) -> Result<RendezvousAccess> {
        let failed = |error| Error::local(format!("looking for the way to {named} (or set {ADDRESS})"), error);
        let seen = look_up(named, deadline).map_err(failed)?;
        // A name may have several addresses, of which rank 0 has taken one; the visit tries them all.
        let place = match &seen {
            Seen::AsNamed(_) => named.clone(),
            Seen::Here(at) => Address::Tcp(at.to_string()),
        };
        let mut access = self.access(key.clone(), Some(place), None);
        if self.addresses.is_empty() {
            access.listen_at = vec![route::towards(seen.address()).map_err(failed)?];
        }
        Ok(access)
    }

    /// The job as this rank knows it before it meets anybody. A launcher of ours makes a key for each job; rank 0 may
    /// have one from the user, who has others.
    fn job(&self, key: &Key) -> JobId {
        match self.rendezvous {
            None | Some(RendezvousPoint::AtLauncher { .. }) => JobId::of_key(key),
            Some(RendezvousPoint::AtRankZero { .. } | RendezvousPoint::OnThisHost { .. }) => {
                self.job.unwrap_or_else(|| JobId::of_key(key))
            }
        }
    }

    fn access(&self, key: Key, at: Option<Address>, hosted: Option<RendezvousHost>) -> RendezvousAccess {
        let job = self.job(&key);
        let rendezvous = at.map(|address| {
            let way = Rendezvous::new(address, self.size, key.clone()).of_job(job).on_host(self.host.clone());
            match self.rendezvous {
                Some(RendezvousPoint::AtRankZero { .. } | RendezvousPoint::OnThisHost { .. }) => way.kept_by(Rank(0)),
                _ => way,
            }
        });
        let own = match self.addresses.as_slice() {
            [] => &[IpAddr::V4(Ipv4Addr::LOCALHOST)],
            given => given,
        };
        let listen_at = own.iter().map(|&address| SocketAddr::new(address, 0)).collect();
        RendezvousAccess { key, job, rendezvous, listen_at, _hosted: hosted }
    }
}

/// The meeting of a host has a name that only holders of the key can compute. So it never collides with the one
/// that the same ranks had before.
fn local_address(key: &Key) -> Address {
    let hash = blake3::derive_key("farandole 2026 meeting behind the door", key.to_hex().as_bytes());
    Address::UnixAbstract(format!("farandole-{}", &blake3::Hash::from(hash).to_hex()[..24]))
}

/// The address of a meeting in rank 0. Where hosts are started together with the job their names may not be known at
/// once.
fn look_up(meeting: &Address, deadline: Instant) -> io::Result<Seen> {
    let Address::Tcp(host_and_port) = meeting else { unreachable!("invariant: rank 0 hosts meetings by TCP only") };
    let deadline = Countdown::until(deadline);
    loop {
        match route::meeting_at(host_and_port) {
            Err(_) if deadline.left() > LOOK_UP_AGAIN => std::thread::sleep(LOOK_UP_AGAIN),
            found => return found,
        }
    }
}

fn new_key() -> Result<Key> {
    Key::random().map_err(|error| Error::local("making a job key", io::Error::other(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(rank: u32, rendezvous: RendezvousPoint) -> Environment {
        let mut environment = Environment::from_lookup(|_| None).unwrap();
        (environment.rank, environment.size, environment.rendezvous) = (Rank(rank), 2, Some(rendezvous));
        environment
    }

    /// Both ranks as threads: what each has brought, and where it listens.
    fn meet(rendezvous: &RendezvousPoint) -> Vec<(Vec<Vec<u8>>, Vec<SocketAddr>)> {
        let visit = |index: u32| {
            let environment = rank(index, rendezvous.clone());
            move || {
                let deadline = Instant::now() + Duration::from_secs(20);
                let access = environment.open(deadline).unwrap();
                let rendezvous = access.rendezvous.as_ref().unwrap();
                let blobs = rendezvous.exchange(Rank(index), &[index as u8], deadline).unwrap();
                // Rank 0 hosts: it stays until the other has been served.
                rendezvous.exchange(Rank(index), &[], deadline).unwrap();
                (blobs, access.listen_at)
            }
        };
        let ranks = [1, 0].map(|index| std::thread::spawn(visit(index)));
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    }

    #[test]
    fn ranks_of_one_host_meet_without_being_given_a_key() {
        let key_socket = format!("farandole-access-{}", std::process::id());
        for (blobs, listen_at) in meet(&RendezvousPoint::OnThisHost { key_socket }) {
            assert_eq!(blobs, [vec![0], vec![1]]);
            assert!(listen_at.iter().all(|address| address.ip().is_loopback()));
        }
    }

    #[test]
    fn ranks_meet_at_an_address_in_rank_zero() {
        for ip in ["127.0.0.1", "[::1]"] {
            let free = std::net::TcpListener::bind(format!("{ip}:0")).unwrap().local_addr().unwrap();
            let rendezvous =
                RendezvousPoint::AtRankZero { address: Address::Tcp(free.to_string()), key: new_key().unwrap() };
            for (blobs, listen_at) in meet(&rendezvous) {
                assert_eq!(blobs, [vec![0], vec![1]]);
                assert_eq!(listen_at, [SocketAddr::new(free.ip(), 0)]);
            }
        }
    }

    #[test]
    fn a_rank_of_another_job_with_the_same_key_and_address_is_turned_away() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let rendezvous =
            RendezvousPoint::AtRankZero { address: Address::Tcp(free.to_string()), key: new_key().unwrap() };
        let rank_of = |index: u32, job: &str| {
            let mut environment = rank(index, rendezvous.clone());
            environment.job = Some(JobId::named(job));
            environment
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        let host = rank_of(0, "Slurm step 7.0").open(deadline).unwrap();
        let stranger = rank_of(1, "Slurm step 8.0").open(deadline).unwrap();
        let error = stranger.rendezvous.unwrap().exchange(Rank(1), b"stranger", deadline).unwrap_err().to_string();
        assert!(error.contains("this is job 'Slurm step 7.0'"), "{error}");
        assert!(error.contains("rank 1 belongs to job 'Slurm step 8.0'"), "{error}");
        let own = rank_of(1, "Slurm step 7.0").open(deadline).unwrap();
        assert_eq!((own.job, host.job), (JobId::named("Slurm step 7.0"), JobId::named("Slurm step 7.0")));
        let second = std::thread::spawn(move || own.rendezvous.unwrap().exchange(Rank(1), b"one", deadline).unwrap());
        let blobs = host.rendezvous.as_ref().unwrap().exchange(Rank(0), b"zero", deadline).unwrap();
        assert_eq!(blobs, [b"zero".to_vec(), b"one".to_vec()], "the rank could still arrive");
        assert_eq!(second.join().unwrap(), blobs);
    }

    #[test]
    fn a_name_that_nobody_knows_is_looked_up_until_the_deadline() {
        let address = Address::Tcp("no-such-host.invalid:5000".into());
        for index in [0, 1] {
            let environment =
                rank(index, RendezvousPoint::AtRankZero { address: address.clone(), key: new_key().unwrap() });
            let error = environment.open(Instant::now() + Duration::from_millis(700)).unwrap_err().to_string();
            assert!(error.contains("tcp:no-such-host.invalid:5000") && error.contains(ADDRESS), "{error}");
        }
    }

    #[test]
    fn an_address_that_is_not_of_this_host_is_refused_with_what_to_do() {
        let address = Address::Tcp("203.0.113.77:5000".into());
        let environment = rank(0, RendezvousPoint::AtRankZero { address, key: new_key().unwrap() });
        let error = environment.open(Instant::now() + Duration::from_secs(1)).unwrap_err().to_string();
        assert!(error.contains("tcp:203.0.113.77:5000") && error.contains(RENDEZVOUS), "{error}");
    }
}
