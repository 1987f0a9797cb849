//! Histories whose answer is known by arithmetic: where the time went, the efficiencies, and what a change would bring.

mod jobs;

use farandole_insight::efficiency::{AgainstReference, Efficiencies, Scaling};
use farandole_insight::history::{History, PhaseKind, TimeWindow};
use farandole_insight::loss::{LossCause, TimeSplit};
use farandole_insight::replay::{Change, predicted_ns, replayed_ns};
use farandole_trace::event::Collective;
use jobs::{Cost, EXCHANGE, MS, Sketch};

fn losses(split: &TimeSplit) -> Vec<(LossCause, u64)> {
    split.losses.iter().map(|loss| (loss.cause.clone(), loss.ns)).collect()
}

/// What must hold for any history: lanes are whole, parts sum to the whole, nothing changed takes as long as it took.
fn sound(history: &History) -> TimeSplit {
    assert_eq!(history.check(), Ok(()));
    let split = TimeSplit::of(history);
    let lost_ns: u64 = split.losses.iter().map(|loss| loss.ns).sum();
    assert_eq!(split.useful_ns + lost_ns, split.total_ns);
    assert_eq!(replayed_ns(history, &[]), history.end_ns);
    let efficiencies = Efficiencies::of(history);
    assert!((efficiencies.load_balance * efficiencies.communication - efficiencies.parallel).abs() < 1e-12);
    assert!((efficiencies.serialisation * efficiencies.transfer - efficiencies.communication).abs() < 1e-12);
    assert!((efficiencies.parallel - split.useful_ns as f64 / split.total_ns as f64).abs() < 1e-12);
    split
}

#[test]
fn a_perfect_run_loses_nothing() {
    let mut sketch = Sketch::new(4);
    for number in 0..10 {
        sketch.iteration(number, 0);
        (0..4).for_each(|rank| sketch.compute(rank, 50 * MS));
        sketch.allreduce(1 << 20, Cost::default());
    }
    let history = sketch.finish();
    let split = sound(&history);
    assert_eq!(split.losses, []);
    assert_eq!(Efficiencies::of(&history).named().map(|(_, value)| value), [1.0; 6]);
}

#[test]
fn ranks_that_starve_alike_lose_to_input_although_the_model_says_communication() {
    let mut sketch = Sketch::new(4);
    for number in 0..10 {
        sketch.iteration(number, 0);
        (0..4).for_each(|rank| sketch.input(rank, 60 * MS));
        (0..4).for_each(|rank| sketch.compute(rank, 38 * MS));
        sketch.allreduce(1 << 20, EXCHANGE);
    }
    let history = sketch.finish();
    let split = sound(&history);
    assert_eq!(history.end_ns, 1000 * MS);
    assert_eq!(
        losses(&split),
        [
            (LossCause::Input, 2400 * MS),
            (LossCause::Transfer, 40 * MS),
            (LossCause::Agreement, 20 * MS),
            (LossCause::Packing, 20 * MS)
        ]
    );
    let efficiencies = Efficiencies::of(&history);
    assert_eq!(efficiencies.load_balance, 1.0);
    assert_eq!(efficiencies.communication, 0.38);
    assert_eq!(efficiencies.transfer, 0.98);
    assert_eq!(predicted_ns(&history, &[Change::NoInputWait]), 400 * MS);
    assert_eq!(split.losses[0].evidence.iterations_hit, 10);
}

#[test]
fn own_code_of_all_ranks_is_a_loss_of_its_own() {
    let history = jobs::own_code();
    let split = sound(&history);
    assert_eq!(history.end_ns, 1000 * MS);
    assert_eq!(losses(&split)[0], (LossCause::Own, 4 * 300 * MS));
    assert_eq!((split.useful_ns, split.exposed_ns()), (4 * 680 * MS, 4 * 20 * MS));
    assert_eq!(split.losses[0].responsible, [0; 0]);
    assert_eq!(predicted_ns(&history, &[Change::NoOwnCode]), 700 * MS);
    let efficiencies = Efficiencies::of(&history);
    assert_eq!((efficiencies.parallel, efficiencies.load_balance), (0.68, 1.0));
    // On an ideal network it takes 980 ms, without own code 680.
    assert!((efficiencies.own_code - 680.0 / 980.0).abs() < 1e-12);
    assert!((efficiencies.serialisation - efficiencies.own_code).abs() < 1e-12, "nothing else serialises");
}

#[test]
fn own_code_on_one_rank_is_everybody_s_loss_and_its_doing() {
    let history = jobs::own_code_on_one();
    let split = sound(&history);
    assert_eq!(history.end_ns, 990 * MS);
    // 30 ms on rank 0 in each iteration; the others are in own code for 1 ms and wait for 29.
    assert_eq!(losses(&split)[0], (LossCause::Own, 4 * 300 * MS));
    assert_eq!((split.losses[0].responsible.as_slice(), split.lost_ns("late")), (&[0][..], 0));
    assert_eq!(split.losses[0].name(), "the script's own code on rank 0");
}

#[test]
fn one_late_rank_is_named() {
    let mut sketch = Sketch::new(4);
    for number in 0..10 {
        sketch.iteration(number, 0);
        (0..4).for_each(|rank| sketch.compute(rank, if rank == 3 { 98 * MS } else { 48 * MS }));
        sketch.allreduce(1 << 20, EXCHANGE);
    }
    let history = sketch.finish();
    let split = sound(&history);
    assert_eq!(losses(&split)[0], (LossCause::Late(3), 3 * 500 * MS));
    assert_eq!(split.exposed_ns(), 4 * 20 * MS);
    assert_eq!(split.losses[0].evidence.by_rank_ns, [500 * MS, 500 * MS, 500 * MS, 0]);
    let efficiencies = Efficiencies::of(&history);
    assert_eq!(efficiencies.load_balance, (3.0 * 48.0 + 98.0) / 4.0 / 98.0);
    assert_eq!(efficiencies.communication, 0.98);
    assert_eq!(predicted_ns(&history, &[Change::NotLate(3)]), 500 * MS);
    assert_eq!(predicted_ns(&history, &[Change::NotLate(1)]), 1000 * MS);
}

#[test]
fn a_rank_that_is_late_for_lack_of_input_loses_everybody_s_time_to_input() {
    let mut sketch = Sketch::new(2);
    sketch.input(1, 30 * MS);
    (0..2).for_each(|rank| sketch.compute(rank, 10 * MS));
    sketch.allreduce(8, Cost::default());
    let history = sketch.finish();
    // Rank 0 arrives at 10 ms and waits until 40 ms. Rank 1 works during the last ten of these, but as long as rank 0
    // did.
    assert_eq!(losses(&sound(&history)), [(LossCause::Input, 60 * MS)]);
}

#[test]
fn a_rank_that_starves_and_is_slow_is_both_in_proportion() {
    let mut sketch = Sketch::new(2);
    sketch.input(1, 30 * MS);
    sketch.compute(0, 10 * MS);
    sketch.compute(1, 20 * MS);
    sketch.allreduce(8, Cost::default());
    // Rank 0 waits 40 ms: 30 for the other's input, 10 for its longer work.
    assert_eq!(losses(&sound(&sketch.finish())), [(LossCause::Input, 60 * MS), (LossCause::Late(1), 10 * MS)]);
}

#[test]
fn a_rank_that_falls_behind_bucket_by_bucket_is_late_by_all_of_it() {
    // Rank 1 needs 12 ms for each of five buckets, rank 0 needs 10; only the last is waited for.
    let mut sketch = Sketch::new(2);
    let mut last = 0;
    for _ in 0..5 {
        sketch.input(0, MS);
        sketch.compute(0, 10 * MS);
        sketch.compute(1, 12 * MS);
        last = sketch.submit(Collective::Allreduce, &[1 << 20], Cost::default());
    }
    (0..2).for_each(|rank| sketch.wait(rank, last));
    assert_eq!(losses(&sound(&sketch.finish())), [(LossCause::Input, 5 * MS), (LossCause::Late(1), 5 * MS)]);
}

#[test]
fn evaluation_on_one_rank_is_a_sequential_phase() {
    let mut sketch = Sketch::new(4);
    for epoch in 0..2 {
        for number in 0..5 {
            sketch.iteration(5 * epoch + number, epoch);
            (0..4).for_each(|rank| sketch.compute(rank, 10 * MS));
            sketch.allreduce(1 << 20, Cost::default());
        }
        sketch.phase(0, "evaluation", PhaseKind::Evaluation, 40 * MS);
        sketch.allreduce(4, Cost::default());
    }
    let history = sketch.finish();
    let split = sound(&history);
    assert_eq!(history.end_ns, 180 * MS);
    assert_eq!(losses(&split), [(LossCause::Sequential("evaluation".to_owned()), 3 * 80 * MS)]);
    assert_eq!(predicted_ns(&history, &[Change::Shared("evaluation".to_owned())]), 120 * MS);
    assert_eq!(predicted_ns(&history, &[Change::Moved("evaluation".to_owned())]), 100 * MS);
    // It is not work that rank 0 is slow at.
    assert_eq!(predicted_ns(&history, &[Change::NotLate(0)]), 180 * MS);
    let evaluation = history.cut(&TimeWindow::Phase("evaluation".to_owned())).unwrap();
    assert_eq!((evaluation.end_ns, Efficiencies::of(&evaluation).parallel), (80 * MS, 0.25));
}

#[test]
fn evaluation_on_all_ranks_is_work_and_the_slowest_one_is_late() {
    let mut sketch = Sketch::new(2);
    sketch.phase(0, "evaluation", PhaseKind::Evaluation, 40 * MS);
    sketch.phase(1, "evaluation", PhaseKind::Evaluation, 60 * MS);
    sketch.allreduce(4, Cost::default());
    assert_eq!(losses(&sound(&sketch.finish())), [(LossCause::Late(1), 20 * MS)]);
}

#[test]
fn others_that_have_gone_home_wait_for_the_sequential_phase_too() {
    let mut sketch = Sketch::new(2);
    sketch.allreduce(4, EXCHANGE);
    sketch.phase(0, "evaluation", PhaseKind::Evaluation, 40 * MS);
    let split = sound(&sketch.finish());
    assert_eq!(losses(&split)[0], (LossCause::Sequential("evaluation".to_owned()), 40 * MS));
}

#[test]
fn a_slow_link_is_transfer() {
    let mut sketch = Sketch::new(2);
    for number in 0..10 {
        sketch.iteration(number, 0);
        (0..2).for_each(|rank| sketch.compute(rank, 20 * MS));
        sketch.allreduce(64 << 20, Cost { transfer_ns: 80 * MS, ..Cost::default() });
    }
    let history = sketch.finish();
    assert_eq!(losses(&sound(&history)), [(LossCause::Transfer, 1600 * MS)]);
    let efficiencies = Efficiencies::of(&history);
    assert_eq!((efficiencies.transfer, efficiencies.serialisation), (0.2, 1.0));
    assert_eq!(predicted_ns(&history, &[Change::Transfer(0.5)]), 600 * MS);
}

#[test]
fn tiny_tensors_lose_to_agreement_and_to_those_before_them() {
    let mut sketch = Sketch::new(2);
    (0..2).for_each(|rank| sketch.compute(rank, 100 * MS));
    let cost = Cost { agreement_ns: MS, transfer_ns: MS, ..Cost::default() };
    let operations: Vec<usize> = (0..50).map(|_| sketch.submit(Collective::Allreduce, &[512], cost)).collect();
    // A rank that waits for the last alone waits for all of them.
    (0..2).for_each(|rank| sketch.wait(rank, operations[49]));
    let history = sketch.finish();
    assert_eq!(history.end_ns, 200 * MS);
    assert_eq!(losses(&sound(&history)), [(LossCause::Agreement, 100 * MS), (LossCause::Transfer, 100 * MS)]);
    assert_eq!(predicted_ns(&history, &[Change::NoAgreement]), 150 * MS);
}

#[test]
fn communication_behind_work_is_no_loss() {
    let mut sketch = Sketch::new(2);
    (0..2).for_each(|rank| sketch.compute(rank, 10 * MS));
    let first = sketch.submit(Collective::Allreduce, &[1 << 20], Cost { transfer_ns: 8 * MS, ..Cost::default() });
    (0..2).for_each(|rank| sketch.compute(rank, 5 * MS));
    (0..2).for_each(|rank| sketch.wait(rank, first));
    let history = sketch.finish();
    let split = sound(&history);
    assert_eq!(losses(&split), [(LossCause::Transfer, 2 * 3 * MS)]);
    assert_eq!((split.exposed_ns(), split.overlapped_ns), (2 * 3 * MS, 2 * 5 * MS));
    assert_eq!(predicted_ns(&history, &[Change::Transfer(0.5)]), 15 * MS);
}

#[test]
fn checkpoints_of_one_rank_cost_everybody() {
    let mut sketch = Sketch::new(4);
    (0..4).for_each(|rank| sketch.compute(rank, 10 * MS));
    sketch.checkpoint(0, 10 * MS);
    sketch.allreduce(8, Cost::default());
    let history = sketch.finish();
    assert_eq!(losses(&sound(&history)), [(LossCause::Checkpoint, 40 * MS)]);
    assert_eq!(predicted_ns(&history, &[Change::NoCheckpoint]), 10 * MS);
}

#[test]
fn who_waits_for_a_waiting_rank_waits_for_what_that_one_waits_for() {
    // Ranks 0 and 1 exchange for 20 ms; rank 2 waits for rank 1, which has not come because of that.
    let mut sketch = Sketch::new(3);
    let cost = Cost { transfer_ns: 20 * MS, ..Cost::default() };
    let pair = sketch.submit_in(1, &[0, 1], Collective::Allreduce, &[1 << 20], cost);
    (0..2).for_each(|rank| sketch.wait(rank, pair));
    sketch.allreduce(8, Cost::default());
    assert_eq!(losses(&sound(&sketch.finish())), [(LossCause::Transfer, 60 * MS)]);
}

#[test]
fn a_window_is_a_history_of_its_own() {
    let mut sketch = Sketch::new(2);
    for number in 0..10 {
        sketch.iteration(number, number / 5);
        (0..2).for_each(|rank| sketch.compute(rank, if number < 5 { 10 * MS } else { 30 * MS }));
        sketch.allreduce(1 << 20, Cost { transfer_ns: 10 * MS, ..Cost::default() });
    }
    let history = sketch.finish();
    let first = history.cut(&"epochs=0".parse().unwrap()).unwrap();
    let second = history.cut(&"iterations=5..9".parse().unwrap()).unwrap();
    sound(&first);
    sound(&second);
    assert_eq!((first.end_ns, Efficiencies::of(&first).parallel), (100 * MS, 0.5));
    assert_eq!((second.end_ns, Efficiencies::of(&second).parallel), (200 * MS, 0.75));
    assert!(history.cut(&"iterations=11..12".parse().unwrap()).is_err());
    for nonsense in ["iterations", "iterations=5..2", "seconds=a", "phase=", "weeks=1"] {
        assert!(nonsense.parse::<TimeWindow>().unwrap_err().to_string().contains("iterations=10..20"), "{nonsense}");
    }
}

#[test]
fn scaling_compares_the_same_work() {
    let run = |size: usize, work_ns: u64| {
        let mut sketch = Sketch::new(size);
        for number in 0..10 {
            sketch.iteration(number, 0);
            (0..size).for_each(|rank| sketch.compute(rank, work_ns));
            sketch.allreduce(1 << 20, Cost { transfer_ns: if size > 1 { 10 * MS } else { 0 }, ..Cost::default() });
        }
        sketch.finish()
    };
    // Four ranks share the batch, and a quarter of it takes 15 ms where 10 would have been fair: 0.67 of the work's
    // speed.
    let strong = AgainstReference::of(&run(4, 15 * MS), &run(1, 40 * MS), Scaling::Strong).unwrap();
    assert!((strong.computation_scaling - 40.0 / 60.0).abs() < 1e-12);
    assert!((strong.speedup - 40.0 / 25.0).abs() < 1e-12 && (strong.global - 0.6 * 40.0 / 60.0).abs() < 1e-12);
    let weak = AgainstReference::of(&run(4, 40 * MS), &run(1, 40 * MS), Scaling::Weak).unwrap();
    assert!((weak.computation_scaling - 1.0).abs() < 1e-12 && (weak.speedup - 3.2).abs() < 1e-12);
}
