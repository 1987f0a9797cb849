//! `farandole train` through the real command, on one rank and on two: it learns, keeps what it learned, goes on
//! exactly where it stopped, and says what is wrong.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use farandole_testing::Folder;
use farandole_trace::Trace;
use farandole_trace::event::{Event, Phase};
use serde_json::Value;

/// Far more than any job here needs on a machine that others use, too; one that hangs is killed and fails.
const PATIENCE: Duration = Duration::from_secs(100);

fn start(words: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farandole"));
    command.arg("train").args(words).env_remove("FARANDOLE_TRACE");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn finish(mut child: Child) -> Output {
    farandole_testing::finish_child(&mut child, PATIENCE)
}

fn train(words: &[&str]) -> Output {
    finish(start(words))
}

/// Both streams of a run that went well.
fn trained(words: &[&str]) -> String {
    let output = train(words);
    let text = texts(&output);
    assert!(output.status.success(), "{words:?}\n{text}");
    text
}

fn texts(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A network and a data set so small that starting the processes takes most of the time.
const SMALL: &[&str] = &["--model", "lenet", "--samples", "48", "--test-samples", "20", "--batch", "8", "--seed", "7"];

fn small<'a>(more: &[&'a str]) -> Vec<&'a str> {
    SMALL.iter().copied().chain(more.iter().copied()).collect()
}

fn log(path: &str) -> Vec<Value> {
    std::fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The header and the tensors of a checkpoint.
fn checkpoint(folder: &str) -> (Value, BTreeMap<String, Vec<f32>>) {
    let bytes = std::fs::read(Path::new(folder).join("checkpoint.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let data = &bytes[8 + length..];
    let tensors =
        header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__").map(|(name, about)| {
            let offset = |place: usize| about["data_offsets"][place].as_u64().unwrap() as usize;
            let floats = data[offset(0)..offset(1)].chunks_exact(4);
            (name.clone(), floats.map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect())
        });
    let tensors = tensors.collect();
    let meta = serde_json::from_str(header["__metadata__"]["farandole"].as_str().unwrap()).unwrap();
    (meta, tensors)
}

/// How far a checkpoint is: complete epochs, and steps of the next one.
fn place(folder: &str) -> (u64, u64) {
    let meta = checkpoint(folder).0;
    (meta["epoch"].as_u64().unwrap(), meta["step"].as_u64().unwrap())
}

#[test]
fn two_ranks_train_evaluate_log_and_keep_what_they_learned() {
    let folder = Folder::new();
    let (log_file, kept) = (folder.file("log.jsonl"), folder.file("kept"));
    let text = trained(&small(&["-np", "2", "--epochs", "2", "--log", &log_file, "--checkpoint", &kept]));
    for part in ["epoch 2/2", "accuracy", "samples/s", "throughput", "rank 1", "verdict"] {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
    let lines = log(&log_file);
    let events: Vec<&str> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["start", "epoch", "checkpoint", "epoch", "checkpoint", "summary"]);
    let (first, summary) = (&lines[0], &lines[5]);
    assert_eq!((&first["ranks"], &first["global_batch"], &first["steps"]), (&2.into(), &16.into(), &3.into()));
    assert_eq!(lines[1]["samples"], 48.0);
    assert!(lines[1]["test"]["accuracy"].as_f64().unwrap() >= 0.0);
    assert_eq!(summary["samples"], 96.0);
    assert_eq!(summary["samples_per_s_by_rank"].as_array().unwrap().len(), 2);
    assert!(
        summary["samples_per_s"].as_f64().unwrap() > 0.0 && summary["phases"]["backward_s"].as_f64().unwrap() > 0.0
    );
    let (meta, tensors) = checkpoint(&kept);
    assert_eq!((&meta["epoch"], &meta["step"], &meta["model"]), (&2.into(), &0.into(), &"lenet".into()));
    assert!(tensors.keys().any(|name| name.starts_with("model.")));
    assert!(tensors.keys().any(|name| name.starts_with("optimizer.")));
    // Once more, from where it is: there is nothing left to train, and the verdict says so instead of praising the
    // ranks.
    let text = trained(&small(&["-np", "2", "--epochs", "2", "--checkpoint", &kept, "--resume"]));
    assert!(text.contains("training was complete already"), "{text}");
    assert!(text.contains("nothing to judge: this run made no step of training"), "{text}");
    assert!(!text.contains("you get"), "{text}");
}

/// A network with BatchNorm, which has statistics to keep and to make comparable.
const NORMALISED: &[&str] = &[
    "--model",
    "resnet20",
    "--thin",
    "8",
    "--samples",
    "32",
    "--test-samples",
    "8",
    "--decay",
    "none",
    "--warmup",
    "0",
];

/// Another user makes the folder of a run before the run does, with a link in it.
#[test]
fn a_folder_made_by_another_user_does_not_lead_traces_elsewhere() {
    let (temporary, victim) = (Folder::new(), Folder::new());
    let premade = temporary.join("farandole-train-");
    // The shell's number becomes that of the command.
    let script = r#"mkdir "$0$$" && ln -s "$1" "$0$$/traces" && chown 65534 "$0$$" && shift && exec "$@""#;
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).arg(&premade).arg(&*victim).args([env!("CARGO_BIN_EXE_farandole"), "train"]);
    command.args(small(&["--steps", "1", "-np", "1", "--threads", "1", "--workers", "1"]));
    command.env("TMPDIR", &*temporary).env_remove("FARANDOLE_TRACE");
    let output = farandole_testing::finish(&mut command, PATIENCE);
    assert!(output.status.success(), "this test needs root: {}", texts(&output));
    assert_eq!(std::fs::read_dir(&victim).unwrap().count(), 0, "traces went through the link");
    let left: Vec<_> = std::fs::read_dir(&temporary).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(matches!(&left[..], [folder] if folder.join("traces").is_symlink()), "{left:?}");
}

fn normalised<'a>(more: &[&'a str]) -> Vec<&'a str> {
    NORMALISED.iter().copied().chain(more.iter().copied()).collect()
}

#[test]
fn a_resumed_run_gives_the_weights_of_one_that_never_stopped() {
    let folder = Folder::new();
    let (whole, halves, other) = (folder.file("whole"), folder.file("halves"), folder.file("other"));
    for optimizer in ["sgd", "adam"] {
        let with = |more: &[&str]| {
            let words: Vec<&str> = more.iter().copied().chain(["--optimizer", optimizer]).collect();
            trained(&normalised(&words));
        };
        with(&["-np", "2", "--batch", "8", "--epochs", "2", "--checkpoint", &whole]);
        with(&["-np", "2", "--batch", "8", "--epochs", "1", "--checkpoint", &halves]);
        std::fs::create_dir_all(&other).unwrap();
        let name = "checkpoint.safetensors";
        std::fs::copy(Path::new(&halves).join(name), Path::new(&other).join(name)).unwrap();
        with(&["-np", "2", "--batch", "8", "--epochs", "2", "--checkpoint", &halves, "--resume"]);
        // All of the file but its seal, which says that the resumed one is of another run.
        let bits = |folder: &str| {
            let (meta, tensors) = checkpoint(folder);
            let bits = |numbers: Vec<f32>| numbers.into_iter().map(f32::to_bits).collect::<Vec<_>>();
            (meta, tensors.into_iter().map(|(name, numbers)| (name, bits(numbers))).collect::<Vec<_>>())
        };
        assert!(bits(&whole) == bits(&halves), "{optimizer}: a resumed run differs from one that never stopped");
        // One rank with the batches of both computes the same but for the order in which it adds.
        with(&["-np", "1", "--batch", "16", "--epochs", "2", "--checkpoint", &other, "--resume"]);
        let (expected, found) = (checkpoint(&whole).1, checkpoint(&other).1);
        assert_eq!(expected.len(), found.len());
        for (name, numbers) in expected.iter().filter(|(name, _)| name.starts_with("model.")) {
            for (one, two) in numbers.iter().zip(&found[name]) {
                assert!((one - two).abs() < 2e-3 * (1.0 + one.abs()), "{optimizer}, {name}: {one} and {two}");
            }
        }
    }
}

#[test]
fn other_ranks_go_on_alike_where_the_last_batch_is_short() {
    let folder = Folder::new();
    let name = "checkpoint.safetensors";
    // 50 samples in batches of 16: the last one has two. BatchNorm forms the same groups of them in two passes as on
    // two ranks.
    let (plain, with_norm) = (["--model", "lenet"], ["--model", "resnet20", "--thin", "8"]);
    for (network, resumed) in [
        (&plain[..], &["-np", "1", "--batch", "16"][..]),
        (&plain[..], &["-np", "4", "--batch", "2", "--accumulate", "2"]),
        (&with_norm[..], &["-np", "1", "--batch", "8", "--accumulate", "2"]),
    ] {
        let (whole, halves) = (folder.file("whole"), folder.file("halves"));
        let sized = ["--samples", "50", "--test-samples", "8", "--decay", "none", "--warmup", "0"];
        let common = [network, &sized[..]].concat();
        let two = ["-np", "2", "--batch", "8"];
        trained(&[&common, &two[..], &["--epochs", "2", "--checkpoint", &whole]].concat());
        trained(&[&common, &two[..], &["--epochs", "1", "--checkpoint", &halves]].concat());
        trained(&[&common, resumed, &["--epochs", "2", "--checkpoint", &halves, "--resume"]].concat());
        let (expected, found) = (checkpoint(&whole).1, checkpoint(&halves).1);
        let weights = |name: &str| name.starts_with("model.") && !name.contains("running");
        for (name, numbers) in expected.iter().filter(|(name, _)| weights(name)) {
            for (one, two) in numbers.iter().zip(&found[name]) {
                assert!((one - two).abs() < 1e-4 * (1.0 + one.abs()), "{resumed:?}, {name}: {one} and {two}");
            }
        }
        std::fs::remove_file(Path::new(&halves).join(name)).unwrap();
    }
    let whole = folder.file("whole");
    let text =
        refused(&[&with_norm[..], &["--samples", "50", "-np", "3", "--checkpoint", &whole, "--resume"]].concat());
    assert!(text.contains("3 ranks cannot have equal parts of 16 samples"), "{text}");
}

#[test]
fn who_asks_to_stop_gets_a_checkpoint_and_can_go_on() {
    // Epochs of many steps end between two of them, epochs of a single step at their end.
    for samples in ["480", "16"] {
        let folder = Folder::new();
        let (log_file, kept) = (folder.file("log.jsonl"), folder.file("kept"));
        let sized = small(&["-np", "2", "--samples", samples, "--log", &log_file, "--checkpoint", &kept]);
        let child = start(&[&sized[..], &["--epochs", "100000"]].concat());
        farandole_testing::wait_until("the end of an epoch", PATIENCE, || {
            std::fs::read_to_string(&log_file).is_ok_and(|text| text.contains("\"epoch\","))
        });
        let pid = child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        let output = finish(child);
        let text = texts(&output);
        assert_eq!(output.status.code(), Some(128 + 15), "{text}");
        assert!(text.contains("asked to stop after "), "{text}");
        assert_eq!(log(&log_file).last().unwrap()["stopped"], true);
        let (epoch, step) = place(&kept);
        assert!(epoch >= 1);
        assert!(samples != "16" || step == 0, "{step} steps of an epoch that has one");
        let next = (epoch + 1).to_string();
        let text = trained(&[&sized[..], &["--epochs", &next, "--resume"]].concat());
        let begun = if step == 0 { format!("epoch {epoch}") } else { format!("step {step} of epoch {next}") };
        assert!(text.contains(&format!("resumed after {begun}\n")), "{text}");
        assert_eq!(place(&kept), (epoch + 1, 0));
    }
}

/// What a run that must fail says.
fn refused(words: &[&str]) -> String {
    let output = train(words);
    let text = texts(&output);
    assert!(!output.status.success(), "{words:?} went well:\n{text}");
    assert!(output.status.code().is_some(), "{words:?} died:\n{text}");
    text
}

#[test]
fn what_cannot_be_is_said_before_anything_starts() {
    for (words, explanation) in [
        (&["--data", "/no/such/folder"][..], "/no/such/folder: there is no such folder"),
        (&["--model", "resnet21"], "resnet20"),
        (&["--optimizer", "sgdd"], "sgd"),
        (&["--decay", "linear"], "there is no decay `linear`"),
        (&["--precision", "f8"], "bf16-wire"),
        (&["--augment", "flop"], "flop"),
        (&["--batch", "0"], "--batch 0: at least 1"),
        (&["--batch", "many"], "invalid value 'many'"),
        (&["--lr", "-1"], "--lr -1"),
        (&["--norm-batch", "5"], "--norm-batch 5"),
        (&["--warmup", "9", "--epochs", "2"], "--warmup 9"),
        (&["--resume"], "--checkpoint DIR"),
        (&["--samples", "0"], "--samples 0"),
        (&["--classes", "5"], "--classes 5: the number cannot be chosen for cifar-like"),
        (&["--model", "alexnet"], "alexnet needs images of at least 63"),
        (&["--model", "edsr"], "edsr makes images larger"),
        (&["--np", "0"], "-np 0"),
        (&["--no-such-flag"], "unexpected argument '--no-such-flag'"),
        (&["extra"], "unexpected argument 'extra'"),
    ] {
        let text = refused(words);
        assert!(text.contains(explanation), "{words:?}:\n{text}");
        assert_eq!(text.matches("farandole: ").count() + text.matches("error: ").count(), 1, "{words:?}:\n{text}");
    }
}

#[test]
fn checkpoints_of_something_else_are_refused_by_name() {
    let folder = Folder::new();
    let (kept, garbage) = (folder.file("kept"), folder.file("garbage"));
    std::fs::write(&garbage, vec![0x5a; 5000]).unwrap();
    trained(&small(&["-np", "1", "--steps", "1", "--checkpoint", &kept]));
    let from = |file: &str| format!("--resume={file}");
    let good = format!("{kept}/checkpoint.safetensors");
    let half = folder.file("half");
    let bytes = std::fs::read(&good).unwrap();
    std::fs::write(&half, &bytes[..bytes.len() / 2]).unwrap();
    for (words, explanation) in [
        (vec![from(&garbage)], "it is not a checkpoint"),
        (vec![from(&half)], "checksum differs"),
        (vec![from(&folder.file("nothing"))], "No such file"),
        (vec![from(&good), "--model=resnet20".to_owned()], "the model lenet, not resnet20"),
        (vec![from(&good), "--optimizer=adam".to_owned()], "the optimizer sgd, not adam"),
        (vec![from(&good), "--batch=4".to_owned()], "ranks) of 8, not 4"),
        (
            vec![from(&good), "--data=imagenet-like".to_owned(), "--image-size=40".to_owned()],
            "3 x 32 x 32, not 3 x 40 x 40",
        ),
    ] {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let text = refused(&small(&[&["-np", "1"], &words[..]].concat()));
        assert!(text.contains("cannot resume from") && text.contains(explanation), "{words:?}:\n{text}");
    }
    assert_eq!(std::fs::read(&good).unwrap(), bytes, "a checkpoint that was only read has changed");
}

/// How many lines begin so. What the launcher repeats of a rank's last words begins otherwise.
fn said(text: &str, words: &str) -> usize {
    text.lines().filter(|line| line.starts_with(words)).count()
}

#[test]
fn a_loss_that_is_not_finite_ends_all_ranks_and_is_said_once() {
    let text = refused(&small(&["-np", "2", "--lr", "1e30", "--warmup", "0", "--epochs", "3"]));
    assert_eq!(said(&text, "farandole: the loss is not finite any more"), 1, "{text}");
}

#[test]
fn a_full_disk_leaves_the_last_checkpoint_and_ends_all_ranks() {
    let folder = Folder::new();
    let disk = folder.file("disk");
    std::fs::create_dir_all(&disk).unwrap();
    // One epoch's checkpoint of 500 kB fits, a second beside it does not.
    let script = r#"
        mount -t tmpfs -o size=800k full "$1" || exit 77
        "$2" train $3 --epochs 1 --checkpoint "$1" || exit 78
        before=$(sha256sum < "$1/checkpoint.safetensors")
        "$2" train $3 --epochs 2 --checkpoint "$1" --resume && exit 79
        [ "$before" = "$(sha256sum < "$1/checkpoint.safetensors")" ] || exit 80
        [ "$(ls "$1")" = checkpoint.safetensors ] || exit 81
        exit 42"#;
    let words = small(&["-np", "2"]).join(" ");
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh", &disk]);
    command.arg(env!("CARGO_BIN_EXE_farandole")).arg(&words).env_remove("FARANDOLE_TRACE");
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let output = finish(child);
    let text = texts(&output);
    assert_eq!(output.status.code(), Some(42), "{text}");
    let words = format!("farandole: {disk}/checkpoint.safetensors: cannot be written: No space left on device");
    assert_eq!(said(&text, &words), 1, "{text}");
}

/// Images that can be read, and one that begins like one.
#[test]
fn images_that_cannot_be_read_are_counted_and_training_goes_on() {
    let folder = Folder::new();
    let jpeg = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/tests/images/ramp.jpg");
    for class in ["train/cat", "train/dog", "test/cat", "test/dog"] {
        let class_folder = folder.join(class);
        std::fs::create_dir_all(&class_folder).unwrap();
        for number in 0..4 {
            std::fs::copy(&jpeg, class_folder.join(format!("{number}.jpg"))).unwrap();
        }
    }
    let bytes = std::fs::read(&jpeg).unwrap();
    std::fs::write(folder.join("train/dog/3.jpg"), &bytes[..bytes.len() / 2]).unwrap();
    std::fs::write(folder.join("test/cat/0.jpg"), b"no image at all").unwrap();
    let (data, log_file) = (folder.to_str().unwrap(), folder.file("log.jsonl"));
    let words = ["--data", data, "--model", "lenet", "--batch", "2", "-np", "2", "--epochs", "1", "--log", &log_file];
    let text = trained(&words);
    assert!(text.contains("3.jpg") && text.contains("0.jpg"), "{text}");
    assert!(text.contains("(1 sample could not be read)"), "{text}");
    let lines = log(&log_file);
    assert_eq!((&lines[1]["replaced"], &lines[1]["test_left_out"]), (&1.0.into(), &1.into()));
}

#[test]
fn a_folder_gives_as_many_images_as_are_wanted() {
    let folder = Folder::new();
    let jpeg = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/tests/images/ramp.jpg");
    for class in ["cat", "dog"] {
        std::fs::create_dir_all(folder.join("photos").join(class)).unwrap();
        for number in 0..10 {
            std::fs::copy(&jpeg, folder.join(format!("photos/{class}/{number}.jpg"))).unwrap();
        }
    }
    let (data, log_file) = (folder.file("photos"), folder.file("log.jsonl"));
    let words = ["--data", &data, "--model", "lenet", "--batch", "2", "-np", "2", "--epochs", "1"];
    let more = |more: &[&'static str]| -> Vec<&str> { words.iter().copied().chain(more.iter().copied()).collect() };
    let mut few = more(&["--samples", "6", "--test-samples", "3", "--classes", "2"]);
    few.extend(["--log", &log_file]);
    let text = trained(&few);
    assert!(text.contains("6 + 3 images"), "{text}");
    assert_eq!(log(&log_file)[1]["samples"].as_f64(), Some(6.0));
    for (flags, why) in [
        (&["--samples", "17"][..], "--samples 17: the folder has 16 images for this"),
        (&["--test-samples", "5"], "--test-samples 5: the folder has 4 images for this"),
        (&["--classes", "3"], "--classes 3: the folder has 2 classes"),
    ] {
        let text = refused(&more(flags));
        assert!(text.contains(why), "{text}");
    }
}

#[test]
fn gradients_leave_while_backward_is_still_going_on() {
    let folder = Folder::new();
    let traces = folder.file("traces");
    let words = ["--batch", "16", "-np", "2", "--steps", "4", "--trace", &traces];
    trained(&[&["--model", "resnet20", "--thin", "2", "--samples", "256", "--test-samples", "8"][..], &words].concat());
    let (traces, unreadable) = Trace::read_folder(Path::new(&traces)).unwrap();
    assert_eq!((traces.len(), unreadable.len()), (2, 0));
    // A machine that is busy with other things may hold a rank up anywhere, so not every step has to show it. The rank
    // that is later than the other in a step sees allreduces end during its own backward.
    let (mut left_early, mut over_before) = (0, 0);
    for trace in &traces {
        let (mut backwards, mut begun) = (Vec::new(), None);
        for record in &trace.records {
            match record.event {
                Event::PhaseBegin { phase: Phase::Backward, .. } => begun = Some(record.time_ns),
                Event::PhaseEnd { phase: Phase::Backward, .. } => {
                    backwards.extend(begun.take().map(|begun| (begun, record.time_ns)));
                }
                _ => {}
            }
        }
        assert_eq!(backwards.len(), 4);
        for (from, to) in &backwards {
            // Gradients alone: the few numbers that ranks add up in each step leave before backward begins.
            let gradients = |done: bool, until: u64| {
                let during = trace.records.iter().filter(|record| (*from..until).contains(&record.time_ns));
                let names = during.filter_map(|record| match record.event {
                    Event::Submitted { name, .. } if !done => Some(name),
                    Event::Done { name, .. } if done => Some(name),
                    _ => None,
                });
                names.filter(|name| trace.names.text(*name).starts_with("gradient.")).count()
            };
            let half = from + (to - from) / 2;
            left_early += usize::from(gradients(false, half) > 0);
            over_before += usize::from(gradients(true, *to) > 0);
        }
    }
    assert!(left_early > 0, "no gradient left in the first half of backward");
    assert!(over_before > 0, "no gradient's allreduce was over before backward was");
}
