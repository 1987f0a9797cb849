//! Replaces members that keep the others waiting (`--replace-slow`).
//!
//! Every member sends samples of what it does about once in a second. What they say about waiting goes into
//! [`StragglerWatch`](farandole_plan::straggler), which names a member when it has been to blame for long enough. Here
//! is decided whether it may go: only while the job runs, only while enough are left without it, and one at a time,
//! because the count begins anew with every generation.
//!
//! The others hear first why it goes, and then it is ended; so they know the cause and not only that it is gone.

use std::time::Instant;

use farandole_plan::straggler::{Straggler, WaitTotals};
use farandole_trace::live::LiveSample;

use super::{Directive, ElasticSupervision, Phase};
use crate::launch::failure::What;
use crate::rendezvous::{FailureKind, FailureNotice};

impl ElasticSupervision {
    /// Members of a host have sent samples.
    pub(super) fn watch_pace(&mut self, samples: &[(u32, Vec<u8>)], now: Instant) {
        let Some(stragglers) = &mut self.stragglers else { return };
        let mut slow = None;
        for (member, sample) in samples {
            let Some(LiveSample { counts, .. }) = LiveSample::decode(sample) else { continue };
            let (time_ns, iterations, waited_ns) = (counts.time_ns, counts.iterations, counts.waited_ns);
            slow = slow.or(stragglers.observe((*member).into(), WaitTotals { time_ns, iterations, waited_ns }));
        }
        if let Some(straggler) = slow {
            self.replace_slow(straggler, now);
            self.settle(now);
        }
    }

    fn replace_slow(&mut self, straggler: Straggler, now: Instant) {
        let Straggler { member, waits, others_wait, iterations } = straggler;
        let (Ok(number), Some(generation)) = (u32::try_from(member), &self.generation) else { return };
        let rank = generation.members.iter().position(|(known, _)| *known == member);
        let (generation, rank) = (generation.number, rank.map_or_else(|| "?".to_owned(), |rank| rank.to_string()));
        let figures = format!(
            "as rank {rank} of generation {generation} it waited for {:.0} % of its time over {iterations} iterations, and \
             the others for {:.0} % of theirs",
            100.0 * waits,
            100.0 * others_wait
        );
        if self.phase != Phase::Running || self.finishing {
            return;
        }
        let left = self.staying().saturating_sub(1);
        if left < self.settings.min_np {
            let (name, least) = (self.name_of(number), self.settings.min_np);
            return self.say(format!("{name} is slow: {figures}; it stays, because --min-np {least} would be missed"));
        }
        let notice = FailureNotice {
            text: format!("{} was slow: {figures}", self.name_of(number)),
            ..FailureNotice::new(FailureKind::Other)
        };
        self.tell_all(&Directive::MemberLost { member: number, notice, votes: None }, now);
        self.replace(number, What::Slow(figures), now);
    }
}
