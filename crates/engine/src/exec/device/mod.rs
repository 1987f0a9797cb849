//! Buckets in device memory.
//!
//! Ranks of one host see each other's device memory: each tells where its tensors lie (`tensors`, `posting`), and maps
//! what the others tell. When all have their data, the ranks that work for a device (`plan::device`, `work`, `adasum`)
//! read the contributions where they lie and store the results where they belong. Nothing is copied on the way, except
//! where other processes cannot map a tensor: then it is packed into a fusion buffer on the device, which they can.
//! Memory for results whose size only the agreement tells comes from `results`. `run` has the steps, which `stopwatch`
//! times while a trace is kept.
//!
//! Ranks meet in one of two ways. Where the program waits for results on the host, through the same flags as on the
//! host: *exposed* means that the contribution is there, *settled* that this rank has done its share and uses no memory
//! of others any more. The host looks at events and never waits for the device, except where a collective is given up
//! while kernels still use its memory. Where the program lets its streams wait for results, all is queued at once and
//! the devices wait for each other (`ordered`, `peer_words`); the host goes on to the next bucket (`trailing`). After a
//! failure, memory is given back when no device uses it (`giving_up`).
//!
//! [`DevicePlane`] is what a group keeps between buckets. It opens a device when the first bucket comes that has memory
//! there: a job on processors does not pay for it.

mod adasum;
mod exchange;
mod giving_up;
pub(crate) mod hosts;
pub(crate) mod in_flight;
mod ordered;
pub(crate) mod packing;
mod peer_words;
mod pipeline;
mod posting;
mod results;
mod run;
mod same_device;
pub(crate) mod shards;
mod sharing;
pub(crate) mod stopwatch;
pub(crate) mod tensors;
pub(crate) mod trailing;
mod work;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farandole_device::{
    Allocation, Device, Error as DeviceError, Event, Exports, Hits, Mappings, Pinned, Result, Stream,
};
use farandole_trace::event::DeviceCache;
use farandole_transport::shm::Windows;
use farandole_transport::{Bell, Mesh};

use crate::bucket::GroupRank;
use crate::pending::PendingTable;
use giving_up::GivingUp;
use peer_words::PeerWords;
use posting::Told;
use results::ResultPool;
pub(crate) use run::DeviceRun;
use same_device::SharingWatch;
use stopwatch::Stopwatch;
use trailing::Trailing;
use work::Places;

/// Opens a device by its number in this process.
pub type OpenDevice = Arc<dyn Fn(u32) -> Result<Device> + Send + Sync>;

/// How long a rank that needs more memory waits until it can give back what it had. Otherwise that is kept until it
/// needs more again: device memory is scarce, but not as scarce as to hold everything up.
const OUTGROWN_WITHIN: Duration = Duration::from_millis(100);

/// See the module's text.
pub(crate) struct DevicePlane {
    open: OpenDevice,
    bell: Bell,
    opened: BTreeMap<u32, Opened>,
    words: PlaneWords,
    pub(crate) trailing: Trailing,
    sharing_watch: SharingWatch,
    /// Since the group has failed.
    giving_up: Option<GivingUp>,
}

/// By which this rank's device and those of its peers wait for each other.
#[derive(Debug, Default)]
enum PlaneWords {
    /// Nobody has asked for them.
    #[default]
    Unasked,
    /// On this device of the process.
    On(u32, PeerWords),
    /// Its streams cannot wait for memory.
    Impossible,
}

/// A device that this group uses.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) device: Device,
    /// What the group does on the device runs in order.
    pub(crate) stream: Stream,
    /// Where the driver is asked to wake us, beside that.
    doorbell: Stream,
    mappings: Mappings,
    /// Behind the work that uses mappings which the current bucket has to close.
    draining: Option<Event>,
    exports: Exports,
    results: ResultPool,
    fusion: Option<Allocation>,
    /// What was too small, and after which event nothing uses it.
    outgrown: Vec<(Event, Allocation)>,
    /// Where this rank's share of an allreduce between hosts is collected, and what it travels from.
    shard: Option<Allocation>,
    /// What Adasum needs between its kernels.
    scratch: Option<Allocation>,
    pinned: Option<Pinned>,
    /// What comes back from there, beside what goes there.
    returns: Option<Stream>,
}

/// What a shard goes to the host by, and comes back by.
struct WaysToHost<'a> {
    to_host: &'a Stream,
    to_device: &'a Stream,
    pinned: &'a mut Pinned,
}

/// What a run in device memory follows from, besides its bucket.
pub(crate) struct Begin<'a> {
    pub(crate) plane: &'a mut DevicePlane,
    pub(crate) table: &'a PendingTable,
    pub(crate) mesh: &'a Mesh,
    pub(crate) here: GroupRank,
    /// Stands for what this rank takes the operation to be.
    pub(crate) descriptor: u64,
    pub(crate) stopwatch: Stopwatch,
}

impl DevicePlane {
    pub(crate) fn new(open: OpenDevice, bell: Bell) -> DevicePlane {
        DevicePlane {
            open,
            bell,
            opened: BTreeMap::new(),
            words: PlaneWords::default(),
            trailing: Trailing::default(),
            sharing_watch: SharingWatch::default(),
            giving_up: None,
        }
    }

    /// Lets it tell of ranks that share a device though at most so many were meant to; zero: nobody knows.
    pub(crate) fn watching(mut self, ranks_each: u64) -> DevicePlane {
        self.sharing_watch = SharingWatch::new(ranks_each);
        self
    }

    /// A device of this process, which is opened if need be.
    pub(crate) fn opened(&mut self, ordinal: u32) -> Result<&mut Opened> {
        Ok(match self.opened.entry(ordinal) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Opened::new((self.open)(ordinal)?)?),
        })
    }

    /// Whether buckets on this device can be ordered by devices. Words are registered once, for the first device that
    /// asks.
    fn has_words(&mut self, ordinal: u32, windows: &Windows) -> Result<bool> {
        if let PlaneWords::Unasked = self.words {
            self.words = match PeerWords::register(&self.opened(ordinal)?.device, windows) {
                Ok(words) => PlaneWords::On(ordinal, words),
                Err(error) if error.is_sticky() => return Err(error),
                Err(error) => {
                    log::debug!("hosts order what devices do: {error}");
                    PlaneWords::Impossible
                }
            };
        }
        Ok(matches!(self.words, PlaneWords::On(on, _) if on == ordinal))
    }

    /// A device, and the words of its streams, if it has any.
    fn opened_with_words(&mut self, ordinal: u32) -> Result<(&mut Opened, Option<&mut PeerWords>)> {
        self.opened(ordinal)?;
        let opened = self.opened.get_mut(&ordinal).expect("invariant: it was just opened");
        let words = match &mut self.words {
            PlaneWords::On(on, words) if *on == ordinal => Some(words),
            _ => None,
        };
        Ok((opened, words))
    }

    /// The addresses, in this process, of the tensors that all ranks of the host have told of. `None`: a mapping has to
    /// be closed that work in the stream may use. The driver is rung when that work is done, and calls again.
    fn translate_all(
        &mut self,
        ordinal: u32,
        told: &[Told],
        windows: &Windows,
    ) -> farandole_transport::Result<Option<Vec<Places>>> {
        let opened = self.opened(ordinal).map_err(|error| local(format!("opening device {ordinal}"), error))?;
        let mut is_idle = match &opened.draining {
            Some(event) if !event.has_happened().map_err(|error| local("waiting for the device", error))? => {
                return Ok(None);
            }
            Some(_) => true,
            None => false,
        };
        opened.draining = None;
        let mut all = Vec::with_capacity(told.len());
        for (local_rank, told) in told.iter().enumerate() {
            let failed =
                |error| local(format!("mapping the device memory of rank {}", windows.rank(local_rank)), error);
            let closes = told.exports.iter().any(|export| opened.mappings.closes_others(export));
            if closes && !is_idle {
                let event = opened.stream.record().map_err(failed)?;
                is_idle = event.has_happened().map_err(failed)?;
                if !is_idle {
                    self.drain(ordinal, event).map_err(failed)?;
                    return Ok(None);
                }
            }
            all.push(work::translate(&mut opened.mappings, told).map_err(failed)?);
        }
        Ok(Some(all))
    }

    /// Keeps an event behind work whose mappings are to be closed, and has the driver rung when it happens.
    fn drain(&mut self, ordinal: u32, event: Event) -> Result<()> {
        self.ring_after(ordinal, &event)?;
        self.opened(ordinal)?.draining = Some(event);
        Ok(())
    }

    /// How long what trails has stood still, and the local rank whose data are not there, if one can be named.
    pub(crate) fn stands_still(&self, now: Duration) -> Option<(Duration, Option<usize>)> {
        let (still, round) = self.trailing.stands_still(now)?;
        let PlaneWords::On(_, words) = &self.words else { return Some((still, None)) };
        Some((still, round.and_then(|round| words.first_behind(round))))
    }

    /// A device that is open, or the first one of this process.
    fn any_ordinal(&self) -> u32 {
        self.opened.keys().next().copied().unwrap_or(0)
    }

    /// How often what was asked of the caches was there, on all devices.
    pub(crate) fn hits(&self) -> [(DeviceCache, Hits); 2] {
        let sum = |of: fn(&Opened) -> Hits| {
            self.opened
                .values()
                .map(of)
                .fold(Hits::default(), |sum, one| Hits { hits: sum.hits + one.hits, misses: sum.misses + one.misses })
        };
        [
            (DeviceCache::Mappings, sum(|opened| opened.mappings.hits())),
            (DeviceCache::Exports, sum(|opened| opened.exports.hits())),
        ]
    }

    /// Wakes the driver when an event has happened on a device.
    pub(crate) fn ring_after(&mut self, ordinal: u32, event: &Event) -> Result<()> {
        let bell = self.bell.clone();
        let opened = self.opened(ordinal)?;
        opened.doorbell.wait(event)?;
        opened.doorbell.call_when_reached(move || bell.ring())
    }
}

impl Drop for DevicePlane {
    fn drop(&mut self) {
        self.keep_for_good();
    }
}

impl Opened {
    fn new(device: Device) -> Result<Opened> {
        let (stream, doorbell) = (device.stream()?, device.stream()?);
        let (mappings, exports) = (Mappings::new(device.clone()), Exports::new(device.clone()));
        Ok(Opened {
            device,
            stream,
            doorbell,
            mappings,
            draining: None,
            exports,
            results: ResultPool::default(),
            fusion: None,
            outgrown: Vec::new(),
            shard: None,
            scratch: None,
            pinned: None,
            returns: None,
        })
    }

    /// A fusion buffer of at least this size on the device.
    pub(crate) fn fusion(&mut self, bytes: usize) -> Result<&Allocation> {
        grow(&mut self.fusion, &mut self.outgrown, bytes, &self.device, &self.stream)
    }

    /// Where a shard of this size lies on the device.
    fn shard(&mut self, bytes: usize) -> Result<u64> {
        if bytes == 0 {
            return Ok(0);
        }
        let shard = grow(&mut self.shard, &mut self.outgrown, bytes, &self.device, &self.stream)?;
        Ok(shard.address())
    }

    /// Memory for numbers between kernels of a bucket.
    fn scratch(&mut self, bytes: u64) -> Result<u64> {
        if bytes == 0 {
            return Ok(0);
        }
        let scratch = grow(&mut self.scratch, &mut self.outgrown, bytes as usize, &self.device, &self.stream)?;
        Ok(scratch.address())
    }

    /// Streams to copy by, and pinned host memory of at least this size.
    fn ways_to_host(&mut self, bytes: usize) -> Result<WaysToHost<'_>> {
        let pinned = match self.pinned.take() {
            Some(pinned) if pinned.len_bytes() >= bytes => pinned,
            smaller => {
                // Copies from and to it are over: a run that is given up waits for them.
                drop(smaller);
                self.device.allocate_pinned(bytes.next_power_of_two())?
            }
        };
        let returns = match self.returns.take() {
            Some(returns) => returns,
            None => self.device.stream()?,
        };
        let (to_device, pinned) = (self.returns.insert(returns), self.pinned.insert(pinned));
        Ok(WaysToHost { to_host: &self.stream, to_device, pinned })
    }
}

/// Makes memory of a group at least so large. The last use of a smaller piece is in the stream: buckets of a group run
/// one after the other. Usually it is over; but what trails may wait for a rank that is lost, and whoever hears of that
/// must not wait here.
fn grow<'a>(
    memory: &'a mut Option<Allocation>,
    outgrown: &mut Vec<(Event, Allocation)>,
    bytes: usize,
    device: &Device,
    stream: &Stream,
) -> Result<&'a Allocation> {
    match memory.take() {
        Some(there) if there.len_bytes() >= bytes => return Ok(memory.insert(there)),
        Some(smaller) => outgrown.push((stream.record()?, smaller)),
        None => {}
    }
    let begun = Instant::now();
    while let Some((last_use, _)) = outgrown.last() {
        if last_use.has_happened()? {
            outgrown.clear();
        } else if begun.elapsed() > OUTGROWN_WITHIN {
            break;
        } else {
            std::thread::sleep(Duration::from_micros(20));
        }
    }
    Ok(memory.insert(device.allocate(bytes.next_power_of_two())?))
}

impl fmt::Debug for DevicePlane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DevicePlane").field("opened", &self.opened).finish_non_exhaustive()
    }
}

/// A failure of a device, as one of this side.
pub(crate) fn local(doing: impl Into<String>, error: DeviceError) -> farandole_transport::Error {
    farandole_transport::Error::local(doing, std::io::Error::other(error))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use farandole_device::Export;
    use farandole_device::pretend::{DeviceFaults, Pretend};
    use farandole_transport::Waiter;
    use farandole_transport::shm::Layout;

    use super::*;

    #[derive(Default)]
    struct Word(Arc<[AtomicU32; 1]>);

    impl AsRef<[AtomicU32]> for Word {
        fn as_ref(&self) -> &[AtomicU32] {
            &*self.0
        }
    }

    fn told(export: Export) -> Told {
        let place = Some((0, export.base));
        Told { exports: vec![export], places: vec![(place, place)], ..Told::default() }
    }

    /// A wait on the driver's thread would last until a word is written that may never be.
    #[test]
    fn a_mapping_is_closed_when_the_stream_is_idle_and_the_driver_does_not_wait_for_that() {
        let pretend = |pid| Pretend::with(0, DeviceFaults::default()).in_process(pid).device();
        let (device, peer, waiter) = (pretend(1), pretend(2), Waiter::new().unwrap());
        let bells = [waiter.bell(), waiter.bell()];
        let windows = Windows::for_threads(Layout::standard(2), &bells).unwrap().remove(0);
        let opened = device.clone();
        let mut plane = DevicePlane::new(Arc::new(move |_| Ok(opened.clone())), waiter.bell());

        let first = peer.allocate(64).unwrap();
        let export = peer.export(first.address()).unwrap();
        let mut translate = |export: &Export| plane.translate_all(0, &[told(export.clone())], &windows);
        assert!(translate(&export).unwrap().is_some(), "there is nothing to close");
        drop(first);
        let again = peer.allocate(64).unwrap();
        let export = peer.export(again.address()).unwrap();
        assert_eq!(again.address(), export.base, "it has the place of the first");

        let held = device.words(Box::new(Word::default())).unwrap();
        plane.opened(0).unwrap().stream.wait_word(&held, 0, 1).unwrap();
        let mut translate = |export: &Export| plane.translate_all(0, &[told(export.clone())], &windows);
        assert!(translate(&export).unwrap().is_none() && translate(&export).unwrap().is_none());
        held.set(0, 1);
        assert!(translate(&export).unwrap().is_some());
    }
}
