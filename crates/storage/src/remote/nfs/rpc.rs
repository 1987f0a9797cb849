//! Calls of ONC RPC (RFC 5531): how one is written, and what an answer to it says.
//!
//! On TCP a message is a record of fragments, each with its length before it and a mark at the last one. Calls carry
//! who asks (AUTH_SYS: numbers of a user and of groups, which servers believe or not).
//!
//! What is deliberately not here: Kerberos (RPCSEC_GSS), and connections (`connection`).

use bytes::Bytes;

use super::xdr::{Decoder, Encoder, Garbled};

/// The mark of a record's last fragment.
pub(super) const LAST_FRAGMENT: u32 = 1 << 31;
/// The longest verifier that RFC 5531 allows.
const MAX_VERIFIER_BYTES: usize = 400;
/// Groups besides the first, at most, that AUTH_SYS has room for.
const MAX_GROUPS: usize = 16;
/// The longest name of a machine in AUTH_SYS.
const MAX_MACHINE_NAME_BYTES: usize = 255;

const CALL: u32 = 0;
const REPLY: u32 = 1;
const RPC_VERSION: u32 = 2;
pub(super) const AUTH_NONE: u32 = 0;
pub(super) const AUTH_SYS: u32 = 1;

/// A program and its version, as the portmapper knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) number: u32,
    pub(super) version: u32,
    /// What people call it.
    pub(super) name: &'static str,
}

/// Who asks, as AUTH_SYS has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    pub(super) machine: String,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: Vec<u32>,
}

/// Why a server did not carry out a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It does not take these credentials; RFC 5531 has the numbers.
    Credentials(u32),
    /// It does not have the program.
    NoProgram,
    /// It has other versions of the program.
    OtherVersions { low: u32, high: u32 },
    /// It does not have the procedure.
    NoProcedure,
    /// It does not understand the call.
    Misunderstood,
    /// It is in trouble itself.
    SystemError,
    /// The answer is none.
    Garbled(&'static str),
}

impl Caller {
    fn encoded(&self) -> Vec<u8> {
        let machine = self.machine.as_bytes();
        let machine = &machine[..machine.len().min(MAX_MACHINE_NAME_BYTES)];
        let groups = &self.groups[..self.groups.len().min(MAX_GROUPS)];
        // The stamp says nothing here.
        let begin = Encoder::default().u32(0).opaque(machine).u32(self.uid).u32(self.gid).u32(groups.len() as u32);
        groups.iter().fold(begin, |encoder, group| encoder.u32(*group)).finish()
    }
}

/// A record with a call.
pub(super) fn call(xid: u32, program: Program, procedure: u32, caller: &Caller, arguments: &[u8]) -> Vec<u8> {
    let head = Encoder::default().u32(xid).u32(CALL).u32(RPC_VERSION).u32(program.number).u32(program.version);
    let head = head.u32(procedure).u32(AUTH_SYS).opaque(&caller.encoded()).u32(AUTH_NONE).opaque(&[]).finish();
    let length = (head.len() + arguments.len()) as u32;
    [&(LAST_FRAGMENT | length).to_be_bytes(), &head[..], arguments].concat()
}

/// The number of the call that an answer, or its beginning, is about.
pub(super) fn xid_of(answer: &[u8]) -> Option<u32> {
    answer.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

/// The results in an answer. It may be the beginning of one; then so are they.
pub(super) fn results(answer: Bytes) -> Result<Bytes, Refusal> {
    let mut decoder = Decoder::new(answer);
    let _xid = decoder.u32()?;
    if decoder.u32()? != REPLY {
        return Err(Refusal::Garbled("it is no answer"));
    }
    if decoder.u32()? != 0 {
        // Denied: 0 is another version of RPC itself, 1 is about credentials.
        return Err(match decoder.u32()? {
            0 => Refusal::OtherVersions { low: decoder.u32()?, high: decoder.u32()? },
            _ => Refusal::Credentials(decoder.u32()?),
        });
    }
    let _flavor = decoder.u32()?;
    let _verifier = decoder.opaque(MAX_VERIFIER_BYTES)?;
    match decoder.u32()? {
        0 => Ok(decoder.rest()),
        1 => Err(Refusal::NoProgram),
        2 => Err(Refusal::OtherVersions { low: decoder.u32()?, high: decoder.u32()? }),
        3 => Err(Refusal::NoProcedure),
        4 => Err(Refusal::Misunderstood),
        5 => Err(Refusal::SystemError),
        _ => Err(Refusal::Garbled("its status is unknown")),
    }
}

impl From<Garbled> for Refusal {
    fn from(garbled: Garbled) -> Refusal {
        Refusal::Garbled(garbled.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(words: &[u32]) -> Bytes {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    #[test]
    fn a_call_is_a_record_with_who_asks() {
        let caller = Caller { machine: "host".to_owned(), uid: 1000, gid: 100, groups: (0..20).collect() };
        let program = Program { number: 100_003, version: 3, name: "nfs" };
        let record = call(9, program, 6, &caller, &[1, 2, 3, 4]);
        let mut decoder = Decoder::new(record.clone().into());
        assert_eq!(decoder.u32().unwrap(), LAST_FRAGMENT | (record.len() as u32 - 4));
        let head: Vec<u32> = (0..7).map(|_| decoder.u32().unwrap()).collect();
        assert_eq!(head, [9, CALL, 2, 100_003, 3, 6, AUTH_SYS]);
        let mut credential = Decoder::new(decoder.opaque(400).unwrap());
        assert_eq!(credential.u32().unwrap(), 0);
        assert_eq!(credential.opaque(255).unwrap(), &b"host"[..]);
        let rest: Vec<u32> = (0..19).map(|_| credential.u32().unwrap()).collect();
        assert_eq!((&rest[..3], rest[3], rest[18]), (&[1000, 100, 16][..], 0, 15));
        assert_eq!(decoder.u64().unwrap(), 0);
        assert_eq!(decoder.rest(), &[1, 2, 3, 4][..]);
    }

    #[test]
    fn answers_are_results_or_refusals() {
        assert_eq!(results(answer(&[9, REPLY, 0, 0, 0, 0, 42])).unwrap(), answer(&[42]));
        assert_eq!(xid_of(&answer(&[9, REPLY])), Some(9));
        for (words, refusal) in [
            (&[9, REPLY, 0, 0, 0, 1][..], Refusal::NoProgram),
            (&[9, REPLY, 0, 0, 0, 2, 4, 4], Refusal::OtherVersions { low: 4, high: 4 }),
            (&[9, REPLY, 0, 0, 0, 3], Refusal::NoProcedure),
            (&[9, REPLY, 0, 0, 0, 5], Refusal::SystemError),
            (&[9, REPLY, 1, 1, 5], Refusal::Credentials(5)),
            (&[9, CALL], Refusal::Garbled("it is no answer")),
            (&[9], Refusal::Garbled("it ends too early")),
            (&[9, REPLY, 0, 0, 500], Refusal::Garbled("a text or handle is longer than it may be")),
        ] {
            assert_eq!(results(answer(words)), Err(refusal), "{words:?}");
        }
    }
}
