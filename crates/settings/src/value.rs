//! Types that settings can have, and how their values are written.

use std::fmt;
use std::time::Duration;

use crate::LogLevel;

/// A type that a setting can have.
pub trait SettingValue: Sized {
    /// The value of a text, if it is one.
    fn parse(text: &str) -> Option<Self>;
    /// The text of a value; `parse` understands it.
    fn show(&self) -> String;
}

impl SettingValue for u64 {
    fn parse(text: &str) -> Option<u64> {
        text.parse().ok()
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl SettingValue for bool {
    fn parse(text: &str) -> Option<bool> {
        match text.to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" | "on" => Some(true),
            "" | "0" | "false" | "no" | "off" => Some(false),
            _ => None,
        }
    }
    fn show(&self) -> String {
        u8::from(*self).to_string()
    }
}

impl SettingValue for Duration {
    fn parse(text: &str) -> Option<Duration> {
        Duration::try_from_secs_f64(text.parse().ok()?).ok()
    }
    fn show(&self) -> String {
        self.as_secs_f64().to_string()
    }
}

impl SettingValue for Option<u64> {
    fn parse(text: &str) -> Option<Option<u64>> {
        if text == "auto" { Some(None) } else { text.parse().ok().map(Some) }
    }
    fn show(&self) -> String {
        self.map_or_else(|| "auto".to_owned(), |number| number.to_string())
    }
}

impl SettingValue for Option<bool> {
    fn parse(text: &str) -> Option<Option<bool>> {
        if text == "auto" { Some(None) } else { bool::parse(text).map(Some) }
    }
    fn show(&self) -> String {
        self.map_or_else(|| "auto".to_owned(), |switch| switch.show())
    }
}

/// Cores by number; none: wherever the scheduler likes.
pub type Cores = Vec<u64>;

impl SettingValue for Cores {
    fn parse(text: &str) -> Option<Cores> {
        let words = text.split(',').map(str::trim).filter(|_| !text.is_empty());
        words.map(|word| word.parse().ok()).collect()
    }
    fn show(&self) -> String {
        self.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
    }
}

impl SettingValue for String {
    fn parse(text: &str) -> Option<String> {
        Some(text.to_owned())
    }
    fn show(&self) -> String {
        self.clone()
    }
}

/// What may be written for a setting, with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number without a unit.
    Count,
    /// A number without a unit, or `auto`.
    CountOrAuto,
    /// Bytes; the flag and the key are in MiB.
    Bytes,
    /// Seconds, with decimals.
    Seconds,
    /// Microseconds, or `auto`.
    MicrosecondsOrAuto,
    /// On or off.
    Switch,
    /// On, off, or `auto`.
    SwitchOrAuto,
    /// Cores by number.
    Cores,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A level of the log.
    Level,
    /// A path, or a word that is said here.
    Path(&'static str),
    /// Anything, as described.
    Text(&'static str),
}

impl Kind {
    /// A value in its plainest spelling, if it is of this kind.
    pub fn normalise(self, text: &str) -> Option<String> {
        fn shown<V: SettingValue>(text: &str) -> Option<String> {
            V::parse(text).map(|value| value.show())
        }
        match self {
            Kind::Count | Kind::Bytes => shown::<u64>(text),
            Kind::Seconds => shown::<Duration>(text),
            Kind::CountOrAuto | Kind::MicrosecondsOrAuto => shown::<Option<u64>>(text),
            Kind::Switch => shown::<bool>(text),
            Kind::SwitchOrAuto => shown::<Option<bool>>(text),
            Kind::Cores => shown::<Cores>(text).filter(|cores| !cores.is_empty()),
            Kind::OneOf(words) => words.iter().find(|word| word.eq_ignore_ascii_case(text)).map(ToString::to_string),
            Kind::Level => LogLevel::parse(text).map(|level| level.word().to_owned()),
            Kind::Path(_) | Kind::Text(_) => Some(text.to_owned()),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Count => "a whole number",
            Kind::CountOrAuto => "a whole number, or auto",
            Kind::Bytes => "a number of bytes",
            Kind::Seconds => "a number of seconds",
            Kind::MicrosecondsOrAuto => "a number of microseconds, or auto",
            Kind::Switch => "0 or 1",
            Kind::SwitchOrAuto => "0, 1 or auto",
            Kind::Cores => "a list of cores, such as 0,2",
            Kind::OneOf([others @ .., last]) => return write!(f, "{} or {last}", others.join(", ")),
            Kind::OneOf([]) => "nothing",
            Kind::Level => "trace, debug, info, warning, error, fatal, or 0 to 5",
            Kind::Path(what) | Kind::Text(what) => what,
        })
    }
}
