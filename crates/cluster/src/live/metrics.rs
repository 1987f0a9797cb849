//! A snapshot in the text form of Prometheus (exposition format 0.0.4).
//!
//! One table says which figures there are; each is a family with a line for every rank of which it is known. Totals end
//! in `_total`, times are in seconds, sizes in bytes. The command is not among them: it may hold what is nobody's
//! business, and this page has no owner.

use std::fmt::Write;

use super::snapshot::{LiveState, RankView, Snapshot};

/// The form of the page, as it is told to whoever asks.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A figure of each rank.
struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    value: fn(&RankView) -> Option<f64>,
}

/// A figure that only ranks with a sample have.
fn sampled(rank: &RankView, value: f64) -> Option<f64> {
    rank.sample_age_seconds.map(|_| value)
}

const fn counter(name: &'static str, help: &'static str, value: fn(&RankView) -> Option<f64>) -> Family {
    Family { name, kind: "counter", help, value }
}

const fn gauge(name: &'static str, help: &'static str, value: fn(&RankView) -> Option<f64>) -> Family {
    Family { name, kind: "gauge", help, value }
}

const FAMILIES: [Family; 17] = [
    gauge("rank_up", "Whether the rank runs and is heard of: 1 or 0.", |rank| {
        Some(f64::from(u8::from(rank.state == LiveState::Running)))
    }),
    gauge("rank_stopped", "Whether a signal has stopped the rank: 1 or 0.", |rank| {
        Some(f64::from(u8::from(rank.state == LiveState::Stopped)))
    }),
    gauge("sample_age_seconds", "Age of what is known of the rank.", |rank| rank.sample_age_seconds),
    counter("iterations_total", "Iterations of training that the program has marked.", |rank| {
        sampled(rank, rank.totals.iterations as f64)
    }),
    gauge("iteration", "Number that the program gives to its iteration.", |rank| rank.iteration.map(|n| n as f64)),
    gauge("epoch", "Number that the program gives to its epoch.", |rank| rank.epoch.map(|n| n as f64)),
    counter("operations_total", "Collectives that have run: buckets and direct calls.", |rank| {
        sampled(rank, rank.totals.operations as f64)
    }),
    counter("requests_total", "Named requests that are done.", |rank| sampled(rank, rank.totals.requests as f64)),
    counter("collective_bytes_total", "Bytes that the program has handed to collectives.", |rank| {
        sampled(rank, rank.totals.bytes as f64)
    }),
    counter("waiting_seconds_total", "Time in which the program waited for collectives.", |rank| {
        sampled(rank, rank.totals.waiting_seconds)
    }),
    counter("input_wait_seconds_total", "Time in which the program waited for input, as far as it says so.", |rank| {
        sampled(rank, rank.totals.input_seconds)
    }),
    gauge("blocked_seconds", "For how long the program has been waiting for a collective by now.", |rank| {
        sampled(rank, rank.blocked_seconds.unwrap_or(0.0))
    }),
    counter("stalls_total", "Warnings about requests that waited too long for other ranks.", |rank| {
        sampled(rank, rank.totals.stalls as f64)
    }),
    gauge("last_stall_age_seconds", "Time since the last of these warnings.", |rank| {
        rank.last_stall.as_ref().map(|stall| stall.seconds_ago)
    }),
    gauge("resident_memory_bytes", "Memory of the rank's process that is in use.", |rank| {
        rank.rss_bytes.map(|bytes| bytes as f64)
    }),
    counter("cpu_seconds_total", "Time that the rank's process had on processors.", |rank| {
        sampled(rank, rank.totals.cpu_seconds)
    }),
    counter("dropped_records_total", "Records that came too fast to be counted: other totals are too small.", |rank| {
        sampled(rank, rank.totals.dropped_records as f64)
    }),
];

/// The page.
pub fn page(snapshot: &Snapshot) -> String {
    let mut page = String::new();
    let mut job = |name: &str, help: &str, value: f64| {
        let _ = writeln!(
            page,
            "# HELP farandole_{name} {help}\n# TYPE farandole_{name} gauge\nfarandole_{name} {}",
            number(value)
        );
    };
    job("ranks", "Number of ranks of the job.", snapshot.job.size as f64);
    job("job_running_seconds", "How long the job has been running.", snapshot.job.running_seconds);
    if snapshot.job.generation > 0 {
        job("generation", "Number of the generation that the elastic job is in.", snapshot.job.generation as f64);
        job("recoveries", "How often it has come from one generation to another.", snapshot.job.recoveries as f64);
    }
    for Family { name, kind, help, value } in &FAMILIES {
        let _ = writeln!(page, "# HELP farandole_{name} {help}\n# TYPE farandole_{name} {kind}");
        for rank in &snapshot.ranks {
            if let Some(value) = value(rank) {
                let host = escaped(&rank.host);
                let _ = writeln!(page, "farandole_{name}{{rank=\"{}\",host=\"{host}\"}} {}", rank.rank, number(value));
            }
        }
    }
    page
}

/// A number as Prometheus reads it.
fn number(value: f64) -> String {
    match value {
        value if value.is_nan() => "NaN".to_owned(),
        value if value.is_infinite() => if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned(),
        value => value.to_string(),
    }
}

/// The value of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::super::snapshot::{JobView, LastStall, Totals};
    use super::*;

    fn snapshot() -> Snapshot {
        let totals = Totals { iterations: 12, bytes: 1 << 60, waiting_seconds: 0.25, ..Totals::default() };
        let known = RankView {
            rank: 0,
            host: "a\"b\\c\nd".into(),
            state: LiveState::Running,
            sample_age_seconds: Some(0.5),
            last_stall: Some(LastStall { seconds_ago: 3.0, ..LastStall::default() }),
            totals,
            ..RankView::default()
        };
        let unknown = RankView { rank: 1, host: "b".into(), ..RankView::default() };
        Snapshot { job: JobView { size: 2, ..JobView::default() }, ranks: vec![known, unknown], ..Snapshot::default() }
    }

    #[test]
    fn every_line_has_the_form_that_is_promised() {
        let page = page(&snapshot());
        assert!(page.ends_with('\n'));
        for line in page.lines() {
            if let Some(rest) = line.strip_prefix("# ") {
                assert!(rest.starts_with("HELP farandole_") || rest.starts_with("TYPE farandole_"), "{line}");
                continue;
            }
            let (series, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok(), "{line}");
            let name = series.split('{').next().unwrap();
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{line}");
        }
        let types: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        for line in types {
            let (name, kind) = line.split_once(' ').unwrap();
            assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
        }
    }

    #[test]
    fn labels_are_escaped_and_what_is_unknown_is_left_out() {
        let page = page(&snapshot());
        assert!(page.contains("farandole_iterations_total{rank=\"0\",host=\"a\\\"b\\\\c\\nd\"} 12\n"), "{page}");
        assert!(
            page.contains(
                "farandole_collective_bytes_total{rank=\"0\",host=\"a\\\"b\\\\c\\nd\"} 1152921504606847000\n"
            )
        );
        assert!(page.contains("farandole_rank_up{rank=\"1\",host=\"b\"} 0\n"));
        assert!(!page.contains("farandole_iterations_total{rank=\"1\""));
        assert!(page.contains("farandole_last_stall_age_seconds{rank=\"0\",host=\"a\\\"b\\\\c\\nd\"} 3\n"));
    }
}
