//! How two ranks make sure of each other on a new connection.
//!
//! ```text
//! connector                                   acceptor
//!     hello  ──────────────────────────────────▶
//!     ◀──────────────────────  hello · proof(acceptor)
//!     proof(connector)  ───────────────────────▶
//!     ◀──────────────  welcome, or: other job · job id · proof
//!     thanks  ─────────────────────────────────▶
//! ```
//!
//! A proof is BLAKE3, keyed with the job's key, over the prover's role and both hellos. Both hellos hold a fresh random
//! number, so proofs cannot be replayed, and the roles differ, so they cannot be mirrored. The key itself never
//! travels. The keys for sealing the connection are derived from the same values.
//!
//! Jobs of one user may have the same key, so a connector also says which job it is of. An acceptor of another job
//! refuses it and names its own job, to a connector that has proved itself and to nobody else.
//!
//! The acceptor is done when it has been thanked. A connector that was not welcomed in time closes the connection and
//! makes another; without the thanks the acceptor could take the first one, which is dead, for the one that counts.
//!
//! Until the proof has been checked, nothing is decoded but the hello, whose size is fixed, and nothing is allocated
//! for the stranger. Magic and version lie in the first ten bytes of every version's hello, so that ranks with
//! different versions of this program learn exactly that: an acceptor answers a hello of another version with its own
//! and closes.
//!
//! [`Handshake`] does not block and does not know time: whoever drives it gives up when it takes too long.

use std::io::{ErrorKind, Read, Write};

use farandole_plan::Rank;

use crate::error::{Error, Result};
use crate::frame::PROTOCOL_VERSION;
use crate::key::{JOB_ID_BYTES, JobId, Key, random_bytes};
use crate::stream::SessionKeys;

/// Bytes of a hello.
pub const HELLO_BYTES: usize = 72 + JOB_ID_BYTES;

const MAGIC: [u8; 8] = *b"FARANDOL";
const PREAMBLE_BYTES: usize = 10;
const PROOF_BYTES: usize = 32;
const WELCOME: u8 = b'+';
const OTHER_JOB: u8 = b'-';
const THANKS: u8 = b'!';

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// The control line.
    Control,
    /// One of the link's connections.
    Data {
        /// Its place among them.
        connection: u16,
    },
}

/// Whether a connection is encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Seal {
    /// Authenticated at its beginning only.
    #[default]
    Off,
    /// Everything after the handshake is encrypted and authenticated.
    On,
}

/// What one side says about itself and the connection. What the acceptor says about the connection is what the
/// connector said: only the connector decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Which job the connector is of.
    pub job: JobId,
    /// Which mesh the connection belongs to.
    pub mesh: u64,
    /// The connector's rank in it.
    pub from: Rank,
    /// The acceptor's rank in it.
    pub to: Rank,
    /// What it is for.
    pub purpose: Purpose,
    /// Whether it is encrypted.
    pub seal: Seal,
    /// How many connections the link has; both sides must think the same.
    pub connections: u16,
    /// From which length on payloads are striped; both sides must think the same.
    pub stripe_from_bytes: u64,
    /// A fresh random number.
    pub nonce: [u8; 32],
}

impl Hello {
    /// The hello as bytes.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
        let (purpose, connection) = match self.purpose {
            Purpose::Control => (1, 0),
            Purpose::Data { connection } => (2, connection),
        };
        bytes[10] = purpose;
        bytes[11] = u8::from(self.seal == Seal::On);
        bytes[12..14].copy_from_slice(&connection.to_le_bytes());
        bytes[14..16].copy_from_slice(&self.connections.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.mesh.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.from.0.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.to.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.stripe_from_bytes.to_le_bytes());
        bytes[40..72].copy_from_slice(&self.nonce);
        bytes[72..].copy_from_slice(&self.job.to_bytes());
        bytes
    }

    /// The hello that these bytes are, if they are one of our version.
    pub fn decode(bytes: &[u8; HELLO_BYTES]) -> Option<Hello> {
        if check_preamble(bytes) != Preamble::Ours {
            return None;
        }
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let purpose = match (bytes[10], u16_at(12)) {
            (1, 0) => Purpose::Control,
            (2, connection) => Purpose::Data { connection },
            _ => return None,
        };
        let seal = match bytes[11] {
            0 => Seal::Off,
            1 => Seal::On,
            _ => return None,
        };
        Some(Hello {
            job: JobId::from_bytes(bytes[72..].try_into().expect("the rest is the job id"))?,
            mesh: u64_at(16),
            from: Rank(u32_at(24)),
            to: Rank(u32_at(28)),
            purpose,
            seal,
            connections: u16_at(14),
            stripe_from_bytes: u64_at(32),
            nonce: bytes[40..72].try_into().expect("thirty-two bytes"),
        })
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Preamble {
    Ours,
    OtherVersion(u16),
    Foreign,
}

fn check_preamble(bytes: &[u8]) -> Preamble {
    match (bytes[..8] == MAGIC, u16::from_le_bytes([bytes[8], bytes[9]])) {
        (true, PROTOCOL_VERSION) => Preamble::Ours,
        (true, version) => Preamble::OtherVersion(version),
        (false, _) => Preamble::Foreign,
    }
}

/// A handshake under way over a non-blocking stream.
#[derive(Debug)]
pub struct Handshake<S> {
    stream: S,
    key: Key,
    /// The job of this side.
    job: JobId,
    /// Where the stream leads, for error messages.
    with: String,
    role: Role,
    stage: Stage,
    /// The connector's hello and the acceptor's, as bytes, once known.
    connector: [u8; HELLO_BYTES],
    acceptor: [u8; HELLO_BYTES],
    outbox: Vec<u8>,
    inbox: [u8; HELLO_BYTES + PROOF_BYTES],
    filled: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Connector,
    Acceptor,
}

/// What is being waited for; each stage wants so many bytes in the inbox, counted from its front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Preamble,
    Rest,
    Proof,
    Welcome,
    /// Which job the acceptor is of.
    Refusal,
    Thanks,
    /// Nothing more is read; what is in the outbox must leave.
    Parting(End),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Agreed,
    OtherVersion(u16),
    OtherJob(JobId),
}

/// A connection whose two sides have proved that they hold the job's key.
#[derive(Debug)]
pub struct Established<S> {
    /// The stream, with nothing read or written past the handshake.
    pub stream: S,
    /// What the connector said.
    pub hello: Hello,
    /// Keys for sealing it.
    pub keys: SessionKeys,
}

impl<S: Read + Write> Handshake<S> {
    /// Begins as the side that connected. The nonce of `hello` is replaced by a fresh one.
    pub fn connect(stream: S, with: String, key: &Key, hello: &Hello) -> Result<Handshake<S>> {
        let job = hello.job;
        let hello = Hello { nonce: random_bytes()?, ..*hello }.encode();
        let mut handshake = Handshake::new(stream, with, key, job, Role::Connector);
        handshake.connector = hello;
        handshake.outbox.extend_from_slice(&hello);
        Ok(handshake)
    }

    /// Begins as the side that was connected to, a rank of `job`.
    pub fn accept(stream: S, with: String, key: &Key, job: JobId) -> Handshake<S> {
        Handshake::new(stream, with, key, job, Role::Acceptor)
    }

    fn new(stream: S, with: String, key: &Key, job: JobId, role: Role) -> Handshake<S> {
        Handshake {
            stream,
            key: key.clone(),
            job,
            with,
            role,
            stage: Stage::Preamble,
            connector: [0; HELLO_BYTES],
            acceptor: [0; HELLO_BYTES],
            outbox: Vec::new(),
            inbox: [0; HELLO_BYTES + PROOF_BYTES],
            filled: 0,
        }
    }

    /// The stream, for waiting on it.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// Does what can be done now. Says whether both sides are sure of each other; an error ends the handshake.
    pub fn advance(&mut self) -> Result<bool> {
        loop {
            if !self.write()? {
                return Ok(false);
            }
            match self.stage {
                Stage::Parting(End::Agreed) => return Ok(true),
                Stage::Parting(End::OtherVersion(theirs)) => {
                    return Err(Error::Version { peer: None, ours: PROTOCOL_VERSION, theirs });
                }
                Stage::Parting(End::OtherJob(theirs)) => {
                    return Err(Error::OtherJob { at: self.with.clone(), ours: self.job, theirs });
                }
                _ => {}
            }
            if !self.read()? {
                return Ok(false);
            }
            self.stage = self.next_stage()?;
        }
    }

    /// The result of a handshake whose `advance` has said `true`.
    pub fn finish(self) -> Established<S> {
        assert_eq!(self.stage, Stage::Parting(End::Agreed), "a handshake is finished once");
        let derive = |direction: &str| {
            let material = [&self.key.bytes()[..], &self.connector, &self.acceptor].concat();
            blake3::derive_key(&format!("farandole 2026 connection key, {direction}"), &material)
        };
        let (forth, back) = (derive("connector to acceptor"), derive("acceptor to connector"));
        let keys = match self.role {
            Role::Connector => SessionKeys { sending: forth, receiving: back },
            Role::Acceptor => SessionKeys { sending: back, receiving: forth },
        };
        let hello = Hello::decode(&self.connector).expect("decoded before");
        Established { stream: self.stream, hello, keys }
    }

    /// Bytes that must be in the inbox before the stage is over.
    fn wanted(&self) -> usize {
        match (self.stage, self.role) {
            (Stage::Preamble, _) => PREAMBLE_BYTES,
            (Stage::Rest, Role::Connector) => HELLO_BYTES + PROOF_BYTES,
            (Stage::Rest, Role::Acceptor) => HELLO_BYTES,
            (Stage::Proof, _) => PROOF_BYTES,
            (Stage::Welcome | Stage::Thanks, _) => 1,
            (Stage::Refusal, _) => JOB_ID_BYTES + PROOF_BYTES,
            (Stage::Parting(_), _) => 0,
        }
    }

    /// What the bytes of a stage mean, and what comes next.
    fn next_stage(&mut self) -> Result<Stage> {
        let (stage, role) = (self.stage, self.role);
        if stage == Stage::Preamble {
            return match check_preamble(&self.inbox) {
                Preamble::Ours => Ok(Stage::Rest),
                Preamble::Foreign => Err(self.untrusted()),
                Preamble::OtherVersion(version) => {
                    if role == Role::Acceptor {
                        self.outbox.extend_from_slice(&foreign_answer());
                    }
                    Ok(Stage::Parting(End::OtherVersion(version)))
                }
            };
        }
        self.filled = 0;
        match (stage, role) {
            (Stage::Rest, Role::Acceptor) => {
                self.connector.copy_from_slice(&self.inbox[..HELLO_BYTES]);
                let hello = Hello::decode(&self.connector).ok_or_else(|| self.untrusted())?;
                self.acceptor = Hello { nonce: random_bytes()?, ..hello }.encode();
                self.outbox.extend_from_slice(&self.acceptor);
                self.outbox.extend_from_slice(self.proof(Role::Acceptor).as_bytes());
                Ok(Stage::Proof)
            }
            (Stage::Rest, Role::Connector) => {
                self.acceptor.copy_from_slice(&self.inbox[..HELLO_BYTES]);
                self.check_proof(HELLO_BYTES, Role::Acceptor)?;
                self.outbox.extend_from_slice(self.proof(Role::Connector).as_bytes());
                Ok(Stage::Welcome)
            }
            (Stage::Proof, _) => {
                self.check_proof(0, Role::Connector)?;
                let theirs = Hello::decode(&self.connector).expect("decoded before").job;
                if theirs == self.job {
                    self.outbox.push(WELCOME);
                    return Ok(Stage::Thanks);
                }
                self.outbox.push(OTHER_JOB);
                self.outbox.extend_from_slice(&self.job.to_bytes());
                self.outbox.extend_from_slice(self.refusal(&self.job).as_bytes());
                Ok(Stage::Parting(End::OtherJob(theirs)))
            }
            (Stage::Welcome, _) if self.inbox[0] == WELCOME => {
                self.outbox.push(THANKS);
                Ok(Stage::Parting(End::Agreed))
            }
            (Stage::Welcome, _) if self.inbox[0] == OTHER_JOB => Ok(Stage::Refusal),
            (Stage::Refusal, _) => {
                let (job, proof) = self.inbox[..JOB_ID_BYTES + PROOF_BYTES].split_at(JOB_ID_BYTES);
                let job = JobId::from_bytes(job.try_into().expect("split at its length"));
                let job = job.ok_or_else(|| self.untrusted())?;
                let proof: [u8; PROOF_BYTES] = proof.try_into().expect("split at its length");
                if blake3::Hash::from(proof) != self.refusal(&job) {
                    return Err(self.untrusted());
                }
                Ok(Stage::Parting(End::OtherJob(job)))
            }
            (Stage::Thanks, _) if self.inbox[0] == THANKS => Ok(Stage::Parting(End::Agreed)),
            _ => Err(self.untrusted()),
        }
    }

    fn proof(&self, prover: Role) -> blake3::Hash {
        let role: &[u8] = match prover {
            Role::Connector => b"connector",
            Role::Acceptor => b"acceptor ",
        };
        let mut hasher = blake3::Hasher::new_keyed(self.key.bytes());
        hasher.update(role).update(&self.connector).update(&self.acceptor);
        hasher.finalize()
    }

    /// Proves that a refusal comes from the acceptor that has proved itself.
    fn refusal(&self, job: &JobId) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(self.key.bytes());
        hasher.update(b"other job").update(&self.connector).update(&self.acceptor).update(&job.to_bytes());
        hasher.finalize()
    }

    fn check_proof(&self, at: usize, prover: Role) -> Result<()> {
        let proof: [u8; PROOF_BYTES] = self.inbox[at..at + PROOF_BYTES].try_into().expect("sliced to its length");
        // Comparing hashes takes the same time wherever they differ.
        if blake3::Hash::from(proof) == self.proof(prover) { Ok(()) } else { Err(self.untrusted()) }
    }

    fn untrusted(&self) -> Error {
        Error::Untrusted { from: self.with.clone() }
    }

    /// Empties the outbox; says whether it is empty.
    fn write(&mut self) -> Result<bool> {
        while !self.outbox.is_empty() {
            match self.stream.write(&self.outbox) {
                Ok(count) => drop(self.outbox.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(Error::local(format!("greeting {}", self.with), error)),
            }
        }
        Ok(true)
    }

    /// Reads what the stage wants and not a byte more; says whether it is there.
    fn read(&mut self) -> Result<bool> {
        let wanted = self.wanted();
        while self.filled < wanted {
            match self.stream.read(&mut self.inbox[self.filled..wanted]) {
                // Whoever closes instead of proving does not hold the key; a peer that died is tried again.
                Ok(0) => {
                    let closed = std::io::Error::from(ErrorKind::UnexpectedEof);
                    return Err(Error::local(format!("greeting {}", self.with), closed));
                }
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(Error::local(format!("greeting {}", self.with), error)),
            }
        }
        Ok(true)
    }
}

/// What an acceptor says to a hello of another version: enough for the other side to see ours.
fn foreign_answer() -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    bytes
}
