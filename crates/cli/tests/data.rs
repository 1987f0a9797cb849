//! `farandole data` as a user runs it: conversions between all formats, going on after an interruption, errors that
//! name their cause, and measurements.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use farandole_testing::Folder;

/// No command here takes longer unless something hangs.
const DEADLINE: Duration = Duration::from_secs(60);

fn data(words: &[&str], place: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farandole"));
    command.arg("data").args(words).current_dir(place);
    farandole_testing::finish(&mut command, DEADLINE)
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn well(words: &[&str], place: &Path) -> String {
    let output = data(words, place);
    assert!(output.status.success(), "{words:?}: {}", said(&output));
    said(&output)
}

fn refused(words: &[&str], place: &Path) -> String {
    let output = data(words, place);
    assert!(!output.status.success(), "{words:?}: {}", said(&output));
    said(&output)
}

/// Two classes of a few images each.
fn photos() -> Folder {
    let place = Folder::new();
    let jpeg = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/tests/images/ramp.jpg")).unwrap();
    for (class, count) in [("cat", 5), ("dog", 4)] {
        std::fs::create_dir_all(place.join("photos").join(class)).unwrap();
        (0..count)
            .for_each(|number| std::fs::write(place.join(format!("photos/{class}/{number}.jpg")), &jpeg).unwrap());
    }
    place
}

#[test]
fn a_data_set_goes_through_all_formats_and_comes_back() {
    let place = photos();
    let first = well(&["convert", "photos", "tars", "--to", "tar", "--shards", "3"], &place);
    assert!(first.contains("labelled by class folders, becomes 3 tar files"), "{first}");
    assert!(first.contains("9 records") && first.contains("in 3 files, read back and compared"), "{first}");
    assert!(place.join("tars/shard-00002-of-00003.tar").exists());
    well(&["convert", "tars", "records", "--to", "tfrecord", "--shards", "2", "--shuffle", "7"], &place);
    well(&["convert", "records/*.tfrecord", "columns", "--to", "parquet", "--shards", "1"], &place);
    well(&["convert", "columns", "again", "--to", "folder"], &place);
    let files = |folder: &str| std::fs::read_dir(place.join(folder)).unwrap().count();
    let classes: Vec<_> = std::fs::read_dir(place.join("again"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with('.'))
        .collect();
    let mut counts: Vec<usize> = classes.iter().map(|class| files(&format!("again/{class}"))).collect();
    counts.sort_unstable();
    assert_eq!(counts, [4, 5], "{classes:?}");
}

#[test]
fn the_same_conversion_goes_on_and_another_is_refused() {
    let place = photos();
    let words = ["convert", "photos", "tars", "--to", "tar", "--shards", "3"];
    well(&words, &place);
    std::fs::remove_file(place.join("tars/shard-00001-of-00003.tar")).unwrap();
    let again = well(&words, &place);
    assert!(again.contains("3 records") && again.contains("2 more files were complete before"), "{again}");
    let other = refused(&["convert", "photos", "tars", "--to", "tar", "--shards", "4"], &place);
    assert!(other.contains("tars holds another conversion"), "{other}");
}

#[test]
fn broken_images_and_wrong_words_are_named() {
    let place = photos();
    std::fs::write(place.join("photos/cat/3.jpg"), b"no image").unwrap();
    let strict = refused(&["convert", "photos", "small", "--to", "tar", "--resize", "4", "--shards", "1"], &place);
    assert!(strict.contains("3.jpg") && strict.contains("neither a JPEG"), "{strict}");
    let words = ["convert", "photos", "less", "--to", "tar", "--resize", "4", "--shards", "1", "--skip-broken"];
    let lax = well(&words, &place);
    assert!(lax.contains("left out: ") && lax.contains("1 record left out"), "{lax}");
    let nowhere = refused(&["convert", "nowhere", "out", "--to", "tar"], &place);
    assert!(nowhere.contains("nowhere: there is no such file or folder"), "{nowhere}");
    let word = refused(&["bench", "photos", "--transform", "enlarge=3"], &place);
    assert!(word.contains("enlarge") && word.contains("random-resized-crop"), "{word}");
}

#[test]
fn a_bench_says_where_time_goes_and_how_many_workers_are_needed() {
    let place = photos();
    let words = ["bench", "photos", "--seconds", "0.1", "--workers", "1,2", "--batch", "4", "--cold"];
    let words = [&words[..], &["--transform", "random-resized-crop=16,flip,normalize=imagenet"]].concat();
    let text = well(&[&words[..], &["--need", "1e9"]].concat(), &place);
    assert!(
        text.contains("decode us") && text.contains("us of a worker") && text.contains("you need 1000000000"),
        "{text}"
    );
    let figures: serde_json::Value = serde_json::from_str(&well(&[&words[..], &["--json"]].concat(), &place)).unwrap();
    let rows = figures["rows"].as_array().unwrap();
    let named: Vec<(&str, &str, u64)> = rows
        .iter()
        .map(|row| (row["what"].as_str().unwrap(), row["files"].as_str().unwrap(), row["workers"].as_u64().unwrap()))
        .collect();
    assert_eq!(
        named[..5],
        [("read", "warm", 1), ("all", "warm", 1), ("all", "warm", 2), ("read", "cold", 1), ("all", "cold", 2)]
    );
    assert!(rows.iter().all(|row| row["samples_per_s"].as_f64().unwrap() > 0.0), "{rows:?}");
    assert!(rows[1]["decode_us"].as_f64().unwrap() > 0.0 && rows[0]["decode_us"].as_f64().unwrap() == 0.0);
}

#[test]
fn a_disk_that_is_full_is_named_leaves_no_half_shard_and_the_conversion_goes_on_later() {
    let place = photos();
    let farandole = env!("CARGO_BIN_EXE_farandole");
    for (to, ending) in [("tar", "tar"), ("tfrecord", "tfrecord"), ("parquet", "parquet")] {
        // No file may grow beyond 1 KB, and a write that would is an error and no signal: as on a full disk.
        let line = format!("trap '' XFSZ; ulimit -f 1; exec {farandole} data convert photos {to} --to {to} --shards 2");
        let output = farandole_testing::finish(Command::new("bash").args(["-c", &line]).current_dir(&place), DEADLINE);
        let words = said(&output);
        assert!(!output.status.success() && words.contains("cannot be written"), "{words}");
        assert!(words.contains(&format!("of-00002.{ending}")), "the shard is named: {words}");
        let left = std::fs::read_dir(place.join(to)).unwrap().map(|entry| entry.unwrap().file_name());
        let left: Vec<_> = left.filter(|name| name.to_string_lossy().contains("shard")).collect();
        assert_eq!(left, [""; 0], "nothing is left under a shard's name, nor of what was begun");
        let again = well(&["convert", "photos", to, "--to", to, "--shards", "2"], &place);
        assert!(again.contains("9 records") && again.contains("in 2 files"), "{again}");
    }
}

#[test]
fn a_table_is_read_with_its_labels_and_parts_are_named() {
    let place = photos();
    std::fs::write(place.join("photos/labels.csv"), "file,labels\ncat/0.jpg,a;b\ndog/1.jpg,b\n").unwrap();
    let done = well(&["convert", "photos", "tars", "--to", "tar", "--shards", "1"], &place);
    assert!(done.contains("2 records"), "{done}");
    let shard =
        String::from_utf8_lossy(&std::fs::read(place.join("tars/shard-00000-of-00001.tar")).unwrap()).into_owned();
    assert!(shard.contains("[0,1]") || shard.contains("[0, 1]"), "both labels are kept");
    std::fs::write(place.join("photos/labels.csv"), "file,class,split\ncat/0.jpg,a,train\ndog/1.jpg,b,test\n").unwrap();
    let unsaid = refused(&["convert", "photos", "all", "--to", "tar", "--shards", "1"], &place);
    assert!(unsaid.contains("say which part is meant"), "{unsaid}");
    let train = ["convert", "photos", "train", "--to", "tar", "--shards", "1", "--split", "train"];
    assert!(well(&train, &place).contains("1 record, "));
}

#[test]
fn patches_of_satellites_are_no_images_and_that_is_said() {
    let place = Folder::new();
    std::fs::create_dir_all(place.join("tiles/patch")).unwrap();
    std::fs::write(place.join("tiles/patch/patch_labels_metadata.json"), r#"{"labels": ["a"]}"#).unwrap();
    for words in [&["bench", "tiles"][..], &["convert", "tiles", "out", "--to", "tar"]] {
        let why = refused(words, &place);
        assert!(why.contains("patches of satellites") && why.contains("farandole train"), "{why}");
    }
}
