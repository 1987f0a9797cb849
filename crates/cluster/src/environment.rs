//! What a launcher has left for this process in its environment.
//!
//! | variable | meaning |
//! |---|---|
//! | `FARANDOLE_RANK` | this process's rank, from 0 |
//! | `FARANDOLE_SIZE` | how many ranks there are |
//! | `FARANDOLE_RENDEZVOUS` | where they meet: `unix:/path`, `unix:@name` or `tcp:host:port` |
//! | `FARANDOLE_KEY_FD` | an open descriptor from which the job's key can be read, as 64 hexadecimal digits |
//! | `FARANDOLE_KEY` | the key itself, for launchers that cannot pass descriptors on |
//! | `FARANDOLE_HOST` | which host this is, where its name does not say so (default: machine and boot identity) |
//!
//! With none of them set the process is a world of its own, so that a script runs unchanged without a launcher. With some of them
//! set the others must be, too: half a launch is a mistake, and running alone would hide it. The key is never on a command
//! line, where every user of the machine could read it.

use std::env;
use std::fs;
use std::io::Read;
use std::str::FromStr;

use farandole_plan::Rank;
use farandole_transport::Key;

use crate::error::{Error, Result};
use crate::rendezvous::{Address, Rendezvous};

/// The variable that holds the rank.
pub const RANK: &str = "FARANDOLE_RANK";
/// The variable that holds the number of ranks.
pub const SIZE: &str = "FARANDOLE_SIZE";
/// The variable that says where ranks meet.
pub const RENDEZVOUS: &str = "FARANDOLE_RENDEZVOUS";
/// The variable that names the descriptor with the job's key.
pub const KEY_FD: &str = "FARANDOLE_KEY_FD";
/// The variable that holds the job's key.
pub const KEY: &str = "FARANDOLE_KEY";
/// The variable that names the host.
pub const HOST: &str = "FARANDOLE_HOST";

/// Who this process is.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Its rank.
    pub rank: Rank,
    /// How many ranks there are.
    pub size: usize,
    /// Where they meet; `None` in a world of one.
    pub meeting: Option<Meeting>,
    /// Identity of the host: ranks with equal ones share memory.
    pub host: String,
}

/// Where the ranks of a job meet, and what proves that one belongs to it.
#[derive(Clone, Debug)]
pub struct Meeting {
    /// The place.
    pub address: Address,
    /// The proof.
    pub key: Key,
}

impl Environment {
    /// Reads the environment of this process.
    pub fn from_process() -> Result<Environment> {
        Environment::from_lookup(|variable| env::var(variable).ok())
    }

    /// Reads an environment that is given as a function.
    pub fn from_lookup(lookup: impl Fn(&'static str) -> Option<String>) -> Result<Environment> {
        let host = lookup(HOST).unwrap_or_else(host_identity);
        if [RANK, SIZE, RENDEZVOUS].into_iter().all(|variable| lookup(variable).is_none()) {
            return Ok(Environment { rank: Rank(0), size: 1, meeting: None, host });
        }
        let size: usize = parse(SIZE, &required(&lookup, SIZE)?, "a number of ranks")?;
        let rank: u32 = parse(RANK, &required(&lookup, RANK)?, "a rank")?;
        if size == 0 || rank as usize >= size {
            return Err(wrong(RANK, format!("there is no rank {rank} among {size}; ranks count from 0")));
        }
        if size == 1 && lookup(RENDEZVOUS).is_none() {
            return Ok(Environment { rank: Rank(0), size, meeting: None, host });
        }
        let address = required(&lookup, RENDEZVOUS)?.parse().map_err(|problem| wrong(RENDEZVOUS, problem))?;
        let key = read_key(&lookup)?;
        Ok(Environment { rank: Rank(rank), size, meeting: Some(Meeting { address, key }), host })
    }

    /// The way to the meeting; `None` in a world of one.
    pub fn rendezvous(&self) -> Option<Rendezvous> {
        let Meeting { address, key } = self.meeting.clone()?;
        Some(Rendezvous::new(address, self.size, key))
    }
}

fn required(lookup: &impl Fn(&'static str) -> Option<String>, variable: &'static str) -> Result<String> {
    lookup(variable).ok_or_else(|| {
        wrong(variable, "is not set, though other FARANDOLE_ variables are: a launcher sets all of them".to_string())
    })
}

fn parse<T: FromStr>(variable: &'static str, text: &str, what: &str) -> Result<T> {
    text.trim().parse().map_err(|_| wrong(variable, format!("'{text}' is not {what}")))
}

fn read_key(lookup: &impl Fn(&'static str) -> Option<String>) -> Result<Key> {
    if let Some(text) = lookup(KEY_FD) {
        let number: u32 = parse(KEY_FD, &text, "the number of a descriptor")?;
        // Opening it anew, instead of taking it over, leaves it where it is: the process may initialise again.
        let mut key = String::new();
        fs::File::open(format!("/proc/self/fd/{number}"))
            .and_then(|file| file.take(128).read_to_string(&mut key))
            .map_err(|error| wrong(KEY_FD, format!("descriptor {number} cannot be read: {error}")))?;
        return key.trim().parse().map_err(|not_a_key| wrong(KEY_FD, format!("{not_a_key}")));
    }
    let text = lookup(KEY).ok_or_else(|| wrong(KEY, format!("neither {KEY_FD} nor {KEY} is set")))?;
    text.trim().parse().map_err(|not_a_key| wrong(KEY, format!("{not_a_key}")))
}

fn wrong(variable: &'static str, problem: String) -> Error {
    Error::Environment { variable, problem }
}

/// What two processes have in common exactly if they run on one machine since the same boot, in one network: the kernel's boot
/// identity, the host's name and the network namespace.
pub fn host_identity() -> String {
    let read = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_string()).unwrap_or_default();
    let network = fs::read_link("/proc/self/ns/net").map(|link| link.display().to_string()).unwrap_or_default();
    let name = read("/proc/sys/kernel/hostname");
    format!("{name}/{}/{network}", read("/proc/sys/kernel/random/boot_id"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::io::Write;
    use std::os::fd::AsRawFd;

    fn read(variables: &[(&'static str, &str)]) -> Result<Environment> {
        let map: HashMap<&str, String> = variables.iter().map(|(name, value)| (*name, value.to_string())).collect();
        Environment::from_lookup(|variable| map.get(variable).cloned())
    }

    #[test]
    fn nothing_set_is_a_world_of_one() {
        let alone = read(&[]).unwrap();
        assert_eq!((alone.rank, alone.size), (Rank(0), 1));
        assert!(alone.rendezvous().is_none());
        assert_eq!(alone.host, host_identity());
    }

    #[test]
    fn a_launched_rank_knows_everything() {
        let key = Key::random().unwrap();
        let hex = key.to_hex();
        let rank = read(&[(RANK, "2"), (SIZE, "4"), (RENDEZVOUS, "unix:@m"), (KEY, &hex), (HOST, "h1")]).unwrap();
        assert_eq!((rank.rank, rank.size, rank.host.as_str()), (Rank(2), 4, "h1"));
        let meeting = rank.meeting.unwrap();
        assert_eq!(meeting.address, Address::UnixAbstract("m".into()));
        assert_eq!(meeting.key, key);
    }

    #[test]
    fn the_key_may_come_through_a_descriptor_and_be_read_twice() {
        let key = Key::random().unwrap();
        let file = rustix::fs::memfd_create("key", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = fs::File::from(file);
        writeln!(file, "{}", key.to_hex()).unwrap();
        let number = file.as_raw_fd().to_string();
        for _ in 0..2 {
            let rank = read(&[(RANK, "0"), (SIZE, "2"), (RENDEZVOUS, "tcp:h:1"), (KEY_FD, &number)]).unwrap();
            assert_eq!(rank.meeting.unwrap().key, key);
        }
    }

    #[test]
    fn half_a_launch_is_a_mistake_that_names_the_variable() {
        let hex = "0".repeat(64);
        for (variables, named) in [
            (&[(RANK, "0")][..], SIZE),
            (&[(SIZE, "2")], RANK),
            (&[(RENDEZVOUS, "unix:@m")], SIZE),
            (&[(RANK, "2"), (SIZE, "2")], RANK),
            (&[(RANK, "x"), (SIZE, "2")], RANK),
            (&[(RANK, "0"), (SIZE, "-1")], SIZE),
            (&[(RANK, "0"), (SIZE, "2")], RENDEZVOUS),
            (&[(RANK, "0"), (SIZE, "2"), (RENDEZVOUS, "nowhere")], RENDEZVOUS),
            (&[(RANK, "0"), (SIZE, "2"), (RENDEZVOUS, "unix:@m")], KEY),
            (&[(RANK, "0"), (SIZE, "2"), (RENDEZVOUS, "unix:@m"), (KEY, &hex[1..])], KEY),
            (&[(RANK, "0"), (SIZE, "2"), (RENDEZVOUS, "unix:@m"), (KEY_FD, "987654")], KEY_FD),
        ] {
            match read(variables) {
                Err(Error::Environment { variable, .. }) => assert_eq!(variable, named, "{variables:?}"),
                other => panic!("{variables:?}: {other:?}"),
            }
        }
    }
}
