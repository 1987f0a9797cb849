//! How much of the workspace a chore has built.
//!
//! Cargo compiles a dependency with the features that the chosen packages and targets want together; whoever chooses
//! others has it compiled again. So all legs of continuous integration choose the same, everything, and each finds what
//! the one before has built; a chore that somebody runs alone chooses what it needs, and waits for nothing else.

/// Everything that is off by default is on: the trainer, object stores, the adapters for tensor libraries, and in the
/// Python module the fake device that its tests use.
const EVERYTHING: [&str; 3] = [
    "--workspace",
    "--features",
    "farandole-cli/train,farandole-cli/remote,farandole/burn,farandole/candle,farandole-data/remote,\
     farandole-python/testing",
];

/// See the module's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All packages with all features.
    Everything,
    /// What the chore needs.
    Needed,
}

impl Scope {
    /// The words that tell cargo, where `needed` are the packages that the chore needs.
    pub(crate) fn words(self, needed: &[&'static str]) -> Vec<&'static str> {
        match self {
            Scope::Everything => EVERYTHING.to_vec(),
            Scope::Needed => needed.iter().flat_map(|package| ["--package", package]).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chore_alone_names_its_packages_and_a_leg_names_none() {
        assert_eq!(Scope::Needed.words(&["a", "b"]), ["--package", "a", "--package", "b"]);
        assert_eq!(Scope::Everything.words(&["a", "b"]), EVERYTHING);
    }
}
