//! The launcher's side of a task: bytes that every rank gets, and files for what ranks answer with.
//!
//! The task is read from its file piece by piece, as agents take it. Results come in pieces, too, and grow in a file
//! under a name of its own; `rank.N` appears when the rank has ended, whole or not at all. When the job has failed,
//! `failure` says why: the rank that failed first, or `-`, on the first line, and the launcher's last words on the
//! others.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::job_spec::TaskFiles;

/// Pieces of a task and of results: large beside what a frame costs, small beside what a connection takes in a
/// heartbeat.
pub(crate) const PIECE_BYTES: usize = 256 << 10;

/// A task on its way to the agents.
#[derive(Debug)]
pub(crate) struct Tasks {
    file: File,
    bytes: u64,
}

impl Tasks {
    pub(crate) fn open(task: &TaskFiles) -> io::Result<Tasks> {
        let file = File::open(&task.file)?;
        let bytes = file.metadata()?.len();
        Ok(Tasks { file, bytes })
    }

    /// Its length.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The piece that begins here; `None` at the end.
    pub(crate) fn piece(&self, at: u64) -> io::Result<Option<Vec<u8>>> {
        let length = usize::try_from(self.bytes.saturating_sub(at)).unwrap_or(usize::MAX).min(PIECE_BYTES);
        let mut piece = vec![0; length];
        self.file.read_exact_at(&mut piece, at)?;
        Ok((length > 0).then_some(piece))
    }
}

/// Results on their way into files.
#[derive(Debug)]
pub(crate) struct Results {
    folder: PathBuf,
    open: HashMap<u32, File>,
}

impl Results {
    pub(crate) fn into(folder: &Path) -> Results {
        Results { folder: folder.to_owned(), open: HashMap::new() }
    }

    /// Takes in the next piece of a rank's result.
    pub(crate) fn add(&mut self, rank: u32, piece: &[u8]) -> io::Result<()> {
        let file = match self.open.entry(rank) {
            std::collections::hash_map::Entry::Occupied(file) => file.into_mut(),
            std::collections::hash_map::Entry::Vacant(none) => none.insert(File::create(partial(&self.folder, rank))?),
        };
        file.write_all(piece)
    }

    /// A rank has ended: what has come of its result is all of it.
    pub(crate) fn complete(&mut self, rank: u32) -> io::Result<()> {
        match self.open.remove(&rank) {
            Some(_) => fs::rename(partial(&self.folder, rank), self.folder.join(format!("rank.{rank}"))),
            None => Ok(()),
        }
    }

    /// Says why the job failed.
    pub(crate) fn fail(&self, rank: Option<u32>, words: &str) -> io::Result<()> {
        let rank = rank.map_or("-".to_owned(), |rank| rank.to_string());
        let unfinished = self.folder.join(".failure");
        fs::write(&unfinished, format!("{rank}\n{words}\n"))?;
        fs::rename(unfinished, self.folder.join("failure"))
    }
}

fn partial(folder: &Path, rank: u32) -> PathBuf {
    folder.join(format!(".rank.{rank}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farandole_testing::Folder;

    #[test]
    fn a_task_comes_out_in_pieces_and_whole() {
        let folder = Folder::new();
        for length in [0, 1, PIECE_BYTES, 2 * PIECE_BYTES + 7] {
            let bytes: Vec<u8> = (0..length).map(|index| (index % 251) as u8).collect();
            let file = folder.join("task");
            fs::write(&file, &bytes).unwrap();
            let tasks = Tasks::open(&TaskFiles { file, results: folder.to_path_buf(), caller: 1 }).unwrap();
            let mut gathered = Vec::new();
            while let Some(piece) = tasks.piece(gathered.len() as u64).unwrap() {
                gathered.extend(piece);
            }
            assert!(gathered == bytes && tasks.bytes() == length as u64, "{length}");
        }
    }

    #[test]
    fn a_result_appears_when_it_is_complete() {
        let folder = Folder::new();
        let mut results = Results::into(&folder);
        results.add(3, b"to").unwrap();
        results.add(3, b"gether").unwrap();
        results.add(4, b"cut o").unwrap();
        assert!(!folder.join("rank.3").exists());
        results.complete(3).unwrap();
        results.complete(5).unwrap();
        assert_eq!(fs::read(folder.join("rank.3")).unwrap(), b"together");
        assert!(!folder.join("rank.4").exists() && !folder.join("rank.5").exists());
        results.fail(Some(4), "rank 4 was killed").unwrap();
        assert_eq!(fs::read_to_string(folder.join("failure")).unwrap(), "4\nrank 4 was killed\n");
    }
}
