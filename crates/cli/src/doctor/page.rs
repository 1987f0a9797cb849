//! Findings as a page that a person reads: 80 columns, colours only where they can be seen.
//!
//! What is well takes one entry without explanation; a note or a problem adds why it matters and what to do. A command
//! stands between backticks and is never broken over two lines, so that it can be copied.

use std::fmt::Write;
use std::io::IsTerminal;

use super::finding::{Finding, Group, Planned, Report, State, worst};

/// Width of the page: that of the narrowest terminal in common use.
const COLUMNS: usize = 80;
/// Columns before the text of a finding: two of margin, the state, the key.
const STATE_COLUMNS: usize = 9;
const KEY_COLUMNS: usize = 15;

/// Whether states are coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ink {
    Plain,
    Colour,
}

impl Ink {
    /// Colour for a terminal that can show it and a user who has not declined (the variable `NO_COLOR`).
    pub(crate) fn for_stdout() -> Ink {
        let declined = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|terminal| terminal == "dumb");
        if std::io::stdout().is_terminal() && !declined && !dumb { Ink::Colour } else { Ink::Plain }
    }

    fn paint(self, code: &str, text: &str) -> String {
        match self {
            Ink::Plain => text.to_owned(),
            Ink::Colour => format!("\x1b[{code}m{text}\x1b[0m"),
        }
    }

    fn state(self, state: State) -> String {
        let code = match state {
            State::Ok => "32",
            State::Note => "33",
            State::Problem => "1;31",
        };
        self.paint(code, &format!("{:STATE_COLUMNS$}", state.word()))
    }

    fn heading(self, text: &str) -> String {
        self.paint("1", text)
    }
}

/// The page of one machine, which the user knows by this name.
pub(crate) fn page(report: &Report, name: &str, ink: Ink) -> String {
    let Report { host, farandole, kernel, planned, .. } = report;
    let host = if host == name { host.clone() } else { format!("{name} ({host})") };
    let title = format!("{host}: farandole {farandole}, Linux {kernel}, {}", plan(*planned));
    let mut page = wrap(&title, COLUMNS).iter().map(|line| ink.heading(line) + "\n").collect::<String>();
    page += &sections(&report.findings, ink);
    page += &format!("\n{}\n", ink.heading("What will be used, and why"));
    for sentence in &report.outlook {
        page += &indented("  - ", "    ", sentence);
    }
    page + "\n" + &summary(&report.findings, ink)
}

/// Findings under the headings of their groups.
pub(crate) fn sections(findings: &[Finding], ink: Ink) -> String {
    let mut page = String::new();
    let mut group: Option<Group> = None;
    for finding in findings {
        if group.replace(finding.group) != Some(finding.group) {
            page += &format!("\n{}\n", ink.heading(finding.group.heading()));
        }
        page += &entry(finding, ink);
    }
    page
}

/// The last lines: whether anything is wrong.
pub(crate) fn summary(findings: &[Finding], ink: Ink) -> String {
    let count = |state| findings.iter().filter(|finding| finding.state == state).count();
    let plural = |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
    let (problems, notes) = (count(State::Problem), count(State::Note));
    let remark = match notes {
        0 => String::new(),
        _ => format!(" ({})", plural(notes, "note")),
    };
    let words = match worst(findings) {
        State::Problem => format!("{}{remark}: mend what is marked.", plural(problems, "problem")),
        State::Ok | State::Note => format!("Nothing is wrong{remark}."),
    };
    ink.heading(&words) + "\n"
}

fn plan(planned: Planned) -> String {
    let ranks = match planned.ranks {
        1 => "1 rank".to_owned(),
        ranks => format!("{ranks} ranks"),
    };
    match planned.local_ranks == planned.ranks {
        true => format!("{ranks} planned"),
        false => format!("{ranks} planned, {} here", planned.local_ranks),
    }
}

fn entry(finding: &Finding, ink: Ink) -> String {
    let margin = " ".repeat(2 + STATE_COLUMNS + KEY_COLUMNS);
    let width = COLUMNS - margin.len();
    let mut lines = wrap(&finding.found, width);
    if finding.state != State::Ok {
        lines.extend(wrap(&finding.why, width));
        lines.extend(finding.fix.iter().flat_map(|fix| wrap(&format!("Fix: {fix}"), width)));
    }
    let mut entry = String::new();
    for (index, line) in lines.iter().enumerate() {
        let before = match index {
            0 => format!("  {}{:KEY_COLUMNS$}", ink.state(finding.state), finding.key),
            _ => margin.clone(),
        };
        let _ = writeln!(entry, "{before}{line}");
    }
    entry
}

fn indented(first: &str, others: &str, text: &str) -> String {
    let mut paragraph = String::new();
    for (index, line) in wrap(text, COLUMNS - others.len()).iter().enumerate() {
        let _ = writeln!(paragraph, "{}{line}", if index == 0 { first } else { others });
    }
    paragraph
}

/// Breaks a text into lines. What stands between backticks, and any word that is longer than a line, stays whole.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = vec![String::new()];
    for word in words(text) {
        let line = lines.last_mut().expect("invariant: there is always a line");
        if line.is_empty() {
            *line = word;
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            *line = format!("{line} {word}");
        } else {
            lines.push(word);
        }
    }
    lines
}

/// The words of a text; spaces between backticks do not separate.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for character in text.chars() {
        quoted ^= character == '`';
        if character.is_whitespace() && !quoted {
            words.extend((!word.is_empty()).then(|| std::mem::take(&mut word)));
        } else {
            // What came from elsewhere may hold anything; a page holds no control characters.
            word.push(if character.is_control() { '?' } else { character });
        }
    }
    words.extend((!word.is_empty()).then_some(word));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem() -> Finding {
        let why = "Each of the many ranks has connections to all the others, and each of them is a descriptor.";
        Finding::problem(Group::Machine, "descriptors", "64", why, "`ulimit -n 4096 && echo done` before the job.")
    }

    #[test]
    fn no_line_is_longer_than_the_page() {
        for line in sections(&[problem()], Ink::Plain).lines() {
            assert!(line.chars().count() <= COLUMNS, "{line}");
        }
    }

    #[test]
    fn commands_are_not_broken() {
        let page = sections(&[problem()], Ink::Plain);
        assert!(page.contains("`ulimit -n 4096 && echo done`"), "{page}");
        assert_eq!(wrap("a `b c d` e", 3), ["a", "`b c d`", "e"]);
    }

    #[test]
    fn what_is_well_is_brief() {
        let page = sections(&[Finding::ok(Group::Machine, "cores", "2 of 2", "Because.")], Ink::Plain);
        assert_eq!(page, "\nMachine\n  ok       cores          2 of 2\n");
    }

    #[test]
    fn colours_come_only_with_ink_and_no_foreign_escape_reaches_the_terminal() {
        let finding = Finding::note(Group::Machine, "cores", "\x1b[2Jgone", "x");
        assert!(!sections(std::slice::from_ref(&finding), Ink::Plain).contains('\x1b'));
        let coloured = sections(&[finding], Ink::Colour);
        assert!(coloured.contains("\x1b[33mnote") && !coloured.contains("\x1b[2J"));
    }

    #[test]
    fn the_last_line_says_whether_anything_is_wrong() {
        let note = Finding::note(Group::Job, "a", "", "");
        assert_eq!(summary(&[], Ink::Plain), "Nothing is wrong.\n");
        assert_eq!(summary(std::slice::from_ref(&note), Ink::Plain), "Nothing is wrong (1 note).\n");
        assert_eq!(summary(&[note, problem()], Ink::Plain), "1 problem (1 note): mend what is marked.\n");
    }
}
