//! Settings from a YAML file, in the form that horovodrun takes.
//!
//! A file says nothing that flags could not say, so it becomes flags: they are put before those of the command line,
//! which overrule them because they stand later. Every complaint names file and line; an unknown key is an error that
//! names the nearest known one, because a misspelt setting would otherwise have no effect and no one would notice. Keys
//! without a value are left out, as if they were not there.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Command;
use farandole_settings::{self as settings, SettingValue};
use saphyr::{LoadableYamlNode, MarkedYaml, Scalar, YamlData};

/// A file of settings has a page or two; whatever is longer than this is something else.
const MOST_BYTES: u64 = 1 << 20;

/// What a key becomes.
#[derive(Clone, Copy)]
pub(super) enum Becomes {
    /// `--flag=value`.
    Value(&'static str),
    /// `--flag first second …`, of a list, or of values with commas between.
    Values(&'static str),
    /// The first flag where the key is true, the second where it is false.
    Switch(&'static str, &'static str),
    /// `--value`, for one of these values.
    Word(&'static [&'static str]),
}

use Becomes::{Switch, Value, Values, Word};

/// A key: its section (none for the first), its name, and what it becomes.
pub(super) type Key = (&'static str, &'static str, Becomes);

/// Keys that are no settings here: Horovod's that have another answer, and flags that no variable stands for.
const OTHER_KEYS: &[Key] = &[
    ("elastic", "min_np", Value("min-np")),
    ("elastic", "max_np", Value("max-np")),
    ("elastic", "host_discovery_script", Value("host-discovery-script")),
    ("elastic", "slots_per_host", Value("slots-per-host")),
    ("elastic", "reset_limit", Value("reset-limit")),
    ("elastic", "blacklist_cooldown_range", Values("blacklist-cooldown-range")),
    ("elastic", "spares", Value("spares")),
    ("elastic", "replace_slow", Value("replace-slow")),
    ("elastic", "restarts", Value("restarts")),
    ("", "controller", Word(&["gloo", "mpi", "jsrun"])),
    ("params", "cycle_time_ms", Value("cycle-time-ms")),
    ("params", "hierarchical_allgather", Switch("hierarchical-allgather", "no-hierarchical-allgather")),
    ("params", "torus_allreduce", Switch("torus-allreduce", "no-torus-allreduce")),
    ("autotune", "enabled", Switch("autotune", "no-autotune")),
    ("autotune", "log_file", Value("autotune-log-file")),
    ("autotune", "warmup_samples", Value("autotune-warmup-samples")),
    ("autotune", "steps_per_sample", Value("autotune-steps-per-sample")),
    ("autotune", "bayes_opt_max_samples", Value("autotune-bayes-opt-max-samples")),
    ("autotune", "gaussian_process_noise", Value("autotune-gaussian-process-noise")),
    ("library_options", "mpi_threads_disable", Switch("mpi-threads-disable", "no-mpi-threads-disable")),
    ("library_options", "num_nccl_streams", Value("num-nccl-streams")),
    ("logging", "with_timestamp", Switch("log-with-timestamp", "log-without-timestamp")),
];

/// Every key.
pub(super) fn keys() -> Vec<Key> {
    let of_settings = settings::all().filter_map(|setting| {
        let (section, name) = setting.key?.split_once('.')?;
        let flag = setting.flag?;
        // `enabled` of a key is the flag without `no-`.
        Some((
            section,
            name,
            match flag.opposite {
                None => Value(flag.long),
                Some(opposite) if flag.long.starts_with("no-") => Switch(opposite, flag.long),
                Some(opposite) => Switch(flag.long, opposite),
            },
        ))
    });
    OTHER_KEYS.iter().copied().chain(of_settings).collect()
}

/// The flags of a file; `settings` describes those that it may hold.
pub(super) fn read(path: &Path, settings: &Command) -> Result<Vec<OsString>> {
    let file = path.display().to_string();
    let mut text = String::new();
    File::open(path)
        .and_then(|open| open.take(MOST_BYTES + 1).read_to_string(&mut text))
        .with_context(|| format!("--config-file {file}: cannot be read"))?;
    ensure!(text.len() as u64 <= MOST_BYTES, "--config-file {file}: is longer than {MOST_BYTES} bytes");
    parse(&file, &text, settings)
}

/// The flags of a text; `file` is its name in messages.
fn parse(file: &str, text: &str, settings: &Command) -> Result<Vec<OsString>> {
    let documents = MarkedYaml::load_from_str(text)
        .map_err(|error| anyhow!("{file}, line {}: no YAML: {}", error.marker().line(), error.info()))?;
    ensure!(documents.len() <= 1, "{file}: holds {} documents; expected one", documents.len());
    let keys = keys();
    let mut flags = Vec::new();
    for (name, value) in documents.first().map_or(Ok(Vec::new()), |root| entries(file, root, "the file"))? {
        let at = format!("{file}, line {}", name.line);
        if let Some(&(.., becomes)) = keys.iter().find(|(section, key, _)| section.is_empty() && *key == name.text) {
            flags.extend(flag(&at, &name.text, value, becomes, settings)?);
        } else if keys.iter().any(|(section, ..)| *section == name.text) {
            flags.extend(section(file, &name.text, value, &keys, settings)?);
        } else {
            let known = keys.iter().map(|(section, key, _)| if section.is_empty() { *key } else { *section });
            bail!("{at}: {}", unknown(&name.text, known));
        }
    }
    Ok(flags)
}

fn section(
    file: &str,
    section: &str,
    value: &MarkedYaml<'_>,
    keys: &[Key],
    settings: &Command,
) -> Result<Vec<OsString>> {
    let known = keys.iter().filter(|(of, ..)| *of == section);
    let mut flags = Vec::new();
    for (name, value) in entries(file, value, section)? {
        let at = format!("{file}, line {}", name.line);
        let Some(&(.., becomes)) = known.clone().find(|(_, key, _)| *key == name.text) else {
            bail!("{at}: {} in {section}", unknown(&name.text, known.map(|(_, key, _)| *key)));
        };
        flags.extend(flag(&at, &format!("{section}.{}", name.text), value, becomes, settings)?);
    }
    Ok(flags)
}

/// A key, and where it stands.
struct Name {
    text: String,
    line: usize,
}

/// Keys and values of a mapping; none where there is no value at all.
fn entries<'a, 'b>(file: &str, node: &'a MarkedYaml<'b>, what: &str) -> Result<Vec<(Name, &'a MarkedYaml<'b>)>> {
    let line = node.span.start.line();
    match &node.data {
        YamlData::Mapping(mapping) => mapping
            .iter()
            .map(|(key, value)| {
                let line = key.span.start.line();
                let text = scalar_text(key).with_context(|| format!("{file}, line {line}: a key is a word"))?;
                Ok((Name { text, line }, value))
            })
            .collect(),
        YamlData::Value(Scalar::Null) => Ok(Vec::new()),
        _ => bail!(
            "{file}, line {line}: {what} holds keys with values, such as 'params:' above '  fusion_threshold_mb: 32'"
        ),
    }
}

fn flag(at: &str, key: &str, value: &MarkedYaml<'_>, becomes: Becomes, settings: &Command) -> Result<Vec<OsString>> {
    if matches!(value.data, YamlData::Value(Scalar::Null)) {
        return Ok(Vec::new());
    }
    if let Values(flag) = becomes {
        let values = texts(value).with_context(|| format!("{at}: {key} holds a list of values, such as [10, 60]"))?;
        let words = std::iter::once(format!("--{flag}")).chain(values).map(OsString::from);
        return checked(at, key, words.collect(), settings);
    }
    let text = scalar_text(value).with_context(|| format!("{at}: {key} holds one value"))?;
    let flag = match becomes {
        Value(flag) | Values(flag) => format!("--{flag}={text}"),
        Switch(on, off) => match bool::parse(&text) {
            Some(true) => format!("--{on}"),
            Some(false) => format!("--{off}"),
            None => bail!("{at}: {key}: '{text}' is not true or false"),
        },
        Word(words) => {
            let word = text.to_ascii_lowercase();
            ensure!(words.contains(&word.as_str()), "{at}: {key}: '{text}' is none of {}", words.join(", "));
            format!("--{word}")
        }
    };
    checked(at, key, vec![flag.into()], settings)
}

/// The words, if they are a flag with fitting values.
fn checked(at: &str, key: &str, words: Vec<OsString>, settings: &Command) -> Result<Vec<OsString>> {
    if let Err(error) = settings.clone().no_binary_name(true).try_get_matches_from(&words) {
        let shown = error.to_string();
        let first = shown.lines().next().unwrap_or_default();
        bail!("{at}: {key}: {}", first.strip_prefix("error: ").unwrap_or(first));
    }
    Ok(words)
}

/// The values of a list, or of a text with commas.
fn texts(node: &MarkedYaml<'_>) -> Option<Vec<String>> {
    match &node.data {
        YamlData::Sequence(list) => list.iter().map(scalar_text).collect(),
        _ => Some(scalar_text(node)?.split(',').map(|part| part.trim().to_owned()).collect()),
    }
}

fn scalar_text(node: &MarkedYaml<'_>) -> Option<String> {
    match &node.data {
        YamlData::Value(Scalar::Boolean(value)) => Some(value.to_string()),
        YamlData::Value(Scalar::Integer(value)) => Some(value.to_string()),
        YamlData::Value(Scalar::FloatingPoint(value)) => Some(value.to_string()),
        YamlData::Value(Scalar::String(value)) => Some(value.to_string()),
        _ => None,
    }
}

fn unknown<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let nearest = known.min_by_key(|known| strsim::damerau_levenshtein(name, known)).unwrap_or_default();
    format!("there is no key '{name}'; did you mean '{nearest}'?")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::flags_of_files as settings;
    use proptest::prelude::*;

    fn flags_of(text: &str) -> Vec<String> {
        parse("c.yaml", text, &settings()).unwrap().into_iter().map(|flag| flag.into_string().unwrap()).collect()
    }

    fn refused(text: &str) -> String {
        format!("{:#}", parse("c.yaml", text, &settings()).unwrap_err())
    }

    /// A value that fits the key.
    fn fitting(key: &str, becomes: Becomes) -> &'static str {
        match (key, becomes) {
            ("level", _) => "INFO",
            ("wire_protection", _) => "encrypt",
            (_, Values(_)) => "[7, 9]",
            (_, Value(_)) => "7",
            (_, Switch(..)) => "true",
            (_, Word(words)) => words[0],
        }
    }

    #[test]
    fn every_key_becomes_a_flag_that_exists() {
        for (section, key, becomes) in keys() {
            let value = fitting(key, becomes);
            let text =
                if section.is_empty() { format!("{key}: {value}") } else { format!("{section}:\n  {key}: {value}") };
            let expected = match becomes {
                Value(flag) => vec![format!("--{flag}={value}")],
                Values(flag) => vec![format!("--{flag}"), "7".to_owned(), "9".to_owned()],
                Switch(on, _) => vec![format!("--{on}")],
                Word(_) => vec![format!("--{value}")],
            };
            assert_eq!(flags_of(&text), expected, "{text}");
            if let Switch(_, off) = becomes {
                assert_eq!(flags_of(&text.replace("true", "False")), [format!("--{off}")], "{text}");
            }
        }
    }

    #[test]
    fn a_file_may_have_many_sections_comments_and_nothing() {
        let text = "# for gpu nodes\ncontroller: GLOO\nparams:\n  fusion_threshold_mb: 32\n  cycle_time_ms: 3.5\nstall_check:\n  enabled: no\nlogging:\n";
        assert_eq!(flags_of(text), ["--gloo", "--fusion-threshold-mb=32", "--cycle-time-ms=3.5", "--no-stall-check"]);
        for text in ["", "# nothing\n", "params:\n", "params: {}\nlogging: {level: }"] {
            assert!(flags_of(text).is_empty(), "{text}");
        }
    }

    #[test]
    fn mistakes_are_named_with_line_and_cure() {
        for (text, explanation) in [
            ("param:\n  x: 1", "c.yaml, line 1: there is no key 'param'; did you mean 'params'?"),
            (
                "params:\n  fusion_treshold_mb: 1",
                "c.yaml, line 2: there is no key 'fusion_treshold_mb'; did you mean 'fusion_threshold_mb'? in params",
            ),
            (
                "\nparams:\n  fusion_threshold_mb: lots",
                "c.yaml, line 3: params.fusion_threshold_mb: invalid value 'lots'",
            ),
            ("params:\n  fusion_threshold_mb: -1", "c.yaml, line 2: params.fusion_threshold_mb: invalid value '-1'"),
            ("params:\n  fusion_threshold_mb: [1, 2]", "c.yaml, line 2: params.fusion_threshold_mb holds one value"),
            (
                "elastic:\n  blacklist_cooldown_range: 7",
                "c.yaml, line 2: elastic.blacklist_cooldown_range: 2 values required",
            ),
            (
                "elastic:\n  blacklist_cooldown_range: {}",
                "line 2: elastic.blacklist_cooldown_range holds a list of values",
            ),
            ("stall_check:\n  enabled: perhaps", "line 2: stall_check.enabled: 'perhaps' is not true or false"),
            ("controller: carrier-pigeon", "line 1: controller: 'carrier-pigeon' is none of gloo, mpi, jsrun"),
            ("logging:\n  level: LOUD", "line 2: logging.level: invalid value 'LOUD'"),
            ("- a\n- b", "c.yaml, line 1: the file holds keys with values"),
            ("params: 3", "c.yaml, line 1: params holds keys with values"),
            ("params: {", "no YAML"),
            ("params:\n  cache_capacity: 1\n  cache_capacity: 2", "no YAML"),
            ("a: 1\n---\nb: 2", "holds 2 documents"),
            ("? [a]\n: 1", "a key is a word"),
        ] {
            let error = refused(text);
            assert!(error.starts_with("c.yaml") && error.contains(explanation), "{text}: {error}");
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = format!("{:#}", read(Path::new("/nowhere/c.yaml"), &settings()).unwrap_err());
        assert!(error.starts_with("--config-file /nowhere/c.yaml: cannot be read: "), "{error}");
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_fall_over(text in r"(\PC|[\n:{}\[\]&* -]){0,80}|((params|logging|stall_check):\n|  (level|enabled|x): (true|~|\PC{0,4})\n){0,6}") {
            if let Err(error) = parse("c.yaml", &text, &settings()) {
                prop_assert!(error.to_string().starts_with("c.yaml"), "{}", error);
            }
        }
    }
}
