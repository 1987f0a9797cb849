//! Whether every rank may read the memory of every other.
//!
//! That is found out once, at the first call that could use it: every rank shows a probe, tries to read those of all
//! others, and says whether it could. All ranks see the same answers, so all take the same path.

use farandole_transport::shm::cma::{Probe, SHOWN_BYTES, Shown};
use farandole_transport::{Peer, ProcessId};

use super::{Communicator, Descriptor};
use crate::error::Result;

impl Communicator {
    /// Whether parts of this size are read from where they lie, if every rank may read the memory of every other. Found
    /// out at the first call, in two operations that all ranks take to be `descriptor`.
    pub(super) fn may_read_peers(&mut self, descriptor: Descriptor) -> Result<bool> {
        if let Some(known) = self.reads_peers {
            return Ok(known);
        }
        let (probe, word) = (Probe::new(), descriptor.word());
        let number = self.next_operation()?;
        self.windows().begin(number, word, &probe.shown().to_bytes());
        self.gather(descriptor)?;
        let own = self.settings.single_copy_bytes < usize::MAX && self.all_probes_are_readable();
        let number = self.next_operation()?;
        self.windows().begin(number, word, &[u8::from(own)]);
        self.gather(descriptor)?;
        // Nobody reads the probe any more: all have answered.
        drop(probe);
        let windows = self.windows();
        let mut inline = [0; farandole_transport::shm::flags::INLINE_BYTES];
        let all = windows.peers().all(|local_rank| windows.small(local_rank, 1, &mut inline) == [1]);
        let reads = own && all;
        if !reads && self.settings.single_copy_bytes < usize::MAX {
            self.tell_why_peers_are_not_read();
        }
        self.reads_peers = Some(reads);
        Ok(reads)
    }

    /// One line of the group's first rank on this host.
    fn tell_why_peers_are_not_read(&mut self) {
        if self.windows().me() != 0 {
            return;
        }
        let own = ProcessId::own();
        let is_apart = |peer: &mut Peer| peer.process.is_some_and(|process| process.pid_seen_by(&own).is_none());
        let why = match self.mesh.peers_mut().any(is_apart) {
            true => "they are in different PID namespaces",
            false => "the kernel does not permit it (ptrace_scope, seccomp or user namespaces)",
        };
        log::info!("ranks of this host: cannot read each other's memory, {why}; long direct calls copy twice");
    }

    fn all_probes_are_readable(&mut self) -> bool {
        let windows = self.windows();
        windows.peers().all(|local_rank| {
            let mut inline = [0; farandole_transport::shm::flags::INLINE_BYTES];
            let shown = windows.small(local_rank, SHOWN_BYTES, &mut inline);
            Shown::from_bytes(shown.try_into().expect("as long as asked for")).is_readable()
        })
    }
}
