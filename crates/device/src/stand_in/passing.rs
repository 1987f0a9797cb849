//! Passes files in memory between processes, for the device that stands in for others: [`serve`] and [`fetch`].
//!
//! A driver opens an allocation of another process whatever its PID namespace. Files do not have names that work in
//! every namespace, so each process passes their descriptors (SCM_RIGHTS) at an abstract Unix socket, whose name
//! follows from its identity. A request is the number of the allocation; the answer is one byte with the descriptor.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use farandole_transport::fds::{recv_fds, send_fds};
use farandole_transport::{Countdown, ProcessId};

/// Limit for one request. The server only copies a descriptor, so a longer wait means that its process is stopped.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves the files of this process until it exits. `find` duplicates the file of an allocation.
pub(super) fn serve(find: impl Fn(u64) -> Option<OwnedFd> + Send + 'static) -> io::Result<()> {
    let listener = UnixListener::bind_addr(&address_of(&ProcessId::own())?)?;
    std::thread::Builder::new().name("stand-in-files".to_owned()).spawn(move || {
        for mut client in listener.incoming().flatten() {
            // A client that does not get an answer reports that itself.
            let _ = answer(&mut client, &find);
        }
    })?;
    Ok(())
}

/// The file of an allocation of another process.
pub(super) fn fetch(owner: &ProcessId, allocation: u64) -> io::Result<OwnedFd> {
    let mut server = UnixStream::connect_addr(&address_of(owner)?)?;
    server.write_all(&allocation.to_le_bytes())?;
    server.set_nonblocking(true)?;
    let passed = recv_fds(&server, &mut [0], &Countdown::new(PATIENCE), || Ok(())).map_err(io::Error::other)?;
    passed.into_iter().next().ok_or_else(|| io::Error::other("the process has freed the allocation"))
}

fn answer(client: &mut UnixStream, find: &impl Fn(u64) -> Option<OwnedFd>) -> io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    let mut number = [0; 8];
    client.read_exact(&mut number)?;
    let file = find(u64::from_le_bytes(number));
    let files: Vec<_> = file.iter().map(AsFd::as_fd).collect();
    send_fds(&*client, &[0], &files, &Countdown::new(PATIENCE)).map_err(io::Error::other)
}

fn address_of(process: &ProcessId) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("farandole-stand-in-{}", process.unique_name()))
}
