//! The loop at a terminal: news from jobs, keys, and a picture that is painted when one of them has changed it.
//!
//! Three threads feed one channel: one asks jobs, so that a job that does not answer holds up no key; one reads keys;
//! one waits for signals and for the end of the terminal. The reader of keys is crossterm's, which never returns from a
//! terminal that has hung up, so nothing waits for it. Whatever ends the loop, a key, a signal, an error or a panic,
//! the terminal is given back as it was; one that has hung up is left alone.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use farandole_cluster::live::FoundJob;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{Event, KeyEventKind, read};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::screen::{Paint, draw};
use super::view::{After, View};

/// How often jobs are asked: as often as their ranks say something new.
const PERIOD: Duration = Duration::from_secs(1);

/// What the loop waits for.
enum News {
    Jobs(Result<Vec<FoundJob>, String>),
    Key(io::Result<Event>),
    /// A signal has asked this process to end, or the terminal has hung up.
    End,
}

/// Watches until somebody wants to leave. `look` finds the jobs.
pub(super) fn watch(mut view: View, look: impl Fn() -> io::Result<Vec<FoundJob>> + Send + 'static) -> Result<()> {
    let (sender, news) = channel();
    let signals = signals().context("listening for signals")?;
    // It also sees to it that a panic gives the terminal back before it says anything.
    let mut terminal = ratatui::try_init().context("taking over the terminal")?;
    // Dropping this end stops the questions.
    let (_leave, left) = channel();
    let feeds = || -> io::Result<()> {
        let (jobs, keys, end) = (sender.clone(), sender.clone(), sender);
        feed("farandole-look", move || keep_looking(&look, &jobs, &left))?;
        feed("farandole-keys", move || while keys.send(News::Key(read())).is_ok() {})?;
        feed("farandole-end", move || {
            wait_for_end(&signals);
            let _ = end.send(News::End);
        })
    };
    let outcome = feeds().and_then(|()| turn(&mut terminal, &mut view, &news));
    if has_hung_up(io::stdin().as_fd()) {
        return Ok(());
    }
    ratatui::restore();
    outcome.context("watching at the terminal")
}

fn feed(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

fn keep_looking(look: &impl Fn() -> io::Result<Vec<FoundJob>>, news: &Sender<News>, left: &Receiver<()>) {
    while left.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
        if news.send(News::Jobs(look().map_err(|error| format!("looking for jobs: {error}")))).is_err() {
            return;
        }
    }
}

/// The end of a socket that gets a byte when a signal asks this process to end.
fn signals() -> io::Result<UnixStream> {
    let (ours, handlers) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGHUP, SIGINT] {
        signal_hook::low_level::pipe::register(signal, handlers.try_clone()?)?;
    }
    Ok(ours)
}

/// Blocks until a signal asks this process to end, or the terminal has hung up.
fn wait_for_end(signals: &UnixStream) {
    let stdin = io::stdin();
    // Without flags only the end of the other side wakes, and no key.
    let mut fds = [PollFd::new(signals, PollFlags::IN), PollFd::new(&stdin, PollFlags::empty())];
    while poll(&mut fds, None) == Err(Errno::INTR) {}
}

fn has_hung_up(terminal: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(&terminal, PollFlags::empty())];
    let nothing = rustix::time::Timespec::default();
    matches!(poll(&mut fds, Some(&nothing)), Ok(1..)) || !terminal.is_terminal()
}

fn turn(terminal: &mut DefaultTerminal, view: &mut View, news: &Receiver<News>) -> io::Result<()> {
    let paint = Paint::from_environment();
    terminal.draw(|frame| draw(frame, view, paint))?;
    while let Ok(first) = news.recv() {
        for one in std::iter::once(first).chain(news.try_iter()) {
            match one {
                News::Jobs(found) => view.take(found),
                News::Key(event) => {
                    if let Event::Key(key) = event?
                        && key.kind != KeyEventKind::Release
                        && view.press(key) == After::Quit
                    {
                        return Ok(());
                    }
                }
                News::End => return Ok(()),
            }
        }
        terminal.draw(|frame| draw(frame, view, paint))?;
    }
    Ok(())
}
