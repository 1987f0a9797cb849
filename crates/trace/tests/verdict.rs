//! Jobs with one illness each: the verdict names it, the advice fits, and what is promised is what arithmetic says.

mod jobs;

use farandole_trace::history::{Cost, History, Sketch, Window};
use farandole_trace::loss::Cause;
use farandole_trace::report::{json, text};
use farandole_trace::verdict::{Topic, Verdict};

fn judged(history: &History) -> Verdict {
    Verdict::of(history, &Window::Whole, None)
}

fn top(verdict: &Verdict) -> (&Topic, Vec<&str>) {
    let first = &verdict.findings[0];
    (&first.topic, first.advice.iter().map(|advice| advice.rule).collect())
}

/// What the first advice of a rule saves, in percent of the time.
fn saved(verdict: &Verdict, rule: &str) -> f64 {
    let advice = verdict.findings.iter().flat_map(|finding| &finding.advice).find(|advice| advice.rule == rule);
    advice.and_then(|advice| advice.gain).map(|gain| gain.time_saved_percent).unwrap_or(f64::NAN)
}

#[test]
fn a_perfect_run_is_told_so() {
    let verdict = judged(&jobs::perfect());
    assert_eq!(verdict.headline, "at 4 ranks you get 100 % of 4×: nothing to speak of is lost");
    assert!(verdict.findings.is_empty());
}

#[test]
fn starved_ranks_are_told_to_feed_them() {
    let verdict = judged(&jobs::starved());
    assert_eq!(verdict.headline, "at 4 ranks you get 38 % of 4×: you lose 60 % to input wait and 1 % to transfer");
    let (topic, rules) = top(&verdict);
    assert_eq!(*topic, Topic::Cause(Cause::Input));
    assert_eq!(rules, ["loader-workers", "preprocess-offline", "record-format"]);
    assert!((saved(&verdict, "loader-workers") - 60.0).abs() < 1e-9);
}

#[test]
fn one_starving_rank_is_named() {
    let verdict = judged(&jobs::one_starves());
    let (topic, rules) = top(&verdict);
    assert_eq!((topic, rules[0]), (&Topic::Cause(Cause::Input), "starving-rank"));
    assert!(verdict.findings[0].advice[0].change.contains("Rank 2 on host"));
}

#[test]
fn a_slow_rank_is_named() {
    let verdict = judged(&jobs::late());
    assert_eq!(top(&verdict), (&Topic::Cause(Cause::Late(3)), vec!["slow-rank"]));
    assert!(verdict.headline.contains("38 % to rank 3 arriving late"), "{}", verdict.headline);
    assert!((saved(&verdict, "slow-rank") - 50.0).abs() < 1e-9);
}

#[test]
fn ranks_that_are_late_by_turns_are_not_blamed() {
    let verdict = judged(&jobs::late_by_turns());
    assert_eq!(top(&verdict), (&Topic::LateByTurns, vec!["uneven-work"]));
    assert!((saved(&verdict, "uneven-work") - 37.5).abs() < 1e-6);
}

#[test]
fn sequential_evaluation_is_to_be_shared_or_moved() {
    let verdict = judged(&jobs::sequential());
    assert_eq!(
        top(&verdict),
        (&Topic::Cause(Cause::Sequential("evaluation".to_owned())), vec!["share-phase", "move-phase"])
    );
    assert!((saved(&verdict, "share-phase") - 100.0 * 60.0 / 180.0).abs() < 1e-6);
    assert!((saved(&verdict, "move-phase") - 100.0 * 80.0 / 180.0).abs() < 1e-6);
}

#[test]
fn unmarked_evaluation_is_suspected() {
    let (topic, rules) = (Topic::Cause(Cause::Late(0)), vec!["unmarked-phase"]);
    assert_eq!(top(&judged(&jobs::unmarked_evaluation())), (&topic, rules));
}

#[test]
fn a_slow_link_gets_fewer_bytes_and_a_warning_about_convergence() {
    let verdict = judged(&jobs::slow_link());
    let (topic, rules) = top(&verdict);
    assert_eq!(*topic, Topic::Cause(Cause::Transfer));
    assert_eq!(rules, ["narrow-wire", "one-switch", "batch-size", "too-small"]);
    assert!((saved(&verdict, "narrow-wire") - 40.0).abs() < 1e-9);
    for rule in ["narrow-wire", "batch-size"] {
        let advice = verdict.findings[0].advice.iter().find(|advice| advice.rule == rule);
        assert!(advice.is_some_and(|advice| advice.caution.is_some()), "{rule}");
    }
    // One rank alone would need 400 ms where two take 1 s.
    assert!((saved(&verdict, "too-small") - 60.0).abs() < 1e-9);
}

#[test]
fn tiny_tensors_are_to_travel_together() {
    let verdict = judged(&jobs::tiny_tensors());
    let (topic, rules) = top(&verdict);
    assert_eq!(*topic, Topic::Cause(Cause::Agreement));
    assert_eq!(rules, ["larger-fusion", "batch-size", "too-small"]);
    // 50 ms of 100 are agreement, 49/50 of the rest of the 50 ms in messages is start-up.
    assert!((saved(&verdict, "larger-fusion") - 49.5).abs() < 1e-6);
    let mut small_buffer = jobs::tiny_tensors();
    small_buffer.settings.insert("fusion_threshold_bytes".to_owned(), "4096".to_owned());
    let verdict = judged(&small_buffer);
    assert!(verdict.findings[0].advice[0].how[0].contains("--fusion-threshold-mb 64"));
}

#[test]
fn one_bucket_at_the_end_is_to_be_divided() {
    let verdict = judged(&jobs::one_bucket());
    assert!(top(&verdict).1.contains(&"smaller-fusion"));
}

#[test]
fn checkpoints_and_crowded_cores_have_their_rules() {
    let verdict = judged(&jobs::checkpoints());
    assert_eq!(top(&verdict), (&Topic::Cause(Cause::Checkpoint), vec!["checkpoint"]));
    let mut crowded = jobs::late();
    for rank in &mut crowded.ranks {
        (rank.cores, rank.threads) = (Some(8), Some(8));
    }
    let verdict = judged(&crowded);
    assert_eq!(verdict.findings[0].advice[0].rule, "thread-layout");
    assert!(verdict.findings[0].advice[0].how[0].contains("OMP_NUM_THREADS=2"));
}

#[test]
fn the_text_says_all_of_it() {
    let text = text::report(&judged(&jobs::slow_link()));
    for wanted in [
        "2 ranks on 2 hosts, 10 iterations, 1.00 s (whole run)",
        "At 2 ranks you get 20 % of 2×",
        "Careful:",
        "transfer   80.0 %",
    ] {
        assert!(text.contains(wanted), "`{wanted}` is not in:\n{text}");
    }
    assert!(text.lines().all(|line| line == line.trim_end()));
}

#[test]
fn printed_shares_sum_to_a_hundred_percent() {
    for (name, history) in jobs::all() {
        let split = judged(&history).split;
        assert_eq!(split.rows().iter().map(|row| row.tenths).sum::<u64>(), 1000, "{name}");
        assert_eq!(split.rows().iter().map(|row| row.ns).sum::<u64>(), split.total_ns, "{name}");
    }
}

#[test]
fn ranks_that_are_hardly_late_share_a_line() {
    let mut sketch = Sketch::new(8);
    for number in 0..40 {
        sketch.iteration(number, 0);
        (0..8).for_each(|rank| sketch.compute(rank, 1000 + if number % 8 == rank as u64 { 50 } else { 0 }));
        sketch.allreduce(8, Cost::default());
    }
    let rows = judged(&sketch.finish()).split.rows();
    let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["work", "ranks arriving late, each a little"]);
}

#[test]
fn json_fits_its_schema() {
    let schema =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/report.schema.json")).unwrap();
    let schema: serde_json::Value = serde_json::from_str(&schema).unwrap();
    for (name, history) in jobs::all() {
        let report = json::report(&judged(&history));
        fits(&schema, &report, name);
    }
}

/// As much of JSON Schema as ours uses.
fn fits(schema: &serde_json::Value, value: &serde_json::Value, at: &str) {
    use serde_json::Value;
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => panic!("{at}: the schema has no type"),
    };
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_u64() && kinds.contains(&"integer") => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    assert!(kinds.contains(&kind), "{at}: {kind} is none of {kinds:?}");
    if let Some(allowed) = schema["enum"].as_array() {
        assert!(allowed.contains(value), "{at}: {value} is none of {allowed:?}");
    }
    if let Value::Array(items) = value {
        items.iter().enumerate().for_each(|(number, item)| fits(&schema["items"], item, &format!("{at}[{number}]")));
    }
    if let Value::Object(fields) = value {
        let known = schema["properties"].as_object().expect("properties");
        for required in schema["required"].as_array().expect("what is required") {
            assert!(fields.contains_key(required.as_str().expect("a name")), "{at}: {required} is missing");
        }
        for (key, field) in fields {
            let schema = known.get(key).unwrap_or_else(|| panic!("{at}.{key} is not in the schema"));
            fits(schema, field, &format!("{at}.{key}"));
        }
    }
}
