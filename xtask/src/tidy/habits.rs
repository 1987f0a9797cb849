//! Small habits of every file: how a module opens, what words it avoids, how lines end.

use super::Complaint;
use super::code::{Lines, word_positions};
use super::tree::File;

/// Words that mark unfinished work. Each needs an owner in brackets, or nobody will ever come back to it.
const UNFINISHED: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

/// Endings of type names that say nothing.
const EMPTY_NOUNS: [&str; 6] = ["Manager", "Helper", "Helpers", "Util", "Utils", "Context"];

/// Complaints about the habits of this file.
pub(super) fn check(file: &File) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        if line.ends_with([' ', '\t']) {
            complaints.push(Complaint::fault(&file.path, index + 1, "white space at the end of the line"));
        }
    }
    if !file.text.is_empty() && !file.text.ends_with('\n') {
        complaints.push(Complaint::fault(&file.path, 0, "the last line has no end"));
    }
    if file.is_rust() {
        let lines = Lines::of(&file.text);
        complaints.extend(module_complaint(file));
        complaints.extend(file.text.lines().enumerate().filter_map(|(i, line)| ignored(file, i, line)));
        complaints.extend(lines.comment.iter().enumerate().filter_map(|(i, comment)| unfinished(file, i, comment)));
        complaints.extend(lines.code.iter().enumerate().filter_map(|(i, code)| empty_noun(file, i, code)));
    } else if file.is_markdown() {
        complaints.extend(file.text.lines().enumerate().filter_map(|(i, line)| unfinished(file, i, line)));
    }
    complaints
}

/// A module opens by saying what it owns.
fn module_complaint(file: &File) -> Option<Complaint> {
    let opens = |line: &str| line.starts_with("//!") || line.starts_with("#![doc = include_str!");
    let first = file.text.lines().find(|line| !line.is_empty() && !line.starts_with("#![no_main]"))?;
    (!opens(first)).then(|| Complaint::fault(&file.path, 1, "the module does not open with `//!`: say what it owns"))
}

/// No test is ignored but the role programs: they are what tests start, and nothing that a run of tests should run.
fn ignored(file: &File, index: usize, line: &str) -> Option<Complaint> {
    let is_ignored = line.trim_start().starts_with("#[ignore");
    let words = "a test is not ignored; a program that tests start says `#[ignore = \"role program: …\"]`";
    (is_ignored && !line.contains("= \"role program: ")).then(|| Complaint::fault(&file.path, index + 1, words))
}

fn unfinished(file: &File, index: usize, text: &str) -> Option<Complaint> {
    let word = UNFINISHED
        .into_iter()
        .find(|word| word_positions(text, word).into_iter().any(|at| !text[at + word.len()..].starts_with('(')))?;
    Some(Complaint::fault(&file.path, index + 1, format!("{word} without an owner: write {word}(name), or do it")))
}

fn empty_noun(file: &File, index: usize, code: &str) -> Option<Complaint> {
    let name = ["struct", "enum", "trait"].into_iter().find_map(|keyword| {
        let at = *word_positions(code, keyword).first()?;
        let name = code[at + keyword.len()..].trim_start();
        Some(name.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or("").to_owned())
    })?;
    let noun = EMPTY_NOUNS.into_iter().find(|noun| name.ends_with(noun))?;
    Some(Complaint::fault(
        &file.path,
        index + 1,
        format!("`{name}` ends in {noun}, which says nothing: name what it is"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    fn complaints(path: &str, text: &str) -> Vec<usize> {
        check(&File { path: path.to_owned(), text: text.to_owned() }).into_iter().map(|found| found.line).collect()
    }

    #[test]
    fn modules_open_with_what_they_own() {
        assert_eq!(complaints("a.rs", "//! Owns a.\n"), NONE);
        assert_eq!(complaints("a.rs", "#![doc = include_str!(\"../README.md\")]\n"), NONE);
        assert_eq!(complaints("a.rs", "use b;\n"), [1]);
    }

    #[test]
    fn unfinished_work_has_an_owner() {
        let word = UNFINISHED[0];
        assert_eq!(complaints("a.rs", &format!("//! A.\n// {word}: later\n")), [2]);
        assert_eq!(complaints("a.rs", &format!("//! A.\n// {word}(ann): later\n")), NONE);
        assert_eq!(complaints("a.rs", &format!("//! A.\nlet x = \"{word}\";\n")), NONE);
        assert_eq!(complaints("a.md", &format!("{word} write this\n")), [1]);
    }

    #[test]
    fn only_role_programs_are_ignored() {
        assert_eq!(complaints("a.rs", "//! A.\n#[ignore]\nfn a() {}\n"), [2]);
        assert_eq!(complaints("a.rs", "//! A.\n    #[ignore = \"it is slow\"]\nfn a() {}\n"), [2]);
        assert_eq!(complaints("a.rs", "//! A.\n#[ignore = \"role program: others start it\"]\nfn a() {}\n"), NONE);
    }

    #[test]
    fn lines_end_where_they_end() {
        assert_eq!(complaints("a.md", "a \nb\n"), [1]);
        assert_eq!(complaints("a.md", "a"), [0]);
    }

    #[test]
    fn type_names_say_something() {
        assert_eq!(complaints("a.rs", "//! A.\npub struct LinkManager;\n"), [2]);
        assert_eq!(complaints("a.rs", "//! A.\npub struct Link;\nuse anyhow::Context as _;\n"), NONE);
    }
}
