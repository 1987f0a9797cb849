//! The table that `horovodrun --check-build` prints, with what stands in each place here.
//!
//! A cross means: this build has it and it can be used on this machine now. What Horovod had and Farandole does
//! without is listed too, with the reason, so that nobody looks for a missing build flag.

use anyhow::Result;

use super::front_ends::standings;
use super::python::{Known, Python};
use super::{VERSION, say};

/// Prints the table for this machine.
pub(crate) fn check_build() -> Result<()> {
    let python = Python::of_this_machine(None);
    say(&table(python.known.as_ref().ok()))
}

fn table(known: Option<&Known>) -> String {
    let mut table = format!("Farandole v{VERSION}:\n\nAvailable Frameworks:\n");
    for (framework, standing) in standings(known) {
        table += &line(standing.is_usable(), framework.name, &standing.remark());
    }
    table += &line(true, "Burn", "feature `burn` of the crate farandole");
    table += &line(true, "Candle", "feature `candle` of the crate farandole");
    let trainer = if cfg!(feature = "train") { "`farandole train`" } else { "built without the feature `train`" };
    table += &line(cfg!(feature = "train"), "Built-in", trainer);
    table += "\nAvailable Controllers:\n";
    table += &line(true, "Farandole", "its own; none has to be built in");
    table += &line(true, "MPI", "mpirun may start the ranks");
    table += &line(false, "Gloo", "not needed");
    table += "\nAvailable Tensor Operations:\n";
    table += &line(true, "Shared memory", "between ranks of one host");
    table += &line(true, "TCP", "between hosts; plain, with checksums, or encrypted");
    table += &line(false, "NCCL", "not used: tensors of a GPU go through host memory");
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

    fn with(packages: &[(&str, &str)]) -> Known {
        let packages = packages.iter().map(|(name, version)| ((*name).to_owned(), (*version).to_owned())).collect();
        Known { packages, keras_backend: "torch".to_owned(), ..Known::default() }
    }

    #[test]
    fn the_table_has_horovods_form_and_lists_what_can_be_used() {
        let known = with(&[
            ("torch", "2.6.0"),
            ("tensorflow", "2.9.1"),
            ("keras", "3.15.1"),
            ("farandole", "0.1.0"),
            ("jax", "0.10.2"),
        ]);
        let table = table(Some(&known));
        for heading in ["Available Frameworks:", "Available Controllers:", "Available Tensor Operations:"] {
            assert!(table.contains(&format!("\n{heading}\n    [")), "{table}");
        }
        assert!(table.contains("[X] PyTorch        (2.6.0, farandole.torch)"), "{table}");
        assert!(table.contains("[ ] TensorFlow     (too old: 2.9.1 < 2.12)"), "{table}");
        assert!(
            table.contains("[X] Keras          (3.15.1, farandole.keras on torch (or tensorflow, jax))"),
            "{table}"
        );
        assert!(table.contains("[ ] MXNet          (not installed in "), "{table}");
        assert!(table.contains("[X] JAX            (0.10.2, farandole.jax)"), "{table}");
        assert!(table.contains("[X] Burn") && table.contains("[X] Candle"), "{table}");
        assert!(table.contains("[X] TCP") && table.contains("[ ] NCCL"), "{table}");
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    }
}
