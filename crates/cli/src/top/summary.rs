//! What is said of many ranks at once: of all of them above the table, and of each host's in a table of hosts.

use std::collections::BTreeMap;

use farandole_cluster::live::{LiveState, RankView, Snapshot};

use super::column::{Mark, Side, bytes, clean, figure, fit, percent, time};

/// The lines above the table.
pub(super) fn head(snapshot: &Snapshot) -> Vec<String> {
    let job = &snapshot.job;
    let hosts = by_host(&snapshot.ranks).len();
    let hosts = if hosts == 1 { "1 host".to_owned() } else { format!("{hosts} hosts") };
    let (pid, launcher, size) = (job.pid, clean(&job.launcher), job.size);
    let ranks = if size == 1 { "rank" } else { "ranks" };
    let running = time(job.running_seconds);
    let generation = match (job.generation, job.recoveries) {
        (0, _) => String::new(),
        (number, 1) => format!(" · generation {number}, 1 recovery"),
        (number, recoveries) => format!(" · generation {number}, {recoveries} recoveries"),
    };
    vec![
        format!("job {pid} of {launcher} on {}: {size} {ranks} on {hosts}, {running}{generation}", clean(&job.host)),
        clean(&job.command),
        format!("{}{}", states(&snapshot.ranks), figures(&snapshot.ranks)),
    ]
}

/// How many ranks are in which state.
fn states(ranks: &[RankView]) -> String {
    let states = [
        LiveState::Running,
        LiveState::Starting,
        LiveState::Stopped,
        LiveState::Silent,
        LiveState::Left,
        LiveState::Ended,
    ];
    let count = |state: LiveState| ranks.iter().filter(|rank| rank.state == state).count();
    let counted = states.iter().map(|state| (count(*state), state.word())).filter(|(count, _)| *count > 0);
    counted.map(|(count, word)| format!("{count} {word}")).collect::<Vec<_>>().join(", ")
}

/// The figures of all ranks together.
fn figures(ranks: &[RankView]) -> String {
    let mut words = String::new();
    let slowest = ranks.iter().filter_map(|rank| Some((rank.iterations_per_second?, rank.rank)));
    if let Some((pace, _)) = slowest.min_by(|(one, _), (other, _)| one.total_cmp(other)) {
        words += &format!(" · {} it/s", figure(pace));
    }
    if let Some(sum) = sum(ranks, |rank| rank.bytes_per_second) {
        words += &format!(" · {}/s", bytes(sum));
    }
    if let Some(waiting) = mean(ranks, |rank| rank.waiting_share) {
        let least = ranks.iter().filter_map(|rank| Some((rank.waiting_share?, rank.rank)));
        let least = least.min_by(|(one, _), (other, _)| one.total_cmp(other));
        let least = least.filter(|_| ranks.len() > 1);
        let least = least.map_or(String::new(), |(share, rank)| format!(" (least: rank {rank}, {})", percent(share)));
        words += &format!(" · waiting {}{least}", percent(waiting));
    }
    if let Some(input) = mean(ranks, |rank| rank.input_share).filter(|share| *share >= 0.005) {
        words += &format!(" · input {}", percent(input));
    }
    words
}

fn sum(ranks: &[RankView], value: impl Fn(&RankView) -> Option<f64>) -> Option<f64> {
    let known: Vec<f64> = ranks.iter().filter_map(value).collect();
    (!known.is_empty()).then(|| known.iter().sum())
}

fn mean(ranks: &[RankView], value: impl Fn(&RankView) -> Option<f64>) -> Option<f64> {
    let known: Vec<f64> = ranks.iter().filter_map(value).collect();
    (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
}

fn by_host(ranks: &[RankView]) -> BTreeMap<&str, Vec<RankView>> {
    let mut hosts: BTreeMap<&str, Vec<RankView>> = BTreeMap::new();
    for rank in ranks {
        hosts.entry(rank.host.as_str()).or_default().push(rank.clone());
    }
    hosts
}

/// The title of the table of hosts.
pub(super) fn host_title(width: usize) -> String {
    fit(
        &format!(
            " {:<20} {:>6} {:>7} {:>9} {:>6} {:>6} {}",
            "host", "ranks", "it/s", "bytes/s", "wait", "input", "of these"
        ),
        width,
        Side::Left,
    )
}

/// A line for each host: how many ranks, the slowest pace, bytes of all, mean shares, and what is the matter with how
/// many.
pub(super) fn host_lines(ranks: &[RankView], width: usize) -> Vec<(String, Mark)> {
    let line = |(host, ranks): (&str, Vec<RankView>)| {
        let or_unknown = |value: Option<String>| value.unwrap_or_else(|| "–".to_owned());
        let paces = ranks.iter().filter_map(|rank| rank.iterations_per_second);
        let pace = paces.min_by(f64::total_cmp).map(figure);
        let marks: Vec<Mark> = ranks.iter().map(Mark::of).collect();
        let mark = match () {
            () if marks.contains(&Mark::Attention) => Mark::Attention,
            () if marks.iter().all(|mark| *mark == Mark::Over) => Mark::Over,
            () => Mark::Well,
        };
        let text = format!(
            "{}{} {:>6} {:>7} {:>9} {:>6} {:>6} {}",
            mark.sign(),
            fit(&clean(host), 20, Side::Left),
            ranks.len(),
            or_unknown(pace),
            or_unknown(sum(&ranks, |rank| rank.bytes_per_second).map(bytes)),
            or_unknown(mean(&ranks, |rank| rank.waiting_share).map(percent)),
            or_unknown(mean(&ranks, |rank| rank.input_share).map(percent)),
            states(&ranks),
        );
        (fit(&text, width, Side::Left), mark)
    };
    by_host(ranks).into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    #[test]
    fn the_head_says_what_all_ranks_do() {
        let head = head(&samples::snapshot(4, 2));
        assert_eq!(head[0], "job 4711 of farandole run on login: 4 ranks on 2 hosts, 1 min 15 s");
        assert_eq!(head[1], "python train.py --epochs 90");
        assert_eq!(head[2], "4 running · 10.0 it/s · 4.00 MB/s · waiting 25 % (least: rank 3, 10 %) · input 5 %");
    }

    #[test]
    fn the_head_of_an_elastic_job_says_its_generation() {
        let mut snapshot = samples::snapshot(4, 2);
        (snapshot.job.generation, snapshot.job.size, snapshot.job.recoveries) = (5, 3, 2);
        assert!(head(&snapshot)[0].ends_with(": 3 ranks on 2 hosts, 1 min 15 s · generation 5, 2 recoveries"));
        snapshot.job.recoveries = 1;
        assert!(head(&snapshot)[0].ends_with("generation 5, 1 recovery"));
    }

    #[test]
    fn a_job_that_just_starts_has_no_figures() {
        let snapshot = Snapshot { ranks: vec![RankView::default(); 3], ..samples::snapshot(3, 1) };
        assert_eq!(head(&snapshot)[2], "3 starting");
    }

    #[test]
    fn hosts_are_summed_up() {
        let mut snapshot = samples::snapshot(4, 2);
        snapshot.ranks[2].state = LiveState::Stopped;
        let lines = host_lines(&snapshot.ranks, 100);
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0].0.trim_end(), " node00                    2    10.0   2.00 MB   30 %    5 % 2 running");
        assert!(lines[1].0.starts_with("!node01 ") && lines[1].0.contains("1 running, 1 stopped"), "{}", lines[1].0);
        assert_eq!(lines[1].1, Mark::Attention);
    }
}
