//! Every setting, once: its names, flag, key, kind of value, default, reader and effect.
//!
//! The data is in [`table`]. Whoever reads a setting reads it from here, by its constant: [`Setting::read`] looks at
//! our variable, then at Horovod's, then at the default. The flags of `farandole run`, the keys of its configuration
//! file, the doctor's list and `docs/settings.md` ([`document`]) are made of the table. [`notices`] says which of the
//! variables that are set have no effect or are unknown. The launcher asks for all ranks; where another launcher
//! started them, rank 0 does (`farandole_cluster::Environment::warn_of_settings`).
//!
//! The invariant: every name that begins with `FARANDOLE_` or `HOROVOD_` in the sources is in the table, no source but
//! the table spells the name of a setting that does something, and every such setting is read. A test compares them.

#![forbid(unsafe_code)]

mod data;
pub mod document;
mod idle;
mod level;
mod logger;
mod notices;
pub mod table;
mod value;

use std::fmt;

pub use data::*;
pub use level::LogLevel;
pub use logger::{REPORT, log_to_stderr};
pub use notices::notices;
pub use table::*;
pub use value::{Cores, Kind, SettingValue};

/// Names that are looked at. The last is how Horovod calls the secret of its launcher.
const PREFIXES: [&str; 3] = ["FARANDOLE_", "HOROVOD_", "_HOROVOD_"];

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The variable that counts first.
    pub name: &'static str,
    /// The name under which Horovod's users know it, where it is another one.
    pub horovod: Option<&'static str>,
    /// The flag of `farandole run`.
    pub flag: Option<Flag>,
    /// The key of its configuration file, with its section.
    pub key: Option<&'static str>,
    /// What may be written, with its unit.
    pub kind: Kind,
    /// What holds where nothing is written; empty: nothing, and the effect says what that means.
    pub default: &'static str,
    /// Who reads it.
    pub reader: Reader,
    /// What it does.
    pub effect: Effect,
}

/// A flag of `farandole run`.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// Its name, without dashes.
    pub long: &'static str,
    /// What its value is called; empty for a switch.
    pub unit: &'static str,
    /// The flag that switches off what this one switches on, if it is a switch.
    pub opposite: Option<&'static str>,
}

/// Who reads a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// Every rank.
    Ranks,
    /// `farandole run` and the commands that start ranks as it does.
    Launcher,
    /// Both.
    LauncherAndRanks,
    /// The Python package.
    Python,
    /// Another command.
    Commands,
}

/// What a setting does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Something, for users.
    Does(&'static str),
    /// Something between parts of Farandole; users leave it alone.
    Internal(&'static str),
    /// Nothing, for this reason.
    None(&'static str),
}

/// Settings that belong together.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// The heading.
    pub title: &'static str,
    /// What they have in common.
    pub text: &'static str,
    /// The settings.
    pub settings: &'static [Setting],
}

/// A value that its setting cannot have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The variable that has it.
    pub variable: &'static str,
    /// The value.
    pub text: String,
    /// What it should be.
    pub kind: Kind,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={} is not {}", self.variable, self.text, self.kind)
    }
}

impl std::error::Error for Wrong {}

impl Setting {
    /// All its names, the one that counts first.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        [Some(self.name), self.horovod].into_iter().flatten()
    }

    /// The first of its variables that is set, and what it says without space around it. Set to nothing is not set.
    pub fn written(&self, lookup: impl Fn(&'static str) -> Option<String>) -> Option<(&'static str, String)> {
        self.names().find_map(|name| {
            let text = lookup(name)?.trim().to_owned();
            (!text.is_empty()).then_some((name, text))
        })
    }

    /// The same in the environment of this process.
    pub fn in_environment(&self) -> Option<String> {
        self.written(|variable| std::env::var(variable).ok()).map(|(_, text)| text)
    }

    /// The value that `lookup` finds under its variables, or the default.
    ///
    /// # Errors
    /// If a value is written that the setting cannot have.
    pub fn read<V: SettingValue>(&self, lookup: impl Fn(&'static str) -> Option<String>) -> Result<V, Wrong> {
        let Some((variable, text)) = self.written(lookup) else { return Ok(self.default_value()) };
        V::parse(&text).ok_or(Wrong { variable, text, kind: self.kind })
    }

    /// The default.
    ///
    /// # Panics
    /// If the default is not of this type: a mistake in the table, which tests find.
    pub fn default_value<V: SettingValue>(&self) -> V {
        V::parse(self.default).unwrap_or_else(|| panic!("the default of {} is of another type", self.name))
    }

    /// What it does, or why nothing.
    pub fn text(&self) -> &'static str {
        match self.effect {
            Effect::Does(text) | Effect::Internal(text) | Effect::None(text) => text,
        }
    }

    const fn new(name: &'static str, effect: Effect) -> Setting {
        let (kind, reader) = (Kind::Text(""), Reader::Ranks);
        Setting { name, horovod: None, flag: None, key: None, kind, default: "", reader, effect }
    }

    const fn does(
        name: &'static str,
        reader: Reader,
        kind: Kind,
        default: &'static str,
        what: &'static str,
    ) -> Setting {
        Setting { reader, kind, default, ..Setting::new(name, Effect::Does(what)) }
    }

    const fn internal(name: &'static str, what: &'static str) -> Setting {
        Setting::new(name, Effect::Internal(what))
    }

    const fn without_effect(name: &'static str, why: &'static str) -> Setting {
        Setting::new(name, Effect::None(why))
    }

    const fn horovod(self, name: &'static str) -> Setting {
        Setting { horovod: Some(name), ..self }
    }

    const fn flag(self, long: &'static str, unit: &'static str) -> Setting {
        Setting { flag: Some(Flag { long, unit, opposite: None }), ..self }
    }

    const fn switch(self, long: &'static str, opposite: &'static str) -> Setting {
        Setting { flag: Some(Flag { long, unit: "", opposite: Some(opposite) }), ..self }
    }

    const fn key(self, key: &'static str) -> Setting {
        Setting { key: Some(key), ..self }
    }
}

/// All settings, section by section.
pub fn all() -> impl Iterator<Item = &'static Setting> {
    SECTIONS.iter().flat_map(|section| section.settings)
}

/// The setting that a variable belongs to, under our name or Horovod's.
pub fn find(variable: &str) -> Option<&'static Setting> {
    all().find(|setting| setting.names().any(|name| is_named(variable, name)))
}

/// The variables of this process that have text for a name.
pub fn of_this_process() -> Vec<(String, String)> {
    let variables = std::env::vars_os();
    variables
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
        .collect()
}

/// Whether a variable has this name; a name that ends in `*` stands for all that begin so.
fn is_named(variable: &str, name: &str) -> bool {
    name.strip_suffix('*').map_or(variable == name, |begin| variable.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_name_counts_before_horovods_and_nothing_is_not_set() {
        let read = |pairs: &'static [(&str, &str)]| {
            START_TIMEOUT.read::<std::time::Duration>(|name| {
                pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
            })
        };
        let seconds = |seconds| Ok(std::time::Duration::from_secs(seconds));
        assert_eq!(read(&[]), seconds(30));
        assert_eq!(read(&[("HOROVOD_START_TIMEOUT", "7")]), seconds(7));
        assert_eq!(read(&[("HOROVOD_START_TIMEOUT", "7"), ("FARANDOLE_START_TIMEOUT", "8")]), seconds(8));
        assert_eq!(read(&[("HOROVOD_START_TIMEOUT", "7"), ("FARANDOLE_START_TIMEOUT", " ")]), seconds(7));
        let wrong = read(&[("HOROVOD_START_TIMEOUT", "soon")]).unwrap_err();
        assert_eq!(wrong.to_string(), "HOROVOD_START_TIMEOUT=soon is not a number of seconds");
    }

    #[test]
    fn every_default_is_of_its_setting_s_kind() {
        for setting in all().filter(|setting| !setting.default.is_empty()) {
            let read = setting.kind.normalise(setting.default);
            assert!(read.is_some_and(|read| read.eq_ignore_ascii_case(setting.default)), "{}", setting.name);
        }
    }
}
