//! Lists of several ranks, compared by threads in one process.

use std::convert::Infallible;
use std::sync::{Arc, Barrier, Mutex};

use super::*;

const FIRST: Due = Due { depth: Depth::Whole, steps: 0 };

/// The request that ranks sum, by its name, and the sum so far.
type Sum = Mutex<Option<(String, Vec<u64>)>>;

/// What each rank finds. `joined` ranks have no list: they contribute neutral elements to whatever is reduced.
fn compared(lists: Vec<Option<ParameterList>>) -> Vec<Option<Divergence>> {
    let members: Vec<Rank> = (0..lists.len()).map(Rank::from).collect();
    let taking_part = lists.iter().flatten().count();
    let barrier = Arc::new(Barrier::new(taking_part));
    let sum: Arc<Sum> = Arc::default();
    let reduce = |barrier: &Barrier, sum: &Sum, name: &str, own: Vec<u64>, op| {
        match &mut *sum.lock().unwrap() {
            Some((known, values)) => {
                assert_eq!((known.as_str(), values.len()), (name, own.len()), "ranks ask for the same");
                for (value, own) in values.iter_mut().zip(own) {
                    *value = if op == ReduceOp::Min { own.min(*value) } else { own.wrapping_add(*value) };
                }
            }
            empty => *empty = Some((name.to_owned(), own)),
        }
        barrier.wait();
        let values = sum.lock().unwrap().clone().expect("a value").1;
        if barrier.wait().is_leader() {
            *sum.lock().unwrap() = None;
        }
        barrier.wait();
        Ok::<_, Infallible>(values)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = lists
            .into_iter()
            .enumerate()
            .filter_map(|(place, list)| Some((place, list?)))
            .map(|(place, mut list)| {
                let (members, barrier, sum) = (members.clone(), Arc::clone(&barrier), Arc::clone(&sum));
                scope.spawn(move || {
                    let Ok(found) = list
                        .compare_by("check", &members, place, |name, own, op| reduce(&barrier, &sum, name, own, op));
                    found
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn list(identity: MatchedBy, entries: &[(&str, f32)]) -> Option<ParameterList> {
    let mut list = ParameterList::new(identity);
    for (name, value) in entries {
        list.add(*name, &value.to_le_bytes(), Depth::Whole);
    }
    Some(list)
}

fn named(entries: &[(&str, f32)]) -> Option<ParameterList> {
    list(MatchedBy::Name, entries)
}

/// The warning, which one rank gives, and the minority, which all know.
fn told(found: &[Option<Divergence>]) -> (String, Vec<usize>) {
    let found: Vec<&Divergence> = found.iter().map(|one| one.as_ref().expect("a difference")).collect();
    let tellers: Vec<_> = found.iter().filter(|one| one.is_told_here).collect();
    assert_eq!(tellers.len(), 1, "one rank tells");
    assert!(found.iter().all(|one| one.minority() == found[0].minority()), "all ranks know the same");
    (tellers[0].warning(FIRST, "broadcast"), found[0].minority())
}

#[test]
fn equal_parameters_say_nothing_in_any_order_and_with_what_is_not_a_number() {
    let one = [("a", 1.0), ("b", f32::NAN), ("c", -0.0)];
    let other = [("c", -0.0), ("a", 1.0), ("b", f32::NAN)];
    assert!(compared(vec![named(&one), named(&other), named(&one)]).iter().all(Option::is_none));
}

#[test]
fn the_first_parameter_that_differs_is_named_with_the_minority() {
    let own = [("b", 1.0), ("a", 2.0), ("c", 3.0)];
    let other = [("b", 1.0), ("a", 2.5), ("c", 3.5)];
    let (text, minority) = told(&compared(vec![named(&own), named(&own), named(&other), named(&own)]));
    assert_eq!(minority, [2]);
    assert_eq!(
        text,
        "parameters differ between ranks before the first step; was broadcast forgotten? The first that differs is \
         \"a\": rank 2 differs from ranks 0, 1, 3"
    );
    let (text, minority) = told(&compared(vec![named(&own), named(&other)]));
    assert_eq!(minority, [0, 1]);
    assert!(text.ends_with("\"a\": rank 0 and rank 1 differ"), "{text}");
    let third = [("b", 1.0), ("a", 2.75), ("c", 3.0)];
    let (text, _) = told(&compared(vec![named(&third), named(&own), named(&other)]));
    assert!(text.ends_with("rank 0, rank 1, rank 2 differ from each other"), "{text}");
}

#[test]
fn a_zero_with_a_sign_differs_from_one_without() {
    told(&compared(vec![named(&[("a", 0.0)]), named(&[("a", -0.0)])]));
}

#[test]
fn ranks_with_other_parameters_or_none_are_told_so_and_nobody_waits() {
    let three = [("a", 1.0), ("b", 2.0), ("c", 3.0)];
    let two = [("c", 3.0), ("a", 1.0)];
    let (text, minority) = told(&compared(vec![named(&three), named(&two), named(&three)]));
    assert_eq!(minority, [1]);
    assert!(text.starts_with("optimizers have different parameters on the ranks, from \"b\" on: rank 1"), "{text}");
    let (text, minority) = told(&compared(vec![named(&[]), named(&three), named(&three)]));
    assert_eq!(minority, [0]);
    assert!(text.contains("from \"a\" on: rank 0 differs from ranks 1, 2"), "{text}");
    assert!(compared(vec![named(&[]), named(&[])]).iter().all(Option::is_none));
}

#[test]
fn names_are_only_shown_where_places_count() {
    let own = [("dense/kernel", 1.0), ("dense/bias", 2.0)];
    let other = [("dense_7/kernel", 1.0), ("dense_7/bias", 2.0)];
    let of = |entries| list(MatchedBy::Place, entries);
    assert!(compared(vec![of(&own), of(&other)]).iter().all(Option::is_none));
    let (text, _) = told(&compared(vec![of(&own), of(&[("x", 1.0), ("y", 4.0)])]));
    assert!(text.contains("The first that differs is \"dense/bias\""), "{text}");
}

#[test]
fn a_rank_that_has_joined_is_not_missed() {
    let own = [("a", 1.0), ("b", 2.0)];
    // Its contributions are neutral: the largest number for `Min`, zero for `Sum`.
    assert!(compared(vec![named(&own), None, named(&own)]).iter().all(Option::is_none));
    let (text, minority) = told(&compared(vec![None, named(&own), named(&[("a", 1.0), ("b", 2.5)])]));
    assert_eq!(minority, [1, 2]);
    assert!(text.ends_with("\"b\": rank 1 and rank 2 differ"), "{text}");
}

#[test]
fn a_sample_finds_other_initial_values_and_all_of_it_any_bit() {
    let own: Vec<u8> = (0..40_000u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let mut other = own.clone();
    other[20_000] ^= 1;
    let of = |bytes: &[u8], depth| {
        let mut list = ParameterList::new(MatchedBy::Name);
        list.add("a", bytes, depth);
        Some(list)
    };
    for (depth, is_found) in [(Depth::Sample, false), (Depth::Whole, true)] {
        let found = compared(vec![of(&own, depth), of(&other, depth)]);
        assert!(found.iter().all(|one| one.is_some() == is_found), "{depth:?}");
    }
    let random: Vec<u8> = own.iter().map(|byte| !byte).collect();
    told(&compared(vec![of(&own, Depth::Sample), of(&random, Depth::Sample)]));
}

#[test]
fn a_schedule_checks_once_or_every_so_many_steps_or_never() {
    let due = |every, after| {
        let mut schedule = CheckSchedule::new(every, after);
        (0..8).filter_map(|_| schedule.next_step()).map(|due| (due.depth, due.steps)).collect::<Vec<_>>()
    };
    assert_eq!(due(None, 0), [(Depth::Sample, 0)]);
    assert_eq!(due(None, 1), [(Depth::Sample, 1)]);
    assert_eq!(due(Some(0), 0), []);
    assert_eq!(due(Some(3), 0), [0, 3, 6].map(|steps| (Depth::Whole, steps)));
    assert_eq!(due(Some(3), 1), [1, 4, 7].map(|steps| (Depth::Whole, steps)));
    let mut schedule = CheckSchedule::new(Some(1), 0);
    assert!(schedule.next_step().is_some());
    schedule.end();
    assert_eq!(schedule.next_step(), None);
}

#[test]
fn ranks_are_written_in_runs() {
    assert_eq!(ranks_in_words(&[3]), "rank 3");
    assert_eq!(ranks_in_words(&[0, 1, 4, 5, 6, 9]), "ranks 0, 1, 4–6, 9");
}
