//! Fakes are in no release.
//!
//! Devices and an NCCL that are made of host memory are for tests: `farandole-device` has them behind the feature
//! `testing`, and crates above it forward that. What cargo would build for a release is asked of `cargo tree`, without
//! the dependencies of tests, as a release is built without them.

use super::Complaint;

/// The feature that brings fakes into a crate.
const FEATURE: &str = "testing";

/// Complaints about crates that have fakes in a release, by what `cargo tree` prints with the format [`FORMAT`].
pub(super) fn check(tree: &str) -> Vec<Complaint> {
    let mut faulty: Vec<&str> = tree.lines().filter_map(faulty).collect();
    faulty.sort_unstable();
    faulty.dedup();
    let what = |name: &str| {
        format!("`{name}` has its feature `{FEATURE}` in a release: only dependencies of tests may ask for it")
    };
    faulty.into_iter().map(|name| Complaint::fault("Cargo.toml", 0, what(name))).collect()
}

/// Name, version and path of a package, and its features.
pub(super) const FORMAT: &str = "{p}|{f}";

/// The crate of ours on this line, if it has the feature.
fn faulty(line: &str) -> Option<&str> {
    let (package, features) = line.trim_end_matches(" (*)").split_once('|')?;
    let name = package.split(' ').next().filter(|name| name.starts_with("farandole"))?;
    features.split(',').any(|feature| feature == FEATURE).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_crates_with_the_feature_are_named_and_once() {
        let tree = "farandole-cli v0.1.0 (/x/crates/cli)|remote,train\nfarandole v0.1.0 (/x/crates/farandole)|\n\
                    farandole-device v0.1.0 (/x/crates/device)|default,testing\n\
                    farandole-device v0.1.0 (/x/crates/device)|default,testing (*)\nother v1.0.0|testing\n";
        let said: Vec<String> = check(tree).into_iter().map(|complaint| complaint.what).collect();
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].starts_with("`farandole-device` has its feature `testing` in a release"), "{said:?}");
        assert_eq!(check("farandole-device v0.1.0 (/x/crates/device)|\n"), []);
    }
}
