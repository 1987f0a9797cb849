//! `farandole calibrate` as a user runs it: a table is measured, kept, and used by what runs next.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use farandole_testing::{Folder, finish};

/// Far more than any run here needs; a run that hangs is killed and fails.
const PATIENCE: Duration = Duration::from_secs(100);

fn farandole(words: &[&str], tables: &Path) -> Output {
    finish(Command::new(env!("CARGO_BIN_EXE_farandole")).args(words).env("FARANDOLE_TABLES", tables), PATIENCE)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_calibrated_table_is_kept_and_used_and_a_damaged_one_is_named() {
    let folder = Folder::new();
    let output = farandole(&["calibrate", "-np", "2", "--sizes", "4,1K,64K", "--seconds", "0.6"], &folder);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    let [file] = &files(&folder)[..] else { panic!("one file: {:?}", files(&folder)) };
    assert!(said.contains("2 ranks on 1 host") && said.contains(&file.display().to_string()), "{said}");
    assert!(said.contains("allreduce") && said.contains("built in"), "{said}");
    let table = fs::read_to_string(file).unwrap();
    for way in ["ring", "doubling", "halving", "tree", "window-tiles", "window-whole"] {
        for bytes in [4, 1024, 65536] {
            assert!(table.contains(&format!("point {way} {bytes} ")), "{way} at {bytes}: {table}");
        }
    }
    let bench = ["bench", "allreduce", "-np", "2", "--sizes", "4,64K", "--rounds", "1", "--iters", "3"];
    let output = farandole(&bench, &folder);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("by table "), "{}", text(&output.stdout));
    fs::write(file, &table[..table.len() / 2]).unwrap();
    let output = farandole(&bench, &folder);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let warning = text(&output.stderr);
    assert!(warning.contains(&file.display().to_string()) && warning.contains("damaged"), "{warning}");
    assert_eq!(warning.matches("is not used").count(), 1, "one rank warns once: {warning}");
    assert!(!text(&output.stdout).contains("by table "), "{}", text(&output.stdout));
}

#[test]
fn without_a_gpu_its_memory_is_not_measured_and_nothing_is_kept() {
    let folder = Folder::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_farandole"));
    command.args(["calibrate", "-np", "2", "--device", "cuda"]);
    let output = finish(command.env("FARANDOLE_TABLES", &*folder).env("CUDA_VISIBLE_DEVICES", ""), PATIENCE);
    let said = text(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains("CUDA cannot be used") || said.contains("no GPU"), "{said}");
    assert!(files(&folder).is_empty());
}

#[test]
fn between_hosts_every_way_of_every_collective_is_measured() {
    let folder = Folder::new();
    let words = ["calibrate", "-np", "4", "--hosts", "2", "--sizes", "4,4K", "--seconds", "0.2"];
    let output = farandole(&words, &folder);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = fs::read_to_string(&files(&folder)[0]).unwrap();
    assert!(table.contains("class ranks 4 hosts 2 local 2 2"), "{table}");
    for way in ["ring", "hierarchical", "hierarchical-window", "allgather-few-steps", "broadcast-few-bytes"] {
        assert!(table.contains(&format!("point {way} 4096 ")), "{way}: {table}");
    }
    assert!(!table.contains("window-tiles"), "windows do not reach across hosts: {table}");
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_starts() {
    let folder = Folder::new();
    let refused = |words: &[&str], tables: &Path| {
        let output = farandole(words, tables);
        assert!(!output.status.success());
        text(&output.stderr)
    };
    assert!(refused(&["calibrate"], &folder).contains("-np N"));
    assert!(refused(&["calibrate", "-np", "1"], &folder).contains("has no choice"));
    assert!(refused(&["calibrate", "-np", "2", "--hosts", "3"], &folder).contains("fit on 1 to 2 hosts"));
    assert!(refused(&["calibrate", "-np", "2", "--hosts", "2"], Path::new("")).contains("pretended hosts"));
    assert!(refused(&["calibrate", "-np", "2"], Path::new("off")).contains("FARANDOLE_TABLES is off"));
    assert!(refused(&["calibrate", "-np", "2", "--seconds", "0"], &folder).contains("above zero"));
    assert!(files(&folder).is_empty());
}

#[test]
fn a_folder_that_cannot_be_written_to_is_named_and_fails_the_command() {
    let folder = Folder::new();
    let tables = folder.join("tables");
    fs::write(&tables, "a file where the folder should be").unwrap();
    let output = farandole(&["calibrate", "-np", "2", "--sizes", "4", "--seconds", "0.1"], &tables);
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("the table could not be kept"), "{said}");
}
