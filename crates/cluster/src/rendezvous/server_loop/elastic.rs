//! The server's part in elastic jobs: who enters, whom they call, and who has ended.
//!
//! Before the job begins whoever enters waits, and the owner is told. [`Command::Found`] begins it. From then on the
//! server knows a generation, at first the founding one, later what members say they have entered or the owner has
//! heard from another host; whoever enters then is answered at once with how the members of the latest are reached.
//! [`Command::Abandon`] says that nobody will begin it: whoever waits for that, now or later, is refused.
//!
//! **Founding and entering may cross**: a process that enters while the owner's decision is on its way is not in the
//! list. It is a candidate like those who come later, and not a founder that everybody misses.
//!
//! Nothing is decided here: generations are made by members, the founding one by the owner.

use std::time::Instant;

use super::super::generation::Generation;
use super::super::message::{Down, Enter, Stay, Up};
use super::super::server::RendezvousEvent;
use super::{ConnectionId, HANDSHAKE_TIMEOUT, Member, PARTING_PATIENCE, ServerLoop, Stage};
use crate::failure_notice::FailureNotice;
use farandole_plan::Rank;

impl Stage {
    /// When something is to be done about it, unless it is a member.
    pub(super) fn until(&self) -> Option<Instant> {
        match self {
            Stage::Handshake { until }
            | Stage::Waiting { until, .. }
            | Stage::Entering { until, .. }
            | Stage::Asking { until }
            | Stage::Leaving { until } => Some(*until),
            Stage::Member(_) => None,
        }
    }
}

impl ServerLoop {
    /// The first words of a process of an elastic job.
    pub(super) fn greet(&mut self, id: ConnectionId, up: Up, now: Instant) {
        let (job, stage, entered) = match up {
            Up::Enter(Enter { job, member, patience, stay, blob }) => {
                let stage = Stage::Entering { member, until: now + patience, stay };
                (job, stage, Some(RendezvousEvent::Entered { member, blob }))
            }
            Up::AskSeeds { job, patience } => (job, Stage::Asking { until: now + patience }, None),
            Up::Arrival(_) => {
                let why = "this job is elastic, and this process came as a rank of a job with a fixed size";
                return self.dismiss(id, &Down::Refused(why.into()), now);
            }
            _ => {
                let why = "the request has another form: install the same farandole everywhere";
                return self.dismiss(id, &Down::Refused(why.into()), now);
            }
        };
        if let Some(why) = self.arrivals.refuses_job(job) {
            return self.dismiss(id, &Down::Refused(why), now);
        }
        if let (Some(why), None) = (&self.abandoned, &self.generation) {
            let refusal = Down::Refused(why.clone());
            return self.dismiss(id, &refusal, now);
        }
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.stage = stage;
        match self.generation.is_some() {
            true => self.answer(id, now),
            false => entered.into_iter().for_each(|entered| self.report(entered)),
        }
    }

    /// Answers one that waits, from what is known.
    fn answer(&mut self, id: ConnectionId, now: Instant) {
        let (Some(generation), server_process) = (&self.generation, self.server_process.clone()) else { return };
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let seeds = |server_process| Down::Seeds { server_process, blobs: generation.blobs() };
        let (answer, stage) = match &connection.stage {
            Stage::Entering { member, stay, .. } => {
                let is_founder = generation.number == FOUNDING && generation.has(*member);
                let answer = match is_founder {
                    true => Down::Founding { server_process, generation: generation.clone() },
                    false => seeds(server_process),
                };
                (answer, stayed(*member, stay, now))
            }
            Stage::Asking { .. } => (seeds(server_process), Stage::Leaving { until: now + PARTING_PATIENCE }),
            _ => return,
        };
        let _ = connection.channel.queue(&answer.encode());
        connection.stage = stage;
    }

    /// The owner begins the job.
    pub(super) fn found(&mut self, generation: Generation, now: Instant) {
        self.learn(Generation { number: FOUNDING, ..generation }, now);
    }

    /// Remembers a generation if it is a later one, and answers those who have waited for any.
    pub(super) fn learn(&mut self, generation: Generation, now: Instant) {
        if self.generation.as_ref().is_some_and(|known| known.number >= generation.number) {
            return;
        }
        self.generation = Some(generation);
        let waiting = self.connections.iter().filter(|(_, connection)| connection.stage.is_waiting_to_enter());
        for id in waiting.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.answer(id, now);
        }
    }

    /// A member has entered a generation. The owner is told of each once, and of each list that differs.
    pub(super) fn hear_generation(&mut self, generation: Generation, now: Instant) {
        let list: Vec<u64> = generation.members.iter().map(|(member, _)| *member).collect();
        if self.told.get(&generation.number) == Some(&list) {
            return;
        }
        self.told.insert(generation.number, list);
        if self.told.len() > MOST_TOLD {
            self.told.pop_first();
        }
        self.report(RendezvousEvent::Entering(generation.clone()));
        self.learn(generation, now);
    }

    /// The owner will not begin the job any more. One that has begun goes on without it.
    pub(super) fn abandon(&mut self, why: String, now: Instant) {
        if self.generation.is_none() {
            self.turn_entrants_away(&why, now);
        }
        self.abandoned = Some(why);
    }

    /// Tells the members of this host what has become of another.
    pub(super) fn tell_of_loss(&mut self, member: u64, notice: FailureNotice, votes: Option<Vec<u8>>) {
        let down = Down::MemberLost { member, notice, votes }.encode();
        for connection in self.connections.values_mut() {
            if matches!(&connection.stage, Stage::Member(other) if u64::from(other.rank.0) != member) {
                let _ = connection.channel.queue(&down);
            }
        }
    }

    /// Passes on an answer to the member that has asked, if it is still there.
    pub(super) fn answer_as_witness(&mut self, member: u64, answer: Vec<u8>) {
        let down = Down::WitnessAnswer(answer).encode();
        for connection in self.connections.values_mut() {
            if matches!(&connection.stage, Stage::Member(asker) if u64::from(asker.rank.0) == member) {
                let _ = connection.channel.queue(&down);
            }
        }
    }

    /// One has waited for as long as it wanted to.
    pub(super) fn turn_entrant_away(&mut self, id: ConnectionId, now: Instant) {
        let Some(connection) = self.connections.get(&id) else { return };
        if let Stage::Entering { member, .. } = connection.stage {
            self.report(RendezvousEvent::EntryWithdrawn { member });
        }
        let why = "the job has not begun: the processes that it needs to begin did not all come in time";
        self.dismiss(id, &Down::Refused(why.into()), now);
    }

    /// Nobody need wait any more.
    pub(super) fn turn_entrants_away(&mut self, why: &str, now: Instant) {
        let waiting = self.connections.iter().filter(|(_, connection)| connection.stage.is_waiting_to_enter());
        for id in waiting.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.dismiss(id, &Down::Refused(why.into()), now);
        }
    }
}

/// The number of the generation with which a job begins.
const FOUNDING: u64 = 1;

/// Lists of so many generations are compared: more than members can be behind each other.
const MOST_TOLD: usize = 1024;

impl Stage {
    fn is_waiting_to_enter(&self) -> bool {
        matches!(self, Stage::Entering { .. } | Stage::Asking { .. })
    }
}

/// Whoever has entered stays.
fn stayed(member: u64, stay: &Stay, now: Instant) -> Stage {
    let Stay::Yes { silence, process, host } = stay.clone() else {
        return Stage::Leaving { until: now + HANDSHAKE_TIMEOUT };
    };
    // The launcher's numbers are below 2^32; a number beyond that is nobody whom it knows.
    let rank = Rank(u32::try_from(member).unwrap_or(u32::MAX));
    Stage::Member(Member { rank, process, host, epoch: 0, silence, heard: now, asked: Vec::new(), look_again: None })
}
