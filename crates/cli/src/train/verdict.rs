//! Where the time of the run went, in two lines: the headline of `farandole report`, and its best advice.
//!
//! A run that cannot be judged has been a run all the same: whatever is wrong with the traces is a note, never an
//! error.

use std::io::Write;
use std::path::Path;

use farandole_insight::history::{History, TimeWindow};
use farandole_insight::report::text;
use farandole_insight::report::wording::wording;
use farandole_insight::verdict::Verdict;

use crate::report::load;

/// Says the verdict about the traces in a folder; `kept` is where the user has wanted them.
pub(super) fn say(traces: Option<&Path>, kept: Option<&Path>) {
    let lines = match traces {
        None => {
            vec!["not judged: with ranks on other hosts it takes --trace DIR, a folder that all hosts share".to_owned()]
        }
        Some(traces) => lines(traces, kept),
    };
    let mut out = std::io::stdout().lock();
    for (place, line) in lines.iter().enumerate() {
        let label = if place == 0 { "verdict" } else { "" };
        // Whoever has stopped reading does not want to know.
        let _ = writeln!(out, "  {label:<11} {line}");
    }
}

/// What is said of a run that has trained nothing: its checkpoint was of the last step already, or it was asked to stop
/// before the first.
const NO_STEPS: &str = "nothing to judge: this run made no step of training";

fn lines(traces: &Path, kept: Option<&Path>) -> Vec<String> {
    let (history, window) = match steps_of(traces) {
        Ok(history) => history,
        Err(error) => return vec![format!("not judged: {error:#}")],
    };
    if history.iterations() == 0 {
        return vec![NO_STEPS.to_owned()];
    }
    let verdict = Verdict::of(&history, &window, None);
    let mut lines = vec![text::capitalised(&verdict.headline)];
    if let Some(advice) = verdict.findings.first().and_then(|finding| finding.advice.first()) {
        let gain = text::gain_text(advice).map_or(String::new(), |gain| format!(" {gain}"));
        lines.push(format!("Advice: {}{gain}", wording(&advice.recommendation).change));
    }
    lines.push(match kept {
        Some(folder) => {
            let folder = folder.display();
            format!("More: farandole report {folder}, farandole timeline {folder}")
        }
        None => "More: --trace DIR keeps what farandole report and farandole timeline read".to_owned(),
    });
    lines
}

/// The steps of training, without the start of the job and its end, if any are marked.
fn steps_of(traces: &Path) -> anyhow::Result<(History, TimeWindow)> {
    let history = load::history(traces)?;
    let steps: TimeWindow = format!("iterations=0..{}", u32::MAX).parse().map_err(|why| anyhow::anyhow!("{why}"))?;
    match history.clone().cut(&steps) {
        Ok(cut) => Ok((cut, steps)),
        Err(_) => Ok((history, TimeWindow::default())),
    }
}
