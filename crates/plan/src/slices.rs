//! The phase of a hierarchical allreduce that crosses hosts, in slices: [`Sliced`].
//!
//! A shard whose elements have to be fetched before they can travel, and brought back after it, is cut into *slices*,
//! one behind another on the network: while one travels, the next is fetched and the one before is brought back. Who
//! does so takes the steps of the schedule in order, those from [`Slice::first_step`] on only when the slice is there,
//! and may bring it back when all before [`Slice::end_step`] are taken.
//!
//! Two rules:
//! - *The bits do not depend on the cutting.* The ring folds an element in an order that follows from its chunk, so
//!   each chunk of the shard is cut, and slice `k` is made of the `k`-th piece of every chunk.
//! - *Links do not run dry between slices.* A slice ends with receives that wait for others; what the next one begins
//!   by sending is posted before them. Sends keep their order, and so do receives, on all ranks alike, so messages
//!   still find each other.
//!
//! Bytes and messages are those of `hierarchical`'s phase 2, except that the longest message is a slice's chunk. Where
//! slices come from and go to is not here.

use crate::algorithm::Tuning;
use crate::schedule::{Schedule, Span, Step};
use crate::team::{Team, joined};
use crate::{doubling, ring};

/// See the module's text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sliced {
    /// The steps of all slices.
    pub schedule: Schedule,
    /// In the order in which they travel.
    pub slices: Vec<Slice>,
}

/// Elements of a shard that travel together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Which ones: at least one span, none is empty, and no two touch.
    pub spans: Vec<Span>,
    /// The first step that uses them.
    pub first_step: usize,
    /// One past the last step that changes them. Posted sends may still read them.
    pub end_step: usize,
}

/// Allreduce of a shard among the team, in slices of about so many elements; zero: in one.
pub(crate) fn allreduce(team: &Team, shard: Span, slice_elems: u64, tuning: &Tuning) -> Sliced {
    let count = if slice_elems == 0 { 1 } else { shard.len.div_ceil(slice_elems) as usize };
    let members = team.size();
    let is_small = shard.len <= tuning.small_elems;
    let chunks: Vec<Span> = match is_small || members == 1 {
        true => vec![shard],
        false => (0..members).map(|member| shard.piece(member, members)).collect(),
    };
    let slice = |number: usize| {
        let pieces: Vec<Span> = chunks.iter().map(|chunk| chunk.piece(number, count)).collect();
        let steps = match pieces[..] {
            _ if members == 1 => Vec::new(),
            [whole] => doubling::allreduce(team, whole, tuning),
            _ => ring::allreduce_chunks(team, &pieces, tuning),
        };
        (joined(pieces), steps)
    };
    chain((0..count).map(slice).filter(|(spans, _)| !spans.is_empty()).collect())
}

/// Sets the steps of slices one behind another; what a slice sends first goes before the last receives of the one
/// before.
fn chain(slices: Vec<(Vec<Span>, Vec<Step>)>) -> Sliced {
    let is_send = |step: &Step| matches!(step, Step::Send { .. });
    let mut sliced = Sliced::default();
    let steps = &mut sliced.schedule.steps;
    // The last receives of the slice before, which come after what this one sends first.
    let mut held: Vec<Step> = Vec::new();
    for (spans, mut own) in slices {
        let begin = own.iter().position(|step| !is_send(step)).unwrap_or(own.len());
        let mut first_step = steps.len();
        steps.extend(own.drain(..begin));
        steps.append(&mut held);
        if begin == 0 {
            first_step = steps.len();
        }
        if let Some(before) = sliced.slices.last_mut() {
            before.end_step = steps.len();
        }
        let sent = own.iter().rposition(is_send).map_or(0, |last| last + 1);
        held = own.split_off(sent);
        steps.append(&mut own);
        sliced.slices.push(Slice { spans, first_step, end_step: 0 });
    }
    steps.append(&mut held);
    if let Some(last) = sliced.slices.last_mut() {
        last.end_step = steps.len();
    }
    sliced
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Rank;
    use crate::schedule::{Arrival, Buffer};

    const TUNING: Tuning = Tuning { segment_elems: 4, tile_elems: 4, slots: 1, small_elems: 0 };

    fn sliced(members: u32, me: u32, elems: u64, slice_elems: u64) -> Sliced {
        let team = Team::new((0..members).map(Rank).collect(), Rank(me));
        allreduce(&team, Span::between(0, elems), slice_elems, &TUNING)
    }

    #[test]
    fn slices_cover_the_shard_and_each_has_something_of_every_chunk() {
        let slices = sliced(2, 0, 20, 8).slices;
        let spans = |pairs: [(u64, u64); 2]| pairs.map(|(start, end)| Span::between(start, end)).to_vec();
        let expected = [spans([(0, 4), (10, 14)]), spans([(4, 7), (14, 17)]), spans([(7, 10), (17, 20)])];
        assert_eq!(slices.iter().map(|slice| slice.spans.clone()).collect::<Vec<_>>(), expected);
        for (elems, slice_elems) in [(1, 1), (5, 1), (7, 3), (100, 9), (13, 100), (13, 0)] {
            let mut spans: Vec<Span> =
                sliced(3, 1, elems, slice_elems).slices.into_iter().flat_map(|s| s.spans).collect();
            spans.sort_by_key(|span| span.start);
            assert_eq!(joined(spans), [Span::between(0, elems)], "{elems} elements, {slice_elems} in a slice");
        }
        assert_eq!(sliced(3, 1, 13, 0).slices.len(), 1);
        assert_eq!(sliced(2, 0, 0, 8), Sliced::default());
    }

    #[test]
    fn the_next_slice_is_under_way_before_the_last_receives_of_the_one_before() {
        let Sliced { schedule, slices } = sliced(2, 0, 8, 4);
        let send = |start, len| Step::Send { to: Rank(1), from: Buffer::Work, span: Span { start, len } };
        let recv = |start, len, arrival| Step::Recv { from: Rank(1), span: Span { start, len }, arrival };
        let (fold, place) = (Arrival::Fold, Arrival::Place);
        // Chunk 1 is sent first. Its first half is of the first slice.
        let expected = [
            send(4, 2),
            recv(0, 2, fold),
            send(0, 2),
            send(6, 2),
            recv(4, 2, place),
            recv(2, 2, fold),
            send(2, 2),
            recv(6, 2, place),
        ];
        assert_eq!(schedule.steps, expected);
        assert_eq!((slices[0].first_step, slices[0].end_step), (0, 5));
        assert_eq!((slices[1].first_step, slices[1].end_step), (3, 8));
    }

    /// Steps touch only slices that are there and not yet brought back.
    #[test]
    fn no_step_touches_a_slice_before_its_first_step_or_changes_it_after_its_end() {
        for members in 1..7 {
            for (me, small_elems) in (0..members).flat_map(|me| [(me, 0), (me, 1000)]) {
                let team = Team::new((0..members).map(Rank).collect(), Rank(me));
                let Sliced { schedule, slices } =
                    allreduce(&team, Span::between(0, 97), 10, &Tuning { small_elems, ..TUNING });
                assert!(slices.windows(2).all(|pair| pair[0].first_step <= pair[1].first_step));
                assert!(slices.windows(2).all(|pair| pair[0].end_step <= pair[1].end_step));
                for (number, step) in schedule.steps.iter().enumerate() {
                    let (span, changes) = match *step {
                        Step::Send { span, .. } => (span, false),
                        Step::Recv { span, .. } => (span, true),
                        ref other => panic!("{other:?}"),
                    };
                    let touched = |slice: &&Slice| slice.spans.iter().any(|own| own.overlaps(span));
                    for slice in slices.iter().filter(touched) {
                        assert!(number >= slice.first_step, "{members} members, rank {me}: {step:?} of {slice:?}");
                        assert!(!changes || number < slice.end_step, "{members} members: {step:?} of {slice:?}");
                    }
                }
            }
        }
    }

    /// What happens to an element, and in which order, is the same however the shard is cut.
    #[test]
    fn the_way_of_an_element_does_not_depend_on_the_cutting() {
        let way = |sliced: &Sliced, elem: u64| -> Vec<(Rank, Option<Arrival>)> {
            let of_step = |step: &Step| match *step {
                Step::Send { to, span, .. } => (span, (to, None)),
                Step::Recv { from, span, arrival } => (span, (from, Some(arrival))),
                ref other => panic!("{other:?}"),
            };
            let steps = sliced.schedule.steps.iter().map(of_step);
            steps.filter(|(span, _)| span.overlaps(Span { start: elem, len: 1 })).map(|(_, what)| what).collect()
        };
        for (members, me) in (2..6).flat_map(|members| (0..members).map(move |me| (members, me))) {
            let whole = sliced(members, me, 61, 0);
            for slice_elems in [1, 7, 30, 61] {
                let cut = sliced(members, me, 61, slice_elems);
                assert!((0..61).all(|elem| way(&cut, elem) == way(&whole, elem)), "{members} members, {slice_elems}");
            }
        }
    }
}
