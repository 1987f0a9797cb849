//! Whatever a job did, its time sums to the whole, and the efficiencies multiply.

mod jobs;

use farandole_insight::efficiency::Efficiencies;
use farandole_insight::history::{History, PhaseKind};
use farandole_insight::loss::TimeSplit;
use farandole_insight::profile::{DEFAULT_BOUNDS_BYTES, Filter, Profile, ProfileView};
use farandole_insight::replay::{Change, IDEAL_NETWORK, replayed_ns};
use farandole_trace::event::Collective;
use jobs::{Cost, Sketch};
use proptest::prelude::*;

/// Something that a job may do next.
#[derive(Clone, Debug)]
enum Next {
    Compute(usize, u64),
    Input(usize, u64),
    Checkpoint(usize, u64),
    Own(usize, u64),
    Phase(usize, bool, u64),
    Iteration,
    Submit(bool, u64, Cost),
    Wait(usize),
}

fn next(size: usize) -> impl Strategy<Value = Next> {
    let rank = 0..size;
    let ns = 0..1000u64;
    let cost =
        (0..50u64, 0..50u64, 0..500u64, 0..50u64).prop_map(|(agreement_ns, packing_ns, transfer_ns, unpacking_ns)| {
            Cost { agreement_ns, packing_ns, transfer_ns, unpacking_ns }
        });
    prop_oneof![
        (rank.clone(), ns.clone()).prop_map(|(rank, ns)| Next::Compute(rank, ns)),
        (rank.clone(), ns.clone()).prop_map(|(rank, ns)| Next::Input(rank, ns)),
        (rank.clone(), ns.clone()).prop_map(|(rank, ns)| Next::Checkpoint(rank, ns)),
        (rank.clone(), ns.clone()).prop_map(|(rank, ns)| Next::Own(rank, ns)),
        (rank.clone(), any::<bool>(), ns).prop_map(|(rank, test, ns)| Next::Phase(rank, test, ns)),
        Just(Next::Iteration),
        (any::<bool>(), 0..1u64 << 28, cost).prop_map(|(all, bytes, cost)| Next::Submit(all, bytes, cost)),
        rank.prop_map(Next::Wait),
    ]
}

fn played(size: usize, story: Vec<Next>) -> History {
    let mut sketch = Sketch::new(size);
    let (mut number, mut open) = (0, Vec::new());
    for next in story {
        match next {
            Next::Compute(rank, ns) => sketch.compute(rank, ns),
            Next::Input(rank, ns) => sketch.input(rank, ns),
            Next::Checkpoint(rank, ns) => sketch.checkpoint(rank, ns),
            Next::Own(rank, ns) => sketch.own(rank, ns, Some("train.py:42 in log")),
            Next::Phase(rank, test, ns) => {
                let (name, kind) =
                    if test { ("evaluation", PhaseKind::Evaluation) } else { ("forward", PhaseKind::Training) };
                sketch.phase(rank, name, kind, ns);
            }
            Next::Iteration => {
                sketch.iteration(number, number / 3);
                number += 1;
            }
            Next::Submit(all, bytes, cost) => {
                let members: Vec<usize> = if all { (0..size).collect() } else { (0..size.div_ceil(2)).collect() };
                let group = u32::from(!all);
                let parts = [bytes / 3, bytes - bytes / 3];
                open.push((members.len(), sketch.submit_in(group, &members, Collective::Allreduce, &parts, cost)));
            }
            Next::Wait(rank) => {
                if let Some((_, operation)) = open.iter().rev().find(|(members, _)| rank < *members) {
                    sketch.wait(rank, *operation);
                }
            }
        }
    }
    sketch.finish()
}

fn histories() -> impl Strategy<Value = History> {
    (1usize..5)
        .prop_flat_map(|size| prop::collection::vec(next(size), 0..60).prop_map(move |story| played(size, story)))
}

fn sums_to_the_whole(history: &History) -> Result<(), TestCaseError> {
    prop_assert_eq!(history.check(), Ok(()));
    let split = TimeSplit::of(history);
    let lost_ns: u64 = split.losses.iter().map(|loss| loss.ns).sum();
    prop_assert_eq!(split.useful_ns + lost_ns, split.total_ns);
    for (rank, strip) in split.strips.iter().enumerate() {
        let ns: u64 = strip.iter().map(|piece| piece.to_ns - piece.from_ns).sum();
        prop_assert_eq!(ns, history.end_ns, "rank {}", rank);
        prop_assert!(strip.windows(2).all(|pair| pair[0].to_ns == pair[1].from_ns && pair[0].cause != pair[1].cause));
        let useful_ns: u64 =
            strip.iter().filter(|piece| piece.cause.is_none()).map(|piece| piece.to_ns - piece.from_ns).sum();
        prop_assert_eq!(useful_ns, history.ranks[rank].useful_ns());
    }
    for loss in &split.losses {
        prop_assert_eq!(loss.evidence.by_rank_ns.iter().sum::<u64>(), loss.ns);
    }
    Ok(())
}

proptest! {
    #[test]
    fn time_sums_to_the_whole_in_any_history(history in histories()) {
        sums_to_the_whole(&history)?;
    }

    #[test]
    fn time_sums_to_the_whole_in_any_window(history in histories(), from in 0u64..10, length in 0u64..5) {
        let window = farandole_insight::history::TimeWindow::Iterations(from, from + length);
        if let Ok(part) = history.cut(&window) {
            sums_to_the_whole(&part)?;
            prop_assert!(part.end_ns <= history.end_ns);
        }
    }

    #[test]
    fn a_replay_without_changes_takes_as_long_and_an_ideal_network_no_longer(history in histories()) {
        prop_assert_eq!(replayed_ns(&history, &[]), history.end_ns);
        let ideal_ns = replayed_ns(&history, &IDEAL_NETWORK);
        prop_assert!(ideal_ns <= history.end_ns);
        prop_assert!(history.ranks.iter().all(|rank| rank.useful_ns() <= ideal_ns));
        for change in [Change::NoInputWait, Change::NoOwnCode, Change::NoCheckpoint, Change::NoAgreement, Change::NoPacking, Change::NotLate(0)] {
            prop_assert!(replayed_ns(&history, std::slice::from_ref(&change)) <= history.end_ns, "{:?}", change);
        }
    }

    #[test]
    fn efficiencies_multiply(history in histories()) {
        let efficiencies = Efficiencies::of(&history);
        prop_assert!((efficiencies.load_balance * efficiencies.communication - efficiencies.parallel).abs() < 1e-9);
        prop_assert!((efficiencies.serialisation * efficiencies.transfer - efficiencies.communication).abs() < 1e-9);
        prop_assert!(efficiencies.serialisation <= efficiencies.own_code + 1e-9, "own code is a factor of serialisation");
        prop_assert!(efficiencies.named().iter().all(|(_, value)| (0.0..=1.0 + 1e-9).contains(value)));
    }

    #[test]
    fn bins_hold_every_message_once_in_both_views(history in histories()) {
        let fused = Profile::of(&history, ProfileView::Fused, Filter::default(), &DEFAULT_BOUNDS_BYTES).total();
        let unfused = Profile::of(&history, ProfileView::Unfused, Filter::default(), &DEFAULT_BOUNDS_BYTES).total();
        prop_assert_eq!(fused.calls, history.operations.len() as u64);
        prop_assert_eq!(unfused.calls, 2 * fused.calls);
        prop_assert_eq!((fused.bytes, fused.ns), (unfused.bytes, unfused.ns));
    }
}
