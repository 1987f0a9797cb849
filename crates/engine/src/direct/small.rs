//! The shortest path: one hand-over, on one host.
//!
//! Every rank shows what it contributes, waits until it has seen that everybody does, and reads what it needs out of
//! what the others show. An allreduce folds all contributions itself, in rank order, so all ranks get the same bits.
//! What a rank has shown in operation `k` lies in one of two places used in turn, and is overwritten in operation `k +
//! 2`: nobody has to wait for the readers of `k`, because all have finished with it when they begin `k + 1`.
//!
//! What is not here: which sizes are small enough (`choice`).

use farandole_plan::Span;
use farandole_tensor::{Finish, Fold};
use farandole_transport::shm::flags::INLINE_BYTES;
use farandole_transport::shm::{Windows, cma};

use super::{Communicator, Descriptor};
use crate::error::Result;
use crate::exec::{Buffers, Execution};

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
        let began_ns = self.record.sample(number);
        begin(self.windows());
        if self.all_begin_soon() {
            read(self.windows());
            self.record.sampled(began_ns, number, descriptor, bytes);
            return Ok(());
        }
        self.wait_for_all(descriptor, bytes)?;
        read(self.windows());
        Ok(())
    }

    /// Somebody is late. Out of line, so that the state of an execution does not weigh on calls in which nobody is.
    #[cold]
    #[inline(never)]
    fn wait_for_all(&mut self, descriptor: Descriptor, bytes: usize) -> Result<()> {
        self.drive(descriptor, bytes, &mut Execution::Gather, &mut Buffers::none())
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
        let looks = self.backoff.looks();
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
    let peers = windows.size() - 1;
    with_list(peers, [0; INLINE_BYTES], |inline| {
        with_list(peers, &[][..], |others| {
            for ((local_rank, inline), other) in windows.peers().zip(inline).zip(&mut *others) {
                *other = &windows.small(local_rank, shown, inline)[offset..offset + chunk.len()];
            }
            let (before, after) = others.split_at(windows.me());
            fold.fold_ranks(chunk, before, after, None, finish);
        });
    });
}

/// Calls `with` with a list of `len` items. A short list is not allocated: that would take longer than folding.
#[inline]
fn with_list<T: Copy>(len: usize, item: T, with: impl FnOnce(&mut [T])) {
    const SHORT: usize = 8;
    if len <= SHORT { with(&mut [item; SHORT][..len]) } else { with(&mut vec![item; len]) }
}

/// Copies what a rank shows to its place; likewise.
pub(super) fn copy_shown(windows: &Windows, local_rank: usize, target: &mut [u8]) {
    let mut inline = [0; INLINE_BYTES];
    target.copy_from_slice(windows.small(local_rank, target.len(), &mut inline));
}

/// How a rank shows the parts that it sends to each peer in its small slot: at multiples of a *stride*, its length
/// first. Whether the elements follow or are fetched otherwise is the sender's choice, since only it knows how long all
/// of its parts are; its note says which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    stride: usize,
    /// The elements go in tiles or are read from the sender's memory; the slot has length and offset alone.
    pub(super) long: bool,
    /// Some part is long enough to be read from where it lies.
    pub(super) exposed: bool,
    /// Where the data lies in the sender's memory.
    pub(super) address: u64,
    pub(super) pid: u32,
}

const LEN_BYTES: usize = size_of::<u64>();
const NOTE_BYTES: usize = 3 * LEN_BYTES;
/// Readers of neighbouring parts share no cache line.
const LINE_BYTES: usize = 64;

impl Parts {
    /// Whether the lengths of the parts of so many ranks fit a slot.
    pub(super) fn lengths_fit(ranks: usize, slot_bytes: usize) -> bool {
        LINE_BYTES.saturating_mul(ranks) <= slot_bytes
    }

    /// For these parts of `data`, which are shown if they take at most `most_bytes` of a slot that their lengths fit,
    /// and exposed from `exposed_bytes` on.
    pub(super) fn new(data: &[u8], send: &[Span], elem_bytes: usize, most_bytes: usize, exposed_bytes: usize) -> Parts {
        let longest = send.iter().map(|span| (span.len as usize).saturating_mul(elem_bytes)).max().unwrap_or(0);
        let stride = longest.saturating_add(LEN_BYTES).saturating_add(LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
        let long = stride.saturating_mul(send.len()) > most_bytes;
        Parts {
            stride: if long { LINE_BYTES } else { stride },
            long,
            exposed: long && longest >= exposed_bytes,
            address: cma::address_of(data),
            // A system call, which short parts do without.
            pid: if long { std::process::id() } else { 0 },
        }
    }

    /// The note that tells peers of it.
    pub(super) fn note(self) -> [u8; NOTE_BYTES] {
        let words = [
            (self.stride as u64) << 2 | u64::from(self.exposed) << 1 | u64::from(self.long),
            self.address,
            u64::from(self.pid),
        ];
        let mut note = [0; NOTE_BYTES];
        note.chunks_exact_mut(LEN_BYTES)
            .zip(words)
            .for_each(|(place, word)| place.copy_from_slice(&word.to_ne_bytes()));
        note
    }

    /// What a peer's note says.
    #[inline]
    pub(super) fn of(windows: &Windows, local_rank: usize) -> Parts {
        let mut inline = [0; INLINE_BYTES];
        let note = windows.small(local_rank, NOTE_BYTES, &mut inline);
        let [first, address, pid] = [0, 1, 2].map(|at| word(&note[at * LEN_BYTES..]));
        let (long, exposed) = (first & 1 == 1, first >> 1 & 1 == 1);
        Parts { stride: (first >> 2) as usize, long, exposed, address, pid: pid as u32 }
    }

    /// Fills this rank's slot.
    #[inline]
    pub(super) fn fill(self, slot: &mut [u8], data: &[u8], send: &[Span], elem_bytes: usize, me: usize) {
        for (to, span) in send.iter().enumerate().filter(|(to, _)| *to != me) {
            let bytes = span.start as usize * elem_bytes..span.end() as usize * elem_bytes;
            let place = &mut slot[to * self.stride..][..self.stride];
            place[..LEN_BYTES].copy_from_slice(&(bytes.len() as u64).to_ne_bytes());
            if self.long {
                place[LEN_BYTES..2 * LEN_BYTES].copy_from_slice(&(bytes.start as u64).to_ne_bytes());
            } else {
                place[LEN_BYTES..][..bytes.len()].copy_from_slice(&data[bytes]);
            }
        }
    }

    /// How many bytes a peer has for this rank.
    #[inline]
    pub(super) fn len(self, windows: &Windows, local_rank: usize) -> u64 {
        word(windows.small_part(local_rank, windows.me() * self.stride, LEN_BYTES))
    }

    /// Where a peer's long part for this rank begins in that peer's memory.
    pub(super) fn start(self, windows: &Windows, local_rank: usize) -> u64 {
        self.address + word(windows.small_part(local_rank, windows.me() * self.stride + LEN_BYTES, LEN_BYTES))
    }

    /// Copies a peer's part for this rank to its place, which is as long as [`Parts::len`] says.
    #[inline]
    pub(super) fn copy(self, windows: &Windows, local_rank: usize, target: &mut [u8]) {
        target.copy_from_slice(windows.small_part(local_rank, windows.me() * self.stride + LEN_BYTES, target.len()));
    }
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes[..LEN_BYTES].try_into().expect("eight bytes"))
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

    /// Stride, whether long, whether exposed.
    fn form(send: &[Span], elem_bytes: usize) -> (usize, bool, bool) {
        let parts = Parts::new(&[], send, elem_bytes, 4096, 20_000);
        (parts.stride, parts.long, parts.exposed)
    }

    #[test]
    fn parts_are_shown_where_they_fit_and_announced_where_they_do_not() {
        assert_eq!(form(&parts(&[10, 30, 0]), 4), (128, false, false));
        assert_eq!(form(&parts(&[10, 3000, 0]), 4), (64, true, false));
        assert_eq!(form(&parts(&[10, 5000, 0]), 4), (64, true, true));
        assert_eq!(form(&parts(&[u64::MAX / 2, 1]), 8), (64, true, true));
        assert!(Parts::lengths_fit(64, 4096) && !Parts::lengths_fit(65, 4096));
    }

    #[test]
    fn a_slot_holds_the_length_and_the_elements_for_each_peer() {
        let (send, data) = (parts(&[2, 3, 1]), [1, 2, 3, 4, 5, 6]);
        let shown = Parts::new(&data, &send, 1, 4096, usize::MAX);
        let mut slot = vec![0; 4096];
        shown.fill(&mut slot, &data, &send, 1, 0);
        assert_eq!(slot[..64], [0; 64], "nothing is shown for the rank itself");
        assert_eq!(slot[64..76], [3, 0, 0, 0, 0, 0, 0, 0, 3, 4, 5, 0]);
        assert_eq!(slot[128..138], [1, 0, 0, 0, 0, 0, 0, 0, 6, 0]);
    }

    #[test]
    fn the_slot_of_long_parts_holds_lengths_and_offsets() {
        let (send, data) = (parts(&[2, 3, 1]), [1, 2, 3, 4, 5, 6]);
        let long = Parts::new(&data, &send, 1, 100, usize::MAX);
        let mut slot = vec![0; 4096];
        long.fill(&mut slot, &data, &send, 1, 0);
        assert_eq!(slot[64..81], [3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(slot[128..145], [1, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
