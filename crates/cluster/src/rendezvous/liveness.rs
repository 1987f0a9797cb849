//! Who is believed to be what, when nothing is heard. Values only: no sockets, and time is a parameter.
//!
//! A closed connection speaks for itself: the kernel closes it when the process ends, whatever ended it. Silence does
//! not. A process that is stopped, one that hangs, a host that is down and a network that is cut are all silent alike.
//! They are told apart by looking closer: the kernel of the silent rank's host knows whether its process is stopped,
//! and can be asked by the server if it runs on the same host, or else by any other rank there that is still heard of.
//! When nobody on a host is, the host is lost.

use std::time::{Duration, Instant};

use farandole_plan::Rank;
use farandole_transport::{ProcessId, ProcessState};

use super::arrivals::ConnectionId;
use super::message::Stay;
use crate::failure_notice::{FailureKind, FailureNotice};

/// A rank that stays connected.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) rank: Rank,
    pub(super) process: ProcessId,
    /// Identity of its host.
    pub(super) host: String,
    /// In which epoch it came; a failure notice concerns those of one epoch.
    pub(super) epoch: u64,
    /// The longest silence that is not held against it; `None`: any.
    pub(super) silence: Option<Duration>,
    /// When it was last heard.
    pub(super) heard: Instant,
    /// Whom we have asked about it since.
    pub(super) asked: Vec<ConnectionId>,
    /// When the one who was asked last should have answered, or when nothing more is to be done about the silence.
    pub(super) look_again: Option<Instant>,
}

/// A rank's report that its collective failed, and the peer that it saw fail, if it was one.
#[derive(Debug)]
pub(super) struct Blame {
    pub(super) by: Rank,
    pub(super) peer: Option<Rank>,
    pub(super) cause: String,
}

/// What to do about a silent rank.
#[derive(Debug, PartialEq)]
pub(super) enum SilenceAction {
    /// Ask this neighbour to look at its process.
    Ask(ConnectionId),
    /// Tell everybody.
    Pronounce(FailureNotice),
}

impl Member {
    /// When somebody has to look after it, if it is not heard before.
    pub(super) fn due(&self) -> Option<Instant> {
        self.look_again.or_else(|| Some(self.heard + self.silence?))
    }

    /// It was heard.
    pub(super) fn hear(&mut self, now: Instant) {
        self.heard = now;
        self.asked.clear();
        self.look_again = None;
    }

    /// Why another process cannot come as this rank while this one stays: it is of a job that nothing tells from this
    /// one. A process that initialises again is the same one.
    pub(super) fn keeps_out(&self, rank: Rank, stay: &Stay) -> Option<String> {
        let Stay::Yes { process, host, .. } = stay else { return None };
        let is_another = self.rank == rank && (self.process, &self.host) != (*process, host);
        is_another.then(|| {
            format!(
                "process {} on host {} is rank {rank} already and still runs: another job of yours has the same key and \
                 the same address (FARANDOLE_JOB tells jobs apart)",
                self.process.pid,
                host_name(&self.host)
            )
        })
    }

    /// A failure notice on it.
    pub(super) fn notice(&self, kind: FailureKind) -> FailureNotice {
        FailureNotice::new(kind).on_rank(self.rank).on_host(host_name(&self.host)).on_process(self.process.pid)
    }

    /// The notice on a silent rank, once somebody has looked at its process.
    pub(super) fn notice_on(&self, state: Option<ProcessState>, now: Instant) -> FailureNotice {
        let quiet = words_for(now.saturating_duration_since(self.heard));
        match state {
            Some(ProcessState::Stopped) => {
                self.notice(FailureKind::Stopped).saying(format!("not heard of for {quiet}"))
            }
            Some(ProcessState::Gone) => self.notice(FailureKind::Gone),
            Some(ProcessState::Alive) => self.notice(FailureKind::Silent).saying(format!(
                "nothing for {quiet}, though its process is there: it hangs, or the network between is cut"
            )),
            None => self.notice(FailureKind::Silent).saying(format!(
                "nothing for {quiet}: it hangs or is stopped (no rank sees its process, which is in a PID namespace of \
                 its own), or the network between is cut"
            )),
        }
    }
}

/// Judges a rank that has been silent for too long and whose process we cannot see. `neighbours` are the other ranks of
/// its host.
pub(super) fn judge<'a>(
    silent: &Member,
    neighbours: impl Iterator<Item = (ConnectionId, &'a Member)>,
    now: Instant,
) -> SilenceAction {
    let quiet = now.saturating_duration_since(silent.heard);
    let mut alone = true;
    for (connection, neighbour) in neighbours {
        alone = false;
        // Half as quiet is not quiet: two ranks of a lost host have said their last words at different times.
        let is_heard = now.saturating_duration_since(neighbour.heard) <= quiet / 2;
        if is_heard && !silent.asked.contains(&connection) {
            return SilenceAction::Ask(connection);
        }
    }
    let quiet = words_for(quiet);
    SilenceAction::Pronounce(if alone {
        silent.notice(FailureKind::Silent).saying(format!(
            "nothing for {quiet}: its process hangs or is stopped, its host is down, or the network between is cut"
        ))
    } else {
        FailureNotice::new(FailureKind::HostLost)
            .on_host(host_name(&silent.host))
            .saying(format!("none of its ranks is heard of for {quiet}: it is down, or the network between is cut"))
    })
}

/// The part of a host's identity that its user knows it by.
pub(super) fn host_name(identity: &str) -> &str {
    identity.split('/').next().unwrap_or(identity)
}

pub(super) fn words_for(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(rank: u32, host: &str, heard: Instant) -> Member {
        Member {
            rank: Rank(rank),
            process: ProcessId { pid: 70 + rank, namespace: 1, start_time: 1 },
            host: format!("{host}/boot/net"),
            epoch: 0,
            silence: Some(Duration::from_secs(5)),
            heard,
            asked: Vec::new(),
            look_again: None,
        }
    }

    #[test]
    fn a_neighbour_is_asked_once_and_then_the_next() {
        let began = Instant::now();
        let now = began + Duration::from_secs(6);
        let mut silent = member(1, "b", began);
        let (awake, also) = (member(2, "b", now), member(3, "b", now));
        let neighbours = || [(20, &awake), (30, &also)].into_iter();
        assert_eq!(judge(&silent, neighbours(), now), SilenceAction::Ask(20));
        silent.asked.push(20);
        assert_eq!(judge(&silent, neighbours(), now), SilenceAction::Ask(30));
        silent.asked.push(30);
        let SilenceAction::Pronounce(notice) = judge(&silent, neighbours(), now) else {
            panic!("nobody is left to ask")
        };
        assert_eq!(notice.kind, FailureKind::HostLost);
    }

    #[test]
    fn a_host_is_lost_when_all_its_ranks_are_silent() {
        let began = Instant::now();
        let now = began + Duration::from_secs(5);
        let silent = member(1, "b", began);
        let other = member(2, "b", began + Duration::from_secs(1));
        let SilenceAction::Pronounce(notice) = judge(&silent, [(20, &other)].into_iter(), now) else {
            panic!("no notice")
        };
        assert_eq!(
            notice.to_string(),
            "host b is lost: none of its ranks is heard of for 5.0 s: it is down, or the network between is cut"
        );
    }

    #[test]
    fn a_rank_alone_on_its_host_is_silent_and_no_more_is_known() {
        let began = Instant::now();
        let silent = member(1, "b", began);
        let SilenceAction::Pronounce(notice) = judge(&silent, std::iter::empty(), began + Duration::from_secs(5))
        else {
            panic!("no notice")
        };
        assert_eq!((notice.kind, notice.rank, notice.pid), (FailureKind::Silent, Some(Rank(1)), Some(71)));
    }

    #[test]
    fn a_rank_that_is_heard_again_is_due_later() {
        let began = Instant::now();
        let mut rank = member(1, "b", began);
        assert_eq!(rank.due(), Some(began + Duration::from_secs(5)));
        rank.look_again = Some(began + Duration::from_secs(6));
        assert_eq!(rank.due(), Some(began + Duration::from_secs(6)));
        rank.hear(began + Duration::from_secs(7));
        assert_eq!(rank.due(), Some(began + Duration::from_secs(12)));
        rank.silence = None;
        assert_eq!(rank.due(), None, "without heartbeats nobody is waited for");
    }

    #[test]
    fn a_look_at_the_process_decides() {
        let began = Instant::now();
        let rank = member(1, "b", began);
        let now = began + Duration::from_secs(5);
        for (state, kind) in [
            (Some(ProcessState::Stopped), FailureKind::Stopped),
            (Some(ProcessState::Gone), FailureKind::Gone),
            (Some(ProcessState::Alive), FailureKind::Silent),
            (None, FailureKind::Silent),
        ] {
            assert_eq!(rank.notice_on(state, now).kind, kind);
        }
        let words = rank.notice_on(Some(ProcessState::Stopped), now).to_string();
        assert_eq!(words, "rank 1 on host b (pid 71) is stopped (SIGSTOP or the like): not heard of for 5.0 s");
    }
}
