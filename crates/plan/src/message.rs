//! What ranks tell each other to agree; encode beside decode.
//!
//! A message is one byte for its kind, four bytes for the length of its body (least significant first) and the body.
//! This outer shape never changes, so that a message of another version is recognised as such instead of being misread.
//! Bodies are written with `wire`; each value has exactly one encoding. What [`Message::decode`] accepts is what
//! [`Message::encode`] writes: it never panics, allocates in proportion to the input only, and gives items whose sizes
//! can be multiplied without a further check.
//!
//! Whether a message makes sense *now* is not decided here but in `agree`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::departure::RankDeparture;
use crate::item::{Item, Placement};
use crate::request::{Batch, Collective, Device, Dtype, Rank, ReduceOp, Request};
use crate::wire::{Reader, put_f64, put_i32, put_str, put_u64, put_u64s};

/// A request on its way to the coordinator.
#[derive(Clone, Debug, PartialEq)]
pub struct Announcement {
    /// The request.
    pub request: Request,
    /// How many buckets had finished on this rank when the request was made: it cannot depend on any later one.
    pub seen: u64,
    /// How long ago it was made, in whole microseconds: more than none where a replay has ended without it.
    pub waited: Duration,
}

/// An agreed item on its way to the members.
#[derive(Clone, Debug, PartialEq)]
pub struct Agreed {
    /// The item.
    pub item: Arc<Item>,
    /// The greatest `seen` of its announcements: it may depend on the results of buckets before this index.
    pub seen: u64,
}

/// One message of the agreement protocol. The control line keeps their order for each pair of ranks.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Member to coordinator: requests made here, in order.
    Announce {
        /// The sender's round; older ones are ignored.
        round: u32,
        /// The requests.
        requests: Vec<Announcement>,
    },
    /// Coordinator to all: the next batch of the agreed stream.
    Agreed {
        /// The round.
        round: u32,
        /// Items in order.
        items: Vec<Agreed>,
    },
    /// Coordinator: these names will not run.
    Refuse {
        /// The names.
        names: Vec<Arc<str>>,
        /// Why.
        reason: Arc<str>,
    },
    /// Coordinator to all: everybody has joined.
    Joined {
        /// The last one.
        last: Rank,
    },
    /// Coordinator to all: the last `items` items of the stream are the cycle; replay it from here on.
    Replay {
        /// The round.
        round: u32,
        /// Length of the cycle.
        items: u32,
        /// Hash of the cycle.
        hash: u64,
    },
    /// Coordinator to all: a rank has stopped; enter no more buckets and answer with `Stopped`.
    Halt {
        /// The round.
        round: u32,
    },
    /// Member to coordinator: this rank enters no more buckets, because something does not fit or because of a `Halt`.
    /// Once in each round.
    Stopped {
        /// The round whose replay is to end.
        round: u32,
        /// Buckets that this rank has entered or is bound to enter.
        entered: u64,
        /// Buckets that have finished here.
        completed: u64,
    },
    /// Coordinator to all: buckets before `until` finish, later ones are abandoned; negotiate again.
    Resume {
        /// The new round.
        round: u32,
        /// See above.
        until: u64,
    },
    /// Member to coordinator: please close the group.
    Close {
        /// Why its rank leaves the job, if it does.
        departure: Option<RankDeparture>,
    },
    /// Member to coordinator: the gradients that an optimizer of this rank reduces in every step, from the step on
    /// whose requests it has just made.
    Reduces {
        /// The names of their requests.
        names: Vec<Arc<str>>,
    },
    /// Coordinator to all: the end of the agreed stream.
    Closed {
        /// Why.
        cause: Arc<str>,
        /// The same of a rank that leaves the job.
        departure: Option<RankDeparture>,
    },
}

/// Bytes that are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Where decoding stopped.
    pub offset: usize,
    /// What was expected there.
    pub expected: &'static str,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed message: byte {} is not {}", self.offset, self.expected)
    }
}

impl std::error::Error for Malformed {}

/// Kind and length of the body.
const HEAD_BYTES: usize = 5;

/// Products of an item's sizes stay below this; see `validate`.
const MOST_ELEMS: u64 = 1 << 62;

impl Message {
    /// Appends the encoded message.
    pub fn encode(&self, into: &mut Vec<u8>) {
        let start = into.len();
        into.extend_from_slice(&[self.kind(), 0, 0, 0, 0]);
        self.encode_body(into);
        let body_len = u32::try_from(into.len() - start - HEAD_BYTES).expect("a control message is below 4 GiB");
        into[start + 1..start + HEAD_BYTES].copy_from_slice(&body_len.to_le_bytes());
    }

    /// Reads one message that fills all of `bytes`.
    ///
    /// # Errors
    /// Anything that `encode` would not have written.
    pub fn decode(bytes: &[u8]) -> Result<Message, Malformed> {
        let mut reader = Reader::new(bytes);
        let kind = reader.byte("the kind of a message")?;
        let len = reader.take(4, "the length of a message")?;
        let len = u32::from_le_bytes(len.try_into().expect("four bytes were taken"));
        if len as usize != bytes.len() - HEAD_BYTES {
            return Err(reader.malformed("a body of the stated length"));
        }
        let message = Message::decode_body(kind, &mut reader)?;
        reader.end()?;
        Ok(message)
    }

    /// Never renumber: other versions read these.
    fn kind(&self) -> u8 {
        match self {
            Message::Announce { .. } => 1,
            Message::Agreed { .. } => 2,
            Message::Refuse { .. } => 3,
            Message::Joined { .. } => 4,
            Message::Replay { .. } => 5,
            Message::Halt { .. } => 7,
            Message::Stopped { .. } => 8,
            Message::Resume { .. } => 9,
            Message::Close { .. } => 10,
            Message::Closed { .. } => 11,
            Message::Reduces { .. } => 12,
        }
    }

    fn encode_body(&self, into: &mut Vec<u8>) {
        match self {
            Message::Announce { round, requests } => {
                put_u64(into, u64::from(*round));
                put_u64(into, requests.len() as u64);
                for announcement in requests {
                    put_u64(into, announcement.seen);
                    put_u64(into, u64::try_from(announcement.waited.as_micros()).unwrap_or(u64::MAX));
                    put_request(into, &announcement.request);
                }
            }
            Message::Agreed { round, items } => {
                put_u64(into, u64::from(*round));
                put_u64(into, items.len() as u64);
                for agreed in items {
                    put_u64(into, agreed.seen);
                    put_item(into, &agreed.item);
                }
            }
            Message::Refuse { names, reason } => {
                put_u64(into, names.len() as u64);
                names.iter().for_each(|name| put_str(into, name));
                put_str(into, reason);
            }
            Message::Joined { last } => put_u64(into, u64::from(last.0)),
            Message::Replay { round, items, hash } => {
                put_u64(into, u64::from(*round));
                put_u64(into, u64::from(*items));
                into.extend_from_slice(&hash.to_le_bytes());
            }
            Message::Halt { round } => put_u64(into, u64::from(*round)),
            Message::Stopped { round, entered, completed } => {
                put_u64(into, u64::from(*round));
                put_u64(into, *entered);
                put_u64(into, *completed);
            }
            Message::Resume { round, until } => {
                put_u64(into, u64::from(*round));
                put_u64(into, *until);
            }
            Message::Close { departure } => put_departure(into, departure.as_ref()),
            Message::Closed { cause, departure } => {
                put_str(into, cause);
                put_departure(into, departure.as_ref());
            }
            Message::Reduces { names } => {
                put_u64(into, names.len() as u64);
                names.iter().for_each(|name| put_str(into, name));
            }
        }
    }

    fn decode_body(kind: u8, reader: &mut Reader<'_>) -> Result<Message, Malformed> {
        Ok(match kind {
            1 => Message::Announce {
                round: reader.u32("a round")?,
                requests: reader.list("a number of requests", |reader| {
                    let seen = reader.u64("a bucket count")?;
                    let waited = Duration::from_micros(reader.u64("a time")?);
                    Ok(Announcement { seen, waited, request: read_request(reader)? })
                })?,
            },
            2 => Message::Agreed {
                round: reader.u32("a round")?,
                items: reader.list("a number of items", |reader| {
                    Ok(Agreed { seen: reader.u64("a bucket count")?, item: Arc::new(read_item(reader)?) })
                })?,
            },
            3 => Message::Refuse {
                names: reader.list("a number of names", |reader| reader.str("a name"))?,
                reason: reader.str("a reason")?,
            },
            4 => Message::Joined { last: Rank(reader.u32("a rank")?) },
            5 => Message::Replay {
                round: reader.u32("a round")?,
                items: reader.u32("a cycle length")?,
                hash: u64::from_le_bytes(reader.take(8, "a hash")?.try_into().expect("eight bytes were taken")),
            },
            7 => Message::Halt { round: reader.u32("a round")? },
            8 => Message::Stopped {
                round: reader.u32("a round")?,
                entered: reader.u64("a bucket count")?,
                completed: reader.u64("a bucket count")?,
            },
            9 => Message::Resume { round: reader.u32("a round")?, until: reader.u64("a bucket count")? },
            10 => Message::Close { departure: read_departure(reader)? },
            11 => Message::Closed { cause: reader.str("a cause")?, departure: read_departure(reader)? },
            12 => Message::Reduces { names: reader.list("a number of names", |reader| reader.str("a name"))? },
            _ => return Err(reader.malformed("preceded by a known kind of message")),
        })
    }
}

fn put_departure(into: &mut Vec<u8>, departure: Option<&RankDeparture>) {
    into.push(u8::from(departure.is_some()));
    departure.into_iter().for_each(|departure| departure.put(into));
}

fn read_departure(reader: &mut Reader<'_>) -> Result<Option<RankDeparture>, Malformed> {
    match reader.byte("whether a rank leaves")? {
        0 => Ok(None),
        1 => RankDeparture::read(reader).map(Some),
        _ => Err(reader.malformed("whether a rank leaves")),
    }
}

fn put_request(into: &mut Vec<u8>, request: &Request) {
    put_str(into, &request.name);
    put_collective(into, &request.collective);
    into.push(request.dtype as u8);
    put_u64s(into, &request.shape);
    put_u64(
        into,
        match request.device {
            Device::Cpu => 0,
            Device::Gpu(index) => u64::from(index) + 1,
        },
    );
    put_batch(into, request.batch.as_ref());
    put_i32(into, request.priority);
}

fn read_request(reader: &mut Reader<'_>) -> Result<Request, Malformed> {
    Ok(Request {
        name: reader.str("a name")?,
        collective: read_collective(reader)?,
        dtype: read_dtype(reader)?,
        shape: reader.u64s("a shape")?,
        device: match reader.u64("a device")? {
            0 => Device::Cpu,
            index => Device::Gpu(u32::try_from(index - 1).map_err(|_| reader.malformed("a device"))?),
        },
        batch: read_batch(reader)?,
        priority: reader.i32("a priority")?,
    })
}

pub(crate) fn put_item(into: &mut Vec<u8>, item: &Item) {
    put_str(into, &item.name);
    put_collective(into, &item.collective);
    into.push(item.dtype as u8);
    put_u64s(into, &item.shape);
    into.push(item.device as u8);
    put_u64s(into, &item.rows);
    put_u64(into, item.joined.len() as u64);
    item.joined.iter().for_each(|rank| put_u64(into, u64::from(rank.0)));
    put_batch(into, item.batch.as_ref());
    put_i32(into, item.priority);
}

fn read_item(reader: &mut Reader<'_>) -> Result<Item, Malformed> {
    let item = Item {
        name: reader.str("a name")?,
        collective: read_collective(reader)?,
        dtype: read_dtype(reader)?,
        shape: reader.u64s("a shape")?,
        device: match reader.byte("a kind of memory")? {
            0 => Placement::Cpu,
            1 => Placement::Gpu,
            _ => return Err(reader.malformed("preceded by a kind of memory")),
        },
        rows: reader.u64s("rows of each rank")?,
        joined: reader.list("a number of joined ranks", |reader| Ok(Rank(reader.u32("a rank")?)))?,
        batch: read_batch(reader)?,
        priority: reader.i32("a priority")?,
    };
    let rows = item.rows.iter().try_fold(0_u64, |sum, rows| sum.checked_add(*rows));
    let mut dims = item.shape.iter().chain(&rows).map(|dim| (*dim).max(1));
    let bytes = dims.try_fold(item.dtype.size_bytes() as u64, u64::checked_mul);
    match (rows, bytes) {
        (Some(_), Some(bytes)) if bytes <= MOST_ELEMS => Ok(item),
        _ => Err(reader.malformed("preceded by sizes that fit into 64 bits")),
    }
}

fn put_collective(into: &mut Vec<u8>, collective: &Collective) {
    match collective {
        Collective::Allreduce { op, prescale, postscale } => {
            into.extend_from_slice(&[1, *op as u8]);
            put_f64(into, *prescale);
            put_f64(into, *postscale);
        }
        Collective::Allgather => into.push(2),
        Collective::Broadcast { root } => {
            into.push(3);
            put_u64(into, u64::from(root.0));
        }
        Collective::Alltoall { splits: None } => into.push(4),
        Collective::Alltoall { splits: Some(splits) } => {
            into.push(5);
            put_u64s(into, splits);
        }
        Collective::ReduceScatter { op, prescale, postscale } => {
            into.extend_from_slice(&[6, *op as u8]);
            put_f64(into, *prescale);
            put_f64(into, *postscale);
        }
        Collective::Reduce { root, op, prescale, postscale } => {
            into.extend_from_slice(&[9, *op as u8]);
            put_f64(into, *prescale);
            put_f64(into, *postscale);
            put_u64(into, u64::from(root.0));
        }
        Collective::Gather { root } => {
            into.push(10);
            put_u64(into, u64::from(root.0));
        }
        Collective::Scatter { root, splits } => {
            into.push(if splits.is_none() { 11 } else { 12 });
            put_u64(into, u64::from(root.0));
            splits.iter().for_each(|splits| put_u64s(into, splits));
        }
        Collective::Barrier => into.push(7),
        Collective::Join => into.push(8),
    }
}

fn read_collective(reader: &mut Reader<'_>) -> Result<Collective, Malformed> {
    Ok(match reader.byte("a collective")? {
        1 => {
            let (op, prescale, postscale) = read_reduction(reader)?;
            Collective::Allreduce { op, prescale, postscale }
        }
        2 => Collective::Allgather,
        3 => Collective::Broadcast { root: Rank(reader.u32("a root rank")?) },
        4 => Collective::Alltoall { splits: None },
        5 => Collective::Alltoall { splits: Some(reader.u64s("splits")?) },
        6 => {
            let (op, prescale, postscale) = read_reduction(reader)?;
            Collective::ReduceScatter { op, prescale, postscale }
        }
        7 => Collective::Barrier,
        8 => Collective::Join,
        9 => {
            let (op, prescale, postscale) = read_reduction(reader)?;
            Collective::Reduce { root: Rank(reader.u32("a root rank")?), op, prescale, postscale }
        }
        10 => Collective::Gather { root: Rank(reader.u32("a root rank")?) },
        11 => Collective::Scatter { root: Rank(reader.u32("a root rank")?), splits: None },
        12 => {
            let root = Rank(reader.u32("a root rank")?);
            Collective::Scatter { root, splits: Some(reader.u64s("splits")?) }
        }
        _ => return Err(reader.malformed("preceded by a collective")),
    })
}

fn read_reduction(reader: &mut Reader<'_>) -> Result<(ReduceOp, f64, f64), Malformed> {
    let op = ReduceOp::from_wire(reader.byte("a reduce operation")?);
    let op = op.ok_or(reader.malformed("preceded by a reduce operation"))?;
    Ok((op, reader.f64("a prescale factor")?, reader.f64("a postscale factor")?))
}

fn read_dtype(reader: &mut Reader<'_>) -> Result<Dtype, Malformed> {
    Dtype::from_wire(reader.byte("an element type")?).ok_or(reader.malformed("preceded by an element type"))
}

fn put_batch(into: &mut Vec<u8>, batch: Option<&Batch>) {
    match batch {
        None => into.push(0),
        Some(batch) => {
            into.push(1);
            put_u64(into, u64::from(batch.members));
            put_str(into, &batch.name);
        }
    }
}

fn read_batch(reader: &mut Reader<'_>) -> Result<Option<Batch>, Malformed> {
    match reader.byte("a batch or none")? {
        0 => Ok(None),
        1 => Ok(Some(Batch { members: reader.u32("a batch size")?, name: reader.str("a batch name")? })),
        _ => Err(reader.malformed("preceded by a batch or none")),
    }
}
