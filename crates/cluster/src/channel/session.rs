//! The protocol of a channel: bytes in, bytes out, no I/O and no clock.
//!
//! ```text
//! initiator                                       responder
//!     opening (16 bytes) · e, sealed nothing  ───────▶          64 bytes
//!     ◀─────────  preamble (8 bytes) · e, ee, sealed nothing    56 bytes
//!     confirmation: the first frame, empty  ─────────▶          19 bytes
//!     frames in both directions
//!
//! preamble:  "FRNDCHN" · u8 version                        alike in all versions, first on both ways
//! opening:   preamble · u8 purpose · 3 zero bytes · u32 caller
//! frame:     u16 length · Noise message of one byte (0: more follows, 1: the message ends) and a piece of the message
//! ```
//!
//! Numbers are little-endian. The opening travels in clear and is the handshake's prologue, so nobody can change on the
//! way what a connection is for or who the caller says it is. A responder of another version, or of another job,
//! answers with its preamble alone and hangs up, from which the initiator learns just that.
//!
//! *Who is believed when.* The responder's answer depends on both fresh key pairs and the job's key, so an initiator
//! that can open it talks to a living holder of the key. The initiator's first message depends on its own key pair
//! only: it may be a recording. Therefore the initiator confirms at once, with a frame that no recording holds, and a
//! responder is established when it has opened the confirmation. Until then a stranger can make this side keep 64
//! bytes, and nothing of theirs is decoded. Frames are numbered by Noise; one that is altered, repeated, left out or
//! moved does not open.
//!
//! **Invariant:** the first fault ends the session. Messages that were complete before it can still be taken.

use std::collections::VecDeque;

use farandole_transport::Key;
use snow::{Builder, HandshakeState, TransportState};

use super::{ChannelFault, ChannelPurpose, VERSION};

/// Longest message unless a session is told otherwise: the contacts of a hundred thousand ranks.
pub const DEFAULT_MOST_BYTES: usize = 16 << 20;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
const MAGIC: [u8; 7] = *b"FRNDCHN";
const PREAMBLE_BYTES: usize = 8;
const OPENING_BYTES: usize = 16;
/// A public key and the seal of an empty payload.
const NOISE_HANDSHAKE_BYTES: usize = 32 + SEAL_BYTES;
const SEAL_BYTES: usize = 16;
const LENGTH_BYTES: usize = 2;
/// What Noise allows for one of its messages.
const MOST_FRAME_BYTES: usize = 65535;
/// The byte that says whether more follows, and the seal.
const LEAST_FRAME_BYTES: usize = 1 + SEAL_BYTES;
const MOST_PIECE_BYTES: usize = MOST_FRAME_BYTES - LEAST_FRAME_BYTES;
const MORE_FOLLOWS: u8 = 0;
const MESSAGE_ENDS: u8 = 1;

/// One side of a channel.
pub struct Session {
    key: [u8; 32],
    purpose: ChannelPurpose,
    caller: u32,
    most_bytes: usize,
    stage: Stage,
    /// The unit that is being received: a preamble, the rest of a handshake message, a length or a frame.
    unit: Vec<u8>,
    unit_bytes: usize,
    /// Pieces of the message that is being received.
    partial: Vec<u8>,
    messages: VecDeque<Vec<u8>>,
    outgoing: Vec<u8>,
    /// How much of `outgoing` has been sent.
    sent_bytes: usize,
    /// Where in `outgoing` messages and handshake units end that are not completely sent.
    ends: VecDeque<usize>,
    /// Whether a part of the first of them has been sent.
    is_mid_message: bool,
    /// Messages that wait until the session is established.
    early: Vec<Vec<u8>>,
    #[cfg(any(test, fuzzing))]
    ephemeral: Option<[u8; 32]>,
}

/// How far a session is, and with it what the unit on its way is.
enum Stage {
    /// The initiator waits for the responder's preamble, and then for the rest of its answer.
    Calling { handshake: Box<HandshakeState>, answer: Answer },
    /// The responder waits for the initiator's preamble.
    Listening,
    /// The responder waits for the rest of the initiator's first message.
    Hearing,
    /// The responder has answered and waits for the confirmation.
    Confirming { noise: Box<TransportState> },
    /// The length of the next frame is awaited, or the frame itself.
    Open { noise: Box<TransportState>, frame: Frame },
    /// The first fault.
    Ended(ChannelFault),
}

#[derive(Clone, Copy)]
enum Answer {
    Preamble,
    Rest,
}

#[derive(Clone, Copy)]
enum Frame {
    Length,
    Body,
}

impl Session {
    /// The side that connects. `caller` says who it is among those who come for this purpose.
    pub fn initiate(key: &Key, purpose: ChannelPurpose, caller: u32) -> Result<Session, ChannelFault> {
        let mut session = Session::new(key, purpose, caller, Stage::Listening, PREAMBLE_BYTES);
        session.call()?;
        Ok(session)
    }

    /// The side that was connected to.
    pub fn respond(key: &Key, purpose: ChannelPurpose) -> Session {
        Session::new(key, purpose, 0, Stage::Listening, PREAMBLE_BYTES)
    }

    /// Both sides of a channel with key pairs that are no secret, so that the same bytes travel in every run of a
    /// check.
    #[cfg(any(test, fuzzing))]
    pub(super) fn predictable_pair(key: &Key, purpose: ChannelPurpose, caller: u32) -> (Session, Session) {
        let mut initiator = Session::new(key, purpose, caller, Stage::Listening, PREAMBLE_BYTES);
        initiator.ephemeral = Some([3; 32]);
        initiator.call().expect("nothing random is asked for");
        let mut responder = Session::respond(key, purpose);
        responder.ephemeral = Some([4; 32]);
        (initiator, responder)
    }

    fn new(key: &Key, purpose: ChannelPurpose, caller: u32, stage: Stage, unit_bytes: usize) -> Session {
        Session {
            key: blake3::derive_key("farandole 2026 channel", key.to_hex().as_bytes()),
            purpose,
            caller,
            most_bytes: DEFAULT_MOST_BYTES,
            stage,
            unit: Vec::new(),
            unit_bytes,
            partial: Vec::new(),
            messages: VecDeque::new(),
            outgoing: Vec::new(),
            sent_bytes: 0,
            ends: VecDeque::new(),
            is_mid_message: false,
            early: Vec::new(),
            #[cfg(any(test, fuzzing))]
            ephemeral: None,
        }
    }

    /// Changes the length of the longest message, in both directions.
    pub fn with_most_bytes(mut self, most_bytes: usize) -> Session {
        self.most_bytes = most_bytes;
        self
    }

    /// Whether the other side has proved that it holds the key, here and now.
    pub fn is_established(&self) -> bool {
        matches!(self.stage, Stage::Open { .. })
    }

    /// Who the initiator says it is; `None` before the session is established.
    pub fn caller(&self) -> Option<u32> {
        self.is_established().then_some(self.caller)
    }

    /// Takes bytes that came from the other side, however they were cut.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<(), ChannelFault> {
        if let Stage::Ended(fault) = &self.stage {
            return Err(fault.clone());
        }
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(self.unit_bytes - self.unit.len()));
            self.unit.extend_from_slice(now);
            bytes = later;
            if self.unit.len() == self.unit_bytes {
                let mut unit = std::mem::take(&mut self.unit);
                let taken = self.take_unit(&unit);
                unit.clear();
                self.unit = unit;
                taken.map_err(|fault| self.end(fault))?;
            }
        }
        Ok(())
    }

    /// Says that no more bytes will come. A fault, if something was cut off.
    pub fn feed_end(&mut self) -> Result<(), ChannelFault> {
        match &self.stage {
            Stage::Ended(fault) => Err(fault.clone()),
            Stage::Open { frame: Frame::Length, .. } if self.unit.is_empty() && self.partial.is_empty() => Ok(()),
            // A preamble and then nothing: a responder to whom this side is a stranger.
            Stage::Calling { answer: Answer::Rest, .. } if self.unit.is_empty() => {
                Err(self.end(ChannelFault::Stranger))
            }
            _ => Err(self.end(ChannelFault::Truncated)),
        }
    }

    /// The next message that has come completely.
    pub fn next_message(&mut self) -> Option<Vec<u8>> {
        self.messages.pop_front()
    }

    /// Sends a message, or keeps it until the session is established. What is to travel is in [`Session::outgoing`].
    pub fn send(&mut self, message: &[u8]) -> Result<(), ChannelFault> {
        if message.len() > self.most_bytes {
            return Err(ChannelFault::TooLong { most_bytes: self.most_bytes });
        }
        match &mut self.stage {
            Stage::Ended(fault) => Err(fault.clone()),
            Stage::Open { noise, .. } => {
                seal(noise, &mut self.outgoing, message);
                self.ends.push_back(self.outgoing.len());
                Ok(())
            }
            _ => {
                self.early.push(message.to_vec());
                Ok(())
            }
        }
    }

    /// Bytes for the other side. Also an ended session may have some: the preamble that explains why.
    pub fn outgoing(&self) -> &[u8] {
        &self.outgoing[self.sent_bytes..]
    }

    /// The next bytes for the other side, cut so that they end within a message while another one waits behind it. A
    /// stream that takes short writes whole or not at all then never holds a complete message while the next one
    /// waits here, unless it had taken that message before the next one was queued.
    pub fn next_write(&self) -> &[u8] {
        let rest_of = |end: &usize| end - self.sent_bytes;
        let mut ends = self.ends.iter().map(rest_of).filter(|rest| *rest > 1);
        match (ends.next(), ends.next()) {
            (Some(first), Some(_)) => &self.outgoing()[..first - 1],
            _ => self.outgoing(),
        }
    }

    /// Whether the stream has taken a part of a message whose rest is in [`Session::outgoing`].
    pub fn is_mid_message(&self) -> bool {
        self.is_mid_message
    }

    /// Says that `bytes` bytes of [`Session::outgoing`] are on their way.
    pub fn sent(&mut self, bytes: usize) {
        self.sent_bytes += bytes;
        assert!(self.sent_bytes <= self.outgoing.len(), "invariant: only what was outgoing can have been sent");
        let mut is_at_end = bytes == 0 && !self.is_mid_message;
        while let Some(end) = self.ends.front().copied().filter(|end| *end <= self.sent_bytes) {
            is_at_end = end == self.sent_bytes;
            self.ends.pop_front();
        }
        self.is_mid_message = !is_at_end && self.sent_bytes < self.outgoing.len();
        if self.sent_bytes == self.outgoing.len() {
            self.outgoing.clear();
            self.ends.clear();
            self.sent_bytes = 0;
        } else if self.sent_bytes > self.outgoing.len() / 2 {
            // A queue that never runs empty must not grow for ever. What is moved is less than what was sent.
            self.outgoing.drain(..self.sent_bytes);
            self.ends.iter_mut().for_each(|end| *end -= self.sent_bytes);
            self.sent_bytes = 0;
        }
    }

    /// All bytes for the other side, taken out at once.
    pub fn take_outgoing(&mut self) -> Vec<u8> {
        let bytes = self.outgoing().to_vec();
        self.sent(bytes.len());
        bytes
    }

    fn end(&mut self, fault: ChannelFault) -> ChannelFault {
        self.stage = Stage::Ended(fault.clone());
        (self.unit, self.partial, self.early) = Default::default();
        fault
    }

    fn call(&mut self) -> Result<(), ChannelFault> {
        let mut handshake = self.handshake(Role::Initiator)?;
        self.outgoing.extend(self.opening());
        let mut message = [0; NOISE_HANDSHAKE_BYTES];
        let bytes = handshake.write_message(&[], &mut message).map_err(|_| ChannelFault::NoRandomness)?;
        self.outgoing.extend_from_slice(&message[..bytes]);
        self.stage = Stage::Calling { handshake: Box::new(handshake), answer: Answer::Preamble };
        Ok(())
    }

    fn handshake(&self, role: Role) -> Result<HandshakeState, ChannelFault> {
        let opening = self.opening();
        let build = || {
            let builder = Builder::new(PATTERN.parse()?).psk(0, &self.key)?.prologue(&opening)?;
            #[cfg(any(test, fuzzing))]
            let builder = match &self.ephemeral {
                Some(ephemeral) => builder.fixed_ephemeral_key_for_testing_only(ephemeral),
                None => builder,
            };
            match role {
                Role::Initiator => builder.build_initiator(),
                Role::Responder => builder.build_responder(),
            }
        };
        build().map_err(|_: snow::Error| ChannelFault::NoRandomness)
    }

    fn opening(&self) -> [u8; OPENING_BYTES] {
        let mut opening = [0; OPENING_BYTES];
        opening[..PREAMBLE_BYTES].copy_from_slice(&preamble());
        opening[PREAMBLE_BYTES] = self.purpose.byte();
        opening[12..].copy_from_slice(&self.caller.to_le_bytes());
        opening
    }

    /// Deals with a complete unit and says, in `unit_bytes`, how long the next one is.
    fn take_unit(&mut self, unit: &[u8]) -> Result<(), ChannelFault> {
        match &mut self.stage {
            Stage::Calling { answer: answer @ Answer::Preamble, .. } => {
                check_preamble(unit)?;
                *answer = Answer::Rest;
                self.unit_bytes = NOISE_HANDSHAKE_BYTES;
                Ok(())
            }
            Stage::Calling { answer: Answer::Rest, .. } => self.confirm(unit),
            Stage::Listening => {
                check_preamble(unit).inspect_err(|fault| {
                    if matches!(fault, ChannelFault::Version { .. }) {
                        self.outgoing.extend(preamble());
                    }
                })?;
                self.stage = Stage::Hearing;
                self.unit_bytes = OPENING_BYTES - PREAMBLE_BYTES + NOISE_HANDSHAKE_BYTES;
                Ok(())
            }
            Stage::Hearing => self.answer(unit),
            Stage::Confirming { noise } => {
                let piece = open(noise, &unit[LENGTH_BYTES..]).map_err(|_| ChannelFault::Stranger)?;
                if piece != [MESSAGE_ENDS] {
                    return Err(ChannelFault::Damaged);
                }
                self.establish();
                Ok(())
            }
            Stage::Open { frame: frame @ Frame::Length, .. } => {
                let length = usize::from(u16::from_le_bytes([unit[0], unit[1]]));
                if length < LEAST_FRAME_BYTES {
                    return Err(ChannelFault::Damaged);
                }
                *frame = Frame::Body;
                self.unit_bytes = length;
                Ok(())
            }
            Stage::Open { frame: Frame::Body, .. } => self.take_frame(unit),
            Stage::Ended(fault) => Err(fault.clone()),
        }
    }

    /// The initiator has the responder's answer: from now on it knows whom it talks to.
    fn confirm(&mut self, unit: &[u8]) -> Result<(), ChannelFault> {
        let Stage::Calling { mut handshake, .. } = std::mem::replace(&mut self.stage, Stage::Listening) else {
            unreachable!("invariant: only a caller confirms")
        };
        handshake.read_message(unit, &mut []).map_err(|_| ChannelFault::Stranger)?;
        let mut noise = Box::new(handshake.into_transport_mode().map_err(|_| ChannelFault::Stranger)?);
        seal(&mut noise, &mut self.outgoing, &[]);
        self.stage = Stage::Confirming { noise };
        self.establish();
        Ok(())
    }

    /// The responder has the initiator's first message, which may be a recording.
    fn answer(&mut self, unit: &[u8]) -> Result<(), ChannelFault> {
        self.outgoing.extend(preamble());
        let (opening, message) = unit.split_at(OPENING_BYTES - PREAMBLE_BYTES);
        if opening[..4] != [self.purpose.byte(), 0, 0, 0] {
            return Err(ChannelFault::Stranger);
        }
        self.caller = u32::from_le_bytes([opening[4], opening[5], opening[6], opening[7]]);
        let mut handshake = self.handshake(Role::Responder)?;
        handshake.read_message(message, &mut []).map_err(|_| ChannelFault::Stranger)?;
        let mut answer = [0; NOISE_HANDSHAKE_BYTES];
        let bytes = handshake.write_message(&[], &mut answer).map_err(|_| ChannelFault::NoRandomness)?;
        self.outgoing.extend_from_slice(&answer[..bytes]);
        let noise = Box::new(handshake.into_transport_mode().map_err(|_| ChannelFault::Stranger)?);
        self.stage = Stage::Confirming { noise };
        self.unit_bytes = LENGTH_BYTES + LEAST_FRAME_BYTES;
        Ok(())
    }

    fn establish(&mut self) {
        let Stage::Confirming { mut noise } = std::mem::replace(&mut self.stage, Stage::Listening) else {
            unreachable!("invariant: a session is established by a confirmation")
        };
        for message in self.early.drain(..) {
            seal(&mut noise, &mut self.outgoing, &message);
            self.ends.push_back(self.outgoing.len());
        }
        self.stage = Stage::Open { noise, frame: Frame::Length };
        self.unit_bytes = LENGTH_BYTES;
    }

    fn take_frame(&mut self, unit: &[u8]) -> Result<(), ChannelFault> {
        let Stage::Open { noise, frame } = &mut self.stage else {
            unreachable!("invariant: frames come to open sessions")
        };
        let opened = open(noise, unit)?;
        *frame = Frame::Length;
        self.unit_bytes = LENGTH_BYTES;
        let [kind, piece @ ..] = opened.as_slice() else { return Err(ChannelFault::Damaged) };
        if self.partial.len() + piece.len() > self.most_bytes {
            return Err(ChannelFault::TooLong { most_bytes: self.most_bytes });
        }
        self.partial.extend_from_slice(piece);
        match *kind {
            MORE_FOLLOWS => Ok(()),
            MESSAGE_ENDS => {
                self.messages.push_back(std::mem::take(&mut self.partial));
                Ok(())
            }
            _ => Err(ChannelFault::Damaged),
        }
    }
}

impl std::fmt::Debug for Session {
    /// Without secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = f.debug_struct("Session");
        text.field("purpose", &self.purpose).field("established", &self.is_established()).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy)]
enum Role {
    Initiator,
    Responder,
}

fn preamble() -> [u8; PREAMBLE_BYTES] {
    let mut preamble = [VERSION; PREAMBLE_BYTES];
    preamble[..MAGIC.len()].copy_from_slice(&MAGIC);
    preamble
}

fn check_preamble(bytes: &[u8]) -> Result<(), ChannelFault> {
    match bytes.split_last() {
        Some((&version, magic)) if magic == MAGIC => {
            if version == VERSION {
                Ok(())
            } else {
                Err(ChannelFault::Version { theirs: version })
            }
        }
        _ => Err(ChannelFault::NotAChannel),
    }
}

/// Appends the frames of a message.
fn seal(noise: &mut TransportState, outgoing: &mut Vec<u8>, message: &[u8]) {
    let mut rest = message;
    loop {
        let (piece, later) = rest.split_at(rest.len().min(MOST_PIECE_BYTES));
        let kind = if later.is_empty() { MESSAGE_ENDS } else { MORE_FOLLOWS };
        let length = LEAST_FRAME_BYTES + piece.len();
        let at = outgoing.len();
        outgoing.extend((length as u16).to_le_bytes());
        outgoing.resize(at + LENGTH_BYTES + length, 0);
        let mut plain = Vec::with_capacity(1 + piece.len());
        plain.push(kind);
        plain.extend_from_slice(piece);
        noise
            .write_message(&plain, &mut outgoing[at + LENGTH_BYTES..])
            .expect("invariant: a piece fits a frame, and nobody sends 2^64 frames");
        if later.is_empty() {
            return;
        }
        rest = later;
    }
}

/// What is inside a frame.
fn open(noise: &mut TransportState, frame: &[u8]) -> Result<Vec<u8>, ChannelFault> {
    let mut plain = vec![0; frame.len()];
    let bytes = noise.read_message(frame, &mut plain).map_err(|_| ChannelFault::Damaged)?;
    plain.truncate(bytes);
    Ok(plain)
}
