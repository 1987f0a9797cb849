//! What a rank says about itself when others wait for it, and the words in which it is asked and answers; encode beside
//! decode.
//!
//! A [`RankStatus`] is made on the rank that is waited for, from what it has recorded, what its engine is at, and,
//! where a program has an interpreter, what that says. Times are told as *ago*, so that no clocks need be compared.
//! Texts are cut and lists are short before they travel: a report is read by people. What [`Word::decode`] accepts is
//! what [`Word::encode`] writes.

use std::sync::Arc;
use std::time::Duration;

use super::direct::DirectWait;
use crate::message::Malformed;
use crate::request::{GroupId, Rank};
use crate::wire::{Reader, put_str, put_time, put_u64};

/// What ranks say to each other about a stall. The control line keeps their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// Coordinator to a rank that is waited for: what are you doing?
    Ask {
        /// Told again in the answer, so that a late one is not taken for another.
        number: u64,
    },
    /// The answer.
    Answer {
        /// The number of the question.
        number: u64,
        /// What it is doing.
        rank_status: Box<RankStatus>,
    },
    /// Coordinator to all: what came of it.
    Report(StallFinding),
    /// To the coordinator of the world: this rank waits in a direct call.
    Direct(DirectWait),
    /// The coordinator to a rank that waits in a direct call: it has heard that. What comes of it is told to all, if it
    /// was not told before.
    Heard,
}

/// What came of a stall probe; the same on all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StallFinding {
    /// The request that has waited longest.
    pub tensor: Arc<str>,
    /// For how many ranks it waits.
    pub missing: u32,
    /// The first of them, in the world.
    pub first: Rank,
    /// What it comes to, in one line.
    pub verdict: Arc<str>,
    /// The whole report, which begins with the verdict.
    pub text: Arc<str>,
}

/// What a rank is doing and has done last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankStatus {
    /// Its process.
    pub pid: u32,
    /// Whether it records what it does. If not, nothing is known of phases, iterations and the past.
    pub records: bool,
    /// The innermost phase that its program is in, and since when.
    pub phase: Option<Lately>,
    /// The epoch of training that began last.
    pub epoch: Option<u64>,
    /// The iteration that began last, and when.
    pub iteration: Option<(u64, Duration)>,
    /// The request that was done last.
    pub finished: Option<Lately>,
    /// The request that it has made last.
    pub submitted: Option<Lately>,
    /// The direct collective that its program is in.
    pub direct: Option<DirectCall>,
    /// The last direct collective that is on record and done. Of short ones, only some are recorded.
    pub direct_done: Option<Lately>,
    /// What its engine is at, for each group that has something to do.
    pub groups: Vec<GroupState>,
    /// What the kernel says about its main thread.
    pub main_thread: MainThread,
    /// What its interpreter says.
    pub interpreter: Interpreter,
}

/// Something with a name, and how long ago it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lately {
    /// The name.
    pub what: Arc<str>,
    /// How long ago.
    pub ago: Duration,
}

/// A direct collective under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectCall {
    /// Which collective, and since when.
    pub call: Lately,
    /// Its number, the same on all ranks.
    pub operation: u64,
    /// The rank of the world that it waits for, if one can be named.
    pub peer: Option<Rank>,
}

/// What an engine is at in one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupState {
    /// The group.
    pub group: GroupId,
    /// How many requests wait for their result.
    pub pending: u64,
    /// The first of them.
    pub names: Vec<Arc<str>>,
    /// The bucket that runs.
    pub running: Option<RunningBucket>,
}

/// A bucket that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningBucket {
    /// Its first tensor, and since when it runs.
    pub tensor: Lately,
    /// Its number.
    pub operation: u64,
    /// The collective, and where in it the rank is.
    pub place: Arc<str>,
    /// For how long nothing has moved.
    pub still: Duration,
    /// The rank of the world that it waits for, if one can be named.
    pub peer: Option<Rank>,
}

/// What the kernel says about a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MainThread {
    /// Nothing could be found out.
    #[default]
    Unknown,
    /// It computes, or would if it got a core.
    Runs,
    /// It waits for something: a lock, a timer, a socket.
    Sleeps,
    /// It waits for a device or a file system, and cannot be interrupted.
    Disk,
}

/// What the interpreter of a program says about its threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Interpreter {
    /// The program has none.
    #[default]
    None,
    /// It has answered: its threads, the main one first.
    Answered(Vec<ThreadStack>),
    /// It has not answered within this time. What could be seen from outside, if anything.
    Silent(Duration, Vec<ThreadStack>),
}

/// Where a thread of an interpreter is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadStack {
    /// Its name.
    pub name: Arc<str>,
    /// Its calls, one line each, the innermost last.
    pub frames: Vec<Arc<str>>,
}

impl Word {
    /// Appends the encoded word.
    pub fn encode(&self, into: &mut Vec<u8>) {
        match self {
            Word::Ask { number } => {
                into.push(1);
                put_u64(into, *number);
            }
            Word::Answer { number, rank_status } => {
                into.push(2);
                put_u64(into, *number);
                put_rank_status(into, rank_status);
            }
            Word::Report(StallFinding { tensor, missing, first, verdict, text }) => {
                into.push(3);
                put_str(into, tensor);
                put_u64(into, u64::from(*missing));
                put_u64(into, u64::from(first.0));
                put_str(into, verdict);
                put_str(into, text);
            }
            Word::Direct(wait) => {
                into.push(4);
                put_wait(into, wait);
            }
            Word::Heard => into.push(5),
        }
    }

    /// Reads one word that fills all of `bytes`.
    ///
    /// # Errors
    /// Anything that `encode` would not have written.
    pub fn decode(bytes: &[u8]) -> Result<Word, Malformed> {
        let mut reader = Reader::new(bytes);
        let word = match reader.byte("a kind of word about a stall")? {
            1 => Word::Ask { number: reader.u64("a question's number")? },
            2 => Word::Answer {
                number: reader.u64("a question's number")?,
                rank_status: Box::new(read_rank_status(&mut reader)?),
            },
            3 => Word::Report(StallFinding {
                tensor: reader.str("a name")?,
                missing: reader.u32("a number of ranks")?,
                first: Rank(reader.u32("a rank")?),
                verdict: reader.str("a verdict")?,
                text: reader.str("a report")?,
            }),
            4 => Word::Direct(read_wait(&mut reader)?),
            5 => Word::Heard,
            _ => return Err(reader.malformed("preceded by a known kind of word about a stall")),
        };
        reader.end()?;
        Ok(word)
    }
}

fn put_wait(into: &mut Vec<u8>, wait: &DirectWait) {
    put_u64(into, wait.operation);
    put_str(into, &wait.call);
    put_time(into, wait.waited);
    put_time(into, wait.limit);
    put_list(into, &wait.missing, |into, rank| put_u64(into, u64::from(rank.0)));
}

fn read_wait(reader: &mut Reader<'_>) -> Result<DirectWait, Malformed> {
    Ok(DirectWait {
        operation: reader.u64("the number of a call")?,
        call: reader.str("a call")?,
        waited: reader.time()?,
        limit: reader.time()?,
        missing: reader.list("a number of ranks", |reader| reader.u32("a rank").map(Rank))?,
    })
}

fn put_rank_status(into: &mut Vec<u8>, rank_status: &RankStatus) {
    put_u64(into, u64::from(rank_status.pid));
    into.push(u8::from(rank_status.records));
    put_option(into, rank_status.phase.as_ref(), put_lately);
    put_option(into, rank_status.epoch.as_ref(), |into, epoch| put_u64(into, *epoch));
    put_option(into, rank_status.iteration.as_ref(), |into, (number, ago)| {
        put_u64(into, *number);
        put_time(into, *ago);
    });
    put_option(into, rank_status.finished.as_ref(), put_lately);
    put_option(into, rank_status.submitted.as_ref(), put_lately);
    put_option(into, rank_status.direct.as_ref(), |into, direct| {
        put_lately(into, &direct.call);
        put_u64(into, direct.operation);
        put_peer(into, direct.peer);
    });
    put_option(into, rank_status.direct_done.as_ref(), put_lately);
    put_list(into, &rank_status.groups, put_group);
    into.push(rank_status.main_thread as u8);
    match &rank_status.interpreter {
        Interpreter::None => into.push(0),
        Interpreter::Answered(threads) => {
            into.push(1);
            put_list(into, threads, put_thread);
        }
        Interpreter::Silent(waited, threads) => {
            into.push(2);
            put_time(into, *waited);
            put_list(into, threads, put_thread);
        }
    }
}

fn read_rank_status(reader: &mut Reader<'_>) -> Result<RankStatus, Malformed> {
    Ok(RankStatus {
        pid: reader.u32("a process")?,
        records: read_bool(reader)?,
        phase: read_option(reader, read_lately)?,
        epoch: read_option(reader, |reader| reader.u64("an epoch"))?,
        iteration: read_option(reader, |reader| Ok((reader.u64("an iteration")?, reader.time()?)))?,
        finished: read_option(reader, read_lately)?,
        submitted: read_option(reader, read_lately)?,
        direct: read_option(reader, |reader| {
            let (call, operation) = (read_lately(reader)?, reader.u64("the number of a call")?);
            Ok(DirectCall { call, operation, peer: read_peer(reader)? })
        })?,
        direct_done: read_option(reader, read_lately)?,
        groups: reader.list("a number of groups", read_group)?,
        main_thread: match reader.byte("the state of a thread")? {
            0 => MainThread::Unknown,
            1 => MainThread::Runs,
            2 => MainThread::Sleeps,
            3 => MainThread::Disk,
            _ => return Err(reader.malformed("preceded by the state of a thread")),
        },
        interpreter: match reader.byte("what an interpreter says")? {
            0 => Interpreter::None,
            1 => Interpreter::Answered(reader.list("a number of threads", read_thread)?),
            2 => Interpreter::Silent(reader.time()?, reader.list("a number of threads", read_thread)?),
            _ => return Err(reader.malformed("preceded by what an interpreter says")),
        },
    })
}

fn put_group(into: &mut Vec<u8>, state: &GroupState) {
    put_u64(into, u64::from(state.group.0));
    put_u64(into, state.pending);
    put_list(into, &state.names, |into, name| put_str(into, name));
    put_option(into, state.running.as_ref(), |into, running| {
        put_lately(into, &running.tensor);
        put_u64(into, running.operation);
        put_str(into, &running.place);
        put_time(into, running.still);
        put_peer(into, running.peer);
    });
}

fn read_group(reader: &mut Reader<'_>) -> Result<GroupState, Malformed> {
    Ok(GroupState {
        group: GroupId(reader.u32("a group")?),
        pending: reader.u64("a number of requests")?,
        names: reader.list("a number of names", |reader| reader.str("a name"))?,
        running: read_option(reader, |reader| {
            Ok(RunningBucket {
                tensor: read_lately(reader)?,
                operation: reader.u64("the number of a bucket")?,
                place: reader.str("a place in a collective")?,
                still: reader.time()?,
                peer: read_peer(reader)?,
            })
        })?,
    })
}

fn put_thread(into: &mut Vec<u8>, thread: &ThreadStack) {
    put_str(into, &thread.name);
    put_list(into, &thread.frames, |into, frame| put_str(into, frame));
}

fn read_thread(reader: &mut Reader<'_>) -> Result<ThreadStack, Malformed> {
    let name = reader.str("the name of a thread")?;
    Ok(ThreadStack { name, frames: reader.list("a number of frames", |reader| reader.str("a frame"))? })
}

fn put_lately(into: &mut Vec<u8>, lately: &Lately) {
    put_str(into, &lately.what);
    put_time(into, lately.ago);
}

fn read_lately(reader: &mut Reader<'_>) -> Result<Lately, Malformed> {
    Ok(Lately { what: reader.str("a name")?, ago: reader.time()? })
}

fn put_peer(into: &mut Vec<u8>, peer: Option<Rank>) {
    put_option(into, peer.as_ref(), |into, peer| put_u64(into, u64::from(peer.0)));
}

fn read_peer(reader: &mut Reader<'_>) -> Result<Option<Rank>, Malformed> {
    read_option(reader, |reader| reader.u32("a rank").map(Rank))
}

fn put_list<T>(into: &mut Vec<u8>, items: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
    put_u64(into, items.len() as u64);
    items.iter().for_each(|item| put(into, item));
}

fn put_option<T>(into: &mut Vec<u8>, value: Option<&T>, put: impl Fn(&mut Vec<u8>, &T)) {
    into.push(u8::from(value.is_some()));
    if let Some(value) = value {
        put(into, value);
    }
}

fn read_option<'a, T>(
    reader: &mut Reader<'a>,
    read: impl FnOnce(&mut Reader<'a>) -> Result<T, Malformed>,
) -> Result<Option<T>, Malformed> {
    if read_bool(reader)? { read(reader).map(Some) } else { Ok(None) }
}

fn read_bool(reader: &mut Reader<'_>) -> Result<bool, Malformed> {
    match reader.byte("yes or no")? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(reader.malformed("preceded by yes or no")),
    }
}
