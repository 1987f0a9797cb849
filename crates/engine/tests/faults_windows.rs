//! As `faults`, in shared memory: every point of window schedules, of mapped fusion buffers while they are made and used, and of
//! rings.
#![allow(clippy::unwrap_used)]

mod harness;
#[path = "harness/named_strikes.rs"]
mod named_strikes;
#[path = "harness/strikes.rs"]
mod strikes;

use farandole_engine::meeting::Medium;
use named_strikes::{What, strike};
use strikes::Holdings;

/// What is asked for, how often, and in which worlds. Small allreduces go through windows twice, while a mapped fusion buffer is
/// made, and through that the third time; large ones always go through windows. Alltoall and Adasum send messages through rings.
const CASES: [(What, usize, [usize; 3]); 8] = [
    (What::Allreduce(7), 3, [2, 3, 4]),
    (What::Allreduce(20_000), 3, [2, 3, 4]),
    // Six tiles, which is more than there are slots.
    (What::Allreduce(180_000), 1, [2, 3, 4]),
    (What::Broadcast, 2, [2, 3, 4]),
    (What::Allgather, 2, [2, 3, 4]),
    (What::ReduceScatter, 2, [2, 3, 4]),
    (What::Alltoall, 1, [2, 3, 4]),
    (What::Adasum, 1, [2, 3, 4]),
];

#[test]
fn a_fault_at_any_point_in_shared_memory_ends_in_a_named_error_on_all_survivors() {
    let before = Holdings::now();
    let strikes: usize = std::thread::scope(|scope| {
        let workers: Vec<_> = CASES
            .into_iter()
            .map(|(what, times, sizes)| scope.spawn(move || strike(what, sizes, Medium::Windows, times)))
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    println!("{strikes} faults struck");
    assert!(strikes > 1000, "only {strikes} faults struck");
    before.assert_unchanged();
}
