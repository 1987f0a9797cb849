//! What a group records outside the steady state: announcements, requests that end without a bucket, stalls, failures.

use super::group::GroupRecord;
use crate::pending::Pending;
use farandole_plan::Rank;
use farandole_plan::message::Announcement;
use farandole_trace::event::OperationNumber;
use farandole_trace::{DumpReason, Event, STALL_REPORT};
use std::sync::Arc;
use std::time::Duration;

impl GroupRecord {
    /// The coordinator hears what a peer asks for.
    pub(crate) fn arrived(&mut self, peer: Rank, announcements: &[Announcement], now: Duration) {
        if !self.writer.is_on() {
            return;
        }
        for Announcement { request, .. } in announcements {
            let name = self.writer.recorder().intern(&request.name, &request.shape);
            self.writer.write(self.at(now), Event::Arrived { name, group: self.group, rank: peer.0 });
        }
    }

    /// A bucket is given up.
    pub(crate) fn abandoned(&mut self, operation: farandole_plan::agree::Operation, now: Duration) {
        self.spell_out();
        self.enter(now, Event::Abandoned { group: self.group, operation: OperationNumber(operation.0) });
    }

    /// A request that travels in no bucket has its result.
    pub(crate) fn done(&mut self, pending: &Pending, now: Duration) {
        let (name, group) = (pending.mark.name, self.group);
        self.writer.write(self.at(now), Event::Done { name, group, operation: OperationNumber(0) });
    }

    /// A request is not carried out.
    pub(crate) fn failed(&mut self, pending: &Pending, now: Duration) {
        self.spell_out();
        self.writer.write(self.at(now), Event::Failed { name: pending.mark.name, group: self.group });
    }

    /// A warning is given about a request that waits for ranks (of the world), and the first of them is named.
    pub(crate) fn stalled(&mut self, name: &Arc<str>, missing: usize, rank: Rank, now: Duration) {
        let name = self.writer.recorder().intern(name, &[]);
        let (group, missing, rank) = (self.group, missing as u32, rank.0);
        self.writer.write(self.at(now), Event::Stalled { name, group, missing, rank });
    }

    /// This rank was told what a stall comes to.
    pub(crate) fn stall_told(&self, report: &str) {
        self.writer.recorder().note_setting(STALL_REPORT, report);
        self.writer.recorder().request_dump(DumpReason::Stall);
    }

    /// The group ends with an error. Its requests fail after that: readers see by the order what it waited for.
    pub(crate) fn group_error(&mut self, cause: &str, now: Duration) {
        self.spell_out();
        let name = self.writer.recorder().intern(&cause.into(), &[]);
        self.writer.write(self.at(now), Event::Aborted { name });
    }

    /// All requests of a group that has ended with an error have failed.
    pub(crate) fn all_failed(&self) {
        self.writer.recorder().request_dump(DumpReason::Abort);
    }
}
