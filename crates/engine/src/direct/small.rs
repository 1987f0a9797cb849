//! The shortest road: one hand-over, on one host.
//!
//! Every rank shows what it contributes, waits until it has seen that everybody does, and reads what it needs out of
//! what the others show. An allreduce folds all contributions itself, in rank order, so all ranks get the same bits.
//! What a rank has shown in operation `k` lies in one of two places used in turn, and is overwritten in operation `k +
//! 2`: nobody has to wait for the readers of `k`, because all have finished with it when they begin `k + 1`.
//!
//! What is not here: which sizes are small enough (`choice`).

use farandole_plan::Span;
use farandole_tensor::{Finish, Fold};
use farandole_transport::shm::Windows;
use farandole_transport::shm::board::INLINE_BYTES;

use super::operation::Operation;
use super::{Communicator, Descriptor};
use crate::error::Result;

impl Communicator {
    /// One hand-over: `begin` begins the operation, `read` reads what all have shown.
    #[inline]
    pub(super) fn hand_over(
        &mut self,
        number: u64,
        descriptor: Descriptor,
        bytes: usize,
        begin: impl FnOnce(&mut Windows),
        read: impl FnOnce(&Windows),
    ) -> Result<()> {
        let began_ns = self.journal.sample(number);
        begin(self.windows());
        if self.all_begin_soon() {
            read(self.windows());
            self.journal.sampled(began_ns, number, descriptor, bytes);
            return Ok(());
        }
        self.drive(descriptor, Operation::Meeting { bytes })?;
        read(self.windows());
        Ok(())
    }

    /// The windows of this host, where the caller knows that there are some.
    pub(super) fn windows(&mut self) -> &mut Windows {
        self.mesh.windows.as_mut().expect("one host has windows")
    }

    /// Whether all ranks begin the operation within the time that looking again at once is worth. Where the answer is
    /// no, or something is wrong, [`Communicator::drive`] waits on or says what. A hand-over is so short that this loop
    /// has to be, too.
    #[inline]
    fn all_begin_soon(&mut self) -> bool {
        let looks = self.patience.looks();
        let windows = self.windows();
        for _ in 0..looks {
            match windows.all_begun() {
                Ok(true) => return true,
                Ok(false) => std::hint::spin_loop(),
                Err(_) => return false,
            }
        }
        false
    }
}

/// Folds everybody's contribution; only after [`Windows::all_begun`] has said yes.
#[inline]
pub(super) fn fold_all_shown(windows: &Windows, data: &mut [u8], fold: &Fold, finish: Finish) {
    let (me, size, len) = (windows.me(), windows.size(), data.len());
    if size == 2 {
        let mut inline = [0; INLINE_BYTES];
        let other = [windows.small(1 - me, len, &mut inline)];
        let (before, after) = other.split_at(me);
        fold.fold_ranks(data, before, after, None, finish);
    } else {
        fold_chunk_shown(windows, data, len, 0, fold, finish);
    }
}

/// Folds the contributions to a chunk that starts at `offset` of the `shown` bytes of everybody; likewise.
pub(super) fn fold_chunk_shown(
    windows: &Windows,
    chunk: &mut [u8],
    shown: usize,
    offset: usize,
    fold: &Fold,
    finish: Finish,
) {
    let mut inline = vec![[0; INLINE_BYTES]; windows.size() - 1];
    let part = |(seat, inline)| &windows.small(seat, shown, inline)[offset..offset + chunk.len()];
    let others: Vec<&[u8]> = windows.peers().zip(&mut inline).map(part).collect();
    let (before, after) = others.split_at(windows.me());
    fold.fold_ranks(chunk, before, after, None, finish);
}

/// Copies what a rank shows to its place; likewise.
pub(super) fn copy_shown(windows: &Windows, seat: usize, target: &mut [u8]) {
    let mut inline = [0; INLINE_BYTES];
    target.copy_from_slice(windows.small(seat, target.len(), &mut inline));
}

/// How a rank shows the parts that it sends to each peer in its small slot: at multiples of a *stride*, its length
/// first. Whether the elements follow or go in tiles is the sender's choice, since only it knows how long all of its
/// parts are; its note says which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    stride: usize,
    /// The elements go in tiles, and the slot has the lengths alone.
    pub(super) tiled: bool,
}

const LEN_BYTES: usize = size_of::<u64>();
/// Readers of neighbouring parts share no cache line.
const LINE_BYTES: usize = 64;

impl Parts {
    /// Whether the lengths of the parts of so many ranks fit a slot.
    pub(super) fn lengths_fit(ranks: usize, slot_bytes: usize) -> bool {
        LINE_BYTES.saturating_mul(ranks) <= slot_bytes
    }

    /// For these parts, which are shown if they take at most `most_bytes` of a slot that their lengths fit.
    pub(super) fn new(send: &[Span], elem_bytes: usize, most_bytes: usize) -> Parts {
        let longest = send.iter().map(|span| (span.len as usize).saturating_mul(elem_bytes)).max().unwrap_or(0);
        let stride = longest.saturating_add(LEN_BYTES).saturating_add(LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
        let tiled = stride.saturating_mul(send.len()) > most_bytes;
        Parts { stride: if tiled { LINE_BYTES } else { stride }, tiled }
    }

    /// The note that tells peers of it.
    pub(super) fn note(self) -> [u8; LEN_BYTES] {
        ((self.stride as u64) << 1 | u64::from(self.tiled)).to_ne_bytes()
    }

    /// What a peer's note says.
    pub(super) fn of(windows: &Windows, seat: usize) -> Parts {
        let mut inline = [0; INLINE_BYTES];
        let note = windows.small(seat, LEN_BYTES, &mut inline);
        let note = u64::from_ne_bytes(note.try_into().expect("a note has eight bytes"));
        Parts { stride: (note >> 1) as usize, tiled: note & 1 == 1 }
    }

    /// Fills this rank's slot.
    pub(super) fn fill(self, slot: &mut [u8], data: &[u8], send: &[Span], elem_bytes: usize, me: usize) {
        for (to, span) in send.iter().enumerate().filter(|(to, _)| *to != me) {
            let bytes = span.start as usize * elem_bytes..span.end() as usize * elem_bytes;
            let place = &mut slot[to * self.stride..][..self.stride];
            place[..LEN_BYTES].copy_from_slice(&(bytes.len() as u64).to_ne_bytes());
            if !self.tiled {
                place[LEN_BYTES..][..bytes.len()].copy_from_slice(&data[bytes]);
            }
        }
    }

    /// How many bytes a peer has for this rank.
    pub(super) fn len(self, windows: &Windows, seat: usize) -> u64 {
        let len = windows.small_part(seat, windows.me() * self.stride, LEN_BYTES);
        u64::from_ne_bytes(len.try_into().expect("a length has eight bytes"))
    }

    /// Copies a peer's part for this rank to its place, which is as long as [`Parts::len`] says.
    pub(super) fn copy(self, windows: &Windows, seat: usize, target: &mut [u8]) {
        target.copy_from_slice(windows.small_part(seat, windows.me() * self.stride + LEN_BYTES, target.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(lens: &[u64]) -> Vec<Span> {
        let mut start = 0;
        lens.iter()
            .map(|&len| {
                start += len;
                Span { start: start - len, len }
            })
            .collect()
    }

    #[test]
    fn parts_are_shown_where_they_fit_and_announced_where_they_do_not() {
        assert_eq!(Parts::new(&parts(&[10, 30, 0]), 4, 4096), Parts { stride: 128, tiled: false });
        assert_eq!(Parts::new(&parts(&[10, 3000, 0]), 4, 4096), Parts { stride: 64, tiled: true });
        assert_eq!(Parts::new(&parts(&[u64::MAX / 2, 1]), 8, 4096), Parts { stride: 64, tiled: true });
        assert!(Parts::lengths_fit(64, 4096) && !Parts::lengths_fit(65, 4096));
    }

    #[test]
    fn a_slot_holds_the_length_and_the_elements_for_each_peer() {
        let (send, data) = (parts(&[2, 3, 1]), [1, 2, 3, 4, 5, 6]);
        let shown = Parts::new(&send, 1, 4096);
        let mut slot = vec![0; 4096];
        shown.fill(&mut slot, &data, &send, 1, 0);
        assert_eq!(slot[..64], [0; 64], "nothing is shown for the rank itself");
        assert_eq!(slot[64..76], [3, 0, 0, 0, 0, 0, 0, 0, 3, 4, 5, 0]);
        assert_eq!(slot[128..138], [1, 0, 0, 0, 0, 0, 0, 0, 6, 0]);
    }
}
