//! Hosts side by side: versions and clocks.
//!
//! Different versions of farandole refuse to work together, and a framework that one host lacks ends the job there;
//! these are problems. Other differences are notes, because such jobs run, if not always alike.

use std::collections::{BTreeMap, BTreeSet};

use super::finding::{Finding, Group, Report};

/// Below this, clocks count as equal: ssh itself may hold a report up that long.
const EQUAL_MS: u64 = 1000;
/// At this difference Munge and Kerberos refuse each other's tickets.
const REFUSED_MS: u64 = 300_000;

/// Packages without which a script that needs them does not start.
const FRAMEWORKS: [&str; 5] = ["torch", "tensorflow", "keras", "jax", "mxnet"];

/// One host that has answered.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    /// As the user wrote it.
    pub(crate) name: String,
    pub(crate) report: Report,
    /// How far its clock is ahead of ours.
    pub(crate) ahead_ms: i64,
}

/// What differs between hosts. Nothing to say about fewer than two, but for their clocks.
pub(crate) fn compare(hosts: &[Host]) -> Vec<Finding> {
    if hosts.is_empty() {
        return Vec::new();
    }
    let names: BTreeSet<&String> = hosts.iter().flat_map(|host| host.report.versions.keys()).collect();
    let mut findings: Vec<Finding> = names.into_iter().filter_map(|name| version(name, hosts)).collect();
    if findings.is_empty() {
        let versions = &hosts[0].report.versions;
        let list = ["farandole", "python", "torch"].into_iter();
        let list: Vec<String> = list.filter_map(|name| Some(format!("{name} {}", versions.get(name)?))).collect();
        let found = format!("the same on {} ({})", count(hosts.len()), list.join(", "));
        findings.push(Finding::ok(Group::Hosts, "versions", found, "Ranks of one job should be of one kind."));
    }
    findings.push(clocks(hosts));
    findings
}

fn count(hosts: usize) -> String {
    match hosts {
        1 => "the one host that answered".to_owned(),
        2 => "both hosts that answered".to_owned(),
        _ => format!("all {hosts} hosts that answered"),
    }
}

/// A finding, if hosts have this in different versions.
fn version(name: &str, hosts: &[Host]) -> Option<Finding> {
    let mut by_version: BTreeMap<Option<&str>, Vec<&str>> = BTreeMap::new();
    for host in hosts {
        by_version.entry(host.report.versions.get(name).map(String::as_str)).or_default().push(&host.name);
    }
    if by_version.len() < 2 {
        return None;
    }
    let lacking = by_version.get(&None).map(|hosts| hosts.join(" "));
    let part =
        |(version, hosts): (&Option<&str>, &Vec<&str>)| format!("{} on {}", version.unwrap_or("none"), hosts.join(" "));
    // What is there comes before what is not.
    let found = by_version.iter().rev().map(part).collect::<Vec<_>>().join("; ");
    let mut finding = match (name, lacking) {
        ("farandole", _) => Finding::problem(
            Group::Hosts,
            "farandole",
            found,
            "Ranks of different versions refuse each other.",
            "install one version everywhere.",
        ),
        (name, Some(hosts)) if FRAMEWORKS.contains(&name) => Finding::problem(
            Group::Hosts,
            "framework",
            found,
            format!("A script that imports {name} fails on {hosts}."),
            format!("install {name} there, or name the Python that has it with `--python PATH`."),
        ),
        _ => Finding::note(
            Group::Hosts,
            "version",
            found,
            "Ranks may compute different things, or one of them may lack what another one has.",
        )
        .with_fix("install one version everywhere."),
    };
    finding.key = name.to_owned().into();
    Some(finding)
}

fn clocks(hosts: &[Host]) -> Finding {
    let why = "Farandole aligns clocks itself; tickets, certificates and file times go by them.";
    let furthest = hosts.iter().max_by_key(|host| host.ahead_ms.unsigned_abs()).expect("invariant: there is a host");
    let off_ms = furthest.ahead_ms.unsigned_abs();
    if off_ms < EQUAL_MS {
        return Finding::ok(Group::Hosts, "clocks", "less than a second apart", why);
    }
    let direction = if furthest.ahead_ms > 0 { "ahead of" } else { "behind" };
    let found = format!("{} is {:.1} s {direction} this host", furthest.name, off_ms as f64 / 1000.0);
    let fix = format!("as root on {}: `timedatectl set-ntp true`.", furthest.name);
    match off_ms < REFUSED_MS {
        true => Finding::note(Group::Hosts, "clocks", found, why).with_fix(fix),
        false => Finding::problem(Group::Hosts, "clocks", found, why, fix),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::{Planned, SCHEMA, State};

    fn host(name: &str, versions: &[(&str, &str)], ahead_ms: i64) -> Host {
        let versions = versions.iter().map(|(name, version)| ((*name).to_owned(), (*version).to_owned())).collect();
        let report = Report {
            schema: SCHEMA,
            farandole: "1".into(),
            host: name.into(),
            kernel: String::new(),
            planned: Planned { ranks: 2, local_ranks: 1 },
            state: State::Ok,
            findings: Vec::new(),
            outlook: Vec::new(),
            versions,
            unix_time_ms: 0,
        };
        Host { name: name.into(), report, ahead_ms }
    }

    fn states(hosts: &[Host]) -> Vec<(String, State)> {
        compare(hosts).into_iter().map(|finding| (finding.key.into_owned(), finding.state)).collect()
    }

    #[test]
    fn equal_hosts_are_well() {
        let same = [("farandole", "1"), ("torch", "2.6")];
        let expected = [("versions".to_owned(), State::Ok), ("clocks".to_owned(), State::Ok)];
        assert_eq!(states(&[host("h1", &same, 0), host("h2", &same, -300)]), expected);
        assert_eq!(states(&[]), []);
    }

    #[test]
    fn every_difference_is_named_with_its_hosts() {
        let hosts = [
            host("h1", &[("farandole", "1"), ("python", "3.11"), ("torch", "2.6")], 0),
            host("h2", &[("farandole", "2"), ("python", "3.12"), ("torch", "2.6")], 0),
            host("h3", &[("farandole", "2"), ("python", "3.12")], 0),
        ];
        let findings = compare(&hosts);
        let of = |key: &str| findings.iter().find(|finding| finding.key == key).unwrap();
        assert_eq!((of("farandole").state, of("farandole").found.as_str()), (State::Problem, "2 on h2 h3; 1 on h1"));
        assert_eq!((of("python").state, of("python").found.as_str()), (State::Note, "3.12 on h2 h3; 3.11 on h1"));
        assert_eq!((of("torch").state, of("torch").found.as_str()), (State::Problem, "2.6 on h1 h2; none on h3"));
        assert!(of("torch").why.contains("fails on h3"));
    }

    #[test]
    fn clocks_that_differ_are_noted_and_far_ones_are_a_problem() {
        let of = |ahead_ms| clocks(&[host("h1", &[], 0), host("h2", &[], ahead_ms)]);
        assert_eq!(of(999).state, State::Ok);
        assert_eq!((of(2500).state, of(2500).found.as_str()), (State::Note, "h2 is 2.5 s ahead of this host"));
        assert_eq!(
            (of(-600_000).state, of(-600_000).found.as_str()),
            (State::Problem, "h2 is 600.0 s behind this host")
        );
    }
}
