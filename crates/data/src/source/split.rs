//! Which files are for tests, and which are used at all where not all are wanted.
//!
//! Both are drawn by chance out of the seed and the names within the folder, and of nothing else: copying the folder
//! changes nothing, and all ranks draw alike. Files keep their order.

use std::collections::HashMap;
use std::path::Path;

use super::image_folder::{Entry, Known};
use crate::chance::{Chance, StreamPurpose};

/// Divides files between learning and tests. It depends on their names within the folder and on the seed: copying the
/// folder changes nothing. One of several files at least is learned from, and one judged by.
pub(super) fn split_by_chance(entries: Vec<Entry>, root: &Path, seed: u64, share: f32) -> (Vec<Entry>, Vec<Entry>) {
    let for_tests = drawn_for_tests(draws(&entries, root, seed, StreamPurpose::Split), share);
    let mut for_tests = for_tests.into_iter();
    let (test, train) = entries.into_iter().partition(|_| for_tests.next().unwrap_or(false));
    (train, test)
}

/// So many of the files. As many of one class as of another, as far as there are; fewer files are a part of more.
pub(super) fn some_of(entries: Vec<Entry>, root: &Path, seed: u64, wanted: usize) -> Vec<Entry> {
    let class = |place: usize| match entries[place].known {
        Known::Class(class) => Some(class),
        _ => None,
    };
    let chosen = drawn_evenly(draws(&entries, root, seed, StreamPurpose::Choice), class, wanted);
    entries.into_iter().zip(chosen).filter_map(|(entry, chosen)| chosen.then_some(entry)).collect()
}

/// Which of several samples are for tests, given a random number for each: this share of them, but of several one at
/// least for either purpose.
pub(crate) fn drawn_for_tests(draws: impl Iterator<Item = u64>, share: f32) -> Vec<bool> {
    let mut draws: Vec<(u64, usize)> = draws.zip(0..).collect();
    let count = draws.len();
    let least = usize::from(share > 0.0 && count > 1);
    let judged = ((count as f32 * share).round() as usize).clamp(least, count.saturating_sub(1));
    draws.sort_unstable();
    marked(count, draws.into_iter().take(judged).map(|(_, place)| place))
}

/// So many samples, given a random number and a class for each: as many of one class as of another.
pub(crate) fn drawn_evenly(
    draws: impl Iterator<Item = u64>,
    class: impl Fn(usize) -> Option<u32>,
    wanted: usize,
) -> Vec<bool> {
    let mut draws: Vec<(u64, usize)> = draws.zip(0..).collect();
    draws.sort_unstable();
    let count = draws.len();
    // How many of the same class were drawn before a sample: the first of every class come before the second of any.
    let mut drawn: HashMap<Option<u32>, usize> = HashMap::new();
    let mut turns: Vec<(usize, usize, usize)> = Vec::with_capacity(count);
    for (order, (_, place)) in draws.into_iter().enumerate() {
        let before = drawn.entry(class(place)).or_default();
        turns.push((*before, order, place));
        *before += 1;
    }
    turns.sort_unstable();
    marked(count, turns.into_iter().take(wanted).map(|(_, _, place)| place))
}

/// A random number for each file.
fn draws(entries: &[Entry], root: &Path, seed: u64, purpose: StreamPurpose) -> impl Iterator<Item = u64> {
    entries.iter().map(move |entry| {
        let name = entry.path.strip_prefix(root).unwrap_or(&entry.path);
        Chance::new(seed, purpose, hash(NOTHING, name.as_os_str().as_encoded_bytes()), 0).bits()
    })
}

/// A list of so many, true at these places.
fn marked(count: usize, places: impl Iterator<Item = usize>) -> Vec<bool> {
    let mut marked = vec![false; count];
    places.for_each(|place| marked[place] = true);
    marked
}

/// The hash of nothing.
pub(crate) const NOTHING: u64 = 0xcbf2_9ce4_8422_2325;

/// The hash (FNV-1a) of what was there `before` and these bytes.
pub(crate) fn hash(before: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(before, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}
