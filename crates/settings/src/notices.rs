//! What there is to say about variables that are set, when a job starts.

use crate::{Effect, LogLevel, PREFIXES, Setting, all, find};

/// What there is to say about variables that are set, a line for each, by name: those that have no effect, and why;
/// those that nobody knows, and the nearest name. Variables that are set to nothing count as not set. Values are not
/// shown.
pub fn notices<'a>(variables: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    let looked_at = |(name, value): &(&str, &str)| {
        PREFIXES.iter().any(|prefix| name.starts_with(prefix)) && !value.trim().is_empty()
    };
    let mut set: Vec<(&str, &str)> = variables.into_iter().filter(looked_at).collect();
    set.sort_unstable();
    set.dedup_by_key(|(name, _)| *name);
    set.into_iter().filter_map(|(name, value)| notice(name, value)).collect()
}

fn notice(name: &str, value: &str) -> Option<String> {
    let Some(setting) = find(name) else {
        return Some(match nearest(name) {
            Some(known) => format!("{name} is set, but there is no such setting; did you mean {known}?"),
            None => format!("{name} is set, but there is no such setting; docs/settings.md lists all"),
        });
    };
    match setting.effect {
        Effect::None(why) => Some(format!("{name} has no effect: {why}")),
        Effect::Does(_) if name.ends_with("_LOG_LEVEL") && LogLevel::parse(value).is_none() => {
            Some(format!("{name}={value} is not a level ({}); warning is used", LogLevel::WORDS.join(", ")))
        }
        Effect::Does(_) | Effect::Internal(_) => None,
    }
}

/// The known name that is most like this one, unless none is like it. What comes after the prefix is compared; among
/// equals, the one with the same prefix counts.
fn nearest(name: &str) -> Option<&'static str> {
    let split = |name: &str| PREFIXES.iter().find_map(|prefix| Some((*prefix, name.strip_prefix(prefix)?.to_owned())));
    let (prefix, rest) = split(name)?;
    let names = all().filter(|setting| matches!(setting.effect, Effect::Does(_))).flat_map(Setting::names);
    let likeness = |known: &'static str| {
        let (known_prefix, known_rest) = split(known)?;
        Some((strsim::normalized_damerau_levenshtein(&rest, &known_rest), known_prefix == prefix, known))
    };
    let (likeness, _, known) =
        names.filter_map(likeness).max_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)))?;
    (likeness >= LIKE_ENOUGH).then_some(known)
}

/// Above this share of equal letters a name is a misspelling; below, a guess would mislead.
const LIKE_ENOUGH: f64 = 0.7;

#[cfg(test)]
mod tests {
    use super::*;

    fn said(variables: &[(&str, &str)]) -> Vec<String> {
        notices(variables.iter().copied())
    }

    #[test]
    fn what_has_an_effect_is_not_mentioned() {
        assert_eq!(
            said(&[
                ("HOROVOD_FUSION_THRESHOLD", "1"),
                ("FARANDOLE_WIRE_PROTECTION", "encrypt"),
                ("FARANDOLE_TEST_ROLE", "x"),
                ("FARANDOLE_RANK", "0"),
                ("PATH", "/bin"),
                ("HOROVOD_CYCLE_TIME", ""),
            ]),
            [""; 0]
        );
    }

    #[test]
    fn what_has_no_effect_gets_one_line_with_the_reason() {
        let lines = said(&[
            ("HOROVOD_GPU_BROADCAST", "NCCL"),
            ("HOROVOD_GPU_OPERATIONS", "NCCL"),
            ("HOROVOD_CYCLE_TIME", "5"),
            ("HOROVOD_CYCLE_TIME", "5"),
            ("HOROVOD_WITH_PYTORCH", "1"),
        ]);
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[0].starts_with("HOROVOD_CYCLE_TIME has no effect: there is no cycle"), "{lines:?}");
        assert!(lines[1].starts_with("HOROVOD_GPU_BROADCAST has no effect: "), "{lines:?}");
        assert!(lines[2].starts_with("HOROVOD_WITH_PYTORCH has no effect: "), "{lines:?}");
    }

    #[test]
    fn a_name_that_nobody_knows_gets_the_nearest_one_and_no_value_is_shown() {
        let lines = said(&[
            ("HOROVOD_FUSION_TRESHOLD", "secret"),
            ("FARANDOLE_TIMOUT_SECONDS", "3"),
            ("FARANDOLE_ZZ", "1"),
            ("HOROVOD_GRACE", "1"),
        ]);
        assert_eq!(
            lines,
            [
                "FARANDOLE_TIMOUT_SECONDS is set, but there is no such setting; did you mean FARANDOLE_TIMEOUT_SECONDS?",
                "FARANDOLE_ZZ is set, but there is no such setting; docs/settings.md lists all",
                "HOROVOD_FUSION_TRESHOLD is set, but there is no such setting; did you mean HOROVOD_FUSION_THRESHOLD?",
                "HOROVOD_GRACE is set, but there is no such setting; did you mean FARANDOLE_GRACE?",
            ]
        );
    }

    #[test]
    fn a_level_that_is_none_is_named() {
        let lines = said(&[("FARANDOLE_LOG_LEVEL", "loud"), ("HOROVOD_LOG_LEVEL", "3")]);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].starts_with("FARANDOLE_LOG_LEVEL=loud is not a level (trace, "), "{lines:?}");
    }

    #[test]
    fn no_name_stands_twice_in_the_table() {
        let mut seen = std::collections::BTreeSet::new();
        for name in all().flat_map(Setting::names) {
            assert!(PREFIXES.iter().any(|prefix| name.starts_with(prefix)), "{name}");
            assert!(seen.insert(name), "{name} stands twice");
        }
    }
}
