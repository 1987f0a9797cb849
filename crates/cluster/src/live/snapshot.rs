//! What is known of a job at a moment, as live views get it.
//!
//! It travels as JSON, because whoever watches may be of another version than the job. Fields may be added; what an
//! older reader does not know it passes over, and what a newer one misses is empty. A meaning that changes takes
//! another [`FORMAT`].

use serde::{Deserialize, Serialize};

/// The form of snapshots.
pub const FORMAT: u32 = 1;

/// A job and all its ranks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// [`FORMAT`] of whoever made it.
    pub format: u32,
    /// The job.
    pub job: JobView,
    /// Its ranks, in order.
    pub ranks: Vec<RankView>,
}

/// What a job is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobView {
    /// The process that knows of all ranks: the launcher, or rank 0.
    pub pid: u32,
    /// The host that it runs on.
    pub host: String,
    /// What started the ranks.
    pub launcher: String,
    /// What they run.
    pub command: String,
    /// How many there are.
    pub size: usize,
    /// How long the job has been running.
    pub running_seconds: f64,
    /// Of an elastic job the number of its generation, whose ranks `size` counts; 0: its size is fixed, or it has not
    /// begun.
    pub generation: u64,
    /// How often it has come from one generation to another.
    pub recoveries: u64,
}

/// What is to be said of a rank in one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LiveState {
    /// It was started, and has not said anything yet.
    #[default]
    Starting,
    /// It sends samples.
    Running,
    /// A signal has stopped its process.
    Stopped,
    /// It has sent samples, and sends none any more.
    Silent,
    /// It has left the job; its process may go on.
    Left,
    /// Its process has ended.
    Ended,
}

impl LiveState {
    /// The word.
    pub const fn word(self) -> &'static str {
        match self {
            LiveState::Starting => "starting",
            LiveState::Running => "running",
            LiveState::Stopped => "stopped",
            LiveState::Silent => "silent",
            LiveState::Left => "left",
            LiveState::Ended => "ended",
        }
    }
}

/// What is known of a rank. Rates and shares are of the last ten seconds; they are missing while nothing is known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankView {
    /// Which.
    pub rank: u32,
    /// Where it runs.
    pub host: String,
    /// Its process.
    pub pid: Option<u32>,
    /// How it is.
    pub state: LiveState,
    /// How it has ended, if it has.
    pub ending: Option<String>,
    /// How old everything below is.
    pub sample_age_seconds: Option<f64>,
    /// The number that the program gives to its iteration.
    pub iteration: Option<u64>,
    /// And to its epoch.
    pub epoch: Option<u64>,
    /// Iterations in a second, if the program marks them.
    pub iterations_per_second: Option<f64>,
    /// Buckets and direct calls in a second.
    pub operations_per_second: Option<f64>,
    /// Bytes of collectives in a second, as the program handed them in.
    pub bytes_per_second: Option<f64>,
    /// Share of the time in which the program waits for collectives, from 0 to 1.
    pub waiting_share: Option<f64>,
    /// Share in which it waits for input.
    pub input_share: Option<f64>,
    /// Processors that are busy with it.
    pub cpu: Option<f64>,
    /// Memory in use.
    pub rss_bytes: Option<u64>,
    /// The phase that the program is in, if it says.
    pub phase: Option<String>,
    /// For how long it has been waiting for a collective by now, if it does.
    pub blocked_seconds: Option<f64>,
    /// The rank that its engine waits for.
    pub waits_for: Option<u32>,
    /// The last stall.
    pub last_stall: Option<LastStall>,
    /// Everything since the rank began.
    pub totals: Totals,
}

/// A request that waited too long.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LastStall {
    /// When the warning was given.
    pub seconds_ago: f64,
    /// The request's name.
    pub tensor: String,
    /// How many ranks had not asked for it.
    pub missing_ranks: u32,
    /// The first of them.
    pub first_missing_rank: u32,
}

/// Sums since a rank began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Iterations that have begun.
    pub iterations: u64,
    /// Buckets and direct calls.
    pub operations: u64,
    /// Named requests among them.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Time in which the program waited for collectives.
    pub waiting_seconds: f64,
    /// Time in which it waited for input.
    pub input_seconds: f64,
    /// Time on processors.
    pub cpu_seconds: f64,
    /// Warnings about stalls.
    pub stalls: u64,
    /// Records that were overwritten before they were counted.
    pub dropped_records: u64,
}

impl Snapshot {
    /// As JSON, on one line.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("invariant: a snapshot holds nothing that JSON has no words for")
    }

    /// What a job has told.
    ///
    /// # Errors
    /// If it is no snapshot, or one of another form.
    pub fn from_json(text: &[u8]) -> Result<Snapshot, String> {
        let snapshot: Snapshot = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        match snapshot.format {
            FORMAT => Ok(snapshot),
            other => {
                Err(format!("it speaks form {other}, and this program form {FORMAT}: use the job's own farandole"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_survive_their_json_and_more_fields() {
        let rank = RankView { rank: 3, phase: Some("a\"\u{1b}[2J".into()), ..RankView::default() };
        let snapshot = Snapshot { format: FORMAT, job: JobView::default(), ranks: vec![rank] };
        let json = snapshot.to_json();
        assert!(!json.contains('\u{1b}') && !json.contains('\n'));
        assert_eq!(Snapshot::from_json(json.as_bytes()), Ok(snapshot));
        let newer = r#"{"format": 1, "new": 1, "ranks": [{"rank": 1, "new": [], "state": "running"}]}"#;
        assert_eq!(Snapshot::from_json(newer.as_bytes()).unwrap().ranks[0].state, LiveState::Running);
    }

    #[test]
    fn another_form_and_garbage_are_refused_with_words() {
        assert!(Snapshot::from_json(br#"{"format": 2}"#).unwrap_err().contains("form 2"));
        for garbage in ["", "{", "[1, 2]", "\u{0}", r#"{"format": 1, "ranks": 5}"#] {
            assert!(Snapshot::from_json(garbage.as_bytes()).is_err(), "{garbage}");
        }
        let deep = "[".repeat(100_000);
        assert!(Snapshot::from_json(deep.as_bytes()).is_err());
    }
}
