//! One rank of `farandole train`.

use std::process::ExitCode;

use anyhow::{Context, Result};
use farandole_train::job::TrainJob;
use farandole_train::{Ended, Failed, limit_threads};

use crate::doctor::usable_cores;

/// Trains as a rank of the job that this process was started in. What went wrong is said once for the whole job, if all
/// ranks know it.
pub(crate) fn serve(words: &str) -> Result<ExitCode> {
    let job: TrainJob = serde_json::from_str(words).context("this is started by `farandole train`, with a job")?;
    let variable = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<usize>().ok());
    let shared = (usable_cores() / variable("FARANDOLE_LOCAL_SIZE").unwrap_or(1).max(1)).max(1);
    let count = job.threads.or_else(|| variable("RAYON_NUM_THREADS")).filter(|count| *count > 0).unwrap_or(shared);
    limit_threads(count);
    let rank = variable("FARANDOLE_RANK").unwrap_or(0);
    match farandole_train::run(&job, count) {
        Ok(Ended::Complete | Ended::Stopped) => Ok(ExitCode::SUCCESS),
        Err(Failed { error, rank: last }) => {
            // In an elastic job ranks are numbered anew.
            let rank = last.unwrap_or(rank);
            if error.is_to_be_said_by(rank) {
                let who = if rank == 0 { String::new() } else { format!("rank {rank}: ") };
                eprintln!("farandole: {who}{error}");
            }
            Ok(ExitCode::FAILURE)
        }
    }
}
