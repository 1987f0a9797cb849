//! The shortest road: one hand-over, on one host.
//!
//! Every rank shows its whole contribution, waits until it has seen everybody's, and folds all of them itself, in rank order. So all
//! ranks get the same bits with a single hand-over. What a rank has shown in operation `k` lies in one of two places
//! used in turn, and is overwritten in operation `k + 2`: nobody has to wait for the readers of `k`, because all
//! have finished with it when they begin `k + 1`.
//!
//! `n` contributions are read by each of `n` ranks, so this is for tensors that are small beside the cost of a
//! hand-over.

use farandole_tensor::{Finish, Fold};
use farandole_transport::shm::Windows;
use farandole_transport::shm::board::INLINE_BYTES;
use farandole_transport::{Progress, Result};

/// Folds everybody's contribution as soon as all are shown.
pub(super) fn fold_when_all_begun(
    windows: &mut Windows,
    data: &mut [u8],
    fold: &Fold,
    finish: Finish,
) -> Result<Progress> {
    if !windows.all_begun()? {
        return Ok(Progress::Pending);
    }
    fold_all_shown(windows, data, fold, finish);
    Ok(Progress::Done)
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
        let mut inline = vec![[0; INLINE_BYTES]; size - 1];
        let others: Vec<&[u8]> =
            windows.peers().zip(&mut inline).map(|(seat, inline)| windows.small(seat, len, inline)).collect();
        let (before, after) = others.split_at(me);
        fold.fold_ranks(data, before, after, None, finish);
    }
}
