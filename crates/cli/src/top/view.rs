//! What somebody at a terminal looks at, and what keys do to it. Values only: no terminal, no sockets.
//!
//! News replace what is shown, unless it is held. A job that is gone keeps its last picture, so that whoever watched
//! can read how it ended.

use farandole_cluster::live::{FoundJob, RankView, Snapshot};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::column::Sort;

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    More,
    Quit,
}

/// What a line of the table stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lines {
    Ranks,
    Hosts,
}

/// Whether news are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    Running,
    Held,
}

/// Whether keys are explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Help {
    Shown,
    Hidden,
}

/// In which direction ranks are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SortOrder {
    Forward,
    Backward,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct View {
    jobs: Vec<FoundJob>,
    /// The name of the job that is shown.
    chosen: Option<String>,
    /// The job that is shown, as it was last seen, once it is gone.
    last: Option<FoundJob>,
    /// Why nothing new is known.
    trouble: Option<String>,
    pub(super) sort: Sort,
    order: SortOrder,
    pub(super) lines: Lines,
    pub(super) pace: Pace,
    pub(super) help: Help,
    /// The first line of the table that is shown.
    offset: usize,
    /// How many lines the table had room for when it was last painted, and how many it had.
    room: usize,
    count: usize,
}

impl View {
    pub(super) fn new(sort: Sort, hosts: bool, jobs: Vec<FoundJob>) -> View {
        let mut view = View {
            jobs: Vec::new(),
            chosen: None,
            last: None,
            trouble: None,
            sort,
            order: SortOrder::Forward,
            lines: if hosts { Lines::Hosts } else { Lines::Ranks },
            pace: Pace::Running,
            help: Help::Hidden,
            offset: 0,
            room: 1,
            count: 0,
        };
        view.take(Ok(jobs));
        view
    }

    /// Takes in what was found.
    pub(super) fn take(&mut self, found: Result<Vec<FoundJob>, String>) {
        if self.pace == Pace::Held {
            return;
        }
        let mut jobs = match found {
            Ok(jobs) => jobs,
            Err(why) => return self.trouble = Some(why),
        };
        self.trouble = None;
        let chosen = self.chosen.get_or_insert_with(|| jobs.last().map(|job| job.name.clone()).unwrap_or_default());
        match jobs.iter_mut().find(|job| job.name == *chosen) {
            Some(FoundJob { snapshot: Err(why), .. }) => self.trouble = Some(why.clone()),
            Some(job) => self.last = Some(job.clone()),
            None => {}
        }
        self.jobs = jobs;
    }

    /// The job that is shown, as far as it has ever been seen.
    pub(super) fn snapshot(&self) -> Option<&Snapshot> {
        self.last.as_ref().and_then(|job| job.snapshot.as_ref().ok())
    }

    /// What is to be said besides: that the job has ended, that it does not answer, that the picture is held.
    pub(super) fn note(&self) -> Option<String> {
        if self.pace == Pace::Held {
            return Some("held: p goes on".to_owned());
        }
        if let Some(trouble) = &self.trouble {
            return Some(trouble.clone());
        }
        let here = self.jobs.iter().any(|job| Some(&job.name) == self.chosen.as_ref());
        (!here).then(|| "the job has ended; this is the last that was seen of it. q leaves".to_owned())
    }

    /// Which of how many jobs is shown; `None` if there is no other.
    pub(super) fn which(&self) -> Option<(usize, usize)> {
        let at = self.jobs.iter().position(|job| Some(&job.name) == self.chosen.as_ref());
        match (at, self.jobs.len()) {
            (Some(_), 1) | (None, 0) => None,
            (at, count) => Some((at.map_or(0, |at| at + 1), count)),
        }
    }

    /// The ranks in the order in which they are shown.
    pub(super) fn ranks(&self) -> Vec<RankView> {
        let mut ranks = self.snapshot().map_or(Vec::new(), |snapshot| snapshot.ranks.clone());
        self.sort.sort(&mut ranks);
        if self.order == SortOrder::Backward {
            ranks.reverse();
        }
        ranks
    }

    /// Says how many lines the table has and how many there is room for; learns which one is the first.
    pub(super) fn scroll(&mut self, count: usize, room: usize) -> usize {
        (self.count, self.room) = (count, room.max(1));
        self.offset = self.offset.min(count.saturating_sub(self.room));
        self.offset
    }

    /// Does what a key says.
    pub(super) fn press(&mut self, key: KeyEvent) -> After {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        let help = std::mem::replace(&mut self.help, Help::Hidden);
        match key.code {
            KeyCode::Char('c') if control => return After::Quit,
            // A key that closes what is explained does nothing else.
            KeyCode::Esc | KeyCode::Char('q') if help == Help::Shown => {}
            KeyCode::Char('q') | KeyCode::Esc => return After::Quit,
            KeyCode::Char('?' | 'h') if help == Help::Hidden => self.help = Help::Shown,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('r') => {
                self.order = if self.order == SortOrder::Forward { SortOrder::Backward } else { SortOrder::Forward };
            }
            KeyCode::Char('p' | ' ') => {
                self.pace = if self.pace == Pace::Running { Pace::Held } else { Pace::Running };
            }
            KeyCode::Char('n') => {
                self.lines = if self.lines == Lines::Ranks { Lines::Hosts } else { Lines::Ranks };
                self.offset = 0;
            }
            KeyCode::Tab => self.turn(),
            KeyCode::Down | KeyCode::Char('j') => self.offset += 1,
            KeyCode::Up | KeyCode::Char('k') => self.offset = self.offset.saturating_sub(1),
            KeyCode::PageDown => self.offset += self.room,
            KeyCode::PageUp => self.offset = self.offset.saturating_sub(self.room),
            KeyCode::Home => self.offset = 0,
            KeyCode::End => self.offset = self.count,
            _ => {}
        }
        self.offset = self.offset.min(self.count.saturating_sub(self.room));
        After::More
    }

    /// Shows the next job.
    fn turn(&mut self) {
        let at = self.jobs.iter().position(|job| Some(&job.name) == self.chosen.as_ref());
        let next = at.map_or(0, |at| at + 1) % self.jobs.len().max(1);
        if let Some(job) = self.jobs.get(next) {
            (self.chosen, self.offset, self.trouble) = (Some(job.name.clone()), 0, None);
            match &job.snapshot {
                Ok(_) => self.last = Some(job.clone()),
                Err(why) => (self.last, self.trouble) = (None, Some(why.clone())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    fn press(view: &mut View, code: KeyCode) -> After {
        view.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn view() -> View {
        View::new(Sort::Rank, false, vec![samples::found(samples::snapshot(100, 10))])
    }

    #[test]
    fn keys_sort_turn_round_and_scroll() {
        let mut view = view();
        view.scroll(100, 20);
        press(&mut view, KeyCode::Char('r'));
        assert_eq!(view.ranks()[0].rank, 99);
        press(&mut view, KeyCode::Char('s'));
        assert_eq!(view.sort, Sort::Host);
        press(&mut view, KeyCode::PageDown);
        press(&mut view, KeyCode::Down);
        assert_eq!(view.scroll(100, 20), 21);
        press(&mut view, KeyCode::End);
        assert_eq!(view.scroll(100, 20), 80);
        assert_eq!(view.scroll(50, 20), 30, "fewer lines than before");
        assert_eq!(view.scroll(50, 0), 30, "no room at all");
        press(&mut view, KeyCode::Home);
        assert_eq!(view.scroll(100, 20), 0);
    }

    #[test]
    fn a_held_picture_stays() {
        let mut view = view();
        press(&mut view, KeyCode::Char('p'));
        view.take(Ok(vec![samples::found(samples::snapshot(7, 1))]));
        assert_eq!(view.ranks().len(), 100);
        assert!(view.note().unwrap().contains("held"));
        press(&mut view, KeyCode::Char('p'));
        view.take(Ok(vec![samples::found(samples::snapshot(7, 1))]));
        assert_eq!(view.ranks().len(), 7);
        assert_eq!(view.note(), None);
    }

    #[test]
    fn a_job_that_has_ended_keeps_its_last_picture() {
        let mut view = view();
        view.take(Ok(Vec::new()));
        assert_eq!(view.ranks().len(), 100);
        assert!(view.note().unwrap().contains("has ended"));
        assert_eq!(press(&mut view, KeyCode::Tab), After::More);
        assert_eq!(press(&mut view, KeyCode::Char('q')), After::Quit);
    }

    #[test]
    fn a_job_that_does_not_answer_says_so_and_keeps_its_picture() {
        let mut view = view();
        let mut found = samples::found(samples::snapshot(100, 10));
        found.snapshot = Err("process 4711 does not answer".into());
        view.take(Ok(vec![found]));
        assert_eq!(view.note().as_deref(), Some("process 4711 does not answer"));
        assert_eq!(view.ranks().len(), 100);
        view.take(Err("no list".into()));
        assert_eq!(view.note().as_deref(), Some("no list"));
    }

    #[test]
    fn several_jobs_are_seen_in_turn() {
        let mut other = samples::snapshot(3, 1);
        other.job.pid = 4712;
        let jobs = || vec![samples::found(samples::snapshot(2, 1)), samples::found(other.clone())];
        let mut view = View::new(Sort::Rank, false, jobs());
        assert_eq!((view.which(), view.ranks().len()), (Some((2, 2)), 3), "the youngest comes first");
        press(&mut view, KeyCode::Tab);
        assert_eq!((view.which(), view.ranks().len()), (Some((1, 2)), 2));
        view.take(Ok(jobs()));
        assert_eq!(view.ranks().len(), 2, "news do not change what was chosen");
        view.take(Ok(jobs().split_off(1)));
        assert_eq!((view.which(), view.ranks().len()), (Some((0, 1)), 2));
        press(&mut view, KeyCode::Tab);
        assert_eq!((view.which(), view.ranks().len()), (None, 3));
    }

    #[test]
    fn the_first_key_closes_the_explanation() {
        let mut view = view();
        press(&mut view, KeyCode::Char('?'));
        assert_eq!(view.help, Help::Shown);
        assert_eq!(press(&mut view, KeyCode::Esc), After::More);
        assert_eq!(view.help, Help::Hidden);
        assert_eq!(view.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), After::Quit);
    }
}
