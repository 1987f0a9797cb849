//! Studies whose outcome is known by arithmetic.

use super::*;

fn axes(kind: StudyKind) -> Axes {
    Axes {
        kind,
        models: vec!["m".into()],
        ranks: vec![1, 2, 4],
        threads: 1,
        batches: vec![8, 16, 32],
        total_batch: 32,
        precisions: vec!["f32".into()],
        planes: vec!["staged".into(), "own".into(), "nccl".into()],
        cores: 4,
        baseline: None,
        input: None,
    }
}

fn runs(points: &[StudyPoint], values: &[&[f64]]) -> Vec<Run> {
    let run = |point: &StudyPoint, repeat: usize, per_s: f64| Run {
        point: point.clone(),
        repeat,
        seconds: 1.0,
        outcome: RunOutcome::Measured(Measured {
            per_s,
            unit: "samples".into(),
            phases: vec![("forward".into(), per_s / 1000.0)],
            split: vec![("work".into(), 100.0)],
            messages: Vec::new(),
            input: None,
        }),
    };
    let of_point = |(point, values): (&StudyPoint, &&[f64])| -> Vec<Run> {
        values.iter().enumerate().map(|(repeat, &value)| run(point, repeat, value)).collect()
    };
    points.iter().zip(values).flat_map(of_point).collect()
}

fn findings(kind: StudyKind, values: &[&[f64]]) -> Findings {
    let axes = axes(kind);
    let points = sweep::points(&axes).unwrap();
    Findings::of(&axes, &points, &runs(&points, values)).unwrap()
}

#[test]
fn speed_up_and_efficiency_are_relative_to_the_baseline() {
    let findings = findings(StudyKind::Weak, &[&[100.0, 90.0, 110.0], &[180.0], &[340.0]]);
    assert_eq!(findings.rows[0].median, Some(100.0));
    assert!((findings.rows[0].spread - 0.2).abs() < 1e-12);
    assert_eq!(findings.rows[1].speedup, Some(1.8));
    assert_eq!(findings.rows[2].efficiency, Some(0.85));
    assert!(
        findings.headline.contains("4 ranks do 3.40×") && findings.headline.contains("85 %"),
        "{}",
        findings.headline
    );
    assert!(findings.sentences[0].starts_with("Gustafson: 20.0 %"), "{:?}", findings.sentences);
    assert_eq!(findings.rows[0].phases, [("forward".to_owned(), 0.1)]);
}

#[test]
fn without_a_baseline_nothing_is_called_efficient() {
    let weak = findings(StudyKind::Weak, &[&[], &[180.0], &[340.0]]);
    assert_eq!(weak.headline, "4 ranks do 340 samples/s; the baseline was not measured (weak scaling)");
    assert_eq!(
        findings(StudyKind::Weak, &[&[100.0], &[], &[]]).headline.split(" the work").next(),
        Some("1 rank does 1.00×")
    );
    let models = findings(StudyKind::Models, &[&[], &[180.0], &[340.0]]);
    assert_eq!(models.headline, "m is fastest: 340 samples/s");
}

#[test]
fn superlinear_points_and_outliers_are_flagged() {
    let findings = findings(StudyKind::Strong, &[&[100.0, 101.0, 60.0, 99.0], &[230.0], &[380.0]]);
    assert_eq!(findings.rows[0].outliers, [2]);
    assert!(findings.rows[1].superlinear && !findings.rows[2].superlinear);
    assert!(
        findings.sentences.iter().any(|sentence| sentence.contains("2 ranks is faster")),
        "{:?}",
        findings.sentences
    );
    assert!(findings.sentences.iter().any(|sentence| sentence.contains("run 3 gave 60.0")), "{:?}", findings.sentences);
}

#[test]
fn the_knee_of_the_batch_is_named() {
    let axes = Axes { ranks: vec![4], ..axes(StudyKind::Batch) };
    let points = sweep::points(&axes).unwrap();
    let findings = Findings::of(&axes, &points, &runs(&points, &[&[100.0], &[190.0], &[200.0]])).unwrap();
    assert_eq!(findings.headline, "A batch of 16 on each rank is enough; the best is 200 samples/s at 32");
    assert!(findings.sentences[0].contains("for each sample"), "{:?}", findings.sentences);
    assert_eq!(findings.rows[2].efficiency, None);
}

#[test]
fn every_number_of_ranks_has_its_own_knee_baseline_and_fastest_precision() {
    let values: [&[f64]; 6] = [&[100.0], &[190.0], &[200.0], &[100.0], &[200.0], &[400.0]];
    let axes_ = Axes { ranks: vec![1, 2], ..axes(StudyKind::Batch) };
    let points = sweep::points(&axes_).unwrap();
    let batch = Findings::of(&axes_, &points, &runs(&points, &values)).unwrap();
    assert_eq!(
        batch.headline,
        "A batch on each rank of 16 (1 rank), 32 (2 ranks) is enough; the best is 400 samples/s at 32 on 2 ranks"
    );
    assert_eq!(batch.rows[5].speedup, Some(4.0));
    assert_eq!(batch.rows.iter().filter(|row| row.baseline).count(), 2);
    assert!(batch.sentences[0].starts_with("1 rank: ") && batch.sentences[1].starts_with("2 ranks: "));
    let precisions = vec!["f32".to_owned(), "bf16-wire".to_owned()];
    let axes_ = Axes { ranks: vec![1, 2], precisions, ..axes(StudyKind::Precision) };
    let points = sweep::points(&axes_).unwrap();
    let values: [&[f64]; 4] = [&[100.0], &[90.0], &[150.0], &[180.0]];
    let precision = Findings::of(&axes_, &points, &runs(&points, &values)).unwrap();
    let said = "f32 is fastest on 1 rank: 100 samples/s; bf16-wire is fastest on 2 ranks: 180 samples/s";
    assert_eq!(precision.headline, said);
    assert_eq!(precision.rows[3].speedup, Some(1.2));
}

#[test]
fn the_best_layout_is_named() {
    let findings = findings(StudyKind::Threads, &[&[100.0], &[150.0], &[120.0]]);
    assert!(findings.headline.starts_with("2 ranks × 2 threads is the best layout"), "{}", findings.headline);
}

#[test]
fn a_point_that_failed_is_told_and_leaves_the_others_their_figures() {
    let axes = axes(StudyKind::Weak);
    let points = sweep::points(&axes).unwrap();
    let mut runs = runs(&points, &[&[100.0], &[], &[300.0]]);
    runs.push(Run {
        point: points[1].clone(),
        repeat: 0,
        seconds: 1.0,
        outcome: RunOutcome::Failed("no memory".into()),
    });
    let findings = Findings::of(&axes, &points, &runs).unwrap();
    assert_eq!(findings.failed(), 1);
    assert_eq!(findings.rows[2].speedup, Some(3.0));
    assert!(
        findings.sentences.iter().any(|sentence| sentence == "2 ranks failed: no memory"),
        "{:?}",
        findings.sentences
    );
}

#[test]
fn nothing_measured_is_said_so() {
    let findings = findings(StudyKind::Models, &[]);
    assert_eq!(findings.headline, "Nothing was measured");
    assert_eq!(findings.failed(), 3);
}

#[test]
fn planes_are_compared_with_what_goes_through_the_host_and_refused_ones_are_named() {
    let axes = Axes { ranks: vec![2], ..axes(StudyKind::Planes) };
    let points = sweep::points(&axes).unwrap();
    let mut runs = runs(&points, &[&[700.0, 710.0, 690.0], &[1550.0]]);
    let messages = |ns| Messages { size: "1 – 128 KB".to_owned(), calls: 10, bytes: 40, ns };
    for (run, ns) in runs.iter_mut().zip([4_000_000, 5_000_000, 6_000_000, 1_000_000]) {
        let RunOutcome::Measured(measured) = &mut run.outcome else { panic!("all were measured") };
        measured.messages = vec![messages(ns)];
    }
    let outcome = RunOutcome::Refused("it needs a GPU".to_owned());
    runs.push(Run { point: points[2].clone(), repeat: 0, seconds: 0.0, outcome });
    let findings = Findings::of(&axes, &points, &runs).unwrap();
    assert_eq!(findings.headline, "own is fastest: 1550 samples/s");
    assert_eq!((findings.failed(), findings.rows[0].baseline), (0, true));
    assert_eq!(findings.sentences, ["nccl on 2 ranks was not measured: it needs a GPU"]);
    let table = findings.messages().unwrap();
    assert!(table.starts_with("Operations by size, 2 ranks\n"), "{table}");
    let less = table.lines().find(|line| line.starts_with("less time")).unwrap();
    assert_eq!(less.split_whitespace().collect::<Vec<_>>(), ["less", "time", "–", "75.0", "%"], "of the median run");
    assert!(!table.contains("nccl"));
}
