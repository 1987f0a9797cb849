//! Patterns of paths: `shards-{000..011}.tar`, `*.tfrecord`, `{a,b}/[0-9]?.tar` without the brackets.
//!
//! Braces are expanded first, as a shell does: a list of words, or a range of numbers that keeps its leading zeros. In
//! what comes out, `*` stands for any characters but `/`, and `?` for one.

/// Patterns that braces may expand to, at most: more files than anybody names that way.
const MAX_EXPANDED: usize = 1_000_000;

/// Whether a path is a pattern.
pub(crate) fn is_pattern(path: &str) -> bool {
    path.contains(['*', '?', '{'])
}

/// All that the braces of a pattern expand to, in their order.
pub(crate) fn expand(pattern: &str) -> Result<Vec<String>, String> {
    let mut done = Vec::new();
    let mut left = vec![pattern.to_owned()];
    while let Some(next) = left.pop() {
        let Some(open) = next.find('{') else {
            done.push(next);
            continue;
        };
        let close = next[open..].find('}').ok_or_else(|| format!("`{pattern}`: a brace is not closed"))? + open;
        let (head, inner, tail) = (&next[..open], &next[open + 1..close], &next[close + 1..]);
        let words = words(inner, MAX_EXPANDED - done.len().min(MAX_EXPANDED))
            .ok_or_else(|| format!("`{pattern}`: {{{inner}}} is neither a range such as {{000..011}} nor a list"))?;
        if done.len() + left.len() + words.len() > MAX_EXPANDED {
            return Err(format!("`{pattern}` means more than {MAX_EXPANDED} files"));
        }
        left.extend(words.into_iter().rev().map(|word| format!("{head}{word}{tail}")));
    }
    Ok(done)
}

fn words(inner: &str, limit: usize) -> Option<Vec<String>> {
    let Some((first, last)) = inner.split_once("..") else {
        let words: Vec<String> = inner.split(',').map(str::to_owned).collect();
        return (words.len() > 1).then_some(words);
    };
    let (from, to): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    (from <= to && to - from < limit as u64).then_some(())?;
    // Numbers have as many digits as the longer end, if either end has leading zeros.
    let padded = [first, last].iter().any(|text| text.len() > 1 && text.starts_with('0'));
    let width = if padded { first.len().max(last.len()) } else { 0 };
    Some((from..=to).map(|number| format!("{number:0width$}")).collect())
}

/// Whether a path is one that a pattern without braces stands for.
pub(crate) fn matches(pattern: &str, path: &str) -> bool {
    let (pattern, path) = (pattern.as_bytes(), path.as_bytes());
    let (mut in_pattern, mut in_path) = (0, 0);
    // Where the last star was, and up to where it reaches so far. An earlier star never has to reach further.
    let mut star: Option<(usize, usize)> = None;
    while in_path < path.len() {
        match pattern.get(in_pattern) {
            Some(b'*') => {
                star = Some((in_pattern, in_path));
                in_pattern += 1;
            }
            Some(byte) if *byte == path[in_path] || (*byte == b'?' && path[in_path] != b'/') => {
                in_pattern += 1;
                in_path += 1;
            }
            _ => match star {
                Some((at, reach)) if path[reach] != b'/' => {
                    star = Some((at, reach + 1));
                    (in_pattern, in_path) = (at + 1, reach + 1);
                }
                _ => return false,
            },
        }
    }
    pattern[in_pattern..].iter().all(|byte| *byte == b'*')
}

/// What all paths of a pattern begin with, up to a whole folder.
pub(crate) fn folder_of(pattern: &str) -> &str {
    let fixed = &pattern[..pattern.find(['*', '?']).unwrap_or(pattern.len())];
    &fixed[..fixed.rfind('/').map_or(0, |slash| slash + 1)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn braces_expand_as_in_a_shell() {
        assert_eq!(expand("s-{008..011}.tar").unwrap(), ["s-008.tar", "s-009.tar", "s-010.tar", "s-011.tar"]);
        assert_eq!(expand("{9..10}").unwrap(), ["9", "10"]);
        assert_eq!(expand("{a,b}{0..1}").unwrap(), ["a0", "a1", "b0", "b1"]);
        assert_eq!(expand("plain").unwrap(), ["plain"]);
        for wrong in ["{", "{}", "{a}", "{3..1}", "{x..y}", "{0..18446744073709551615}", "{0..999999}{0..999999}"] {
            assert!(expand(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn stars_stay_within_a_folder() {
        for (pattern, path) in
            [("*.tar", "a.tar"), ("a/*", "a/b"), ("*-of-*", "x-of-y"), ("a?c", "abc"), ("**a", "bca"), ("", "")]
        {
            assert!(matches(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in
            [("*.tar", "a/b.tar"), ("a?b", "a/b"), ("*.tar", "a.tar.gz"), ("a", "ab"), ("ab", "a"), ("*b*d", "abc")]
        {
            assert!(!matches(pattern, path), "{pattern} {path}");
        }
        assert_eq!(folder_of("a/b/c-*.tar"), "a/b/");
        assert_eq!(folder_of("*.tar"), "");
    }

    proptest! {
        #[test]
        fn every_pattern_ends(pattern in "[ab*?/{},.0-9]{0,24}", path in "[ab/.0-9]{0,24}") {
            if let Ok(expanded) = expand(&pattern) {
                expanded.iter().take(100).for_each(|pattern| { matches(pattern, &path); });
            }
            prop_assert!(matches(&path, &path));
        }
    }
}
