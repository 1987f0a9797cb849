//! Studies of scripts whose throughput is known, because they make it up: what is measured, kept, resumed, and said of
//! failures.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use farandole_testing::{Folder, finish_child, wait_until};
use serde_json::Value;

/// Far more than any study here needs; one that hangs is killed and fails.
const PATIENCE: Duration = Duration::from_secs(60);

fn results(folder: &Folder) -> Value {
    serde_json::from_str(&std::fs::read_to_string(folder.join("out/results.json")).unwrap()).unwrap()
}

fn start(folder: &Folder, words: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_farandole"))
        .arg("study")
        .args(words)
        .args(["--out", "out"])
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn study(folder: &Folder, words: &[&str]) -> Output {
    finish_child(&mut start(folder, words), PATIENCE)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Says what a job of so many ranks would do if a tenth of a rank's time did not scale.
const GUSTAFSON: &str = "[ $FARANDOLE_RANK = 0 ] && echo throughput: 1 samples/s && \
    echo throughput: $((100 * {ranks} - 10 * ({ranks} - 1))) samples/s; echo $FARANDOLE_RANK >> runs";

#[test]
fn weak_scaling_of_a_script_is_measured_fitted_and_shown() {
    let folder = Folder::new();
    let words = ["weak", "--ranks", "1,2,4", "--repeats", "2", "--command", GUSTAFSON];
    let output = study(&folder, &words);
    assert!(output.status.success(), "{output:?}");
    let said = text(&output.stdout);
    assert!(said.contains("4 ranks do 3.70× the work of the baseline: 92 % efficient (weak scaling)"), "{said}");
    assert!(said.contains("Gustafson: 10.0 %"), "{said}");
    let rows = results(&folder)["rows"].as_array().unwrap().clone();
    let medians: Vec<f64> = rows.iter().map(|row| row["median"].as_f64().unwrap()).collect();
    assert_eq!(medians, [100.0, 190.0, 370.0]);
    let csv = std::fs::read_to_string(folder.join("out/study.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + 3 * 2);
    assert!(std::fs::read_to_string(folder.join("out/study.html")).unwrap().contains("Gustafson"));
    assert!(!folder.join("out/running").exists(), "what runs leave behind is removed");
}

#[test]
fn a_study_that_is_called_again_goes_on_where_it_ended() {
    let folder = Folder::new();
    let one = ["weak", "--ranks", "1,2", "--repeats", "1", "--command", GUSTAFSON];
    assert!(study(&folder, &one).status.success());
    let runs = || std::fs::read_to_string(folder.join("runs")).unwrap().lines().count();
    assert_eq!(runs(), 3);
    let more = study(&folder, &["weak", "--ranks", "1,2", "--repeats", "2", "--command", GUSTAFSON]);
    assert!(text(&more.stderr).contains("2 of 4 runs were measured before"), "{more:?}");
    assert_eq!(runs(), 6, "only the second repeats were run");
    let other = study(&folder, &["weak", "--ranks", "1,2", "--command", "true"]);
    assert!(!other.status.success() && text(&other.stderr).contains("--fresh"), "{other:?}");
}

#[test]
fn ranks_that_speak_for_themselves_are_added_up() {
    let folder = Folder::new();
    let command = "echo rank throughput: 5 images/s";
    let output = study(
        &folder,
        &["batch", "--ranks", "2", "--batches", "1,2", "--warm-up", "0", "--repeats", "1", "--command", command],
    );
    assert!(output.status.success(), "{output:?}");
    assert_eq!(results(&folder)["rows"][1]["median"], 10.0);
    assert_eq!(results(&folder)["unit"], "images");
}

#[test]
fn more_than_ten_ranks_are_heard() {
    let folder = Folder::new();
    let command = "echo rank throughput: 5 images/s";
    let words = ["weak", "--ranks", "11", "--warm-up", "0", "--repeats", "1", "--command", command];
    let output = study(&folder, &words);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(results(&folder)["rows"][0]["median"], 55.0);
}

#[test]
fn a_study_that_is_asked_to_stop_keeps_what_it_has_and_goes_on_later() {
    let folder = Folder::new();
    let command = "echo throughput: 7 samples/s; [ {ranks} = 1 ] || [ -e cured ] || exec sleep 600";
    let words = ["weak", "--ranks", "1,2", "--repeats", "1", "--warm-up", "0", "--command", command];
    let mut child = start(&folder, &words);
    let second = folder.join("out/logs/command-r2-t1-b32-f32.0.log");
    wait_until("the second run has begun", PATIENCE, || {
        std::fs::read_to_string(&second).is_ok_and(|log| !log.is_empty())
    });
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = finish_child(&mut child, PATIENCE);
    assert_eq!(output.status.code(), Some(128 + 2), "{output:?}");
    assert!(text(&output.stderr).contains("stopped; 1 of 2 runs are kept"), "{output:?}");
    assert!(!folder.join("out/running").exists() && !folder.join("out/results.json").exists());
    std::fs::write(folder.join("cured"), "").unwrap();
    let output = study(&folder, &words);
    assert!(output.status.success() && text(&output.stderr).contains("1 of 2 runs were measured before"), "{output:?}");
}

#[test]
fn a_point_that_fails_is_told_with_its_last_lines_and_tried_again() {
    let folder = Folder::new();
    let command =
        "[ {ranks} = 2 ] && [ ! -e cured ] && echo no memory for this >&2 && exit 3; echo throughput: 7 samples/s";
    let words = ["weak", "--ranks", "1,2", "--repeats", "1", "--warm-up", "0", "--command", command];
    let output = study(&folder, &words);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("no memory for this"), "{output:?}");
    assert!(text(&output.stdout).contains("failed"), "{output:?}");
    std::fs::write(folder.join("cured"), "").unwrap();
    assert!(study(&folder, &words).status.success());
}

#[test]
fn a_run_that_takes_too_long_is_ended_and_a_silent_one_is_told_the_format() {
    let folder = Folder::new();
    let command = "[ {ranks} = 1 ] && exec sleep 600; echo nothing";
    let words = ["weak", "--ranks", "1,2", "--repeats", "1", "--timeout", "1", "--command", command];
    let output = study(&folder, &words);
    let said = text(&output.stderr);
    assert!(said.contains("longer than 1 s (--timeout)"), "{said}");
    assert!(said.contains("throughput: NUMBER samples/s"), "{said}");
}

#[test]
fn mistakes_are_told_before_anything_runs() {
    let folder = Folder::new();
    let wrong: [(&[&str], &str); 7] = [
        (&["strong", "--ranks", "1,3", "--total-batch", "32", "--command", "true"], "cannot be divided among 3 ranks"),
        (&["weak", "--ranks", "1,2", "--baseline", "3", "--command", "true"], "--baseline 3"),
        (&["weak", "--ranks", "none", "--command", "true"], "1,2,4"),
        (&["weak", "--command", " "], "--command is empty"),
        (&["weak", "--batches", "4,8", "--command", "true"], "--batches means nothing in a study of kind weak"),
        (&["threads", "--cores", "4", "--ranks", "3", "--command", "true"], "4 cores cannot be divided evenly"),
        (&["wide", "--command", "true"], "possible values"),
    ];
    for (words, why) in wrong {
        let output = study(&folder, words);
        assert!(!output.status.success() && text(&output.stderr).contains(why), "{words:?}: {output:?}");
    }
    assert!(!folder.join("out").exists(), "nothing was begun");
}

#[test]
fn batches_are_measured_on_all_given_ranks() {
    let folder = Folder::new();
    let command = "echo rank throughput: {batch} samples/s";
    let words =
        ["batch", "--ranks", "1,2", "--batches", "8,16", "--repeats", "1", "--warm-up", "0", "--command", command];
    let output = study(&folder, &words);
    assert!(output.status.success(), "{output:?}");
    let results = results(&folder);
    let point =
        |row: &Value| [&row["point"]["ranks"], &row["point"]["batch"], &row["median"]].map(|one| one.as_f64().unwrap());
    let rows: Vec<[f64; 3]> = results["rows"].as_array().unwrap().iter().map(point).collect();
    assert_eq!(rows, [[1.0, 8.0, 8.0], [1.0, 16.0, 16.0], [2.0, 8.0, 16.0], [2.0, 16.0, 32.0]]);
    let page = std::fs::read_to_string(folder.join("out/study.html")).unwrap();
    assert!(
        page.contains("16·2") && page.contains("samples of each rank in a step · ranks"),
        "the page says which is which"
    );
}

#[test]
fn a_killed_study_takes_its_job_along() {
    let folder = Folder::new();
    let command = "echo $$ > pid.tmp && mv pid.tmp pid && exec sleep 600";
    let mut child = start(&folder, &["weak", "--ranks", "1", "--command", command]);
    let pid_file = folder.join("pid");
    wait_until("the rank starts", PATIENCE, || pid_file.exists());
    let pid = std::fs::read_to_string(pid_file).unwrap();
    let process = Path::new("/proc").join(pid.trim());
    assert!(process.exists());
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("the rank ends", PATIENCE, || !process.exists());
}

/// Studies of the built-in trainer, of a network and steps so small that a point takes a second.
#[cfg(feature = "train")]
mod of_the_trainer {
    use super::*;
    use farandole_testing::finish;

    /// Runs a study of so many points and returns its rows.
    fn rows(words: &[&str]) -> Vec<Value> {
        let folder = Folder::new();
        let small = ["--repeats", "1", "--steps", "3", "--warm-up", "1", "--", "--image-size", "32", "--workers", "0"];
        let output = study_with(&folder, words, &small);
        assert!(output.status.success(), "{output:?}");
        let page = std::fs::read_to_string(folder.join("out/study.html")).unwrap();
        assert!(page.contains("backward"), "the page has the phases of the trainer");
        let rows = results(&folder)["rows"].as_array().unwrap().clone();
        for row in &rows {
            assert!(row["median"].as_f64().unwrap() > 0.0, "{row}");
            assert!(row["split"].as_array().is_some_and(|split| !split.is_empty()), "{row}");
        }
        rows
    }

    fn study_with(folder: &Folder, words: &[&str], more: &[&str]) -> Output {
        let at = more.iter().position(|word| *word == "--").unwrap();
        let line: Vec<&str> =
            words.iter().chain(&more[..at]).chain(&["--out", "out"]).chain(&more[at..]).copied().collect();
        let mut command = Command::new(env!("CARGO_BIN_EXE_farandole"));
        finish(command.arg("study").args(line).current_dir(folder), PATIENCE)
    }

    #[test]
    fn ranks_are_varied_with_the_batch_of_one_or_of_all_fixed() {
        let weak = rows(&["weak", "--ranks", "1,2", "--batch", "4", "--model", "lenet"]);
        assert_eq!(weak[1]["point"]["batch"], 4);
        assert!(weak[1]["efficiency"].is_f64());
        let strong = rows(&["strong", "--ranks", "1,2", "--total-batch", "4", "--model", "lenet"]);
        assert_eq!(strong[1]["point"]["batch"], 2);
    }

    #[test]
    fn batches_and_layouts_are_varied() {
        let batch = rows(&["batch", "--ranks", "2", "--batches", "2,4", "--model", "lenet"]);
        assert_eq!(batch.len(), 2);
        let threads = rows(&["threads", "--cores", "2", "--total-batch", "4", "--model", "lenet"]);
        assert_eq!((&threads[0]["point"]["threads"], &threads[1]["point"]["threads"]), (&2.into(), &1.into()));
    }

    #[test]
    fn models_and_precisions_are_varied() {
        let models = rows(&["models", "--models", "lenet,resnet20", "--ranks", "1,2", "--batch", "2"]);
        assert_eq!(models.len(), 4);
        let precision = rows(&["precision", "--ranks", "2", "--batch", "2", "--model", "lenet"]);
        assert_eq!(precision.len(), 3);
    }
}

#[test]
fn planes_that_a_machine_cannot_do_are_named_and_the_others_are_measured() {
    let folder = Folder::new();
    let command =
        "echo $FARANDOLE_PLANE {plane} >> planes; [ $FARANDOLE_RANK = 0 ] && echo throughput: 7 images/s; true";
    let given = ["planes", "--ranks", "2", "--repeats", "1", "--warm-up", "0", "--command", command];
    // No GPU is visible there, on any machine.
    let mut child = Command::new(env!("CARGO_BIN_EXE_farandole"))
        .arg("study")
        .args(given)
        .args(["--out", "out"])
        .env("CUDA_VISIBLE_DEVICES", "")
        .current_dir(&folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let output = finish_child(&mut child, PATIENCE);
    assert!(output.status.success(), "{output:?}");
    let said = text(&output.stdout);
    assert!(said.contains("staged is fastest: 7 images/s"), "{said}");
    for plane in ["own", "nccl", "staged+mps", "own+mps", "nccl+mps"] {
        assert!(said.contains(&format!("{plane} on 2 ranks was not measured: it needs a GPU")), "{plane}: {said}");
    }
    assert_eq!(std::fs::read_to_string(folder.join("planes")).unwrap(), "staged staged\n".repeat(2));
    let rows = results(&folder)["rows"].as_array().unwrap().clone();
    assert_eq!((rows.len(), &rows[0]["median"]), (6, &7.0.into()));
    assert!(rows[1]["refused"].as_str().unwrap().contains("GPU"));
    let refused = study(&folder, &["planes", "--ranks", "2"]);
    assert!(text(&refused.stderr).contains("--command"), "{refused:?}");
}

/// Studies of the input pipeline, of a few images so small that a point takes a fraction of a second.
mod of_the_input {
    use super::*;

    /// Two classes of a few images each.
    fn photos() -> Folder {
        let folder = Folder::new();
        let jpeg = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/tests/images/ramp.jpg")).unwrap();
        for (class, count) in [("cat", 5), ("dog", 4)] {
            std::fs::create_dir_all(folder.join("photos").join(class)).unwrap();
            for number in 0..count {
                std::fs::write(folder.join(format!("photos/{class}/{number}.jpg")), &jpeg).unwrap();
            }
        }
        folder
    }

    /// What makes each point short.
    const SHORT: [&str; 6] = ["--seconds", "0.05", "--batch", "4", "--transform", "resize=16x16"];

    fn short<'a>(words: &[&'a str]) -> Vec<&'a str> {
        words.iter().chain(&SHORT).copied().collect()
    }

    #[test]
    fn formats_are_copied_compared_and_found_again() {
        let folder = photos();
        let words =
            short(&["format", "photos", "--samples", "6", "--cache", "warm", "--repeats", "2", "--workers", "1"]);
        let output = study(&folder, &words);
        assert!(output.status.success(), "{output:?}");
        let rows = results(&folder)["rows"].as_array().unwrap().clone();
        let names: Vec<&str> = rows.iter().map(|row| row["point"]["input"]["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["folder", "tar", "tfrecord", "parquet"]);
        for row in &rows {
            let run = &row["input"][0];
            let (mean, peak) = (run["mean_per_s"].as_f64().unwrap(), run["peak_per_s"].as_f64().unwrap());
            assert!(mean > 0.0 && peak >= mean && run["bytes_per_s"].as_f64().unwrap() > 0.0, "{row}");
            assert!(row["phases"].as_array().unwrap().iter().any(|stage| stage[0] == "decode"), "{row}");
        }
        let csv = std::fs::read_to_string(folder.join("out/study.csv")).unwrap();
        assert_eq!(csv.lines().count(), 1 + 4 * 2);
        let columns = csv.lines().map(|line| line.split(',').count());
        assert_eq!(columns.collect::<std::collections::BTreeSet<_>>().len(), 1, "{csv}");
        assert!(csv.starts_with("kind,model") && csv.contains("tfrecord,warm,1,2,"), "{csv}");
        let page = std::fs::read_to_string(folder.join("out/study.html")).unwrap();
        assert!(page.contains("Time of a sample by stage") && page.contains("parquet"), "the page has the stages");
        let again = study(&folder, &[&words[..], &["--formats", "tar,tar@8"]].concat());
        assert!(text(&again.stderr).contains("2 of 4 runs were measured before"), "{again:?}");
        assert!(folder.join("out/copies/tar-8-6").exists());
    }

    #[test]
    fn workers_batches_ahead_and_caches_are_all_combined() {
        let folder = photos();
        let words = ["loader", "photos", "--workers", "1,2", "--prefetch", "1,3", "--cache", "cold,warm"];
        let output = study(&folder, &short(&[&words[..], &["--repeats", "1"]].concat()));
        assert!(output.status.success(), "{output:?}");
        assert_eq!(results(&folder)["rows"].as_array().unwrap().len(), 8);
        let said = text(&output.stdout);
        assert!(said.contains("worker") && said.contains("ahead") && said.contains("maximum"), "{said}");
    }

    #[test]
    fn a_storage_that_cannot_be_read_is_named_and_the_others_are_measured() {
        let folder = photos();
        let sources = "photos,nowhere,https://me:secret@localhost:9/x?sig=secret";
        let words = ["storage", "--sources", sources, "--cache", "warm,disk", "--repeats", "1"];
        let output = study(&folder, &short(&words));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = text(&output.stdout);
        assert!(said.contains("nowhere: there is no such file or folder"), "{said}");
        assert!(said.contains("there is nothing to keep on its disk"), "{said}");
        let rows = results(&folder)["rows"].as_array().unwrap().clone();
        assert!(rows[0]["median"].as_f64().unwrap() > 0.0 && rows[2]["median"].is_null(), "{rows:?}");
        for file in ["results.json", "study.csv", "study.html", "study.json"] {
            let kept = std::fs::read_to_string(folder.join("out").join(file)).unwrap();
            assert!(!kept.contains("secret"), "{file} holds a password");
        }
    }

    #[test]
    fn a_study_of_the_input_that_is_asked_to_stop_goes_on_later() {
        let folder = photos();
        let long = ["loader", "photos", "--workers", "1,2", "--prefetch", "2", "--batch", "4", "--repeats", "1"];
        let long = [&long[..], &["--transform", "resize=16x16", "--seconds", "2"]].concat();
        let mut child = start(&folder, &long);
        let runs = folder.join("out/runs");
        wait_until("the first run is kept", PATIENCE, || {
            std::fs::read_dir(&runs)
                .is_ok_and(|mut runs| runs.any(|run| run.unwrap().path().extension().is_some_and(|end| end == "json")))
        });
        assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
        let output = finish_child(&mut child, PATIENCE);
        assert_eq!(output.status.code(), Some(128 + 2), "{output:?}");
        assert!(text(&output.stderr).contains("stopped; 1 of 2 runs are kept"), "{output:?}");
        let output = study(&folder, &long);
        assert!(output.status.success(), "{output:?}");
        assert!(text(&output.stderr).contains("1 of 2 runs were measured before"), "{output:?}");
    }

    #[test]
    fn mistakes_about_the_input_are_told_before_anything_runs() {
        let folder = photos();
        let wrong: [(&[&str], &str); 12] = [
            (&["storage"], "--sources A,B"),
            (&["format"], "farandole study format SOURCE"),
            (&["format", "photos", "--formats", "zip"], "tfrecord"),
            (&["format", "photos", "--samples", "0"], "--samples 0"),
            (&["loader", "photos", "--workers", "0"], "1,2,4"),
            (&["loader", "photos", "--transform", "enlarge"], "enlarge"),
            (&["loader", "photos", "--seconds", "0"], "--seconds"),
            (&["loader", "photos", "--ranks", "2"], "without --in-training"),
            (&["loader", "photos", "--command", "true"], "--command means nothing"),
            (&["loader", "photos", "--cache", "warm,warm"], "warm is there twice"),
            (&["weak", "photos", "--command", "true"], "SOURCE means nothing in a study of kind weak"),
            (&["storage", "--sources", "a,a"], "a is there twice"),
        ];
        for (words, why) in wrong {
            let output = study(&folder, words);
            assert!(!output.status.success() && text(&output.stderr).contains(why), "{words:?}: {output:?}");
        }
        assert!(!folder.join("out").exists(), "nothing was begun");
    }

    #[cfg(feature = "train")]
    #[test]
    fn trainings_are_fed_by_different_numbers_of_workers() {
        let folder = photos();
        let words = ["loader", "photos", "--in-training", "--workers", "0,1", "--model", "lenet", "--batch", "2"];
        let zero = study(&folder, &words);
        assert!(text(&zero.stderr).contains("--workers"), "{zero:?}");
        let words = ["loader", "photos", "--in-training", "--workers", "1,2", "--model", "lenet", "--batch", "2"];
        let more = ["--prefetch", "2", "--cache", "cold,warm", "--repeats", "1", "--steps", "3", "--warm-up", "1"];
        let output = study(&folder, &[&words[..], &more].concat());
        assert!(output.status.success(), "{output:?}");
        let rows = results(&folder)["rows"].as_array().unwrap().clone();
        assert_eq!(rows.len(), 4);
        assert!(rows.iter().all(|row| row["input"][0]["peak_per_s"].as_f64().unwrap() > 0.0), "{rows:?}");
        assert!(text(&output.stdout).contains("input wait"), "{output:?}");
    }
}
