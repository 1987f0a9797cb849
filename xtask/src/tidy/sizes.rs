//! Files and functions that fit on a desk and on a screen.
//!
//! Tests count: a file of tests that nobody can read checks nothing that anybody knows of.

use super::Complaint;
use super::code::{Lines, word_positions};
use super::tree::File;

/// The most lines of a file. More than this and it has two subjects.
const FILE_LINES: usize = 600;
/// From here on a function gets a hint: it no longer fits on a screen.
const FUNCTION_HINT_LINES: usize = 80;
/// The most lines of a function.
const FUNCTION_LINES: usize = 100;

/// Complaints about sizes in this file.
pub(super) fn check(file: &File) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    let count = file.text.lines().count();
    if count > FILE_LINES {
        complaints.push(Complaint::fault(
            &file.path,
            0,
            format!("{count} lines; {FILE_LINES} are the limit: split it"),
        ));
    }
    for Function { name, line, lines } in functions(&Lines::of(&file.text)) {
        let what = format!("`{name}` has {lines} lines");
        if lines > FUNCTION_LINES {
            complaints.push(Complaint::fault(
                &file.path,
                line,
                format!("{what}; {FUNCTION_LINES} are the limit: split it"),
            ));
        } else if lines > FUNCTION_HINT_LINES {
            complaints.push(Complaint::hint(&file.path, line, what));
        }
    }
    complaints
}

struct Function {
    name: String,
    /// Where the word `fn` stands, counted from one.
    line: usize,
    /// From there to the closing brace.
    lines: usize,
}

/// All functions that have a body, nested ones too.
fn functions(lines: &Lines) -> Vec<Function> {
    let mut found = Vec::new();
    for (index, code) in lines.code.iter().enumerate() {
        for at in word_positions(code, "fn") {
            let rest = code[at + 2..].trim_start();
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            // Without a name it is the type of a function.
            if name.is_empty() {
                continue;
            }
            if let Some(last) = end_of_body(lines, index, at) {
                found.push(Function { name, line: index + 1, lines: last - index + 1 });
            }
        }
    }
    found
}

/// The line of the brace that closes the body of the function whose `fn` stands here; nothing if it has none.
fn end_of_body(lines: &Lines, first: usize, column: usize) -> Option<usize> {
    // Brackets of the signature may hold semicolons (`[u8; 4]`), so they are counted along.
    let (mut braces, mut brackets) = (0usize, 0usize);
    for (index, code) in lines.code.iter().enumerate().skip(first) {
        let from = if index == first { column } else { 0 };
        for c in code[from..].chars() {
            match c {
                '[' | '(' => brackets += 1,
                ']' | ')' => brackets = brackets.saturating_sub(1),
                ';' if braces == 0 && brackets == 0 => return None,
                '{' => braces += 1,
                '}' if braces == 1 => return Some(index),
                '}' => braces = braces.saturating_sub(1),
                _ => {}
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::Weight;

    fn measured(text: &str) -> Vec<(String, usize, usize)> {
        functions(&Lines::of(text)).into_iter().map(|f| (f.name, f.line, f.lines)).collect()
    }

    #[test]
    fn bodies_are_measured_from_fn_to_brace() {
        let text = "fn a() {}\nfn b(x: [u8; 4]) -> T\nwhere\n    T: U,\n{\n    let s = \"}\";\n}\n";
        assert_eq!(measured(text), [("a".to_owned(), 1, 1), ("b".to_owned(), 2, 6)]);
    }

    #[test]
    fn declarations_and_types_have_no_body() {
        assert_eq!(measured("trait T { fn a(&self); }\ntype F = fn(u8) -> u8;\n"), []);
    }

    #[test]
    fn long_functions_are_hinted_at_and_too_long_ones_fail() {
        let of = |lines: usize| {
            let text = format!("fn a() {{\n{}}}\n", "x();\n".repeat(lines - 2));
            check(&File { path: "a.rs".to_owned(), text }).first().map(|complaint| complaint.weight)
        };
        assert_eq!(of(80), None);
        assert_eq!(of(81), Some(Weight::Hint));
        assert_eq!(of(101), Some(Weight::Fault));
    }

    #[test]
    fn long_files_fail() {
        let file = File { path: "a.rs".to_owned(), text: "// x\n".repeat(601) };
        assert_eq!(check(&file)[0].weight, Weight::Fault);
    }
}
