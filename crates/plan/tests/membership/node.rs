//! A process of a simulated job: its side of the agreement, and what it is doing.

use std::collections::VecDeque;
use std::time::Duration;

use farandole_plan::membership::{Membership, MembershipEffect, MembershipInput, MembershipStart, VoteRecord};

use super::sim::Event;

/// What a process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    Training,
    /// At the boundary; the number tells one stay from the next.
    Waiting(u32),
    /// It has ended with a cause: evicted, out of patience, or gone in order.
    Ended,
}

/// A process.
pub(crate) struct Node {
    pub(crate) machine: Membership,
    pub(crate) doing: Doing,
    pub(crate) alive: bool,
    pub(crate) host: usize,
    /// Whether its host's agent reaches the launcher, and the launcher the agent.
    pub(crate) is_linked: bool,
    /// What it has recorded for its agent; `None`: it could not open the file.
    pub(crate) record: Option<VoteRecord>,
    /// It is killed while it carries out the effects of an input.
    pub(crate) dies_midway: bool,
    pub(crate) stopped_since: Option<u64>,
    pub(crate) slept: u64,
    /// What has arrived while it was stopped.
    pub(crate) inbox: VecDeque<Event>,
    pub(crate) tick_at: u64,
    pub(crate) stays: u32,
    pub(crate) start: (Duration, MembershipStart),
    /// All that its machine was told, and the answers, if the job is recorded.
    pub(crate) told: Vec<(Duration, MembershipInput, Vec<MembershipEffect>)>,
}

impl Node {
    pub(crate) fn new(start: MembershipStart, host: usize, now: Duration, doing: Doing) -> Node {
        Node {
            machine: start.clone().begin(now),
            doing,
            alive: true,
            host,
            is_linked: true,
            record: Some(VoteRecord::default()),
            dies_midway: false,
            stopped_since: None,
            slept: 0,
            inbox: VecDeque::new(),
            tick_at: u64::MAX,
            stays: 0,
            start: (now, start),
            told: Vec::new(),
        }
    }

    pub(crate) fn is_awake(&self) -> bool {
        self.alive && self.stopped_since.is_none()
    }

    /// Whether it takes part in anything.
    pub(crate) fn is_up(&self) -> bool {
        self.alive && self.doing != Doing::Ended
    }
}
