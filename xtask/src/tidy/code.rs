//! Tells code from comments and text in Rust source, line by line.
//!
//! [`Lines::of`] gives, for every line, the code on it with comments and the insides of string literals blanked out,
//! and the comment on it. That is all the parsing that the rules need: they look for words and count braces, and words
//! and braces in comments and strings must not fool them. It is a lexer and not a parser; macros are taken as they
//! stand.

/// The two halves of each line.
pub(super) struct Lines {
    /// Code, without comments and without the insides of literals.
    pub(super) code: Vec<String>,
    /// Comments, without code.
    pub(super) comment: Vec<String>,
}

/// Where the lexer is.
enum Place {
    Code,
    LineComment,
    /// How deep: block comments nest.
    BlockComment(usize),
    Text,
    /// How many `#` end it.
    RawText(usize),
}

impl Lines {
    /// Splits source text.
    pub(super) fn of(text: &str) -> Lines {
        let mut lines = Lines { code: vec![String::new()], comment: vec![String::new()] };
        let chars: Vec<char> = text.chars().collect();
        let mut place = Place::Code;
        let mut at = 0;
        while at < chars.len() {
            if chars[at] == '\n' {
                lines.code.push(String::new());
                lines.comment.push(String::new());
                if matches!(place, Place::LineComment) {
                    place = Place::Code;
                }
                at += 1;
                continue;
            }
            at += match place {
                Place::Code => lines.in_code(&chars[at..], chars[..at].last().copied(), &mut place),
                Place::LineComment => lines.keep_comment(chars[at]),
                Place::BlockComment(depth) => lines.in_block_comment(&chars[at..], depth, &mut place),
                Place::Text => lines.in_text(&chars[at..], &mut place),
                Place::RawText(hashes) => lines.in_raw_text(&chars[at..], hashes, &mut place),
            };
        }
        lines
    }

    /// One bite of code; returns how many characters it was.
    fn in_code(&mut self, rest: &[char], before: Option<char>, place: &mut Place) -> usize {
        let glued = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
        match rest {
            ['/', '/', ..] => {
                *place = Place::LineComment;
                0
            }
            ['/', '*', ..] => {
                *place = Place::BlockComment(1);
                2
            }
            ['"', ..] => {
                *place = Place::Text;
                self.keep_code('"')
            }
            ['r', '#' | '"', ..] if !glued || before == Some('b') => self.raw_start(rest, place),
            ['\'', ..] => self.quote(rest),
            [c, ..] => self.keep_code(*c),
            [] => 1,
        }
    }

    /// At an `r` that may open a raw string (or be a raw identifier).
    fn raw_start(&mut self, rest: &[char], place: &mut Place) -> usize {
        let hashes = rest[1..].iter().take_while(|c| **c == '#').count();
        if rest.get(1 + hashes) == Some(&'"') {
            *place = Place::RawText(hashes);
            self.keep_code('"');
            hashes + 2
        } else {
            self.keep_code('r')
        }
    }

    /// At a `'`: a character, or the start of a lifetime.
    fn quote(&mut self, rest: &[char]) -> usize {
        let end = match rest {
            [_, '\\', _, ..] => 3 + rest[3..].iter().position(|c| *c == '\'').unwrap_or(0),
            [_, _, '\'', ..] => 2,
            _ => return self.keep_code('\''),
        };
        self.keep_code('\'');
        self.keep_code('\'');
        end + 1
    }

    fn in_block_comment(&mut self, rest: &[char], depth: usize, place: &mut Place) -> usize {
        match rest {
            ['*', '/', ..] => {
                *place = if depth == 1 { Place::Code } else { Place::BlockComment(depth - 1) };
                2
            }
            ['/', '*', ..] => {
                *place = Place::BlockComment(depth + 1);
                2
            }
            [c, ..] => self.keep_comment(*c),
            [] => 1,
        }
    }

    fn in_text(&mut self, rest: &[char], place: &mut Place) -> usize {
        match rest {
            // An escaped line end must stay visible to the loop, which counts lines.
            ['\\', '\n', ..] => 1,
            ['\\', _, ..] => 2,
            ['"', ..] => {
                *place = Place::Code;
                self.keep_code('"')
            }
            _ => 1,
        }
    }

    fn in_raw_text(&mut self, rest: &[char], hashes: usize, place: &mut Place) -> usize {
        let closes = rest[0] == '"' && rest[1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes;
        if closes {
            *place = Place::Code;
            self.keep_code('"');
            return 1 + hashes;
        }
        1
    }

    fn keep_code(&mut self, c: char) -> usize {
        self.code.last_mut().expect("invariant: there is always a line").push(c);
        1
    }

    fn keep_comment(&mut self, c: char) -> usize {
        self.comment.last_mut().expect("invariant: there is always a line").push(c);
        1
    }
}

/// The positions where this word stands alone in the code.
pub(super) fn word_positions(code: &str, word: &str) -> Vec<usize> {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    let alone = |at: &usize| !code[..*at].ends_with(part_of_word) && !code[at + word.len()..].starts_with(part_of_word);
    code.match_indices(word).map(|(at, _)| at).filter(alone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        Lines::of(text).code.join("|")
    }

    #[test]
    fn comments_and_texts_are_not_code() {
        assert_eq!(code("a(\"unsafe {\"); // unsafe"), "a(\"\"); ");
        assert_eq!(code("a /* b /* c */ d */ e"), "a  e");
        assert_eq!(code(r##"r#"a"b"# c"##), "\"\" c");
        assert_eq!(code("br\"x\" y"), "b\"\" y");
        assert_eq!(code(r#""a\"b" c"#), "\"\" c");
    }

    #[test]
    fn characters_are_told_from_lifetimes() {
        assert_eq!(code("'{' 'a 'b: '\\'' '\\u{7b}' x"), "'' 'a 'b: '' '' x");
    }

    #[test]
    fn lines_keep_their_numbers() {
        let lines = Lines::of("a \"x\ny\" b\n// c\nd \"p\\\nq\" e");
        assert_eq!(lines.code, ["a \"", "\" b", "", "d \"", "\" e"]);
        assert_eq!(lines.comment[2], "// c");
    }

    #[test]
    fn words_stand_alone() {
        assert_eq!(word_positions("unsafe_code unsafe {", "unsafe"), [12]);
    }
}
