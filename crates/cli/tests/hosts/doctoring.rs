//! The doctor's visits to other hosts, over a real ssh.

use serde_json::Value;

use crate::lab::{Family, Lab};

/// The report on all hosts, in the form for programs.
fn report(lab: &Lab, hosts: &str) -> Value {
    let ended = lab.host(0).farandole(&["doctor", "--json", "-H", hosts]).wait();
    serde_json::from_str(&ended.stdout.join("\n")).unwrap_or_else(|error| panic!("{error}: {}", ended.said()))
}

#[test]
fn the_doctor_looks_at_every_host_and_names_the_one_that_does_not_answer() {
    for family in [Family::V4, Family::V6] {
        let lab = Lab::new(3, family);
        lab.host(2).stop_sshd();
        let report = report(&lab, "h0,h1,h2");
        let looked_at = |host: &str| {
            let all = report["hosts"].as_array().unwrap();
            all.iter().find(|seen| seen["host"] == host).and_then(|seen| seen["report"]["host"].as_str())
        };
        assert_eq!((looked_at("h0"), looked_at("h1"), looked_at("h2")), (Some("h0"), Some("h1"), None), "{report:#}");
        let findings = report["findings"].as_array().unwrap();
        let reach = findings.iter().find(|finding| finding["key"] == "reach" && finding["state"] == "problem");
        let words = reach.map(|finding| finding["found"].to_string()).unwrap_or_default();
        assert!(words.contains("h2") && words.contains("refused"), "{report:#}");
        assert_eq!(report["state"], "problem");
    }
}
