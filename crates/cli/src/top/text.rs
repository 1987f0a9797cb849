//! The picture on paper: printed once, every column, nothing but text.

use farandole_cluster::live::{FoundJob, RankView};

use super::column::{COLUMNS, Column, Mark, Sort, fit};
use super::summary;

/// Wide enough for a table of hosts with all its words.
const HOST_WIDTH: usize = 120;

/// What is printed of a job.
pub(super) fn page(found: &FoundJob, sort: Sort, hosts: bool) -> String {
    let snapshot = match &found.snapshot {
        Ok(snapshot) => snapshot,
        Err(why) => return format!("job {}: {why}\n", found.pid),
    };
    let mut lines = summary::head(snapshot);
    lines.push(String::new());
    if hosts {
        lines.push(summary::host_title(HOST_WIDTH));
        lines.extend(summary::host_lines(&snapshot.ranks, HOST_WIDTH).into_iter().map(|(line, _)| line));
    } else {
        let mut ranks = snapshot.ranks.clone();
        sort.sort(&mut ranks);
        let title: Vec<String> = COLUMNS.iter().map(|column| fit(column.title, column.width, column.side)).collect();
        lines.push(format!(" {}", title.join(" ")));
        lines.extend(ranks.iter().map(line));
    }
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn line(rank: &RankView) -> String {
    // A text that is too long for its column is not cut where nobody's screen ends.
    let cell = |column: &Column| {
        let text = (column.cell)(rank);
        let wide = text.chars().count() > column.width;
        if wide { text } else { fit(&text, column.width, column.side) }
    };
    format!("{}{}", Mark::of(rank).sign(), COLUMNS.iter().map(cell).collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    #[test]
    fn a_line_for_each_rank() {
        let page = page(&samples::found(samples::snapshot(2, 1)), Sort::Waiting, false);
        let lines: Vec<&str> = page.lines().collect();
        assert_eq!(lines.len(), 7);
        let title = "  rank host              pid    it/s     iter   bytes/s   wait  input   cpu      mem doing                    last stall";
        let first = "     1 node00           1001    10.0      900   1.00 MB   10 %    5 %   1.0   123 MB forward";
        assert_eq!(lines[3..6], ["", title, first]);
    }

    #[test]
    fn a_job_that_does_not_answer_says_so() {
        let found = FoundJob { name: "x".into(), pid: 7, snapshot: Err("process 7 does not answer".into()) };
        assert_eq!(page(&found, Sort::Rank, true), "job 7: process 7 does not answer\n");
    }

    #[test]
    fn hosts_have_a_table_of_their_own() {
        let page = page(&samples::found(samples::snapshot(1000, 125)), Sort::Rank, true);
        assert_eq!(page.lines().count(), 3 + 1 + 1 + 125);
    }
}
