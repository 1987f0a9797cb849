//! Binds the worker thread to a core, where the user names cores for it.
//!
//! One core for each rank of a host, in the order of local ranks, as Horovod's variable has them. Only the worker is
//! bound: threads of the program belong to the program.

use farandole_plan::Rank;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::config::{Config, SettingValue as _};
use crate::error::{Error, Result};

/// The core that the worker of this rank is to be bound to, if any.
pub(crate) fn core_of(config: &Config, rank: Rank, hosts: &[String]) -> Result<Option<usize>> {
    let cores = &config.thread_affinity;
    if cores.is_empty() {
        return Ok(None);
    }
    let local_rank = hosts[..rank.index()].iter().filter(|host| **host == hosts[rank.index()]).count();
    let core = cores.get(local_rank).map(|&core| core as usize).ok_or_else(|| {
        let (list, count) = (cores.show(), cores.len());
        let what =
            format!("FARANDOLE_THREAD_AFFINITY={list} names {count} cores, and none for local rank {local_rank}");
        Error::Setting(what.into())
    })?;
    if core >= CpuSet::MAX_CPU {
        return Err(refused(core, "there is no such core"));
    }
    Ok(Some(core))
}

/// Binds this thread to a core.
pub(crate) fn bind_to(core: usize) -> Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores).map_err(|error| refused(core, &error.to_string()))
}

fn refused(core: usize, why: &str) -> Error {
    Error::Setting(format!("FARANDOLE_THREAD_AFFINITY: core {core} cannot be used: {why}").into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::sched_getaffinity;

    #[test]
    fn cores_are_given_by_local_rank_and_too_few_are_an_error() {
        let hosts = ["a", "b", "a", "b"].map(str::to_owned);
        let config =
            |cores: &str| Config::from_lookup(|name| (name == "HOROVOD_THREAD_AFFINITY").then(|| cores.into()));
        let core = |cores, rank| core_of(&config(cores).unwrap(), Rank(rank), &hosts);
        assert_eq!(core("", 3).unwrap(), None);
        assert_eq!([0, 1, 2, 3].map(|rank| core("4, 7", rank).unwrap()), [Some(4), Some(4), Some(7), Some(7)]);
        let error = core("4", 2).unwrap_err().to_string();
        assert!(error.ends_with("FARANDOLE_THREAD_AFFINITY=4 names 1 cores, and none for local rank 1"), "{error}");
        assert!(core("999999", 0).unwrap_err().to_string().contains("core 999999 cannot be used"));
        assert!(config("0,x").unwrap_err().to_string().contains("HOROVOD_THREAD_AFFINITY=0,x is not a list of cores"));
    }

    #[test]
    fn a_thread_that_is_bound_runs_on_that_core_alone() {
        let allowed = sched_getaffinity(None).unwrap();
        let core = (0..CpuSet::MAX_CPU).rev().find(|&core| allowed.is_set(core)).unwrap();
        let bound = std::thread::spawn(move || {
            bind_to(core).unwrap();
            sched_getaffinity(None).unwrap()
        });
        let bound = bound.join().unwrap();
        assert!(bound.count() == 1 && bound.is_set(core));
        assert_eq!(sched_getaffinity(None).unwrap().count(), allowed.count(), "other threads are left alone");
        let absent = (0..CpuSet::MAX_CPU).rev().find(|&core| !allowed.is_set(core)).unwrap();
        assert!(bind_to(absent).unwrap_err().to_string().contains("cannot be used"));
    }
}
