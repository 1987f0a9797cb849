//! The first bytes that an agent gets, through its standard input: where the launcher is, and what proves it.
//!
//! ```text
//! "farandole agent\n" · u8 version · u32 length, little-endian · a Bootstrap
//! ```
//!
//! The bytes come from whoever started the process, through a pipe or a socket that nobody else has, or through ssh:
//! they are trusted, and they are the only way in which the job's key leaves the launcher.

use std::io::{self, Read};
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::message::{decode, encode};
use crate::channel::VERSION;

/// How a bootstrap begins, so that a person who starts an agent by hand is told what it is.
const GREETING: &[u8; 16] = b"farandole agent\n";

/// Longer than any bootstrap: some dozens of addresses and a key.
const MOST_BYTES: u32 = 64 << 10;

/// What an agent needs to find its launcher.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Bootstrap {
    /// The job's key, in hexadecimal digits.
    pub(crate) key: String,
    /// The host's place in the job.
    pub(crate) host: u32,
    /// Number of hosts in the job.
    pub(crate) hosts: u32,
    /// Where the launcher listens. None: standard input itself is the channel.
    pub(crate) launcher: Vec<SocketAddr>,
    /// Silence of the launcher longer than this is its death, in milliseconds; zero: never.
    pub(crate) silence_ms: u64,
    /// How long to try to reach the launcher, in milliseconds.
    pub(crate) patience_ms: u64,
    /// Which of the host's addresses may be offered: names of interfaces, addresses, networks; none: all.
    pub(crate) network: Vec<String>,
}

impl std::fmt::Debug for Bootstrap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key does not belong into any log.
        f.debug_struct("Bootstrap").field("host", &self.host).field("launcher", &self.launcher).finish_non_exhaustive()
    }
}

impl Bootstrap {
    /// The bytes for an agent's standard input.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let body = encode(self);
        let mut bytes = GREETING.to_vec();
        bytes.push(VERSION);
        bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }

    /// Reads exactly the bootstrap and nothing behind it.
    pub(crate) fn read(mut from: impl Read) -> io::Result<Bootstrap> {
        let mut head = [0; GREETING.len() + 5];
        from.read_exact(&mut head).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => garbled("this command is started by `farandole run`, not by hand"),
            _ => error,
        })?;
        let (greeting, rest) = head.split_at(GREETING.len());
        if greeting != GREETING {
            return Err(garbled("this command is started by `farandole run`, not by hand"));
        }
        if rest[0] != VERSION {
            return Err(garbled(&format!(
                "the launcher speaks version {} and this host has version {VERSION}: install the same farandole on all hosts",
                rest[0]
            )));
        }
        let length = u32::from_le_bytes([rest[1], rest[2], rest[3], rest[4]]);
        if length > MOST_BYTES {
            return Err(garbled("the launcher's first message is too long"));
        }
        let mut body = vec![0; length as usize];
        from.read_exact(&mut body)?;
        decode(&body).ok_or_else(|| garbled("the launcher's first message has another form"))
    }
}

fn garbled(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bootstrap() -> Bootstrap {
        Bootstrap {
            key: "ab".repeat(32),
            host: 2,
            hosts: 3,
            launcher: vec!["10.0.0.1:40000".parse().unwrap(), "[fd00::1]:40001".parse().unwrap()],
            silence_ms: 5000,
            patience_ms: 30_000,
            network: vec!["eth0".into()],
        }
    }

    #[test]
    fn a_bootstrap_is_read_to_its_end_and_no_further() {
        let mut bytes = bootstrap().to_bytes();
        bytes.extend_from_slice(b"next");
        let mut from = bytes.as_slice();
        assert_eq!(Bootstrap::read(&mut from).unwrap(), bootstrap());
        assert_eq!(from, b"next");
    }

    #[test]
    fn another_version_and_another_caller_are_told_what_is_wrong() {
        let mut other = bootstrap().to_bytes();
        other[GREETING.len()] = VERSION + 1;
        assert!(Bootstrap::read(other.as_slice()).unwrap_err().to_string().contains("install the same farandole"));
        assert!(Bootstrap::read(&b"hello, is anybody there?\n"[..]).unwrap_err().to_string().contains("not by hand"));
        assert!(Bootstrap::read(&b""[..]).unwrap_err().to_string().contains("not by hand"));
    }

    #[test]
    fn the_key_is_in_no_log() {
        assert!(!format!("{:?}", bootstrap()).contains("abab"));
    }
}
