//! One bar for the whole job, drawn by the launcher, of what rank 0 tells it.
//!
//! Rank 0 puts its news into a mailbox (a datagram socket in the run's folder); a thread here takes it out and draws. The thread ends when
//! rank 0 has said that nothing more will come, or when the bar is dropped after the job: whatever was said by then is shown.

use std::io::IsTerminal;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use farandole_train::progress::{MOST_NEWS_BYTES, News, Progress};
use indicatif::{ProgressBar, ProgressStyle};

/// How long the thread sleeps at most before it looks whether the job is over.
const NAP: Duration = Duration::from_millis(50);

/// What a bar looks like. The numbers behind it are the message.
const TEMPLATE: &str = "{prefix} [{bar:30}] {pos}/{len}  {msg}  {eta} left";

/// A bar on the terminal, while it lasts.
pub(super) struct Bar {
    mailbox: PathBuf,
    /// Set by the launcher's thread when the job is over; the drawing thread then takes what is left and ends. Orders nothing.
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
        let thread = std::thread::Builder::new().name("bar".to_owned()).spawn(move || draw(&socket, &heard)).ok()?;
        Some(Bar { mailbox: mailbox.to_owned(), over, thread: Some(thread) })
    }

    /// Where news goes.
    pub(super) fn mailbox(&self) -> &Path {
        &self.mailbox
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

fn draw(socket: &UnixDatagram, over: &AtomicBool) {
    let bar = ProgressBar::hidden();
    if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
        bar.set_style(style.progress_chars("=> "));
    }
    let mut bytes = vec![0; MOST_NEWS_BYTES];
    let mut epoch = 0;
    loop {
        let ending = over.load(Ordering::Relaxed);
        let news = socket.recv(&mut bytes).ok().and_then(|length| serde_json::from_slice(&bytes[..length]).ok());
        match news {
            Some(News::Line(line)) => bar.suspend(|| eprintln!("{line}")),
            Some(News::Step(progress)) => show(&bar, &progress, &mut epoch),
            Some(News::End) => bar.finish_and_clear(),
            None if ending => break,
            None => {}
        }
    }
    bar.finish_and_clear();
}

/// Moves the bar; each epoch begins at its left.
fn show(bar: &ProgressBar, progress: &Progress, epoch: &mut u64) {
    if progress.epoch != *epoch {
        *epoch = progress.epoch;
        bar.reset();
        bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
        bar.set_length(progress.steps);
        bar.set_prefix(format!("epoch {}/{}", progress.epoch, progress.epochs));
    }
    bar.set_message(format!("loss {:.4}  {:.1} samples/s", progress.loss, progress.samples_per_s));
    bar.set_position(progress.step);
}
