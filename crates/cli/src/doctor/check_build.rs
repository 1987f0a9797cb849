//! The table that `horovodrun --check-build` prints, with what stands in each place here.
//!
//! A cross means: this build has it and it can be used on this machine now. What Horovod had and Farandole does
//! without is listed too, with the reason, so that nobody looks for a missing build flag.

use anyhow::Result;

use super::python::{FRONT_ENDS, Known, Python};
use super::{VERSION, say};

/// Python frameworks, as Horovod's table names them and as their packages are called.
const FRAMEWORKS: [(&str, &str); 5] =
    [("TensorFlow", "tensorflow"), ("PyTorch", "torch"), ("MXNet", "mxnet"), ("Keras", "keras"), ("JAX", "jax")];

/// Prints the table for this machine.
pub(crate) fn check_build() -> Result<()> {
    let python = Python::of_this_machine(None);
    say(&table(python.known.as_ref().ok()))
}

fn table(known: Option<&Known>) -> String {
    let mut table = format!("Farandole v{VERSION}:\n\nAvailable Frameworks:\n");
    for (name, package) in FRAMEWORKS {
        let (usable, remark) = framework(known, package);
        table += &line(usable, name, &remark);
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

/// Whether a Python framework can be used with the Python of this machine, and what there is to say.
fn framework(known: Option<&Known>, package: &str) -> (bool, String) {
    let version = |package| known.and_then(|known| known.packages.get(package));
    match (FRONT_ENDS.contains(&package), version(package), version("farandole")) {
        (false, Some(installed), _) => (false, format!("{installed} is installed; there is no front end for it yet")),
        (false, None, _) => (false, "there is no front end for it yet".to_owned()),
        (true, Some(installed), Some(_)) => (true, format!("{installed}, farandole.{package}")),
        (true, Some(installed), None) => {
            (false, format!("{installed}; this Python has no farandole: pip install farandole"))
        }
        (true, None, _) => (false, "not installed".to_owned()),
    }
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
        Known { packages, ..Known::default() }
    }

    #[test]
    fn the_table_has_horovods_form_and_lists_what_can_be_used() {
        let known = with(&[("torch", "2.6.0"), ("farandole", "0.1.0"), ("jax", "0.5.0")]);
        let table = table(Some(&known));
        for heading in ["Available Frameworks:", "Available Controllers:", "Available Tensor Operations:"] {
            assert!(table.contains(&format!("\n{heading}\n    [")), "{table}");
        }
        assert!(table.contains("[X] PyTorch        (2.6.0, farandole.torch)"), "{table}");
        assert!(table.contains("[ ] JAX            (0.5.0 is installed; there is no front end for it yet)"), "{table}");
        assert!(table.contains("[X] Burn") && table.contains("[X] Candle"), "{table}");
        assert!(table.contains("[X] TCP") && table.contains("[ ] NCCL"), "{table}");
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    }

    #[test]
    fn a_framework_is_usable_where_it_and_the_package_are_installed() {
        let torch = |packages: &[(&str, &str)]| framework(Some(&with(packages)), "torch");
        assert_eq!(torch(&[]), (false, "not installed".to_owned()));
        let (usable, remark) = torch(&[("torch", "2.6.0")]);
        assert!(!usable && remark.contains("pip install farandole"), "{remark}");
        assert!(torch(&[("torch", "2.6.0"), ("farandole", "0.1.0")]).0);
        assert!(!framework(None, "torch").0);
    }

    #[test]
    fn every_front_end_of_the_python_package_is_known() {
        let package = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bindings/python/farandole");
        let is_there = |name: &str| std::path::Path::new(package).join(name).join("__init__.py").exists();
        for (_, name) in FRAMEWORKS {
            assert_eq!(is_there(name), FRONT_ENDS.contains(&name), "{name}");
        }
    }
}
