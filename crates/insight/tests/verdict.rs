//! Jobs with one illness each: the verdict names it, the advice fits, and what is promised is what arithmetic says.

mod jobs;
mod schema;

use farandole_insight::generations::{Departure, Generation, Generations, Recovery};
use farandole_insight::history::{History, RankHistory, TimeWindow};
use farandole_insight::loss::LossCause;
use farandole_insight::report::wording::{Wording, wording};
use farandole_insight::report::{json, text};
use farandole_insight::verdict::{ConvertedInput, Recommendation, Topic, Verdict, rule_names};
use farandole_trace::event::InputStage;
use jobs::{Cost, Sketch};

fn judged(history: &History) -> Verdict {
    Verdict::of(history, &TimeWindow::Whole, None)
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
    assert_eq!(*topic, Topic::Cause(LossCause::Input));
    assert_eq!(rules, ["loader-workers", "preprocess-offline", "record-format"]);
    assert!((saved(&verdict, "loader-workers") - 60.0).abs() < 1e-9);
}

#[test]
fn starved_ranks_whose_loader_is_known_are_told_in_workers() {
    let verdict = judged(&jobs::starved_with_figures());
    let (_, rules) = top(&verdict);
    assert_eq!(rules, ["loader-workers"], "decoding is what takes the time, and the figures say so");
    let Recommendation::FeedSamples(needs) = &verdict.findings[0].advice[0].recommendation else {
        panic!("{:?}", verdict.findings[0].advice[0])
    };
    assert_eq!((needs.workers, needs.needed, needs.cores), (3, 8, Some(8.0)));
    assert!((needs.fed_per_s - 160.0).abs() < 1e-6 && (needs.taken_per_s - 400.0).abs() < 1.0, "{needs:?}");
    assert_eq!(needs.converted, Some(ConvertedInput { shorter_side: 37, needed: 1 }));
    let said = wording(&verdict.findings[0].advice[0].recommendation);
    assert_eq!(
        said.change,
        "3 workers of each rank feed 160 samples/s, each rank takes 400 when it never waits: 8 workers (of 8.0 cores \
         for each rank); or convert the images once: 1 worker. A worker's time is 9 % reading, 85 % decoding, 5 % \
         changing pixels."
    );
    assert_eq!(said.how[2], "farandole data convert SOURCE FOLDER --to tar --resize 37");
}

#[test]
fn too_few_cores_small_images_and_slow_storage_change_the_advice() {
    let mut history = jobs::starved_with_figures();
    for rank in &mut history.ranks {
        rank.cores = Some(8);
        for time in &mut rank.input.stages {
            match time.stage {
                InputStage::Read => time.ns = 256 * 1_000_000,
                InputStage::Decode => (time.ns, time.amount) = (28 * 1_000_000, 16 * 32 * 32),
                InputStage::Change => {}
            }
        }
    }
    let verdict = judged(&history);
    let (_, rules) = top(&verdict);
    assert_eq!(rules, ["loader-workers", "record-format"], "reading is what takes the time");
    let said = wording(&verdict.findings[0].advice[0].recommendation);
    assert!(
        said.change.contains("8 workers (of 2.0 cores for each rank), which is more than there are. A"),
        "{said:?}"
    );
    assert_eq!(said.how.len(), 2, "images are as small as samples: converting them gains nothing");
    // Workers that make enough are not told to be more.
    let mut fed = history.clone();
    fed.ranks.iter_mut().flat_map(|rank| &mut rank.input.stages).for_each(|time| time.ns /= 100);
    assert!(!top(&judged(&fed)).1.contains(&"loader-workers"));
    // A rank whose loader says nothing: the others' figures are not the job's.
    history.ranks[1].input.stages.clear();
    let verdict = judged(&history);
    assert_eq!(top(&verdict).1, ["loader-workers", "preprocess-offline", "record-format"]);
    let advice = &verdict.findings[0].advice[0].recommendation;
    assert!(matches!(advice, Recommendation::RaiseLoaderWorkers { .. }), "{advice:?}");
}

#[test]
fn one_starving_rank_is_named() {
    let verdict = judged(&jobs::one_starves());
    let (topic, rules) = top(&verdict);
    assert_eq!((topic, rules[0]), (&Topic::Cause(LossCause::Input), "starving-rank"));
    assert!(wording(&verdict.findings[0].advice[0].recommendation).change.contains("Only rank 2 on host waits"));
    assert!(verdict.headline.contains("to input wait of rank 2"), "{}", verdict.headline);
    assert!(!verdict.findings[0].sentences.concat().contains("lose alike"), "{:?}", verdict.findings[0].sentences);
    assert_eq!(rules, ["starving-rank"], "the others' loaders are good enough");
    assert!(
        verdict.findings[0]
            .sentences
            .iter()
            .any(|said| said.starts_with("It is the doing of rank 2: 400.0 ms, and 10.0 ms"))
    );
    let report = json::report(&verdict);
    assert_eq!((&report["findings"][0]["rank"], &report["findings"][0]["ranks"]), (&2.into(), &vec![2].into()));
    // Where all starve alike it is nobody's doing.
    assert!(json::report(&judged(&jobs::starved()))["findings"][0]["rank"].is_null());
}

#[test]
fn own_code_of_all_ranks_is_told_with_its_place() {
    let verdict = judged(&jobs::own_code());
    assert!(
        verdict.headline.starts_with(
            "at 4 ranks you get 68 % of 4×: you lose 30 % to the script's own code (most of it at train.py:42 in <log>)"
        ),
        "{}",
        verdict.headline
    );
    assert_eq!(top(&verdict), (&Topic::Cause(LossCause::Own), vec!["own-code"]));
    assert!((saved(&verdict, "own-code") - 30.0).abs() < 1e-9);
    let change = &wording(&verdict.findings[0].advice[0].recommendation).change;
    assert!(change.contains("for 30 % of the time, most of it at train.py:42 in <log> (90 % of samples)"), "{change}");
    let report = json::report(&verdict);
    let evidence = &report["findings"][0]["evidence"];
    assert_eq!((&evidence["samples"], &evidence["places"][0]["percent"]), (&40.into(), &90.0.into()));
    assert!(evidence["text"].as_str().unwrap().contains("train.py:50 in main (10 %)"));
    assert!(text::report(&verdict).contains("      own code efficiency"));
}

#[test]
fn own_code_of_one_rank_is_no_slow_rank() {
    let verdict = judged(&jobs::own_code_on_one());
    assert_eq!(top(&verdict), (&Topic::Cause(LossCause::Own), vec!["own-code-of-some"]));
    assert!(verdict.headline.contains("to the script's own code on rank 0"), "{}", verdict.headline);
    let text = text::report(&verdict);
    assert!(!text.contains("another program") && !text.contains("arriving late"), "{text}");
    // 30 ms of 99 on rank 0, and without own code 1 ms less for the others as well.
    assert!((saved(&verdict, "own-code-of-some") - 100.0 * 300.0 / 990.0).abs() < 1e-9);
}

#[test]
fn a_little_own_code_is_usual() {
    let verdict = judged(&jobs::a_little_own_code());
    let finding = verdict.findings.iter().find(|finding| finding.topic.key() == "own").unwrap();
    assert_eq!(finding.advice[0].rule, "nothing-to-change");
}

#[test]
fn a_late_rank_is_told_with_the_phase_in_which_it_is_slow() {
    let verdict = judged(&jobs::late_in_forward());
    assert_eq!(top(&verdict), (&Topic::Cause(LossCause::Late(3)), vec!["slow-rank"]));
    assert!(verdict.headline.contains("38 % to rank 3 arriving late, in “forward”"), "{}", verdict.headline);
    let finding = &verdict.findings[0];
    assert!(
        wording(&finding.advice[0].recommendation).change.contains("It takes longer in “forward”"),
        "{}",
        wording(&finding.advice[0].recommendation).change
    );
    assert!(finding.sentences.iter().any(|said| said.contains("90 % in “forward”, 10 % in “backward”")));
    assert_eq!(json::report(&verdict)["findings"][0]["phase"], "forward");
    assert!(!text::report(&verdict).contains("another program"));
}

#[test]
fn a_slow_rank_is_named() {
    let verdict = judged(&jobs::late());
    assert_eq!(top(&verdict), (&Topic::Cause(LossCause::Late(3)), vec!["slow-rank"]));
    assert!(verdict.headline.contains("38 % to rank 3 arriving late"), "{}", verdict.headline);
    assert!((saved(&verdict, "slow-rank") - 50.0).abs() < 1e-9);
}

#[test]
fn another_program_on_the_cores_is_suspected_only_where_the_kernel_says_so() {
    let said = |shares: [Option<f64>; 4]| {
        let mut history = jobs::late();
        history.ranks.iter_mut().zip(shares).for_each(|(rank, share)| rank.core_wait = share);
        wording(&judged(&history).findings[0].advice[0].recommendation).change
    };
    let suspected = said([Some(0.02), Some(0.03), Some(0.01), Some(0.4)]);
    assert!(
        suspected.contains("had no core in 40 % of the run") && suspected.contains("another program"),
        "{suspected}"
    );
    for shares in [
        [None; 4],
        [Some(0.02), None, Some(0.01), Some(0.4)],
        [Some(0.02), Some(0.03), Some(0.01), Some(0.05)],
        [Some(0.4), Some(0.35), Some(0.4), Some(0.45)],
    ] {
        let said = said(shares);
        assert!(!said.contains("another program") && said.contains("works 980.0 ms where"), "{said}");
    }
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
        (&Topic::Cause(LossCause::Sequential("evaluation".to_owned())), vec!["share-phase", "move-phase"])
    );
    assert!((saved(&verdict, "share-phase") - 100.0 * 60.0 / 180.0).abs() < 1e-6);
    assert!((saved(&verdict, "move-phase") - 100.0 * 80.0 / 180.0).abs() < 1e-6);
}

#[test]
fn unmarked_evaluation_is_suspected() {
    let (topic, rules) = (Topic::Cause(LossCause::Late(0)), vec!["unmarked-phase"]);
    assert_eq!(top(&judged(&jobs::unmarked_evaluation())), (&topic, rules));
}

#[test]
fn a_slow_link_gets_fewer_bytes_and_a_warning_about_convergence() {
    let verdict = judged(&jobs::slow_link());
    let (topic, rules) = top(&verdict);
    assert_eq!(*topic, Topic::Cause(LossCause::Transfer));
    assert_eq!(rules, ["narrow-wire", "one-switch", "batch-size", "too-small"]);
    assert!((saved(&verdict, "narrow-wire") - 40.0).abs() < 1e-9);
    for rule in ["narrow-wire", "batch-size"] {
        let advice = verdict.findings[0].advice.iter().find(|advice| advice.rule == rule);
        assert!(advice.is_some_and(|advice| wording(&advice.recommendation).caution.is_some()), "{rule}");
    }
    // One rank alone would need 400 ms where two take 1 s.
    assert!((saved(&verdict, "too-small") - 60.0).abs() < 1e-9);
}

#[test]
fn tiny_tensors_are_to_travel_together() {
    let verdict = judged(&jobs::tiny_tensors());
    let (topic, rules) = top(&verdict);
    assert_eq!(*topic, Topic::Cause(LossCause::Agreement));
    assert_eq!(rules, ["larger-fusion", "batch-size", "too-small"]);
    // 50 ms of 100 are agreement, 49/50 of the rest of the 50 ms in messages is start-up.
    assert!((saved(&verdict, "larger-fusion") - 49.5).abs() < 1e-6);
    let mut small_buffer = jobs::tiny_tensors();
    small_buffer.settings.insert("fusion_threshold_bytes".to_owned(), "4096".to_owned());
    let verdict = judged(&small_buffer);
    assert!(wording(&verdict.findings[0].advice[0].recommendation).how[0].contains("--fusion-threshold-mb 64"));
}

#[test]
fn one_bucket_at_the_end_is_to_be_divided() {
    let verdict = judged(&jobs::one_bucket());
    assert!(top(&verdict).1.contains(&"smaller-fusion"));
}

#[test]
fn checkpoints_and_crowded_cores_have_their_rules() {
    let verdict = judged(&jobs::checkpoints());
    assert_eq!(top(&verdict), (&Topic::Cause(LossCause::Checkpoint), vec!["checkpoint"]));
    let verdict = judged(&jobs::crowded());
    let advice = &verdict.findings[0].advice[0];
    assert_eq!(advice.rule, "thread-layout");
    let Wording { change, how, .. } = wording(&advice.recommendation);
    assert!(change.starts_with("4 ranks with 8 threads each share 8 cores"), "{change}");
    let [threads, of_tensorflow, pinned] = how.as_slice() else { panic!("{how:?}") };
    assert!(threads.contains("OMP_NUM_THREADS=2") && of_tensorflow.contains("TF_NUM_INTRAOP_THREADS=2"));
    assert!(pinned.contains("taskset -c $n-$((n+1))"), "{pinned}");
}

#[test]
fn ranks_that_fit_or_are_pinned_are_not_told_to_make_room() {
    let speaks = |change: &dyn Fn(usize, &mut RankHistory)| {
        let mut history = jobs::crowded();
        history.ranks.iter_mut().enumerate().for_each(|(number, rank)| change(number, rank));
        judged(&history)
            .findings
            .iter()
            .flat_map(|finding| &finding.advice)
            .any(|advice| advice.rule == "thread-layout")
    };
    assert!(speaks(&|_, _| {}));
    assert!(!speaks(&|_, rank| rank.threads = Some(2)), "four times two threads on eight cores");
    assert!(!speaks(&|_, rank| rank.threads = None), "nobody knows");
    let pinned = |number: usize, rank: &mut RankHistory| {
        (rank.cpus, rank.cores) = (Some(format!("{}-{}", 2 * number, 2 * number + 1)), Some(2));
    };
    assert!(!speaks(&|number, rank| {
        pinned(number, rank);
        rank.threads = Some(2);
    }));
    assert!(speaks(&|number, rank| {
        pinned(number, rank);
        rank.threads = Some(4);
    }));
    // A control group that gives all of them together three cores' time.
    assert!(speaks(&|_, rank| (rank.cores, rank.threads) = (Some(3), Some(1))));
    assert!(!speaks(&|number, rank| {
        rank.host = format!("node{number}");
        rank.threads = Some(8);
    }));
}

#[test]
fn learned_orders_that_are_off_are_to_be_switched_on() {
    let verdict = judged(&jobs::learned_orders_off());
    assert_eq!(top(&verdict).1[0], "replay-order");
    assert!((saved(&verdict, "replay-order") - 100.0 * 50.0 / 150.0).abs() < 1e-6);
}

#[test]
fn algorithms_are_to_be_measured_where_the_ranks_are() {
    let verdict = judged(&jobs::four_on_a_slow_link());
    let advice = verdict.findings[0].advice.iter().find(|advice| advice.rule == "calibrate").unwrap();
    assert!(wording(&advice.recommendation).change.contains("hierarchical"));
    assert_eq!(wording(&advice.recommendation).how, ["farandole run -np 4 -H node1:2,node2:2 farandole calibrate"]);
    let mut alone = jobs::four_on_a_slow_link();
    alone.ranks.iter_mut().for_each(|rank| rank.host = "here".to_owned());
    let verdict = judged(&alone);
    let advice = verdict.findings[0].advice.iter().find(|advice| advice.rule == "calibrate").unwrap();
    assert_eq!(wording(&advice.recommendation).how, ["farandole calibrate -np 4"]);
}

#[test]
fn waiting_for_copies_from_a_device_is_a_loss_of_its_own() {
    let verdict = judged(&jobs::on_a_device());
    assert_eq!(verdict.headline, "at 2 ranks you get 60 % of 2×: you lose 30 % to packing and 10 % to transfer");
    assert_eq!(top(&verdict).1[0], "narrow-copies");
    // Half of 30 ms of copies, and half of 10 ms on the way, of 100.
    assert!((saved(&verdict, "narrow-copies") - 20.0).abs() < 1e-6);
    assert!((verdict.findings[0].without.unwrap().time_saved_percent - 30.0).abs() < 1e-6);
}

#[test]
fn devices_that_have_nothing_to_do_are_told_from_busy_ones() {
    let verdict = judged(&jobs::devices_that_starve());
    let starved = judged(&jobs::starved());
    assert_eq!((&verdict.headline, &verdict.split), (&starved.headline, &starved.split));
    for (rank, of) in verdict.devices.ranks.iter().enumerate() {
        let idle_ns = starved.split.strips[rank].iter().filter(|span| span.cause == Some(LossCause::Input));
        assert_eq!(of.idle_ns, idle_ns.map(|span| span.to_ns - span.from_ns).sum::<u64>());
        assert_eq!((of.rank, of.total_ns()), (rank, verdict.end_ns));
    }
    let text = text::report(&verdict);
    for wanted in [
        "GPUs                busy   communication      idle",
        "for packing, 12.0 ms for folding and",
        "Cache of mappings: 93 % of 400 lookups were hits.",
        "Meanwhile the GPUs had nothing to do; 20.0 ms",
    ] {
        assert!(text.contains(wanted), "`{wanted}` is not in:\n{text}");
    }
    let devices = &json::report(&verdict)["devices"];
    assert_eq!((&devices["caches"][0]["hit_percent"], &devices["ranks"][1]["rank"]), (&93.0.into(), &1.into()));
    assert!(judged(&jobs::starved()).devices.is_empty());
    assert!(json::report(&starved).get("devices").is_none(), "a job without devices says nothing of them");
    assert!(!text::report(&starved).contains("GPU"));
}

#[test]
fn every_loss_has_advice_or_is_told_why_there_is_none() {
    for (name, history) in jobs::all() {
        for finding in judged(&history).findings {
            assert!(!finding.advice.is_empty(), "{name}: {}", finding.topic);
        }
    }
    let verdict = judged(&jobs::little_losses());
    let said: Vec<(&str, &str)> =
        verdict.findings.iter().map(|finding| (finding.topic.key(), finding.advice[0].rule)).collect();
    let nothing = "nothing-to-change";
    assert_eq!(said, [("packing", nothing), ("transfer", nothing), ("agreement", nothing)]);
    // 2 ms of agreement for each of the operations, and 64 KB in 3 ms.
    assert!(wording(&verdict.findings[2].advice[0].recommendation).change.contains("2.00 ms for each operation"));
    assert!(
        wording(&verdict.findings[1].advice[0].recommendation)
            .change
            .contains("3.00 ms for each operation, on average 64 KB")
    );
}

#[test]
fn every_rule_speaks_in_some_job() {
    let mut spoke: Vec<&str> = jobs::all()
        .iter()
        .flat_map(|(_, history)| judged(history).findings)
        .flat_map(|finding| finding.advice.into_iter().map(|advice| advice.rule))
        .collect();
    let mut known: Vec<&str> = rule_names().collect();
    for rules in [&mut spoke, &mut known] {
        rules.sort_unstable();
        rules.dedup();
    }
    assert_eq!(spoke, known);
}

#[test]
fn what_touches_convergence_comes_with_a_warning() {
    let mut warned = 0;
    for (name, history) in jobs::all() {
        for advice in judged(&history).findings.iter().flat_map(|finding| &finding.advice) {
            let touches = ["narrow-wire", "narrow-copies", "batch-size"].contains(&advice.rule);
            assert_eq!(wording(&advice.recommendation).caution.is_some(), touches, "{name}: {}", advice.rule);
            warned += usize::from(touches);
        }
    }
    assert!(warned > 0);
}

#[test]
fn missing_ranks_are_said_first_and_the_others_are_judged() {
    let history = jobs::two_of_four();
    let (all, some) = (judged(&jobs::starved()), judged(&history));
    assert_eq!(some.efficiencies, all.efficiencies);
    assert_eq!(saved(&some, "loader-workers"), saved(&all, "loader-workers"));
    assert!(some.headline.starts_with("as far as 2 of 4 ranks tell, you get 38 % of 4×"), "{}", some.headline);
    let text = text::report(&some);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[2].starts_with("INCOMPLETE: this is what the traces of 2 of 4 ranks tell."), "{text}");
    assert!(text.contains("  - Rank 1 is left out: there is no trace of it here."), "{text}");
    let report = json::report(&some);
    assert_eq!((&report["complete"], &report["ranks_recorded"]), (&false.into(), &2.into()));
    assert_eq!((&report["gaps"][1]["rank"], &report["gaps"][1]["recorded_until_ns"]), (&3.into(), &().into()));
    assert_eq!(json::report(&all)["complete"], true);
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

/// An elastic job of two generations, of which the second came about by a loss.
fn two_generations() -> Generations {
    let recovery = Recovery { from_size: 3, phases_ns: [5, 4, 3, 2, 1], lost_ns: 30, ..Recovery::default() };
    let first = Generation { number: 1, size: 3, to_ns: 1000, efficiency: Some(0.5), ..Generation::default() };
    let left = vec![Departure { member: 1, cause: Some("it was killed".to_owned()) }];
    let (from_ns, to_ns, joined) = (1015, 2000, vec![3]);
    let second = Generation {
        number: 2,
        size: 3,
        from_ns,
        to_ns,
        left,
        joined,
        recovery: Some(recovery),
        ..Generation::default()
    };
    Generations { list: vec![first, second], total_ns: 6000, shown: 2 }
}

#[test]
fn reports_of_elastic_jobs_say_what_recoveries_cost() {
    let (name, history) = jobs::all().into_iter().next().expect("a job");
    let mut verdict = judged(&history);
    assert!(!text::report(&verdict).contains("Generations"));
    verdict.generations = Some(two_generations());
    let report = json::report(&verdict);
    schema::fits_report(&report, name);
    assert_eq!((report["elastic"]["lost_ns"].as_u64(), report["elastic"]["recoveries"].as_u64()), (Some(30), Some(1)));
    assert_eq!(report["elastic"]["generations"][1]["left"][0]["cause"], "it was killed");
    let said = text::report(&verdict).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("0.5 % of the time of all members was lost to one recovery"), "{said}");
    assert!(said.contains("member 1 is gone: it was killed; member 3 joined"), "{said}");
    assert!(said.contains("What follows is about generation 2"), "{said}");
}

#[test]
fn json_fits_its_schema() {
    for (name, history) in jobs::all() {
        schema::fits_report(&json::report(&judged(&history)), name);
    }
}
