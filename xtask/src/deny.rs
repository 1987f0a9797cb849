//! Looks at the dependencies: licences, sources, banned crates, wildcards; on request the list of known holes.
//!
//! The rules are in `deny.toml`. cargo's own tree of dependencies says all that continuous integration checks, so no
//! tool has to be compiled for it. `--advisories` hands the same rules to cargo-deny, with the list of known holes: a
//! git repository that must be fetched from GitHub.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::shell::{Shell, root};
use crate::tally::Tally;
use crate::tools;

/// Every dependency of every package with all features, on the targets that `deny.toml` names, in build scripts and
/// tests too: name, version, source unless it is crates.io, and licence.
const TREE: [&str; 9] =
    ["tree", "--workspace", "--all-features", "--edges", "normal,build,dev", "--prefix", "none", "--format", "{p}|{l}"];

/// `cargo xtask deny [--advisories]`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    match words {
        [] => check().map(drop),
        [word] if word == "--advisories" => {
            tools::need_subcommand(tools::DENY)?;
            Shell::cargo(&["deny", "check"]).run().map(drop)
        }
        [word, ..] => bail!("`cargo xtask deny` knows only --advisories, not `{word}`"),
    }
}

/// All checks that need nothing but the crates themselves.
pub(crate) fn check() -> Result<Tally> {
    let rules = std::fs::read_to_string(root().join("deny.toml")).context("reading deny.toml")?;
    let rules = Rules::read(&rules)?;
    let targets: Vec<&str> = rules.targets.iter().flat_map(|target| ["--target", target]).collect();
    let tree = Shell::cargo(&TREE).words(&targets);
    println!("$ {}", tree.line());
    let tree = tree.read()?;
    let own = root().to_string_lossy().into_owned();
    let crates: BTreeSet<&str> = tree.lines().map(|line| line.trim_end_matches(" (*)")).collect();
    let mut faults: Vec<String> = crates.iter().filter_map(|krate| rules.fault(krate, &own)).collect();
    let manifests = Shell::cargo(&["metadata", "--no-deps", "--format-version", "1"]).read()?;
    faults.extend(wildcards(&serde_json::from_str(&manifests).context("reading cargo's metadata")?));
    println!("{} crates; in several versions: {}", crates.len(), several(&crates).join(", "));
    if faults.is_empty() { Ok(Tally::default()) } else { bail!("against deny.toml:\n{}", faults.join("\n")) }
}

/// What `deny.toml` says.
#[derive(Debug, PartialEq)]
struct Rules<'a> {
    targets: Vec<&'a str>,
    licences: Vec<&'a str>,
    /// A licence, and the one crate that may have it.
    exceptions: Vec<(&'a str, &'a str)>,
    banned: Vec<&'a str>,
}

impl<'a> Rules<'a> {
    /// Reads as much of TOML as the file uses: lists that begin with their key on a line of its own.
    fn read(text: &'a str) -> Result<Rules<'a>> {
        let list = |key: &str| {
            let begin = format!("\n{key} = [");
            let (_, list) = text.split_once(&begin).with_context(|| format!("deny.toml has no list `{key}`"))?;
            // Everything up to the bracket that closes the list: no other stands at the end of a line.
            let list = list.split("]\n").next().unwrap_or_default();
            Ok::<Vec<&str>, anyhow::Error>(list.split('"').skip(1).step_by(2).collect())
        };
        let exceptions = list("exceptions")?.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        let banned = list("deny")?.chunks_exact(2).map(|pair| pair[0]).collect();
        Ok(Rules { targets: list("targets")?, licences: list("allow")?, exceptions, banned })
    }

    /// What is wrong with a line of [`TREE`], where our own crates lie in the folder `own`.
    fn fault(&self, krate: &str, own: &str) -> Option<String> {
        let (package, licence) = krate.split_once('|')?;
        let name = package.split(' ').next()?;
        let source = package.split_once(" (").map(|(_, rest)| rest.trim_end_matches(')'));
        let is_known = source.is_none_or(|source| source == "proc-macro" || source.starts_with(own));
        let is_allowed = |one: &str| self.licences.contains(&one) || self.exceptions.contains(&(one, name));
        if self.banned.contains(&name) {
            Some(format!("{package} is banned"))
        } else if !is_known {
            Some(format!("{package} does not come from crates.io"))
        } else if !allows(licence, &is_allowed) {
            Some(format!("{package} has the licence `{licence}`"))
        } else {
            None
        }
    }
}

/// Whether an SPDX expression can be met with licences that are allowed. A slash is how `OR` was written once. The
/// expressions of crates nest one level deep: `(A OR B) AND C`.
fn allows(expression: &str, is_allowed: &impl Fn(&str) -> bool) -> bool {
    let expression = expression.replace('/', " OR ");
    if let Some((choice, others)) = expression.strip_prefix('(').and_then(|rest| rest.split_once(") AND ")) {
        return allows(choice, is_allowed) && allows(others, is_allowed);
    }
    expression.split(" OR ").any(|all| all.split(" AND ").all(|one| is_allowed(one.trim())))
}

/// The dependencies of our manifests on whatever version there is. Those on our own crates have no version.
fn wildcards(manifests: &Value) -> Vec<String> {
    let packages = manifests["packages"].as_array().into_iter().flatten();
    let wildcard = |of: &Value, on: &Value| {
        let is_wild = on["req"] == "*" && on["path"].is_null();
        is_wild.then(|| format!("{} wants any version of {}", of["name"], on["name"]))
    };
    packages
        .flat_map(|of| of["dependencies"].as_array().into_iter().flatten().filter_map(move |on| wildcard(of, on)))
        .collect()
}

/// The names of crates of which there is more than one version.
fn several<'a>(crates: &BTreeSet<&'a str>) -> Vec<&'a str> {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for krate in crates {
        let mut words = krate.split([' ', '|']);
        versions.entry(words.next().unwrap_or_default()).or_default().extend(words.next());
    }
    versions.into_iter().filter(|(_, versions)| versions.len() > 1).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_are_read() {
        let text = std::fs::read_to_string(root().join("deny.toml")).unwrap();
        let rules = Rules::read(&text).unwrap();
        assert_eq!(rules.targets, ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"]);
        assert!(rules.licences.contains(&"Apache-2.0 WITH LLVM-exception") && !rules.licences.contains(&"MPL-2.0"));
        assert_eq!(rules.exceptions, [("MPL-2.0", "colored"), ("IJG", "jpeg-encoder")]);
        assert_eq!(rules.banned, ["aws-lc-sys", "openssl-sys", "bindgen"]);
    }

    #[test]
    fn each_rule_finds_what_is_against_it() {
        let text = "\ntargets = [\"t\"]\nallow = [\"MIT\"]\nexceptions = [{ allow = [\"MPL-2.0\"], crate = \"c\" }]\n\
                    deny = [\n    { name = \"b\", reason = \"r\" },\n]\n";
        let rules = Rules::read(text).unwrap();
        let fault = |krate: &str| rules.fault(krate, "/own");
        assert_eq!(fault("a v1.0.0 (proc-macro)|MIT"), None);
        assert_eq!(fault("a v1.0.0 (/own/crates/a)|MIT"), None);
        assert_eq!(fault("c v1.0.0|MPL-2.0"), None);
        assert!(fault("a v1.0.0|MPL-2.0").unwrap().contains("licence"));
        assert!(fault("a v1.0.0|").unwrap().contains("licence"));
        assert!(fault("b v1.0.0|MIT").unwrap().contains("banned"));
        assert!(fault("a v1.0.0 (https://example.org/a#1)|MIT").unwrap().contains("crates.io"));
        let manifests = serde_json::json!({"packages": [{"name": "a", "dependencies": [
            {"name": "x", "req": "*"}, {"name": "y", "req": "^1"}, {"name": "z", "req": "*", "path": "/own/z"},
        ]}]});
        assert_eq!(wildcards(&manifests), [r#""a" wants any version of "x""#]);
        assert_eq!(several(&["a v1|MIT", "a v2|MIT", "b v1|MIT", "c v1 (proc-macro)|MIT"].into()), ["a"]);
    }

    #[test]
    fn one_licence_of_a_choice_is_enough_and_all_of_a_sum_are_needed() {
        let allows = |expression: &str| allows(expression, &|one| ["A", "B", "A WITH X"].contains(&one));
        for expression in ["A", "C OR A", "C/A", "C / A", "A AND B", "(C OR A) AND B", "A WITH X OR C", "C OR A AND B"]
        {
            assert!(allows(expression), "{expression}");
        }
        for expression in ["", "C", "C OR D", "A AND C", "(A OR B) AND C", "A WITH Y", "((A) AND B)"] {
            assert!(!allows(expression), "{expression}");
        }
    }
}
