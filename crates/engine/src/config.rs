//! Every setting of the engine, once: field, type, default, environment variables and text.
//!
//! The first variable of a setting is its own name; the others are the names under which Horovod's users know it. The
//! first one that is set counts; set to nothing is not set. Times are in seconds and may have decimals. The settings of
//! all ranks must agree where they decide what fuses with what; ranks that differ there find out when they first replay
//! an order, and say so.

use std::time::Duration;

pub use farandole_settings::{Cores, SettingValue};
use farandole_transport::Protection;

use crate::error::{Error, Result};

/// One line of the table of settings, for documentation and `--help`.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The field of [`Config`].
    pub name: &'static str,
    /// Environment variables, the one that counts first.
    pub variables: &'static [&'static str],
    /// What may be written.
    pub kind: &'static str,
    /// The default, as it would be written.
    pub default: String,
    /// What it does.
    pub text: &'static str,
}

macro_rules! settings {
    ($($(#[doc = $text:literal])+ $name:ident: $kind:ty = $default:expr, [$($variable:literal),+];)+) => {
        /// The settings of one engine.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Config {
            $($(#[doc = $text])+ pub $name: $kind,)+
        }

        impl Default for Config {
            fn default() -> Config {
                Config { $($name: $default,)+ }
            }
        }

        impl Config {
            /// The defaults, changed by what `lookup` finds under the settings' variables.
            pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Config> {
                let mut config = Config::default();
                $(for variable in [$($variable),+] {
                    if let Some(text) = lookup(variable).filter(|text| !text.trim().is_empty()) {
                        config.$name = read(variable, &text)?;
                        break;
                    }
                })+
                Ok(config)
            }

            /// Every setting by name, as it would be written.
            pub fn shown(&self) -> Vec<(String, String)> {
                vec![$((stringify!($name).to_owned(), self.$name.show()),)+]
            }

            /// The table of all settings.
            pub fn table() -> Vec<Setting> {
                let defaults = Config::default();
                vec![$(Setting {
                    name: stringify!($name),
                    variables: &[$($variable),+],
                    kind: <$kind as SettingValue>::KIND,
                    default: defaults.$name.show(),
                    text: concat!($($text),+).trim_ascii(),
                },)+]
            }
        }
    };
}

settings! {
    /// Requests that are ready together travel together up to this many bytes. Larger buckets save start-up costs;
    /// smaller ones let the first results return earlier. 64 MiB is far beyond the size at which start-up costs matter
    /// on any link we know, and bounds the memory of the fusion buffer. Among ranks of one host an
    /// allreduce of 1 MiB or more travels alone.
    fusion_threshold_bytes: u64 = 64 << 20, ["FARANDOLE_FUSION_THRESHOLD", "HOROVOD_FUSION_THRESHOLD"];
    /// Keeps the requests of a group (a grouped allreduce) out of buckets with other requests. The same on all ranks.
    disable_group_fusion: bool = false, ["FARANDOLE_DISABLE_GROUP_FUSION", "HOROVOD_DISABLE_GROUP_FUSION"];
    /// Whether a named allreduce between hosts that have several ranks each is hierarchical: 1 always, 0 never, `auto`
    /// where that is the fastest. The same on all ranks.
    hierarchical_allreduce: Option<bool> = None,
        ["FARANDOLE_HIERARCHICAL_ALLREDUCE", "HOROVOD_HIERARCHICAL_ALLREDUCE"];
    /// Repeats a learned order of requests without talking about it. Zero switches it off (Horovod: the capacity of its
    /// response cache); any other number leaves it on.
    replay: u64 = 1, ["FARANDOLE_REPLAY", "HOROVOD_CACHE_CAPACITY"];
    /// Lets the ranks that go on use every collective while another rank has joined. Zero refuses, with Horovod's
    /// words, what Horovod refuses then: allgather, alltoall, broadcast and reducescatter.
    join_everything: bool = true, ["FARANDOLE_JOIN_EVERYTHING"];
    /// How long a request may wait at first while a learned order cannot go on, before the ranks talk again. Long
    /// enough that ordinary jitter between ranks does not break a good order, short enough not to be felt.
    patience: Duration = Duration::from_millis(10), ["FARANDOLE_PATIENCE_SECONDS"];
    /// An operation, named or direct, fails when nothing in it has moved for this long. Zero means never: a rank that
    /// is alive but late is reported as a stall, and one that is dead, stopped or cut off is noticed by other means. A
    /// named request counts from when all ranks have asked for it.
    deadline: Duration = Duration::ZERO, ["FARANDOLE_TIMEOUT_SECONDS", "HOROVOD_GLOO_TIMEOUT_SECONDS"];
    /// How long the ranks of a job or of a new group may take to find each other.
    meet_deadline: Duration = farandole_transport::connect::START_TIMEOUT, ["FARANDOLE_START_TIMEOUT", "HOROVOD_START_TIMEOUT"];
    /// After this long without all ranks having asked for a request, a report says who is missing.
    stall_warning: Duration = Duration::from_secs(60),
        ["FARANDOLE_STALL_CHECK_TIME_SECONDS", "HOROVOD_STALL_CHECK_TIME_SECONDS"];
    /// After this long the stall ends the group. Zero means never.
    stall_shutdown: Duration = Duration::ZERO,
        ["FARANDOLE_STALL_SHUTDOWN_TIME_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"];
    /// Switches the stall watch off.
    stall_check_disable: bool = false, ["FARANDOLE_STALL_CHECK_DISABLE", "HOROVOD_STALL_CHECK_DISABLE"];
    /// How tensors are protected between hosts: `checksum` finds accidental damage, `encrypt` also keeps them secret
    /// and unchanged. The same on all ranks.
    wire_protection: Protection = Protection::Off, ["FARANDOLE_WIRE_PROTECTION"];
    /// How many microseconds a driver with nothing to do looks around before it sleeps. `auto` lets waiting callers do
    /// so, and the worker only where the host has cores to spare.
    spin_us: Option<u64> = None, ["FARANDOLE_SPIN_US"];
    /// The core that the engine's worker thread of each rank of a host is bound to, in the order of local ranks.
    /// Threads of the program are not bound, also while they drive the engine.
    thread_affinity: Cores = Cores::new(), ["FARANDOLE_THREAD_AFFINITY", "HOROVOD_THREAD_AFFINITY"];
    /// How many records of what it does a rank keeps in memory for each group, 32 bytes each; the oldest are
    /// overwritten. Zero switches the recorder off. 8 MiB hold the last 500 iterations of a model with 160 tensors.
    recorder_records: u64 = farandole_trace::DEFAULT_RECORDS as u64, ["FARANDOLE_RECORDER_RECORDS"];
}

impl Config {
    /// The defaults, changed by the environment.
    pub fn from_env() -> Result<Config> {
        Config::from_lookup(|variable| std::env::var(variable).ok())
    }
}

fn read<V: SettingValue>(variable: &str, text: &str) -> Result<V> {
    V::parse(text.trim()).ok_or_else(|| Error::Setting(format!("{variable}={text} is not {}", V::KIND).into()))
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

    #[test]
    fn every_default_reads_back_and_every_variable_is_used_once() {
        let mut seen = std::collections::HashSet::new();
        for setting in Config::table() {
            assert!(!setting.text.is_empty());
            let variable = setting.variables[0];
            let config = Config::from_lookup(|name| (name == variable).then(|| setting.default.clone())).unwrap();
            assert_eq!(config, Config::default(), "{variable}");
            assert!(setting.variables.iter().all(|name| seen.insert(*name)), "{variable}");
        }
    }
}
