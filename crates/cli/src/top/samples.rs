//! Jobs that tests look at.

use farandole_cluster::live::{FORMAT, FoundJob, JobView, LiveState, RankView, Snapshot};

/// A job whose ranks all run, as many on each host.
pub(super) fn snapshot(size: usize, hosts: usize) -> Snapshot {
    let job = JobView {
        pid: 4711,
        host: "login".into(),
        launcher: "farandole run".into(),
        command: "python train.py --epochs 90".into(),
        size,
        running_seconds: 75.0,
        ..JobView::default()
    };
    let rank = |rank: usize| RankView {
        rank: rank as u32,
        host: format!("node{:02}", rank * hosts / size),
        pid: Some(1000 + rank as u32),
        state: LiveState::Running,
        sample_age_seconds: Some(0.3),
        iteration: Some(900),
        iterations_per_second: Some(10.0),
        operations_per_second: Some(20.0),
        bytes_per_second: Some(1e6),
        waiting_share: Some(if rank + 1 == size { 0.1 } else { 0.3 }),
        input_share: Some(0.05),
        cpu: Some(1.0),
        rss_bytes: Some(123_000_000),
        phase: Some("forward".into()),
        ..RankView::default()
    };
    Snapshot { format: FORMAT, job, ranks: (0..size).map(rank).collect() }
}

pub(super) fn found(snapshot: Snapshot) -> FoundJob {
    FoundJob { name: format!("farandole-live-1-{}-0", snapshot.job.pid), pid: snapshot.job.pid, snapshot: Ok(snapshot) }
}
