//! Allreduces in device memory between hosts: shards are exchanged in slices of any length, with the bits of host
//! memory; copies overlap with the network; and a fault in the middle of a slice ends with its cause, on all ranks.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use farandole_device::Error as DeviceError;
use farandole_device::pretend::{Call as DeviceCall, CopyLog, DeviceFaults, HostCopy};
use farandole_engine::connector::Medium;
use farandole_engine::{Config, Error};
use farandole_plan::{Collective, Dtype, GroupId, ReduceOp};
use farandole_transport::memory::MemoryOptions;

use crate::devices::{calls, check_all};
use crate::harness::named_strikes::{What, strike_on_devices};
use crate::harness::pretend_device::{contents, hooks, hooks_noting, hooks_with, moved, moved_to_private_memory};
use crate::harness::reference::{Inputs, Solved};
use crate::harness::strikes::strike_all;
use crate::harness::{Transport, by_contacts, config, meetings, ranks, ranks_with, run_hooked, sum};

fn with_slices(slice_bytes: u64) -> Config {
    Config { slice_bytes, deadline: Duration::from_secs(10), ..config() }
}

fn is_allreduce(solved: &Solved) -> bool {
    matches!(solved.call.collective, Collective::Allreduce { .. })
}

/// Allreduces cross hosts in shards; everything else goes through host memory there.
#[test]
fn tensors_on_devices_of_several_hosts_give_the_bits_of_host_memory() {
    for size in [2, 4, 6] {
        ranks(size, Transport::DeviceHosts, move |engine| {
            let works = |collective| engine.works_on_devices(GroupId::WORLD, &collective, Dtype::F16).unwrap();
            assert!(works(Collective::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 }));
            assert!(!works(Collective::Allgather));
            check_all(&engine, &calls(engine.size(), Inputs::Extreme), |submission| moved(&engine, submission));
        });
    }
    // Hosts of different sizes have no shards.
    ranks(3, Transport::DeviceHosts, |engine| {
        let allreduce = Collective::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 };
        assert!(!engine.works_on_devices(GroupId::WORLD, &allreduce, Dtype::F32).unwrap());
    });
}

/// Slices of an element, of odd lengths, longer than the shard, and all at once.
#[test]
fn slices_of_any_length_give_the_bits_of_host_memory() {
    for (size, slice_bytes) in [(2, 1), (2, 1000), (4, 257), (4, 4096), (6, 777), (4, 0)] {
        ranks_with(size, Transport::DeviceHosts, with_slices(slice_bytes), move |engine| {
            let few = |solved: &Solved| slice_bytes > 1 || solved.call.rows <= 130;
            let all = calls(engine.size(), Inputs::Extreme).into_iter().filter(is_allreduce).filter(few);
            let all: Vec<Solved> = all.collect();
            check_all(&engine, &all, |submission| moved(&engine, submission));
        });
    }
}

/// Sums that are rounded depend on the order of the hosts, which is that of the whole shard.
#[test]
fn sums_that_are_rounded_do_not_depend_on_the_slices() {
    let sums = |slice_bytes| {
        let on_three_hosts = by_contacts(6, |rank| format!("host-{}", rank % 3));
        run_hooked(on_three_hosts, with_slices(slice_bytes), hooks, |engine| {
            let me = engine.rank().index() as f32;
            let rounded: Vec<f32> = (0..20_001).map(|index| (index as f32 + 0.7).sqrt() * (me + 0.3)).collect();
            let outcome = engine.run(moved(&engine, sum("gradient", rounded))).unwrap();
            contents(&outcome.into_result().unwrap())
        })
    };
    let whole = sums(0);
    assert!(whole.iter().all(|result| *result == whole[0]), "all ranks have the same bits");
    for slice_bytes in [3000, 1 << 14] {
        assert!(sums(slice_bytes) == whole, "slices of {slice_bytes} bytes");
    }
}

/// While slices are on the network, later ones are copied to the host, and earlier ones are copied back.
#[test]
fn copies_overlap_with_the_network() {
    const SLICES: usize = 16;
    let log = CopyLog::default();
    let noted = log.clone();
    let hooks = move |rank| if rank == 0 { hooks_noting(0, noted.clone()) } else { hooks(rank) };
    run_hooked(meetings(2, Transport::DeviceHosts), with_slices(4096), hooks, |engine| {
        engine.run(moved(&engine, sum("gradient", vec![1f32; SLICES * 1024]))).unwrap();
    });
    let copies = log.copies();
    let when = |kind: HostCopy| -> Vec<usize> {
        let copies = copies.iter().enumerate().filter(|(_, copy)| **copy == kind).map(|(place, _)| place);
        // On two hosts a slice is two stretches of the shard. The last of them counts.
        copies.skip(1).step_by(2).collect()
    };
    let (to_host, to_device) = (when(HostCopy::ToHost), when(HostCopy::ToDevice));
    assert_eq!((to_host.len(), to_device.len()), (SLICES, SLICES));
    // A slice is copied back when it has travelled, so others have come to the host before it has.
    assert!(to_host[2] < to_device[0], "{copies:?}");
    // And it does not wait for those behind: they come to the host no sooner than it is about to go back.
    assert!((3..SLICES).all(|slice| to_device[slice - 3] < to_host[slice]), "{copies:?}");
}

/// A device fails at a copy, a record or a look in the middle of a shard; all ranks end with the cause, soon.
#[test]
fn faults_of_a_device_in_the_middle_of_a_shard_are_named_on_all_ranks() {
    let out_of_memory = || DeviceError::OutOfMemory { bytes: 1 << 20, free_and_total: None };
    let strikes = [
        (DeviceCall::Copy, DeviceFaults::illegal_address(), "illegal memory access"),
        (DeviceCall::Copy, out_of_memory(), "has no 1.0 MiB left"),
        (DeviceCall::Record, DeviceFaults::illegal_address(), "illegal memory access"),
        (DeviceCall::Look, DeviceFaults::illegal_address(), "illegal memory access"),
    ];
    let mut struck = 0;
    for (call, error, words) in strikes {
        for (size, after, victim) in [(2, 0, 0), (2, 5, 1), (2, 12, 0), (2, 13, 1), (2, 21, 0), (4, 9, 3), (4, 14, 2)] {
            let fault = DeviceFaults::default().at(call, after, error.clone());
            let hooks = move |rank| hooks_with(rank, if rank == victim { fault.clone() } else { Default::default() });
            let ended = run_hooked(meetings(size, Transport::DeviceHosts), with_slices(2048), hooks, |engine| {
                for round in 0..4 {
                    let tensor = sum(&format!("t{}", round % 2), vec![1f32; 8000]);
                    let packed = round % 2 == 1;
                    let tensor = if packed { moved_to_private_memory(tensor) } else { moved(&engine, tensor) };
                    match engine.run(tensor) {
                        Ok(outcome) => {
                            let result = contents(&outcome.into_result().unwrap());
                            assert_eq!(result[..4], (engine.size() as f32).to_ne_bytes());
                        }
                        Err(error) => return Some(error.to_string()),
                    }
                }
                None
            });
            struck += usize::from(ended.iter().any(Option::is_some));
            let all: Vec<&str> = ended.iter().map(|error| error.as_deref().unwrap_or("went on")).collect();
            assert!(all.iter().all(|error| error.contains(words)), "{call:?} after {after} of {victim}: {all:?}");
        }
    }
    assert_eq!(struck, 28);
}

/// A fault of a rank or a connection at any message of any slice.
#[test]
fn a_fault_at_any_message_of_a_slice_ends_in_a_named_error_on_all_survivors() {
    let apart = Medium::Pipes(MemoryOptions { is_apart: true, ..MemoryOptions::default() });
    // By doubling, and around the ring.
    strike_all(&[What::Allreduce(1000), What::Allreduce(5001)], 300, |what| {
        let slice_bytes = if let What::Allreduce(1000) = what { 1500 } else { 7000 };
        strike_on_devices(what, [2, 3], apart, slice_bytes)
    });
}

/// Ranks whose settings differ would send each other slices of different lengths.
#[test]
fn ranks_with_slices_of_different_lengths_are_told() {
    let each = meetings(2, Transport::DeviceHosts).into_iter().enumerate().map(|(rank, connector)| {
        move || {
            let config = with_slices(1000 * (rank as u64 + 1));
            let connector = crate::harness::Boxed(connector);
            let engine = farandole_engine::Engine::start_with(connector, config, hooks(rank)).unwrap();
            match engine.run(moved(&engine, sum("gradient", vec![1f32; 8000]))) {
                Err(error @ Error::Failed(_)) => error.to_string(),
                other => panic!("{other:?}"),
            }
        }
    });
    let threads: Vec<_> = each.map(std::thread::spawn).collect();
    let errors: Vec<String> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(errors.iter().all(|error| error.contains("disagree")), "{errors:?}");
}
