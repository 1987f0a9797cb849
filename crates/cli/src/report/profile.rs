//! `farandole profile`: messages by size, of one run or of two side by side.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use farandole_insight::history::{History, TimeWindow};
use farandole_insight::profile::{DEFAULT_BOUNDS_BYTES, Filter, Profile, ProfileView, collectives, groups};
use farandole_insight::report::table;
use farandole_trace::event::Collective;

use super::load;
use crate::bench::sizes::Sizes;

/// Sort the messages of a job by size: how many, how large, how long, at which bandwidth.
///
/// With two runs, both side by side and by how much the second takes less time.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  farandole profile traces
  farandole profile before after --bins 64K,1M,16M
  farandole profile traces --unfused --collective allreduce")]
pub(crate) struct ProfileArgs {
    /// Folder with the traces of all ranks.
    #[arg(value_name = "A")]
    first: PathBuf,

    /// Folder with the traces of another run.
    #[arg(value_name = "B")]
    second: Option<PathBuf>,

    /// Count tensors as they were submitted, instead of buckets as they travelled.
    #[arg(long)]
    unfused: bool,

    /// Only this collective.
    #[arg(long, value_name = "NAME", value_parser = collective)]
    collective: Option<Collective>,

    /// Only this group (process set); 0 is the world.
    #[arg(long, value_name = "NUMBER")]
    group: Option<u32>,

    /// Also one table for each collective and each group.
    #[arg(long)]
    each: bool,

    /// Upper bounds of the bins, included.
    #[arg(long, value_name = "SIZES")]
    bins: Option<Sizes>,

    /// Look at a part only, as in `farandole report`.
    #[arg(long, value_name = "WINDOW")]
    window: Option<TimeWindow>,
}

fn collective(word: &str) -> std::result::Result<Collective, String> {
    let found = Collective::ALL.iter().copied().find(|known| known.word() == word);
    found.ok_or_else(|| {
        let known: Vec<&str> = Collective::ALL.iter().map(|known| known.word()).collect();
        format!("there is no collective `{word}`; there are {}", known.join(", "))
    })
}

/// Reads, sorts, prints.
pub(crate) fn run(args: &ProfileArgs) -> Result<()> {
    let window = args.window.clone().unwrap_or_default();
    let read = |folder: &PathBuf| -> Result<History> { Ok(load::history(folder)?.cut(&window)?) };
    let first = read(&args.first)?;
    let second = args.second.as_ref().map(read).transpose()?;
    let filter = Filter { collective: args.collective, group: args.group };
    let mut text = tables(args, &first, second.as_ref(), filter);
    if args.each {
        for collective in collectives(&first) {
            let only = Filter { collective: Some(collective), ..filter };
            text += &format!("\n{}\n{}", collective.word(), tables(args, &first, second.as_ref(), only));
        }
        for (group, ranks) in groups(&first) {
            let only = Filter { group: Some(group), ..filter };
            text += &format!("\ngroup {group}, {ranks} ranks\n{}", tables(args, &first, second.as_ref(), only));
        }
    }
    std::io::stdout().write_all(text.as_bytes()).context("writing the profile")
}

fn tables(args: &ProfileArgs, first: &History, second: Option<&History>, filter: Filter) -> String {
    let view = if args.unfused { ProfileView::Unfused } else { ProfileView::Fused };
    let mut bounds = args.bins.as_ref().map_or_else(|| DEFAULT_BOUNDS_BYTES.to_vec(), |sizes| sizes.0.clone());
    bounds.sort_unstable();
    bounds.dedup();
    let profile = |history| Profile::of(history, view, filter, &bounds);
    match second {
        None => table::one(&profile(first)),
        Some(second) => table::two(&profile(first), &profile(second)),
    }
}
