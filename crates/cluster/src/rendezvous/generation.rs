//! What servers of an elastic job know of its generations: who is in the latest one, and how each of them is reached.
//!
//! The members decide on generations; servers, agents and the launcher only pass on what members say, so that
//! processes which are started later know whom to call. A number stands for one list, and of two generations the one
//! with the higher number is the later. What the bytes of a member mean is between members.

use serde::{Deserialize, Serialize};

use crate::encoding::{Reader, put_bytes, put_u32, put_u64};

/// A generation of an elastic job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    /// Its number. The founding one is 1.
    pub number: u64,
    /// Its members in rank order: their numbers, and what each has brought.
    pub members: Vec<(u64, Vec<u8>)>,
}

/// What a process of an elastic job finds at the rendezvous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The job begins: this process is in its first generation, with all that are in this list.
    Founding(Generation),
    /// The job runs: this process is a candidate. What the members of the latest known generation have brought says
    /// whom to call.
    Joining {
        /// In rank order.
        seeds: Vec<Vec<u8>>,
    },
}

impl Generation {
    /// Whether this process is in it.
    pub fn has(&self, member: u64) -> bool {
        self.members.iter().any(|(number, _)| *number == member)
    }

    /// What its members have brought, in rank order.
    pub fn blobs(&self) -> Vec<Vec<u8>> {
        self.members.iter().map(|(_, blob)| blob.clone()).collect()
    }

    pub(super) fn put(&self, into: &mut Vec<u8>) {
        put_u64(into, self.number);
        put_u32(into, self.members.len() as u32);
        for (member, blob) in &self.members {
            put_u64(into, *member);
            put_bytes(into, blob);
        }
    }

    pub(super) fn take(reader: &mut Reader<'_>) -> Option<Generation> {
        let (number, count) = (reader.u64()?, reader.u32()?);
        let mut members = Vec::new();
        for _ in 0..count {
            members.push((reader.u64()?, reader.bytes()?.to_vec()));
        }
        Some(Generation { number, members })
    }
}
