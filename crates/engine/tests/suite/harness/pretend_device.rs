//! Ranks with pretended devices: their tensors lie there, and are computed late.
//!
//! Two ranks share a device, as ranks of one host do. A tensor gets its data by a copy in a stream of the program's,
//! which has not run when the tensor is submitted: whoever does not wait for the event behind it folds zeros. Programs
//! that run ahead see their results after the event of the outcome ([`when_there`]).

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use farandole_device::pretend::{CopyLog, DeviceFaults, Pretend, PretendNccl};
use farandole_device::{Device, DeviceCopy, Uuid};
use farandole_engine::config::DevicePlaneChoice;
use farandole_engine::{Engine, Hooks, OpenDevice, Outcome, Submission};
use farandole_plan::{Dtype, Request};
use farandole_tensor::{Finish, OwnedBytes, Region, copy_finished};

/// Looks at an event before it happens.
const DELAY_LOOKS: u32 = 3;

/// Hooks with a device for this rank, which has faults.
pub fn hooks_with(rank: usize, faults: DeviceFaults) -> Hooks {
    hooks_of(rank, Pretend::with(DELAY_LOOKS, faults))
}

/// Hooks with a device for this rank that notes its copies to and from the host.
pub fn hooks_noting(rank: usize, copies: CopyLog) -> Hooks {
    hooks_of(rank, Pretend::with(DELAY_LOOKS, DeviceFaults::default()).noting(copies))
}

fn hooks_of(rank: usize, device: Pretend) -> Hooks {
    let device = device.sharing(uuid(rank)).in_process(1 + rank as u32).device();
    let open: OpenDevice = Arc::new(move |_| Ok(device.clone()));
    Hooks { devices: Some(open), ..Hooks::default() }
}

/// Hooks with a device for this rank, and with NCCL.
pub fn hooks_with_nccl(rank: usize, nccl: PretendNccl) -> Hooks {
    Hooks { nccl: Some(Arc::new(nccl)), ..hooks(rank) }
}

/// Hooks with a device for this rank.
pub fn hooks(rank: usize) -> Hooks {
    hooks_with(rank, DeviceFaults::default())
}

fn uuid(rank: usize) -> Uuid {
    Uuid([rank as u8 / 2; 16])
}

/// What programs compute on. All pretended devices have the same memory.
pub fn program() -> &'static Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    DEVICE.get_or_init(|| Pretend::new().device())
}

/// The same with memory that other ranks cannot map.
fn private() -> &'static Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    DEVICE.get_or_init(|| Pretend::new().private().device())
}

/// The same submission with its tensors on a device, if the engine works on them there.
pub fn moved(engine: &Engine, submission: Submission) -> Submission {
    let Request { collective, dtype, .. } = &submission.request;
    match engine.works_on_devices(submission.group, collective, *dtype).unwrap() {
        true => on_device(submission, program()),
        false => submission,
    }
}

/// The same, unless NCCL would round where other planes do not: it adds halves in half precision.
pub fn moved_if_exact(engine: &Engine, submission: Submission) -> Submission {
    let is_half = matches!(submission.request.dtype, Dtype::F16 | Dtype::BF16);
    let may_round = is_half && submission.request.collective.reduction().is_some();
    match may_round && engine.config().plane == DevicePlaneChoice::PreferNccl {
        true => submission,
        false => moved(engine, submission),
    }
}

/// The same, and of some names all ranks run ahead, of others only some.
pub fn moved_in_turns(engine: &Engine, submission: Submission) -> Submission {
    let number = submission.request.name.bytes().map(usize::from).sum::<usize>();
    let runs_ahead = match number % 3 {
        0 => true,
        1 => engine.rank().index() % 2 == number / 3 % 2,
        _ => false,
    };
    Submission { runs_ahead, ..moved_if_exact(engine, submission) }
}

/// An outcome when its result is there.
///
/// # Panics
/// If that takes too long.
pub fn when_there(mut outcome: Outcome) -> Outcome {
    if let Some(after) = outcome.after.take() {
        let what = "the result of a queued bucket";
        farandole_testing::wait_until(what, Duration::from_secs(60), || after.has_happened().unwrap());
    }
    outcome
}

/// The same in memory that other ranks cannot map.
pub fn moved_to_private_memory(submission: Submission) -> Submission {
    on_device(submission, private())
}

/// The same with halves held in single precision: the request still says halves.
pub fn held_as_singles(mut submission: Submission) -> Submission {
    let widened = |region: Region| {
        let bytes = widened(region.as_bytes(), region.dtype());
        Region::from_owned_bytes(OwnedBytes::from_slice(&bytes), Dtype::F32)
    };
    submission.input = submission.input.map(widened);
    submission.output = submission.output.map(widened);
    submission
}

/// Halves as singles.
pub fn widened(bytes: &[u8], dtype: Dtype) -> Vec<u8> {
    let mut singles = vec![0; bytes.len() / dtype.size_bytes() * 4];
    copy_finished(&mut singles, Dtype::F32, bytes, dtype, Finish::Nothing);
    singles
}

fn on_device(mut submission: Submission, device: &Device) -> Submission {
    let stream = device.stream().unwrap();
    submission.input = submission.input.map(|region| computed_late(&region, device, &stream));
    submission.output = submission.output.map(|region| computed_late(&region, device, &stream));
    let ordinal = submission.input.as_ref().and_then(Region::device).unwrap().ordinal;
    submission.request.device = farandole_plan::Device::Gpu(ordinal);
    let ready = stream.record().unwrap();
    // A stream that ends runs first what is in it.
    std::mem::forget(stream);
    submission.ready_after(ready)
}

/// A region on a device that will have these contents when the stream has come so far.
fn computed_late(region: &Region, device: &Device, stream: &farandole_device::Stream) -> Region {
    let bytes = region.as_bytes();
    let (source, target) = (device.allocate(bytes.len()).unwrap(), device.allocate(bytes.len()).unwrap());
    device.write_and_wait(source.address(), bytes).unwrap();
    stream
        .copy(&[DeviceCopy { source: source.address(), target: target.address(), bytes: bytes.len() as u64 }])
        .unwrap();
    // Zero bytes lie nowhere in particular.
    target.into_region(region.dtype()).keeping(source)
}

/// The contents of a region, wherever it lies.
pub fn contents(region: &Region) -> Vec<u8> {
    let Some(place) = region.device() else { return region.as_bytes().to_vec() };
    let mut bytes = vec![0; region.len_bytes()];
    program().read_and_wait(place.address, &mut bytes).unwrap();
    bytes
}
