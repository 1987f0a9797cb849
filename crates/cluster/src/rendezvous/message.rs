//! What ranks and the server of a rendezvous tell each other, encode beside decode, in the alphabet of `wire`.
//!
//! A visit is one [`Up::Arrival`] and one [`Down`] answer to it. A rank that stays says [`Up::Heartbeat`] now and then,
//! is answered [`Down::Pulse`], sends a [`Up::Sample`] for live views, and leaves with [`Up::Goodbye`]; a server that
//! closes in order says [`Down::Goodbye`]. Nothing else is ever acknowledged: the channel under it loses nothing.
//!
//! A process of an elastic job comes with [`Up::Enter`] and is answered [`Down::Founding`] or [`Down::Seeds`]; it says
//! [`Up::Generation`] when it has entered one, and hears of others' ends by [`Down::MemberLost`].

use std::sync::Arc;
use std::time::Duration;

use farandole_plan::Rank;
use farandole_transport::{JobId, ProcessId, ProcessState};

use super::generation::Generation;
use crate::encoding::{Reader, put_bytes, put_option, put_text, put_u32, put_u64};
use crate::failure_notice::FailureNotice;

/// The longest visit that makes sense; also keeps a damaged number from overflowing a clock.
const MOST_PATIENCE: Duration = Duration::from_secs(7 * 24 * 3600);

/// What a rank says. Which rank it is, the channel has said already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Up {
    /// It has come.
    Arrival(Arrival),
    /// It is alive.
    Heartbeat,
    /// It leaves, and all is well.
    Goodbye,
    /// It saw something fail, perhaps because of a peer.
    Blame { peer: Option<Rank>, cause: String },
    /// What it found when it looked at a process of its host.
    Seen { rank: Rank, state: Option<ProcessState> },
    /// What it is doing, for live views, which decode the bytes.
    Sample(Vec<u8>),
    /// A process of an elastic job has come, and stays.
    Enter(Enter),
    /// Whom does a candidate of an elastic job call?
    AskSeeds { job: JobId, patience: Duration },
    /// It has entered this generation.
    Generation(Generation),
    /// A question to the witness of the job, for members and the launcher to read.
    AskWitness(Vec<u8>),
}

/// What a process of an elastic job says when it comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Enter {
    /// Which job it is of.
    pub(super) job: JobId,
    /// Its number.
    pub(super) member: u64,
    /// How long it will wait.
    pub(super) patience: Duration,
    /// That it stays, and as whom.
    pub(super) stay: Stay,
    /// What the others are to know of it.
    pub(super) blob: Vec<u8>,
}

/// What a rank says when it comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    /// Which job it is of.
    pub(super) job: JobId,
    /// How many ranks it believes in.
    pub(super) ranks: u32,
    /// How long it will wait.
    pub(super) patience: Duration,
    pub(super) stay: Stay,
    /// The rank's message.
    pub(super) blob: Vec<u8>,
}

/// What a rank does after the exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stay {
    /// It goes.
    No,
    /// It keeps its connection.
    Yes {
        /// Silence longer than this means that something is wrong; `None`: it sends no heartbeats.
        silence: Option<Duration>,
        process: ProcessId,
        /// Identity of its host.
        host: String,
    },
}

/// What the server says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Down {
    /// The messages of all ranks, and who keeps the rendezvous.
    Everybody { server_process: ServerProcess, blobs: Arc<Vec<Vec<u8>>> },
    /// Who was not there at this rank's deadline.
    Missing(Vec<Rank>),
    /// Why this rank cannot take part.
    Refused(String),
    /// The answer to a heartbeat.
    Pulse,
    /// The job has failed.
    FailureNotice(FailureNotice),
    /// A question: what is this process of your host doing?
    Look { rank: Rank, process: ProcessId },
    /// The server closes, and all is well.
    Goodbye,
    /// An elastic job begins, and this process is in its first generation.
    Founding { server_process: ServerProcess, generation: Generation },
    /// An elastic job runs; these are the ones to call.
    Seeds { server_process: ServerProcess, blobs: Vec<Vec<u8>> },
    /// What has become of another member of an elastic job.
    MemberLost {
        member: u64,
        notice: FailureNotice,
        /// The record of its votes, if its agent has read one.
        votes: Option<Vec<u8>>,
    },
    /// The answer of the witness.
    WitnessAnswer(Vec<u8>),
}

/// The process in which a server runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerProcess {
    /// The rank that this process is, if it is one.
    pub(super) rank: Option<Rank>,
    pub(super) process: ProcessId,
    pub(super) host: String,
}

impl Up {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Up::Arrival(Arrival { job, ranks, patience, stay, blob }) => {
                bytes.push(0);
                put_text(&mut bytes, job.as_str());
                put_u32(&mut bytes, *ranks);
                put_u64(&mut bytes, patience.as_millis() as u64);
                stay.put(&mut bytes);
                put_bytes(&mut bytes, blob);
            }
            Up::Heartbeat => bytes.push(1),
            Up::Goodbye => bytes.push(2),
            Up::Blame { peer, cause } => {
                bytes.push(3);
                put_option(&mut bytes, *peer, |bytes, peer| put_u32(bytes, peer.0));
                put_text(&mut bytes, cause);
            }
            Up::Seen { rank, state } => {
                bytes.push(4);
                put_u32(&mut bytes, rank.0);
                bytes.push(match state {
                    Some(ProcessState::Alive) => 0,
                    Some(ProcessState::Stopped) => 1,
                    Some(ProcessState::Gone) => 2,
                    None => 3,
                });
            }
            Up::Sample(sample) => {
                bytes.push(5);
                put_bytes(&mut bytes, sample);
            }
            Up::Enter(Enter { job, member, patience, stay, blob }) => {
                bytes.push(6);
                put_text(&mut bytes, job.as_str());
                put_u64(&mut bytes, *member);
                put_u64(&mut bytes, patience.as_millis() as u64);
                stay.put(&mut bytes);
                put_bytes(&mut bytes, blob);
            }
            Up::AskSeeds { job, patience } => {
                bytes.push(7);
                put_text(&mut bytes, job.as_str());
                put_u64(&mut bytes, patience.as_millis() as u64);
            }
            Up::Generation(generation) => {
                bytes.push(8);
                generation.put(&mut bytes);
            }
            Up::AskWitness(question) => {
                bytes.push(9);
                put_bytes(&mut bytes, question);
            }
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Up> {
        let mut reader = Reader::new(bytes);
        let up = match reader.byte()? {
            0 => Up::Arrival(Arrival {
                job: JobId::from_text(&reader.text()?)?,
                ranks: reader.u32()?,
                patience: take_patience(&mut reader)?,
                stay: Stay::take(&mut reader)?,
                blob: reader.bytes()?.to_vec(),
            }),
            1 => Up::Heartbeat,
            2 => Up::Goodbye,
            3 => Up::Blame { peer: reader.option(Reader::u32)?.map(Rank), cause: reader.text()? },
            4 => Up::Seen {
                rank: Rank(reader.u32()?),
                state: match reader.byte()? {
                    0 => Some(ProcessState::Alive),
                    1 => Some(ProcessState::Stopped),
                    2 => Some(ProcessState::Gone),
                    3 => None,
                    _ => return None,
                },
            },
            5 => Up::Sample(reader.bytes()?.to_vec()),
            6 => Up::Enter(Enter {
                job: JobId::from_text(&reader.text()?)?,
                member: reader.u64()?,
                patience: take_patience(&mut reader)?,
                stay: Stay::take(&mut reader)?,
                blob: reader.bytes()?.to_vec(),
            }),
            7 => Up::AskSeeds { job: JobId::from_text(&reader.text()?)?, patience: take_patience(&mut reader)? },
            8 => Up::Generation(Generation::take(&mut reader)?),
            9 => Up::AskWitness(reader.bytes()?.to_vec()),
            _ => return None,
        };
        reader.end(up)
    }
}

fn take_patience(reader: &mut Reader<'_>) -> Option<Duration> {
    Some(Duration::from_millis(reader.u64()?).min(MOST_PATIENCE))
}

impl Stay {
    fn put(&self, into: &mut Vec<u8>) {
        match self {
            Stay::No => into.push(0),
            Stay::Yes { silence, process, host } => {
                into.push(1);
                put_option(into, *silence, |into, silence| put_u64(into, silence.as_millis() as u64));
                into.extend_from_slice(&process.encode());
                put_text(into, host);
            }
        }
    }

    fn take(reader: &mut Reader<'_>) -> Option<Stay> {
        Some(match reader.byte()? {
            0 => Stay::No,
            1 => Stay::Yes {
                silence: reader.option(Reader::u64)?.map(|ms| Duration::from_millis(ms).min(MOST_PATIENCE)),
                process: take_process(reader)?,
                host: reader.text()?,
            },
            _ => return None,
        })
    }
}

impl ServerProcess {
    fn put(&self, into: &mut Vec<u8>) {
        put_option(into, self.rank, |into, rank| put_u32(into, rank.0));
        into.extend_from_slice(&self.process.encode());
        put_text(into, &self.host);
    }

    fn take(reader: &mut Reader<'_>) -> Option<ServerProcess> {
        let rank = reader.option(Reader::u32)?.map(Rank);
        Some(ServerProcess { rank, process: take_process(reader)?, host: reader.text()? })
    }
}

fn take_process(reader: &mut Reader<'_>) -> Option<ProcessId> {
    ProcessId::decode(&reader.array()?)
}

/// All blobs to the end.
fn take_blobs(reader: &mut Reader<'_>) -> Option<Vec<Vec<u8>>> {
    let mut blobs = Vec::new();
    while !reader.is_empty() {
        blobs.push(reader.bytes()?.to_vec());
    }
    Some(blobs)
}

impl Down {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Down::Everybody { server_process, blobs } => {
                bytes.push(0);
                server_process.put(&mut bytes);
                blobs.iter().for_each(|blob| put_bytes(&mut bytes, blob));
            }
            Down::Missing(ranks) => {
                bytes.push(1);
                ranks.iter().for_each(|rank| put_u32(&mut bytes, rank.0));
            }
            Down::Refused(why) => {
                bytes.push(2);
                put_text(&mut bytes, why);
            }
            Down::Pulse => bytes.push(3),
            Down::FailureNotice(notice) => {
                bytes.push(4);
                put_bytes(&mut bytes, &notice.encode());
            }
            Down::Look { rank, process } => {
                bytes.push(5);
                put_u32(&mut bytes, rank.0);
                bytes.extend_from_slice(&process.encode());
            }
            Down::Goodbye => bytes.push(6),
            Down::Founding { server_process, generation } => {
                bytes.push(7);
                server_process.put(&mut bytes);
                generation.put(&mut bytes);
            }
            Down::Seeds { server_process, blobs } => {
                bytes.push(8);
                server_process.put(&mut bytes);
                blobs.iter().for_each(|blob| put_bytes(&mut bytes, blob));
            }
            Down::MemberLost { member, notice, votes } => {
                bytes.push(9);
                put_u64(&mut bytes, *member);
                put_bytes(&mut bytes, &notice.encode());
                put_option(&mut bytes, votes.as_deref(), put_bytes);
            }
            Down::WitnessAnswer(answer) => {
                bytes.push(10);
                put_bytes(&mut bytes, answer);
            }
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Down> {
        let mut reader = Reader::new(bytes);
        let down = match reader.byte()? {
            0 => {
                let server_process = ServerProcess::take(&mut reader)?;
                Down::Everybody { server_process, blobs: Arc::new(take_blobs(&mut reader)?) }
            }
            1 => {
                let mut ranks = Vec::new();
                while !reader.is_empty() {
                    ranks.push(Rank(reader.u32()?));
                }
                Down::Missing(ranks)
            }
            2 => Down::Refused(reader.text()?),
            3 => Down::Pulse,
            4 => Down::FailureNotice(FailureNotice::decode(reader.bytes()?)?),
            5 => Down::Look { rank: Rank(reader.u32()?), process: take_process(&mut reader)? },
            6 => Down::Goodbye,
            7 => {
                let server_process = ServerProcess::take(&mut reader)?;
                Down::Founding { server_process, generation: Generation::take(&mut reader)? }
            }
            8 => {
                let server_process = ServerProcess::take(&mut reader)?;
                Down::Seeds { server_process, blobs: take_blobs(&mut reader)? }
            }
            9 => Down::MemberLost {
                member: reader.u64()?,
                notice: FailureNotice::decode(reader.bytes()?)?,
                votes: reader.option(|reader| Some(reader.bytes()?.to_vec()))?,
            },
            10 => Down::WitnessAnswer(reader.bytes()?.to_vec()),
            _ => return None,
        };
        reader.end(down)
    }
}

/// What must hold for any bytes that are taken for a message of a rendezvous. The fuzzer calls it, and a test with the
/// fuzzer's seeds. Nothing but times, which are cut, may change on the way.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub fn check_any_message(bytes: &[u8]) {
    if let Some(up) = Up::decode(bytes) {
        let again = up.encode();
        assert_eq!(again.len(), bytes.len(), "a message keeps its length");
        let has_times = matches!(up, Up::Arrival(_) | Up::Enter(_) | Up::AskSeeds { .. });
        assert!(has_times || again == bytes, "a message has one encoding");
        assert_eq!(Up::decode(&again), Some(up), "a message survives its own encoding");
    }
    if let Some(down) = Down::decode(bytes) {
        assert_eq!(down.encode(), bytes, "an answer has one encoding");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure_notice::FailureKind;
    use crate::seeds;

    fn arrival(stay: Stay) -> Up {
        let job = JobId::named("Slurm step 7.0");
        Up::Arrival(Arrival { job, ranks: 5, patience: Duration::from_millis(1500), stay, blob: vec![1, 2, 3] })
    }

    fn process(pid: u32) -> ProcessId {
        ProcessId { pid, namespace: 4_026_531_836, start_time: 4711 }
    }

    #[test]
    fn messages_of_the_corpus_decode_or_are_refused() {
        let server_process = ServerProcess { rank: Some(Rank(0)), process: process(77), host: "höst".into() };
        let silence = Some(Duration::from_secs(5));
        let job = JobId::named("Slurm step 7.0");
        let stay = Stay::Yes { silence, process: process(7), host: "höst".into() };
        let enter = Up::Enter(Enter { job, member: 1 << 40, patience: Duration::from_secs(2), stay, blob: vec![5] });
        let generation = Generation { number: 3, members: vec![(0, vec![1, 2]), (70_000, Vec::new())] };
        let made = [
            ("arrival", arrival(Stay::No).encode()),
            ("arrival_to_stay", arrival(Stay::Yes { silence, process: process(7), host: "höst".into() }).encode()),
            ("heartbeat", Up::Heartbeat.encode()),
            ("goodbye", Up::Goodbye.encode()),
            ("blame", Up::Blame { peer: Some(Rank(2)), cause: "connection reset".into() }.encode()),
            ("seen", Up::Seen { rank: Rank(2), state: Some(ProcessState::Stopped) }.encode()),
            ("sample", Up::Sample(vec![1, 2, 3]).encode()),
            ("enter", enter.encode()),
            ("ask_seeds", Up::AskSeeds { job, patience: Duration::from_secs(3) }.encode()),
            ("generation", Up::Generation(generation.clone()).encode()),
            ("ask_witness", Up::AskWitness(vec![1, 2]).encode()),
            (
                "everybody",
                Down::Everybody {
                    server_process: server_process.clone(),
                    blobs: Arc::new(vec![vec![], vec![1], vec![2; 300]]),
                }
                .encode(),
            ),
            ("missing", Down::Missing(vec![Rank(1), Rank(70_000)]).encode()),
            ("refused", Down::Refused("wegen Überfüllung".into()).encode()),
            ("pulse", Down::Pulse.encode()),
            ("failure_notice", Down::FailureNotice(FailureNotice::new(FailureKind::Stopped).on_rank(Rank(1))).encode()),
            ("look", Down::Look { rank: Rank(1), process: process(77) }.encode()),
            ("founding", Down::Founding { server_process: server_process.clone(), generation }.encode()),
            ("seeds", Down::Seeds { server_process: server_process.clone(), blobs: vec![vec![], vec![7]] }.encode()),
            (
                "member_lost",
                Down::MemberLost { member: 9, notice: FailureNotice::new(FailureKind::Gone), votes: Some(vec![1]) }
                    .encode(),
            ),
            ("witness_answer", Down::WitnessAnswer(vec![1, 2]).encode()),
            ("endless_patience", [&[0, 1, 0, 0, 0, b'a'][..], &[0; 4], &[255; 8], &[0; 5]].concat()),
            ("arrival_without_a_job", [0; 22].to_vec()),
            ("longer_than_it_is", vec![2, 255, 255, 255, 255, 1]),
            ("half_a_rank", vec![1, 0, 0]),
            ("no_text", vec![2, 1, 0, 0, 0, 255]),
            ("empty", Vec::new()),
        ];
        for (name, bytes) in &made[..11] {
            assert!(Up::decode(bytes).is_some(), "{name}");
        }
        for (name, bytes) in &made[11..21] {
            assert!(Down::decode(bytes).is_some(), "{name}");
        }
        seeds::replay("rendezvous", &made, check_any_message);
    }

    #[test]
    fn damaged_messages_are_nothing() {
        for bytes in [&[][..], &[9], &[0; 15], &[0; 22], &[1, 1], &[3, 2], &[4, 0, 0, 0, 0, 9], &[6, 0], &[8; 20]] {
            assert_eq!(Up::decode(bytes), None, "{bytes:?}");
        }
        for bytes in [&[][..], &[9], &[0, 1], &[0, 255, 255, 255, 255, 1], &[1, 0, 0], &[2, 255], &[3, 0], &[4, 0]] {
            assert_eq!(Down::decode(bytes), None, "{bytes:?}");
        }
    }
}
