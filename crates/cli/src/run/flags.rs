//! Flags that are settings: made of the table of settings, with its names, kinds, defaults and sentences.
//!
//! A flag that ranks read becomes a variable of theirs under the name that counts first, so that it overrules whatever
//! the environment says. What is not given sets nothing: then the environment counts, and then the default. The
//! engine's own reader checks the outcome here, before anything starts, so that nonsense is reported once and not by
//! every rank.

use std::path::Path;

use anyhow::{Result, anyhow, ensure};
use clap::error::Error;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use farandole_engine::Config;
use farandole_settings::{self as settings, Kind, Reader, SECTIONS, Setting, SettingValue};

/// Settings with a flag that is made here, each with its section's title. `--network-interface` is not: it may be given
/// several times, and takes more than its variable.
fn flagged() -> impl Iterator<Item = (&'static str, &'static Setting)> {
    let of = |section: &'static settings::Section| section.settings.iter().map(|setting| (section.title, setting));
    SECTIONS
        .iter()
        .flat_map(of)
        .filter(|(_, setting)| setting.flag.is_some() && setting.name != settings::INTERFACE.name)
}

/// The settings that were given as flags, with their values as variables have them.
#[derive(Clone, Debug, Default)]
pub(super) struct SettingFlags {
    given: Vec<(&'static Setting, String)>,
}

impl SettingFlags {
    /// What was given for this setting.
    pub(super) fn given(&self, setting: &Setting) -> Option<&str> {
        self.given.iter().find(|(given, _)| given.name == setting.name).map(|(_, value)| value.as_str())
    }

    /// The value of a setting: what was given, what the environment says, or the default.
    pub(super) fn value<V: SettingValue>(
        &self,
        setting: &Setting,
        lookup: impl Fn(&'static str) -> Option<String>,
    ) -> Result<V> {
        match self.given(setting) {
            Some(text) => V::parse(text).ok_or_else(|| anyhow!("{text} is not {}", setting.kind)),
            None => Ok(setting.read(lookup)?),
        }
    }

    /// The variables that these flags set. Files are meant where the launcher stands, so paths are made whole; on other
    /// hosts the same path is used.
    pub(super) fn variables(&self, here: &Path) -> Vec<(String, String)> {
        let for_ranks = |(setting, _): &&(&Setting, String)| setting.reader != Reader::Launcher;
        let mut variables: Vec<(String, String)> = Vec::new();
        for (setting, value) in self.given.iter().filter(for_ranks) {
            let value = match setting.kind {
                Kind::Path(_) if value != "DYNAMIC" => here.join(value).to_string_lossy().into_owned(),
                _ => value.clone(),
            };
            variables.push((setting.name.to_owned(), value.clone()));
            if setting.name == settings::LOG_LEVEL.name {
                // For scripts that look at it.
                variables.extend(setting.horovod.map(|name| (name.to_owned(), value)));
            }
        }
        variables
    }
}

impl Args for SettingFlags {
    fn augment_args(command: Command) -> Command {
        flagged().fold(command, |command, (heading, setting)| {
            let flag = setting.flag.expect("invariant: only settings with a flag are made into flags");
            let arg = Arg::new(flag.long).long(flag.long).help(help(setting)).help_heading(heading);
            let Some(opposite) = flag.opposite else {
                let parser = move |text: &str| value_of(setting, text);
                return command.arg(arg.value_name(flag.unit).value_parser(parser));
            };
            let hidden = Arg::new(opposite).long(opposite).hide(true);
            let hidden = hidden.action(ArgAction::SetTrue).overrides_with(flag.long);
            command.arg(arg.action(ArgAction::SetTrue).overrides_with(opposite)).arg(hidden)
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        SettingFlags::augment_args(command)
    }
}

impl FromArgMatches for SettingFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<SettingFlags, Error> {
        let given = flagged().filter_map(|(_, setting)| {
            let flag = setting.flag?;
            let Some(opposite) = flag.opposite else {
                return Some((setting, matches.get_one::<String>(flag.long)?.clone()));
            };
            let set = matches.get_flag(flag.long);
            (set || matches.get_flag(opposite)).then(|| (setting, set.show()))
        });
        Ok(SettingFlags { given: given.collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = SettingFlags::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The sentence of the table, the default as the flag would be given it, and the variables that count without it.
fn help(setting: &Setting) -> String {
    let default = match setting.kind {
        Kind::Bytes => (setting.default_value::<u64>() >> 20).to_string(),
        _ => setting.default.to_owned(),
    };
    let default = if default.is_empty() { String::new() } else { format!(" [default: {default}]") };
    let variables: Vec<&str> = setting.names().collect();
    format!("{}{default} [variable: {}]", setting.text().trim_end_matches('.'), variables.join(", "))
}

/// A flag's value as its variable has it.
fn value_of(setting: &'static Setting, text: &str) -> Result<String, String> {
    let value = match setting.kind {
        Kind::Bytes => {
            let bytes = text.parse::<u64>().ok().map(|mib| mib.checked_mul(1 << 20));
            let bytes = bytes.ok_or("expected a whole number of MiB")?;
            Some(bytes.ok_or("no memory is that large")?.to_string())
        }
        // In the case that Horovod's scripts expect.
        Kind::Level => setting.kind.normalise(text).map(|word| word.to_ascii_uppercase()),
        kind => kind.normalise(text),
    };
    value.ok_or_else(|| format!("expected {}", setting.kind))
}

/// Lets the engine's own reader look at what ranks will find.
pub(super) fn check(lookup: impl Fn(&'static str) -> Option<String>) -> Result<()> {
    let config = Config::from_lookup(lookup)?;
    let (warning, shutdown) = (config.stall_warning, config.stall_shutdown);
    ensure!(
        config.stall_check_disable || shutdown.is_zero() || shutdown > warning,
        "--stall-check-shutdown-time-seconds {}: has to be longer than the warning time, {} s, or 0 for never",
        shutdown.as_secs_f64(),
        warning.as_secs_f64()
    );
    Ok(())
}
