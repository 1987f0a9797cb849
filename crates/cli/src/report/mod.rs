//! `farandole report`: where the time of a job went and what to change, as text, JSON or a page.
//!
//! Reads the traces of all ranks and leaves everything else to `farandole_insight`. Exit code 0: reported; 1: could not
//! be; 2: an efficiency is below what `--fail-below` asks for, so that continuous integration can tell a slow job from
//! a broken one.

pub(crate) mod load;
pub(crate) mod profile;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use farandole_insight::efficiency::Scaling;
use farandole_insight::history::TimeWindow;
use farandole_insight::report::{json, page, text};
use farandole_insight::verdict::Verdict;

use load::Loaded;

/// What the command ends with when an efficiency is too low.
const TOO_LOW: u8 = 2;

/// Say where the time of a job went, what to change, and what that would bring.
///
/// DIR holds the traces of all ranks, as `farandole run --trace DIR` leaves them. docs/insight.md says how each number
/// is computed. Of dumps that ranks have left on a stall or a failure it says who waits for what, since when, and what
/// each rank did last.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  farandole report traces
  farandole report traces --window iterations=100..200 --html report.html
  farandole report traces4 --reference traces1 --scaling strong
  farandole report traces --json --fail-below parallel-efficiency=0.8")]
pub(crate) struct ReportArgs {
    /// Folder with the traces of all ranks.
    #[arg(value_name = "DIR")]
    folder: PathBuf,

    /// Look at a part only: iterations=10..20, epochs=2, phase=evaluation, or seconds=1.5..4. Both ends are included.
    #[arg(long, value_name = "WINDOW")]
    window: Option<TimeWindow>,

    /// Of an elastic job, look at this generation, between recoveries; without it, at the one with most iterations.
    #[arg(long, value_name = "NUMBER")]
    generation: Option<u64>,

    /// Traces of another run, mostly with fewer ranks, to compare the work with.
    #[arg(long, value_name = "DIR")]
    reference: Option<PathBuf>,

    /// What was kept the same between the two runs: the batch of each rank (weak) or of all ranks together (strong).
    #[arg(long, value_name = "KIND", value_parser = ["weak", "strong"], default_value = "weak")]
    scaling: String,

    /// Print JSON (docs/report.schema.json) instead of text.
    #[arg(long)]
    json: bool,

    /// Also write a page: one file of HTML that needs nothing else.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// End with exit code 2 if an efficiency is below a value: parallel-efficiency=0.8. May be given more than once;
    /// the names are those of the report.
    #[arg(long = "fail-below", value_name = "NAME=VALUE", value_parser = floor)]
    floors: Vec<Floor>,
}

impl ReportArgs {
    /// Whether nothing is asked for that a dump of a stall or a failure does not have: it ends in the middle of a run.
    fn asks_for_no_numbers(&self) -> bool {
        let has_other_form = self.json || self.html.is_some();
        let is_about_numbers = self.window.is_some() || self.reference.is_some() || !self.floors.is_empty();
        !has_other_form && !is_about_numbers
    }
}

/// An efficiency and the least that it may be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Floor {
    name: String,
    least: f64,
}

/// Names that `--fail-below` knows.
const NAMES: [&str; 6] = [
    "parallel-efficiency",
    "load-balance",
    "communication-efficiency",
    "serialisation-efficiency",
    "own-code-efficiency",
    "transfer-efficiency",
];

fn floor(word: &str) -> std::result::Result<Floor, String> {
    let (name, value) = word.split_once('=').ok_or("write NAME=VALUE, such as parallel-efficiency=0.8")?;
    if !NAMES.contains(&name) {
        return Err(format!("there is no efficiency `{name}`; there are {}", NAMES.join(", ")));
    }
    let least = value.parse().ok().filter(|least| (0.0..=1.0).contains(least));
    least
        .map(|least| Floor { name: name.to_owned(), least })
        .ok_or_else(|| format!("`{value}`: give a number from 0 to 1"))
}

/// Reads, judges, and says it.
pub(crate) fn run(args: &ReportArgs) -> Result<ExitCode> {
    let trouble = load::trouble(&args.folder)?;
    if let Some(trouble) = trouble.as_ref().filter(|_| args.asks_for_no_numbers()) {
        std::io::stdout().write_all(trouble.to_string().as_bytes()).context("writing the report")?;
        return Ok(ExitCode::SUCCESS);
    }
    let window = args.window.clone().unwrap_or_default();
    let Loaded { history, generations } = load::job(&args.folder, args.generation)?;
    let history = history.cut(&window)?;
    let reference = args.reference.as_deref().map(load::history).transpose()?;
    let scaling = if args.scaling == "strong" { Scaling::Strong } else { Scaling::Weak };
    let mut verdict = Verdict::of(&history, &window, reference.as_ref().map(|reference| (reference, scaling)));
    verdict.generations = generations;
    if let Some(trouble) = &trouble {
        verdict.headline = trouble.headline().trim_end_matches('.').to_owned();
    }
    verdict.trouble = trouble;
    if reference.is_some() && verdict.against.is_none() {
        return Err(anyhow!(
            "the two runs cannot be compared: iterations must be marked in both, to know how much was done"
        ));
    }
    if let Some(file) = &args.html {
        std::fs::write(file, page::page(&verdict, &history))
            .with_context(|| format!("writing the page to {}", file.display()))?;
    }
    let said = if args.json { format!("{:#}\n", json::report(&verdict)) } else { text::report(&verdict) };
    std::io::stdout().write_all(said.as_bytes()).context("writing the report")?;
    Ok(judge(&args.floors, &verdict))
}

/// Whether every efficiency is as high as asked for; says which are not.
fn judge(floors: &[Floor], verdict: &Verdict) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for Floor { name, least } in floors {
        for (_, value) in verdict.efficiencies.named().into_iter().filter(|(known, _)| known == name) {
            if value < *least {
                eprintln!("farandole: {name} is {value:.3}, below {least}");
                code = ExitCode::from(TOO_LOW);
            }
        }
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floors_are_named_and_between_zero_and_one() {
        assert_eq!(floor("load-balance=0.9"), Ok(Floor { name: "load-balance".to_owned(), least: 0.9 }));
        assert!(floor("load-balance").unwrap_err().contains("NAME=VALUE"));
        assert!(floor("speed=0.9").unwrap_err().contains("parallel-efficiency"));
        assert!(floor("load-balance=80").unwrap_err().contains("from 0 to 1"));
    }

    #[test]
    fn every_efficiency_has_its_name() {
        let history = farandole_insight::history::History::default();
        let named = farandole_insight::efficiency::Efficiencies::of(&history).named();
        assert_eq!(named.map(|(name, _)| name), NAMES);
    }
}
