//! The table that `horovodrun --check-build` prints, with what stands in each place here.
//!
//! A cross means: this build has it and it can be used on this machine now. What Horovod had and Farandole does
//! without is listed too, with the reason, so that nobody looks for a missing build flag.

use std::path::PathBuf;

use anyhow::Result;

use super::front_ends::standings;
use super::gpus::usable;
use super::python::{Known, Python};
use super::vendor::Vendors;
use super::{VERSION, say};

/// Prints the table for this machine.
pub(crate) fn check_build() -> Result<()> {
    let python = Python::of_this_machine(None);
    let known = python.known.as_ref().ok();
    let nccl: Vec<PathBuf> = known.map_or(Vec::new(), |known| known.nccl.clone());
    say(&table(known, &Vendors::of_this_machine(&nccl)))
}

fn table(known: Option<&Known>, vendors: &Vendors) -> String {
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
    let gpus = usable(&vendors.cuda);
    let remark = match gpus {
        0 => "no GPU that CUDA's driver shows".to_owned(),
        _ => format!("GPUs: {gpus}; in device memory, ranks of one host"),
    };
    table += &line(gpus > 0, "CUDA", &remark);
    let nccl = Vendors::first(&vendors.nccl);
    let remark = match (nccl, gpus) {
        (None, _) => "not found; not needed".to_owned(),
        (Some(nccl), 0) => format!("{}, and no GPU", nccl.version),
        (Some(nccl), _) => format!("{}, with FARANDOLE_PLANE=nccl", nccl.version),
    };
    table += &line(nccl.is_some() && gpus > 0, "NCCL", &remark);
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
    use crate::doctor::gpus::h200;
    use crate::doctor::library::Sighting;
    use crate::doctor::vendor::Library;

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
        let vendors = |cuda, nccl| Vendors { cuda, nccl, mpi: vec![], has_nvidia_device: false };
        let without = table(Some(&known), &vendors(Library::Absent, vec![]));
        assert!(without.contains("[ ] CUDA ") && without.contains("[ ] NCCL           (not found"), "{without}");
        let cuda = Library::Found(Sighting { gpus: vec![h200("GPU-1")], ..Sighting::default() });
        let nccl = Library::Found(Sighting { version: "2.28.9".into(), ..Sighting::default() });
        let unused = table(Some(&known), &vendors(Library::Absent, vec![nccl.clone()]));
        assert!(unused.contains("[ ] NCCL           (2.28.9, and no GPU)"), "{unused}");
        let table = table(Some(&known), &vendors(cuda, vec![nccl]));
        assert!(table.contains("[X] NCCL           (2.28.9, with FARANDOLE_PLANE=nccl)"), "{table}");
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
        assert!(
            table.contains("[X] TCP") && table.contains("[X] CUDA           (GPUs: 1; in device memory"),
            "{table}"
        );
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    }
}
