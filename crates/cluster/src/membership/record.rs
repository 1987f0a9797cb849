//! What a member was told and what it did, in a file, and the same once more.
//!
//! Each member of a job that is recorded (`FARANDOLE_MEMBERSHIP_LOG`) has one file, named by its number. Its first
//! record is how the member began; every other one has the time, one input of the state machine
//! (`farandole_plan::membership`) and all effects, and is written before these are carried out. So what anybody can
//! have heard of a member is in its file, also when it was killed. [`replay`] tells new state machines the same, and
//! compares their effects, byte by byte, and the generations of all members.
//!
//! A record is its length (u32) and its bytes, in the alphabet of `encoding`. One that is cut short ends the file:
//! its writer was killed, or the disk was full.
//!
//! Not here: what is recorded of a training (`farandole-trace`).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use farandole_plan::membership::{
    GenerationHistory, Limits, Loss, LossEvidence, MemberId, MembershipEffect, MembershipInput, MembershipStart, Replay,
};

use super::wire::{
    encode_request, put_answer, put_generation, put_message, put_vote_record, read_answer, read_any_message,
    read_generation, read_vote_record,
};
use crate::encoding::{Reader, put_bytes, put_option, put_text, put_u64};
use crate::error::{Error, Result};

/// How the files are called: by the member's number.
const EXTENSION: &str = "membership";

/// Writes the file of one member.
#[derive(Debug)]
pub(super) struct Recorder {
    file: File,
    path: PathBuf,
}

impl Recorder {
    /// A new file in this folder, which is made.
    pub(super) fn create(folder: &Path, member: MemberId) -> io::Result<Recorder> {
        fs::create_dir_all(folder)?;
        let path = folder.join(format!("{member}.{EXTENSION}"));
        let file = File::options().write(true).create(true).truncate(true).open(&path)?;
        Ok(Recorder { file, path })
    }

    /// Adds a record. Says whether that went well: a file with a gap is worth nothing.
    pub(super) fn add(&mut self, record: &[u8]) -> bool {
        let mut bytes = Vec::with_capacity(record.len() + 4);
        put_bytes(&mut bytes, record);
        let written = self.file.write_all(&bytes);
        if let Err(error) = &written {
            log::warn!("{}: {error}; the rest of this member's decisions is not recorded", self.path.display());
        }
        written.is_ok()
    }
}

/// The first record.
pub(super) fn encode_start(at: Duration, start: &MembershipStart) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_time(&mut bytes, at);
    let limits = match start {
        MembershipStart::Founder { me, generation, limits } => {
            bytes.push(0);
            put_u64(&mut bytes, me.0);
            put_generation(&mut bytes, generation);
            limits
        }
        MembershipStart::Candidate { me, contact, limits } => {
            bytes.push(1);
            put_u64(&mut bytes, me.0);
            put_bytes(&mut bytes, contact);
            limits
        }
    };
    put_u64(&mut bytes, limits.min_members as u64);
    put_u64(&mut bytes, limits.max_members as u64);
    put_option(&mut bytes, limits.silence, put_time);
    bytes
}

fn decode_start(bytes: &[u8]) -> Option<(Duration, MembershipStart)> {
    let mut reader = Reader::new(bytes);
    let (at, kind, me) = (read_time(&mut reader)?, reader.byte()?, MemberId(reader.u64()?));
    let start = match kind {
        0 => {
            let generation = read_generation(&mut reader)?.into();
            MembershipStart::Founder { me, generation, limits: read_limits(&mut reader)? }
        }
        1 => {
            let contact = reader.bytes()?.into();
            MembershipStart::Candidate { me, contact, limits: read_limits(&mut reader)? }
        }
        _ => return None,
    };
    reader.end((at, start))
}

fn read_limits(reader: &mut Reader<'_>) -> Option<Limits> {
    let (min_members, max_members) = (reader.u64()?.try_into().ok()?, reader.u64()?.try_into().ok()?);
    Some(Limits { min_members, max_members, silence: reader.option(read_time)? })
}

/// What came after the start: time and input. The effects follow.
pub(super) fn encode_input(at: Duration, input: &MembershipInput) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_time(&mut bytes, at);
    match input {
        MembershipInput::Come(payload) => {
            bytes.push(0);
            put_bytes(&mut bytes, payload);
        }
        MembershipInput::Leave => bytes.push(1),
        MembershipInput::Meet(peer) => {
            bytes.push(2);
            put_u64(&mut bytes, peer.0);
        }
        MembershipInput::Learn { member, evidence, cause } => {
            bytes.push(3);
            put_u64(&mut bytes, member.0);
            bytes.push(match evidence {
                LossEvidence::Ended => 0,
                LossEvidence::Dead => 1,
                LossEvidence::Broken => 2,
                LossEvidence::Doubted => 3,
                LossEvidence::Reaped(_) => 4,
            });
            if let LossEvidence::Reaped(record) = evidence {
                put_vote_record(&mut bytes, record);
            }
            put_text(&mut bytes, cause);
        }
        MembershipInput::Hear { from, message } => {
            bytes.push(4);
            put_u64(&mut bytes, from.0);
            put_message(&mut bytes, message);
        }
        MembershipInput::Tick => bytes.push(5),
        MembershipInput::Confirm(nonce) => {
            bytes.push(6);
            put_u64(&mut bytes, *nonce);
        }
        MembershipInput::HearWitness(answer) => {
            bytes.push(7);
            put_answer(&mut bytes, answer);
        }
    }
    bytes
}

/// Time and input of a record, and the bytes of the effects.
fn decode_input(bytes: &[u8]) -> Option<(Duration, MembershipInput, &[u8])> {
    let mut reader = Reader::new(bytes);
    let at = read_time(&mut reader)?;
    let input = match reader.byte()? {
        0 => MembershipInput::Come(reader.bytes()?.into()),
        1 => MembershipInput::Leave,
        2 => MembershipInput::Meet(MemberId(reader.u64()?)),
        3 => MembershipInput::Learn {
            member: MemberId(reader.u64()?),
            evidence: match reader.byte()? {
                0 => LossEvidence::Ended,
                1 => LossEvidence::Dead,
                2 => LossEvidence::Broken,
                3 => LossEvidence::Doubted,
                4 => LossEvidence::Reaped(read_vote_record(&mut reader)?),
                _ => return None,
            },
            cause: reader.text()?.into(),
        },
        4 => MembershipInput::Hear { from: MemberId(reader.u64()?), message: read_any_message(&mut reader)? },
        5 => MembershipInput::Tick,
        6 => MembershipInput::Confirm(reader.u64()?),
        7 => MembershipInput::HearWitness(read_answer(&mut reader)?),
        _ => return None,
    };
    Some((at, input, reader.rest()))
}

/// Effects are compared and never read, so there is no decoder.
pub(super) fn put_effects(bytes: &mut Vec<u8>, effects: &[MembershipEffect]) {
    for effect in effects {
        match effect {
            MembershipEffect::Send { to, message } => {
                bytes.push(0);
                put_u64(bytes, to.0);
                put_message(bytes, message);
            }
            MembershipEffect::Record(record) => {
                bytes.push(7);
                put_vote_record(bytes, record);
            }
            MembershipEffect::AskWitness(request) => {
                bytes.push(8);
                put_bytes(bytes, &encode_request(request));
            }
            MembershipEffect::Lost { member, loss, cause } => {
                bytes.push(if *loss == Loss::Certain { 1 } else { 2 });
                put_u64(bytes, member.0);
                put_text(bytes, cause);
            }
            MembershipEffect::Called { by } => {
                bytes.push(3);
                put_u64(bytes, by.0);
            }
            MembershipEffect::Installed(generation) => {
                bytes.push(4);
                put_generation(bytes, generation);
            }
            MembershipEffect::Evicted { generation, cause } => {
                bytes.push(5);
                put_u64(bytes, *generation);
                put_text(bytes, cause);
            }
            MembershipEffect::Waiting(waiting) => {
                bytes.push(6);
                put_text(bytes, &waiting.to_string());
            }
            MembershipEffect::Confirmed { nonce, outcome } => {
                bytes.push(7);
                put_u64(bytes, *nonce);
                match outcome {
                    Ok(generation) => put_u64(bytes, *generation),
                    Err(refusal) => put_text(bytes, &refusal.to_string()),
                }
            }
        }
    }
}

fn put_time(bytes: &mut Vec<u8>, time: Duration) {
    put_u64(bytes, time.as_nanos() as u64);
}

fn read_time(reader: &mut Reader<'_>) -> Option<Duration> {
    reader.u64().map(Duration::from_nanos)
}

/// What was found when a job's decisions were made once more.
#[derive(Debug, Default)]
pub struct Replayed {
    /// The generations that members have entered.
    pub history: GenerationHistory,
    /// How many members there were.
    pub members: usize,
    /// How many inputs they had.
    pub inputs: usize,
    /// How many have left, given up or were evicted.
    pub over: usize,
}

/// Makes all decisions of a recorded job once more. An error says which member decided otherwise, or that two histories
/// were made.
pub fn replay(folder: &Path) -> Result<Replayed> {
    let reading = |error| Error::local(format!("reading recorded decisions in {}", folder.display()), error);
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(reading)? {
        let path = entry.map_err(reading)?.path();
        let number = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse::<u64>().ok());
        if let (Some(number), true) = (number, path.extension().is_some_and(|extension| extension == EXTENSION)) {
            files.insert(number, path);
        }
    }
    let mut replayed = Replayed::default();
    for (member, path) in files {
        let bytes = fs::read(&path).map_err(reading)?;
        replay_member(&bytes, &mut replayed).map_err(|cause| Error::Replay { member, cause })?;
    }
    Ok(replayed)
}

/// Makes the decisions of one member once more. One that was killed before its first record was whole has made none.
fn replay_member(bytes: &[u8], replayed: &mut Replayed) -> std::result::Result<(), String> {
    let mut records = Reader::new(bytes);
    let Some(first) = records.bytes() else { return Ok(()) };
    let (at, start) = decode_start(first).ok_or("its first record cannot be read: it is of another version")?;
    let history = &mut replayed.history;
    let mut replay = Replay::begin(start, at, history).map_err(|two| two.to_string())?;
    replayed.members += 1;
    while let Some(record) = records.bytes() {
        let place = replayed.inputs;
        let (at, input, effects) =
            decode_input(record).ok_or_else(|| format!("record {place} cannot be read: it is of another version"))?;
        let shown = format!("at {:.6} s, {input:?}", at.as_secs_f64());
        let again = replay.take(input, at, history).map_err(|two| format!("{two}, {shown}"))?;
        let mut bytes = Vec::new();
        put_effects(&mut bytes, &again);
        if bytes != effects {
            return Err(format!("it did something else than {again:?}, {shown}"));
        }
        replayed.inputs += 1;
    }
    replayed.over += usize::from(replay.machine().is_over());
    Ok(())
}

/// What must hold for any bytes that are taken for a record.
#[cfg(any(test, fuzzing))]
pub(super) fn check_any_record(bytes: &[u8]) {
    if let Some((at, start)) = decode_start(bytes) {
        assert_eq!(encode_start(at, &start), bytes, "a start has one encoding");
    }
    if let Some((at, input, effects)) = decode_input(bytes) {
        assert_eq!([&encode_input(at, &input), effects].concat(), bytes, "an input has one encoding");
    }
}
