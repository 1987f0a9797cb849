//! Types that settings can have, and how their values are written.

use std::time::Duration;

/// A type that a setting can have.
pub trait SettingValue: Sized {
    /// What a user may write, for messages.
    const KIND: &'static str;
    /// The value of a text, if it is one.
    fn parse(text: &str) -> Option<Self>;
    /// The text of a value; `parse` understands it.
    fn show(&self) -> String;
}

impl SettingValue for u64 {
    const KIND: &'static str = "a whole number";
    fn parse(text: &str) -> Option<u64> {
        text.parse().ok()
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl SettingValue for bool {
    const KIND: &'static str = "0 or 1";
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
    const KIND: &'static str = "a number of seconds";
    fn parse(text: &str) -> Option<Duration> {
        Duration::try_from_secs_f64(text.parse().ok()?).ok()
    }
    fn show(&self) -> String {
        self.as_secs_f64().to_string()
    }
}

impl SettingValue for Option<u64> {
    const KIND: &'static str = "a whole number, or auto";
    fn parse(text: &str) -> Option<Option<u64>> {
        if text == "auto" { Some(None) } else { text.parse().ok().map(Some) }
    }
    fn show(&self) -> String {
        self.map_or_else(|| "auto".to_owned(), |number| number.to_string())
    }
}

impl SettingValue for Option<bool> {
    const KIND: &'static str = "0, 1 or auto";
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
    const KIND: &'static str = "a list of cores, such as 0,2";
    fn parse(text: &str) -> Option<Cores> {
        let words = text.split(',').map(str::trim).filter(|_| !text.is_empty());
        words.map(|word| word.parse().ok()).collect()
    }
    fn show(&self) -> String {
        self.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
    }
}
