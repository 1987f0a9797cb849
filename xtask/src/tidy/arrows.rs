//! Which crate may know which.
//!
//! Dependencies go one way: plan decides, engine drives, transport moves. The table below is the law; what the
//! manifests say is read from `cargo metadata`, tests and build scripts included.

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::Complaint;

/// Every crate of the workspace and the crates of the workspace that it may depend on.
const ARROWS: [(&str, &[&str]); 19] = [
    (TEST_SUPPORT, &[]),
    ("farandole-settings", &[]),
    ("farandole-plan", &[]),
    ("farandole-trace", &[]),
    ("farandole-insight", &["farandole-trace"]),
    ("farandole-study", &["farandole-plan", "farandole-insight"]),
    ("farandole-tensor", &["farandole-plan", "farandole-settings"]),
    ("farandole-device", &["farandole-plan", "farandole-tensor", "farandole-transport"]),
    ("farandole-transport", &["farandole-plan", "farandole-settings", "farandole-trace"]),
    ("farandole-engine", ENGINE),
    ("farandole-cluster", &["farandole-plan", "farandole-settings", "farandole-transport", "farandole-trace"]),
    ("farandole", LIBRARY),
    ("farandole-storage", &["farandole-cluster", "farandole-settings", "farandole-trace"]),
    ("farandole-data", &["farandole-settings", "farandole-storage", "farandole-trace"]),
    ("farandole-train", &["farandole", "farandole-data"]),
    ("farandole-cli", COMMAND),
    ("farandole-c", &["farandole"]),
    ("farandole-python", &["farandole", "farandole-c", "farandole-data"]),
    ("xtask", &[]),
];

const ENGINE: &[&str] = &[
    "farandole-plan",
    "farandole-settings",
    "farandole-tensor",
    "farandole-device",
    "farandole-transport",
    "farandole-trace",
];

/// What all may have for their tests, and none for anything else.
const TEST_SUPPORT: &str = "farandole-testing";

const LIBRARY: &[&str] = &[
    "farandole-plan",
    "farandole-settings",
    "farandole-trace",
    "farandole-tensor",
    "farandole-device",
    "farandole-transport",
    "farandole-engine",
    "farandole-cluster",
    // Its tests have caches that share blocks. The library must not have storage: the C library would have it, too.
    "farandole-storage",
];

const COMMAND: &[&str] = &[
    "farandole",
    // Its tests run C programs.
    "farandole-c",
    "farandole-data",
    "farandole-train",
    "farandole-plan",
    "farandole-settings",
    "farandole-trace",
    "farandole-insight",
    "farandole-study",
    "farandole-tensor",
    "farandole-device",
    "farandole-transport",
    "farandole-engine",
    "farandole-cluster",
    // Its tests have caches that share blocks. The library must not have storage: the C library would have it, too.
    "farandole-storage",
];

/// Crates of others that one crate of ours may have. The data plane has no async runtime: threads and epoll; the client
/// of object stores has one, because the library that knows their protocols wants it. Only the command knows a command
/// line: libraries decide and render, and tests of theirs need no process.
const ONE_MAY_HAVE: [(&str, &str); 2] = [("tokio", "farandole-storage"), ("clap", "farandole-cli")];

/// Names that a crate must not have: they say nothing, and everything ends up in them.
const DRAWERS: [&str; 6] = ["common", "core", "utils", "util", "types", "shared"];

/// A crate of the workspace and what it depends on, for whatever purpose; without what supports its tests.
#[derive(Debug, PartialEq)]
pub(super) struct Package {
    name: String,
    dependencies: Vec<String>,
}

/// The crates of the workspace, as `cargo metadata --no-deps` tells.
pub(super) fn packages(metadata: &str) -> Result<Vec<Package>> {
    let metadata: Value = serde_json::from_str(metadata).context("reading what cargo metadata says")?;
    let name_of = |value: &Value| value["name"].as_str().map(str::to_owned).context("cargo metadata without names");
    let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    list(&metadata, "packages")
        .iter()
        .map(|package| {
            let supports_tests = |it: &Value| it["kind"] == "dev" && it["name"] == TEST_SUPPORT;
            let dependencies = list(package, "dependencies");
            let dependencies =
                dependencies.iter().filter(|it| !supports_tests(it)).map(name_of).collect::<Result<_>>()?;
            Ok(Package { name: name_of(package)?, dependencies })
        })
        .collect()
}

/// Complaints about arrows that the table does not have.
pub(super) fn check(packages: &[Package]) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    let ours = |name: &str| packages.iter().any(|package| package.name == name);
    for Package { name, dependencies } in packages {
        let complain = |what: String| Complaint::fault("Cargo.toml", 0, what);
        let short = name.strip_prefix("farandole-").unwrap_or(name);
        if DRAWERS.contains(&short) {
            complaints
                .push(complain(format!("a crate must not be called `{short}`: put things where their idea lives")));
        }
        let Some((_, allowed)) = ARROWS.iter().find(|(crate_, _)| crate_ == name) else {
            complaints.push(complain(format!("`{name}` is not in the table of arrows (xtask/src/tidy/arrows.rs)")));
            continue;
        };
        for (theirs, may_have_it) in ONE_MAY_HAVE {
            if name != may_have_it && dependencies.iter().any(|dependency| dependency == theirs) {
                complaints.push(complain(format!("`{name}` must not depend on `{theirs}`: only `{may_have_it}` may")));
            }
        }
        for dependency in dependencies.iter().filter(|dependency| ours(dependency)) {
            if !allowed.contains(&dependency.as_str()) && dependency != name {
                complaints.push(complain(format!("`{name}` must not depend on `{dependency}`: arrows go one way")));
            }
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, dependencies: &[&str]) -> Package {
        Package { name: name.to_owned(), dependencies: dependencies.iter().map(|d| (*d).to_owned()).collect() }
    }

    fn complaints(packages: &[Package]) -> Vec<String> {
        check(packages).into_iter().map(|complaint| complaint.what).collect()
    }

    #[test]
    fn metadata_is_understood() {
        let metadata = r#"{"packages": [{"name": "farandole-tensor", "dependencies": [{"name": "half"}]}]}"#;
        assert_eq!(packages(metadata).unwrap(), [package("farandole-tensor", &["half"])]);
    }

    #[test]
    fn what_supports_tests_supports_nothing_else() {
        let depending = |kind: &str| {
            let dependency = format!(r#"{{"name": "farandole-testing", "kind": {kind}}}"#);
            let testing = r#"{"name": "farandole-testing", "dependencies": []}"#;
            let plan = format!(r#"{{"name": "farandole-plan", "dependencies": [{dependency}]}}"#);
            complaints(&packages(&format!(r#"{{"packages": [{testing}, {plan}]}}"#)).unwrap())
        };
        assert_eq!(depending("\"dev\""), [""; 0]);
        assert_eq!(depending("null"), ["`farandole-plan` must not depend on `farandole-testing`: arrows go one way"]);
    }

    #[test]
    fn arrows_go_one_way() {
        let plan = || package("farandole-plan", &[]);
        assert_eq!(complaints(&[plan(), package("farandole-tensor", &["farandole-plan", "half"])]), [""; 0]);
        let found = complaints(&[package("farandole-plan", &["farandole-tensor"]), package("farandole-tensor", &[])]);
        assert_eq!(found, ["`farandole-plan` must not depend on `farandole-tensor`: arrows go one way"]);
    }

    #[test]
    fn one_crate_has_an_async_runtime() {
        assert_eq!(complaints(&[package("farandole-storage", &["tokio"])]), [""; 0]);
        assert!(complaints(&[package("farandole-engine", &["tokio"])])[0].contains("only `farandole-storage` may"));
    }

    #[test]
    fn only_the_command_knows_a_command_line() {
        assert_eq!(complaints(&[package("farandole-cli", &["clap"])]), [""; 0]);
        assert!(complaints(&[package("farandole-study", &["clap"])])[0].contains("only `farandole-cli` may"));
    }

    #[test]
    fn new_crates_are_entered_in_the_table() {
        assert!(complaints(&[package("farandole-new", &[])])[0].contains("table of arrows"));
    }

    #[test]
    fn drawers_are_refused() {
        assert!(complaints(&[package("farandole-utils", &[])])[0].contains("must not be called"));
    }
}
