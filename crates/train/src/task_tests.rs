//! Losses and metrics against numbers computed by hand.

use super::*;

fn numbers(values: &[f32], shape: [usize; 2]) -> Output {
    Output::Numbers(constant(values.to_vec(), shape, &Device::flex()))
}

fn images(values: &[f32], shape: [usize; 4]) -> Output {
    Output::Images(constant(values.to_vec(), shape, &Device::flex()))
}

fn loss_of(output: Output, labels: &Labels, task: Task, smoothing: f32) -> f64 {
    f64::from(loss(output, labels, task, smoothing).unwrap().into_scalar::<f32>())
}

fn assert_near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-6 * expected.abs().max(1.0), "{found} instead of {expected}");
}

fn metric(score: &Score, name: &str) -> f64 {
    score.metrics().into_iter().find(|(found, _)| *found == name).unwrap_or_else(|| panic!("no metric {name}")).1
}

const CLASSES: Task = Task::SingleLabel { classes: 3 };

#[test]
fn cross_entropy_is_minus_the_logarithm_of_the_right_class() {
    // exp: 1, 2, 1 -> shares 1/4, 1/2, 1/4; and all alike.
    let output = || numbers(&[0.0, 2f32.ln(), 0.0, 1.0, 1.0, 1.0], [2, 3]);
    let labels = Labels::Classes(vec![1, 2]);
    let expected = (2f64.ln() + 3f64.ln()) / 2.0;
    assert_near(loss_of(output(), &labels, CLASSES, 0.0), expected);
    // With smoothing 0.3 a tenth goes to each class.
    let first = 0.8 * 2f64.ln() + 0.2 * 4f64.ln();
    assert_near(loss_of(output(), &labels, CLASSES, 0.3), (first + 3f64.ln()) / 2.0);
    // Shares of classes, and two classes as mix-up gives them.
    let shares = Labels::Labels(vec![0.25, 0.75, 0.0, 0.0, 0.5, 0.5]);
    let mixed = Labels::Mixed { first: vec![0, 2], second: vec![1, 1], share: vec![0.25, 0.5] };
    let first = 0.25 * 4f64.ln() + 0.75 * 2f64.ln();
    for labels in [shares, mixed] {
        assert_near(loss_of(output(), &labels, CLASSES, 0.0), (first + 3f64.ln()) / 2.0);
    }
    let score = Score::of(output(), &labels, CLASSES).unwrap();
    assert_near(metric(&score, "loss"), expected);
    // The second sample's outputs are all alike: the first class wins, and it is not the right one.
    assert_near(metric(&score, "accuracy"), 0.5);
    assert!(score.metrics().iter().all(|(name, _)| *name != "top5"), "three classes have no best five");
}

#[test]
fn the_best_five_are_counted_from_six_classes_on() {
    let task = Task::SingleLabel { classes: 7 };
    let values = [7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0];
    let output = numbers(&values.repeat(4), [4, 7]);
    let score = Score::of(output, &Labels::Classes(vec![0, 4, 5, 6]), task).unwrap();
    assert_near(metric(&score, "accuracy"), 0.25);
    assert_near(metric(&score, "top5"), 0.5);
}

#[test]
fn a_network_that_gives_no_numbers_finds_nothing() {
    let score = Score::of(numbers(&[f32::NAN; 6], [2, 3]), &Labels::Classes(vec![0, 1]), CLASSES).unwrap();
    assert_near(metric(&score, "accuracy"), 0.0);
}

#[test]
fn labels_are_judged_one_by_one() {
    let task = Task::MultiLabel { labels: 3 };
    // Found: label 0 twice of three, one wrongly; label 1 never there and never found; label 2 always missed.
    let z = [1.0, -1.0, -2.0, 1.0, -1.0, -2.0, 1.0, -1.0, -2.0, -1.0, -1.0, -2.0];
    let truth = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0];
    let labels = Labels::Labels(truth.to_vec());
    let score = Score::of(numbers(&z, [4, 3]), &labels, task).unwrap();
    // Found 2, wrongly 1, missed 1 + 4.
    assert_near(metric(&score, "f1_micro"), 4.0 / (4.0 + 1.0 + 5.0));
    assert_near(metric(&score, "f1_macro"), (4.0 / 6.0 + 0.0) / 2.0);
    let by_hand: f64 = z
        .iter()
        .zip(truth)
        .map(|(&z, t)| {
            let p = 1.0 / (1.0 + f64::from(-z).exp());
            if t == 1.0 { -p.ln() } else { -(1.0 - p).ln() }
        })
        .sum::<f64>()
        / 12.0;
    assert_near(metric(&score, "loss"), by_hand);
    assert_near(loss_of(numbers(&z, [4, 3]), &labels, task, 0.0), by_hand);
    // Smoothed by 0.2, "applies" is 0.9 and "does not" 0.1: at z = 0 nothing changes.
    let flat = numbers(&[0.0; 12], [4, 3]);
    assert_near(loss_of(flat, &labels, task, 0.2), 2f64.ln());
}

#[test]
fn numbers_are_judged_by_their_distance() {
    let labels = Labels::Values(vec![10.0, 20.0]);
    let output = || numbers(&[13.0, 16.0], [2, 1]);
    assert_near(loss_of(output(), &labels, Task::Regression, 0.0), (9.0 + 16.0) / 2.0);
    let score = Score::of(output(), &labels, Task::Regression).unwrap();
    assert_near(metric(&score, "mae"), 3.5);
    assert_near(metric(&score, "rmse"), 12.5f64.sqrt());
    assert_eq!(score.headline().unwrap().0, "mae");
}

#[test]
fn larger_images_are_judged_by_signal_to_noise() {
    let task = Task::SuperResolution { scale: 2 };
    let shape = [2, 1, 2, 2];
    let truth = [0.0, 2.0, 0.0, 2.0, 0.0, 1.0, 0.0, 1.0];
    // The first is off by 0.2 everywhere: range 2, noise 0.04, 20 dB. The second is exact.
    let output = || images(&[0.2, 2.2, -0.2, 1.8, 0.0, 1.0, 0.0, 1.0], shape);
    let labels = Labels::Images(truth.to_vec());
    assert_near(loss_of(output(), &labels, task, 0.0), 0.1);
    let score = Score::of(output(), &labels, task).unwrap();
    assert_near(metric(&score, "loss"), 0.1);
    assert_near(metric(&score, "psnr"), (20.0 + 100.0) / 2.0);
}

#[test]
fn scores_of_parts_add_up_to_the_score_of_the_whole() {
    let task = Task::MultiLabel { labels: 2 };
    let z = [0.5, -1.0, 2.0, 0.25, -0.75, 1.5];
    let truth = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0];
    let part = |range: std::ops::Range<usize>| {
        let samples = range.len() / 2;
        Score::of(numbers(&z[range.clone()], [samples, 2]), &Labels::Labels(truth[range].to_vec()), task).unwrap()
    };
    let mut sum = Score::new(task);
    assert!(sum.metrics().is_empty() && sum.headline().is_none(), "nothing is known of no samples");
    sum.add(&part(0..2));
    sum.add(&part(2..6));
    let whole = part(0..6);
    for ((name, found), (_, expected)) in sum.metrics().into_iter().zip(whole.metrics()) {
        assert!((found - expected).abs() < 1e-12, "{name}: {found} instead of {expected}");
    }
    assert_eq!(Score::from_sums(task, &whole.sums()), Some(whole.clone()));
    assert_eq!(Score::from_sums(CLASSES, &whole.sums()), None, "another task has other sums");
    assert_eq!(sum.samples(), 3);
}

#[test]
fn what_does_not_belong_together_is_named() {
    let error = |output, labels: Labels, task| loss(output, &labels, task, 0.0).unwrap_err().to_string();
    let three = || numbers(&[0.0; 3], [1, 3]);
    assert!(error(three(), Labels::Classes(vec![3]), CLASSES).contains("class 3, but there are only classes 0 to 2"));
    assert!(error(three(), Labels::Classes(vec![0, 1]), CLASSES).contains("2 class numbers for 1 samples"));
    assert!(error(three(), Labels::Values(vec![0.0]), CLASSES).contains("1 values"));
    let four = Task::SingleLabel { classes: 4 };
    assert!(error(three(), Labels::Classes(vec![0]), four).contains("3 outputs for 4 classes"));
    assert!(Score::of(three(), &Labels::Classes(vec![9]), CLASSES).is_err());
    assert!(Score::of(images(&[0.0], [1, 1, 1, 1]), &Labels::Classes(vec![0]), CLASSES).is_err());
}
