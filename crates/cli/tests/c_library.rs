//! The C library: its header, its symbols, and C programs as ranks of jobs.
//!
//! Programs are compiled as users would, against the header and `libfarandole.so`, with every warning an error. They
//! compare results themselves and say what does not hold.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use farandole_testing::{Folder, finish};

/// The longest that compiling, or a job, may take.
const PATIENCE: Duration = Duration::from_secs(60);

const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];

/// How a compiler takes its input, and for which language.
const C: [&str; 3] = ["cc", "-std=c99", "-xc"];
const CPP: [&str; 3] = ["g++", "-std=c++17", "-xc++"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the crate lies two folders down")
}

fn include() -> PathBuf {
    root().join("bindings/c/include")
}

/// The library as cargo has built it for this test.
fn built_library() -> PathBuf {
    // The crate is a dependency of this test, so its library lies beside the test.
    let test = std::env::current_exe().expect("this program has a path");
    let library = test.with_file_name("libfarandole_c.so");
    assert!(library.is_file(), "{} should have been built", library.display());
    library
}

fn succeed(command: &mut Command) -> Output {
    let output = finish(command, PATIENCE);
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, words(&output));
    output
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Programs that are linked with the library, which lies beside them under the name that users know.
struct Programs(Folder);

impl Programs {
    fn new() -> Programs {
        let folder = Folder::new();
        std::fs::copy(built_library(), folder.join("libfarandole.so")).expect("the library can be copied");
        Programs(folder)
    }

    /// Compiles a program; its path from the root of the repository.
    fn compile(&self, source: &str) -> PathBuf {
        let program = self.0.join(Path::new(source).file_stem().expect("a source has a name"));
        let folder = self.0.to_str().expect("UTF-8");
        let mut command = Command::new(C[0]);
        command.args(&C[1..]).args(WARNINGS).arg("-D_POSIX_C_SOURCE=200809L").arg("-I").arg(include());
        command.arg(root().join(source)).arg("-o").arg(&program);
        command.args(["-L", folder, "-lfarandole", "-lm", "-pthread", &format!("-Wl,-rpath,{folder}")]);
        succeed(&mut command);
        program
    }

    /// Compiles a program and runs it on so many ranks, with these words.
    fn run(&self, source: &str, ranks: &str, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farandole"));
        // Traces of the failures that tests are about would stay behind.
        command.env("FARANDOLE_TRACE_TROUBLE", "0");
        command.args(["run", "-np", ranks]).arg(self.compile(source)).args(words);
        finish(&mut command, PATIENCE)
    }

    /// The same for a program that says this on each rank, or on the first.
    fn run_and_hear(&self, source: &str, ranks: &str, said: &str, times: usize) {
        let output = self.run(source, ranks, &[]);
        assert!(output.status.success(), "{source} on {ranks} ranks: {}\n{}", output.status, words(&output));
        assert_eq!(words(&output).matches(said).count(), times, "{}", words(&output));
    }
}

#[test]
fn the_header_and_the_examples_are_c99_and_cpp17_without_warnings() {
    let sources = [
        "bindings/c/include/farandole.h",
        "bindings/c/include/horovod.h",
        "examples/c/average.c",
        "examples/c/training.c",
        "examples/c/latency.c",
        "bindings/c/tests/programs/collectives.c",
    ];
    for [compiler, standard, language] in [C, CPP] {
        for source in sources {
            let mut command = Command::new(compiler);
            command.args([standard, language, "-fsyntax-only", "-I"]).arg(include()).args(WARNINGS);
            succeed(command.arg(root().join(source)));
        }
    }
}

#[test]
fn every_declared_function_is_exported_and_every_exported_one_is_declared() {
    let read = |name: &str| std::fs::read_to_string(include().join(name)).expect("the header is there");
    let (own, horovods) = (declared_in(&read("farandole.h")), declared_in(&read("horovod.h")));
    assert!(own.iter().all(|name| name.starts_with("farandole_")), "{own:?}");
    assert!(horovods.iter().all(|name| name.starts_with("horovod_")), "{horovods:?}");
    let declared = &own | &horovods;
    let symbols =
        succeed(Command::new("nm").args(["-D", "--defined-only", "--format=just-symbols"]).arg(built_library()));
    let exported: BTreeSet<String> = words(&symbols).lines().map(str::to_owned).collect();
    assert!(declared.len() > 80, "{declared:?}");
    assert_eq!(declared, exported);
}

/// The names before the parentheses of declarations, which begin at the beginning of a line.
fn declared_in(header: &str) -> BTreeSet<String> {
    let begins = |line: &&str| line.starts_with(|c: char| c.is_ascii_lowercase()) && !line.starts_with("typedef");
    let name = |line: &str| Some(line.split_once('(')?.0.rsplit([' ', '*']).next()?.to_owned());
    header.lines().filter(begins).filter_map(name).collect()
}

#[test]
fn declarations_are_found() {
    let header =
        "typedef int32_t f;\n/* a (b) */\nint32_t one(void);\nconst char *two(int x,\n                int y);\n";
    assert_eq!(declared_in(header), BTreeSet::from(["one".to_owned(), "two".to_owned()]));
}

#[test]
fn the_examples_run_on_four_ranks() {
    let programs = Programs::new();
    programs.run_and_hear("examples/c/average.c", "4", "the average is 1.50", 4);
    programs.run_and_hear("examples/c/training.c", "4", "y = 2.00 x -1.00", 1);
}

#[test]
fn the_guide_shows_the_example_that_is_compiled() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).expect("it is there");
    let (guide, example) = (read("docs/c.md"), read("examples/c/average.c"));
    let (_, code) = example.split_once("*/\n").expect("a comment and the code");
    assert!(guide.contains(&format!("```c\n{code}```")), "docs/c.md should show examples/c/average.c");
}

#[test]
fn every_collective_holds_on_one_three_and_four_ranks() {
    let programs = Programs::new();
    for (ranks, times) in [("1", 1), ("3", 3), ("4", 4)] {
        programs.run_and_hear("bindings/c/tests/programs/collectives.c", ranks, "every collective holds", times);
    }
}

#[test]
fn misuse_is_answered_and_the_job_goes_on() {
    Programs::new().run_and_hear("bindings/c/tests/programs/misuse.c", "2", "every misuse was answered", 2);
}

#[test]
fn the_survivors_of_a_killed_rank_are_told_which_it_was() {
    let output = Programs::new().run("bindings/c/tests/programs/lost.c", "3", &[]);
    assert_eq!(output.status.code(), Some(128 + 9), "{}", words(&output));
    let told = words(&output).lines().filter(|line| line.contains("status 11: rank 1 on ")).count();
    assert_eq!(told, 2, "{}", words(&output));
}

#[test]
fn a_job_that_is_ended_from_within_tells_everybody_why() {
    let programs = Programs::new();
    for how in ["shutdown", "abort"] {
        let output = programs.run("bindings/c/tests/programs/ended.c", "2", &[how]);
        assert!(output.status.success(), "{how}: {}\n{}", output.status, words(&output));
        assert_eq!(words(&output).matches("everybody was told").count(), 2, "{}", words(&output));
    }
}
