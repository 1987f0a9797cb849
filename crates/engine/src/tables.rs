//! Where measured tables are kept between jobs, and how a job gets its own.
//!
//! A [`Shelf`] is a folder with one file for each machine and class of placements; `FARANDOLE_TABLES` names it, or says
//! `off`. Files are written by `farandole calibrate`, each as a whole or not at all: under another name first, then
//! renamed. Reading believes nothing: whatever is not a table of this version for this machine and placement is not
//! used, and [`Notice`] says which file and why. A bad file never ends a job; at worst its choices are the built-in
//! ones.
//!
//! [`adopt`] is what a job does when it starts: rank 0 reads, all ranks agree. Measuring is not here (it would delay
//! every first job), and nothing is learned while a job runs: times differ from rank to rank, so ranks would have to
//! keep agreeing on what they have learned.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use farandole_plan::table::{Class, Table, TableFile};
use farandole_transport::ProcessId;

use crate::direct::{Communicator, MAX_TEXT_BYTES};
use crate::error::Result;

/// The variable that names the folder of tables; `off` means that none is used.
pub const VARIABLE: &str = farandole_settings::TABLES.name;

/// The command that fills a shelf, for messages.
const REMEDY: &str = "`farandole calibrate` measures one";

/// A place for tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shelf {
    folder: Option<PathBuf>,
}

/// What looking for a table has brought.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// There is one.
    Table(Table),
    /// Nobody has measured on this machine with this placement; the file that would hold it.
    Nothing(PathBuf),
    /// Tables are switched off, or there is no home for them.
    Off,
    /// There is a file, but it cannot be used.
    Unusable {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

impl Shelf {
    /// No shelf: nothing is read.
    pub const OFF: Shelf = Shelf { folder: None };

    /// A shelf in this folder, which need not exist.
    pub fn in_folder(folder: impl Into<PathBuf>) -> Shelf {
        Shelf { folder: Some(folder.into()) }
    }

    /// The shelf that the environment names: `FARANDOLE_TABLES`, or `farandole/tables` in the user's cache.
    pub fn from_env() -> Shelf {
        Shelf::from_lookup(|variable| std::env::var(variable).ok())
    }

    /// The same, with an environment that is given as a function.
    pub fn from_lookup(lookup: impl Fn(&'static str) -> Option<String>) -> Shelf {
        if let Some((_, named)) = farandole_settings::TABLES.written(&lookup) {
            return if named.eq_ignore_ascii_case("off") { Shelf::OFF } else { Shelf::in_folder(named) };
        }
        let absolute = |path: String| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
        let cache = lookup("XDG_CACHE_HOME").and_then(absolute);
        let cache = cache.or_else(|| lookup("HOME").and_then(absolute).map(|home| home.join(".cache")));
        Shelf { folder: cache.map(|cache| cache.join("farandole").join("tables")) }
    }

    /// The file for a machine and a class of placements, if there is a shelf.
    pub fn file(&self, machine: &str, class: Class) -> Option<PathBuf> {
        let Class { ranks, hosts, smallest, largest } = class;
        let name = format!("{}.{ranks}-ranks.{hosts}-hosts.{smallest}-{largest}.table", file_name_of(machine));
        self.folder.as_ref().map(|folder| folder.join(name))
    }

    /// Looks for a table. Never fails: what cannot be read is [`Found::Unusable`].
    pub fn find(&self, machine: &str, class: Class) -> Found {
        let Some(file) = self.file(machine, class) else { return Found::Off };
        match read(&file) {
            Ok(None) => Found::Nothing(file),
            Err(why) => Found::Unusable { file, why },
            Ok(Some(record)) if record.machine != machine => {
                let why = format!("it was measured on another machine ({})", record.machine);
                Found::Unusable { file, why }
            }
            Ok(Some(record)) if record.table.class != class => {
                let why = format!("it was measured with {}, and this job has {class}", record.table.class);
                Found::Unusable { file, why }
            }
            Ok(Some(record)) => Found::Table(record.table),
        }
    }

    /// Puts a table on the shelf, in place of an older one. Whoever reads meanwhile finds the old one or the new one.
    ///
    /// # Errors
    /// If there is no shelf, or its folder cannot be written to.
    pub fn put(&self, machine: &str, table: &Table) -> io::Result<PathBuf> {
        let no_shelf = || io::Error::new(ErrorKind::NotFound, "tables are switched off, or there is no home folder");
        let file = self.file(machine, table.class).ok_or_else(no_shelf)?;
        let folder = file.parent().ok_or_else(no_shelf)?;
        fs::create_dir_all(folder)?;
        let unfinished = folder.join(format!(".{}.unfinished", ProcessId::own().unique_name()));
        let text = TableFile { machine: machine.to_owned(), table: table.clone() }.to_text();
        let written = write_whole(&unfinished, text.as_bytes()).and_then(|()| fs::rename(&unfinished, &file));
        if written.is_err() {
            // What could not be finished, on a full disk for one, is no use to anybody.
            let _ = fs::remove_file(&unfinished);
        }
        written.map(|()| file)
    }
}

fn write_whole(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(file)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn read(file: &Path) -> std::result::Result<Option<TableFile>, String> {
    match fs::metadata(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("it cannot be looked at: {error}")),
        // Opening a pipe would wait for whoever writes to it.
        Ok(metadata) if !metadata.is_file() => return Err("it is not a plain file".to_owned()),
        Ok(_) => {}
    }
    let mut text = Vec::new();
    let read = File::open(file).and_then(|file| file.take(MAX_TEXT_BYTES as u64 + 1).read_to_end(&mut text));
    read.map_err(|error| format!("it cannot be read: {error}"))?;
    if text.len() > MAX_TEXT_BYTES {
        return Err(format!("it is longer than any table ({MAX_TEXT_BYTES} bytes)"));
    }
    let text = String::from_utf8(text).map_err(|_| "it is not text".to_owned())?;
    TableFile::parse(&text).map(Some)
}

/// The machine in words that are the same for all machines of its kind: processor and cores.
pub fn this_machine() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = processor_of(&cpuinfo).unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    // Not the cores that this process may use: ranks may be bound to some, and the table is for all of them.
    let cores = crate::exec::backoff::online_cores().unwrap_or(1);
    format!("{processor}, {cores} core{}", if cores == 1 { "" } else { "s" })
}

fn processor_of(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    let (_, name) = line.split_once(':')?;
    Some(name.split_whitespace().collect::<Vec<_>>().join(" ")).filter(|name| !name.is_empty())
}

/// Longest part of a file name that stands for a machine. Machines that share it are told apart by what is in the file.
const MACHINE_NAME_BYTES: usize = 80;

fn file_name_of(machine: &str) -> String {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { ' ' };
    let spaced: String = machine.chars().map(plain).collect();
    let mut name = spaced.split_whitespace().collect::<Vec<_>>().join("-");
    name.truncate(MACHINE_NAME_BYTES);
    name
}

/// What rank 0 has to tell a user about the table of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Something is not as it should be.
    Warning(String),
    /// For those who want to know how things are chosen.
    Debug(String),
}

/// Takes the table for this world from rank 0's shelf and makes it that of all ranks, for this communicator and for an
/// engine to be started with it. All ranks call this. Ranks other than 0 read nothing and have nothing to say.
///
/// # Errors
/// As any collective. What is wrong with a file is no error.
pub fn adopt(communicator: &mut Communicator, shelf: &Shelf) -> Result<(Option<Arc<Table>>, Option<Notice>)> {
    if communicator.rank().index() != 0 || communicator.size() == 1 {
        return Ok((communicator.agree_on_table(None)?, None));
    }
    let class = Class::of(communicator.topology());
    let found = shelf.find(&this_machine(), class);
    let own = if let Found::Table(table) = &found { Some(table) } else { None };
    let agreed = communicator.agree_on_table(own)?;
    let notice = match (found, &agreed) {
        (Found::Off, _) => Notice::Debug(format!("algorithms are chosen by built-in limits: {VARIABLE} is off")),
        (Found::Nothing(file), _) => Notice::Debug(format!(
            "algorithms are chosen by built-in limits: there is no table for {class} ({}); {REMEDY}",
            file.display()
        )),
        (Found::Unusable { file, why }, _) => {
            Notice::Warning(format!("the measured table {} is not used: {why}; {REMEDY} anew", file.display()))
        }
        (Found::Table(_), Some(table)) => Notice::Debug(format!("algorithms are chosen by {table}")),
        (Found::Table(table), None) => Notice::Warning(format!(
            "{table} is not used: not all ranks understand it; do they run the same version of farandole?"
        )),
    };
    Ok((agreed, Some(notice)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farandole_plan::algorithm::Algorithm;
    use farandole_plan::table::{Measurement, Way};
    use farandole_testing::Folder;

    const CLASS: Class = Class { ranks: 2, hosts: 1, smallest: 2, largest: 2 };
    const MACHINE: &str = "Some CPU @ 2.80GHz, 2 cores";

    fn table() -> Table {
        let mut table = Table::new(CLASS);
        table.insert(Measurement { way: Way::Allreduce(Algorithm::Ring), bytes: 4, time_us: 0.125 });
        table
    }

    #[test]
    fn the_variable_counts_first_then_the_cache_then_the_home() {
        let with = |pairs: &'static [(&str, &str)]| {
            Shelf::from_lookup(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(with(&[("XDG_CACHE_HOME", "/c"), ("HOME", "/h"), (VARIABLE, "/t")]), Shelf::in_folder("/t"));
        assert_eq!(with(&[("XDG_CACHE_HOME", "/c"), ("HOME", "/h")]), Shelf::in_folder("/c/farandole/tables"));
        assert_eq!(with(&[("XDG_CACHE_HOME", ""), ("HOME", "/h")]), Shelf::in_folder("/h/.cache/farandole/tables"));
        assert_eq!(with(&[(VARIABLE, "Off"), ("HOME", "/h")]), Shelf::OFF);
        assert_eq!(with(&[("HOME", "relative")]), Shelf::OFF);
    }

    #[test]
    fn what_is_put_on_the_shelf_is_found_again_and_can_be_replaced() {
        let folder = Folder::new();
        let shelf = Shelf::in_folder(&*folder);
        assert_eq!(shelf.find(MACHINE, CLASS), Found::Nothing(shelf.file(MACHINE, CLASS).unwrap()));
        shelf.put(MACHINE, &Table::new(CLASS)).unwrap();
        shelf.put(MACHINE, &table()).unwrap();
        assert_eq!(shelf.find(MACHINE, CLASS), Found::Table(table()));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing unfinished is left");
        assert_eq!(Shelf::OFF.find(MACHINE, CLASS), Found::Off);
        assert!(Shelf::OFF.put(MACHINE, &table()).is_err());
    }

    #[test]
    fn a_file_that_is_no_table_for_us_is_named_with_the_reason() {
        let folder = Folder::new();
        let shelf = Shelf::in_folder(&*folder);
        let file = shelf.put(MACHINE, &table()).unwrap();
        let good = fs::read(&file).unwrap();
        let why = |content: &[u8]| {
            fs::write(&file, content).unwrap();
            match shelf.find(MACHINE, CLASS) {
                Found::Unusable { file: named, why } if named == file => why,
                other => panic!("{other:?}"),
            }
        };
        assert!(why(b"").contains("not a table"));
        assert!(why(&good[..good.len() - 9]).contains("damaged"));
        assert!(why(&[0xff; 40]).contains("not text"));
        assert!(why(&vec![b' '; MAX_TEXT_BYTES + 1]).contains("longer"));
        let text = String::from_utf8(good.clone()).unwrap();
        assert!(why(text.replacen("table 1", "table 7", 1).as_bytes()).contains("format is 7"));
        let record = |machine: &str, table| TableFile { machine: machine.to_owned(), table }.to_text();
        assert!(why(record("Another CPU", table()).as_bytes()).contains("another machine (Another CPU)"));
        let larger = Table::new(Class { ranks: 4, largest: 4, ..CLASS });
        assert!(why(record(MACHINE, larger).as_bytes()).contains("4 ranks on 1 host"));
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert!(matches!(shelf.find(MACHINE, CLASS), Found::Unusable { why, .. } if why.contains("plain file")));
    }

    #[test]
    fn a_shelf_that_cannot_be_written_to_is_an_error_and_leaves_nothing() {
        let folder = Folder::new();
        let file = folder.join("shelf");
        fs::write(&file, "in the way").unwrap();
        assert!(Shelf::in_folder(&*file).put(MACHINE, &table()).is_err());
        assert!(matches!(Shelf::in_folder(&*file).find(MACHINE, CLASS), Found::Unusable { .. }));
        assert_eq!(fs::read(&file).unwrap(), b"in the way");
    }

    #[test]
    fn machines_have_names_that_are_files() {
        assert_eq!(file_name_of(MACHINE), "some-cpu-2-80ghz-2-cores");
        assert!(file_name_of(&"x/../".repeat(100)).len() <= MACHINE_NAME_BYTES);
        assert_eq!(processor_of("processor\t: 0\nmodel name\t: Some  CPU\n").as_deref(), Some("Some CPU"));
        assert!(this_machine().contains("core"));
    }
}
