//! Which GPU each rank of this host is to use: [`GpuPlan`].
//!
//! Without a word from the user nothing is hidden: every rank sees all GPUs that the user lets it see, and takes the
//! one of its local rank, as scripts for Horovod do. Where several ranks are to share a GPU (`--ranks-per-gpu`), there
//! are more local ranks than GPUs; then each rank sees only its own, so that nobody has to know how they are shared.
//!
//! The invariant: a rank's GPU follows from its local rank and from what the user lets this host's ranks see. Each
//! agent looks at its own host.

use crate::error::{Error, Result};
use crate::launch::gpus::{CUDA_VISIBLE_DEVICES, VisibleGpus};
use crate::launch::message::{RankSlot, StartRanks};

/// The variable that tells ranks how many of a host are meant to have the same GPU.
pub(super) const RANKS_PER_GPU: &str = farandole_settings::RANKS_PER_GPU.name;

/// See the module's text.
#[derive(Clone, Debug)]
pub(super) struct GpuPlan {
    gpus: VisibleGpus,
    /// How many ranks have the same GPU; zero: there is none.
    ranks_each: usize,
    hide_others: bool,
    /// Whether numbers of GPUs count those of an MPS daemon.
    mps: bool,
}

impl GpuPlan {
    /// The plan for these ranks.
    ///
    /// # Errors
    /// If the user has said how ranks share GPUs, and there are not enough.
    pub(super) fn new(start: &StartRanks, gpus: &VisibleGpus) -> Result<GpuPlan> {
        let ranks = start.room();
        let none = |flag: String| Error::job_spec(flag, format!("there is {}", gpus.described()));
        if let Some(each) = start.ranks_per_gpu {
            let flag = || format!("--ranks-per-gpu {each}");
            let room = gpus.count() * each as usize;
            if room == 0 {
                return Err(none(flag()));
            }
            if ranks > room {
                let problem = format!("{ranks} ranks, and room for {room} on {}", gpus.described());
                return Err(Error::job_spec(flag(), problem));
            }
        }
        if start.mps && gpus.count() == 0 {
            return Err(none("--mps".to_owned()));
        }
        let spread = if gpus.count() == 0 { 0 } else { ranks.div_ceil(gpus.count()) };
        let ranks_each = start.ranks_per_gpu.map_or(spread, |each| each as usize);
        let gpus = if start.mps { gpus.under_mps() } else { gpus.clone() };
        Ok(GpuPlan { gpus, ranks_each, hide_others: start.ranks_per_gpu.is_some_and(|each| each > 1), mps: start.mps })
    }

    /// What a rank has to find in its environment.
    pub(super) fn variables_of(&self, slot: &RankSlot, start: &StartRanks) -> Vec<(&'static str, String)> {
        let mut variables = Vec::new();
        if self.ranks_each == 0 {
            return variables;
        }
        variables.push((RANKS_PER_GPU, self.ranks_each.to_string()));
        if self.hide_others {
            let own = slot.local_rank as usize / self.ranks_each;
            variables.push((CUDA_VISIBLE_DEVICES, self.gpus.name(own).to_owned()));
        } else if self.mps && start.variable(CUDA_VISIBLE_DEVICES).is_some() {
            variables.push((CUDA_VISIBLE_DEVICES, self.gpus.names()));
        }
        variables
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn start(ranks: u32, ranks_per_gpu: Option<u32>, mps: bool, visible: Option<&str>) -> StartRanks {
        let slot = |local_rank| RankSlot { rank: local_rank, local_rank, local_size: ranks, ..RankSlot::default() };
        let variables = visible.map(|list| (CUDA_VISIBLE_DEVICES.into(), list.into())).into_iter().collect();
        StartRanks { ranks: (0..ranks).map(slot).collect(), ranks_per_gpu, mps, variables, ..StartRanks::default() }
    }

    /// What the ranks of such an order find, on a host with these GPUs.
    fn planned(start: &StartRanks, gpus: &str) -> Result<Vec<String>> {
        let variable = |name: &str| match name {
            "FARANDOLE_TEST_GPUS" => Some(OsString::from(gpus)),
            CUDA_VISIBLE_DEVICES => {
                start.variables.first().map(|(_, list)| String::from_utf8_lossy(list).as_ref().into())
            }
            _ => None,
        };
        let plan = GpuPlan::new(start, &VisibleGpus::of_this_host(variable, &mut || {}))?;
        let shown = |slot| {
            let pairs = plan.variables_of(slot, start).into_iter();
            pairs.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
        };
        Ok(start.ranks.iter().map(shown).collect())
    }

    #[test]
    fn nothing_is_hidden_from_ranks_unless_they_are_to_share() {
        let plan = |start| planned(&start, "GPU-a,GPU-b").unwrap();
        assert_eq!(plan(start(2, None, false, None)), ["FARANDOLE_RANKS_PER_GPU=1"; 2]);
        assert_eq!(plan(start(2, Some(1), false, Some("1,0"))), ["FARANDOLE_RANKS_PER_GPU=1"; 2]);
        assert_eq!(plan(start(3, None, false, None)), ["FARANDOLE_RANKS_PER_GPU=2"; 3]);
        assert_eq!(
            planned(&start(2, None, false, None), "").unwrap(),
            ["", ""],
            "without GPUs there is nothing to say"
        );
    }

    #[test]
    fn ranks_that_share_see_their_own_gpu_by_the_name_that_the_user_gave_it() {
        let plan = |visible| planned(&start(4, Some(2), false, visible), "GPU-a,GPU-b,GPU-c").unwrap();
        let named =
            |names: [&str; 4]| names.map(|name| format!("FARANDOLE_RANKS_PER_GPU=2 CUDA_VISIBLE_DEVICES={name}"));
        assert_eq!(plan(None), named(["GPU-a", "GPU-a", "GPU-b", "GPU-b"]));
        assert_eq!(plan(Some("2,0")), named(["2", "2", "0", "0"]));
    }

    #[test]
    fn under_mps_numbers_count_what_the_daemon_sees() {
        let plan = |each, visible| planned(&start(2, each, true, visible), "GPU-a,GPU-b").unwrap();
        assert_eq!(plan(Some(2), Some("1")), ["FARANDOLE_RANKS_PER_GPU=2 CUDA_VISIBLE_DEVICES=0"; 2]);
        assert_eq!(plan(None, Some("1,0")), ["FARANDOLE_RANKS_PER_GPU=1 CUDA_VISIBLE_DEVICES=0,1"; 2]);
        assert_eq!(plan(None, None), ["FARANDOLE_RANKS_PER_GPU=1"; 2]);
    }

    #[test]
    fn too_few_gpus_are_named_with_what_hides_the_others() {
        let why = |start, gpus| planned(&start, gpus).unwrap_err().to_string();
        assert_eq!(why(start(2, Some(2), false, None), ""), "--ranks-per-gpu 2: there is no NVIDIA GPU");
        assert_eq!(why(start(1, None, true, None), ""), "--mps: there is no NVIDIA GPU");
        let hidden = why(start(3, Some(2), false, Some("0")), "GPU-a,GPU-b");
        assert_eq!(hidden, "--ranks-per-gpu 2: 3 ranks, and room for 2 on 1 GPU (CUDA_VISIBLE_DEVICES=0)");
    }
}
