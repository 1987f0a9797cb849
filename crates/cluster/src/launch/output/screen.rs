//! Lines of ranks as the user sees them, and as files keep them.
//!
//! A screen decides what is written where; a [`Writer`] writes it. Files get a rank's bytes as they are. Terminals and
//! pipes get a prefix for each line, and errors that several ranks write alike once (`error_blocks`); without prefixes
//! nothing would say whose they are, so then all is shown as it comes.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::time::{Instant, SystemTime};

use super::calendar::stamp;
use super::error_blocks::{ErrorBlocks, Shown, ranges};
use super::tail::Tail;
use super::writer::{Full, Target, Writer};
use crate::launch::job_spec::{OutputOptions, Prefix, Timestamps};
use crate::launch::message::OutputStream;

/// Colours of ranks on a terminal, in turn; red is left to errors.
const COLOURS: [&str; 6] = ["\x1b[36m", "\x1b[33m", "\x1b[32m", "\x1b[35m", "\x1b[34m", "\x1b[96m"];
const PLAIN: &str = "\x1b[0m";

/// What was shown fewer lines ago is still to be seen on a terminal of usual height.
const LINES_IN_VIEW: u64 = 40;

/// Whether prefixes are coloured, decided for each stream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Painted {
    /// On standard output.
    pub(crate) stdout: bool,
    /// On standard error.
    pub(crate) stderr: bool,
}

/// Whose lines they are.
struct Source {
    /// The rank, or several.
    label: String,
    /// Whose colour they have.
    rank: u32,
}

/// Shows what ranks write.
#[derive(Debug)]
pub(crate) struct Screen {
    output: OutputOptions,
    painted: Painted,
    /// Digits of the largest rank, for names of folders that sort.
    digits: usize,
    writer: Writer,
    errors: ErrorBlocks,
    /// How many lines have been shown.
    lines: u64,
    /// How many had been shown before each of the last lines that a rank wrote to standard error: those of its tail.
    last_errors: HashMap<u32, VecDeque<u64>>,
}

impl Screen {
    /// A screen for a job of `size` ranks.
    pub(crate) fn new(output: OutputOptions, painted: Painted, size: usize, writer: Writer) -> Screen {
        let digits = size.saturating_sub(1).to_string().len();
        let (errors, last_errors) = (ErrorBlocks::default(), HashMap::new());
        Screen { output, painted, digits, writer, errors, lines: 0, last_errors }
    }

    /// Shows whole lines of a rank. [`Full`]: nothing was taken; try again when there is room.
    pub(crate) fn show(&mut self, rank: u32, stream: OutputStream, bytes: &[u8]) -> Result<(), Full> {
        if !self.writer.has_room() {
            return Err(Full);
        }
        if let Some(file) = self.file_of(rank, stream) {
            self.writer.write(Target::File(file), bytes.to_vec());
        }
        let at = SystemTime::now();
        match (stream, self.output.prefix) {
            (OutputStream::Stderr, Prefix::Rank) => {
                let mut shown = Vec::new();
                self.errors.push(rank, bytes, Instant::now(), at, &mut shown);
                self.show_errors(shown);
            }
            _ => self.write(Source { label: rank.to_string(), rank }, stream, bytes, at),
        }
        Ok(())
    }

    /// A rank writes no more.
    pub(crate) fn rank_ended(&mut self, rank: u32) {
        let mut shown = Vec::new();
        self.errors.rank_ended(rank, Instant::now(), &mut shown);
        self.show_errors(shown);
    }

    /// Shows what has been held long enough. Returns when to come back, if anything is held.
    pub(crate) fn tick(&mut self) -> Option<Instant> {
        let mut shown = Vec::new();
        let due = self.errors.tick(Instant::now(), &mut shown);
        self.show_errors(shown);
        due
    }

    /// Shows all that is held: whoever calls this has the last word.
    pub(crate) fn show_held(&mut self) {
        let mut shown = Vec::new();
        self.errors.finish(Instant::now(), &mut shown);
        self.show_errors(shown);
    }

    /// Whether the last lines that a rank wrote to standard error were shown so recently that nobody needs them again.
    pub(crate) fn has_in_view(&self, rank: u32) -> bool {
        let oldest = self.last_errors.get(&rank).and_then(VecDeque::front);
        oldest.is_some_and(|before| self.lines - before <= LINES_IN_VIEW)
    }

    fn show_errors(&mut self, shown: Vec<Shown>) {
        for shown in shown {
            match shown {
                Shown::Lines { rank, bytes, at } => {
                    self.note_errors(rank, &bytes);
                    self.write(Source { label: rank.to_string(), rank }, OutputStream::Stderr, &bytes, at);
                }
                Shown::Same { ranks, first, text } => {
                    if let Some(seen) = self.last_errors.get(&first).cloned() {
                        self.last_errors.extend(ranks.iter().map(|rank| (*rank, seen.clone())));
                    }
                    let source = Source { label: ranges(&ranks), rank: ranks[0] };
                    self.write(source, OutputStream::Stderr, text.as_bytes(), SystemTime::now());
                }
            }
        }
    }

    /// Keeps where the lines of a rank are going to be.
    fn note_errors(&mut self, rank: u32, bytes: &[u8]) {
        let last = self.last_errors.entry(rank).or_default();
        let count = bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        last.extend(self.lines..self.lines + count.max(1));
        last.drain(..last.len().saturating_sub(Tail::MOST_LINES));
    }

    fn write(&mut self, source: Source, stream: OutputStream, bytes: &[u8], at: SystemTime) {
        let target = match stream {
            OutputStream::Stdout => Target::Stdout,
            OutputStream::Stderr => Target::Stderr,
        };
        let text = self.dress(&source, stream, bytes, at);
        self.lines += text.iter().filter(|byte| **byte == b'\n').count() as u64;
        self.writer.write(target, text);
    }

    /// Says something of the launcher's own, whether or not there is room.
    pub(crate) fn say(&mut self, text: &str) {
        self.writer.write(Target::Stderr, format!("farandole: {text}\n").into_bytes());
    }

    /// Says something without the launcher's name in front: what belongs to the line before.
    pub(crate) fn say_more(&mut self, text: &str) {
        self.writer.write(Target::Stderr, format!("{text}\n").into_bytes());
    }

    /// The writer behind, for its news.
    pub(crate) fn writer(&mut self) -> &mut Writer {
        &mut self.writer
    }

    /// Waits until everything is written.
    pub(crate) fn finish(self) {
        self.writer.finish();
    }

    fn file_of(&self, rank: u32, stream: OutputStream) -> Option<PathBuf> {
        let name = match stream {
            OutputStream::Stdout => "stdout",
            OutputStream::Stderr => "stderr",
        };
        let directory = self.output.directory.as_ref()?;
        Some(directory.join(format!("rank.{rank:0width$}", width = self.digits)).join(name))
    }

    /// The lines with what goes in front of each. A last line without an end gets one: another rank's comes next.
    fn dress(&self, source: &Source, stream: OutputStream, bytes: &[u8], now: SystemTime) -> Vec<u8> {
        let front = self.front(source, stream, now);
        let mut dressed = Vec::with_capacity(bytes.len() + front.len() * 4);
        for line in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            // The newline of a carriage return and newline has no line of its own.
            if line != b"\n" || !dressed.ends_with(b"\r") {
                dressed.extend_from_slice(front.as_bytes());
            }
            dressed.extend_from_slice(line);
        }
        if !matches!(dressed.last(), Some(b'\n' | b'\r')) {
            dressed.push(b'\n');
        }
        dressed
    }

    fn front(&self, source: &Source, stream: OutputStream, now: SystemTime) -> String {
        let Source { label, rank } = source;
        let (name, painted) = match stream {
            OutputStream::Stdout => ("stdout", self.painted.stdout),
            OutputStream::Stderr => ("stderr", self.painted.stderr),
        };
        let time = match self.output.timestamps {
            Timestamps::On => stamp(now),
            Timestamps::Off => String::new(),
        };
        match self.output.prefix {
            Prefix::None if time.is_empty() => String::new(),
            Prefix::None => format!("{time} "),
            Prefix::Rank if painted => {
                format!("{}{time}[{label}]<{name}>:{PLAIN}", COLOURS[*rank as usize % COLOURS.len()])
            }
            Prefix::Rank => format!("{time}[{label}]<{name}>:"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::job_spec::Colour;

    fn screen(prefix: Prefix, timestamps: Timestamps, painted: Painted) -> Screen {
        let output = OutputOptions { prefix, timestamps, colour: Colour::Never, directory: None, drawer: None };
        Screen::new(output, painted, 12, Writer::start(None).unwrap())
    }

    fn dressed(screen: &Screen, bytes: &[u8]) -> String {
        String::from_utf8(screen.dress(
            &Source { label: "3".into(), rank: 3 },
            OutputStream::Stdout,
            bytes,
            SystemTime::UNIX_EPOCH,
        ))
        .unwrap()
    }

    #[test]
    fn every_line_has_its_rank_in_front() {
        let screen = screen(Prefix::Rank, Timestamps::Off, Painted::default());
        assert_eq!(dressed(&screen, b"one\ntwo\n"), "[3]<stdout>:one\n[3]<stdout>:two\n");
        assert_eq!(dressed(&screen, b"half"), "[3]<stdout>:half\n");
        assert_eq!(dressed(&screen, b"dos\r\n"), "[3]<stdout>:dos\r\n");
        assert_eq!(dressed(&screen, b" 5%\r 6%\r"), "[3]<stdout>: 5%\r[3]<stdout>: 6%\r");
    }

    #[test]
    fn time_and_colour_are_in_front_when_wanted() {
        let timed = screen(Prefix::Rank, Timestamps::On, Painted::default());
        assert_eq!(dressed(&timed, b"a\n"), "1970-01-01 00:00:00.000[3]<stdout>:a\n");
        let bare = screen(Prefix::None, Timestamps::Off, Painted::default());
        assert_eq!(dressed(&bare, b"a\n"), "a\n");
        let painted = screen(Prefix::Rank, Timestamps::Off, Painted { stdout: true, stderr: false });
        assert_eq!(dressed(&painted, b"a\n"), "\x1b[35m[3]<stdout>:\x1b[0ma\n");
    }

    #[test]
    fn last_lines_are_in_view_until_others_have_come_after_them() {
        let mut screen = screen(Prefix::Rank, Timestamps::Off, Painted::default());
        screen.show(1, OutputStream::Stderr, b"cannot run\n").unwrap();
        assert!(screen.has_in_view(1) && !screen.has_in_view(0));
        let others = "other\n".repeat(LINES_IN_VIEW as usize - 1);
        screen.show(0, OutputStream::Stdout, others.as_bytes()).unwrap();
        assert!(screen.has_in_view(1));
        screen.show(0, OutputStream::Stdout, b"other\n").unwrap();
        assert!(!screen.has_in_view(1));
        // Of many lines the last ones count, which are those of the tail.
        screen.show(1, OutputStream::Stderr, others.repeat(10).as_bytes()).unwrap();
        assert!(screen.has_in_view(1));
        screen.finish();
    }

    #[test]
    fn folders_of_ranks_sort_by_number() {
        let mut screen = screen(Prefix::Rank, Timestamps::Off, Painted::default());
        screen.output.directory = Some("/logs".into());
        assert_eq!(screen.file_of(3, OutputStream::Stderr), Some("/logs/rank.03/stderr".into()));
    }
}
