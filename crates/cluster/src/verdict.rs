//! What has become of a rank, a host or the launcher: the cause that every rank of a job is given when the job has
//! failed.
//!
//! Whoever watches processes pronounces a verdict once, and it travels as it is: the error of a collective, the
//! launcher's last line and the log all say the same words. Encode and decode stand beside each other; what the wire
//! brings is parsed into this type or refused.

use std::fmt;

use farandole_plan::Rank;

use crate::wire::{Reader, put_option, put_text, put_u32};

/// What has happened, and to whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The rank, where it is one.
    pub rank: Option<Rank>,
    /// Its host, by a name that the user knows.
    pub host: Option<String>,
    /// Its process.
    pub pid: Option<u32>,
    /// What has become of it.
    pub kind: VerdictKind,
    /// The words for people: whole, and the same wherever the verdict is read. If empty, what the other fields say.
    pub text: String,
}

/// What has become of a process or a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerdictKind {
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

impl Verdict {
    /// A verdict on nobody in particular yet.
    pub fn new(kind: VerdictKind) -> Verdict {
        Verdict { rank: None, host: None, pid: None, kind, text: String::new() }
    }

    /// The same on this rank.
    pub fn on_rank(self, rank: Rank) -> Verdict {
        Verdict { rank: Some(rank), ..self }
    }

    /// The same on this host, or on somebody there.
    pub fn on_host(self, host: impl Into<String>) -> Verdict {
        Verdict { host: Some(host.into()), ..self }
    }

    /// The same on this process.
    pub fn on_process(self, pid: u32) -> Verdict {
        Verdict { pid: Some(pid), ..self }
    }

    /// The same with more of the story behind what it says so far. The last step of making one.
    pub fn saying(self, story: impl fmt::Display) -> Verdict {
        Verdict { text: format!("{self}: {story}"), ..self }
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
    pub fn decode(bytes: &[u8]) -> Option<Verdict> {
        let mut reader = Reader::new(bytes);
        let rank = reader.option(Reader::u32)?.map(Rank);
        let host = reader.option(Reader::text)?;
        let pid = reader.option(Reader::u32)?;
        let kind = VerdictKind::from_numbers(reader.byte()?, reader.u32()? as i32)?;
        let text = reader.text()?;
        reader.end(Verdict { rank, host, pid, kind, text })
    }
}

impl VerdictKind {
    fn numbers(self) -> (u8, i32) {
        match self {
            VerdictKind::Exited { code } => (0, code),
            VerdictKind::Signalled { signal } => (1, signal),
            VerdictKind::Gone => (2, 0),
            VerdictKind::Stopped => (3, 0),
            VerdictKind::Silent => (4, 0),
            VerdictKind::HostLost => (5, 0),
            VerdictKind::AgentLost => (6, 0),
            VerdictKind::LauncherLost => (7, 0),
            VerdictKind::Other => (8, 0),
        }
    }

    fn from_numbers(kind: u8, number: i32) -> Option<VerdictKind> {
        Some(match (kind, number) {
            (0, code) => VerdictKind::Exited { code },
            (1, signal) => VerdictKind::Signalled { signal },
            (2, 0) => VerdictKind::Gone,
            (3, 0) => VerdictKind::Stopped,
            (4, 0) => VerdictKind::Silent,
            (5, 0) => VerdictKind::HostLost,
            (6, 0) => VerdictKind::AgentLost,
            (7, 0) => VerdictKind::LauncherLost,
            (8, 0) => VerdictKind::Other,
            _ => return None,
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.text.is_empty() {
            return f.write_str(&self.text);
        }
        self.write_whom(f)?;
        match self.kind {
            VerdictKind::Exited { code } => write!(f, " exited with code {code}"),
            VerdictKind::Signalled { signal } => write!(f, " was killed by {}", signal_name(signal)),
            VerdictKind::Gone => f.write_str(" is gone"),
            VerdictKind::Stopped => f.write_str(" is stopped (SIGSTOP or the like)"),
            VerdictKind::Silent => f.write_str(" is not heard of any more"),
            VerdictKind::HostLost | VerdictKind::AgentLost | VerdictKind::LauncherLost => f.write_str(" is lost"),
            VerdictKind::Other => f.write_str(" failed"),
        }
    }
}

impl Verdict {
    fn write_whom(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on_host = self.host.as_ref().map(|host| format!(" on host {host}")).unwrap_or_default();
        let process = self.pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
        match (self.rank, self.kind) {
            (_, VerdictKind::AgentLost) => write!(f, "the agent{on_host}{process}"),
            (None, VerdictKind::LauncherLost) => write!(f, "the launcher{on_host}{process}"),
            (_, VerdictKind::HostLost) => write!(f, "host {}", self.host.as_deref().unwrap_or("(unnamed)")),
            (Some(rank), _) => write!(f, "rank {rank}{on_host}{process}"),
            (None, _) if self.host.is_none() && self.pid.is_none() => f.write_str("the job"),
            (None, _) => write!(f, "a process{on_host}{process}"),
        }
    }
}

impl std::error::Error for Verdict {}

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

/// What must hold for any bytes that are taken for a verdict. The fuzzer calls it, and a test with the fuzzer's seeds.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub fn check_any_verdict(bytes: &[u8]) {
    if let Some(verdict) = Verdict::decode(bytes) {
        assert_eq!(verdict.encode(), bytes, "a verdict has one encoding");
        assert!(!verdict.to_string().is_empty(), "a verdict can be read");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeds;

    fn all_kinds() -> Vec<VerdictKind> {
        (0..=8).map(|kind| VerdictKind::from_numbers(kind, 0).unwrap()).collect()
    }

    #[test]
    fn verdicts_of_the_corpus_decode_or_are_refused() {
        let full = Verdict::new(VerdictKind::Exited { code: -3 }).on_rank(Rank(3)).on_host("b").on_process(77);
        let made = [
            ("full", full.clone().saying("Überlauf").encode()),
            ("least", Verdict::new(VerdictKind::Other).encode()),
            ("stopped", Verdict::new(VerdictKind::Stopped).on_rank(Rank(70_000)).encode()),
            ("more_behind", [full.encode(), vec![0]].concat()),
            ("unknown_kind", [0, 0, 0, 99, 0, 0, 0, 0, 0, 0, 0, 0].to_vec()),
            ("longer_than_it_is", vec![0, 1, 255, 255, 255, 255, 1]),
            ("empty", Vec::new()),
        ];
        seeds::replay("verdict", &made, check_any_verdict);
    }

    #[test]
    fn every_kind_survives_the_wire() {
        for kind in
            all_kinds().into_iter().chain([VerdictKind::Signalled { signal: 9 }, VerdictKind::Exited { code: -1 }])
        {
            for verdict in
                [Verdict::new(kind), Verdict::new(kind).on_rank(Rank(3)).on_host("höst").on_process(77).saying("why")]
            {
                assert_eq!(Verdict::decode(&verdict.encode()), Some(verdict));
            }
        }
    }

    #[test]
    fn verdicts_say_who_and_what() {
        let on = |kind| Verdict::new(kind).on_rank(Rank(3)).on_host("b").on_process(77);
        for (verdict, words) in [
            (on(VerdictKind::Stopped), "rank 3 on host b (pid 77) is stopped (SIGSTOP or the like)"),
            (on(VerdictKind::Exited { code: 7 }), "rank 3 on host b (pid 77) exited with code 7"),
            (on(VerdictKind::Signalled { signal: 64 }), "rank 3 on host b (pid 77) was killed by signal 64"),
            (on(VerdictKind::Gone), "rank 3 on host b (pid 77) is gone"),
            (Verdict::new(VerdictKind::HostLost).on_host("b"), "host b is lost"),
            (Verdict::new(VerdictKind::AgentLost).on_host("b").on_process(5), "the agent on host b (pid 5) is lost"),
            (Verdict::new(VerdictKind::LauncherLost).saying("silence"), "the launcher is lost: silence"),
            (Verdict::new(VerdictKind::Other).on_rank(Rank(1)).saying("disk full"), "rank 1 failed: disk full"),
            (Verdict::new(VerdictKind::Other), "the job failed"),
        ] {
            assert_eq!(verdict.to_string(), words);
        }
        for kind in all_kinds() {
            assert!(on(kind).to_string().contains(" b"), "every verdict names the host: {}", on(kind));
        }
    }
}
