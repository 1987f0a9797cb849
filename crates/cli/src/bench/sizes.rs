//! The sizes of a run, as written on the command line.
//!
//! `1024`, `64K`, `1M`, `2G` are sizes; `KB` and `KiB` mean the same as `K`. Units count in steps of 1024, as every
//! collective benchmark does. A list is joined by commas; an item of the list may be a range `FROM..TO`, which goes up
//! by a factor of 4, or `FROM..TO:F` with a factor of its own.

use std::fmt;
use std::str::FromStr;

/// Default factor between the sizes of a range: fine enough to see every change of algorithm, coarse enough for one
/// screen.
const DEFAULT_FACTOR: u64 = 4;

/// Sizes in bytes, in the order in which they are measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sizes(pub(crate) Vec<u64>);

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Sizes, String> {
        let mut sizes = Vec::new();
        for item in text.split(',') {
            match item.split_once("..") {
                Some((from, to)) => push_range(&mut sizes, from, to)?,
                None => sizes.push(parse_size(item)?),
            }
        }
        Ok(Sizes(sizes))
    }
}

fn push_range(sizes: &mut Vec<u64>, from: &str, to_and_factor: &str) -> Result<(), String> {
    let (to, factor) = match to_and_factor.split_once(':') {
        Some((to, factor)) => (to, factor.parse().map_err(|_| format!("'{factor}' is not a factor, e.g. 2"))?),
        None => (to_and_factor, DEFAULT_FACTOR),
    };
    let (from, to) = (parse_size(from)?, parse_size(to)?);
    if factor < 2 {
        return Err(format!("a range must grow, by a factor of at least 2, not {factor}"));
    }
    if from > to {
        return Err(format!("the range goes from {} down to {}", Size(from), Size(to)));
    }
    let grown = std::iter::successors(Some(from), |size| size.checked_mul(factor));
    sizes.extend(grown.take_while(|&size| size <= to));
    Ok(())
}

fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "K" | "KB" | "KIB" => 1 << 10,
        "M" | "MB" | "MIB" => 1 << 20,
        "G" | "GB" | "GIB" => 1 << 30,
        other => return Err(format!("'{other}' is not a unit: use B, K, M or G (steps of 1024)")),
    };
    let number: u64 = digits
        .trim()
        .parse()
        .map_err(|_| format!("'{text}' is not a size, e.g. 4, 64K or 256M, or a range 4..256M"))?;
    match number.checked_mul(unit) {
        Some(0) => Err("a size of zero bytes has no time worth measuring".to_string()),
        Some(size) => Ok(size),
        None => Err(format!("'{text}' is too large")),
    }
}

/// Writes a size the way people say it: `4 B`, `64 KB`, `1.5 MB`.
pub(crate) struct Size(pub(crate) u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            0..0x400 => (1, "B"),
            0x400..0x10_0000 => (1 << 10, "KB"),
            0x10_0000..0x4000_0000 => (1 << 20, "MB"),
            _ => (1u64 << 30, "GB"),
        };
        let text = if self.0.is_multiple_of(unit) {
            format!("{} {name}", self.0 / unit)
        } else {
            format!("{:.1} {name}", self.0 as f64 / unit as f64)
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<u64>, String> {
        text.parse::<Sizes>().map(|sizes| sizes.0)
    }

    #[test]
    fn lists_and_units() {
        assert_eq!(parse("4").unwrap(), [4]);
        assert_eq!(parse("4,1K,2kb, 3MiB,1g").unwrap(), [4, 1024, 2048, 3 << 20, 1 << 30]);
    }

    #[test]
    fn ranges_grow_by_their_factor() {
        assert_eq!(parse("4..256").unwrap(), [4, 16, 64, 256]);
        assert_eq!(parse("4..20:2").unwrap(), [4, 8, 16]);
        assert_eq!(parse("1..4:2,1M").unwrap(), [1, 2, 4, 1 << 20]);
        assert_eq!(parse("4..256M").unwrap().len(), 14);
        assert_eq!(parse("9000000000G..17179869183G").unwrap().len(), 1, "a range ends where numbers end");
    }

    #[test]
    fn nonsense_is_explained() {
        for (text, explanation) in [
            ("", "is not a size"),
            ("x", "is not a unit"),
            ("4Q", "is not a unit"),
            ("4..", "is not a size"),
            ("8..4", "goes from 8 B down to 4 B"),
            ("4..8:1", "factor of at least 2"),
            ("4..8:x", "is not a factor"),
            ("0", "zero bytes"),
            ("99999999999G", "too large"),
            ("-4", "is not a size"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(explanation), "{text:?}: {error}");
        }
    }

    #[test]
    fn sizes_are_written_as_people_say_them() {
        let said = |bytes| Size(bytes).to_string();
        assert_eq!(said(4), "4 B");
        assert_eq!(said(1024), "1 KB");
        assert_eq!(said(1536), "1.5 KB");
        assert_eq!(said(256 << 20), "256 MB");
        assert_eq!(said(5 << 30), "5 GB");
        assert_eq!(format!("{:>8}|", Size(4)), "     4 B|");
    }
}
