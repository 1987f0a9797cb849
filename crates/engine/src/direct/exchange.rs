//! Alltoall and allgather on one host, as far as parts are only copied.
//!
//! **Alltoall.** A rank knows how much it sends to each peer and gets from each, but not what passes between two
//! others, so ranks cannot choose one path by size. Instead each sender chooses for its own parts and says so when it
//! begins (`small::Parts`): short parts lie in its small slot, one hand-over; longer ones follow. When all have begun,
//! every rank knows what everybody has chosen. If nobody has long parts, the operation is over. If somebody has exposed
//! one, all long parts are read from where they lie (`single_copy`); otherwise they go through their sender's window,
//! tile by tile. The lengths lie in the slot in all cases and are compared before anything is read.
//!
//! **Allgather.** All ranks know all lengths, so they choose alike: long parts are read from where they lie.

use std::ops::Range;
use std::sync::Arc;

use farandole_plan::{Dtype, Span, algorithm};
use farandole_transport::Error as Cause;
use farandole_transport::shm::flags::INLINE_BYTES;
use farandole_transport::shm::{Windows, cma};

use super::small::Parts;
use super::{Communicator, Descriptor};
use crate::error::Result;
use crate::exec::reads::{GATHER_FACTOR, Part, Reads};
use crate::exec::{Buffers, Execution};

/// An alltoall of this rank.
pub(super) struct Exchange<'a> {
    pub(super) descriptor: Descriptor,
    pub(super) data: &'a [u8],
    /// The parts of `data`, by receiver.
    pub(super) send: &'a [Span],
    pub(super) received: &'a mut [u8],
    /// The places in `received`, by sender.
    pub(super) recv: &'a [Span],
    pub(super) dtype: Dtype,
}

impl Communicator {
    pub(super) fn exchange(&mut self, exchange: Exchange<'_>) -> Result<()> {
        let Exchange { descriptor, data, send, received, recv, dtype } = exchange;
        let (me, elem_bytes) = (self.rank().index(), dtype.size_bytes());
        let place = |span: Span| span.start as usize * elem_bytes..span.end() as usize * elem_bytes;
        let exposed_bytes = self.exposed_bytes(descriptor)?;
        let number = self.next_operation()?;
        let own = Parts::new(data, send, elem_bytes, self.chooser.hand_over_bytes(), exposed_bytes);
        let bytes = data.len().max(received.len());
        let mut senders = Vec::new();
        let mut wrong = None;
        let begin = |windows: &mut Windows| {
            let fill = |slot: &mut [u8]| own.fill(slot, data, send, elem_bytes, me);
            windows.begin_with_note(number, descriptor.word(), &own.note(), fill);
        };
        let mut read = |windows: &Windows| {
            for (peer, &span) in recv.iter().enumerate().filter(|(peer, _)| *peer != me) {
                let local_rank = windows.local_rank(peer.into());
                let parts = Parts::of(windows, local_rank);
                let (len, target) = (parts.len(windows, local_rank), place(span));
                if len != target.len() as u64 {
                    wrong.get_or_insert((peer, len, target.len()));
                } else if parts.long {
                    let (pid, address) = (parts.pid, parts.start(windows, local_rank));
                    senders.push((parts, Part { peer: peer.into(), pid, address, target }));
                } else {
                    parts.copy(windows, local_rank, &mut received[target]);
                }
            }
        };
        if own.long {
            begin(self.windows());
            self.record.started(number, descriptor, bytes);
            self.gather(descriptor)?;
            read(self.windows());
        } else {
            self.hand_over(number, descriptor, bytes, begin, read)?;
        }
        if let Some((peer, sent, expected)) = wrong {
            let what = format!("{sent} bytes for this rank, which expects {expected}");
            return Err(self.fail(descriptor, None, Cause::Garbled { peer: peer.into(), what }));
        }
        if !own.long && senders.is_empty() {
            received[place(recv[me])].copy_from_slice(&data[place(send[me])]);
            return Ok(());
        }
        if !own.long {
            self.record.started(number, descriptor, bytes);
        }
        if own.exposed || senders.iter().any(|(parts, _)| parts.exposed) {
            received[place(recv[me])].copy_from_slice(&data[place(send[me])]);
            let mut parts: Vec<Part> = senders.into_iter().map(|(_, part)| part).collect();
            // Each starts with the rank after it, so that readers spread over the ranks.
            let after = parts.iter().filter(|part| part.peer.index() < me).count();
            parts.rotate_left(after);
            self.run(descriptor, &mut Execution::Reads(Reads::new(parts)), &mut Buffers::new(received, dtype))?;
            self.record.finished();
            return Ok(());
        }
        let is_long = |peer: usize| senders.iter().any(|(_, part)| part.peer.index() == peer);
        let kept = |span: &Span, long: bool| if long { *span } else { Span { start: span.start, len: 0 } };
        let send: Vec<Span> = send.iter().enumerate().map(|(to, span)| kept(span, own.long || to == me)).collect();
        let recv: Vec<Span> =
            recv.iter().enumerate().map(|(from, span)| kept(span, from == me || is_long(from))).collect();
        let schedule = Arc::new(algorithm::alltoall_window(&send, &recv, self.rank(), &self.tuning(dtype)));
        self.run_windows(descriptor, schedule, Buffers { source: data, ..Buffers::new(received, dtype) })?;
        self.record.finished();
        Ok(())
    }

    /// From which size on parts are exposed.
    fn exposed_bytes(&mut self, descriptor: Descriptor) -> Result<usize> {
        Ok(if self.may_read_peers(descriptor)? { self.settings.single_copy_bytes } else { usize::MAX })
    }

    /// Whether an allgather of these blocks reads them from where they lie.
    pub(super) fn gathers_by_reads(
        &mut self,
        descriptor: Descriptor,
        blocks: &[Span],
        elem_bytes: usize,
    ) -> Result<bool> {
        let longest = blocks.iter().map(|block| block.len as usize * elem_bytes).max().unwrap_or(0);
        let long = self.size() > 1
            && self.is_one_host()
            && longest >= self.settings.single_copy_bytes.saturating_mul(GATHER_FACTOR);
        Ok(long && self.may_read_peers(descriptor)?)
    }

    /// An allgather in which every rank reads the others' blocks from where they lie. This rank's is in its place.
    pub(super) fn gather_by_reads(
        &mut self,
        descriptor: Descriptor,
        own: &[u8],
        all: &mut [u8],
        blocks: &[Range<usize>],
    ) -> Result<()> {
        let (number, me) = (self.next_operation()?, self.rank().index());
        let mut note = [0; 2 * size_of::<u64>()];
        note[..8].copy_from_slice(&cma::address_of(own).to_ne_bytes());
        note[8..].copy_from_slice(&u64::from(std::process::id()).to_ne_bytes());
        self.windows().begin(number, descriptor.word(), &note);
        self.record.started(number, descriptor, all.len());
        self.gather(descriptor)?;
        let windows = self.windows();
        let part = |peer: usize| {
            let mut inline = [0; INLINE_BYTES];
            let note = windows.small(windows.local_rank(peer.into()), 2 * size_of::<u64>(), &mut inline);
            let [address, pid] = [0, 8].map(|at| u64::from_ne_bytes(note[at..at + 8].try_into().expect("eight bytes")));
            Part { peer: peer.into(), pid: pid as u32, address, target: blocks[peer].clone() }
        };
        let others = (1..blocks.len()).map(|offset| (me + offset) % blocks.len());
        let parts = others.filter(|&peer| !blocks[peer].is_empty()).map(part).collect();
        self.run(descriptor, &mut Execution::Reads(Reads::new(parts)), &mut Buffers::new(all, Dtype::U8))?;
        self.record.finished();
        Ok(())
    }
}
