//! What a rank queues on its device for a bucket: the folds and copies of its share.
//!
//! The [`Share`] of a rank follows from where all tensors lie (`plan::device`); ranks that do not work for a device
//! have none. Folds of a bucket become one launch, or a few where there are many tensors; so do copies. An Adasum,
//! which is no fold, is in `adasum`.

use farandole_device::{DeviceCopy, DeviceFold, Mappings, Result, Stream, Uuid};
use farandole_plan::Collective;
use farandole_plan::device::{self, Move, Receivers};
use farandole_plan::fuse::BucketPlan;
use farandole_tensor::Finish;

use super::adasum::Combining;
use super::posting::Told;

/// Where a rank's tensors lie in this process: input and output of each, or nothing on a rank that has joined.
pub(super) type Places = Option<Vec<(u64, u64)>>;

/// Which part of the work is this rank's.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// Ranks that work.
    folders: usize,
    /// This rank among them.
    folder: usize,
    /// Whether this rank stores what a rank gets of copies.
    serves: Vec<bool>,
}

impl Share {
    /// That of the rank `me`, if it works for a device.
    pub(super) fn of(told: &[Told], me: usize) -> Option<Share> {
        let devices = devices_of(told);
        let folders = device::folders(&devices);
        let folder = folders.iter().position(|&local_rank| local_rank == me)?;
        let serves = devices.iter().map(|device| device.is_some() && *device == devices[me]).collect();
        Some(Share { folders: folders.len(), folder, serves })
    }

    /// That of the only rank of a host.
    pub(super) fn alone() -> Share {
        Share { folders: 1, folder: 0, serves: vec![true] }
    }

    /// Ranks that work.
    pub(super) fn folders(&self) -> usize {
        self.folders
    }

    /// This rank among them.
    pub(super) fn folder(&self) -> usize {
        self.folder
    }

    /// Whether this rank works for the device of another one.
    pub(super) fn serves(&self, local_rank: usize) -> bool {
        self.serves[local_rank]
    }
}

/// The ranks that work for a device.
pub(super) fn workers(told: &[Told]) -> Vec<usize> {
    device::folders(&devices_of(told))
}

fn devices_of(told: &[Told]) -> Vec<Option<Uuid>> {
    told.iter().map(|told| told.exports.first().map(|export| export.device)).collect()
}

/// Where the tensors that a rank has told of lie in this process.
///
/// # Errors
/// If its memory is gone, or out of reach.
pub(super) fn translate(mappings: &mut Mappings, told: &Told) -> Result<Places> {
    if told.places.is_empty() {
        return Ok(None);
    }
    let bases = told.exports.iter().map(|export| mappings.translate(export).map(|base| (base, export.base)));
    let bases: Vec<(u64, u64)> = bases.collect::<Result<_>>()?;
    // What has no elements lies nowhere, and nothing is done with it.
    let here = |place: Option<(usize, u64)>| {
        place.map_or(0, |(export, address)| {
            let (base, theirs) = bases[export];
            base + (address - theirs)
        })
    };
    Ok(Some(told.places.iter().map(|&(input, output)| (here(input), here(output))).collect()))
}

/// Where the shard that a rank has told of lies in this process.
///
/// # Errors
/// If its memory is gone, or out of reach.
pub(super) fn translate_shard(mappings: &mut Mappings, told: &Told) -> Result<u64> {
    let Some((export, address)) = told.shard else { return Ok(0) };
    let export = &told.exports[export];
    Ok(mappings.translate(export)? + (address - export.base))
}

/// What a rank does of a bucket.
pub(super) struct Work<'a> {
    pub(super) plan: &'a BucketPlan,
    pub(super) moves: &'a [Move],
    pub(super) places: &'a [Places],
    pub(super) share: &'a Share,
    /// Ranks of the group.
    pub(super) size: usize,
}

impl Work<'_> {
    /// Bytes of scratch memory that it takes.
    pub(super) fn scratch_bytes(&self) -> u64 {
        Combining::of(self.plan, self.places, self.share).map_or(0, |combining| combining.scratch_bytes())
    }

    /// Queues it, and says whether there was anything to do.
    ///
    /// # Errors
    /// If the driver refuses, or the device has failed.
    pub(super) fn queue(&self, stream: &Stream, scratch: u64) -> Result<bool> {
        let Work { plan, moves, places, share, size } = *self;
        if let Some(combining) = Combining::of(plan, places, share) {
            return combining.queue(stream, scratch);
        }
        let folded = queue_folds(stream, plan, moves, places, share, size)?;
        let copies = copies(plan, moves, places, share);
        stream.copy(&copies)?;
        Ok(folded || !copies.is_empty())
    }
}

fn queue_folds(
    stream: &Stream,
    plan: &BucketPlan,
    moves: &[Move],
    places: &[Places],
    share: &Share,
    size: usize,
) -> Result<bool> {
    let Some((op, prescale, postscale)) = plan.collective.reduction() else { return Ok(false) };
    let contributions: Vec<&Vec<(u64, u64)>> = places.iter().flatten().collect();
    let in_place = matches!(plan.collective, Collective::Allreduce { .. })
        && contributions.iter().all(|tensors| tensors.iter().all(|(input, output)| input == output));
    let folds: Vec<Fold> = moves.iter().filter_map(|one| Fold::of(one, places)).collect();
    let lengths: Vec<u64> = folds.iter().map(|fold| fold.len).collect();
    let elem_bytes = plan.dtype.size_bytes() as u64;
    let (mut elems, mut addresses, mut targets) = (Vec::new(), Vec::new(), 0);
    for (number, span) in device::share(&lengths, share.folders, share.folder) {
        let Fold { part, source_start, target_start, to, .. } = folds[number];
        let source = (source_start + span.start) * elem_bytes;
        elems.push(span.len);
        addresses.extend(contributions.iter().map(|tensors| tensors[part].0 + source));
        if in_place {
            continue;
        }
        let target = (target_start + span.start) * elem_bytes;
        let before = addresses.len();
        let stored = |tensors: &Vec<(u64, u64)>| tensors[part].1 + target;
        match to {
            Receivers::All => addresses.extend(contributions.iter().map(|tensors| stored(tensors))),
            Receivers::One(rank) => addresses.extend(places[rank].iter().map(stored)),
        }
        targets = addresses.len() - before;
    }
    if elems.is_empty() {
        return Ok(false);
    }
    let finish = Finish::new(plan.dtype, op, size as u64, postscale);
    let (dtype, ranks) = (plan.dtype, contributions.len());
    stream.fold(&DeviceFold {
        dtype,
        stored: dtype,
        op,
        prescale,
        finish,
        ranks,
        targets,
        elems: &elems,
        addresses: &addresses,
    })?;
    Ok(true)
}

/// A fold whose result somebody gets.
struct Fold {
    part: usize,
    source_start: u64,
    len: u64,
    target_start: u64,
    to: Receivers,
}

impl Fold {
    fn of(one: &Move, places: &[Places]) -> Option<Fold> {
        let Move::Fold { part, source, target_start, to } = *one else { return None };
        // A rank that has joined wants no result.
        let wanted = match to {
            Receivers::All => true,
            Receivers::One(rank) => places[rank].is_some(),
        };
        wanted.then_some(Fold { part, source_start: source.start, len: source.len, target_start, to })
    }
}

fn copies(plan: &BucketPlan, moves: &[Move], places: &[Places], share: &Share) -> Vec<DeviceCopy> {
    let elem_bytes = plan.dtype.size_bytes() as u64;
    let copy = |one: &Move| {
        let Move::Copy { part, from, source, to, target_start } = *one else { return None };
        let (sender, receiver) = (places[from].as_ref()?, places[to].as_ref()?);
        let copy = DeviceCopy {
            source: sender[part].0 + source.start * elem_bytes,
            target: receiver[part].1 + target_start * elem_bytes,
            bytes: source.len * elem_bytes,
        };
        (share.serves[to] && copy.source != copy.target).then_some(copy)
    };
    moves.iter().filter_map(copy).collect()
}
