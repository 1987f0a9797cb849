//! The table of settings as a page: `docs/settings.md`. A test compares the file with what this makes.

use std::fmt::Write as _;

use crate::{Effect, Reader, SECTIONS, Section, Setting};

const BEGIN: &str = "\
# Settings

Every variable that Farandole reads, and every variable of Horovod's with what it does here. This page is made of the
table in `crates/settings/src/table.rs`; a test compares them, and `FARANDOLE_TEST_WRITE_DOCS=1 cargo nextest run -p
farandole-settings --test settings` writes it anew.

What counts, in this order: a flag of `farandole run`, the key of its `--config-file`, the variable under our name,
the variable under Horovod's name, the default. A variable that is set to nothing counts as not set. Switches take 0
or 1. Times are in seconds and may have decimals.

A variable that is set and has no effect, and one that begins with `FARANDOLE_` or `HOROVOD_` and is not on this page,
gets one line on standard error when a job starts: from `farandole run`, or from rank 0 where something else started
the ranks. Values are not shown.
";

/// The page.
pub fn page() -> String {
    let mut page = BEGIN.to_owned();
    for section in SECTIONS {
        put_section(&mut page, section).expect("invariant: a text takes what is written to it");
    }
    page
}

fn put_section(page: &mut String, section: &Section) -> std::fmt::Result {
    writeln!(page, "\n## {}\n\n{}\n", section.title, section.text)?;
    let first = section.settings.first().map(|setting| setting.effect);
    match first {
        Some(Effect::None(_)) => writeln!(page, "| variable | why it has no effect |\n|---|---|")?,
        Some(Effect::Internal(_)) => writeln!(page, "| variable | what for |\n|---|---|")?,
        _ => {
            writeln!(page, "| variable | flag, key | value | default | read by | effect |\n|---|---|---|---|---|---|")?
        }
    }
    for setting in section.settings {
        match setting.effect {
            Effect::Does(what) => {
                let (ways, default) = (ways(setting), code(setting.default));
                let (names, kind, reader) = (names(setting), setting.kind, reader(setting.reader));
                writeln!(page, "| {names} | {ways} | {kind} | {default} | {reader} | {what} |")?;
            }
            Effect::None(why) | Effect::Internal(why) => writeln!(page, "| {} | {why} |", names(setting))?,
        }
    }
    Ok(())
}

fn names(setting: &Setting) -> String {
    setting.names().map(|name| format!("`{name}`")).collect::<Vec<_>>().join("<br>")
}

/// The flag and the key of a setting.
fn ways(setting: &Setting) -> String {
    let flag = setting.flag.map(|flag| format!("`--{}`", flag.long));
    let key = setting.key.map(|key| format!("`{key}`"));
    flag.into_iter().chain(key).collect::<Vec<_>>().join("<br>")
}

fn code(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("`{text}`") }
}

fn reader(reader: Reader) -> &'static str {
    match reader {
        Reader::Ranks => "ranks",
        Reader::Launcher => "launcher",
        Reader::LauncherAndRanks => "launcher, ranks",
        Reader::Python => "Python",
        Reader::Commands => "commands",
    }
}
