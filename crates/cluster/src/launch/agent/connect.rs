//! The way from an agent to its launcher.
//!
//! On the launcher's own host it is standard input itself. Elsewhere the agent calls the addresses that the launcher
//! has named, one after the other. An address that cannot be connected to is given up at once, so that a user hears of
//! it; one where somebody accepts but does not finish the handshake is tried again until time is up, because a crowd of
//! other connections may have pushed this one out of the launcher's queue.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use farandole_transport::{Countdown, Key};

use crate::channel::{Channel, ChannelPurpose, Polled};
use crate::error::{Error, Result};
use crate::launch::bootstrap::Bootstrap;
use crate::launch::socket::Socket;

/// Between two rounds of calls: long beside a handshake, short beside a start.
const PAUSE: Duration = Duration::from_millis(100);

/// The channel to the launcher. `None` if this is its own host and it has given the job up before this agent came to
/// speak: the launcher has said why, and a word of ours after its last line would only hide that.
pub(super) fn to_launcher(stdin: Socket, bootstrap: &Bootstrap, key: &Key) -> Result<Option<Polled<Socket>>> {
    let patience = Duration::from_millis(bootstrap.patience_ms);
    if !bootstrap.launcher.is_empty() {
        return call(&bootstrap.launcher, bootstrap.host, key, patience).map(Some);
    }
    match shake(stdin, bootstrap.host, key, &Countdown::new(patience)) {
        Ok(channel) => Ok(Some(channel)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(Error::local("talking to the launcher", error)),
    }
}

/// Whether this is how the other end of a pair of sockets looks when its process is gone or has closed it.
fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

fn call(addresses: &[SocketAddr], host: u32, key: &Key, patience: Duration) -> Result<Polled<Socket>> {
    let deadline = Countdown::new(patience);
    // Addresses that swallow packets must not use up the time for the others.
    let share = (patience / (addresses.len() as u32 + 1)).max(PAUSE);
    let mut open: Vec<SocketAddr> = addresses.to_vec();
    let mut refused: Vec<String> = Vec::new();
    while !open.is_empty() {
        let mut still_open = Vec::new();
        for address in open {
            let wire = match TcpStream::connect_timeout(&address, share).and_then(Socket::from_tcp) {
                Ok(wire) => wire,
                // The kernel's limit may have passed while this process was stopped.
                Err(error) if error.kind() == io::ErrorKind::TimedOut && deadline.left() > share => {
                    still_open.push(address);
                    continue;
                }
                Err(error) => {
                    refused.push(format!("{address}: {error}"));
                    continue;
                }
            };
            match shake(wire, host, key, &deadline.at_most(share)) {
                Ok(channel) => return Ok(channel),
                Err(error) if deadline.left() <= PAUSE => refused.push(format!("{address}: {error}")),
                Err(_) => still_open.push(address),
            }
        }
        open = still_open;
        std::thread::sleep(PAUSE);
    }
    let why = format!("this host cannot reach the launcher: {}", refused.join("; "));
    Err(Error::local(why, io::Error::other("give an address that it can reach by --network-interface")))
}

fn shake(wire: Socket, host: u32, key: &Key, deadline: &Countdown) -> io::Result<Polled<Socket>> {
    Channel::connect(wire, key, ChannelPurpose::Agent, host, deadline).and_then(Channel::into_polled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    #[test]
    fn a_launcher_that_gave_up_before_the_handshake_is_no_failure_of_its_own_agent() {
        for bytes in [&b""[..], b"unread"] {
            let key = Key::random().unwrap();
            let bootstrap = Bootstrap {
                key: key.to_hex().to_string(),
                host: 0,
                hosts: 3,
                launcher: Vec::new(),
                silence_ms: 5_000,
                patience_ms: 20_000,
                network: Vec::new(),
            };
            let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
            // What the agent has sent and nobody has read makes a reset of the end.
            (&ours).write_all(bytes).unwrap();
            drop(theirs);
            let stdin = Socket::from(std::os::fd::OwnedFd::from(ours));
            assert!(to_launcher(stdin, &bootstrap, &key).unwrap().is_none());
        }
    }

    #[test]
    fn where_nobody_listens_is_said_at_once() {
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = call(&[nobody], 1, &Key::random().unwrap(), farandole_testing::NEVER).unwrap_err();
        assert!(error.to_string().contains(&format!("cannot reach the launcher: {nobody}")), "{error}");
    }

    #[test]
    fn a_caller_that_was_pushed_out_calls_again() {
        let key = Key::random().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, launcher_key) = (listener.local_addr().unwrap(), key.clone());
        let launcher = std::thread::spawn(move || {
            // Twice the connection is cut before anything is said.
            for _ in 0..2 {
                drop(listener.accept().unwrap());
            }
            let wire = Socket::from_tcp(listener.accept().unwrap().0).unwrap();
            Channel::accept(wire, &launcher_key, ChannelPurpose::Agent, &Countdown::new(Duration::from_secs(20)))
                .unwrap()
                .caller()
        });
        call(&[address], 5, &key, Duration::from_secs(20)).unwrap();
        assert_eq!(launcher.join().unwrap(), 5);
    }

    #[test]
    fn whoever_else_is_there_gets_no_key_and_no_patience() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let key = Key::random().unwrap();
        // Ends with the first connection that says so.
        const END: &[u8] = b"end";
        let other = std::thread::spawn(move || {
            let mut heard = Vec::new();
            while !heard.ends_with(END) {
                let mut stream = listener.accept().unwrap().0;
                let _ = stream.write_all(b"220 mail.example.com ESMTP\r\n");
                let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
                let _ = stream.read_to_end(&mut heard);
            }
            heard
        });
        assert!(call(&[address], 1, &key, Duration::from_secs(2)).is_err());
        TcpStream::connect(address).unwrap().write_all(END).unwrap();
        let heard = other.join().unwrap();
        let secret = key.to_hex();
        assert!(!heard.windows(8).any(|window| secret.as_bytes().windows(8).any(|part| part == window)));
    }
}
