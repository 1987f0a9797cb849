//! Who has started this process, and as which rank: one function for each launcher.
//!
//! Launchers nest. `mpirun` inside a Slurm job starts its daemons through `srun`, so its ranks carry Slurm's variables
//! as well as its own; a script under Slurm may start torchrun; and any of them may start `farandole run`. The launcher
//! that started this very process is the innermost one. So the order of [`detect`] is by what is likely to be started
//! inside of what:
//!
//! 1. `FARANDOLE_` variables: somebody meant us.
//! 2. Horovod's variables: somebody meant a program like ours.
//! 3. torchrun. Its `RANK` and `WORLD_SIZE` are everybody's words, so one of them alone is not taken for a launch while
//!    another launcher explains the process: scripts for Slurm export `WORLD_SIZE` and `MASTER_ADDR` by hand.
//! 4. Open MPI, then MPICH and its kin (Hydra), which also run inside Slurm.
//! 5. Slurm's `srun`.
//!
//! Of every launcher all that it must set is demanded once anything says that it was there. How ranks then find each
//! other is not decided here.

use std::fmt;
use std::net::IpAddr;

use farandole_plan::Rank;
use farandole_transport::JobId;

use super::variables::{Variables, wrong};
use super::{CROSS_RANK, CROSS_SIZE, LOCAL_RANK, LOCAL_SIZE, RANK, RENDEZVOUS, SIZE, hosts, slurm};
use crate::error::Result;
use crate::rendezvous::Address;

/// What started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// Nobody that we know: the process is a world of its own.
    Nobody,
    /// Whoever sets `FARANDOLE_` variables: our own launcher, or somebody by hand.
    Farandole,
    /// Whoever sets `HOROVOD_` variables.
    Horovod,
    /// PyTorch's `torchrun`, or somebody who sets its variables.
    Torchrun,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// MPICH's `mpirun`, or another one that is built on Hydra.
    Mpich,
    /// Slurm's `srun`.
    Slurm,
    /// Whatever it was: the ranks know each other through a store.
    Store,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::Nobody => "no launcher",
            Launcher::Farandole => "farandole's variables",
            Launcher::Horovod => "Horovod's variables",
            Launcher::Torchrun => "torchrun",
            Launcher::OpenMpi => "Open MPI's mpirun",
            Launcher::Mpich => "MPICH's mpirun",
            Launcher::Slurm => "Slurm's srun",
            Launcher::Store => "torch.distributed's store",
        })
    }
}

/// A position in a row: the how manieth of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankPosition {
    /// From zero.
    pub index: usize,
    /// How many there are.
    pub of: usize,
}

/// What a launcher has said.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Launch {
    pub(super) launcher: Launcher,
    pub(super) rank: Rank,
    pub(super) size: usize,
    /// This rank among those of its host, where the launcher says so.
    pub(super) local: Option<RankPosition>,
    /// This rank's host among the hosts, where the launcher says so.
    pub(super) cross: Option<RankPosition>,
    /// What all ranks of this job have in common, on all hosts, and no other job has at the same time. `None`: nothing
    /// that a rank knows by itself; on one host the process that started them will have to do.
    pub(super) job: Option<String>,
    /// Tells one start of the job from the next, where the launcher starts it again and again. The same on one host
    /// only: each agent of torchrun counts for itself.
    pub(super) attempt: Option<String>,
    /// Where rank 0 can be met from other hosts, where the launcher says so.
    pub(super) rendezvous: Option<Address>,
}

/// What the ranks of a job have told each other through a store that they share. Nothing of it is a secret: a store
/// answers whoever asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreRank {
    /// This process's rank.
    pub rank: Rank,
    /// How many ranks there are, above `rank`.
    pub size: usize,
    /// A word that all ranks have in common and no other job has: rank 0 made it up.
    pub job: String,
    /// Where rank 0 can be met, if ranks are on several hosts.
    pub rank_zero: Option<Address>,
}

impl StoreRank {
    pub(super) fn launch(self) -> Launch {
        let StoreRank { rank, size, job, rank_zero: rendezvous } = self;
        let on_one_host = rendezvous.is_none();
        let local = on_one_host.then_some(RankPosition { index: rank.index(), of: size });
        let (launcher, job) = (Launcher::Store, Some(job));
        Launch { launcher, rank, size, local, cross: None, job, attempt: None, rendezvous }
    }
}

impl Launch {
    /// What this job is called, for those who meet it: no other job of the same launcher has this name.
    pub(super) fn job_id(&self) -> Option<JobId> {
        let job = self.job.as_ref()?;
        Some(JobId::named(&match self.launcher {
            Launcher::Slurm => format!("Slurm step {job}"),
            Launcher::OpenMpi => format!("mpirun {job}"),
            Launcher::Torchrun => format!("torchrun {job}"),
            Launcher::Horovod => format!("horovodrun {job}"),
            Launcher::Nobody | Launcher::Farandole | Launcher::Mpich | Launcher::Store => job.clone(),
        }))
    }

    /// Whether the launcher has said that all ranks are on this host.
    pub(super) fn is_on_one_host(&self) -> bool {
        self.local.is_some_and(|local| local.of == self.size) || self.cross.is_some_and(|cross| cross.of == 1)
    }
}

/// The innermost launcher that has left its mark; `None` without any.
pub(super) fn detect(variables: Variables<'_>) -> Result<Option<Launch>> {
    let detectors = [farandole, horovod, torchrun, open_mpi, mpich, slurm::detect];
    for detector in detectors {
        if let Some(launch) = detector(variables)? {
            return Ok(Some(launch));
        }
    }
    leftovers(variables)?;
    Ok(None)
}

/// Pieces of a launch that nobody above can make anything of. Running alone would hide the mistake.
fn leftovers(variables: Variables<'_>) -> Result<()> {
    let (rank, size, address) = (variables.has("RANK"), variables.has("WORLD_SIZE"), variables.has("MASTER_ADDR"));
    if variables.has(RENDEZVOUS) {
        return Err(wrong(SIZE, format!("is not set, though {RENDEZVOUS} is: a launcher sets all of them")));
    }
    if rank && address && !size {
        return Err(wrong("WORLD_SIZE", "is not set, though RANK and MASTER_ADDR are: torchrun sets all of them"));
    }
    if size && !rank {
        return Err(wrong(
            "RANK",
            "is not set, though WORLD_SIZE is: torchrun sets both; to run alone, unset WORLD_SIZE",
        ));
    }
    Ok(())
}

fn farandole(variables: Variables<'_>) -> Result<Option<Launch>> {
    if !variables.has(RANK) && !variables.has(SIZE) {
        return Ok(None);
    }
    let others = "other FARANDOLE_ variables are";
    let (rank, size) = rank_and_size(variables, RANK, SIZE, others)?;
    Ok(Some(Launch {
        launcher: Launcher::Farandole,
        rank,
        size,
        local: place(variables, LOCAL_RANK, LOCAL_SIZE)?,
        cross: place(variables, CROSS_RANK, CROSS_SIZE)?,
        job: None,
        attempt: None,
        rendezvous: None,
    }))
}

fn horovod(variables: Variables<'_>) -> Result<Option<Launch>> {
    if !variables.has("HOROVOD_RANK") && !variables.has("HOROVOD_SIZE") {
        return Ok(None);
    }
    let (rank, size) = rank_and_size(variables, "HOROVOD_RANK", "HOROVOD_SIZE", "other HOROVOD_ variables are")?;
    let server = ["HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"].map(|name| variables.text(name));
    let job = match server {
        [Some(address), Some(port)] => Some(format!("{address} {port}")),
        _ => None,
    };
    Ok(Some(Launch {
        launcher: Launcher::Horovod,
        rank,
        size,
        local: place(variables, "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE")?,
        cross: place(variables, "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE")?,
        job,
        attempt: None,
        rendezvous: None,
    }))
}

/// torchrun, and those who set its variables by hand or by an operator of Kubernetes, without the ones about the host.
fn torchrun(variables: Variables<'_>) -> Result<Option<Launch>> {
    let by_torchrun = variables.has("TORCHELASTIC_RUN_ID");
    let by_hand = variables.has("RANK") && variables.has("WORLD_SIZE");
    if !by_torchrun && !by_hand {
        return Ok(None);
    }
    let (rank, size) = rank_and_size(variables, "RANK", "WORLD_SIZE", "other variables of torchrun are")?;
    let mut local = place(variables, "LOCAL_RANK", "LOCAL_WORLD_SIZE")?;
    let address = variables.text("MASTER_ADDR");
    let port: Option<u16> = variables.value("MASTER_PORT", "a port")?;
    if local.is_none() && address.as_deref().is_some_and(is_loopback) {
        local = Some(RankPosition { index: rank.index(), of: size });
    }
    // Not the address: the master itself may be told that it is localhost.
    let run = variables.text("TORCHELASTIC_RUN_ID").map(|run| format!("run {run}"));
    let job: Vec<String> = run.into_iter().chain(port.map(|port| format!("port {port}"))).collect();
    let job = (!job.is_empty()).then(|| job.join(", "));
    let attempt = variables.text("TORCHELASTIC_RESTART_COUNT");
    // The port itself is taken: torchrun, or the first rank of a program that uses torch.distributed, serves its store
    // there.
    let next = |port: u16| port.checked_add(1).unwrap_or(port - 1);
    let rendezvous = address.zip(port).map(|(host, port)| hosts::address(&host, next(port)));
    let cross = place(variables, "GROUP_RANK", "GROUP_WORLD_SIZE")?;
    Ok(Some(Launch { launcher: Launcher::Torchrun, rank, size, local, cross, job, attempt, rendezvous }))
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn open_mpi(variables: Variables<'_>) -> Result<Option<Launch>> {
    let names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
    if !variables.has(names.0) && !variables.has(names.1) {
        return Ok(None);
    }
    let (rank, size) = rank_and_size(variables, names.0, names.1, "other variables of Open MPI are")?;
    Ok(Some(Launch {
        launcher: Launcher::OpenMpi,
        rank,
        size,
        local: place(variables, "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")?,
        cross: None,
        job: variables.text("PMIX_NAMESPACE").or_else(|| variables.text("OMPI_MCA_ess_base_jobid")),
        attempt: None,
        rendezvous: None,
    }))
}

/// Hydra, which starts the ranks of MPICH and of Intel MPI. `srun --mpi=pmi2` sets the same two variables for libraries
/// that want them; there it is Slurm that has started us and knows more.
fn mpich(variables: Variables<'_>) -> Result<Option<Launch>> {
    let (rank, size) = (variables.has("PMI_RANK"), variables.has("PMI_SIZE"));
    let through_slurm = slurm::is_task(variables) && !variables.has("MPI_LOCALRANKID");
    if !rank && !size || through_slurm {
        return Ok(None);
    }
    let (rank, size) = rank_and_size(variables, "PMI_RANK", "PMI_SIZE", "other variables of MPICH are")?;
    let local = place(variables, "MPI_LOCALRANKID", "MPI_LOCALNRANKS")?;
    Ok(Some(Launch {
        launcher: Launcher::Mpich,
        rank,
        size,
        local,
        cross: None,
        job: None,
        attempt: None,
        rendezvous: None,
    }))
}

/// The rank and the number of ranks, which must be there and fit each other.
pub(super) fn rank_and_size(
    variables: Variables<'_>,
    rank: &'static str,
    size: &'static str,
    others: &str,
) -> Result<(Rank, usize)> {
    let count: usize = variables.required(size, "a number of ranks", others)?;
    let index: u32 = variables.required(rank, "a rank", others)?;
    if count == 0 || index as usize >= count {
        return Err(wrong(rank, format!("there is no rank {index} among {count}; ranks count from 0")));
    }
    Ok((Rank(index), count))
}

/// A place that a launcher may give; half of it is as good as nothing, nonsense is an error.
fn place(variables: Variables<'_>, index: &'static str, of: &'static str) -> Result<Option<RankPosition>> {
    let (Some(place), Some(count)) = (variables.value(index, "a number")?, variables.value(of, "a number")?) else {
        return Ok(None);
    };
    if place >= count {
        return Err(wrong(index, format!("{place} is not below {count}, which {of} says")));
    }
    Ok(Some(RankPosition { index: place, of: count }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    fn launch(set: &[(&'static str, &str)]) -> Result<Option<Launch>> {
        let lookup =
            |name: &'static str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_string());
        detect(Variables::new(&lookup))
    }

    fn found(set: &[(&'static str, &str)]) -> Launch {
        launch(set).unwrap().expect("a launcher is found")
    }

    const OPEN_MPI: [(&str, &str); 5] = [
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ("PMIX_NAMESPACE", "12@1"),
    ];

    const TORCHRUN: [(&str, &str); 7] = [
        ("RANK", "3"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "node-7"),
        ("MASTER_PORT", "29500"),
        ("TORCHELASTIC_RUN_ID", "none"),
    ];

    const SLURM: [(&str, &str); 5] = [
        ("SLURM_PROCID", "0"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_JOB_ID", "7"),
        ("SLURM_STEP_NUM_TASKS", "2"),
        ("SLURM_STEP_NODELIST", "n[1-2]"),
    ];

    #[test]
    fn each_launcher_is_known_by_its_variables() {
        let mpi = found(&OPEN_MPI);
        assert_eq!((mpi.launcher, mpi.rank, mpi.size), (Launcher::OpenMpi, Rank(1), 4));
        assert_eq!((mpi.local, mpi.job.as_deref()), (Some(RankPosition { index: 1, of: 2 }), Some("12@1")));
        assert!(!mpi.is_on_one_host());
        let torch = found(&TORCHRUN);
        assert_eq!((torch.launcher, torch.rank, torch.size), (Launcher::Torchrun, Rank(3), 4));
        assert_eq!(torch.rendezvous, Some(Address::Tcp("node-7:29501".into())));
        assert_eq!(torch.job_id().unwrap().as_str(), "torchrun run none, port 29500");
        assert_eq!(mpi.job_id().unwrap().as_str(), "mpirun 12@1");
        let hydra = found(&[("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "0"), ("MPI_LOCALNRANKS", "2")]);
        assert_eq!((hydra.launcher, hydra.size, hydra.job.clone()), (Launcher::Mpich, 2, None));
        assert!(hydra.is_on_one_host());
        let horovod = found(&[
            ("HOROVOD_RANK", "1"),
            ("HOROVOD_SIZE", "2"),
            ("HOROVOD_CROSS_RANK", "0"),
            ("HOROVOD_CROSS_SIZE", "1"),
        ]);
        assert_eq!((horovod.launcher, horovod.rank), (Launcher::Horovod, Rank(1)));
        assert!(horovod.is_on_one_host());
        assert_eq!(found(&SLURM).launcher, Launcher::Slurm);
        assert_eq!(found(&SLURM).job_id().unwrap().as_str(), "Slurm step 7.0");
        assert_eq!(hydra.job_id(), None);
        assert_eq!(launch(&[]).unwrap(), None);
    }

    #[test]
    fn ranks_of_a_job_agree_on_its_name_although_their_hosts_count_restarts_differently() {
        let rank = |own: [(&'static str, &str); 2]| found(&[&TORCHRUN[..], &own].concat()).job_id();
        let first = rank([("TORCHELASTIC_RESTART_COUNT", "0"), ("GROUP_RANK", "0")]);
        assert_eq!(first, rank([("TORCHELASTIC_RESTART_COUNT", "2"), ("GROUP_RANK", "1")]));
        let hand = |address| [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", address), ("MASTER_PORT", "1234")];
        assert_eq!(found(&hand("localhost")).job_id(), found(&hand("master-0")).job_id());
    }

    #[test]
    fn the_innermost_launcher_counts() {
        assert_eq!(found(&[&SLURM[..], &OPEN_MPI].concat()).launcher, Launcher::OpenMpi);
        assert_eq!(found(&[&SLURM[..], &TORCHRUN].concat()).launcher, Launcher::Torchrun);
        let ours = [(RANK, "0"), (SIZE, "1")];
        assert_eq!(found(&[&SLURM[..], &OPEN_MPI, &TORCHRUN, &ours].concat()).launcher, Launcher::Farandole);
    }

    #[test]
    fn words_of_torchrun_that_a_slurm_script_exports_do_not_hide_slurm() {
        let exported = [("WORLD_SIZE", "2"), ("MASTER_ADDR", "n1"), ("MASTER_PORT", "12345")];
        assert_eq!(found(&[&SLURM[..], &exported].concat()).launcher, Launcher::Slurm);
    }

    #[test]
    fn pmi_variables_that_srun_sets_do_not_hide_slurm() {
        let pmi = [("PMI_RANK", "0"), ("PMI_SIZE", "2")];
        assert_eq!(found(&[&SLURM[..], &pmi].concat()).launcher, Launcher::Slurm);
        let hydra = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "0")];
        assert_eq!(found(&[&SLURM[..], &hydra].concat()).launcher, Launcher::Mpich);
    }

    #[test]
    fn variables_of_torchrun_set_by_hand_for_one_host_need_no_local_ones() {
        let hand = |address| [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", address), ("MASTER_PORT", "65535")];
        assert!(found(&hand("localhost")).is_on_one_host());
        assert!(found(&hand("::1")).is_on_one_host());
        assert!(!found(&hand("fd00::7")).is_on_one_host());
        assert_eq!(found(&hand("fd00::7")).rendezvous, Some(Address::Tcp("[fd00::7]:65534".into())));
    }

    #[test]
    fn half_a_launch_is_a_mistake_that_names_the_variable() {
        for (set, named) in [
            (&[("HOROVOD_RANK", "0")][..], "HOROVOD_SIZE"),
            (&[("HOROVOD_SIZE", "2")], "HOROVOD_RANK"),
            (&[("TORCHELASTIC_RUN_ID", "x"), ("RANK", "0")], "WORLD_SIZE"),
            (&[("TORCHELASTIC_RUN_ID", "x"), ("WORLD_SIZE", "2")], "RANK"),
            (&[("WORLD_SIZE", "2")], "RANK"),
            (&[("RANK", "1"), ("MASTER_ADDR", "n1")], "WORLD_SIZE"),
            (&[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_PORT", "70000")], "MASTER_PORT"),
            (&[("OMPI_COMM_WORLD_RANK", "0")], "OMPI_COMM_WORLD_SIZE"),
            (&[("OMPI_COMM_WORLD_SIZE", "2")], "OMPI_COMM_WORLD_RANK"),
            (&[("PMI_RANK", "0")], "PMI_SIZE"),
            (&[("PMI_SIZE", "2")], "PMI_RANK"),
            (&[("PMI_SIZE", "2"), ("PMI_RANK", "2")], "PMI_RANK"),
            (
                &[("PMI_SIZE", "2"), ("PMI_RANK", "0"), ("MPI_LOCALRANKID", "2"), ("MPI_LOCALNRANKS", "2")],
                "MPI_LOCALRANKID",
            ),
            (&[("SLURM_PROCID", "0"), ("SLURM_STEP_ID", "0"), ("SLURM_JOB_ID", "1")], "SLURM_STEP_NUM_TASKS"),
            (&[("SLURM_PROCID", "0"), ("SLURM_STEP_ID", "0"), ("SLURM_NTASKS", "2")], "SLURM_JOB_ID"),
        ] {
            match launch(set) {
                Err(Error::Environment { variable, .. }) => assert_eq!(variable, named, "{set:?}"),
                other => panic!("{set:?}: {other:?}"),
            }
        }
        assert_eq!(launch(&[("RANK", "first"), ("LOCAL_RANK", "1")]).unwrap(), None, "a word that anybody may use");
    }

    #[test]
    fn ranks_of_a_store_meet_on_their_host_or_at_rank_zero() {
        let known = |rank_zero| StoreRank { rank: Rank(1), size: 2, job: "w".into(), rank_zero };
        let here = known(None).launch();
        assert!(here.is_on_one_host() && here.job_id().unwrap().as_str() == "w");
        let apart = known(Some(Address::Tcp("h:1".into()))).launch();
        assert!(!apart.is_on_one_host() && apart.rendezvous == Some(Address::Tcp("h:1".into())));
    }
}
