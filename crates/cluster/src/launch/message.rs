//! What the launcher and its agents tell each other.
//!
//! A [`Directive`] goes from the launcher to an agent, an [`AgentReport`] the other way. Both travel inside an
//! authenticated channel, one to a message, in the encoding of the `postcard` crate; the bootstrap (`super::bootstrap`)
//! has made sure that both sides are the same version. Decoding is total all the same: what cannot be understood is an
//! error, never a panic.

use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use farandole_transport::ProcessId;
use serde::{Deserialize, Serialize};

use super::connectivity::{Attempt, HostProbe};
use crate::rendezvous::{FailureNotice, Generation};

/// From the launcher to an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Directive {
    /// Try to reach these addresses of other hosts and say how it went.
    Probe(Vec<HostProbe>),
    /// StartRanks these ranks, when their task has come if there is one.
    Start(Box<StartRanks>),
    /// The next piece of the ranks' task.
    Task(Vec<u8>),
    /// What all ranks brought to the rendezvous, in rank order.
    Everybody(Vec<Vec<u8>>),
    /// Say which ranks have not come to the rendezvous.
    Count,
    /// Tell the ranks that have waited long enough who is missing, anywhere.
    Refuse(Vec<u32>),
    /// Tell the ranks what has happened to one of them.
    Pronounce {
        /// What.
        #[serde(with = "failure_notice")]
        notice: FailureNotice,
        /// Only ranks that have met in this epoch are concerned; `None`: all.
        epoch: Option<u64>,
    },
    /// Pass a signal on to every rank's process group.
    Signal(i32),
    /// Ask all ranks to end, and end those that have not after so many milliseconds.
    End {
        /// Between asking (SIGTERM) and ending (SIGKILL).
        grace_ms: u64,
    },
    /// The launcher is alive.
    Alive,
    /// An elastic job begins with this generation.
    Found(Generation),
    /// Members of an elastic job on another host have entered this generation.
    Learn(Generation),
    /// Tell the members of an elastic job what has become of one of them on another host.
    MemberLost {
        /// Its number.
        member: u32,
        /// What.
        #[serde(with = "failure_notice")]
        notice: FailureNotice,
        /// The record of its votes, if its agent has read it.
        votes: Option<Vec<u8>>,
    },
    /// Pass on the answer of the witness to a member of an elastic job.
    WitnessAnswer {
        /// Its number.
        member: u32,
        /// The answer.
        answer: Vec<u8>,
    },
    /// Ask one member of an elastic job to end, and end it if it has not after so many milliseconds.
    EndMember {
        /// Its number.
        member: u32,
        /// Between asking (SIGTERM) and ending (SIGKILL).
        grace_ms: u64,
    },
    /// Say which of these members of an elastic job have no process here any more: an agent before this one has started
    /// them.
    Seek(Vec<(u32, Process)>),
}

/// A process of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process(#[serde(with = "process_id")] pub ProcessId);

/// Everything that an agent needs to start its ranks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StartRanks {
    /// The ranks of this host, in order of local rank.
    pub ranks: Vec<RankSlot>,
    /// Number of ranks in the job.
    pub size: usize,
    /// The command and its words, as bytes: they need not be UTF-8.
    pub command: Vec<Vec<u8>>,
    /// Where to run it.
    pub working_dir: Vec<u8>,
    /// Variables that every rank gets.
    pub variables: Vec<(Vec<u8>, Vec<u8>)>,
    /// Addresses of this host that other hosts reach; none in a job on one host.
    pub addresses: Vec<IpAddr>,
    /// Silence longer than this is a death, in milliseconds; zero: never.
    pub silence_ms: u64,
    /// Length of the ranks' task, if they have one; it follows in pieces.
    pub task_bytes: Option<u64>,
    /// Whether ranks are to find Farandole under the name `horovod`.
    pub horovod: bool,
    /// Path of the socket at which ranks meet; an abstract one unless it is given.
    pub rendezvous_socket: Option<Vec<u8>>,
    /// How many ranks share a GPU, if the user has said so.
    pub ranks_per_gpu: Option<u32>,
    /// Whether ranks use their GPUs through an MPS daemon of the job's own.
    pub mps: bool,
    /// What an elastic job is like. Its members are started by any number of such orders; the first one for a host
    /// opens its rendezvous.
    pub elastic: Option<ElasticStart>,
    /// How often the whole job has been started before.
    pub restart: u32,
    /// Where rank 0 can listen for the others, in a script of `torch.distributed`; nowhere in an elastic job.
    pub store: Option<SocketAddr>,
}

/// What members of an elastic job are told besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ElasticStart {
    /// With fewer members the job waits.
    pub min_np: usize,
    /// The job never has more members, if there is a bound.
    pub max_np: Option<usize>,
    /// How long it waits, in milliseconds.
    pub timeout_ms: u64,
    /// How many members this host has room for.
    pub slots: u32,
}

impl StartRanks {
    /// How many ranks this host may have at a time.
    pub(super) fn room(&self) -> usize {
        self.elastic.map_or(0, |elastic| elastic.slots as usize).max(self.ranks.len())
    }

    /// The value that a variable has in ranks of this host.
    pub(super) fn variable(&self, name: &str) -> Option<OsString> {
        let set = self.variables.iter().rev().find(|(set, _)| set == name.as_bytes());
        set.map(|(_, value)| OsString::from_vec(value.clone())).or_else(|| std::env::var_os(name))
    }

    /// The variables that every rank gets, for commands that are to have them, too.
    pub(super) fn environment(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.variables.iter().map(|(name, value)| (OsStr::from_bytes(name), OsStr::from_bytes(value)))
    }
}

/// Where a rank sits. In an elastic job the number of a member stands for the rank, and its slot on the host for the
/// local rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankSlot {
    /// Its number in the world.
    pub rank: u32,
    /// Its number on its host.
    pub local_rank: u32,
    /// Number of ranks on its host.
    pub local_size: u32,
    /// Its number among the ranks with the same local rank.
    pub cross_rank: u32,
    /// How many hosts have a rank with this local rank.
    pub cross_size: u32,
}

/// From an agent to the launcher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AgentReport {
    /// The agent is there.
    Ready {
        /// Its process.
        pid: u32,
        /// What the host calls itself.
        host_name: String,
        /// Addresses at which other hosts may reach it, each with the port where probes are answered.
        probe_addresses: Vec<SocketAddr>,
    },
    /// How the attempts to reach other hosts went.
    Probed(Vec<Attempt>),
    /// A rank runs.
    Started {
        /// Which.
        rank: u32,
        /// Its process.
        #[serde(with = "process_id")]
        process: ProcessId,
    },
    /// A rank could not be started, or the whole order could not be carried out.
    NotStarted {
        /// Which, if it was one.
        rank: Option<u32>,
        /// Why.
        why: String,
    },
    /// Something that a rank has written: whole lines, or the rest of its last one.
    Output {
        /// Which rank.
        rank: u32,
        /// Where it was written to.
        stream: OutputStream,
        /// The bytes, with their line ends.
        bytes: Vec<u8>,
    },
    /// The next piece of a rank's result. It is complete when the rank has ended.
    Result {
        /// Which.
        rank: u32,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// A rank's process has ended, and all that it wrote has been passed on.
    Ended {
        /// Which.
        rank: u32,
        /// How.
        how: HowEnded,
        /// Microseconds after the agent started it.
        after_us: u64,
    },
    /// A rank's process has been stopped by a signal.
    Stopped {
        /// Which.
        rank: u32,
        /// By what.
        signal: i32,
    },
    /// A stopped rank runs again.
    Continued {
        /// Which.
        rank: u32,
    },
    /// All ranks of this host have come to the rendezvous.
    Gathered {
        /// How often they have met before.
        epoch: u64,
        /// What they have brought.
        messages: Vec<(u32, Vec<u8>)>,
    },
    /// One of them has left again before everybody was told of the others.
    Withdrawn {
        /// For which meeting it had come.
        epoch: u64,
        /// Which.
        rank: u32,
    },
    /// A rank has waited for the others for as long as it wanted to.
    Overdue {
        /// For which meeting it has come.
        epoch: u64,
        /// Who of this host is missing.
        missing: Vec<u32>,
    },
    /// The ranks of this host that have not come; asked for by [`Directive::Count`].
    Missing {
        /// To which meeting.
        epoch: u64,
        /// Which.
        ranks: Vec<u32>,
    },
    /// A rank has not been heard of for the time that was set, though its process is there and not stopped.
    Silent {
        /// Which.
        rank: u32,
    },
    /// A rank says whose fault its own failure is.
    Blamed {
        /// Who says so.
        by: u32,
        /// The peer that it lost, if it was one.
        peer: Option<u32>,
        /// Its words.
        cause: String,
    },
    /// What ranks of this host are doing, in the words of `farandole_trace::live`.
    Samples(Vec<(u32, Vec<u8>)>),
    /// All processes of this host's ranks are gone, down to their children.
    Empty,
    /// The agent is alive.
    Alive,
    /// Something that the user should know.
    Note(String),
    /// The MPS daemon of this host's ranks has ended, and nobody had asked it to.
    MpsEnded {
        /// Its process.
        pid: u32,
        /// How.
        how: HowEnded,
        /// The last that it wrote, if anything.
        words: Option<String>,
    },
    /// A member of an elastic job has come to the rendezvous before the job began.
    Entered {
        /// Its number.
        member: u32,
        /// What the others are to know of it.
        blob: Vec<u8>,
    },
    /// It has left again.
    EntryWithdrawn {
        /// Its number.
        member: u32,
    },
    /// Members of an elastic job on this host have entered this generation.
    Entering(Generation),
    /// These members have no process here any more; asked for by [`Directive::Seek`].
    NotThere(Vec<u32>),
    /// The process of a member of an elastic job has ended without leaving in order. Precedes [`AgentReport::Ended`].
    Reaped {
        /// Its number.
        member: u32,
        /// The record of its votes, if it has opened its vote file.
        votes: Option<Vec<u8>>,
    },
    /// A member of an elastic job asks the witness.
    WitnessAsked {
        /// Its number.
        member: u32,
        /// The question.
        question: Vec<u8>,
    },
    /// A port of this host that is kept for a store of `torch.distributed`. Precedes [`AgentReport::Ready`].
    StorePort(u16),
}

/// Where a rank wrote something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HowEnded {
    /// By itself, with this code.
    Exited(i32),
    /// By this signal.
    Signalled(i32),
}

impl HowEnded {
    /// What the standard library says about a process that was waited for.
    pub fn from_status(status: std::process::ExitStatus) -> HowEnded {
        use std::os::unix::process::ExitStatusExt;
        match (status.code(), status.signal()) {
            (Some(code), _) => HowEnded::Exited(code),
            (None, Some(signal)) => HowEnded::Signalled(signal),
            (None, None) => HowEnded::Exited(status.into_raw()),
        }
    }

    /// Whether that was a success.
    pub fn is_success(self) -> bool {
        self == HowEnded::Exited(0)
    }

    /// The code that a shell would give it.
    pub fn exit_code(self) -> u8 {
        match self {
            HowEnded::Exited(code) => u8::try_from(code & 0xff).unwrap_or(1),
            HowEnded::Signalled(signal) => u8::try_from(128 + (signal & 0x7f)).unwrap_or(255),
        }
    }
}

impl std::fmt::Display for HowEnded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            HowEnded::Exited(code) => write!(f, "ended with exit code {code}"),
            HowEnded::Signalled(signal) => write!(f, "was killed by {}", super::signal::name(*signal)),
        }
    }
}

/// A failure notice has an encoding of its own, which ranks know; here it travels as that.
mod failure_notice {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::rendezvous::FailureNotice;

    pub(super) fn serialize<S: Serializer>(notice: &FailureNotice, serializer: S) -> Result<S::Ok, S::Error> {
        notice.encode().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<FailureNotice, D::Error> {
        let bytes = Vec::<u8>::deserialize(deserializer)?;
        FailureNotice::decode(&bytes).ok_or_else(|| D::Error::custom("no notice"))
    }
}

/// A process identity, encoded as the transport encodes it.
mod process_id {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use farandole_transport::ProcessId;

    pub(super) fn serialize<S: Serializer>(process: &ProcessId, serializer: S) -> Result<S::Ok, S::Error> {
        process.encode().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ProcessId, D::Error> {
        ProcessId::decode(&Deserialize::deserialize(deserializer)?)
            .ok_or_else(|| D::Error::custom("not a process identity"))
    }
}

/// A message as bytes.
pub fn encode<M: Serialize>(message: &M) -> Vec<u8> {
    postcard::to_stdvec(message).expect("invariant: messages hold nothing that cannot be written to memory")
}

/// The message that these bytes are; all of them.
pub fn decode<'a, M: Deserialize<'a>>(bytes: &'a [u8]) -> Option<M> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Some(message),
        _ => None,
    }
}

/// What must hold for any bytes that an agent, a launcher or an agent's standard input gets: they are read without a
/// panic, and what they are read as is written as the same thing again.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub fn check_any_message(bytes: &[u8]) {
    fn check<'a, M: Serialize + Deserialize<'a> + PartialEq>(bytes: &'a [u8], again: impl Fn(&[u8]) -> Option<M>) {
        if let Some(message) = decode::<M>(bytes) {
            assert!(again(&encode(&message)).is_some_and(|same| same == message), "a message survives its bytes");
        }
    }
    check::<Directive>(bytes, decode_owned);
    check::<AgentReport>(bytes, decode_owned);
    if let Ok(bootstrap) = super::bootstrap::Bootstrap::read(bytes) {
        let again = super::bootstrap::Bootstrap::read(bootstrap.to_bytes().as_slice());
        assert!(again.is_ok_and(|same| same == bootstrap), "a bootstrap survives its bytes");
    }
}

#[cfg(any(test, fuzzing))]
fn decode_owned<M: serde::de::DeserializeOwned>(bytes: &[u8]) -> Option<M> {
    decode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::bootstrap::Bootstrap;
    use crate::rendezvous::FailureKind;
    use crate::seeds;

    #[test]
    fn messages_survive_the_bytes_of_the_corpus() {
        let notice = FailureNotice {
            rank: None,
            host: None,
            pid: None,
            kind: FailureKind::Other,
            text: "rank 1 is gone".into(),
        };
        let generation = Generation { number: 2, members: vec![(0, vec![1]), (9, Vec::new())] };
        let lost = notice.clone();
        let slot = RankSlot { rank: 1, local_size: 2, ..RankSlot::default() };
        let start = StartRanks { ranks: vec![slot], size: 2, command: vec![b"true".to_vec()], ..StartRanks::default() };
        let probe = HostProbe { host: 1, address: "[fd00::1]:80".parse().unwrap() };
        let attempt = Attempt { probe: probe.clone(), outcome: Err("refused".into()) };
        let output = AgentReport::Output { rank: 0, stream: OutputStream::Stderr, bytes: b"oh\n".to_vec() };
        let bootstrap = Bootstrap {
            key: "00".repeat(32),
            host: 1,
            hosts: 2,
            launcher: vec!["10.0.0.1:5".parse().unwrap()],
            silence_ms: 5000,
            patience_ms: 30_000,
            network: Vec::new(),
        };
        let made = [
            ("probe", encode(&Directive::Probe(vec![probe]))),
            ("start", encode(&Directive::Start(Box::new(start)))),
            ("task", encode(&Directive::Task(vec![1, 2, 3]))),
            ("everybody", encode(&Directive::Everybody(vec![vec![1, 2], vec![]]))),
            ("count", encode(&Directive::Count)),
            ("refuse", encode(&Directive::Refuse(vec![1, 70_000]))),
            ("pronounce", encode(&Directive::Pronounce { notice, epoch: Some(3) })),
            ("end", encode(&Directive::End { grace_ms: 5000 })),
            ("found", encode(&Directive::Found(generation.clone()))),
            ("member_lost", encode(&Directive::MemberLost { member: 3, notice: lost, votes: Some(vec![1]) })),
            ("end_member", encode(&Directive::EndMember { member: 3, grace_ms: 0 })),
            (
                "seek",
                encode(&Directive::Seek(vec![(3, Process(ProcessId { pid: 70_000, namespace: 5, start_time: 1 }))])),
            ),
            ("witness_answer", encode(&Directive::WitnessAnswer { member: 3, answer: vec![1] })),
            ("reaped", encode(&AgentReport::Reaped { member: 3, votes: Some(vec![1]) })),
            ("witness_asked", encode(&AgentReport::WitnessAsked { member: 3, question: vec![1] })),
            ("not_there", encode(&AgentReport::NotThere(vec![3]))),
            ("entered", encode(&AgentReport::Entered { member: 7, blob: vec![1] })),
            ("entering", encode(&AgentReport::Entering(generation))),
            (
                "ready",
                encode(&AgentReport::Ready {
                    pid: 7,
                    host_name: "b".into(),
                    probe_addresses: vec!["10.0.0.2:9".parse().unwrap()],
                }),
            ),
            ("probed", encode(&AgentReport::Probed(vec![attempt]))),
            ("output", encode(&output)),
            ("result", encode(&AgentReport::Result { rank: 0, bytes: vec![7; 3] })),
            ("ended", encode(&AgentReport::Ended { rank: 0, how: HowEnded::Signalled(9), after_us: 1 })),
            ("gathered", encode(&AgentReport::Gathered { epoch: 2, messages: vec![(0, vec![1]), (1, vec![2])] })),
            ("withdrawn", encode(&AgentReport::Withdrawn { epoch: 2, rank: 1 })),
            ("overdue", encode(&AgentReport::Overdue { epoch: 2, missing: vec![3] })),
            ("missing", encode(&AgentReport::Missing { epoch: 2, ranks: Vec::new() })),
            ("blamed", encode(&AgentReport::Blamed { by: 0, peer: Some(1), cause: "gone".into() })),
            ("note", encode(&AgentReport::Note("there is another".into()))),
            ("mps_ended", encode(&AgentReport::MpsEnded { pid: 7, how: HowEnded::Signalled(9), words: None })),
            ("samples", encode(&AgentReport::Samples(vec![(0, vec![1, 2]), (70_000, Vec::new())]))),
            ("store_port", encode(&AgentReport::StorePort(4711))),
            ("bootstrap", bootstrap.to_bytes()),
            ("endless_list", vec![2, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]),
            ("empty", Vec::new()),
        ];
        seeds::replay("launch", &made, check_any_message);
    }

    #[test]
    fn messages_survive_their_bytes() {
        let start = StartRanks {
            ranks: vec![RankSlot { rank: 3, local_rank: 1, local_size: 2, cross_rank: 1, cross_size: 2 }],
            size: 4,
            command: vec![b"train".to_vec(), vec![0xff, 0]],
            working_dir: b"/data".to_vec(),
            variables: vec![(b"A".to_vec(), b"1".to_vec())],
            addresses: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            silence_ms: 5000,
            task_bytes: Some(1 << 40),
            horovod: true,
            rendezvous_socket: Some(b"/run/meeting".to_vec()),
            ranks_per_gpu: Some(2),
            mps: true,
            elastic: Some(ElasticStart { min_np: 1, max_np: None, timeout_ms: 600_000, slots: 4 }),
            restart: 2,
            store: Some("10.0.0.1:4711".parse().unwrap()),
        };
        for directive in
            [Directive::Start(Box::new(start)), Directive::Everybody(vec![vec![1], vec![]]), Directive::Alive]
        {
            assert_eq!(decode::<Directive>(&encode(&directive)), Some(directive));
        }
        let report = AgentReport::Ended { rank: 1, how: HowEnded::Signalled(9), after_us: 7 };
        assert_eq!(decode::<AgentReport>(&encode(&report)), Some(report));
    }

    #[test]
    fn what_is_cut_off_or_too_long_is_no_message() {
        let mut bytes = encode(&AgentReport::NotStarted { rank: None, why: "no such file".into() });
        assert_eq!(decode::<AgentReport>(&bytes[..bytes.len() - 1]), None);
        bytes.push(0);
        assert_eq!(decode::<AgentReport>(&bytes), None);
    }

    #[test]
    fn codes_are_those_of_a_shell() {
        assert_eq!(HowEnded::Exited(3).exit_code(), 3);
        assert_eq!(HowEnded::Signalled(9).exit_code(), 137);
        assert_eq!(HowEnded::Signalled(9).to_string(), "was killed by signal 9 (SIGKILL)");
    }
}
