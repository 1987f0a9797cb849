//! Lines of ranks as the user sees them, and as files keep them.
//!
//! A screen decides what is written where; a [`Writer`] writes it. Files get a rank's bytes as they are, terminals and
//! pipes get a prefix for each line.

use std::path::PathBuf;
use std::time::SystemTime;

use super::calendar::stamp;
use super::writer::{Full, Target, Writer};
use crate::launch::job_spec::{OutputOptions, Prefix, Timestamps};
use crate::launch::message::OutputStream;

/// Colours of ranks on a terminal, in turn; red is left to errors.
const COLOURS: [&str; 6] = ["\x1b[36m", "\x1b[33m", "\x1b[32m", "\x1b[35m", "\x1b[34m", "\x1b[96m"];
const PLAIN: &str = "\x1b[0m";

/// Whether prefixes are coloured, decided for each stream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Painted {
    /// On standard output.
    pub(crate) stdout: bool,
    /// On standard error.
    pub(crate) stderr: bool,
}

/// Shows what ranks write.
#[derive(Debug)]
pub(crate) struct Screen {
    output: OutputOptions,
    painted: Painted,
    /// Digits of the largest rank, for names of folders that sort.
    digits: usize,
    writer: Writer,
}

impl Screen {
    /// A screen for a job of `size` ranks.
    pub(crate) fn new(output: OutputOptions, painted: Painted, size: usize, writer: Writer) -> Screen {
        let digits = size.saturating_sub(1).to_string().len();
        Screen { output, painted, digits, writer }
    }

    /// Shows whole lines of a rank. [`Full`]: nothing was taken; try again when there is room.
    pub(crate) fn show(&mut self, rank: u32, stream: OutputStream, bytes: &[u8]) -> Result<(), Full> {
        if !self.writer.has_room() {
            return Err(Full);
        }
        if let Some(file) = self.file_of(rank, stream) {
            self.writer.write(Target::File(file), bytes.to_vec());
        }
        let target = match stream {
            OutputStream::Stdout => Target::Stdout,
            OutputStream::Stderr => Target::Stderr,
        };
        let text = self.dress(rank, stream, bytes, SystemTime::now());
        self.writer.write(target, text);
        Ok(())
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
    fn dress(&self, rank: u32, stream: OutputStream, bytes: &[u8], now: SystemTime) -> Vec<u8> {
        let front = self.front(rank, stream, now);
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

    fn front(&self, rank: u32, stream: OutputStream, now: SystemTime) -> String {
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
                format!("{}{time}[{rank}]<{name}>:{PLAIN}", COLOURS[rank as usize % COLOURS.len()])
            }
            Prefix::Rank => format!("{time}[{rank}]<{name}>:"),
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
        String::from_utf8(screen.dress(3, OutputStream::Stdout, bytes, SystemTime::UNIX_EPOCH)).unwrap()
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
    fn folders_of_ranks_sort_by_number() {
        let mut screen = screen(Prefix::Rank, Timestamps::Off, Painted::default());
        screen.output.directory = Some("/logs".into());
        assert_eq!(screen.file_of(3, OutputStream::Stderr), Some("/logs/rank.03/stderr".into()));
    }
}
