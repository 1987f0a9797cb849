//! A fault at every rank and every step of every collective of small worlds, over links: always a named error on all
//! survivors, before the deadline; never a hang, a wrong result, a leaked thread or a leaked descriptor.
//!
//! `faults_windows` does the same in shared memory, `faults_direct` for direct collectives.
#![allow(clippy::unwrap_used)]

use crate::harness::named_strikes::{What, strike};
use crate::harness::strikes::strike_all;
use farandole_engine::connector::Medium;
use farandole_transport::frame::Checksum;
use farandole_transport::memory::MemoryOptions;
use farandole_transport::stream::FrameOptions;

const ALL: [What; 9] = [
    What::Allreduce(7),
    What::Allreduce(20_000),
    What::Allreduce(200_000),
    What::Adasum,
    What::Broadcast,
    What::Allgather,
    What::ReduceScatter,
    What::Alltoall,
    What::Barrier,
];

#[test]
fn a_fault_at_any_step_over_links_ends_in_a_named_error_on_all_survivors() {
    let cases: Vec<(Checksum, What)> =
        [Checksum::Crc32c, Checksum::Off].into_iter().flat_map(|checksum| ALL.map(|what| (checksum, what))).collect();
    strike_all(&cases, 500, |(checksum, what)| {
        let shape = FrameOptions { checksum, ..FrameOptions::default() };
        let pipes = Medium::Pipes(MemoryOptions { shape, ..MemoryOptions::default() });
        // Without checksums only what is damaged differs, so one world will do.
        let sizes = if checksum == Checksum::Off { 3..=3 } else { 2..=4 };
        strike(what, sizes, pipes, 1)
    });
}
