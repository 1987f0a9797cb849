//! What each host is told to start, and which state machine decides: made of the job spec.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::launch::agent::STORE;
use crate::launch::elastic::{CoolDown, ElasticSettings, ElasticSupervision, FirstStrike};
use crate::launch::hosts::is_this_host;
use crate::launch::job_spec::{Alias, ElasticSpec, JobSpec, Mps};
use crate::launch::message::{ElasticStart, RankSlot, StartRanks};
use crate::launch::overseer::Overseer;
use crate::launch::results::{Results, Tasks};
use crate::launch::supervision::{MembersToStart, Settings, Supervision};
use crate::launch::{HostSource, variables};

/// Where the user says nothing of cool-downs: a process that is killed is replaced at once; what fails again and again
/// is tried after a second, then more and more seldom, up to once in a minute.
const COOL_DOWN: CoolDown =
    CoolDown { low: Duration::from_secs(1), high: Duration::from_secs(60), first: FirstStrike::Free };

/// The state machine for a job.
pub(super) fn overseer(spec: &JobSpec, task_bytes: Option<u64>, restart: u32, now: Instant) -> Box<dyn Overseer> {
    let Some(elastic) = &spec.elastic else {
        let settings = Settings {
            hosts: spec.placement.hosts().iter().map(|host| host.name.clone()).collect(),
            starts: starts(spec, task_bytes, restart),
            start_timeout: spec.start_timeout,
            silence: spec.silence,
            grace: spec.grace,
        };
        return Box::new(Supervision::new(settings, now));
    };
    let cool_down = |(low, high)| CoolDown { low, high, first: FirstStrike::Counts };
    let settings = ElasticSettings {
        hosts: elastic.hosts.clone(),
        on_one_host: is_on_one_host(elastic),
        np: elastic.np,
        min_np: elastic.min_np,
        max_np: elastic.max_np.unwrap_or(usize::MAX),
        spares: elastic.spares,
        reset_limit: elastic.reset_limit,
        replace_slow: elastic.replace_slow,
        timeout: elastic.timeout,
        cool_down: elastic.cool_down.map_or(COOL_DOWN, cool_down),
        start_timeout: spec.start_timeout,
        silence: spec.silence,
        grace: spec.grace,
    };
    Box::new(ElasticSupervision::new(settings, now))
}

/// Whether an elastic job stays on this host.
pub(super) fn is_on_one_host(elastic: &ElasticSpec) -> bool {
    elastic.source == HostSource::Fixed && matches!(&elastic.hosts[..], [only] if is_this_host(&only.name))
}

/// What each host of a job with a fixed size is told to start.
fn starts(spec: &JobSpec, task_bytes: Option<u64>, restart: u32) -> Vec<StartRanks> {
    let placement = &spec.placement;
    let slot = |&rank: &farandole_plan::Rank| {
        let place = placement.place(rank);
        RankSlot {
            rank: rank.0,
            local_rank: place.local_rank as u32,
            local_size: place.local_size as u32,
            cross_rank: place.cross_rank as u32,
            cross_size: place.cross_size as u32,
        }
    };
    let start = |host: usize| StartRanks {
        ranks: placement.ranks_on(host).iter().map(slot).collect(),
        task_bytes,
        ..order(spec, TargetHost { name: &placement.hosts()[host].name, is_local: placement.is_local(host) }, restart)
    };
    (0..placement.hosts().len()).map(start).collect()
}

/// The host that an order is for.
pub(super) struct TargetHost<'a> {
    /// As the user calls it.
    pub(super) name: &'a str,
    /// Whether it is this one.
    pub(super) is_local: bool,
}

/// What a host of an elastic job is told to start.
pub(super) fn of_members(spec: &JobSpec, host: TargetHost<'_>, wanted: MembersToStart, restart: u32) -> StartRanks {
    let MembersToStart { members, slots, addresses } = wanted;
    let elastic = spec.elastic.as_ref().map(|elastic| ElasticStart {
        min_np: elastic.min_np,
        max_np: elastic.max_np,
        timeout_ms: millis(elastic.timeout),
        slots: slots as u32,
    });
    let size = spec.elastic.as_ref().map_or(1, |elastic| elastic.np);
    StartRanks { ranks: members, size, addresses, elastic, ..order(spec, host, restart) }
}

/// An order to start nobody yet.
fn order(spec: &JobSpec, host: TargetHost<'_>, restart: u32) -> StartRanks {
    // Ranks here inherit this environment; elsewhere they get what may travel.
    let mut variables: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let travelling = variables::travelling(&spec.pass, std::env::vars_os()).into_iter();
    // Of torch's store those variables count that the user has named, here as well.
    let travelling = travelling.filter(|(name, _)| !host.is_local || STORE.iter().any(|store| name == store));
    variables.extend(travelling.map(|(n, v)| (n.as_bytes().to_vec(), v.as_bytes().to_vec())));
    if spec.alias == Alias::Horovod {
        // As `horovodrun` does; scripts of elastic jobs read it.
        variables.push((b"HOROVOD_HOSTNAME".to_vec(), host.name.as_bytes().to_vec()));
    }
    variables.extend(spec.set.iter().map(|(n, v)| (n.as_bytes().to_vec(), v.as_bytes().to_vec())));
    StartRanks {
        ranks: Vec::new(),
        size: spec.placement.size(),
        command: spec.command.iter().map(|word| word.as_bytes().to_vec()).collect(),
        working_dir: spec.working_dir.as_os_str().as_bytes().to_vec(),
        variables,
        addresses: Vec::new(),
        silence_ms: millis(spec.silence),
        task_bytes: None,
        horovod: spec.alias == Alias::Horovod,
        rendezvous_socket: spec.rendezvous_socket.as_ref().map(|path| path.as_os_str().as_bytes().to_vec()),
        ranks_per_gpu: spec.gpus.ranks_each,
        mps: spec.gpus.mps == Mps::OfTheJob,
        elastic: None,
        restart,
        store: None,
    }
}

/// What an order with a task needs. Such a job belongs to a process that waits for its results, and ends with it.
pub(super) fn task_of(spec: &JobSpec) -> Result<Option<(Tasks, Results)>> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    let Some(task) = &spec.task else { return Ok(None) };
    set_parent_process_death_signal(Some(Signal::TERM))
        .map_err(|error| Error::local("asking to be told when the caller ends", error))?;
    // A caller that ended before we asked will not be missed by the kernel again. It need not be the parent: a script
    // may stand between.
    let is_parent = getppid().is_some_and(|parent| parent.as_raw_nonzero().get() as u32 == task.caller);
    if !is_parent && !Path::new(&format!("/proc/{}", task.caller)).exists() {
        return Err(Error::Refused { why: format!("process {}, which wanted the results, has ended", task.caller) });
    }
    let tasks = Tasks::open(task).map_err(|error| Error::local(format!("reading {}", task.file.display()), error))?;
    Ok(Some((tasks, Results::into(&task.results))))
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::placement::JobPlacement;

    #[test]
    fn ranks_of_horovods_scripts_find_the_name_of_their_host() {
        let hosts = crate::launch::hosts::parse_list("h1:1,h2:1").unwrap();
        let placement = JobPlacement::fill(hosts, Some(2)).unwrap();
        let mut spec = JobSpec::new(placement, vec!["true".into()], "/".into());
        let names = |spec: &JobSpec| -> Vec<Option<std::ffi::OsString>> {
            starts(spec, None, 0).iter().map(|start| start.variable("HOROVOD_HOSTNAME")).collect()
        };
        assert!(names(&spec).iter().all(|name| name.as_deref().is_none_or(|name| name != "h2")));
        spec.alias = Alias::Horovod;
        assert_eq!(names(&spec), [Some("h1".into()), Some("h2".into())]);
        spec.set.push(("HOROVOD_HOSTNAME".into(), "mine".into()));
        assert_eq!(names(&spec), [Some("mine".into()), Some("mine".into())], "what the user sets counts");
    }
}
