//! One bar for the whole job, drawn by the launcher, of what rank 0 tells it.
//!
//! Rank 0 puts its news into a mailbox (a datagram socket in the run's folder); a thread here takes it out and draws.
//! The thread ends when rank 0 has said that nothing more will come, or when the bar is dropped after the job: whatever
//! was said by then is shown. Lines that ranks write themselves come through the launcher, for which the bar steps
//! aside ([`Bar::drawer`]).
//!
//! The bar is never wider than the terminal: a line that is broken in two cannot be taken away again.

use std::io::IsTerminal;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farandole_cluster::launch::Drawer;
use farandole_train::progress::{MOST_NEWS_BYTES, News, TrainProgress};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::study::short;

/// How long the thread sleeps at most before it looks whether the job is over.
const NAP: Duration = Duration::from_millis(50);

/// Columns of a terminal that does not say how many it has.
const USUAL_COLUMNS: usize = 80;

/// The bar itself has so many cells at most: beyond that more of them say nothing more.
const MOST_CELLS: usize = 30;

/// And so many at least, or there is none: with fewer it says less than the numbers beside it.
const LEAST_CELLS: usize = 5;

/// A bar on the terminal, while it lasts.
pub(super) struct Bar {
    mailbox: PathBuf,
    shown: ProgressBar,
    /// Set by the launcher's thread when the job is over; the drawing thread then takes what is left and ends. Orders
    /// nothing.
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Bar {
    /// Opens a mailbox, if somebody sits at a terminal.
    pub(super) fn open(mailbox: &Path) -> Option<Bar> {
        if !std::io::stderr().is_terminal() {
            return None;
        }
        let socket = UnixDatagram::bind(mailbox).ok()?;
        socket.set_read_timeout(Some(NAP)).ok()?;
        let over = Arc::new(AtomicBool::new(false));
        let heard = Arc::clone(&over);
        let shown = ProgressBar::hidden();
        shown.set_style(ProgressStyle::with_template("{msg}").ok()?);
        let drawn = shown.clone();
        let work = move || draw(&drawn, &socket, &heard);
        let thread = std::thread::Builder::new().name("bar".to_owned()).spawn(work).ok()?;
        Some(Bar { mailbox: mailbox.to_owned(), shown, over, thread: Some(thread) })
    }

    /// Where news goes.
    pub(super) fn mailbox(&self) -> &Path {
        &self.mailbox
    }

    /// For whoever writes on the same terminal.
    pub(super) fn drawer(&self) -> Drawer {
        let shown = self.shown.clone();
        Drawer::new(move |write| shown.suspend(write))
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there has been shown; there is no bar any more.
            let _ = thread.join();
        }
    }
}

fn draw(bar: &ProgressBar, socket: &UnixDatagram, over: &AtomicBool) {
    let mut bytes = vec![0; MOST_NEWS_BYTES];
    let mut pace = None;
    loop {
        let ending = over.load(Ordering::Relaxed);
        let news = socket.recv(&mut bytes).ok().and_then(|length| serde_json::from_slice(&bytes[..length]).ok());
        match news {
            Some(News::Line(line)) => bar.suspend(|| eprintln!("{line}")),
            Some(News::Step(progress)) => {
                if pace.is_none() {
                    bar.set_draw_target(ProgressDrawTarget::stderr());
                }
                let pace = pace.get_or_insert(Pace { since: Instant::now(), from: progress.steps_done });
                let columns = ratatui::crossterm::terminal::size().map_or(USUAL_COLUMNS, |(columns, _)| columns.into());
                bar.set_message(picture(&progress, pace.left(&progress), columns));
            }
            Some(News::End) => bar.finish_and_clear(),
            None if ending => break,
            None => {}
        }
    }
    bar.finish_and_clear();
}

/// Since when, and from which step on, somebody has been watching.
struct Pace {
    since: Instant,
    from: u64,
}

impl Pace {
    /// How long the rest of the training will take, if it goes on as it did: with evaluations and checkpoints.
    fn left(&self, progress: &TrainProgress) -> Option<Duration> {
        let done = progress.steps_done.checked_sub(self.from).filter(|done| *done > 0)?;
        let each = self.since.elapsed().as_secs_f64() / done as f64;
        let left = progress.steps_in_all.saturating_sub(progress.steps_done);
        Duration::try_from_secs_f64(each * left as f64).ok()
    }
}

/// What is drawn, in one line that is shorter than the terminal is wide. What is least missed goes first: the bar, then
/// the speed, then the loss, then the time that is left.
fn picture(progress: &TrainProgress, left: Option<Duration>, columns: usize) -> String {
    let TrainProgress { epoch, epochs, step, steps, loss, samples_per_s, .. } = progress;
    let (head, count) = (format!("epoch {epoch}/{epochs}"), format!("{step}/{steps}"));
    let (loss, speed) = (format!("loss {loss:.4}"), format!("{samples_per_s:.1} samples/s"));
    let left = left.map_or_else(String::new, |left| format!("{} left", short(left)));
    let without_bar =
        [vec![&count, &loss, &speed, &left], vec![&count, &loss, &left], vec![&count, &left], vec![&count]].map(
            |parts| {
                parts.into_iter().filter(|part| !part.is_empty()).map(String::as_str).collect::<Vec<_>>().join("  ")
            },
        );
    // The last column stays free: some terminals go to the next line as soon as it is used.
    let room = columns.saturating_sub(1);
    let fits = without_bar.iter().find(|numbers| head.len() + 2 + numbers.len() <= room);
    let Some(numbers) = fits else { return head.chars().take(room).collect() };
    // Two brackets, and a space on both sides of them.
    let cells = room.saturating_sub(head.len() + numbers.len() + 4).min(MOST_CELLS);
    if cells < LEAST_CELLS {
        return format!("{head}  {numbers}");
    }
    let full = (cells as u64 * step / steps.max(&1)) as usize;
    let bar: String = (0..cells)
        .map(|cell| {
            if cell < full {
                '='
            } else if cell == full {
                '>'
            } else {
                ' '
            }
        })
        .collect();
    format!("{head} [{bar}] {numbers}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(step: u64) -> TrainProgress {
        TrainProgress {
            epoch: 12,
            epochs: 200,
            step,
            steps: 160,
            steps_done: 1760 + step,
            steps_in_all: 32_000,
            loss: 2.25,
            samples_per_s: 1234.5,
        }
    }

    #[test]
    fn the_bar_is_narrower_than_any_terminal() {
        for columns in 1..200 {
            let picture = picture(&progress(40), Some(Duration::from_secs(61)), columns);
            assert!(picture.len() < columns, "{columns} columns: {picture}");
        }
        let at = |columns| picture(&progress(40), Some(Duration::from_secs(61)), columns);
        assert_eq!(at(40), "epoch 12/200 [=>    ] 40/160  61 s left");
        assert_eq!(at(80), "epoch 12/200 [===>           ] 40/160  loss 2.2500  1234.5 samples/s  61 s left");
        assert_eq!(
            at(120),
            "epoch 12/200 [=======>                      ] 40/160  loss 2.2500  1234.5 samples/s  61 s left"
        );
    }

    #[test]
    fn a_bar_is_full_at_the_end_of_an_epoch_and_not_before() {
        assert!(picture(&progress(160), None, 100).contains("[==============================] 160/160"));
        assert!(picture(&progress(159), None, 100).contains("[=============================>] 159/160"));
    }

    #[test]
    fn the_time_left_is_that_of_all_epochs() {
        let pace = Pace { since: Instant::now() - Duration::from_secs(40), from: 1760 };
        let left = pace.left(&progress(40)).unwrap().as_secs_f64();
        assert!((30_200.0..30_300.0).contains(&left), "{left}");
        assert_eq!(pace.left(&progress(0)), None);
    }
}
