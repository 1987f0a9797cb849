//! Paints a view. Everything is told in words and signs; colours, where they are wanted, only repeat it.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Clear;

use super::column::{Mark, Side, fit, fitting};
use super::summary;
use super::view::{Help, Lines, View};

/// Whether colours are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Paint {
    Colours,
    Plain,
}

impl Paint {
    /// Colours, unless `NO_COLOR` says otherwise.
    pub(super) fn from_environment() -> Paint {
        match std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) {
            true => Paint::Colours,
            false => Paint::Plain,
        }
    }

    fn style(self, mark: Mark) -> Style {
        match (self, mark) {
            (_, Mark::Well) => Style::new(),
            (Paint::Colours, Mark::Attention) => Style::new().fg(Color::Yellow).add_modifier(Modifier::BOLD),
            (Paint::Plain, Mark::Attention) => Style::new().add_modifier(Modifier::BOLD),
            (Paint::Colours, Mark::Over) => Style::new().fg(Color::DarkGray),
            (Paint::Plain, Mark::Over) => Style::new(),
        }
    }
}

/// What keys do.
const KEYS: [&str; 13] = [
    "q, Esc, Ctrl-C   leave",
    "s                sort by the next column",
    "r                turn the order round",
    "n                a line for each host, or for each rank",
    "p, space         hold the picture, or go on",
    "Tab              the next job",
    "arrows, j, k     scroll; also PgUp, PgDn, Home, End",
    "",
    "it/s   iterations in a second, as marked by the program",
    "wait   share of the time spent waiting for collectives",
    "input  share spent waiting for input; both of the last 10 s",
    "!      stopped, silent, or stalled in the last minute",
    "-      has ended",
];

/// Paints everything.
pub(super) fn draw(frame: &mut Frame<'_>, view: &mut View, paint: Paint) {
    let area = frame.area();
    let width = usize::from(area.width);
    let mut y = 0;
    let mut put = |frame: &mut Frame<'_>, text: &str, style: Style| {
        if y < area.height {
            frame.buffer_mut().set_line(0, y, &Line::styled(fit(text, width, Side::Left), style), area.width);
            y += 1;
        }
    };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    // Where there are few lines, ranks are worth more than the command.
    let roomy = area.height >= 10;
    match view.snapshot() {
        Some(snapshot) => {
            let head = summary::head(snapshot);
            let which = view.which().map(|(at, of)| format!("  [job {at} of {of}: Tab]")).unwrap_or_default();
            put(frame, &format!("{}{which}", head[0]), bold);
            if roomy {
                put(frame, &head[1], Style::new());
            }
            put(frame, &head[2], Style::new());
        }
        None => put(frame, "nothing is known of this job yet", bold),
    }
    if let Some(note) = view.note() {
        put(frame, &format!("! {note}"), paint.style(Mark::Attention));
    } else if roomy {
        put(frame, "", Style::new());
    }
    let (title, lines) = table(view, width);
    put(frame, &title, Style::new().add_modifier(Modifier::REVERSED));
    let room = usize::from(area.height.saturating_sub(y).saturating_sub(1));
    let first = view.scroll(lines.len(), room);
    let shown = lines.iter().skip(first).take(room);
    for (index, (text, mark)) in shown.enumerate() {
        let line = Line::styled(text.as_str(), paint.style(*mark));
        frame.buffer_mut().set_line(0, y + index as u16, &line, area.width);
    }
    if area.height > 0 {
        let foot = foot(view, first, room, lines.len());
        let line = Line::styled(fit(&foot, width, Side::Left), Style::new().add_modifier(Modifier::REVERSED));
        frame.buffer_mut().set_line(0, area.height - 1, &line, area.width);
    }
    if view.help == Help::Shown {
        explain(frame, area);
    }
}

/// The title of the table and its lines.
fn table(view: &View, width: usize) -> (String, Vec<(String, Mark)>) {
    let ranks = view.ranks();
    if view.lines == Lines::Hosts {
        return (summary::host_title(width), summary::host_lines(&ranks, width));
    }
    let columns = fitting(width);
    let title: Vec<String> = columns.iter().map(|(column, width)| fit(column.title, *width, column.side)).collect();
    let line = |rank| {
        let cells = columns.iter().map(|(column, width)| fit(&(column.cell)(rank), *width, column.side));
        let mark = Mark::of(rank);
        (format!("{}{}", mark.sign(), cells.collect::<Vec<_>>().join(" ")), mark)
    };
    (format!(" {}", title.join(" ")), ranks.iter().map(line).collect())
}

fn foot(view: &View, first: usize, room: usize, count: usize) -> String {
    let part = match count > room {
        true => format!("{}–{} of {count}  ", (first + 1).min(count), (first + room).min(count)),
        false => String::new(),
    };
    let (lines, sorted) = match view.lines {
        Lines::Ranks => ("hosts", format!("  s sort: {}", view.sort.word())),
        Lines::Hosts => ("ranks", String::new()),
    };
    format!(" {part}q quit  ? help{sorted}  n {lines}  p hold")
}

/// Explains the keys, over everything.
fn explain(frame: &mut Frame<'_>, area: Rect) {
    let (width, height) = (area.width.min(66), area.height.min(KEYS.len() as u16 + 2));
    let place = Rect::new((area.width - width) / 2, (area.height - height) / 2, width, height);
    frame.render_widget(Clear, place);
    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    for row in 0..height {
        let text = row.checked_sub(1).and_then(|row| KEYS.get(usize::from(row))).copied().unwrap_or_default();
        let text = fit(&format!("  {text}"), usize::from(width), Side::Left);
        frame.buffer_mut().set_line(place.x, place.y + row, &Line::styled(text, reversed), width);
    }
}

#[cfg(test)]
mod tests {
    use farandole_cluster::live::{LastStall, LiveState, Snapshot};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    use super::super::column::Sort;
    use super::super::samples;
    use super::*;

    fn view(snapshot: Snapshot) -> View {
        View::new(Sort::Rank, false, vec![samples::found(snapshot)])
    }

    fn painted(view: &mut View, width: u16, height: u16, paint: Paint) -> Terminal<TestBackend> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, view, paint)).unwrap();
        terminal
    }

    fn lines(view: &mut View, width: u16, height: u16) -> Vec<String> {
        let terminal = painted(view, width, height, Paint::Plain);
        let cells = terminal.backend().buffer().content().chunks(usize::from(width).max(1));
        let text =
            |cells: &[ratatui::buffer::Cell]| cells.iter().map(ratatui::buffer::Cell::symbol).collect::<String>();
        cells.map(|cells| text(cells).trim_end().to_owned()).collect()
    }

    fn press(view: &mut View, code: KeyCode) {
        view.press(KeyEvent::new(code, KeyModifiers::NONE));
    }

    #[test]
    fn a_wide_screen_shows_every_column() {
        let mut snapshot = samples::snapshot(3, 1);
        snapshot.ranks[1].state = LiveState::Stopped;
        snapshot.ranks[2].last_stall =
            Some(LastStall { seconds_ago: 5.0, tensor: "layer.7".into(), missing_ranks: 1, first_missing_rank: 1 });
        let lines = lines(&mut view(snapshot), 160, 12);
        assert_eq!(lines[0], "job 4711 of farandole run on login: 3 ranks on 1 host, 1 min 15 s");
        assert_eq!(lines[1], "python train.py --epochs 90");
        assert!(lines[2].starts_with("2 running, 1 stopped · "), "{}", lines[2]);
        assert!(lines[4].starts_with("  rank host              pid    it/s "), "{}", lines[4]);
        assert!(lines[6].starts_with("!    1 node00 ") && lines[6].contains("stopped by a signal"), "{}", lines[6]);
        assert!(
            lines[7].starts_with("!    2 ") && lines[7].ends_with("5 s ago: layer.7 without rank 1"),
            "{}",
            lines[7]
        );
        assert_eq!(lines[11], " q quit  ? help  s sort: rank  n hosts  p hold");
    }

    #[test]
    fn a_narrow_screen_shows_what_matters_most() {
        let lines = lines(&mut view(samples::snapshot(3, 1)), 40, 8);
        assert_eq!(lines[0], "job 4711 of farandole run on login: 3 r…");
        assert_eq!(lines[2], "  rank   wait doing");
        assert_eq!(lines[3], "     0   30 % forward");
        assert!(lines[7].starts_with(" q quit"));
    }

    #[test]
    fn any_size_can_be_painted() {
        for (width, height) in [(0, 0), (1, 1), (2, 3), (9, 5), (40, 2), (500, 1), (3, 100)] {
            let mut view = view(samples::snapshot(20, 3));
            painted(&mut view, width, height, Paint::Colours);
            press(&mut view, KeyCode::Char('?'));
            painted(&mut view, width, height, Paint::Plain);
            press(&mut view, KeyCode::Char('n'));
            painted(&mut view, width, height, Paint::Plain);
        }
    }

    #[test]
    fn a_thousand_ranks_are_scrolled_through_and_summed_up_by_host() {
        let mut view = view(samples::snapshot(1000, 125));
        let first = lines(&mut view, 120, 30);
        assert!(first[5].contains("    0 node00"), "{}", first[5]);
        assert!(first[29].starts_with(" 1–24 of 1000  "), "{}", first[29]);
        press(&mut view, KeyCode::End);
        let last = lines(&mut view, 120, 30);
        assert!(last[28].contains("  999 node124"), "{}", last[28]);
        assert!(last[29].starts_with(" 977–1000 of 1000  "), "{}", last[29]);
        press(&mut view, KeyCode::Char('n'));
        let hosts = lines(&mut view, 120, 30);
        assert!(hosts[5].starts_with(" node00 ") && hosts[5].contains("     8 "), "{}", hosts[5]);
        assert!(hosts[29].starts_with(" 1–24 of 125  "), "{}", hosts[29]);
    }

    #[test]
    fn colours_repeat_what_signs_say() {
        let mut snapshot = samples::snapshot(2, 1);
        snapshot.ranks[1].state = LiveState::Silent;
        let colours = |paint| {
            let terminal = painted(&mut view(snapshot.clone()), 100, 12, paint);
            let content = terminal.backend().buffer().content();
            content.iter().filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset).count()
        };
        assert!(colours(Paint::Colours) > 0);
        assert_eq!(colours(Paint::Plain), 0);
    }

    #[test]
    fn keys_are_explained_over_everything() {
        let mut view = view(samples::snapshot(50, 1));
        press(&mut view, KeyCode::Char('?'));
        let lines = lines(&mut view, 100, 24);
        assert!(lines.iter().any(|line| line.contains("q, Esc, Ctrl-C   leave")), "{lines:#?}");
    }

    #[test]
    fn what_names_contain_moves_no_cursor() {
        let mut snapshot = samples::snapshot(1, 1);
        snapshot.ranks[0].phase = Some("\u{1b}[2J\u{7}x".into());
        snapshot.ranks[0].host = "a\tb".into();
        snapshot.job.command = "train\nrm".into();
        let lines = lines(&mut view(snapshot), 120, 12);
        assert!(lines.iter().all(|line| line.chars().all(|c| !c.is_control())), "{lines:#?}");
        assert!(lines[5].contains('x'));
    }
}
