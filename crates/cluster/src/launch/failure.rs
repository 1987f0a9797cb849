//! What can fail in a running job, in words.

use std::fmt;
use std::time::Duration;

use super::connectivity::ReachGap;
use super::message::HowEnded;
use crate::rendezvous::{FailureKind, FailureNotice};

/// Something that ended a job.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    /// The rank, if it was one.
    pub(crate) rank: Option<u32>,
    /// Index of its host.
    pub(crate) host: usize,
    /// Its host's name.
    pub(crate) host_name: String,
    /// The rank's process, or the agent's.
    pub(crate) pid: Option<u32>,
    /// What happened.
    pub(crate) what: What,
    /// How long after the start of the job.
    pub(crate) after: Duration,
}

/// What happened to a rank or to a host.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum What {
    /// A rank's process ended badly.
    Ended(HowEnded),
    /// A rank could not be started.
    NotStarted(String),
    /// A rank has been stopped by a signal for so long.
    Stopped(i32, Duration),
    /// A rank's process is there, but has not been heard of for so long.
    Silent(Duration),
    /// A rank has kept the others waiting, in these words.
    Slow(String),
    /// The agent of a host could not be started, or did not come.
    AgentNeverCame(String),
    /// The agent of a host has ended; its ranks with it.
    AgentGone(String),
    /// A host has not been heard of for so long.
    HostSilent(Duration),
    /// What a rank has made of its task could not be kept.
    ResultLost(String),
    /// Hosts cannot reach each other.
    Unreachable(ReachGap),
    /// The MPS daemon that a host's ranks use their GPUs through has ended.
    MpsGone {
        /// Its process.
        pid: u32,
        /// How it ended.
        how: HowEnded,
        /// The last that it wrote.
        words: Option<String>,
    },
}

/// `rank 3 on node-b (pid 4711)`.
pub(super) fn rank_name(rank: u32, host: &str, pid: Option<u32>) -> String {
    match pid {
        Some(pid) => format!("rank {rank} on {host} (pid {pid})"),
        None => format!("rank {rank} on {host}"),
    }
}

/// `member 3 on node-b (pid 4711)`.
pub(super) fn member_name(member: u32, host: &str, pid: Option<u32>) -> String {
    rank_name(member, host, pid).replacen("rank", "member", 1)
}

impl Failure {
    /// What all ranks are told.
    pub(crate) fn notice(&self) -> FailureNotice {
        let kind = match self.what {
            What::Ended(HowEnded::Exited(code)) => FailureKind::Exited { code },
            What::Ended(HowEnded::Signalled(signal)) => FailureKind::Signalled { signal },
            What::Stopped(..) => FailureKind::Stopped,
            What::Silent(_) => FailureKind::Silent,
            What::HostSilent(_) => FailureKind::HostLost,
            What::AgentGone(_) => FailureKind::AgentLost,
            What::NotStarted(_)
            | What::Slow(_)
            | What::AgentNeverCame(_)
            | What::Unreachable(_)
            | What::ResultLost(_)
            | What::MpsGone { .. } => FailureKind::Other,
        };
        FailureNotice {
            rank: self.rank.map(farandole_plan::Rank),
            host: Some(self.host_name.clone()),
            pid: self.pid,
            kind,
            text: self.to_string(),
        }
    }

    /// The same on a member of an elastic job: its number stands for the rank.
    pub(crate) fn member_notice(&self) -> FailureNotice {
        FailureNotice { rank: None, text: self.as_member(), ..self.notice() }
    }

    /// The words for a member of an elastic job.
    pub(crate) fn as_member(&self) -> String {
        let what = match &self.what {
            What::AgentGone(how) => format!("was lost with the agent of its host: {how}"),
            What::HostSilent(silence) => {
                format!("was lost with its host, which was not heard of for {:.1} s", silence.as_secs_f64())
            }
            What::Stopped(..) | What::Silent(_) | What::Slow(_) => {
                let words = Failure { rank: None, ..self.clone() }.to_string();
                return format!("{} {words}, and was ended", self.member());
            }
            _ => return self.to_string().replacen("rank", "member", 1),
        };
        format!("{} {what}", self.member())
    }

    fn member(&self) -> String {
        member_name(self.rank.unwrap_or_default(), &self.host_name, self.pid)
    }

    /// The code that the launcher exits with.
    pub(crate) fn exit_code(&self) -> u8 {
        match self.what {
            What::Ended(how) => how.exit_code(),
            _ => 1,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = &self.host_name;
        let agent = || match self.pid {
            Some(pid) => format!("the agent on {host} (pid {pid})"),
            None => format!("the agent on {host}"),
        };
        if let Some(rank) = self.rank {
            write!(f, "{} ", rank_name(rank, host, self.pid))?;
        }
        match &self.what {
            What::Ended(how) => {
                write!(f, "{how} after {:.1} s", self.after.as_secs_f64())?;
                match how {
                    HowEnded::Signalled(signal) => match super::signal::hint(*signal) {
                        Some(hint) => write!(f, " ({hint})"),
                        None => Ok(()),
                    },
                    HowEnded::Exited(_) => Ok(()),
                }
            }
            What::NotStarted(why) if self.rank.is_some() => write!(f, "could not be started: {why}"),
            What::NotStarted(why) => write!(f, "no rank could be started on {host}: {why}"),
            What::Stopped(signal, silence) => {
                let (by, silence) = (super::signal::name(*signal), silence.as_secs_f64());
                write!(f, "was stopped by {by} and did not go on for {silence:.1} s (--heartbeat-timeout)")
            }
            What::Silent(silence) => write!(
                f,
                "has not given a sign of life for {:.1} s, though its process is there (--heartbeat-timeout)",
                silence.as_secs_f64()
            ),
            What::Slow(figures) => write!(f, "was slow: {figures} (--replace-slow)"),
            What::ResultLost(why) => write!(f, "has a result that cannot be kept: {why}"),
            What::AgentNeverCame(how) => write!(f, "{host} cannot be used: {how}"),
            What::AgentGone(how) => write!(f, "{} is gone, and its ranks with it: {how}", agent()),
            What::HostSilent(silence) => write!(
                f,
                "{host} has not been heard of for {:.1} s: it is down, or the network to it is cut (--heartbeat-timeout)",
                silence.as_secs_f64()
            ),
            What::Unreachable(gap) => f.write_str(&gap.summary),
            What::MpsGone { pid, how, words } => {
                write!(
                    f,
                    "the job's MPS daemon on {host} (pid {pid}) {how}; its ranks cannot use their GPUs without it"
                )?;
                words.as_ref().map_or(Ok(()), |words| write!(f, ": {words}"))
            }
        }
    }
}
