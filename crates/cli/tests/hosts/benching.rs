//! `farandole bench` with ranks on other hosts.

use serde_json::Value;

use crate::jobs::all_gone;
use crate::lab::{Family, Lab};

#[test]
fn a_benchmark_runs_on_other_hosts_than_the_one_it_is_started_on() {
    for family in [Family::V4, Family::V6] {
        let lab = Lab::new(3, family);
        let words = ["bench", "allreduce", "-np", "4", "-H", "h1:2,h2:2", "--rounds", "1", "--iters", "3"];
        for how in [&["--sizes", "4,1M", "--again"][..], &["--sizes", "4K", "--through", "engine"]] {
            let ended = lab.host(0).farandole(&[&words, how, &["--json", "-"]].concat()).wait();
            assert_eq!(ended.code(), 0, "{}", ended.said());
            let report: Value = serde_json::from_str(&ended.stdout.join("\n"))
                .unwrap_or_else(|error| panic!("{error}: {}", ended.said()));
            assert_eq!((&report["ranks"], &report["hosts"]), (&4.into(), &2.into()), "{report}");
            assert_eq!(report["machine"]["host"], "h1", "{report}");
            for size in report["sizes"].as_array().unwrap() {
                assert_eq!(size["farandole"]["wrong"], 0, "{how:?}: {size}");
            }
        }
        all_gone(&lab, std::time::Duration::from_secs(20));
    }
}
