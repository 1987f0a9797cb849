//! Lists of numbers on the command line.

use anyhow::{Result, bail};

/// A number list such as `1,2,4` or `1-4`; ascending, without repetition, none of them zero.
pub(crate) fn numbers(list: &str) -> Result<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in list.split(',').map(str::trim) {
        let parsed = match part.split_once('-') {
            Some((from, to)) => from.trim().parse().and_then(|from: usize| Ok((from, to.trim().parse()?))),
            None => part.parse().map(|number| (number, number)),
        };
        match parsed {
            Ok((from, to)) if from > 0 && from <= to && to - from < MOST => numbers.extend(from..=to),
            _ => bail!("`{part}`: give numbers from one up, as in 1,2,4 or 1-4"),
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers)
}

/// A range that is longer was a slip of the finger.
const MOST: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_lists_and_ranges() {
        assert_eq!(numbers("4, 1-2,2").unwrap(), [1, 2, 4]);
        for wrong in ["", "0", "2-1", "1,,2", "x", "1-99999", "-1"] {
            assert!(numbers(wrong).unwrap_err().to_string().contains("1,2,4"), "{wrong}");
        }
    }
}
