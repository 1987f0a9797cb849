//! Ranks of one host in namespaces of their own, as in one container for each rank: every plane gives exact results.
//!
//! Address space randomisation is off, so that the ranks have equal addresses, as the CUDA driver gives them: memory of
//! a peer that is taken for own memory gives wrong sums and no crash. `unshare` needs root.
//!
//! Across PID namespaces device memory is mapped only where the user asks for it (`FARANDOLE_PLANE=own`).

use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::sync::Arc;

use farandole::device::{Device, stand_in};
use farandole::{Collective, DevicePlaneChoice, Dtype, GroupId, ReduceOp, Region, Request, Setup, Submission, World};

use crate::{Job, said};

/// Flags of `unshare` for the namespaces that a container has of its own when it shares the network of its host.
const KINDS: [&[&str]; 4] = [
    &["--pid", "--fork", "--kill-child", "--mount-proc"],
    &["--ipc"],
    &["--mount"],
    &["--pid", "--fork", "--kill-child", "--mount-proc", "--ipc", "--mount"],
];

/// A new mount namespace alone hides nothing: /dev/shm and /tmp become private. The program may lie below /tmp, so it
/// is opened before.
const WITH_PRIVATE_MOUNTS: &str = "exec 3<\"$0\" && mount -t tmpfs a /dev/shm && mount -t tmpfs a /tmp && \
                                   exec setarch -R /proc/self/fd/3 \"$@\"";

/// Runs the ranks that `is_apart` names in new namespaces, and all of them without address space randomisation.
/// Returns their output.
fn check(ranks: usize, plane: &str, flags: &[&str], is_apart: impl Fn(usize) -> bool) -> Vec<String> {
    let apart = |rank: usize, command: &mut Command| {
        let program = command.get_program().to_owned();
        *command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        if is_apart(rank) {
            command.arg("unshare").args(flags);
        }
        if is_apart(rank) && flags.contains(&"--mount") {
            command.args(["sh", "-c", WITH_PRIVATE_MOUNTS]).arg(program);
        } else {
            command.args(["setarch", "-R"]).arg(program);
        }
        command.env(farandole::settings::PLANE.name, plane);
    };
    let outputs = Job::start_with(ranks, "namespaces", apart).finish();
    for (output, _) in &outputs {
        assert!(output.status.success() && said(output).contains("role done"), "{flags:?}: {}", said(output));
    }
    outputs.iter().map(|(output, _)| said(output)).collect()
}

#[test]
fn one_rank_in_namespaces_of_its_own_gets_and_gives_exact_results() {
    for flags in KINDS {
        for ranks in [2, 3] {
            check(ranks, "own", flags, |rank| rank == ranks - 1);
        }
    }
}

#[test]
fn ranks_with_equal_pids_in_pid_namespaces_of_their_own_do_not_sum_their_own_memory() {
    for ranks in [2, 3] {
        check(ranks, "own", KINDS[0], |_| true);
    }
}

/// The CUDA driver refuses to map memory of processes whose pids it takes for the caller's.
#[test]
fn ranks_in_pid_namespaces_of_their_own_do_not_map_device_memory_unasked_and_one_says_why() {
    const WHY: &str = "in different PID namespaces, where CUDA may refuse to map the device memory of a peer";
    let outputs = check(3, "auto", KINDS[0], |rank| rank == 1);
    assert_eq!(outputs.concat().matches(WHY).count(), 1, "{outputs:?}");
    let outputs = check(2, "auto", KINDS[1], |_| true);
    assert!(!outputs.concat().contains(WHY), "IPC namespaces do not matter: {outputs:?}");
}

/// The program of a rank: host memory, directly and by name, then device memory.
pub(crate) fn reduce_everywhere() {
    let mut world = Setup::new().devices(Arc::new(stand_in::open)).init().expect("ranks meet");
    for elems in [1, 1000, 300_000] {
        reduce_on_host(&mut world, elems);
    }
    exchange(&mut world);
    let collective = Collective::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 };
    let works = world.engine().works_on_devices(GroupId::WORLD, &collective, Dtype::I64).expect("the group exists");
    let may_map = world.engine().config().plane == DevicePlaneChoice::Own || have_common_pids(&mut world);
    assert_eq!(works, may_map, "the ranks of one host map each other's device memory where they may");
    let device = stand_in::open(0).expect("host memory stands in");
    for elems in [1, 1000, 300_000].into_iter().filter(|_| works) {
        reduce_on(&device, &world, elems);
    }
}

fn have_common_pids(world: &mut World) -> bool {
    let own = std::fs::metadata("/proc/self/ns/pid").expect("a PID namespace").ino();
    world.allgather(&[own]).expect("direct").into_iter().all(|namespace| namespace == own)
}

fn reduce_on_host(world: &mut World, elems: usize) {
    let expected = (1..=world.size() as u64).sum::<u64>();
    let mut data = vec![world.rank() as u64 + 1; elems];
    world.allreduce(&mut data, ReduceOp::Sum).expect("direct");
    assert!(data.iter().all(|&sum| sum == expected));
    // Negotiated, and learned.
    for _ in 0..5 {
        let data = vec![world.rank() as u64 + 1; elems];
        let sum = world
            .named(&format!("host {elems}"))
            .allreduce(data, ReduceOp::Sum)
            .expect("submit")
            .wait()
            .expect("named");
        assert!(sum.iter().all(|&sum| sum == expected));
    }
}

/// Blocks that are long enough to be read from where they lie, where the kernel allows it on all ranks.
fn exchange(world: &mut World) {
    const BLOCK: usize = 1 << 18;
    let (me, size) = (world.rank(), world.size());
    let data: Vec<u64> = (0..size * BLOCK).map(|at| (me * size * BLOCK + at) as u64).collect();
    let (mut received, counts) = (vec![0; size * BLOCK], vec![BLOCK; size]);
    world.communicator().alltoall(&data, &counts, &mut received, &counts).expect("direct");
    let expected = (0..size).flat_map(|from| (0..BLOCK).map(move |at| ((from * size + me) * BLOCK + at) as u64));
    assert!(received.into_iter().eq(expected));
}

fn reduce_on(device: &Device, world: &World, elems: usize) {
    let contribution = |rank: usize, at: usize| (rank as i64 + 3) << (at % 61);
    let collective = Collective::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 };
    let memory = device.allocate(elems * 8).expect("memory");
    let address = memory.address();
    let data: Vec<u8> = (0..elems).flat_map(|at| contribution(world.rank(), at).to_ne_bytes()).collect();
    device.write_and_wait(address, &data).expect("a write");
    let mut request = Request::new(format!("{elems}"), collective, Dtype::I64, [elems as u64]);
    request.device = farandole::Device::Gpu(0);
    let region: Region = memory.into_region(Dtype::I64);
    let outcome = world.engine().run(Submission::new(request, region)).expect("a sum in device memory");
    let mut found = vec![0; elems * 8];
    device.read_and_wait(address, &mut found).expect("a read");
    let sum = |at: usize| (0..world.size()).fold(0_i64, |sum, rank| sum.wrapping_add(contribution(rank, at)));
    let expected: Vec<u8> = (0..elems).flat_map(|at| sum(at).to_ne_bytes()).collect();
    assert!(found == expected, "{elems} elements: {:?} is not {:?}", &found[..8], &expected[..8]);
    drop(outcome);
}
