//! What the line of a rank consists of: columns, how each is written, and by which ranks can be sorted.
//!
//! Columns have a width of their own and an importance: where there is no room for all, the least important go first.
//! Nothing is told by colour alone. Texts come from other processes; what could move a cursor is taken out of them.

use std::cmp::Ordering;

use clap::ValueEnum;
use farandole_cluster::live::{LiveState, RankView};
use ratatui::text::Span;

/// By what ranks are sorted; what needs attention comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Sort {
    /// Number of the rank
    Rank,
    /// Host, then rank
    Host,
    /// Iterations in a second, slowest first
    Pace,
    /// Bytes in a second, most first
    Bytes,
    /// Share of waiting for collectives, least first: whoever waits least is whom the others wait for
    Waiting,
    /// Share of waiting for input, most first
    Input,
    /// Processors, most first
    Cpu,
    /// Memory, most first
    Memory,
    /// Last stall, latest first
    Stall,
}

impl Sort {
    const ALL: [Sort; 9] = [
        Sort::Rank,
        Sort::Host,
        Sort::Pace,
        Sort::Bytes,
        Sort::Waiting,
        Sort::Input,
        Sort::Cpu,
        Sort::Memory,
        Sort::Stall,
    ];

    /// The next one, for a key.
    pub(super) fn next(self) -> Sort {
        let at = Sort::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Sort::ALL[(at + 1) % Sort::ALL.len()]
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Sort::Rank => "rank",
            Sort::Host => "host",
            Sort::Pace => "pace",
            Sort::Bytes => "bytes",
            Sort::Waiting => "waiting",
            Sort::Input => "input",
            Sort::Cpu => "cpu",
            Sort::Memory => "memory",
            Sort::Stall => "stall",
        }
    }

    /// Sorts ranks. What is unknown comes last, and equals keep the order of ranks.
    pub(super) fn sort(self, ranks: &mut [RankView]) {
        let rising = |value: fn(&RankView) -> Option<f64>| {
            move |one: &RankView, other: &RankView| match (value(one), value(other)) {
                (Some(one), Some(other)) => one.total_cmp(&other),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => Ordering::Equal,
            }
        };
        match self {
            Sort::Rank => {}
            Sort::Host => ranks.sort_by(|one, other| one.host.cmp(&other.host)),
            Sort::Pace => ranks.sort_by(rising(|rank| rank.iterations_per_second)),
            Sort::Bytes => ranks.sort_by(rising(|rank| rank.bytes_per_second.map(|bytes| -bytes))),
            Sort::Waiting => ranks.sort_by(rising(|rank| rank.waiting_share)),
            Sort::Input => ranks.sort_by(rising(|rank| rank.input_share.map(|share| -share))),
            Sort::Cpu => ranks.sort_by(rising(|rank| rank.cpu.map(|cpu| -cpu))),
            Sort::Memory => ranks.sort_by(rising(|rank| rank.rss_bytes.map(|bytes| -(bytes as f64)))),
            Sort::Stall => ranks.sort_by(rising(|rank| rank.last_stall.as_ref().map(|stall| stall.seconds_ago))),
        }
    }
}

/// What is needed of a line when it is painted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Mark {
    /// All is as it should be.
    #[default]
    Well,
    /// Somebody should look.
    Attention,
    /// It is over.
    Over,
}

impl Mark {
    /// What stands at the beginning of the line, for those who see no colours.
    pub(super) fn sign(self) -> &'static str {
        match self {
            Mark::Well => " ",
            Mark::Attention => "!",
            Mark::Over => "-",
        }
    }

    pub(super) fn of(rank: &RankView) -> Mark {
        match rank.state {
            LiveState::Stopped | LiveState::Silent => Mark::Attention,
            LiveState::Left | LiveState::Ended => Mark::Over,
            _ if rank.last_stall.as_ref().is_some_and(|stall| stall.seconds_ago < RECENT_SECONDS) => Mark::Attention,
            LiveState::Starting | LiveState::Running => Mark::Well,
        }
    }
}

/// A stall this long ago is still news.
const RECENT_SECONDS: f64 = 60.0;

/// A column.
#[derive(Clone, Copy)]
pub(super) struct Column {
    pub(super) title: &'static str,
    pub(super) width: usize,
    pub(super) side: Side,
    /// The higher, the longer it stays when there is no room.
    pub(super) importance: u8,
    pub(super) cell: fn(&RankView) -> String,
}

/// At which side of its column a text stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

const fn column(title: &'static str, width: usize, importance: u8, cell: fn(&RankView) -> String) -> Column {
    Column { title, width, side: Side::Right, importance, cell }
}

/// All columns, in the order in which they stand. The last two are texts; they get what room is left.
pub(super) const COLUMNS: [Column; 12] = [
    column("rank", 5, 10, |rank| rank.rank.to_string()),
    Column { title: "host", width: 12, side: Side::Left, importance: 4, cell: |rank| clean(&rank.host) },
    column("pid", 8, 1, |rank| rank.pid.map_or_else(unknown, |pid| pid.to_string())),
    column("it/s", 7, 8, |rank| rank.iterations_per_second.map_or_else(unknown, figure)),
    column("iter", 8, 5, |rank| rank.iteration.map_or_else(unknown, |number| number.to_string())),
    column("bytes/s", 9, 7, |rank| rank.bytes_per_second.map_or_else(unknown, bytes)),
    column("wait", 6, 9, |rank| rank.waiting_share.map_or_else(unknown, percent)),
    column("input", 6, 6, |rank| rank.input_share.map_or_else(unknown, percent)),
    column("cpu", 5, 2, |rank| rank.cpu.map_or_else(unknown, |cpu| format!("{cpu:.1}"))),
    column("mem", 8, 3, |rank| rank.rss_bytes.map_or_else(unknown, |size| bytes(size as f64))),
    Column { title: "doing", width: 24, side: Side::Left, importance: 10, cell: doing },
    Column { title: "last stall", width: 30, side: Side::Left, importance: 5, cell: last_stall },
];

fn unknown() -> String {
    "–".to_owned()
}

/// What a rank does, or why it does nothing.
pub(super) fn doing(rank: &RankView) -> String {
    let age = || rank.sample_age_seconds.unwrap_or(0.0);
    match rank.state {
        LiveState::Starting => "starting".to_owned(),
        LiveState::Stopped => "stopped by a signal".to_owned(),
        LiveState::Silent => format!("silent for {}", time(age())),
        LiveState::Left => "left the job".to_owned(),
        LiveState::Ended => rank.ending.as_deref().map_or_else(|| "ended".to_owned(), clean),
        LiveState::Running => match (rank.blocked_seconds, rank.waits_for) {
            (Some(blocked), whom) => {
                let whom = whom.map_or(String::new(), |peer| format!(" for rank {peer}"));
                // A wait of less than a second is an ordinary one.
                let long = if blocked >= 1.0 { format!(", {}", time(blocked)) } else { String::new() };
                format!("waits{whom}{long}")
            }
            (None, _) => rank.phase.as_deref().map_or_else(|| "works".to_owned(), clean),
        },
    }
}

fn last_stall(rank: &RankView) -> String {
    rank.last_stall.as_ref().map_or(String::new(), |stall| {
        let others = match stall.missing_ranks {
            0 | 1 => String::new(),
            more => format!(" and {} more", more - 1),
        };
        let (tensor, first) = (clean(&stall.tensor), stall.first_missing_rank);
        format!("{} ago: {tensor} without rank {first}{others}", time(stall.seconds_ago))
    })
}

/// The columns for which there is room, and the width that each gets.
pub(super) fn fitting(width: usize) -> Vec<(Column, usize)> {
    let mut kept = COLUMNS.to_vec();
    // The sign in front, and a space between two columns.
    let needed = |kept: &[Column]| kept.iter().map(|column| column.width + 1).sum::<usize>();
    while needed(&kept) > width && kept.len() > 1 {
        let least = (0..kept.len()).min_by_key(|&index| (kept[index].importance, usize::MAX - index)).unwrap_or(0);
        kept.remove(least);
    }
    let spare = width.saturating_sub(needed(&kept));
    let last = kept.len() - 1;
    let widths = kept.iter().enumerate().map(|(index, column)| {
        let room = if index == last && column.side == Side::Left { column.width + spare } else { column.width };
        (*column, room.min(width.saturating_sub(1)))
    });
    widths.collect()
}

/// A text as wide as its column: cut, with a sign that it was, or filled up.
pub(super) fn fit(text: &str, width: usize, side: Side) -> String {
    let wide = |text: &str| Span::raw(text).width();
    let mut cut = text.to_owned();
    if wide(text) > width {
        while wide(&cut) + 1 > width && cut.pop().is_some() {}
        if width > 0 {
            cut.push('…');
        }
    }
    let fill = " ".repeat(width.saturating_sub(wide(&cut)));
    match side {
        Side::Left => cut + &fill,
        Side::Right => fill + &cut,
    }
}

/// A text without what could move a cursor or turn the direction of writing.
pub(super) fn clean(text: &str) -> String {
    let turns = |c: char| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}');
    text.chars().map(|c| if c.is_control() || turns(c) { '\u{fffd}' } else { c }).collect()
}

/// A figure with three digits that count.
pub(super) fn figure(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 100.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

/// Bytes in decimal units.
pub(super) fn bytes(value: f64) -> String {
    const UNITS: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];
    let (mut value, mut unit) = (value, 0);
    while value >= 999.5 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1000.0, unit + 1);
    }
    let figure = if unit == 0 { format!("{value:.0}") } else { figure(value) };
    format!("{figure} {}", UNITS[unit])
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// A time as people say it.
pub(super) fn time(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 60.0 => format!("{seconds:.0} s"),
        seconds if seconds < 3600.0 => format!("{:.0} min {:.0} s", (seconds / 60.0).floor(), (seconds % 60.0).floor()),
        seconds => format!("{:.0} h {:.0} min", (seconds / 3600.0).floor(), (seconds % 3600.0 / 60.0).floor()),
    }
}

#[cfg(test)]
mod tests {
    use farandole_cluster::live::LastStall;

    use super::*;

    #[test]
    fn figures_are_short() {
        assert_eq!([0.0, 0.123, 9.999, 12.34, 1234.5].map(figure), ["0", "0.12", "10.00", "12.3", "1234"]);
        assert_eq!([0.0, 999.0, 999.9, 1.5e6, 2e21].map(bytes), ["0 B", "999 B", "1.00 kB", "1.50 MB", "2000000 PB"]);
        assert_eq!([0.4, 59.0, 61.0, 7300.0].map(time), ["0 s", "59 s", "1 min 1 s", "2 h 1 min"]);
    }

    #[test]
    fn texts_fit_whatever_their_characters() {
        assert_eq!(fit("abc", 5, Side::Left), "abc  ");
        assert_eq!(fit("abc", 5, Side::Right), "  abc");
        assert_eq!(fit("abcdef", 4, Side::Left), "abc…");
        assert_eq!(fit("節点節点", 5, Side::Left), "節点…");
        assert_eq!(fit("節点節点", 4, Side::Left), "節… ");
        assert_eq!(fit("abc", 0, Side::Left), "");
        assert_eq!(clean("a\u{1b}[2J\n\u{202e}b"), "a\u{fffd}[2J\u{fffd}\u{fffd}b");
    }

    #[test]
    fn the_least_important_columns_go_first() {
        let titles = |width| fitting(width).iter().map(|(column, _)| column.title).collect::<Vec<_>>();
        assert_eq!(titles(200).len(), COLUMNS.len());
        assert!(!titles(120).contains(&"pid"));
        assert_eq!(titles(80), ["rank", "it/s", "iter", "bytes/s", "wait", "input", "doing"]);
        assert_eq!(titles(40), ["rank", "wait", "doing"]);
        assert_eq!(titles(1).len(), 1);
        for width in 1..250 {
            let total: usize = fitting(width).iter().map(|(_, width)| width + 1).sum();
            assert!(total <= width.max(2), "{width}");
        }
    }

    #[test]
    fn what_a_rank_does_is_said_in_words() {
        let rank = RankView { state: LiveState::Running, ..RankView::default() };
        assert_eq!(doing(&rank), "works");
        assert_eq!(doing(&RankView { phase: Some("forward".into()), ..rank.clone() }), "forward");
        let waits = RankView { blocked_seconds: Some(12.3), waits_for: Some(3), ..rank.clone() };
        assert_eq!(doing(&waits), "waits for rank 3, 12 s");
        assert_eq!(doing(&RankView { blocked_seconds: Some(0.01), ..rank.clone() }), "waits");
        let ended =
            RankView { state: LiveState::Ended, ending: Some("was killed by signal 9 (SIGKILL)".into()), ..rank };
        assert_eq!(doing(&ended), "was killed by signal 9 (SIGKILL)");
        assert_eq!(Mark::of(&ended), Mark::Over);
        let stall = LastStall { seconds_ago: 5.0, tensor: "w\u{7}".into(), missing_ranks: 3, first_missing_rank: 2 };
        let stalled = RankView { last_stall: Some(stall), state: LiveState::Running, ..RankView::default() };
        assert_eq!(last_stall(&stalled), "5 s ago: w\u{fffd} without rank 2 and 2 more");
        assert_eq!(Mark::of(&stalled), Mark::Attention);
    }

    #[test]
    fn what_is_unknown_is_sorted_last() {
        let rank = |rank, pace| RankView { rank, iterations_per_second: pace, ..RankView::default() };
        let mut ranks = [rank(0, None), rank(1, Some(5.0)), rank(2, Some(1.0)), rank(3, None)];
        Sort::Pace.sort(&mut ranks);
        assert_eq!(ranks.map(|rank| rank.rank), [2, 1, 0, 3]);
        let mut sort = Sort::Rank;
        for _ in 0..9 {
            sort = sort.next();
        }
        assert_eq!(sort, Sort::Rank);
    }
}
