//! A NCCL that is none: ranks are threads, and collectives are arithmetic on the memory of pretended devices.
//!
//! It keeps NCCL's rules, so that whoever breaks them fails. Calls are in the stream only some looks after they were
//! made, so an event that is recorded too early has nothing behind it. They happen when the streams of all ranks have
//! come to theirs: until then a stream stands still, for ever if a rank never comes. Ranks that call different things
//! get an error. Halves are added in half precision, rounded each time.
//!
//! Faults are those of [`DeviceFaults`]; besides, a rank's stream may never come to its calls.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farandole_plan::ReduceOp;
use farandole_tensor::{Finish, Fold};

use super::run::Work;
use super::{Call as Fault, DeviceFaults, memory, number, queues};
use crate::nccl::{Call, Handle, Library, Reduction, UNIQUE_ID_BYTES, UniqueId, Version};
use crate::{Device, Error, Result};

/// Looks at a communicator before what was begun is over.
const DELAY_LOOKS: u64 = 2;

/// The communicators of this process, by their ids.
static CLUBS: LazyLock<Mutex<HashMap<UniqueId, Arc<Club>>>> = LazyLock::new(Mutex::default);

/// One rank's library. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct PretendNccl {
    faults: DeviceFaults,
    stuck_after: Option<u64>,
    failing_after: Option<u64>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    joined: AtomicU64,
    ended: AtomicU64,
    aborted: AtomicU64,
}

/// What has become of the communicators of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NcclEnds {
    /// So many were made,
    pub joined: u64,
    /// so many ended in order,
    pub ended: u64,
    /// and so many were aborted.
    pub aborted: u64,
}

impl PretendNccl {
    /// A library with faults.
    pub fn with(faults: DeviceFaults) -> PretendNccl {
        PretendNccl { faults, ..PretendNccl::default() }
    }

    /// The same, but after so many groups of calls this rank's stream never comes to the next.
    #[must_use]
    pub fn stuck_after(mut self, groups: u64) -> PretendNccl {
        self.stuck_after = Some(groups);
        self
    }

    /// The same, but when more groups of calls than these are queued, NCCL says that a rank is gone.
    #[must_use]
    pub fn failing_after(mut self, groups: u64) -> PretendNccl {
        self.failing_after = Some(groups);
        self
    }

    /// What has become of its communicators.
    pub fn ends(&self) -> NcclEnds {
        let Counts { joined, ended, aborted } = &*self.counts;
        let [joined, ended, aborted] = [joined, ended, aborted].map(|count| count.load(Ordering::SeqCst));
        NcclEnds { joined, ended, aborted }
    }

    fn strike(&self, call: Fault) -> Result<()> {
        self.faults.strike(call).map_or(Ok(()), Err)
    }
}

impl Library for PretendNccl {
    fn version(&self) -> Version {
        Version(23_007)
    }

    fn unique_id(&self) -> Result<UniqueId> {
        self.strike(Fault::NcclId)?;
        let mut id = [0xc1; UNIQUE_ID_BYTES];
        id[..8].copy_from_slice(&number().to_le_bytes());
        Ok(UniqueId(id))
    }

    fn join(&self, _device: &Device, id: &UniqueId, size: usize, rank: usize) -> Result<Box<dyn Handle>> {
        self.strike(Fault::NcclJoin)?;
        let mut clubs = CLUBS.lock().unwrap_or_else(PoisonError::into_inner);
        let club = clubs.entry(*id).or_insert_with(|| Arc::new(Club { size, state: Mutex::default() }));
        assert_eq!(club.size, size, "all ranks of a communicator know its size");
        let first = club.lock().members.insert(rank, Member::default());
        assert!(first.is_none(), "rank {rank} joins a communicator once");
        self.counts.joined.fetch_add(1, Ordering::SeqCst);
        let begun = Mutex::new(Begun { looks: DELAY_LOOKS, stream: 0, meeting: None });
        let club = Arc::clone(club);
        Ok(Box::new(Seat { library: self.clone(), id: *id, club, rank, groups: AtomicU64::new(0), begun }))
    }
}

/// All ranks of a communicator.
#[derive(Debug)]
struct Club {
    size: usize,
    state: Mutex<ClubState>,
}

#[derive(Debug, Default)]
struct ClubState {
    members: HashMap<usize, Member>,
    /// Whether all have ever been there.
    is_complete: bool,
    /// Groups of calls that some ranks have come to, by their number.
    arrived: HashMap<u64, HashMap<usize, Vec<Call>>>,
    /// Groups that have happened, and which of their ranks have not gone on.
    happened: HashMap<u64, usize>,
    /// What the ranks did wrong.
    wrong: Option<String>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Member {
    is_aborted: bool,
}

impl Club {
    fn lock(&self) -> MutexGuard<'_, ClubState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One rank of a communicator.
struct Seat {
    library: PretendNccl,
    id: UniqueId,
    club: Arc<Club>,
    rank: usize,
    /// Groups of calls so far.
    groups: AtomicU64,
    begun: Mutex<Begun>,
}

/// What is under way.
#[derive(Debug)]
struct Begun {
    /// Looks in vain that are left.
    looks: u64,
    stream: u64,
    /// Calls that will be queued then.
    meeting: Option<Meeting>,
}

impl Handle for Seat {
    fn is_ready(&self) -> Result<bool> {
        self.library.strike(Fault::NcclLook)?;
        let mut state = self.club.lock();
        state.is_complete |= state.members.len() == self.club.size;
        let complete = state.is_complete;
        if let Some(wrong) = &state.wrong {
            return Err(invalid_usage(wrong.clone()));
        }
        drop(state);
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        if !complete || begun.looks > 0 {
            begun.looks = begun.looks.saturating_sub(1);
            return Ok(false);
        }
        match begun.meeting.take() {
            Some(meeting) => queues().queue(begun.stream, Work::Meet(meeting)),
            None if self.library.failing_after.is_some_and(|groups| self.groups.load(Ordering::SeqCst) > groups) => {
                return Err(DeviceFaults::remote_error());
            }
            None => {}
        }
        Ok(true)
    }

    fn call(&self, stream: u64, calls: &[Call]) -> Result<()> {
        self.library.strike(Fault::NcclCall)?;
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        if begun.looks > 0 || begun.meeting.is_some() || !self.club.lock().is_complete {
            return Err(invalid_usage("calls on a communicator on which something is under way".to_owned()));
        }
        let number = self.groups.fetch_add(1, Ordering::SeqCst);
        let is_stuck = self.library.stuck_after.is_some_and(|groups| number >= groups);
        let (club, rank) = (Arc::clone(&self.club), self.rank);
        let meeting = Meeting { club, rank, number, calls: calls.to_vec(), is_stuck };
        *begun = Begun { looks: DELAY_LOOKS, stream, meeting: Some(meeting) };
        Ok(())
    }

    fn register(&self, _address: u64, _bytes: usize) -> Option<u64> {
        Some(number())
    }

    fn deregister(&self, _registration: u64) {}

    fn abort(self: Box<Self>) {
        let mut state = self.club.lock();
        state.members.entry(self.rank).or_default().is_aborted = true;
        // What it would have contributed goes back to its owner.
        state.arrived.values_mut().for_each(|arrived| drop(arrived.remove(&self.rank)));
        drop(state);
        self.library.counts.aborted.fetch_add(1, Ordering::SeqCst);
    }

    fn end(self: Box<Self>, _limit: Duration) {
        self.library.counts.ended.fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut clubs = CLUBS.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.club.lock();
        // Whoever is aborted still lets its stream go on.
        state.members.entry(self.rank).or_default().is_aborted = true;
        if state.members.values().all(|member| member.is_aborted) {
            clubs.remove(&self.id);
        }
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seat({} of {})", self.rank, self.club.size)
    }
}

fn invalid_usage(detail: String) -> Error {
    Error::Nccl { call: "ncclGroupEnd", code: 5, text: "invalid usage".to_owned(), detail }
}

/// One rank's group of calls in a stream.
pub(super) struct Meeting {
    club: Arc<Club>,
    rank: usize,
    number: u64,
    calls: Vec<Call>,
    is_stuck: bool,
}

impl fmt::Debug for Meeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Meeting({} of rank {}: {:?})", self.number, self.rank, self.calls)
    }
}

impl Meeting {
    /// The stream has come here.
    pub(super) fn come(&self) -> Come {
        let mut state = self.club.lock();
        if state.members.get(&self.rank).is_some_and(|member| member.is_aborted) {
            return Come::After;
        }
        if let Some(left) = state.happened.get_mut(&self.number) {
            *left -= 1;
            if *left == 0 {
                state.happened.remove(&self.number);
            }
            return Come::After;
        }
        if self.is_stuck {
            return Come::Early;
        }
        let arrived = state.arrived.entry(self.number).or_default();
        arrived.insert(self.rank, self.calls.clone());
        if arrived.len() < self.club.size {
            return Come::Early;
        }
        let calls: Vec<&[Call]> = (0..self.club.size).map(|rank| &arrived[&rank][..]).collect();
        if let Err(wrong) = happen(&calls) {
            state.wrong = Some(wrong);
            return Come::Early;
        }
        state.arrived.remove(&self.number);
        state.happened.insert(self.number, self.club.size - 1);
        Come::Last
    }
}

/// How a stream finds a meeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Come {
    /// It has to wait for others.
    Early,
    /// Now it has happened.
    Last,
    /// It has happened before, or this rank has given it up.
    After,
}

/// Carries out the calls of all ranks.
fn happen(calls: &[&[Call]]) -> std::result::Result<(), String> {
    let is_pair = |call: &&Call| matches!(call, Call::Send { .. } | Call::Recv { .. });
    let together: Vec<Vec<Call>> =
        calls.iter().map(|calls| calls.iter().filter(|call| !is_pair(call)).copied().collect()).collect();
    if let Some(other) = together.iter().find(|calls| calls.len() != together[0].len()) {
        return Err(format!("{} collectives on rank 0, {} on another", together[0].len(), other.len()));
    }
    for index in 0..together[0].len() {
        let of_all: Vec<Call> = together.iter().map(|calls| calls[index]).collect();
        if let Some(other) = of_all.iter().find(|call| terms(call) != terms(&of_all[0])) {
            return Err(format!("ranks call different things: {:?} and {other:?}", of_all[0]));
        }
        collective(&of_all);
    }
    pairs(calls)
}

/// Sends and receives. What is sent is read before anything is written.
fn pairs(calls: &[&[Call]]) -> std::result::Result<(), String> {
    let mut sent: HashMap<(usize, usize), std::collections::VecDeque<Vec<u8>>> = HashMap::new();
    for (from, calls) in calls.iter().enumerate() {
        for call in *calls {
            if let Call::Send { source, bytes, peer } = *call {
                sent.entry((from, peer)).or_default().push_back(read(source, bytes));
            }
        }
    }
    for (to, calls) in calls.iter().enumerate() {
        for call in *calls {
            if let Call::Recv { target, bytes, peer } = *call {
                let message = sent.get_mut(&(peer, to)).and_then(std::collections::VecDeque::pop_front);
                match message {
                    Some(message) if message.len() as u64 == bytes => memory::write(target, &message),
                    other => {
                        let sent = other.map(|message| message.len());
                        return Err(format!("rank {to} wants {bytes} bytes of rank {peer}, which sends {sent:?}"));
                    }
                }
            }
        }
    }
    match sent.into_iter().find(|(_, left)| !left.is_empty()) {
        Some(((from, to), _)) => Err(format!("rank {to} does not want what rank {from} sends")),
        None => Ok(()),
    }
}

/// What must be the same on all ranks.
fn terms(call: &Call) -> (u8, u64, Option<Reduction>, usize) {
    match *call {
        Call::AllReduce { elems, reduction, .. } => (0, elems, Some(reduction), 0),
        Call::Reduce { elems, reduction, root, .. } => (1, elems, Some(reduction), root),
        Call::Broadcast { bytes, root, .. } => (2, bytes, None, root),
        Call::AllGather { bytes, .. } => (3, bytes, None, 0),
        Call::ReduceScatter { elems, reduction, .. } => (4, elems, Some(reduction), 0),
        Call::Send { .. } | Call::Recv { .. } => (5, 0, None, 0),
    }
}

/// One call, made on all ranks.
fn collective(calls: &[Call]) {
    let size = calls.len();
    let of = |call: &Call| match *call {
        Call::AllReduce { source, target, .. }
        | Call::Reduce { source, target, .. }
        | Call::Broadcast { source, target, .. }
        | Call::AllGather { source, target, .. }
        | Call::ReduceScatter { source, target, .. } => (source, target),
        Call::Send { .. } | Call::Recv { .. } => unreachable!("not a collective"),
    };
    let (sources, targets): (Vec<u64>, Vec<u64>) = calls.iter().map(of).unzip();
    let folded = |elems: u64, reduction: Reduction| {
        let bytes = elems * reduction.dtype.size_bytes() as u64;
        let contributions = sources.iter().map(|source| read(*source, bytes));
        contributions.reduce(|sum, next| fold(reduction, &sum, &next)).unwrap_or_default()
    };
    match calls[0] {
        Call::AllReduce { elems, reduction, .. } => {
            let result = folded(elems, reduction);
            targets.iter().for_each(|target| memory::write(*target, &result));
        }
        Call::Reduce { elems, reduction, root, .. } => memory::write(targets[root], &folded(elems, reduction)),
        Call::Broadcast { bytes, root, .. } => {
            let result = read(sources[root], bytes);
            targets.iter().for_each(|target| memory::write(*target, &result));
        }
        Call::AllGather { bytes, .. } => {
            let result: Vec<u8> = sources.iter().flat_map(|source| read(*source, bytes)).collect();
            targets.iter().for_each(|target| memory::write(*target, &result));
        }
        Call::ReduceScatter { elems, reduction, .. } => {
            let result = folded(elems * size as u64, reduction);
            let each = elems as usize * reduction.dtype.size_bytes();
            targets.iter().zip(result.chunks(each.max(1))).for_each(|(target, part)| memory::write(*target, part));
        }
        Call::Send { .. } | Call::Recv { .. } => {}
    }
}

fn read(address: u64, bytes: u64) -> Vec<u8> {
    let mut contents = vec![0; bytes as usize];
    memory::read(address, &mut contents);
    contents
}

/// Two contributions, rounded to their type.
fn fold(reduction: Reduction, one: &[u8], other: &[u8]) -> Vec<u8> {
    let Reduction { dtype, op } = reduction;
    debug_assert!(!matches!(op, ReduceOp::Average | ReduceOp::Adasum), "not an operation of NCCL's");
    let mut folded = vec![0; one.len()];
    Fold::new(dtype, op).fold_many(&mut folded, &[one, other], Finish::Nothing);
    folded
}

#[cfg(test)]
mod tests {

    use farandole_plan::Dtype;

    use super::super::Pretend;
    use super::*;
    use crate::nccl::{NcclCommunicator, SharedLibrary};
    use crate::{Allocation, Event, Stream};

    const DEADLINE: Duration = Duration::from_secs(10);

    struct Rank {
        device: Device,
        stream: Stream,
        memory: Allocation,
        communicator: NcclCommunicator,
    }

    fn until(what: &str, mut holds: impl FnMut() -> bool) {
        let deadline = farandole_testing::Deadline::after(DEADLINE);
        while !holds() {
            deadline.check(what);
        }
    }

    fn world(libraries: &[PretendNccl]) -> Vec<Rank> {
        let id = libraries[0].unique_id().unwrap();
        let join = |(rank, library): (usize, &PretendNccl)| {
            let (device, shared): (_, SharedLibrary) = (Pretend::new().device(), Arc::new(library.clone()));
            let (stream, memory) = (device.stream().unwrap(), device.allocate(64).unwrap());
            device.write_and_wait(memory.address(), &[1 + rank as u8; 64]).unwrap();
            let communicator = NcclCommunicator::join(&shared, &device, &id, libraries.len(), rank).unwrap();
            Rank { device, stream, memory, communicator }
        };
        libraries.iter().enumerate().map(join).collect()
    }

    fn begin(rank: &mut Rank, calls: &[Call]) -> Event {
        until("joined", || rank.communicator.is_ready().unwrap());
        rank.communicator.call(&rank.stream, calls).unwrap();
        until("queued", || rank.communicator.is_ready().unwrap());
        rank.stream.record().unwrap()
    }

    /// Looks at all of them: a stream runs when somebody looks.
    fn all_happened(events: &[Event]) -> bool {
        events.iter().filter(|event| !event.has_happened().unwrap()).count() == 0
    }

    fn contents(rank: &Rank) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        rank.device.read_and_wait(rank.memory.address(), &mut bytes).unwrap();
        bytes
    }

    fn sum(rank: &Rank) -> Call {
        let (address, reduction) = (rank.memory.address(), Reduction::of(Dtype::U8, ReduceOp::Sum).unwrap());
        Call::AllReduce { source: address, target: address, elems: 64, reduction }
    }

    #[test]
    fn a_collective_happens_when_all_streams_have_come_to_it() {
        let library = PretendNccl::default();
        let mut ranks = world(&[library.clone(), library.clone(), library.clone()]);
        let calls: Vec<Call> = ranks.iter().map(sum).collect();
        let first = begin(&mut ranks[0], &calls[..1]);
        let second = begin(&mut ranks[1], &calls[1..2]);
        for _ in 0..10 {
            assert!(!first.has_happened().unwrap() && !second.has_happened().unwrap());
        }
        assert_eq!(contents(&ranks[0]), [1; 64]);
        let third = begin(&mut ranks[2], &calls[2..]);
        until("happened", || all_happened(&[first.clone(), second.clone(), third.clone()]));
        assert!(ranks.iter().all(|rank| contents(rank) == [6; 64]));
        ranks.iter_mut().for_each(|rank| rank.communicator.note_idle());
        drop(ranks);
        assert_eq!(library.ends(), NcclEnds { joined: 3, ended: 3, aborted: 0 });
    }

    #[test]
    fn an_abort_lets_the_stream_go_on_without_the_others() {
        let library = PretendNccl::default();
        let mut ranks = world(&[library.clone(), library.clone().stuck_after(0)]);
        let calls: Vec<Call> = ranks.iter().map(sum).collect();
        let waits = begin(&mut ranks[0], &calls[..1]);
        begin(&mut ranks[1], &calls[1..]);
        for _ in 0..10 {
            assert!(!waits.has_happened().unwrap());
        }
        let Rank { communicator, .. } = ranks.remove(0);
        drop(communicator);
        until("the stream goes on", || waits.has_happened().unwrap());
        drop(ranks);
        assert_eq!(library.ends(), NcclEnds { joined: 2, ended: 0, aborted: 2 });
    }

    #[test]
    fn ranks_that_call_different_things_are_told() {
        let library = PretendNccl::default();
        let mut ranks = world(&[library.clone(), library]);
        let one = sum(&ranks[0]);
        let address = ranks[1].memory.address();
        let other = Call::Broadcast { source: address, target: address, bytes: 64, root: 0 };
        let events = [begin(&mut ranks[0], &[one]), begin(&mut ranks[1], &[other])];
        until("told", || {
            assert!(!events.iter().any(|event| event.has_happened().unwrap()));
            ranks[0].communicator.is_ready().is_err_and(|error| error.to_string().contains("different things"))
        });
    }

    #[test]
    fn sends_find_their_receives() {
        let library = PretendNccl::default();
        let mut ranks = world(&[library.clone(), library]);
        let at: Vec<u64> = ranks.iter().map(|rank| rank.memory.address()).collect();
        let exchange = |me: usize| {
            let peer = 1 - me;
            [Call::Send { source: at[me], bytes: 8, peer }, Call::Recv { target: at[me] + 8, bytes: 8, peer }]
        };
        let events: Vec<Event> = (0..2).map(|me| begin(&mut ranks[me], &exchange(me))).collect();
        until("happened", || all_happened(&events));
        assert_eq!(contents(&ranks[0])[..16], [1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2]);
        assert_eq!(contents(&ranks[1])[8], 1);
    }
}
