//! What has become of a rank, a host or the launcher: the cause that every rank of a job is given when the job has
//! failed.
//!
//! Whoever watches processes makes a failure notice once, and it travels as it is: the error of a collective, the
//! launcher's last line and the log all say the same words. Encode and decode stand beside each other; what the wire
//! brings is parsed into this type or refused.

use std::fmt;

use farandole_plan::{ErrorClass, Rank};

use crate::encoding::{Reader, put_option, put_text, put_u32};

/// What has happened, and to whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureNotice {
    /// The rank, where it is one.
    pub rank: Option<Rank>,
    /// Its host, by a name that the user knows.
    pub host: Option<String>,
    /// Its process.
    pub pid: Option<u32>,
    /// What has become of it.
    pub kind: FailureKind,
    /// The words for people: whole, and the same wherever the notice is read. If empty, what the other fields say.
    pub text: String,
}

/// What has become of a process or a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureKind {
    /// It ended by itself.
    Exited {
        /// Its exit code.
        code: i32,
    },
    /// A signal ended it.
    Signalled {
        /// Which.
        signal: i32,
    },
    /// It has ended; nobody saw how.
    Gone,
    /// It is stopped by a signal and may go on one day.
    Stopped,
    /// It is not heard of.
    Silent,
    /// Nothing on its host is heard of.
    HostLost,
    /// The agent that looked after its host has ended or is not heard of.
    AgentLost,
    /// The launcher, or whoever hosts the rendezvous, has ended or is not heard of.
    LauncherLost,
    /// What the text says.
    Other,
}

impl FailureNotice {
    /// A failure notice on nobody in particular yet.
    pub fn new(kind: FailureKind) -> FailureNotice {
        FailureNotice { rank: None, host: None, pid: None, kind, text: String::new() }
    }

    /// The same on this rank.
    pub fn on_rank(self, rank: Rank) -> FailureNotice {
        FailureNotice { rank: Some(rank), ..self }
    }

    /// The same on this host, or on somebody there.
    pub fn on_host(self, host: impl Into<String>) -> FailureNotice {
        FailureNotice { host: Some(host.into()), ..self }
    }

    /// The same on this process.
    pub fn on_process(self, pid: u32) -> FailureNotice {
        FailureNotice { pid: Some(pid), ..self }
    }

    /// The same with more of the story behind what it says so far. The last step of making one.
    pub fn saying(self, story: impl fmt::Display) -> FailureNotice {
        FailureNotice { text: format!("{self}: {story}"), ..self }
    }

    /// What a rank whose collectives it ends can do about it.
    pub fn class(&self) -> ErrorClass {
        match self.kind {
            FailureKind::Exited { .. }
            | FailureKind::Signalled { .. }
            | FailureKind::Gone
            | FailureKind::Stopped
            | FailureKind::Silent
            | FailureKind::HostLost
            | FailureKind::AgentLost => ErrorClass::RankLost,
            FailureKind::LauncherLost | FailureKind::Other => ErrorClass::Other,
        }
    }

    /// For the wire.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_option(&mut bytes, self.rank, |bytes, rank| put_u32(bytes, rank.0));
        put_option(&mut bytes, self.host.as_deref(), put_text);
        put_option(&mut bytes, self.pid, put_u32);
        let (kind, number) = self.kind.numbers();
        bytes.push(kind);
        put_u32(&mut bytes, number as u32);
        put_text(&mut bytes, &self.text);
        bytes
    }

    /// From the wire; `None` if it is none.
    pub fn decode(bytes: &[u8]) -> Option<FailureNotice> {
        let mut reader = Reader::new(bytes);
        let rank = reader.option(Reader::u32)?.map(Rank);
        let host = reader.option(Reader::text)?;
        let pid = reader.option(Reader::u32)?;
        let kind = FailureKind::from_numbers(reader.byte()?, reader.u32()? as i32)?;
        let text = reader.text()?;
        reader.end(FailureNotice { rank, host, pid, kind, text })
    }
}

impl FailureKind {
    fn numbers(self) -> (u8, i32) {
        match self {
            FailureKind::Exited { code } => (0, code),
            FailureKind::Signalled { signal } => (1, signal),
            FailureKind::Gone => (2, 0),
            FailureKind::Stopped => (3, 0),
            FailureKind::Silent => (4, 0),
            FailureKind::HostLost => (5, 0),
            FailureKind::AgentLost => (6, 0),
            FailureKind::LauncherLost => (7, 0),
            FailureKind::Other => (8, 0),
        }
    }

    fn from_numbers(kind: u8, number: i32) -> Option<FailureKind> {
        Some(match (kind, number) {
            (0, code) => FailureKind::Exited { code },
            (1, signal) => FailureKind::Signalled { signal },
            (2, 0) => FailureKind::Gone,
            (3, 0) => FailureKind::Stopped,
            (4, 0) => FailureKind::Silent,
            (5, 0) => FailureKind::HostLost,
            (6, 0) => FailureKind::AgentLost,
            (7, 0) => FailureKind::LauncherLost,
            (8, 0) => FailureKind::Other,
            _ => return None,
        })
    }
}

impl fmt::Display for FailureNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.text.is_empty() {
            return f.write_str(&self.text);
        }
        self.write_whom(f)?;
        match self.kind {
            FailureKind::Exited { code } => write!(f, " exited with code {code}"),
            FailureKind::Signalled { signal } => write!(f, " was killed by {}", signal_name(signal)),
            FailureKind::Gone => f.write_str(" is gone"),
            FailureKind::Stopped => f.write_str(" is stopped (SIGSTOP or the like)"),
            FailureKind::Silent => f.write_str(" is not heard of any more"),
            FailureKind::HostLost | FailureKind::AgentLost | FailureKind::LauncherLost => f.write_str(" is lost"),
            FailureKind::Other => f.write_str(" failed"),
        }
    }
}

impl FailureNotice {
    fn write_whom(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on_host = self.host.as_ref().map(|host| format!(" on host {host}")).unwrap_or_default();
        let process = self.pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
        match (self.rank, self.kind) {
            (_, FailureKind::AgentLost) => write!(f, "the agent{on_host}{process}"),
            (None, FailureKind::LauncherLost) => write!(f, "the launcher{on_host}{process}"),
            (_, FailureKind::HostLost) => write!(f, "host {}", self.host.as_deref().unwrap_or("(unnamed)")),
            (Some(rank), _) => write!(f, "rank {rank}{on_host}{process}"),
            (None, _) if self.host.is_none() && self.pid.is_none() => f.write_str("the job"),
            (None, _) => write!(f, "a process{on_host}{process}"),
        }
    }
}

impl std::error::Error for FailureNotice {}

/// Names of the signals that end ranks in practice, with what most often sends them.
fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "SIGHUP (the terminal was closed)",
        2 => "SIGINT (interrupt)",
        3 => "SIGQUIT",
        4 => "SIGILL (illegal instruction)",
        6 => "SIGABRT (it gave up)",
        7 => "SIGBUS (memory that is not there: a truncated file, or shared memory that is full)",
        8 => "SIGFPE",
        9 => "SIGKILL (by somebody, or by the kernel because memory ran out)",
        11 => "SIGSEGV (invalid memory access)",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        24 => "SIGXCPU (its limit of processor time)",
        other => return format!("signal {other}"),
    };
    name.to_string()
}

/// What must hold for any bytes that are taken for a failure notice. The fuzzer calls it, and a test with the fuzzer's
/// seeds.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub fn check_any_notice(bytes: &[u8]) {
    if let Some(notice) = FailureNotice::decode(bytes) {
        assert_eq!(notice.encode(), bytes, "a notice has one encoding");
        assert!(!notice.to_string().is_empty(), "a notice can be read");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeds;

    fn all_kinds() -> Vec<FailureKind> {
        (0..=8).map(|kind| FailureKind::from_numbers(kind, 0).unwrap()).collect()
    }

    #[test]
    fn notices_of_the_corpus_decode_or_are_refused() {
        let full = FailureNotice::new(FailureKind::Exited { code: -3 }).on_rank(Rank(3)).on_host("b").on_process(77);
        let made = [
            ("full", full.clone().saying("Überlauf").encode()),
            ("least", FailureNotice::new(FailureKind::Other).encode()),
            ("stopped", FailureNotice::new(FailureKind::Stopped).on_rank(Rank(70_000)).encode()),
            ("more_behind", [full.encode(), vec![0]].concat()),
            ("unknown_kind", [0, 0, 0, 99, 0, 0, 0, 0, 0, 0, 0, 0].to_vec()),
            ("longer_than_it_is", vec![0, 1, 255, 255, 255, 255, 1]),
            ("empty", Vec::new()),
        ];
        seeds::replay("failure_notice", &made, check_any_notice);
    }

    #[test]
    fn every_kind_survives_the_wire() {
        for kind in
            all_kinds().into_iter().chain([FailureKind::Signalled { signal: 9 }, FailureKind::Exited { code: -1 }])
        {
            for notice in [
                FailureNotice::new(kind),
                FailureNotice::new(kind).on_rank(Rank(3)).on_host("höst").on_process(77).saying("why"),
            ] {
                assert_eq!(FailureNotice::decode(&notice.encode()), Some(notice));
            }
        }
    }

    #[test]
    fn notices_say_who_and_what() {
        let on = |kind| FailureNotice::new(kind).on_rank(Rank(3)).on_host("b").on_process(77);
        for (notice, words) in [
            (on(FailureKind::Stopped), "rank 3 on host b (pid 77) is stopped (SIGSTOP or the like)"),
            (on(FailureKind::Exited { code: 7 }), "rank 3 on host b (pid 77) exited with code 7"),
            (on(FailureKind::Signalled { signal: 64 }), "rank 3 on host b (pid 77) was killed by signal 64"),
            (on(FailureKind::Gone), "rank 3 on host b (pid 77) is gone"),
            (FailureNotice::new(FailureKind::HostLost).on_host("b"), "host b is lost"),
            (
                FailureNotice::new(FailureKind::AgentLost).on_host("b").on_process(5),
                "the agent on host b (pid 5) is lost",
            ),
            (FailureNotice::new(FailureKind::LauncherLost).saying("silence"), "the launcher is lost: silence"),
            (FailureNotice::new(FailureKind::Other).on_rank(Rank(1)).saying("disk full"), "rank 1 failed: disk full"),
            (FailureNotice::new(FailureKind::Other), "the job failed"),
        ] {
            assert_eq!(notice.to_string(), words);
        }
        for kind in all_kinds() {
            assert!(on(kind).to_string().contains(" b"), "every notice names the host: {}", on(kind));
        }
    }
}
