//! The table that `horovodrun --check-build` prints, with what stands in each place here.
//!
//! A cross means: this build has it and it can be used on this machine now. What Horovod had and Farandole does without is
//! listed too, with the reason, so that nobody looks for a missing build flag.

use anyhow::Result;

use super::python::{Known, Python};
use super::{VERSION, say};

/// Python frameworks, as Horovod's table names them and as their packages are called.
const FRAMEWORKS: [(&str, &str); 5] =
    [("TensorFlow", "tensorflow"), ("PyTorch", "torch"), ("MXNet", "mxnet"), ("Keras", "keras"), ("JAX", "jax")];

/// Packages for which this build has a front end: none yet.
const FRONT_ENDS: [&str; 0] = [];

/// Prints the table for this machine.
pub(crate) fn check_build() -> Result<()> {
    let python = Python::of_this_machine(None);
    say(&table(python.known.as_ref().ok()))
}

fn table(known: Option<&Known>) -> String {
    let mut table = format!("Farandole v{VERSION}:\n\nAvailable Frameworks:\n");
    table += &line(true, "Rust", "");
    for (name, package) in FRAMEWORKS {
        let version = known.and_then(|known| known.packages.get(package));
        let (usable, remark) = match (version, FRONT_ENDS.contains(&package)) {
            (Some(version), true) => (true, version.clone()),
            (Some(version), false) => (false, format!("{version} is installed; its front end is not there yet")),
            (None, true) => (false, "not installed".to_owned()),
            (None, false) => (false, "not installed, and its front end is not there yet".to_owned()),
        };
        table += &line(usable, name, &remark);
    }
    table += "\nAvailable Controllers:\n";
    table += &line(true, "Farandole", "its own; none has to be built in");
    table += &line(false, "MPI", "not needed");
    table += &line(false, "Gloo", "not needed");
    table += "\nAvailable Tensor Operations:\n";
    table += &line(true, "Shared memory", "between ranks of one host");
    table += &line(true, "TCP", "between hosts");
    table += &line(false, "NCCL", "memory of GPUs is not supported yet");
    table += &line(false, "DDL", "not needed");
    table += &line(false, "CCL", "not needed");
    table += &line(false, "MPI", "not needed");
    table += &line(false, "Gloo", "not needed");
    table
}

fn line(usable: bool, name: &str, remark: &str) -> String {
    let mark = if usable { 'X' } else { ' ' };
    let line = match remark {
        "" => format!("    [{mark}] {name}"),
        remark => format!("    [{mark}] {name:14} ({remark})"),
    };
    line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_horovods_form_and_claims_nothing_that_is_not_there() {
        let known = Known { packages: [("torch".to_owned(), "2.6.0".to_owned())].into(), ..Known::default() };
        let table = table(Some(&known));
        for heading in ["Available Frameworks:", "Available Controllers:", "Available Tensor Operations:"] {
            assert!(table.contains(&format!("\n{heading}\n    [X] ")), "{table}");
        }
        assert!(table.contains("[ ] PyTorch        (2.6.0 is installed; its front end is not there yet)"), "{table}");
        assert!(table.contains("[X] TCP") && table.contains("[ ] NCCL"), "{table}");
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    }
}
