//! A table of what images show.
//!
//! A file of comma-separated values; its header says what it holds. The first column is the file, the second what is
//! known about it, and a third one, if there is one, says `train` or `test`:
//!
//! ```text
//! file,class              file,labels                   file,age,split
//! a/1.jpg,cat             a/1.jpg,forest;water          a/1.jpg,34.5,train
//! a/2.jpg,dog             a/2.jpg,water                 a/2.jpg,61,test
//! ```
//!
//! `class` (or `label`) is one of several, `labels` any of several with semicolons between them, and any other word the
//! unit of a number to be told. Classes and labels are numbers that begin with 0 if all of them look like it, else
//! names, sorted. Every mistake is an error that names its line; whether the files are there shows when they are read.
//!
//! A table may come from somebody else, so it names files within the folder and no others: no absolute path, and no
//! `..`. Links in the folder are followed wherever they lead, as everywhere in `scan`: whoever makes one can write to
//! the folder.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::{Component, Path};

use super::{Entry, FolderConfig, Found, Known};
use crate::sample::{Split, Task};
use crate::source::split::split_by_chance;
use crate::storage::regular;
use crate::{DataError, Unit};

/// Classes or labels, at most: a larger number is a slip, and would become a network of that size.
pub const MAX_LABELS: usize = 100_000;

/// The lines of a table, and what its second column is called.
pub(crate) struct Table {
    pub(crate) column: String,
    pub(crate) rows: Vec<Row>,
}

/// One line that has been read.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) line: usize,
    pub(crate) file: String,
    pub(crate) said: String,
    pub(crate) split: Option<Split>,
}

/// What a table says about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// One class.
    Class,
    /// Any of several labels.
    Labels,
    /// A number.
    Value,
}

impl Table {
    /// What the second column holds.
    pub(crate) fn said(&self) -> Said {
        match self.column.to_ascii_lowercase().as_str() {
            "class" | "label" => Said::Class,
            "labels" => Said::Labels,
            _ => Said::Value,
        }
    }
}

impl Row {
    /// The names or numbers that a line has for a file, in its order.
    pub(crate) fn words(&self, said: Said) -> Vec<&str> {
        let words: Vec<&str> = match said {
            Said::Labels => self.said.split(';').collect(),
            Said::Class | Said::Value => vec![&self.said],
        };
        words.into_iter().map(str::trim).filter(|word| !word.is_empty()).collect()
    }
}

/// Whether a word looks like the number of a class.
pub(crate) fn is_number(word: &str) -> bool {
    word.strip_prefix('-').unwrap_or(word).bytes().all(|byte| byte.is_ascii_digit())
}

/// Reads a table for files of a folder.
pub(super) fn open(root: &Path, path: &Path, config: &FolderConfig) -> Result<Found, DataError> {
    let show = path.display();
    let mut bytes = Vec::new();
    let read = regular::open(path).and_then(|(mut file, _)| file.read_to_end(&mut bytes));
    read.map_err(|error| DataError(format!("the table {show} cannot be read: {error}")))?;
    let understood = read_rows(bytes).and_then(|table| match table.said() {
        Said::Value => numbers(table.rows, &table.column),
        said => labelled(table.rows, config, said),
    });
    understood.map(|parsed| parsed.found(root, config)).map_err(|mistake| mistake.in_table(&show.to_string()))
}

/// What is wrong with a table, and where.
#[derive(Debug)]
pub(crate) struct Mistake {
    line: usize,
    what: String,
}

impl Mistake {
    /// As an error about a table of this name.
    pub(crate) fn in_table(self, name: &str) -> DataError {
        DataError(format!("{name}, line {}: {}", self.line, self.what))
    }
}

/// A mistake in a line.
pub(crate) fn mistake<T>(line: usize, what: impl Into<String>) -> Result<T, Mistake> {
    Err(Mistake { line, what: what.into() })
}

/// A table that is understood.
struct Parsed {
    entries: Vec<(String, Known, Option<Split>)>,
    task: Task,
    names: Vec<String>,
    unit: Unit,
}

impl Parsed {
    fn found(self, root: &Path, config: &FolderConfig) -> Found {
        let Parsed { entries, task, names, unit } = self;
        let said = entries.iter().any(|(_, _, split)| split.is_some());
        let judged: Vec<bool> = entries.iter().map(|(_, _, split)| *split == Some(Split::Test)).collect();
        let entries: Vec<Entry> =
            entries.into_iter().map(|(file, known, _)| Entry { path: root.join(file), known }).collect();
        let (train, test) = if said {
            let mut judged = judged.into_iter();
            let (test, train) = entries.into_iter().partition(|_| judged.next().unwrap_or(false));
            (train, test)
        } else {
            split_by_chance(entries, root, config.seed, config.test_share)
        };
        Found { train, test, task, names, unit }
    }
}

/// Reads the lines of a table. What they say is not looked at.
pub(crate) fn read_rows(bytes: Vec<u8>) -> Result<Table, Mistake> {
    let text = String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        Mistake { line, what: "the table is not written in UTF-8".to_owned() }
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let mut lines =
        text.lines().enumerate().map(|(index, line)| (index + 1, line)).filter(|(_, line)| !line.trim().is_empty());
    let format =
        "a header such as `file,class`, `file,labels` or `file,age`, with `,split` if it says what is for tests";
    let Some((line, header)) = lines.next() else {
        return mistake(1, format!("the table is empty; it begins with {format}"));
    };
    let mut columns = fields(line, header)?;
    let divided = columns.len() == 3 && columns[2].eq_ignore_ascii_case("split");
    if !columns[0].eq_ignore_ascii_case("file") || !(columns.len() == 2 || divided) || columns[1].is_empty() {
        return mistake(line, format!("`{header}` is no header; the table begins with {format}"));
    }
    let mut rows = Vec::new();
    for (line, text) in lines {
        rows.push(row(line, fields(line, text)?, columns.len())?);
    }
    if rows.is_empty() {
        return mistake(line, "the table has a header and nothing else");
    }
    Ok(Table { column: columns.swap_remove(1), rows })
}

fn row(line: usize, mut fields: Vec<String>, columns: usize) -> Result<Row, Mistake> {
    if fields.len() != columns {
        return mistake(line, format!("{} columns instead of {columns}", fields.len()));
    }
    let split = match fields.get(2).map(|word| word.to_ascii_lowercase()).as_deref() {
        None => None,
        Some("train") => Some(Split::Train),
        Some("test" | "val" | "validation") => Some(Split::Test),
        Some(word) => return mistake(line, format!("`{word}` is no split: train or test is")),
    };
    let said = std::mem::take(&mut fields[1]);
    let file = std::mem::take(&mut fields[0]);
    if file.is_empty() {
        return mistake(line, "no file is named");
    }
    if let Some(why) = outside(&file) {
        return mistake(line, format!("`{file}` {why}: files are named within the folder of the data"));
    }
    Ok(Row { line, file, said, split })
}

/// Why a path may lead out of the folder that it is meant in.
fn outside(file: &str) -> Option<&'static str> {
    let mut parts = Path::new(file).components();
    parts.find_map(|part| match part {
        Component::RootDir | Component::Prefix(_) => Some("is an absolute path"),
        Component::ParentDir => Some("has `..` in it"),
        Component::CurDir | Component::Normal(_) => None,
    })
}

/// The fields of a line. One in quotes may have commas; a quote in it is doubled.
fn fields(line: usize, text: &str) -> Result<Vec<String>, Mistake> {
    let mut fields = Vec::new();
    let mut rest = text.trim_end_matches('\r');
    loop {
        let trimmed = rest.trim_start();
        let (field, after) = if let Some(quoted) = trimmed.strip_prefix('"') {
            let mut field = String::new();
            let mut quoted = quoted;
            let after = loop {
                let Some((before, after)) = quoted.split_once('"') else {
                    return mistake(line, "a quote is not closed");
                };
                field.push_str(before);
                match after.strip_prefix('"') {
                    Some(more) => {
                        field.push('"');
                        quoted = more;
                    }
                    None => break after.trim_start(),
                }
            };
            if !after.is_empty() && !after.starts_with(',') {
                return mistake(line, "there is something between a quote's end and the next comma");
            }
            (field, after)
        } else {
            let (field, after) = trimmed.split_at(trimmed.find(',').unwrap_or(trimmed.len()));
            (field.trim_end().to_owned(), after)
        };
        fields.push(field);
        match after.strip_prefix(',') {
            Some(next) => rest = next,
            None => return Ok(fields),
        }
    }
}

fn labelled(rows: Vec<Row>, config: &FolderConfig, kind: Said) -> Result<Parsed, Mistake> {
    let all: BTreeSet<String> = rows.iter().flat_map(|row| row.words(kind)).map(str::to_owned).collect();
    let numbered = all.iter().all(|word| is_number(word));
    let mut names: Vec<String> = if numbered { Vec::new() } else { all.into_iter().collect() };
    let limit = config.classes.unwrap_or(MAX_LABELS);
    if names.len() > limit {
        return mistake(1, format!("the table has {} different names, which is more than {limit}", names.len()));
    }
    let mut count = names.len();
    let mut entries = Vec::with_capacity(rows.len());
    for row in rows {
        let line = row.line;
        let mut numbers = Vec::new();
        for word in row.words(kind) {
            let by_name = |word: &str| names.binary_search_by(|name| name.as_str().cmp(word)).ok();
            let number = if numbered { word.parse::<usize>().ok() } else { by_name(word) };
            let Some(number) = number.filter(|number| *number < limit) else {
                return mistake(
                    line,
                    format!("label {word} is out of range: labels are numbers from 0 to {}", limit - 1),
                );
            };
            count = count.max(number + 1);
            numbers.push(number as u32);
        }
        let known = match (kind, numbers.as_slice()) {
            (Said::Labels, _) => Known::Labels(numbers),
            (_, [class]) => Known::Class(*class),
            _ => return mistake(line, "no class is named"),
        };
        entries.push((row.file, known, row.split));
    }
    let count = config.classes.unwrap_or(count);
    if kind == Said::Class && count < 2 {
        return mistake(1, "the table has one class alone: there is nothing to tell apart");
    }
    if count == 0 {
        return mistake(1, "the table has no label at all");
    }
    if numbered {
        names = (0..count).map(|number| number.to_string()).collect();
    }
    let task =
        if kind == Said::Class { Task::SingleLabel { classes: count } } else { Task::MultiLabel { labels: count } };
    Ok(Parsed { entries, task, names, unit: Unit::default() })
}

fn numbers(rows: Vec<Row>, unit: &str) -> Result<Parsed, Mistake> {
    let mut entries = Vec::with_capacity(rows.len());
    let (mut sum, mut squares) = (0.0, 0.0);
    for Row { line, file, said, split } in rows {
        let Some(value) = said.parse::<f32>().ok().filter(|value| value.is_finite()) else {
            return mistake(line, format!("`{said}` is no number for {unit}"));
        };
        sum += f64::from(value);
        squares += f64::from(value).powi(2);
        entries.push((file, Known::Value(value), split));
    }
    let mean = sum / entries.len() as f64;
    let deviation = (squares / entries.len() as f64 - mean * mean).max(0.0).sqrt();
    if deviation <= mean.abs() * 1e-6 {
        return mistake(1, format!("all values of {unit} are the same: there is nothing to tell"));
    }
    let unit = Unit { mean: mean as f32, deviation: deviation as f32, name: unit.to_owned() };
    Ok(Parsed { entries, task: Task::Regression, names: Vec::new(), unit })
}
