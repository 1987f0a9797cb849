//! What endpoints of members tell each other, encode beside decode, in the alphabet of `encoding`.
//!
//! A connection begins with one [`Packet::Hello`] on both ways; messages of the agreement follow. Lists begin with
//! their length. Every value has one encoding, and decoders are total.

use std::net::SocketAddr;
use std::sync::Arc;

use farandole_plan::membership::{
    Ballot, Generation, Introduction, MemberId, MemberMessage, Place, Report, Vote, VoteKind, VoteRecord, Witness,
    WitnessAnswer, WitnessRequest,
};
use farandole_transport::JobId;

use crate::encoding::{Reader, put_bytes, put_option, put_text, put_u32, put_u64};

/// One message on a connection between endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Packet {
    /// Who the sender is.
    Hello {
        job: JobId,
        member: MemberId,
    },
    Message(MemberMessage),
    /// The sender has lost another connection to the receiver, and what was sent over it. From here on it repeats what
    /// must not be lost.
    Again {
        /// Whether the receiver is to do the same.
        answer: Answer,
    },
}

/// Whether the other side repeats as well what may have been lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Wanted,
    Given,
}

/// The first byte of a [`Packet::Again`]; those of messages are lower.
const AGAIN: u8 = 255;

/// Where an endpoint listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whereabouts {
    /// Identity of its host: from there it is reached by its abstract Unix socket.
    pub host: String,
    /// The name of that socket.
    pub unix_name: String,
    /// Where it is reached from other hosts.
    pub tcp: Vec<SocketAddr>,
}

impl Whereabouts {
    /// A contact.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_text(&mut bytes, &self.host);
        put_text(&mut bytes, &self.unix_name);
        self.tcp.iter().for_each(|address| put_text(&mut bytes, &address.to_string()));
        bytes
    }

    /// A contact, if these bytes are one.
    pub fn decode(bytes: &[u8]) -> Option<Whereabouts> {
        let mut reader = Reader::new(bytes);
        let (host, unix_name, mut tcp) = (reader.text()?, reader.text()?, Vec::new());
        while !reader.is_empty() {
            let text = reader.text()?;
            let address: SocketAddr = text.parse().ok()?;
            // Other ways to write an address are not ours.
            tcp.push(Some(address).filter(|address| address.to_string() == text)?);
        }
        Some(Whereabouts { host, unix_name, tcp })
    }
}

impl Packet {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Packet::Hello { job, member } => {
                bytes.push(0);
                put_text(&mut bytes, job.as_str());
                put_u64(&mut bytes, member.0);
            }
            Packet::Message(message) => put_message(&mut bytes, message),
            Packet::Again { answer } => bytes.extend([AGAIN, u8::from(*answer == Answer::Given)]),
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Packet> {
        let mut reader = Reader::new(bytes);
        let packet = match reader.byte()? {
            0 => Packet::Hello { job: JobId::from_text(&reader.text()?)?, member: MemberId(reader.u64()?) },
            AGAIN => Packet::Again {
                answer: match reader.byte()? {
                    0 => Answer::Wanted,
                    1 => Answer::Given,
                    _ => return None,
                },
            },
            kind => Packet::Message(read_message(kind, &mut reader)?),
        };
        reader.end(packet)
    }
}

pub(super) fn put_message(bytes: &mut Vec<u8>, message: &MemberMessage) {
    let mut kind_and_base = |kind: u8, base: u64| {
        bytes.push(kind);
        put_u64(bytes, base);
    };
    match message {
        MemberMessage::Heartbeat { generation, place } => {
            kind_and_base(1, *generation);
            bytes.push(match place {
                Place::Training => 0,
                Place::Boundary => 1,
            });
        }
        MemberMessage::Join { generation, candidate } => {
            kind_and_base(2, *generation);
            put_introduction(bytes, candidate);
        }
        MemberMessage::Collect { base, ballot } => {
            kind_and_base(3, *base);
            put_ballot(bytes, *ballot);
        }
        MemberMessage::Report { base, ballot, report } => {
            kind_and_base(4, *base);
            put_ballot(bytes, *ballot);
            put_report(bytes, report);
        }
        MemberMessage::Propose { base, vote } => {
            kind_and_base(5, *base);
            put_vote(bytes, vote);
        }
        MemberMessage::Accepted { base, ballot } => {
            kind_and_base(6, *base);
            put_ballot(bytes, *ballot);
        }
        MemberMessage::LeftOut { base } => kind_and_base(7, *base),
        MemberMessage::Refused { base, promised } => {
            kind_and_base(8, *base);
            put_ballot(bytes, *promised);
        }
        MemberMessage::Decided { generation } => {
            bytes.push(9);
            put_generation(bytes, generation);
        }
        MemberMessage::Leave(record) => {
            bytes.push(10);
            put_vote_record(bytes, record);
        }
        MemberMessage::Confirm { base, nonce } => {
            kind_and_base(11, *base);
            put_u64(bytes, *nonce);
        }
        MemberMessage::Confirmed { base, nonce } => {
            kind_and_base(12, *base);
            put_u64(bytes, *nonce);
        }
    }
}

/// A message, as [`put_message`] writes it.
pub(super) fn read_any_message(reader: &mut Reader<'_>) -> Option<MemberMessage> {
    let kind = reader.byte()?;
    read_message(kind, reader)
}

fn read_message(kind: u8, reader: &mut Reader<'_>) -> Option<MemberMessage> {
    Some(match kind {
        1 => MemberMessage::Heartbeat {
            generation: reader.u64()?,
            place: match reader.byte()? {
                0 => Place::Training,
                1 => Place::Boundary,
                _ => return None,
            },
        },
        2 => MemberMessage::Join { generation: reader.u64()?, candidate: read_introduction(reader)? },
        3 => MemberMessage::Collect { base: reader.u64()?, ballot: read_ballot(reader)? },
        4 => MemberMessage::Report { base: reader.u64()?, ballot: read_ballot(reader)?, report: read_report(reader)? },
        5 => MemberMessage::Propose { base: reader.u64()?, vote: read_vote(reader)? },
        6 => MemberMessage::Accepted { base: reader.u64()?, ballot: read_ballot(reader)? },
        7 => MemberMessage::LeftOut { base: reader.u64()? },
        8 => MemberMessage::Refused { base: reader.u64()?, promised: read_ballot(reader)? },
        9 => MemberMessage::Decided { generation: Arc::new(read_generation(reader)?) },
        10 => MemberMessage::Leave(read_vote_record(reader)?),
        11 => MemberMessage::Confirm { base: reader.u64()?, nonce: reader.u64()? },
        12 => MemberMessage::Confirmed { base: reader.u64()?, nonce: reader.u64()? },
        _ => return None,
    })
}

fn put_ballot(bytes: &mut Vec<u8>, ballot: Ballot) {
    put_u64(bytes, ballot.round);
    put_u64(bytes, ballot.coordinator);
}

fn read_ballot(reader: &mut Reader<'_>) -> Option<Ballot> {
    Some(Ballot { round: reader.u64()?, coordinator: reader.u64()? })
}

fn put_report(bytes: &mut Vec<u8>, report: &Report) {
    put_option(bytes, report.vote.as_ref(), put_vote);
    put_option(bytes, report.payload.as_ref(), |bytes, payload| put_bytes(bytes, payload));
    put_members(bytes, &report.certain);
    put_members(bytes, &report.suspected);
}

fn read_report(reader: &mut Reader<'_>) -> Option<Report> {
    Some(Report {
        vote: reader.option(read_vote)?,
        payload: reader.option(|reader| Some(reader.bytes()?.into()))?,
        certain: read_members(reader)?,
        suspected: read_members(reader)?,
    })
}

fn put_vote(bytes: &mut Vec<u8>, vote: &Vote) {
    put_ballot(bytes, vote.ballot);
    put_generation(bytes, &vote.generation);
    put_members(bytes, &vote.voters);
    bytes.push(match vote.kind {
        VoteKind::First => 0,
        VoteKind::Repeated => 1,
    });
    bytes.push(vote.witness.into());
}

fn read_vote(reader: &mut Reader<'_>) -> Option<Vote> {
    Some(Vote {
        ballot: read_ballot(reader)?,
        generation: Arc::new(read_generation(reader)?),
        voters: read_members(reader)?.into(),
        kind: match reader.byte()? {
            0 => VoteKind::First,
            1 => VoteKind::Repeated,
            _ => return None,
        },
        witness: read_bool(reader)?,
    })
}

fn read_bool(reader: &mut Reader<'_>) -> Option<bool> {
    match reader.byte()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

pub(super) fn put_vote_record(bytes: &mut Vec<u8>, record: &VoteRecord) {
    put_u64(bytes, record.base);
    put_members(bytes, &record.left_out);
}

pub(super) fn read_vote_record(reader: &mut Reader<'_>) -> Option<VoteRecord> {
    Some(VoteRecord { base: reader.u64()?, left_out: read_members(reader)? })
}

/// A member's question to the witness, for the lifeline.
pub(super) fn encode_request(request: &WitnessRequest) -> Vec<u8> {
    let mut bytes = Vec::new();
    match request {
        WitnessRequest::Collect { base, ballot } => {
            bytes.push(0);
            put_u64(&mut bytes, *base);
            put_ballot(&mut bytes, *ballot);
        }
        WitnessRequest::Propose { base, vote } => {
            bytes.push(1);
            put_u64(&mut bytes, *base);
            put_vote(&mut bytes, vote);
        }
    }
    bytes
}

pub(super) fn decode_request(bytes: &[u8]) -> Option<WitnessRequest> {
    let mut reader = Reader::new(bytes);
    let request = match reader.byte()? {
        0 => WitnessRequest::Collect { base: reader.u64()?, ballot: read_ballot(&mut reader)? },
        1 => WitnessRequest::Propose { base: reader.u64()?, vote: read_vote(&mut reader)? },
        _ => return None,
    };
    reader.end(request)
}

pub(super) fn put_answer(bytes: &mut Vec<u8>, answer: &WitnessAnswer) {
    match answer {
        WitnessAnswer::Report { base, ballot, vote } => {
            bytes.push(0);
            put_u64(bytes, *base);
            put_ballot(bytes, *ballot);
            put_option(bytes, vote.as_ref(), put_vote);
        }
        WitnessAnswer::Accepted { base, ballot } => {
            bytes.push(1);
            put_u64(bytes, *base);
            put_ballot(bytes, *ballot);
        }
        WitnessAnswer::Refused { base, promised } => {
            bytes.push(2);
            put_u64(bytes, *base);
            put_ballot(bytes, *promised);
        }
    }
}

pub(super) fn read_answer(reader: &mut Reader<'_>) -> Option<WitnessAnswer> {
    Some(match reader.byte()? {
        0 => {
            let (base, ballot) = (reader.u64()?, read_ballot(reader)?);
            WitnessAnswer::Report { base, ballot, vote: reader.option(read_vote)? }
        }
        1 => WitnessAnswer::Accepted { base: reader.u64()?, ballot: read_ballot(reader)? },
        2 => WitnessAnswer::Refused { base: reader.u64()?, promised: read_ballot(reader)? },
        _ => return None,
    })
}

pub(super) fn decode_answer(bytes: &[u8]) -> Option<WitnessAnswer> {
    let mut reader = Reader::new(bytes);
    let answer = read_answer(&mut reader)?;
    reader.end(answer)
}

/// What the witness answers to the bytes of a question; `None` if they are none.
pub fn answer_as_witness(witness: &mut Witness, request: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    put_answer(&mut bytes, &witness.take(decode_request(request)?));
    Some(bytes)
}

pub(super) fn put_generation(bytes: &mut Vec<u8>, generation: &Generation) {
    put_u64(bytes, generation.number);
    put_u32(bytes, generation.members.len() as u32);
    generation.members.iter().for_each(|member| put_introduction(bytes, member));
    put_u32(bytes, generation.left_out.len() as u32);
    for (member, cause) in &generation.left_out {
        put_u64(bytes, member.0);
        put_text(bytes, cause);
    }
    bytes.push(generation.witness.into());
}

pub(super) fn read_generation(reader: &mut Reader<'_>) -> Option<Generation> {
    Some(Generation {
        number: reader.u64()?,
        members: read_list(reader, read_introduction)?,
        left_out: read_list(reader, |reader| Some((MemberId(reader.u64()?), reader.text()?.into())))?,
        witness: read_bool(reader)?,
    })
}

fn put_introduction(bytes: &mut Vec<u8>, introduction: &Introduction) {
    put_u64(bytes, introduction.id.0);
    put_bytes(bytes, &introduction.contact);
    put_bytes(bytes, &introduction.payload);
}

fn read_introduction(reader: &mut Reader<'_>) -> Option<Introduction> {
    let id = MemberId(reader.u64()?);
    Some(Introduction { id, contact: reader.bytes()?.into(), payload: reader.bytes()?.into() })
}

fn put_members(bytes: &mut Vec<u8>, members: &[MemberId]) {
    put_u32(bytes, members.len() as u32);
    members.iter().for_each(|member| put_u64(bytes, member.0));
}

fn read_members(reader: &mut Reader<'_>) -> Option<Vec<MemberId>> {
    read_list(reader, |reader| reader.u64().map(MemberId))
}

/// A list. What its length says is not believed: only elements that are there take memory.
fn read_list<'a, T>(reader: &mut Reader<'a>, read: impl Fn(&mut Reader<'a>) -> Option<T>) -> Option<Vec<T>> {
    let mut list = Vec::new();
    for _ in 0..reader.u32()? {
        list.push(read(reader)?);
    }
    Some(list)
}

/// What must hold for any bytes that are taken for a message between endpoints, for a contact or for a record. The
/// fuzzer calls it, and a test with the fuzzer's seeds.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub fn check_any_packet(bytes: &[u8]) {
    if let Some(packet) = Packet::decode(bytes) {
        assert_eq!(packet.encode(), bytes, "a message has one encoding");
    }
    if let Some(whereabouts) = Whereabouts::decode(bytes) {
        assert_eq!(whereabouts.encode(), bytes, "whereabouts have one encoding");
    }
    if let Some(request) = decode_request(bytes) {
        assert_eq!(encode_request(&request), bytes, "a question to the witness has one encoding");
    }
    if let Some(answer) = decode_answer(bytes) {
        let mut again = Vec::new();
        put_answer(&mut again, &answer);
        assert_eq!(again, bytes, "an answer of the witness has one encoding");
    }
    super::record::check_any_record(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeds;

    fn generation() -> Arc<Generation> {
        let introduction = |id: u64| Introduction {
            id: MemberId(id),
            contact: vec![id as u8; 3].into(),
            payload: vec![7; id as usize].into(),
        };
        let left_out = vec![(MemberId(1), "its connection was closed: ö".into())];
        Arc::new(Generation { number: 5, members: vec![introduction(0), introduction(2)], left_out, witness: true })
    }

    fn vote(kind: VoteKind) -> Vote {
        let voters = [0, 2].map(MemberId).into();
        Vote { ballot: Ballot { round: 3, coordinator: 2 }, generation: generation(), voters, kind, witness: true }
    }

    fn message(message: MemberMessage) -> Vec<u8> {
        Packet::Message(message).encode()
    }

    fn answer(answer: WitnessAnswer) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_answer(&mut bytes, &answer);
        bytes
    }

    #[test]
    fn packets_of_the_corpus_decode_or_are_refused() {
        let (base, ballot) = (4, Ballot { round: 3, coordinator: 2 });
        let bare = Report { vote: None, payload: None, certain: vec![], suspected: vec![] };
        let full = Report {
            vote: Some(vote(VoteKind::Repeated)),
            payload: Some(vec![1, 2].into()),
            certain: vec![MemberId(1)],
            suspected: vec![MemberId(9), MemberId(u64::MAX)],
        };
        let tcp = vec!["10.0.0.7:4000".parse().unwrap(), "[fe80::1]:1".parse().unwrap()];
        let candidate = generation().members[1].clone();
        let made = [
            ("hello", Packet::Hello { job: JobId::named("Slurm step 7.0"), member: MemberId(3) }.encode()),
            ("heartbeat", message(MemberMessage::Heartbeat { generation: 7, place: Place::Boundary })),
            ("join", message(MemberMessage::Join { generation: 0, candidate })),
            ("collect", message(MemberMessage::Collect { base, ballot })),
            ("bare_report", message(MemberMessage::Report { base, ballot, report: bare })),
            ("full_report", message(MemberMessage::Report { base, ballot, report: full })),
            ("propose", message(MemberMessage::Propose { base, vote: vote(VoteKind::First) })),
            ("accepted", message(MemberMessage::Accepted { base, ballot })),
            ("left_out", message(MemberMessage::LeftOut { base })),
            ("refused", message(MemberMessage::Refused { base, promised: ballot })),
            ("decided", message(MemberMessage::Decided { generation: generation() })),
            ("leave", message(MemberMessage::Leave(VoteRecord { base: 4, left_out: vec![MemberId(1)] }))),
            ("confirm", message(MemberMessage::Confirm { base, nonce: 7 })),
            ("confirmed", message(MemberMessage::Confirmed { base, nonce: u64::MAX })),
            ("again", Packet::Again { answer: Answer::Given }.encode()),
            ("whereabouts", Whereabouts { host: "höst/1/2".into(), unix_name: "farandole-1".into(), tcp }.encode()),
            ("witness_collect", encode_request(&WitnessRequest::Collect { base, ballot })),
            ("witness_propose", encode_request(&WitnessRequest::Propose { base, vote: vote(VoteKind::First) })),
            ("witness_report", answer(WitnessAnswer::Report { base, ballot, vote: Some(vote(VoteKind::Repeated)) })),
            ("witness_accepted", answer(WitnessAnswer::Accepted { base, ballot })),
            ("witness_refused", answer(WitnessAnswer::Refused { base, promised: ballot })),
            ("hello_without_a_job", vec![0; 13]),
            ("endless_list", [&[9][..], &[0; 8], &[255; 4], &[0; 20]].concat()),
            ("unknown_vote", [&[5][..], &[0; 36], &[9]].concat()),
            ("longer_than_it_is", vec![10, 0]),
            ("empty", Vec::new()),
        ];
        for (name, bytes) in &made[..15] {
            assert!(Packet::decode(bytes).is_some(), "{name}");
        }
        assert!(Whereabouts::decode(&made[15].1).is_some());
        for (name, bytes) in &made[21..25] {
            assert!(Packet::decode(bytes).is_none(), "{name}");
        }
        seeds::replay("membership", &made, check_any_packet);
    }
}
