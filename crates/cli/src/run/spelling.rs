//! Long flags with one dash: `-np`, `-hostfile`, `-prefix-timestamp`.
//!
//! Launchers have always spelled them so, and no library for command lines does. Here a second dash is added to each
//! flag of our own that lacks one. The invariant: nothing is touched from the first word of the user's command on.
//! `-np 7` behind `train.py` is train.py's business. To find that word one has to know which flags take values, and
//! clap knows.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::{Arg, Command};

/// The words of a command line, as far as they are the launcher's own, and the words of the user's command.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Words {
    /// Flags and their values, every long flag with two dashes.
    pub(super) own: Vec<OsString>,
    /// The rest, untouched.
    pub(super) command: Vec<OsString>,
}

impl Words {
    /// Divides the words that follow the name of the subcommand. `flags` describes it.
    pub(super) fn divide(words: impl IntoIterator<Item = OsString>, flags: &Command) -> Words {
        let mut flags = flags.clone();
        flags.build();
        let mut words = words.into_iter();
        let mut own = Vec::new();
        while let Some(word) = words.next() {
            if word == "--" {
                return Words { own, command: words.collect() };
            }
            if !word.as_bytes().starts_with(b"-") || word == "-" {
                return Words { own, command: std::iter::once(word).chain(words).collect() };
            }
            let word = with_two_dashes(word, &flags);
            let values = values_behind(&word, &flags);
            own.push(word);
            own.extend(words.by_ref().take(values));
        }
        Words { own, command: Vec::new() }
    }

    /// The value of a flag that has one, the last if it is there several times.
    pub(super) fn value_of(&self, long: &str) -> Option<OsString> {
        let joined = format!("--{long}=");
        let mut found = None;
        for (index, word) in self.own.iter().enumerate() {
            if word == OsStr::new(&joined[..joined.len() - 1]) {
                found = self.own.get(index + 1).cloned();
            } else if let Some(value) = word.as_bytes().strip_prefix(joined.as_bytes()) {
                found = Some(OsString::from_vec(value.to_vec()));
            }
        }
        found
    }

    /// One command line again, with `first` before everything else: what stands later counts.
    pub(super) fn join(self, first: Vec<OsString>) -> Vec<OsString> {
        let mut words = first;
        words.extend(self.own);
        if !self.command.is_empty() {
            words.push("--".into());
            words.extend(self.command);
        }
        words
    }
}

fn with_two_dashes(word: OsString, flags: &Command) -> OsString {
    let text = word.as_bytes();
    let single = text.starts_with(b"-") && !text.starts_with(b"--");
    match name_of(&text[1..]).filter(|name| single && name.len() > 1 && long_flag(flags, name).is_some()) {
        Some(_) => OsString::from_vec([b"-", text].concat()),
        None => word,
    }
}

/// How many of the next words are values of this one.
fn values_behind(word: &OsStr, flags: &Command) -> usize {
    let text = word.as_bytes();
    if let Some(long) = text.strip_prefix(b"--") {
        let attached = long.contains(&b'=');
        let flag = name_of(long).and_then(|name| long_flag(flags, name));
        return if attached { 0 } else { flag.map_or(0, values_of) };
    }
    // A cluster such as -vp22: the first flag in it that takes a value takes the rest of the word, if there is any.
    for (index, &letter) in text.iter().enumerate().skip(1) {
        let flag = flags.get_arguments().find(|flag| flag.get_short() == Some(char::from(letter)));
        let values = flag.map_or(0, values_of);
        if values > 0 {
            return if index + 1 == text.len() { values } else { 0 };
        }
    }
    0
}

/// The name in `name` or `name=value`.
fn name_of(text: &[u8]) -> Option<&str> {
    std::str::from_utf8(text.split(|&byte| byte == b'=').next()?).ok()
}

fn long_flag<'a>(flags: &'a Command, name: &str) -> Option<&'a Arg> {
    flags.get_arguments().find(|flag| {
        flag.get_long() == Some(name) || flag.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
    })
}

fn values_of(flag: &Arg) -> usize {
    if flag.get_action().takes_values() { flag.get_num_args().map_or(1, |range| range.min_values()) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::flags;
    use proptest::prelude::*;

    fn divide(line: &str) -> (String, String) {
        let words = Words::divide(line.split_whitespace().map(OsString::from), &flags());
        let shown = |words: &[OsString]| words.join(OsStr::new(" ")).into_string().unwrap();
        (shown(&words.own), shown(&words.command))
    }

    #[test]
    fn one_dash_becomes_two_up_to_the_users_command_and_no_further() {
        for (line, own, command) in [
            ("-np 2 python train.py -np 7", "--np 2", "python train.py -np 7"),
            ("-np 2 -- -np 7", "--np 2", "-np 7"),
            ("-np=2 a", "--np=2", "a"),
            ("-hostfile hosts -prefix-timestamp a -hostfile b", "--hostfile hosts --prefix-timestamp", "a -hostfile b"),
            ("-cb", "--cb", ""),
            ("-H h1:2,h2:2 -p 22 -x A=1 -x B train -x C", "-H h1:2,h2:2 -p 22 -x A=1 -x B", "train -x C"),
            ("-Hh1:2 -p22 a -p", "-Hh1:2 -p22", "a -p"),
            ("--verbose -verbose a", "--verbose --verbose", "a"),
            ("--blacklist-cooldown-range 1 2 a 3", "--blacklist-cooldown-range 1 2", "a 3"),
            ("--stall-check a b", "--stall-check", "a b"),
            ("-nq a", "-nq", "a"),
            ("- a", "", "- a"),
        ] {
            assert_eq!(divide(line), (own.to_owned(), command.to_owned()), "{line}");
        }
    }

    #[test]
    fn values_are_found_in_both_spellings() {
        let words = Words::divide(["-config-file", "a", "--config-file=b"].map(OsString::from), &flags());
        assert_eq!(words.value_of("config-file"), Some("b".into()));
        assert_eq!(words.value_of("hosts"), None);
    }

    proptest! {
        #[test]
        fn no_word_is_lost_and_none_of_the_command_is_changed(words in prop::collection::vec(r"-?-?(np|x|H|config-file|a|b c|=|\PC{0,3})", 0..8)) {
            let mut line = vec!["-np".to_owned(), "2".to_owned(), "train".to_owned()];
            line.extend(words.iter().cloned());
            let divided = Words::divide(line.iter().map(OsString::from), &flags());
            prop_assert_eq!(divided.command, line[2..].iter().map(OsString::from).collect::<Vec<_>>());

            let divided = Words::divide(words.iter().map(OsString::from), &flags());
            let ended = usize::from(divided.own.len() + divided.command.len() < words.len());
            prop_assert_eq!(divided.own.len() + divided.command.len() + ended, words.len());
        }
    }
}
