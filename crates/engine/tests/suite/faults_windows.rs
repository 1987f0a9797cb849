//! As `faults`, in shared memory: every point of window schedules, of mapped fusion buffers while they are made and
//! used, and of rings.

use crate::harness::named_strikes::{What, strike};
use crate::harness::strikes::strike_all;
use farandole_engine::connector::Medium;

/// Strikes every point of something that is asked for so many times.
fn strike_in_windows((what, times): (What, usize)) -> usize {
    strike(what, [2, 3, 4], Medium::Windows, times)
}

// A fault at any point ends in a named error on all survivors. One test for each kind of memory, so that they share the
// cores.

#[test]
fn faults_around_mapped_fusion_buffers_are_named() {
    // Small allreduces go through windows twice, while a mapped fusion buffer is made, and through that the third time.
    strike_all(&[(What::Allreduce(7), 3)], 200, strike_in_windows);
}

#[test]
fn faults_in_windows_are_named() {
    // The larger one has six tiles, which is more than there are slots.
    strike_all(&[(What::Allreduce(20_000), 3), (What::Allreduce(180_000), 1)], 300, strike_in_windows);
}

#[test]
fn faults_in_windows_of_other_collectives_are_named() {
    strike_all(&[(What::Broadcast, 2), (What::Allgather, 2), (What::ReduceScatter, 2)], 300, strike_in_windows);
}

#[test]
fn faults_in_rings_are_named() {
    strike_all(&[(What::Alltoall, 1), (What::Adasum, 1)], 200, strike_in_windows);
}
