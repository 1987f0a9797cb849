//! Alltoall on one host.
//!
//! A rank knows how much it sends to each peer and gets from each, but not what passes between two others, so ranks
//! cannot choose one road by size. Instead each sender chooses for its own parts and says so when it begins
//! (`small::Parts`): short parts lie in its small slot, one hand-over; longer ones go through its window, tile by tile.
//! When all have begun, every rank knows what everybody has chosen, and takes tiles from those who send them. If nobody
//! does, the operation is over.
//!
//! The lengths lie in the slot in both cases and are compared before anything is read.

use std::sync::Arc;

use farandole_plan::{Dtype, Span, algorithm};
use farandole_tensor::Finish;
use farandole_transport::Error as Cause;
use farandole_transport::shm::Windows;

use super::operation::Operation;
use super::small::Parts;
use super::{Communicator, Descriptor};
use crate::error::Result;
use crate::window::WindowRun;

/// An alltoall of this rank.
pub(super) struct Exchange<'a> {
    pub(super) number: u64,
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
        let Exchange { number, descriptor, data, send, received, recv, dtype } = exchange;
        let (me, elem_bytes) = (self.rank().index(), dtype.size_bytes());
        let place = |span: Span| span.start as usize * elem_bytes..span.end() as usize * elem_bytes;
        let own = Parts::new(send, elem_bytes, self.chooser.hand_over_bytes());
        let bytes = data.len().max(received.len());
        let mut senders = Vec::with_capacity(send.len());
        let mut wrong = None;
        let begin = |windows: &mut Windows| {
            let fill = |slot: &mut [u8]| own.fill(slot, data, send, elem_bytes, me);
            windows.begin_with_note(number, descriptor.word(), &own.note(), fill);
        };
        let mut read = |windows: &Windows| {
            for (peer, &span) in recv.iter().enumerate() {
                if peer == me {
                    senders.push(own);
                    continue;
                }
                let seat = windows.seat(peer.into());
                let parts = Parts::of(windows, seat);
                let (len, target) = (parts.len(windows, seat), place(span));
                if len != target.len() as u64 {
                    wrong.get_or_insert((peer, len, target.len()));
                } else if !parts.tiled {
                    parts.copy(windows, seat, &mut received[target]);
                }
                senders.push(parts);
            }
        };
        if own.tiled {
            begin(self.windows());
            self.journal.started(number, descriptor, bytes);
            self.walk(descriptor, Operation::Meeting { bytes })?;
            read(self.windows());
        } else {
            self.hand_over(number, descriptor, bytes, begin, read)?;
        }
        if let Some((peer, sent, expected)) = wrong {
            let what = format!("{sent} bytes for this rank, which expects {expected}");
            return Err(self.fail(descriptor, None, Cause::Garbled { peer: peer.into(), what }));
        }
        if !senders.iter().any(|parts| parts.tiled) {
            received[place(recv[me])].copy_from_slice(&data[place(send[me])]);
            return Ok(());
        }
        let nothing = |span: &Span| Span { start: span.start, len: 0 };
        let kept = |(span, tiled): (&Span, bool), peer| if tiled || peer == me { *span } else { nothing(span) };
        let send: Vec<Span> = send.iter().enumerate().map(|(to, span)| kept((span, own.tiled), to)).collect();
        let recv: Vec<Span> =
            recv.iter().enumerate().map(|(from, span)| kept((span, senders[from].tiled), from)).collect();
        let schedule = Arc::new(algorithm::alltoall_window(&send, &recv, self.rank(), &self.tuning(dtype)));
        if !own.tiled {
            self.journal.started(number, descriptor, bytes);
        }
        self.walk_windows(descriptor, WindowRun::begun(schedule), received, data, dtype, None, Finish::Nothing)?;
        self.journal.finished();
        Ok(())
    }
}
