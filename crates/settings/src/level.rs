//! How much is said on standard error, in the words and numbers that Horovod's users know.
//!
//! At `info` each rank says at its start who it is, at `debug` also by what it chooses algorithms.

/// From which importance on messages are wanted; the finest is the least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Everything.
    Trace,
    /// What developers ask about.
    Debug,
    /// What users ask about.
    Info,
    /// What may be wrong.
    #[default]
    Warning,
    /// What is wrong.
    Error,
    /// What ends the process.
    Fatal,
}

impl LogLevel {
    /// The words for levels, the finest first. Horovod also counts them so, from 0.
    pub const WORDS: [&str; 6] = ["trace", "debug", "info", "warning", "error", "fatal"];

    const ALL: [LogLevel; 6] =
        [LogLevel::Trace, LogLevel::Debug, LogLevel::Info, LogLevel::Warning, LogLevel::Error, LogLevel::Fatal];

    /// The level that a word or a number means, if it is one.
    pub fn parse(text: &str) -> Option<LogLevel> {
        let text = text.trim();
        let by_word = LogLevel::WORDS.iter().position(|word| text.eq_ignore_ascii_case(word));
        let index = by_word.or_else(|| text.parse().ok())?;
        LogLevel::ALL.get(index).copied()
    }

    /// Its word.
    pub fn word(self) -> &'static str {
        LogLevel::WORDS[self as usize]
    }

    /// The level that an environment asks for. What is no level counts as not set; `notices` says so.
    pub fn from_lookup(lookup: impl Fn(&'static str) -> Option<String>) -> LogLevel {
        crate::LOG_LEVEL.written(lookup).and_then(|(_, text)| LogLevel::parse(&text)).unwrap_or_default()
    }

    /// The level that this process's environment asks for.
    pub fn of_this_process() -> LogLevel {
        LogLevel::from_lookup(|variable| std::env::var(variable).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_numbers_mean_the_same_levels() {
        for (index, word) in LogLevel::WORDS.iter().enumerate() {
            let level = LogLevel::parse(word);
            assert!(level.is_some() && level == LogLevel::parse(&index.to_string()), "{word}");
            assert_eq!(level, LogLevel::parse(&format!(" {} ", word.to_uppercase())));
        }
        assert_eq!(LogLevel::parse("0"), Some(LogLevel::Trace));
        assert_eq!(LogLevel::parse("5"), Some(LogLevel::Fatal));
        assert!(["", "6", "-1", "loud", "warn ing"].iter().all(|text| LogLevel::parse(text).is_none()));
    }

    #[test]
    fn our_name_counts_before_horovods_and_warnings_are_the_default() {
        let with = |pairs: &'static [(&str, &str)]| {
            LogLevel::from_lookup(|name| {
                pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(with(&[]), LogLevel::Warning);
        assert_eq!(with(&[("HOROVOD_LOG_LEVEL", "1")]), LogLevel::Debug);
        assert_eq!(with(&[("FARANDOLE_LOG_LEVEL", "warning"), ("HOROVOD_LOG_LEVEL", "debug")]), LogLevel::Warning);
        assert_eq!(with(&[("FARANDOLE_LOG_LEVEL", ""), ("HOROVOD_LOG_LEVEL", "debug")]), LogLevel::Debug);
        assert_eq!(with(&[("FARANDOLE_LOG_LEVEL", "loud")]), LogLevel::Warning);
    }
}
