//! As `faults`, in shared memory: every point of window schedules, of mapped fusion buffers while they are made and
//! used, and of rings.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::harness::named_strikes::{What, strike};
use crate::harness::strikes::Holdings;
use farandole_engine::connector::Medium;

/// Strikes every point of these: what is asked for, and how often; and checks that nothing is left.
fn strike_all(cases: &[(What, usize)], at_least: usize) {
    let before = Holdings::now();
    let strikes: usize = std::thread::scope(|scope| {
        let workers: Vec<_> = cases
            .iter()
            .map(|&(what, times)| scope.spawn(move || strike(what, [2, 3, 4], Medium::Windows, times)))
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    println!("{strikes} faults struck");
    assert!(strikes > at_least, "only {strikes} faults struck");
    before.assert_unchanged();
}

// A fault at any point ends in a named error on all survivors. One test for each kind of memory, so that they share the
// cores.

#[test]
fn faults_around_mapped_fusion_buffers_are_named() {
    // Small allreduces go through windows twice, while a mapped fusion buffer is made, and through that the third time.
    strike_all(&[(What::Allreduce(7), 3)], 200);
}

#[test]
fn faults_in_windows_are_named() {
    // The larger one has six tiles, which is more than there are slots.
    strike_all(&[(What::Allreduce(20_000), 3), (What::Allreduce(180_000), 1)], 300);
}

#[test]
fn faults_in_windows_of_other_collectives_are_named() {
    strike_all(&[(What::Broadcast, 2), (What::Allgather, 2), (What::ReduceScatter, 2)], 300);
}

#[test]
fn faults_in_rings_are_named() {
    strike_all(&[(What::Alltoall, 1), (What::Adasum, 1)], 200);
}
