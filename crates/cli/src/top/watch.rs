//! The loop at a terminal: news from jobs, keys, and a picture that is painted when one of them has changed it.
//!
//! Jobs are asked on a thread of their own, so that one that does not answer holds up no key. Whatever ends the loop, a
//! key, a signal, an error or a panic, the terminal is given back as it was.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::{Context, Result};
use farandole_cluster::live::FoundJob;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{Event, KeyEventKind, poll, read};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::screen::{Paint, draw};
use super::view::{After, View};

/// How often jobs are asked: as often as their ranks say something new.
const PERIOD: Duration = Duration::from_secs(1);

/// How long the loop waits for a key before it looks for news and signals.
const GLANCE: Duration = Duration::from_millis(100);

type News = Result<Vec<FoundJob>, String>;

/// Watches until somebody wants to leave. `look` finds the jobs.
pub(super) fn watch(mut view: View, look: impl Fn() -> io::Result<Vec<FoundJob>> + Send + 'static) -> Result<()> {
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&ended)).context("listening for signals")?;
    }
    let (sender, news) = channel();
    // Dropping this end sends the thread home.
    let (_leave, left) = channel();
    std::thread::Builder::new()
        .name("farandole-look".to_owned())
        .spawn(move || keep_looking(&look, &sender, &left))
        .context("starting a thread")?;
    // It also sees to it that a panic gives the terminal back before it says anything.
    let mut terminal = ratatui::try_init().context("taking over the terminal")?;
    let outcome = turn(&mut terminal, &mut view, &news, &ended);
    ratatui::restore();
    outcome.context("watching at the terminal")
}

fn keep_looking(look: &impl Fn() -> io::Result<Vec<FoundJob>>, news: &Sender<News>, left: &Receiver<()>) {
    while left.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
        if news.send(look().map_err(|error| format!("looking for jobs: {error}"))).is_err() {
            return;
        }
    }
}

fn turn(terminal: &mut DefaultTerminal, view: &mut View, news: &Receiver<News>, ended: &AtomicBool) -> io::Result<()> {
    let paint = Paint::from_environment();
    let mut changed = true;
    while !ended.load(Ordering::Relaxed) {
        while let Ok(found) = news.try_recv() {
            view.take(found);
            changed = true;
        }
        if std::mem::take(&mut changed) {
            terminal.draw(|frame| draw(frame, view, paint))?;
        }
        if !poll(GLANCE)? {
            continue;
        }
        changed = true;
        if let Event::Key(key) = read()?
            && key.kind != KeyEventKind::Release
            && view.press(key) == After::Quit
        {
            break;
        }
    }
    Ok(())
}
