//! Tests do not depend on speed: clocks and sleeps stand where tests judge time, and nowhere else.
//!
//! A test in Rust waits with what `farandole_testing` has, a test in Python with `tests/waiting.py`; there each wait
//! says what it is for. Elsewhere in tests this refuses `elapsed()` and `sleep`, and Python's clocks. Where time is
//! what is tested, the place says so: a Rust module called `timings`, a Python test with the marker `alone`. Those run
//! one after the other in a leg of their own. Programs for a GPU (`tests/gpu`) are run by hand and measure.
//!
//! What a test starts as text (`sh -c "sleep 5"`) is not looked at in Rust, because most of it waits to be killed.

use super::Complaint;
use super::code::Lines;
use super::tree::File;

/// What reads a clock or lets time pass, in Rust.
const OF_RUST: [&str; 3] = [".elapsed()", "thread::sleep(", "usleep("];

/// The same in Python.
const OF_PYTHON: [&str; 5] =
    ["time.sleep(", "time.monotonic(", "time.perf_counter(", "time.time(", "time.process_time("];

/// The tests of the Python package, and what in there may use clocks.
const PYTHON_TESTS: &str = "bindings/python/tests/";
const PYTHON_CLOCKS: [&str; 2] = ["bindings/python/tests/waiting.py", "bindings/python/tests/gpu/"];

/// Complaints about clocks in tests of this file.
pub(super) fn check(file: &File) -> Vec<Complaint> {
    let (found, what) = if file.is_rust() {
        (in_rust(file), "a clock or a sleep in a test: wait by farandole_testing, or judge time in a module `timings`")
    } else if file.path.starts_with(PYTHON_TESTS) && file.path.ends_with(".py") {
        (
            in_python(file),
            "a clock or a sleep in a test: wait by tests/waiting.py, or judge time with the marker `alone`",
        )
    } else {
        return Vec::new();
    };
    found.into_iter().map(|index| Complaint::fault(&file.path, index + 1, what)).collect()
}

/// Numbers, from zero, of lines of tests with clocks.
fn in_rust(file: &File) -> Vec<usize> {
    if file.path.ends_with("/timings.rs") || file.path.contains("/timings/") {
        return Vec::new();
    }
    let is_test_file = file.path.contains("/tests/") || file.path.ends_with("/tests.rs");
    let lines = Lines::of(&file.text);
    let (mut depth, mut found, mut is_for_tests) = (0, Vec::new(), false);
    // Depths at which a module of tests, and one called `timings`, was opened.
    let (mut tests, mut timings): (Option<usize>, Option<usize>) = (is_test_file.then_some(0), None);
    for (index, code) in lines.code.iter().enumerate() {
        let text = code.trim_start();
        if text.starts_with("#[cfg(test)]") || text.starts_with("#[cfg(all(test") {
            is_for_tests = true;
        } else if text.starts_with("mod ") && text.ends_with('{') {
            tests = tests.or(is_for_tests.then_some(depth));
            timings = timings.or(text.starts_with("mod timings ").then_some(depth));
            is_for_tests = false;
        } else if !text.is_empty() && !text.starts_with("#[") {
            is_for_tests = false;
        }
        let is_judged = tests.is_some() && timings.is_none();
        if is_judged && OF_RUST.iter().any(|clock| code.contains(clock)) {
            found.push(index);
        }
        depth = (depth + code.matches('{').count()).saturating_sub(code.matches('}').count());
        // The line that opens a module leaves the depth above the module's.
        timings = timings.filter(|opened| depth > *opened);
        tests = tests.filter(|opened| is_test_file || depth > *opened);
    }
    found
}

/// The same for Python, where scripts that a test runs as ranks are text and count.
fn in_python(file: &File) -> Vec<usize> {
    let is_alone = |line: &str| line.contains("pytest.mark.alone");
    let is_of_file = |line: &str| line.starts_with("pytestmark") && is_alone(line);
    if PYTHON_CLOCKS.iter().any(|place| file.path.starts_with(place)) || file.text.lines().any(is_of_file) {
        return Vec::new();
    }
    let (mut found, mut in_timing, mut decorates, mut in_text) = (Vec::new(), false, false, false);
    for (index, line) in file.text.lines().enumerate() {
        // A decorator begins a function; whatever else is not moved in ends it, but for lines of a text.
        if !in_text && line.starts_with('@') {
            in_timing = decorates && in_timing || is_alone(line);
            decorates = true;
        } else if !in_text && line.starts_with(|c: char| c.is_alphabetic()) {
            in_timing &= decorates;
            decorates = false;
        }
        in_text ^= line.matches("\"\"\"").count() % 2 == 1;
        if !in_timing && OF_PYTHON.iter().any(|clock| line.contains(clock)) {
            found.push(index);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    fn complaints(path: &str, text: &str) -> Vec<usize> {
        check(&File { path: path.to_owned(), text: text.to_owned() }).into_iter().map(|found| found.line).collect()
    }

    #[test]
    fn clocks_of_programs_are_left_alone() {
        assert_eq!(complaints("crates/a/src/a.rs", "fn a() {\n    thread::sleep(x);\n}\n"), NONE);
        assert_eq!(complaints("bindings/python/farandole/a.py", "time.sleep(1)\n"), NONE);
    }

    #[test]
    fn clocks_of_tests_are_refused() {
        assert_eq!(
            complaints("crates/a/tests/a.rs", "fn a() {\n    thread::sleep(x);\n}\nassert!(a.elapsed() < b);\n"),
            [2, 4]
        );
        let unit = "fn a() {\n    thread::sleep(x);\n}\n\n#[cfg(test)]\nmod tests {\n    fn b() {\n        c.elapsed();\n    }\n}\n";
        assert_eq!(complaints("crates/a/src/a.rs", unit), [8]);
        assert_eq!(complaints("crates/a/tests/a.rs", "// thread::sleep(x)\nlet a = \"thread::sleep(x)\";\n"), NONE);
    }

    #[test]
    fn clocks_may_be_in_timings() {
        let text = "mod timings {\n    fn a() {\n        b.elapsed();\n    }\n}\nfn c() {\n    d.elapsed();\n}\n";
        assert_eq!(complaints("crates/a/tests/a.rs", text), [7]);
        assert_eq!(complaints("crates/a/tests/all/timings.rs", text), NONE);
    }

    #[test]
    fn clocks_of_python_are_refused_but_where_tests_run_alone() {
        let path = "bindings/python/tests/single/test_a.py";
        assert_eq!(complaints(path, "def test_a():\n    time.sleep(1)\n"), [2]);
        assert_eq!(complaints(path, "pytestmark = [pytest.mark.alone]\nSCRIPT = \"\"\"\ntime.sleep(1)\n"), NONE);
        let marked = "@pytest.mark.alone\ndef test_a():\n    time.sleep(1)\n\ndef test_b():\n    time.monotonic()\n";
        assert_eq!(complaints(path, marked), [6]);
        let inside = "@pytest.mark.alone\n@other\ndef test_a():\n    s = \"\"\"\nwhile x:\n    time.sleep(1)\n\"\"\"\n";
        assert_eq!(complaints(path, inside), NONE);
        let script = "SCRIPT = \"\"\"\nimport time\ntime.sleep(1)\n\"\"\"\n";
        assert_eq!(complaints(path, script), [3]);
        assert_eq!(complaints("bindings/python/tests/waiting.py", "time.sleep(1)\n"), NONE);
    }
}
