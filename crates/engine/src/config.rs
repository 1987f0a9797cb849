//! The settings of an engine: for each a field, its type and its line in the table of settings (`farandole_settings`),
//! which has variables and default. The settings of all ranks must agree where they decide what fuses with what; ranks
//! that differ there find out when they first replay an order, and say so.

use std::time::Duration;

use farandole_plan::plane::DeviceReach;
pub use farandole_settings::{Cores, SettingValue};
use farandole_transport::Protection;

use crate::error::{Error, Result};

/// How collectives on tensors in device memory are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DevicePlaneChoice {
    /// In device memory where the ranks map each other's, by NCCL where they do not and all ranks have it.
    Auto,
    /// In device memory, which the ranks map.
    Own,
    /// By NCCL.
    Nccl,
    /// By NCCL where all ranks have it, otherwise as [`DevicePlaneChoice::Auto`]: what Horovod's name for it means.
    PreferNccl,
    /// Through host memory.
    Staged,
}

impl DevicePlaneChoice {
    /// The last is not to be written, only shown.
    const WORDS: [(DevicePlaneChoice, &'static str); 5] = [
        (DevicePlaneChoice::Auto, "auto"),
        (DevicePlaneChoice::Own, "own"),
        (DevicePlaneChoice::Nccl, "nccl"),
        (DevicePlaneChoice::Staged, "staged"),
        (DevicePlaneChoice::PreferNccl, "NCCL where all ranks have it"),
    ];

    /// Whether ranks of one host may map each other's device memory. CUDA's handles contain pids, so the driver may
    /// refuse them across PID namespaces; there only `own` maps.
    pub(crate) fn may_map(self, has_common_pids: bool) -> bool {
        has_common_pids || self == DevicePlaneChoice::Own
    }

    /// What a group has for device memory, if all its ranks map each other's, if those of each host do, and if they
    /// have NCCL.
    pub(crate) fn reach(self, maps: bool, maps_on_hosts: bool, has_nccl: bool) -> DeviceReach {
        let own = maps && self != DevicePlaneChoice::Staged;
        let across = maps_on_hosts && self != DevicePlaneChoice::Staged;
        let nccl = has_nccl && !matches!(self, DevicePlaneChoice::Own | DevicePlaneChoice::Staged);
        let prefers_nccl = matches!(self, DevicePlaneChoice::Nccl | DevicePlaneChoice::PreferNccl);
        DeviceReach { own, across, nccl, prefers_nccl }
    }
}

impl SettingValue for DevicePlaneChoice {
    fn parse(text: &str) -> Option<DevicePlaneChoice> {
        Self::WORDS[..4].iter().find(|(_, word)| word.eq_ignore_ascii_case(text)).map(|(choice, _)| *choice)
    }

    fn show(&self) -> String {
        Self::WORDS.iter().filter(|(choice, _)| choice == self).map(|(_, word)| *word).collect()
    }
}

macro_rules! settings {
    ($($(#[doc = $text:literal])+ $name:ident: $kind:ty = $setting:ident;)+) => {
        /// The settings of one engine.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Config {
            $($(#[doc = $text])+ pub $name: $kind,)+
        }

        impl Default for Config {
            fn default() -> Config {
                Config { $($name: farandole_settings::$setting.default_value(),)+ }
            }
        }

        impl Config {
            /// The defaults, changed by what `lookup` finds under the settings' variables.
            pub fn from_lookup(lookup: impl Fn(&'static str) -> Option<String>) -> Result<Config> {
                let wrong = |wrong: farandole_settings::Wrong| Error::Setting(wrong.to_string().into());
                Ok(Config { $($name: farandole_settings::$setting.read(&lookup).map_err(wrong)?,)+ })
            }

            /// Every setting by name, as it would be written.
            pub fn shown(&self) -> Vec<(String, String)> {
                vec![$((stringify!($name).to_owned(), self.$name.show()),)+]
            }
        }
    };
}

settings! {
    /// Requests that are ready together travel together up to this many bytes. Larger buckets save start-up costs;
    /// smaller ones let the first results return earlier. 64 MiB is far beyond the size at which start-up costs matter
    /// on any link we know, and bounds the memory of the fusion buffer. Among ranks of one host an
    /// allreduce of 1 MiB or more travels alone.
    fusion_threshold_bytes: u64 = FUSION_THRESHOLD;
    /// Keeps the requests of a group (a grouped allreduce) out of buckets with other requests. The same on all ranks.
    disable_group_fusion: bool = DISABLE_GROUP_FUSION;
    /// Whether a named allreduce between hosts that have several ranks each is hierarchical: 1 always, 0 never, `auto`
    /// where that is the fastest. The same on all ranks.
    hierarchical_allreduce: Option<bool> = HIERARCHICAL_ALLREDUCE;
    /// Repeats a learned order of requests without talking about it. Zero switches it off (Horovod: the capacity of its
    /// response cache); any other number leaves it on.
    replay: u64 = REPLAY;
    /// Lets the ranks that go on use every collective while another rank has joined. Zero refuses, with Horovod's
    /// words, what Horovod refuses then: allgather, alltoall, broadcast and reducescatter.
    join_everything: bool = JOIN_EVERYTHING;
    /// How long a request may wait while a learned order cannot go on, before the ranks talk again, unless the thread
    /// that submits waits for it: then they do so at once. Long enough that ordinary jitter does not break a good
    /// order, short enough not to be felt.
    patience: Duration = PATIENCE_SECONDS;
    /// An operation, named or direct, fails when nothing in it has moved for this long. Zero means never: a rank that
    /// is alive but late is reported as a stall, and one that is dead, stopped or cut off is noticed by other means. A
    /// named request counts from when all ranks have asked for it.
    deadline: Duration = TIMEOUT_SECONDS;
    /// How long the ranks of a job or of a new group may take to find each other.
    meet_deadline: Duration = START_TIMEOUT;
    /// After this long without all ranks having asked for a request, a report says who is missing.
    stall_warning: Duration = STALL_CHECK_TIME_SECONDS;
    /// After this long the stall ends the group. Zero means never.
    stall_shutdown: Duration = STALL_SHUTDOWN_TIME_SECONDS;
    /// Switches the stall watch off.
    stall_check_disable: bool = STALL_CHECK_DISABLE;
    /// After how many steps optimizers compare the parameters of all ranks; zero: never. `auto`: once, before the first
    /// step. Read by front ends; the same on all ranks.
    check_parameters: Option<u64> = CHECK_PARAMETERS;
    /// How tensors are protected between hosts: `checksum` finds accidental damage, `encrypt` also keeps them secret
    /// and unchanged. The same on all ranks.
    wire_protection: Protection = WIRE_PROTECTION;
    /// How collectives on GPU tensors are carried out: in device memory (`own`), by NCCL (`nccl`), through host memory
    /// (`staged`), or as is best. The same on all ranks.
    plane: DevicePlaneChoice = PLANE;
    /// An allreduce of GPU tensors between hosts, without NCCL, is exchanged in slices of so many bytes: while one is
    /// on the network, the next are copied to the host, and those before are copied back. 4 MiB take a tenth of a
    /// millisecond to be copied, which is all that is not overlapped at either end, and are on a network of 100 Gbit/s
    /// for longer than a message takes there and back. Zero: all at once. The same on all ranks.
    slice_bytes: u64 = SLICE_BYTES;
    /// How many ranks of a host are meant to use the same GPU; where more do, one of them says so. Zero: nobody knows.
    ranks_per_gpu: u64 = RANKS_PER_GPU;
    /// How many microseconds a driver with nothing to do looks around before it sleeps. `auto` lets waiting callers do
    /// so, and the worker only where the host has cores to spare.
    spin_us: Option<u64> = SPIN_US;
    /// The core that the engine's worker thread of each rank of a host is bound to, in the order of local ranks.
    /// Threads of the program are not bound, also while they drive the engine.
    thread_affinity: Cores = THREAD_AFFINITY;
    /// How many records of what it does a rank keeps in memory for each group, 32 bytes each; the oldest are
    /// overwritten. Zero switches the recorder off. 8 MiB hold the last 500 iterations of a model with 160 tensors.
    recorder_records: u64 = RECORDER_RECORDS;
}

impl Config {
    /// The defaults, changed by the environment.
    pub fn from_env() -> Result<Config> {
        Config::from_lookup(|variable| std::env::var(variable).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &'static [(&'static str, &'static str)]) -> Result<Config> {
        Config::from_lookup(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn our_name_counts_before_the_alias() {
        let config = with(&[("HOROVOD_FUSION_THRESHOLD", "1024")]).unwrap();
        assert_eq!(config.fusion_threshold_bytes, 1024);
        let config = with(&[("HOROVOD_FUSION_THRESHOLD", "1024"), ("FARANDOLE_FUSION_THRESHOLD", "2048")]).unwrap();
        assert_eq!(config.fusion_threshold_bytes, 2048);
    }

    #[test]
    fn a_variable_that_is_set_to_nothing_is_not_set() {
        let config = with(&[("FARANDOLE_FUSION_THRESHOLD", " "), ("HOROVOD_FUSION_THRESHOLD", "1024")]).unwrap();
        assert_eq!(config.fusion_threshold_bytes, 1024);
        assert_eq!(
            with(&[("FARANDOLE_TIMEOUT_SECONDS", ""), ("FARANDOLE_JOIN_EVERYTHING", "")]).unwrap(),
            Config::default()
        );
    }

    #[test]
    fn times_may_have_decimals() {
        let config = with(&[("HOROVOD_STALL_CHECK_TIME_SECONDS", "0.25")]).unwrap();
        assert_eq!(config.stall_warning, Duration::from_millis(250));
    }

    #[test]
    fn nonsense_names_the_variable() {
        let error = with(&[("FARANDOLE_TIMEOUT_SECONDS", "soon")]).unwrap_err();
        assert_eq!(error.to_string(), "setting FARANDOLE_TIMEOUT_SECONDS=soon is not a number of seconds");
    }
}
