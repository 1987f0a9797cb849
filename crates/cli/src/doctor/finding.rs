//! What the doctor says: findings, and the report that holds those of one machine.
//!
//! A finding has a key that does not change between versions, so that scripts may look for it; the sentences may
//! change. The invariant: a problem always carries its fix, because there is no way to make one without.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Version of the report's form. It grows when a key goes away or changes its meaning, not when one is added.
pub(crate) const SCHEMA: u32 = 1;

/// How bad a finding is; the worst of them is the state of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// As it should be.
    Ok,
    /// Worth knowing; a job runs nevertheless.
    Note,
    /// A job fails, or is not what the user takes it for, until this is mended.
    Problem,
}

impl State {
    /// The word on the page and in the report.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Note => "note",
            State::Problem => "problem",
        }
    }
}

/// The part of the page on which a finding stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Group {
    /// Cores, memory, limits.
    Machine,
    /// Addresses, names, ssh.
    Network,
    /// Interpreter and frameworks.
    Python,
    /// Vendor libraries.
    Libraries,
    /// Devices, and how ranks share them.
    Gpus,
    /// Launcher, settings, instruction set, clock.
    Job,
    /// Differences between hosts, and hosts that did not answer.
    Hosts,
}

impl Group {
    /// The heading on the page.
    pub(crate) const fn heading(self) -> &'static str {
        match self {
            Group::Machine => "Machine",
            Group::Network => "Network",
            Group::Python => "Python",
            Group::Libraries => "Libraries opened at run time",
            Group::Gpus => "GPUs",
            Group::Job => "Job",
            Group::Hosts => "Hosts compared",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Finding {
    pub(crate) group: Group,
    /// Its name, the same in every version.
    pub(crate) key: Cow<'static, str>,
    pub(crate) state: State,
    /// What was found.
    pub(crate) found: String,
    /// Why it matters.
    pub(crate) why: String,
    /// What to do about it; commands stand between backticks.
    pub(crate) fix: Option<String>,
}

impl Finding {
    pub(crate) fn ok(group: Group, key: &'static str, found: impl Into<String>, why: impl Into<String>) -> Finding {
        Finding { group, key: key.into(), state: State::Ok, found: found.into(), why: why.into(), fix: None }
    }

    pub(crate) fn note(group: Group, key: &'static str, found: impl Into<String>, why: impl Into<String>) -> Finding {
        Finding { state: State::Note, ..Finding::ok(group, key, found, why) }
    }

    pub(crate) fn problem(
        group: Group,
        key: &'static str,
        found: impl Into<String>,
        why: impl Into<String>,
        fix: impl Into<String>,
    ) -> Finding {
        Finding { state: State::Problem, ..Finding::ok(group, key, found, why) }.with_fix(fix)
    }

    /// The same finding with something to do about it.
    pub(crate) fn with_fix(self, fix: impl Into<String>) -> Finding {
        Finding { fix: Some(fix.into()), ..self }
    }
}

/// The ranks for which limits are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Planned {
    /// Ranks of the whole job.
    pub(crate) ranks: usize,
    /// Those of them on this host.
    pub(crate) local_ranks: usize,
}

/// Everything found on one machine. This is what `--json` prints.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) schema: u32,
    /// Version of the command that made the report.
    pub(crate) farandole: String,
    pub(crate) host: String,
    pub(crate) kernel: String,
    pub(crate) planned: Planned,
    /// The worst of the findings.
    pub(crate) state: State,
    pub(crate) findings: Vec<Finding>,
    /// What will be used and why, in sentences.
    pub(crate) outlook: Vec<String>,
    /// Versions by name, for comparing hosts.
    pub(crate) versions: BTreeMap<String, String>,
    /// The machine's clock when the report was finished.
    pub(crate) unix_time_ms: u64,
}

/// The worst state among these; nothing at all is well.
pub(crate) fn worst<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> State {
    findings.into_iter().map(|finding| finding.state).max().unwrap_or(State::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_finding_decides_and_notes_are_no_problem() {
        let ok = Finding::ok(Group::Job, "a", "", "");
        let note = Finding::note(Group::Job, "b", "", "");
        let problem = Finding::problem(Group::Job, "c", "", "", "mend it");
        assert_eq!(worst([]), State::Ok);
        assert_eq!(worst([&ok, &note, &ok]), State::Note);
        assert_eq!(worst([&problem, &note]), State::Problem);
    }

    #[test]
    fn a_finding_has_exactly_these_keys_and_reads_back() {
        let finding = Finding::problem(Group::Machine, "descriptors", "64", "too few", "`ulimit -n 512`");
        let text = serde_json::to_string(&finding).unwrap();
        assert_eq!(
            text,
            r#"{"group":"machine","key":"descriptors","state":"problem","found":"64","why":"too few","fix":"`ulimit -n 512`"}"#
        );
        assert_eq!(serde_json::from_str::<Finding>(&text).unwrap(), finding);
    }
}
