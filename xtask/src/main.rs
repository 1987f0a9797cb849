//! The project's own chores, run as `cargo xtask <chore>`.
//!
//! Each chore is a function that takes the words after its name. What continuous integration does is the chore `ci` and
//! nothing else; every other chore is either one leg of it or something too slow or too demanding to be one. There is
//! no second way to run any of them: no makefile, no scripts.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a chore talks to the person who started it")]

mod bench;
mod ci;
mod cycles;
mod deny;
mod detect;
mod freeze;
mod fuzz;
mod junit;
mod kernels;
mod memcheck;
mod miri;
mod model;
mod network;
mod other_version;
mod page;
mod peers;
mod python;
mod python_bench;
mod scope;
mod shell;
mod soak;
mod startup;
mod tally;
mod tidy;
mod times;
mod tools;
mod torch_suite;
mod train_bench;
mod venv;
mod wheel;

use std::process::ExitCode;

use anyhow::{Result, bail};

/// A chore: its name, one line for the list, and what it does.
struct Chore {
    name: &'static str,
    summary: &'static str,
    run: fn(&[String]) -> Result<()>,
}

/// Every chore, in the order in which the list shows them.
const CHORES: [Chore; 32] = [
    Chore {
        name: "ci",
        summary: "all that continuous integration runs; installs what is missing [--fast] [--from LEG] [--only LEG]",
        run: ci::run,
    },
    Chore { name: "fmt", summary: "format the tree", run: ci::format },
    Chore { name: "clippy", summary: "lint, warnings denied", run: ci::clippy },
    Chore { name: "tidy", summary: "arrows between crates, unsafe code, sizes, documents", run: tidy::run },
    Chore { name: "test", summary: "tests through nextest, then doctests", run: ci::test },
    Chore { name: "doc", summary: "the API documents, warnings denied", run: ci::doc },
    Chore {
        name: "deny",
        summary: "licences and sources of dependencies [--advisories: known holes too]",
        run: deny::run,
    },
    Chore { name: "model", summary: "model-check the hand-over protocols", run: model::run },
    Chore { name: "memcheck", summary: "tests of the modules with unsafe code under valgrind", run: memcheck::run },
    Chore {
        name: "python",
        summary: "build the Python module and test it [--build-only] [--release] [-k EXPR]",
        run: python::run,
    },
    Chore { name: "wheel", summary: "build the wheels into dist/ and try them out", run: wheel::run },
    Chore { name: "kernels", summary: "make the PTX of the CUDA kernels [--check]", run: kernels::run },
    Chore { name: "page", summary: "the page of `farandole report` in a real browser", run: page::run },
    Chore { name: "miri", summary: "pure and unsafe code under Miri (needs a nightly toolchain)", run: miri::run },
    Chore {
        name: "fuzz",
        summary: "fuzz every decoder [--seconds N] [target …] (needs a C++ compiler)",
        run: fuzz::run,
    },
    Chore { name: "bench", summary: "the documented benchmark set [words for `farandole bench`]", run: bench::run },
    Chore {
        name: "network",
        summary: "TCP between two network namespaces, against peers (needs root)",
        run: network::run,
    },
    Chore {
        name: "torch-bench",
        summary: "gradients in PyTorch, against PyTorch's own way [words for the script]",
        run: python_bench::torch,
    },
    Chore {
        name: "torch-suite",
        summary: "PyTorch's own tests of process groups, with our backend and with gloo [--world 2,3,4]",
        run: torch_suite::run,
    },
    Chore {
        name: "tf-bench",
        summary: "gradients in TensorFlow, against tf.distribute's own way [words for the script]",
        run: python_bench::tensorflow,
    },
    Chore {
        name: "jax-bench",
        summary: "arrays in JAX, against JAX's own way [words for the script]",
        run: python_bench::jax,
    },
    Chore {
        name: "data-bench",
        summary: "loading images, against the loaders of PyTorch, TensorFlow, WebDataset and DALI [words for the script]",
        run: python_bench::data,
    },
    Chore {
        name: "train-bench",
        summary: "a step of training, against PyTorch's [--rounds N] [MODEL BATCH SIDE]…",
        run: train_bench::run,
    },
    Chore {
        name: "elastic-bench",
        summary: "how long a job stands still when it loses a rank, against torchrun [words for the script]",
        run: python_bench::recovery,
    },
    Chore {
        name: "chaos",
        summary: "an elastic job to which everything happens at random [--minutes M] [--seed S] (needs root)",
        run: python_bench::chaos,
    },
    Chore {
        name: "failures",
        summary: "everyday failures: is the right rank named, and the cause? [--rounds N] [--only WORD]…",
        run: python_bench::failures,
    },
    Chore { name: "startup", summary: "how soon a job is done, against mpirun [--rounds N]", run: startup::run },
    Chore {
        name: "cycles",
        summary: "start and stop a job very often, look for leftovers [--count N] (needs root)",
        run: cycles::run,
    },
    Chore { name: "detect", summary: "how soon everybody knows that a rank is gone [--rounds N]", run: detect::run },
    Chore {
        name: "freeze",
        summary: "stop jobs at any moment and let them go on [--rounds N] [--jobs K] [--seed S] [--dev]",
        run: freeze::run,
    },
    Chore {
        name: "soak",
        summary: "all tests again and again, beside processes that compute [--runs N] [--busy K]",
        run: soak::run,
    },
    Chore {
        name: "peers",
        summary: "install what `--against` compares with: Open MPI, MPICH, Gloo",
        run: install_peers,
    },
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nxtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(words: &[String]) -> Result<()> {
    let Some((name, rest)) = words.split_first() else {
        print_list();
        bail!("which chore?");
    };
    if matches!(name.as_str(), "help" | "--help" | "-h") {
        print_list();
        return Ok(());
    }
    match CHORES.iter().find(|chore| chore.name == name) {
        Some(chore) => (chore.run)(rest),
        None => {
            print_list();
            bail!("there is no chore `{name}`");
        }
    }
}

fn print_list() {
    println!("cargo xtask <chore>\n");
    for chore in &CHORES {
        println!("  {:9} {}", chore.name, chore.summary);
    }
}

fn install_peers(words: &[String]) -> Result<()> {
    no_words("peers", words)?;
    peers::install()
}

/// For chores that take no words: refuses any.
fn no_words(chore: &str, words: &[String]) -> Result<()> {
    match words.first() {
        None => Ok(()),
        Some(word) => bail!("`cargo xtask {chore}` takes no words, but got `{word}`"),
    }
}
