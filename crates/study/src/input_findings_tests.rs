//! Studies of the input pipeline whose outcome is known by arithmetic.

use super::super::input::{InputAxes, InputFigures};
use super::super::point::StudyPoint;
use super::super::run::{Measured, Run, RunOutcome};
use super::super::sweep::{self, Axes};
use super::*;

/// Points of all combinations, each with what `rate` says, and with these seconds for reading and decoding.
fn findings(kind: StudyKind, input: InputAxes, rate: impl Fn(&InputPoint) -> f64, stages: (f64, f64)) -> Findings {
    let axes = Axes {
        kind,
        models: vec!["pipeline".into()],
        ranks: vec![1],
        threads: 1,
        batches: vec![8],
        total_batch: 8,
        precisions: vec!["f32".into()],
        planes: Vec::new(),
        cores: 4,
        baseline: None,
        input: Some(input),
    };
    let points = sweep::points(&axes).unwrap();
    let run = |point: &StudyPoint| {
        let per_s = rate(point.input.as_ref().unwrap());
        let input = InputFigures { mean_per_s: per_s, peak_per_s: 2.0 * per_s, bytes_per_s: Some(1e6), broken: 0 };
        let outcome = RunOutcome::Measured(Measured {
            per_s,
            unit: "samples".into(),
            phases: vec![("read".into(), stages.0), ("decode".into(), stages.1)],
            split: Vec::new(),
            messages: Vec::new(),
            input: Some(input),
        });
        Run { point: point.clone(), repeat: 0, seconds: 1.0, outcome }
    };
    let runs: Vec<Run> = points.iter().map(run).collect();
    Findings::of(&axes, &points, &runs).unwrap()
}

fn axes(names: &[&str], workers: &[usize], prefetch: &[usize], caches: &[Cache]) -> InputAxes {
    InputAxes {
        sources: names.iter().map(|name| ((*name).to_owned(), (*name).to_owned())).collect(),
        workers: workers.to_vec(),
        prefetch: prefetch.to_vec(),
        caches: caches.to_vec(),
    }
}

#[test]
fn the_fastest_storage_is_named_with_how_much_and_what_limits() {
    let input = axes(&["/disk", "s3://b/x"], &[2], &[2], &[Cache::Cold, Cache::Warm]);
    let rate = |input: &InputPoint| match (input.name.as_str(), input.cache) {
        ("/disk", _) => 400.0,
        (_, Cache::Cold) => 100.0,
        _ => 390.0,
    };
    let findings = findings(StudyKind::Storage, input, rate, (0.009, 0.001));
    assert_eq!(
        findings.headline,
        "cold: /disk is fastest, 400 samples/s, 4.00× s3://b/x; warm: no difference beyond what runs differ by, \
         400 samples/s"
    );
    let said = findings.sentences.join("\n");
    assert!(said.contains("s3://b/x with 2 workers: warm is 3.90× cold"), "{said}");
    assert!(said.contains("/disk with 2 workers: warm and cold make about the same"), "{said}");
    assert!(said.contains("All points: 90 % of a worker's time is reading: the storage limits"), "{said}");
    assert_eq!(findings.rows[2].speedup, Some(0.25), "compared with the first source in the same state");
}

#[test]
fn workers_saturate_where_more_gain_little() {
    let input = axes(&["photos"], &[1, 2, 4, 8], &[1, 2], &[Cache::Warm]);
    let rate = |input: &InputPoint| {
        let workers = input.workers.min(4) as f64;
        if input.prefetch == 1 { 80.0 * workers } else { 100.0 * workers }
    };
    let findings = findings(StudyKind::Loader, input, rate, (0.001, 0.009));
    assert_eq!(findings.headline, "4 workers are enough: 400 of 400 samples/s, which is the most, with 8 workers");
    let said = findings.sentences.join("\n");
    assert!(said.contains("saturates with 4 workers") && said.contains("so 4 do the work of 4.0"), "{said}");
    assert!(said.contains("2 batches ahead are enough with 8 workers"), "{said}");
    assert!(said.contains("90 % of a worker's time is decoding"), "{said}");
}

#[test]
fn one_number_of_workers_says_nothing_of_saturation() {
    let input = axes(&["photos"], &[2], &[2], &[Cache::Warm]);
    let findings = findings(StudyKind::Loader, input, |_| 50.0, (0.0, 0.0));
    assert_eq!(findings.headline, "2 workers with 2 ahead make the most: 50 samples/s");
    assert!(findings.sentences[0].starts_with("Each point was run once"), "{:?}", findings.sentences);
    assert!(findings.sentences[1].contains("does not saturate up to 2 workers"), "{:?}", findings.sentences);
}

#[test]
fn a_cache_that_seems_to_cost_time_is_not_called_the_same() {
    let input = axes(&["/disk"], &[2], &[2], &[Cache::Cold, Cache::Warm]);
    let rate = |input: &InputPoint| if input.cache == Cache::Cold { 400.0 } else { 300.0 };
    let findings = findings(StudyKind::Storage, input, rate, (0.009, 0.001));
    let said = findings.sentences.join("\n");
    assert!(said.contains("/disk with 2 workers: warm is 0.75× cold, which no cache explains"), "{said}");
}

#[test]
fn long_names_keep_their_scheme_and_their_end() {
    assert_eq!(short("photos"), "photos");
    assert_eq!(short("nfs://127.0.0.1/tmp/newuser/srv/shapes-tar4"), "nfs://…/newuser/srv/shapes-tar4");
    assert_eq!(short("/a/very/long/path/that/does/not/fit/photos"), "…/path/that/does/not/fit/photos");
    assert_eq!(super::super::input::shortened("s3://data/shapes-tar", 16), "s3://…/shapes-tar");
    assert_eq!(super::super::input::shortened("one-name-without-any-slash", 16), "…ithout-any-slash");
}

#[test]
fn what_most_points_are_limited_by_is_said_without_all_their_names() {
    let mut found = findings(
        StudyKind::Storage,
        axes(&["/a", "/b"], &[2], &[2], &[Cache::Cold, Cache::Warm]),
        |_| 100.0,
        (0.001, 0.009),
    );
    found.rows[0].phases = vec![("read".into(), 0.009), ("decode".into(), 0.001)];
    let said = sentences(&found).join("\n");
    assert!(said.contains("/a, cold, 2 workers: 90 % of a worker's time is reading"), "{said}");
    assert!(said.contains("All points but /a, cold, 2 workers: 90 % of a worker's time is decoding"), "{said}");
}
