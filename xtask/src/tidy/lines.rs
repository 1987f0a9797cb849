//! Lines that fit on a screen: at most 120 characters, in prose and in Python.
//!
//! rustfmt breaks lines of Rust code and leaves comments and text alone; nothing here formats Markdown and Python. So
//! this looks at comments in Rust, at paragraphs of documents, and at every line of Python.
//!
//! Some lines cannot be broken and may be longer: rows of tables, code blocks (fenced, or indented in a comment), link
//! definitions, and a line that is one word, such as an address.

use super::Complaint;
use super::code::Lines;
use super::tree::File;

/// The same as `max_width` in `rustfmt.toml`.
const MOST_CHARS: usize = 120;

/// Complaints about lines of this file that are too long.
pub(super) fn check(file: &File) -> Vec<Complaint> {
    let long = if file.is_rust() {
        in_rust(&file.text)
    } else if file.is_markdown() {
        in_markdown(&file.text)
    } else if file.path.ends_with(".py") {
        in_python(&file.text)
    } else {
        Vec::new()
    };
    let what = format!("more than {MOST_CHARS} characters: break the line");
    long.into_iter().map(|index| Complaint::fault(&file.path, index + 1, &*what)).collect()
}

/// Numbers, from zero, of comments that are too long.
fn in_rust(text: &str) -> Vec<usize> {
    let lines = Lines::of(text);
    let mut found = Vec::new();
    let mut block = Block::default();
    for (index, line) in text.lines().enumerate() {
        let comment = &lines.comment[index];
        if comment.is_empty() {
            block = Block::default();
            continue;
        }
        let prose = comment.trim_start_matches('/').trim_start_matches('!');
        let is_code = block.is_code(prose) || prose.starts_with("     ");
        if is_long(line) && !is_code && !is_fixed(prose) {
            found.push(index);
        }
    }
    found
}

/// Numbers of lines of a document that are too long.
fn in_markdown(text: &str) -> Vec<usize> {
    let mut block = Block::default();
    let lines = text.lines().enumerate().filter(|(_, line)| !block.is_code(line));
    lines.filter(|(_, line)| is_long(line) && !is_fixed(line)).map(|(index, _)| index).collect()
}

/// Numbers of lines of a program in Python that are too long.
fn in_python(text: &str) -> Vec<usize> {
    let is_fixed = |line: &str| is_fixed(line.trim_start().trim_start_matches('#'));
    let lines = text.lines().enumerate();
    lines.filter(|(_, line)| is_long(line) && !is_fixed(line)).map(|(index, _)| index).collect()
}

/// Whether the lines that go by are in a fenced block of code.
#[derive(Default)]
struct Block {
    is_open: bool,
}

impl Block {
    /// Whether the next line is code, or the fence itself.
    fn is_code(&mut self, line: &str) -> bool {
        let is_fence = line.trim_start().starts_with("```");
        self.is_open ^= is_fence;
        self.is_open || is_fence
    }
}

fn is_long(line: &str) -> bool {
    line.chars().count() > MOST_CHARS
}

/// Whether a line cannot be broken.
fn is_fixed(prose: &str) -> bool {
    let prose = prose.trim();
    let is_row = prose.starts_with('|');
    let is_definition = prose.starts_with('[') && prose.contains("]: ") && prose.split_whitespace().count() == 2;
    let words = prose.strip_prefix("- ").unwrap_or(prose);
    is_row || is_definition || words.split_whitespace().count() == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    fn complaints(path: &str, text: &str) -> Vec<usize> {
        check(&File { path: path.to_owned(), text: text.to_owned() }).into_iter().map(|found| found.line).collect()
    }

    /// So many characters, as words of four letters.
    fn prose(chars: usize) -> String {
        "ward ".repeat(chars / 5) + &"w".repeat(chars % 5)
    }

    #[test]
    fn comments_end_at_the_limit() {
        let (fits, long) = (prose(116), prose(117));
        for mark in ["//!", "///", "// "] {
            assert_eq!(complaints("a.rs", &format!("{mark} {fits}\nfn a() {{}}\n")), NONE, "{mark}");
            assert_eq!(complaints("a.rs", &format!("fn a() {{}}\n{mark} {long}\n")), [2], "{mark}");
        }
        assert_eq!(complaints("a.rs", &format!("let a = 1; // {long}\n")), [1]);
        assert_eq!(complaints("a.rs", &format!("let a = \"// {long}\";\n")), NONE, "text is no comment");
    }

    #[test]
    fn characters_count_and_not_bytes() {
        assert_eq!(complaints("a.md", &("ä ".repeat(59) + "ää\n")), NONE);
        assert_eq!(complaints("a.md", &("ä ".repeat(60) + "ä\n")), [1]);
    }

    #[test]
    fn paragraphs_and_items_of_documents_end_at_the_limit() {
        let long = prose(121);
        assert_eq!(complaints("a.md", &format!("{long}\n\n- {long}\n> {long}\n")), [1, 3, 4]);
    }

    #[test]
    fn tables_code_definitions_and_addresses_may_be_longer() {
        let (long, address) = (prose(121), format!("https://{}", "a".repeat(120)));
        let lines =
            [format!("| {long} |"), format!("```\n{long}\n```"), format!("[a]: {address}"), format!("- {address}")];
        for line in lines {
            assert_eq!(complaints("a.md", &format!("{line}\n")), NONE, "{line}");
            let comment = line.replace('\n', "\n/// ");
            assert_eq!(complaints("a.rs", &format!("/// {comment}\nfn a() {{}}\n")), NONE, "{line}");
        }
        assert_eq!(complaints("a.rs", &format!("//!     {long}\n")), NONE, "an indented block of code");
        assert_eq!(complaints("a.md", &format!("see {address}\n")), [1], "the address can have a line of its own");
    }

    #[test]
    fn a_fence_ends_with_its_comment() {
        assert_eq!(complaints("a.rs", &format!("/// ```\nfn a() {{}}\n/// {}\n", prose(121))), [3]);
    }

    #[test]
    fn python_has_no_long_line_at_all() {
        let long = prose(121);
        assert_eq!(
            complaints("a.py", &format!("# {long}\n\"\"\"{long}\"\"\"\na = [{}1]\n", "1, ".repeat(50))),
            [1, 2, 3]
        );
        assert_eq!(complaints("a.py", &format!("\"\"\"A table.\n\n| {long} |\n\"\"\"\n")), NONE);
        assert_eq!(complaints("a.sh", &format!("{long}\n")), NONE);
    }
}
