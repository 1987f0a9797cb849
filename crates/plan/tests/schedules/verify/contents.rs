//! What lies in a buffer, symbolically: for each element, where it comes from and whose contributions are in it.
//!
//! Neighbouring elements mostly share their fate, so a buffer is a map of *fragments*: runs of elements whose values
//! have the same contributors and consecutive origins. Cost depends on the number of spans in the schedules, not on the
//! number of elements.

use std::collections::BTreeMap;
use std::rc::Rc;

use farandole_plan::schedule::Span;

/// A set of ranks, as sorted runs `(first, last)` that neither touch nor overlap. The sets that occur in practice have
/// few runs, whatever the size of the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Contributors {
    One(u32, u32),
    Many(Rc<[(u32, u32)]>),
}

impl Contributors {
    /// This rank alone.
    pub(super) fn only(rank: usize) -> Contributors {
        Contributors::One(rank as u32, rank as u32)
    }

    /// The ranks from zero up to and without `n`.
    pub(super) fn all(n: usize) -> Contributors {
        Contributors::One(0, n as u32 - 1)
    }

    fn runs(&self) -> Vec<(u32, u32)> {
        match self {
            Contributors::One(first, last) => vec![(*first, *last)],
            Contributors::Many(runs) => runs.to_vec(),
        }
    }

    /// The lowest rank in it.
    pub(super) fn first(&self) -> u32 {
        match self {
            Contributors::One(first, _) => *first,
            Contributors::Many(runs) => runs[0].0,
        }
    }

    /// The union, and a rank that is in both sets if there is one.
    pub(super) fn union(&self, other: &Contributors) -> (Contributors, Option<u32>) {
        // By far the most common case: two runs that touch.
        if let (Contributors::One(a, b), Contributors::One(c, d)) = (self, other) {
            if b + 1 == *c {
                return (Contributors::One(*a, *d), None);
            }
            if d + 1 == *a {
                return (Contributors::One(*c, *b), None);
            }
        }
        let mut runs = self.runs();
        runs.extend(other.runs());
        runs.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(runs.len());
        let mut common = None;
        for (first, last) in runs {
            match merged.last_mut() {
                Some(previous) if first <= previous.1 => {
                    common = common.or(Some(first));
                    previous.1 = previous.1.max(last);
                }
                Some(previous) if first == previous.1 + 1 => previous.1 = last,
                _ => merged.push((first, last)),
            }
        }
        match merged[..] {
            [(first, last)] => (Contributors::One(first, last), common),
            _ => (Contributors::Many(merged.into()), common),
        }
    }

    /// The lowest rank that is in this set and not in the other.
    pub(super) fn first_outside(&self, other: &Contributors) -> Option<u32> {
        let others = other.runs();
        self.runs().into_iter().find_map(|(first, last)| {
            let mut candidate = first;
            for &(other_first, other_last) in &others {
                if other_first <= candidate && candidate <= other_last {
                    candidate = other_last + 1;
                }
            }
            (candidate <= last).then_some(candidate)
        })
    }
}

/// The value of a run of elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Value {
    /// Whose contributions are in it.
    pub(super) who: Contributors,
    /// Which element of the contributors' buffers the first one is.
    pub(super) origin: u64,
}

/// A run of elements with one fate. `None`: nobody has written them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fragment {
    pub(super) len: u64,
    pub(super) value: Option<Value>,
}

impl Fragment {
    /// Cuts off and returns the first `len` elements.
    fn take(&mut self, len: u64) -> Fragment {
        let head = Fragment { len, value: self.value.clone() };
        self.len -= len;
        if let Some(value) = &mut self.value {
            value.origin += len;
        }
        head
    }
}

/// What a step finds wrong while it combines or reads; `offset` counts from the start of the span.
pub(super) enum Trouble {
    Unwritten { offset: u64 },
    Double { offset: u64, contributor: u32 },
    Misplaced { offset: u64, origin: u64 },
}

/// Combines two equally long lists of fragments.
pub(super) fn combine(left: &[Fragment], right: &[Fragment]) -> Result<Vec<Fragment>, Trouble> {
    let mut combined = Vec::with_capacity(left.len().max(right.len()));
    let (mut lefts, mut rights) = (left.iter().cloned(), right.iter().cloned());
    let (mut a, mut b) = (lefts.next(), rights.next());
    let mut offset = 0;
    while let (Some(left), Some(right)) = (&mut a, &mut b) {
        let len = left.len.min(right.len);
        let (Some(one), Some(other)) = (left.take(len).value, right.take(len).value) else {
            return Err(Trouble::Unwritten { offset });
        };
        if one.origin != other.origin {
            return Err(Trouble::Misplaced { offset, origin: other.origin });
        }
        let (who, common) = one.who.union(&other.who);
        if let Some(contributor) = common {
            return Err(Trouble::Double { offset, contributor });
        }
        combined.push(Fragment { len, value: Some(Value { who, origin: one.origin }) });
        offset += len;
        if left.len == 0 {
            a = lefts.next();
        }
        if right.len == 0 {
            b = rights.next();
        }
    }
    Ok(combined)
}

/// A buffer. The key of a fragment is the position of its first element; fragments cover the buffer without gaps.
#[derive(Clone, Debug)]
pub(super) struct Contents {
    fragments: BTreeMap<u64, Fragment>,
    pub(super) elems: u64,
}

impl Contents {
    /// A buffer in which nothing has been written.
    pub(super) fn unwritten(elems: u64) -> Contents {
        let mut fragments = BTreeMap::new();
        if elems > 0 {
            fragments.insert(0, Fragment { len: elems, value: None });
        }
        Contents { fragments, elems }
    }

    /// Fills a span with a rank's own contribution.
    pub(super) fn fill(&mut self, span: Span, rank: usize) {
        let value = Value { who: Contributors::only(rank), origin: span.start };
        self.place(span.start, vec![Fragment { len: span.len, value: Some(value) }]);
    }

    /// What lies in a span, whether written or not.
    pub(super) fn look(&self, span: Span) -> Vec<Fragment> {
        let mut found = Vec::new();
        if span.is_empty() {
            return found;
        }
        let first = self.fragments.range(..=span.start).next_back().map_or(0, |(&start, _)| start);
        for (&start, fragment) in self.fragments.range(first..span.end()) {
            let mut fragment = fragment.clone();
            let skipped = span.start.saturating_sub(start);
            fragment.take(skipped);
            fragment.len = fragment.len.min(span.end() - start.max(span.start));
            found.push(fragment);
        }
        found
    }

    /// What lies in a span, all of which must have been written.
    pub(super) fn read(&self, span: Span) -> Result<Vec<Fragment>, Trouble> {
        let found = self.look(span);
        let mut offset = 0;
        for fragment in &found {
            if fragment.value.is_none() {
                return Err(Trouble::Unwritten { offset });
            }
            offset += fragment.len;
        }
        Ok(found)
    }

    /// Replaces what lies from `start` on.
    pub(super) fn place(&mut self, start: u64, fragments: Vec<Fragment>) {
        let len: u64 = fragments.iter().map(|fragment| fragment.len).sum();
        if len == 0 {
            return;
        }
        self.split(start);
        self.split(start + len);
        while let Some((&key, _)) = self.fragments.range(start..start + len).next() {
            self.fragments.remove(&key);
        }
        let mut position = start;
        for fragment in fragments {
            let len = fragment.len;
            self.fragments.insert(position, fragment);
            position += len;
        }
    }

    fn split(&mut self, position: u64) {
        if position >= self.elems {
            return;
        }
        let (&start, fragment) = self.fragments.range_mut(..=position).next_back().expect("fragments leave no gaps");
        if start < position {
            let head = fragment.take(position - start);
            let tail = std::mem::replace(fragment, head);
            self.fragments.insert(position, tail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unions_find_what_is_common() {
        let (evens, none) = Contributors::only(0).union(&Contributors::only(2));
        assert_eq!(none, None);
        let (three, none) = evens.union(&Contributors::only(1));
        assert_eq!((three, none), (Contributors::all(3), None));
        assert_eq!(evens.union(&Contributors::all(2)).1, Some(0));
        assert_eq!(Contributors::all(4).first_outside(&evens), Some(1));
        assert_eq!(evens.first_outside(&Contributors::all(4)), None);
    }

    #[test]
    fn fragments_are_cut_where_spans_begin_and_end() {
        let mut contents = Contents::unwritten(10);
        contents.fill(Span::between(2, 8), 3);
        assert!(contents.read(Span::between(1, 3)).is_err());
        let read = contents.read(Span::between(4, 6)).ok().expect("written");
        assert_eq!(read, [Fragment { len: 2, value: Some(Value { who: Contributors::only(3), origin: 4 }) }]);
        contents.fill(Span::between(4, 5), 1);
        assert_eq!(contents.look(Span::between(0, 10)).len(), 5);
    }
}
