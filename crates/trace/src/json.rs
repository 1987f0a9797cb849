//! Texts in JSON.

use std::fmt;

/// A text with everything escaped that JSON wants escaped.
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;
        for letter in self.0.chars() {
            match letter {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                '\t' => f.write_str("\\t")?,
                control if (control as u32) < 0x20 => write!(f, "\\u{:04x}", control as u32)?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

/// Nanoseconds as microseconds, the unit of viewers, without losing any.
pub struct Micros(pub u64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_and_times_keep_their_nanoseconds() {
        assert_eq!(Escaped("a\"b\\c\nd\u{1}é").to_string(), "a\\\"b\\\\c\\nd\\u0001é");
        assert_eq!(Micros(1_234_005).to_string(), "1234.005");
    }
}
