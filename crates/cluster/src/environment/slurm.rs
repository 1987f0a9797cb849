//! A task of a Slurm job step.
//!
//! Only `srun` starts ranks. The shell of `salloc` and the script of `sbatch` see most of the same variables, the
//! script even a `SLURM_PROCID`; but only tasks of `srun` have a `SLURM_STEP_ID`. A script that calls a program without
//! `srun` means one process.
//!
//! `SLURM_NTASKS` may be what the allocation has; `SLURM_STEP_NUM_TASKS` is the step's own and comes first.

use super::hosts;
use super::launcher::{Launch, Launcher, RankPosition, rank_and_size};
use super::variables::{Variables, wrong};
use crate::error::Result;

const PROCID: &str = "SLURM_PROCID";
const STEP_ID: &str = "SLURM_STEP_ID";
const STEP_TASKS: &str = "SLURM_STEP_NUM_TASKS";
const TASKS: &str = "SLURM_NTASKS";
const NODELIST: &str = "SLURM_STEP_NODELIST";
const TASKS_PER_NODE: &str = "SLURM_STEP_TASKS_PER_NODE";

/// Ports of meetings start here and are so many: below the range from which systems give ports to outgoing connections
/// (32768 and up), above those of common services.
const PORTS: (u16, u16) = (20_000, 10_000);

/// Whether `srun` has started this process, or an ancestor of it.
pub(super) fn is_task(variables: Variables<'_>) -> bool {
    variables.has(PROCID) && variables.has(STEP_ID)
}

pub(super) fn detect(variables: Variables<'_>) -> Result<Option<Launch>> {
    if !is_task(variables) {
        return Ok(None);
    }
    let others = "SLURM_PROCID and SLURM_STEP_ID are";
    let size = if !variables.has(STEP_TASKS) && variables.has(TASKS) { TASKS } else { STEP_TASKS };
    let (rank, size) = rank_and_size(variables, PROCID, size, others)?;
    let job: String = variables.required("SLURM_JOB_ID", "the number of a job", others)?;
    let step = variables.text(STEP_ID).unwrap_or_default();
    let hosts = match variables.text(NODELIST) {
        Some(list) => {
            hosts::expand(&list).ok_or_else(|| wrong(NODELIST, format!("'{list}' is not a list of hosts")))?
        }
        None => Vec::new(),
    };
    let node: Option<usize> = variables.value("SLURM_NODEID", "a number")?;
    let cross = node.filter(|&index| index < hosts.len()).map(|index| RankPosition { index, of: hosts.len() });
    let id = format!("{job}.{step}");
    let rendezvous = hosts.first().map(|host| hosts::address(host, port_of(&id)));
    let local = local_place(variables, node)?;
    Ok(Some(Launch { launcher: Launcher::Slurm, rank, size, local, cross, job: Some(id), attempt: None, rendezvous }))
}

/// Where in its host this task is. The numbers of tasks come as `2(x3),1`: two on each of three hosts, one on the
/// fourth.
fn local_place(variables: Variables<'_>, node: Option<usize>) -> Result<Option<RankPosition>> {
    let index: Option<usize> = variables.value("SLURM_LOCALID", "a number")?;
    let Some(counts) = variables.text(TASKS_PER_NODE) else { return Ok(None) };
    let bad = || wrong(TASKS_PER_NODE, format!("'{counts}' is not a list of numbers of tasks"));
    let of = match node {
        Some(node) => tasks_of_node(&counts, node).map_err(|_| bad())?,
        None => None,
    };
    Ok(index.zip(of).filter(|(index, of)| index < of).map(|(index, of)| RankPosition { index, of }))
}

fn tasks_of_node(counts: &str, node: usize) -> std::result::Result<Option<usize>, std::num::ParseIntError> {
    let mut before = 0usize;
    for part in counts.split(',') {
        let (tasks, nodes) = match part.trim().split_once("(x") {
            Some((tasks, nodes)) => (tasks.parse()?, nodes.trim_end_matches(')').parse()?),
            None => (part.trim().parse()?, 1usize),
        };
        before = before.saturating_add(nodes);
        if node < before {
            return Ok(Some(tasks));
        }
    }
    Ok(None)
}

/// A port that all tasks of a step compute alike and that two steps rarely share.
fn port_of(step: &str) -> u16 {
    let hash = blake3::hash(step.as_bytes());
    let [low, high, ..] = *hash.as_bytes();
    PORTS.0 + u16::from_le_bytes([low, high]) % PORTS.1
}

#[cfg(test)]
mod tests {
    use super::*;
    use farandole_plan::Rank;

    fn task(set: &[(&'static str, &str)]) -> Result<Option<Launch>> {
        let lookup =
            |name: &'static str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_string());
        detect(Variables::new(&lookup))
    }

    #[test]
    fn a_task_on_the_second_of_three_hosts_knows_its_places() {
        let set = [
            (PROCID, "3"),
            (STEP_ID, "2"),
            ("SLURM_JOB_ID", "77"),
            (STEP_TASKS, "5"),
            (TASKS, "9"),
            (NODELIST, "gpu[08-10]"),
            ("SLURM_NODEID", "1"),
            ("SLURM_LOCALID", "1"),
            (TASKS_PER_NODE, "2(x2),1"),
        ];
        let launch = task(&set).unwrap().unwrap();
        assert_eq!((launch.rank, launch.size), (Rank(3), 5));
        assert_eq!(launch.local, Some(RankPosition { index: 1, of: 2 }));
        assert_eq!(launch.cross, Some(RankPosition { index: 1, of: 3 }));
        assert_eq!(launch.job.as_deref(), Some("77.2"));
        assert_eq!(launch.rendezvous, Some(hosts::address("gpu08", port_of("77.2"))));
        assert!(!launch.is_on_one_host());
    }

    #[test]
    fn the_script_of_sbatch_and_the_shell_of_salloc_are_not_ranks() {
        let script = [(PROCID, "0"), ("SLURM_LOCALID", "0"), (TASKS, "2"), ("SLURM_JOB_ID", "77")];
        assert_eq!(task(&script).unwrap(), None);
        assert_eq!(task(&script[2..]).unwrap(), None);
    }

    #[test]
    fn tasks_of_each_host_are_counted() {
        let of = |counts, node| tasks_of_node(counts, node);
        assert_eq!(
            [0, 1, 2, 3, 4].map(|node| of("2(x3),1", node)),
            [Ok(Some(2)), Ok(Some(2)), Ok(Some(2)), Ok(Some(1)), Ok(None)]
        );
        assert!(of("2(x", 0).is_err() && of("two", 0).is_err());
    }

    #[test]
    fn ports_stay_in_their_range() {
        for step in 0..1000 {
            assert!((20_000..30_000).contains(&port_of(&format!("1.{step}"))));
        }
    }
}
