//! Adasum in device memory: for any number of ranks, wherever tensors lie and whoever has joined, it has the bits of
//! host memory, where another piece of code carries it out.
#![allow(clippy::unwrap_used)]

use farandole_engine::{Engine, Outcome, Submission, wait_all};
use farandole_plan::{Collective, Dtype, GroupId, Rank, ReduceOp, Request};
use farandole_tensor::{OwnedBytes, Region, cast};

use crate::harness::pretend_device::{contents, moved, moved_to_private_memory, when_there};
use crate::harness::{Transport, ranks, request};

const FLOATS: [Dtype; 4] = [Dtype::F16, Dtype::BF16, Dtype::F32, Dtype::F64];

/// Factors for contributions and results.
const FACTORS: [(f64, f64); 3] = [(1.0, 1.0), (0.3, 1.0), (0.5, 1.7)];

/// Lengths of tensors: around the rows and blocks in which inner products are added up, and none.
const LENGTHS: [usize; 8] = [0, 1, 17, 255, 4096, 4097, 9001, 3];

/// One rank's tensor: any numbers, of any sign and size.
fn tensor(dtype: Dtype, len: usize, seed: u64) -> OwnedBytes {
    let number = |i: u64| {
        let bits = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed.wrapping_mul(0xd134_2543_de82_ef95));
        let bits = (bits ^ bits >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40;
        (bits as f64 / f64::from(1 << 24) - 0.4) * f64::from(1 << (bits % 5))
    };
    let numbers: Vec<u8> = (0..len as u64).flat_map(|i| number(i).to_ne_bytes()).collect();
    let mut bytes = vec![0; len * dtype.size_bytes()];
    cast::cast(&mut bytes, dtype, &numbers, Dtype::F64, 1.0);
    OwnedBytes::from_slice(&bytes)
}

fn adasum(name: &str, dtype: Dtype, (prescale, postscale): (f64, f64), bytes: OwnedBytes) -> Submission {
    let collective = Collective::Allreduce { op: ReduceOp::Adasum, prescale, postscale };
    let elems = (bytes.len() / dtype.size_bytes()) as u64;
    Submission::new(Request::new(name, collective, dtype, [elems]), Region::from_owned_bytes(bytes, dtype))
}

/// All tensors of one type and with the same factors on a rank, which fuse.
fn together(engine: &Engine, dtype: Dtype, factors: (f64, f64), group: GroupId) -> Vec<Submission> {
    let one = |(number, len): (usize, &usize)| {
        let seed = (number * 64 + engine.rank().index()) as u64;
        adasum(&format!("t{number}"), dtype, factors, tensor(dtype, *len, seed)).in_group(group)
    };
    LENGTHS.iter().enumerate().map(one).collect()
}

fn result(outcome: Outcome) -> Vec<u8> {
    contents(&when_there(outcome).into_result().unwrap())
}

/// Compares tensors that `place` puts on a device with those of host memory: alone, and together.
fn check(engine: &Engine, group: GroupId, place: impl Fn(Submission) -> Submission) {
    for (dtype, factors) in FLOATS.into_iter().flat_map(|dtype| FACTORS.map(|factors| (dtype, factors))) {
        let submissions = || together(engine, dtype, factors, group);
        let host: Vec<Vec<u8>> = submissions().into_iter().map(|one| result(engine.run(one).unwrap())).collect();
        let which = |number: usize| format!("{} elements of {dtype} by {factors:?}", LENGTHS[number]);
        for (number, submission) in submissions().into_iter().enumerate() {
            let moved = place(submission);
            assert!(moved.request.device != farandole_plan::Device::Cpu, "it is carried out on devices");
            assert!(result(engine.run(moved).unwrap()) == host[number], "alone, {}", which(number));
        }
        let tickets: Vec<_> = submissions().into_iter().map(|one| engine.submit(place(one)).unwrap()).collect();
        for (number, outcome) in wait_all(tickets).into_iter().enumerate() {
            assert!(result(outcome.unwrap()) == host[number], "together, {}", which(number));
        }
        for (number, submission) in submissions().into_iter().enumerate() {
            let (input, len) = (contents(submission.input.as_ref().unwrap()), host[number].len());
            let output = Region::from_owned_bytes(OwnedBytes::from_slice(&vec![0xa5; len]), dtype);
            let mut outcome = when_there(engine.run(place(submission.with_output(output))).unwrap());
            assert!(contents(&outcome.input.take().unwrap()) == input, "a contribution changed, {}", which(number));
            assert!(result(outcome) == host[number], "apart, {}", which(number));
        }
    }
}

#[test]
fn adasum_on_devices_has_the_bits_of_host_memory() {
    for size in 2..6 {
        ranks(size, Transport::Device, |engine| {
            check(&engine, GroupId::WORLD, |submission| moved(&engine, submission));
        });
    }
}

#[test]
fn adasum_of_programs_that_run_ahead_has_the_bits_of_host_memory() {
    for size in [2, 3, 4] {
        ranks(size, Transport::Device, |engine| {
            check(&engine, GroupId::WORLD, |submission| moved(&engine, submission).running_ahead());
            check(&engine, GroupId::WORLD, |submission| moved_to_private_memory(submission).running_ahead());
        });
    }
}

#[test]
fn adasum_of_packed_tensors_has_the_bits_of_host_memory() {
    ranks(3, Transport::Device, |engine| {
        // On one rank, and on all.
        for everywhere in [false, true] {
            check(&engine, GroupId::WORLD, |submission| match everywhere || engine.rank() == Rank(1) {
                true => moved_to_private_memory(submission),
                false => moved(&engine, submission),
            });
        }
    });
}

#[test]
fn adasum_in_process_sets_has_the_bits_of_host_memory() {
    ranks(4, Transport::Device, |engine| {
        let members = [Rank(3), Rank(0), Rank(1)];
        let group = engine.add_group(&members).unwrap();
        if members.contains(&engine.rank()) {
            check(&engine, group, |submission| moved(&engine, submission));
        }
        engine.run(Submission::without_memory(request("end", Collective::Barrier, Dtype::U8, &[]))).unwrap();
    });
}

/// A rank that has joined contributes zeros, which is not the same as nothing for infinite numbers and negative zeros.
#[test]
fn ranks_that_have_joined_contribute_zeros() {
    for size in 2..6 {
        for joined in 0..size {
            ranks(size, Transport::Device, move |engine| {
                let join = Submission::without_memory(request("join", Collective::Join, Dtype::U8, &[]));
                let me = engine.rank().index();
                // With more ranks, two of them join, which are a pair now and then.
                if me == joined || size > 3 && me == (joined + 1) % size {
                    engine.run(join).unwrap();
                    return;
                }
                for dtype in FLOATS {
                    let of_pairs = |number: usize| match number {
                        0 => tensor(dtype, 5000, me as u64),
                        1 => of_values(dtype, &[-0.0, 1.0, -0.0]),
                        _ => of_values(dtype, &[f64::INFINITY, 1.0, 0.0]),
                    };
                    for number in 0..3 {
                        let submission = || adasum(&format!("t{number}"), dtype, (0.5, 1.0), of_pairs(number));
                        let host = result(engine.run(submission()).unwrap());
                        let device = result(engine.run(moved(&engine, submission())).unwrap());
                        assert!(device == host, "tensor {number} of {dtype}: {device:?} {host:?}");
                    }
                }
                engine.run(join).unwrap();
            });
        }
    }
}

fn of_values(dtype: Dtype, values: &[f64]) -> OwnedBytes {
    let numbers: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
    let mut bytes = vec![0; values.len() * dtype.size_bytes()];
    cast::cast(&mut bytes, dtype, &numbers, Dtype::F64, 1.0);
    OwnedBytes::from_slice(&bytes)
}

/// More tensors than one table of a kernel holds, and more than one device works on.
#[test]
fn many_tensors_are_combined_each_by_itself() {
    ranks(4, Transport::Device, |engine| {
        let submissions = || {
            let one = |number: usize| {
                let seed = (number * 8 + engine.rank().index()) as u64;
                adasum(&format!("t{number}"), Dtype::F16, (1.0, 1.0), tensor(Dtype::F16, 1 + number * 7 % 300, seed))
            };
            (0..161).map(one)
        };
        let host: Vec<_> = submissions().map(|one| engine.submit(one).unwrap()).collect();
        let host: Vec<Vec<u8>> = wait_all(host).into_iter().map(|outcome| result(outcome.unwrap())).collect();
        let tickets: Vec<_> = submissions().map(|one| engine.submit(moved(&engine, one)).unwrap()).collect();
        for (number, outcome) in wait_all(tickets).into_iter().enumerate() {
            assert!(result(outcome.unwrap()) == host[number], "tensor {number}");
        }
    });
}

/// Between hosts it goes through host memory.
#[test]
fn adasum_between_hosts_is_not_for_device_memory() {
    ranks(2, Transport::DeviceHosts, |engine| {
        let submission = adasum("t", Dtype::F32, (1.0, 1.0), tensor(Dtype::F32, 4, 1));
        let collective = submission.request.collective.clone();
        assert!(!engine.works_on_devices(GroupId::WORLD, &collective, Dtype::F32).unwrap());
        let error = engine.submit(moved_to_private_memory(submission)).unwrap_err().to_string();
        assert!(error.contains("Adasum works in device memory"), "{error}");
    });
}
