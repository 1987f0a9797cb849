//! Joining and leaving a job, this rank's place in it, errors and versions.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};
use std::sync::Arc;
use std::time::Duration;

use farandole::{Address, Environment, Protection, Rank, Setup, StoreRank, World, settings};

use crate::job::{self, Job};
use crate::pointer::{Place, array, optional_text, put, sized, text};
use crate::status::{self, Fault, Status};

/// Major times 1000 plus minor. The major one changes when a program that was compiled before would break; the library
/// then has another file name.
const ABI_VERSION: i32 = 1_000;

/// `farandole_options`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Options {
    size: usize,
    start_timeout_seconds: f64,
    wire_protection: *const c_char,
    rank: i32,
    world_size: i32,
    job: *const c_char,
    rank_zero_address: *const c_char,
    process_set_ranks: *const i32,
    process_set_sizes: *const i32,
    process_set_count: usize,
}

impl Options {
    const NONE: Options = Options {
        size: size_of::<Options>(),
        start_timeout_seconds: 0.0,
        wire_protection: std::ptr::null(),
        rank: 0,
        world_size: 0,
        job: std::ptr::null(),
        rank_zero_address: std::ptr::null(),
        process_set_ranks: std::ptr::null(),
        process_set_sizes: std::ptr::null(),
        process_set_count: 0,
    };

    /// How the world is set up.
    ///
    /// # Safety
    /// Pointers are null or what the header says.
    unsafe fn setup(&self) -> Result<Setup, Fault> {
        let mut setup = Setup::new();
        // SAFETY: promised by the caller.
        let protection = unsafe { optional_text(self.wire_protection, "wire_protection") }?;
        if let Some(word) = protection {
            setup = setup.wire_protection(Protection::from_word(word).ok_or_else(|| {
                let what = "wire_protection is \"off\", \"checksum\" or \"encrypt\"";
                Fault::argument(format!("{what}, not {word:?}"))
            })?);
        }
        if self.start_timeout_seconds != 0.0 {
            let patience = Duration::try_from_secs_f64(self.start_timeout_seconds)
                .map_err(|_| Fault::argument(format!("start_timeout_seconds is {}", self.start_timeout_seconds)))?;
            setup = setup.patience(patience);
        }
        if self.world_size != 0 {
            // SAFETY: promised by the caller.
            setup = setup.environment(unsafe { self.environment() }?);
        }
        Ok(setup)
    }

    /// Which rank this process is, by the program's own word.
    ///
    /// # Safety
    /// As [`Options::setup`].
    unsafe fn environment(&self) -> Result<Environment, Fault> {
        let whole = |number: i32, what: &str| {
            u32::try_from(number).map_err(|_| Fault::argument(format!("{what} is {number}, which is below zero")))
        };
        let (rank, size) = (whole(self.rank, "rank")?, whole(self.world_size, "world_size")? as usize);
        // SAFETY: promised by the caller.
        let (job, address) =
            unsafe { (text(self.job, "job")?, optional_text(self.rank_zero_address, "rank_zero_address")?) };
        let rank_zero = address.map(str::parse::<Address>).transpose().map_err(Fault::argument)?;
        let known = StoreRank { rank: Rank(rank), size, job: job.to_owned(), rank_zero };
        Environment::from_store(known).map_err(|error| Fault::argument(error.to_string()))
    }
}

/// Process sets that lie one after the other, with the number of ranks of each.
///
/// # Safety
/// `ranks` and `sizes` are null or what the header says.
pub(crate) unsafe fn read_sets(ranks: *const i32, sizes: *const i32, count: usize) -> Result<Vec<Vec<u32>>, Fault> {
    // SAFETY: promised by the caller.
    let sizes = unsafe { array(sizes, count, "process_set_sizes") }?;
    let mut sets = Vec::with_capacity(sizes.len());
    let mut begin = ranks;
    for &size in sizes {
        let size = usize::try_from(size).map_err(|_| Fault::argument(format!("a process set of {size} ranks")))?;
        // SAFETY: the ranks of this set follow those of the sets before it, by the caller's word.
        let members = unsafe { array(begin, size, "process_set_ranks") }?;
        sets.push(members.iter().map(|&rank| read_rank(rank)).collect::<Result<Vec<u32>, Fault>>()?);
        begin = begin.wrapping_add(size);
    }
    Ok(sets)
}

/// A rank that may be one.
pub(crate) fn read_rank(rank: i32) -> Result<u32, Fault> {
    u32::try_from(rank).map_err(|_| Fault::argument(format!("there is no rank {rank}")))
}

/// Begins the job of this process, for C.
pub(crate) fn begin(setup: Setup, sets: &[Vec<u32>]) -> Result<(), Fault> {
    if let Some(job) = job::peek() {
        return if job.world.engine().is_forked() { Err(Fault::forked()) } else { Ok(()) };
    }
    let setup = match job::interpreter() {
        Some(interpreter) => interpreter.prepare(setup),
        None => setup,
    };
    let dynamic = settings::DYNAMIC_PROCESS_SETS.read(|variable| std::env::var(variable).ok()).unwrap_or(false);
    Ok(job::begin(setup, sets, dynamic)?)
}

/// The job, for a question that a forked child may ask, too.
pub(crate) fn asked() -> Result<Arc<Job>, Fault> {
    job::peek().ok_or_else(Fault::not_initialized)
}

/// The job, for everything else.
pub(crate) fn current() -> Result<Arc<Job>, Fault> {
    let job = asked()?;
    if job.world.engine().is_forked() { Err(Fault::forked()) } else { Ok(job) }
}

/// A number for C.
pub(crate) fn int(number: usize) -> Result<i32, Fault> {
    i32::try_from(number).map_err(|_| Fault::argument(format!("{number} is more than C's int32_t holds")))
}

fn place(of: impl FnOnce(&World) -> usize) -> Result<i32, Fault> {
    int(of(&asked()?.world))
}

/// Whether all hosts have the same number of ranks.
pub(crate) fn is_homogeneous(world: &World) -> bool {
    let topology = world.topology();
    let mut sizes = (0..topology.size()).map(|rank| topology.local_size(Rank::from(rank)));
    let first = sizes.next();
    sizes.all(|size| Some(size) == first)
}

exported! {
    /// The version of the ABI.
    fn farandole_abi_version() -> i32, otherwise 0; { Ok(ABI_VERSION) }
}

exported! {
    /// The version of the library, in words.
    fn farandole_version() -> *const c_char, otherwise c"".as_ptr(); {
        const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
        Ok(VERSION.as_ptr().cast())
    }
}

exported! {
    /// What a status means.
    fn farandole_status_string(status: i32) -> *const c_char, otherwise c"".as_ptr(); {
        Ok(status::meaning(status).as_ptr())
    }
}

exported! {
    /// The text of this thread's last error.
    fn farandole_last_error() -> *const c_char, otherwise c"".as_ptr(); { Ok(status::last()) }
}

exported! {
    /// Makes this process a rank of its job.
    fn farandole_init(options: *const Options) {
        // SAFETY: promised by the caller.
        let (setup, sets) = unsafe {
            let options = match options.is_null() {
                true => Options::NONE,
                false => sized(options, size_of::<Options>(), Options::NONE, "farandole_options")?,
            };
            let (ranks, sizes) = (options.process_set_ranks, options.process_set_sizes);
            (options.setup()?, read_sets(ranks, sizes, options.process_set_count)?)
        };
        begin(setup, &sets)
    }
}

exported! {
    /// Leaves the job.
    fn farandole_shutdown() {
        job::end();
        Ok(())
    }
}

exported! {
    /// Whether this process is a rank.
    fn farandole_is_initialized() -> c_int, otherwise 0; { Ok(c_int::from(job::peek().is_some())) }
}

exported! {
    /// This rank.
    fn farandole_rank() -> i32, otherwise -1; { place(World::rank) }
}

exported! {
    /// Number of ranks.
    fn farandole_size() -> i32, otherwise -1; { place(World::size) }
}

exported! {
    /// This rank's number on its host.
    fn farandole_local_rank() -> i32, otherwise -1; { place(World::local_rank) }
}

exported! {
    /// Number of ranks on this host.
    fn farandole_local_size() -> i32, otherwise -1; { place(World::local_size) }
}

exported! {
    /// Number of this host among those that have a rank with this local rank.
    fn farandole_cross_rank() -> i32, otherwise -1; { place(World::cross_rank) }
}

exported! {
    /// Number of hosts that have a rank with this local rank.
    fn farandole_cross_size() -> i32, otherwise -1; { place(World::cross_size) }
}

exported! {
    /// Whether all hosts have the same number of ranks.
    fn farandole_is_homogeneous() -> i32, otherwise -1; { Ok(i32::from(is_homogeneous(&asked()?.world))) }
}

exported! {
    /// Ends all collectives of the job, with a cause.
    fn farandole_abort(cause: *const c_char) {
        // SAFETY: promised by the caller.
        let cause = unsafe { text(cause, "cause") }?;
        current()?.abort(cause);
        Ok(())
    }
}

exported! {
    /// Whether this rank is still in its job.
    fn farandole_fence(generation: Place<'_, u64>) {
        let confirmed = current()?.world.fence().map_err(|error| Fault::new(Status::Failed, error.to_string()))?;
        put(generation, "generation", confirmed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_has_the_same_version() {
        let line = format!("#define FARANDOLE_ABI_VERSION {ABI_VERSION}\n");
        assert!(crate::HEADER.contains(&line), "the header lacks `{line}`");
    }

    #[test]
    fn options_that_cannot_be_right_are_refused_before_anybody_is_met() {
        let words = |options: Options| {
            // SAFETY: texts end with a zero.
            let fault = unsafe { options.setup() }.map(drop).unwrap_err();
            fault.text.into_string().expect("UTF-8")
        };
        let wrong = Options { wire_protection: c"aes".as_ptr(), ..Options::NONE };
        assert!(words(wrong).contains("not \"aes\""));
        assert!(words(Options { start_timeout_seconds: -1.0, ..Options::NONE }).contains("-1"));
        assert!(words(Options { world_size: -2, ..Options::NONE }).contains("below zero"));
        assert!(words(Options { world_size: 2, ..Options::NONE }).contains("job is a null pointer"));
    }

    #[test]
    fn sets_are_read_one_after_the_other() {
        let (ranks, sizes) = ([0, 2, 1, 3, 4], [2, 3]);
        // SAFETY: there are as many as is said.
        let sets = unsafe { read_sets(ranks.as_ptr(), sizes.as_ptr(), 2) }.expect("two sets");
        assert_eq!(sets, [vec![0, 2], vec![1, 3, 4]]);
        // SAFETY: as above.
        assert!(unsafe { read_sets(ranks.as_ptr(), [-1].as_ptr(), 1) }.is_err());
    }

    #[test]
    fn before_the_beginning_there_is_nothing_to_ask() {
        // SAFETY: no pointers.
        unsafe {
            assert_eq!((farandole_is_initialized(), farandole_rank(), farandole_size()), (0, -1, -1));
            assert_eq!(farandole_abort(c"no".as_ptr()), crate::status::Status::NotInitialized as i32);
            assert_eq!(farandole_shutdown(), 0);
        }
    }
}
