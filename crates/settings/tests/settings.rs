//! The table of settings against the sources and against docs/settings.md: neither knows a name that the other does
//! not know.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use farandole_settings::{self as settings, Effect, Setting};

/// Set: writes docs/settings.md instead of comparing it.
const WRITE: &str = "FARANDOLE_TEST_WRITE_DOCS";

/// The table itself, and names that are no variables: activities of Horovod's timeline.
const NOT_SCANNED: [&str; 2] = ["crates/settings/src", "crates/trace/src/timeline/horovod.rs"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Every source of the programs and packages, without its tests.
fn sources() -> BTreeMap<PathBuf, String> {
    let mut folders: Vec<PathBuf> =
        fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path().join("src")).collect();
    folders.extend(["bindings/python/src", "bindings/python/farandole", "bindings/horovod"].map(|it| root().join(it)));
    let mut files = BTreeMap::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.unwrap().path();
            let shown = path.strip_prefix(root()).unwrap().to_path_buf();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() {
                folders.push(path);
            } else if (name.ends_with(".rs") || name.ends_with(".py"))
                && name != "tests.rs"
                && !NOT_SCANNED.iter().any(|skipped| shown.starts_with(skipped))
            {
                let text = fs::read_to_string(&path).unwrap();
                // Unit tests stand at the bottom.
                files.insert(shown, text.split("#[cfg(test)]").next().unwrap_or_default().to_owned());
            }
        }
    }
    assert!(files.len() > 200, "only {} sources were found", files.len());
    files
}

/// The names in a text, each with what stands before and behind it.
fn names(text: &str) -> Vec<(char, &str, char)> {
    let is_part = |letter: char| letter.is_ascii_uppercase() || letter.is_ascii_digit() || letter == '_';
    let mut found = Vec::new();
    for prefix in ["FARANDOLE_", "HOROVOD_"] {
        for (at, _) in text.match_indices(prefix) {
            let before = text[..at].chars().next_back().unwrap_or(' ');
            if before.is_ascii_alphanumeric() || before == '_' {
                continue;
            }
            let end = text[at..].find(|letter| !is_part(letter)).map_or(text.len(), |length| at + length);
            let behind = text[end..].chars().next().unwrap_or(' ');
            found.push((before, &text[at..end], behind));
        }
    }
    found
}

#[test]
fn every_name_in_the_sources_is_in_the_table() {
    let mut unknown = BTreeSet::new();
    for (path, text) in sources() {
        for line in
            text.lines().filter(|line| !line.trim_start().starts_with("//") && !line.trim_start().starts_with('#'))
        {
            // A constant of the table is no name of a variable: `settings::HOROVOD_PATH`.
            for (_, name, behind) in names(line).into_iter().filter(|(before, ..)| *before != ':') {
                // `HOROVOD_LOCAL_*`, or a name that is put together: `FARANDOLE_{name}`.
                let known = match (name.ends_with('_'), behind) {
                    (true, '*' | '{' | '…' | ' ' | '"' | '`') => {
                        settings::all().flat_map(Setting::names).any(|it| it.starts_with(name))
                    }
                    _ => settings::find(name).is_some(),
                };
                if !known {
                    unknown.insert(format!("{}: {name}", path.display()));
                }
            }
        }
    }
    assert!(unknown.is_empty(), "these names are not in crates/settings/src/table.rs: {unknown:#?}");
}

/// Settings that do something.
fn effective() -> impl Iterator<Item = &'static Setting> {
    settings::all().filter(|setting| matches!(setting.effect, Effect::Does(_)))
}

/// Whether a text has this word, with a word of the kind that reads settings before it.
fn reads(text: &str, constant: &str) -> bool {
    text.match_indices(constant).any(|(at, _)| {
        let (before, behind) = (&text[..at], &text[at + constant.len()..]);
        (before.ends_with("settings::") || before.ends_with(" = "))
            && !behind.starts_with(|letter: char| letter.is_ascii_alphanumeric() || letter == '_')
    })
}

#[test]
fn every_setting_that_does_something_is_read_through_the_table() {
    let sources = sources();
    let (rust, python): (Vec<_>, Vec<_>) = sources.iter().partition(|(path, _)| path.extension().unwrap() == "rs");
    let idle: Vec<&str> = effective()
        .filter(|setting| {
            let ours = setting.name.strip_prefix("FARANDOLE_");
            let constant = ours.unwrap_or_else(|| setting.name.trim_start_matches("HOROVOD_"));
            // In Python through `_native`, or from the environment where the engine is not loaded.
            let quoted = ["setting", "environ.get"].map(|read| format!("{read}(\"{}\")", setting.name));
            !rust.iter().any(|(_, text)| reads(text, constant))
                && !python.iter().any(|(_, text)| quoted.iter().any(|quoted| text.contains(quoted)))
        })
        .map(|setting| setting.name)
        .collect();
    assert!(idle.is_empty(), "no source reads these, though the table says what they do: {idle:?}");
}

#[test]
fn no_source_spells_the_variable_of_a_setting() {
    let mut spelled = BTreeSet::new();
    for (path, text) in sources().iter().filter(|(path, _)| path.extension().unwrap() == "rs") {
        for (before, name, behind) in names(text) {
            if (before, behind) == ('"', '"') && effective().flat_map(Setting::names).any(|known| known == name) {
                spelled.insert(format!("{}: {name}", path.display()));
            }
        }
    }
    assert!(spelled.is_empty(), "write farandole_settings::NAME.name, or read it from there: {spelled:#?}");
}

#[test]
fn the_page_of_settings_is_what_the_table_says() {
    let file = root().join("docs/settings.md");
    let page = settings::document::page();
    if std::env::var_os(WRITE).is_some() {
        fs::write(&file, &page).unwrap();
    }
    let written = fs::read_to_string(&file).unwrap_or_default();
    let differs = page.lines().zip(written.lines()).find(|(table, file)| table != file);
    assert!(
        page == written,
        "docs/settings.md is not what the table says (first difference: {differs:?}); {WRITE}=1 cargo nextest run -p \
         farandole-settings --test settings writes it anew"
    );
}
