//! The text files of the project, read once.
//!
//! Walks the folders itself instead of asking git, because what is checked must not depend on what has been committed.
//! Folders that tools fill (build output, fuzzing finds, virtual environments) are not the project's text.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::shell::root;

/// Folders that are not walked, by name or by their way from the root.
const NOT_OURS: [&str; 9] = [
    ".git",
    "target",
    ".venv",
    ".venv-mxnet",
    "bench-out",
    "__pycache__",
    "fuzz/artifacts",
    "fuzz/corpus",
    "fuzz/coverage",
];

/// Endings of files that are text and ours. A file without an ending is taken too (`.ci/run`), if it is text.
const TEXT: [&str; 8] = ["rs", "md", "toml", "sh", "py", "yml", "json", ""];

/// One text file.
pub(super) struct File {
    /// Where it lies, relative to the root, with forward slashes.
    pub(super) path: String,
    /// What is in it.
    pub(super) text: String,
}

impl File {
    /// Whether it is Rust.
    pub(super) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Whether it is a document.
    pub(super) fn is_markdown(&self) -> bool {
        self.path.ends_with(".md")
    }
}

/// All text files of the project, in order of their paths.
pub(super) struct Tree {
    /// The files.
    pub(super) files: Vec<File>,
}

impl Tree {
    /// Reads the tree from disk.
    pub(super) fn read() -> Result<Tree> {
        let mut files = Vec::new();
        walk(&root(), &root(), &mut files)?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Tree { files })
    }

    /// The text of this file, if there is one.
    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.files.iter().find(|file| file.path == path).map(|file| file.text.as_str())
    }

    /// Whether there is such a file or folder on disk.
    pub(super) fn exists(&self, path: &str) -> bool {
        let inside = format!("{}/", path.trim_end_matches('/'));
        self.files.iter().any(|file| file.path == path || file.path.starts_with(&inside)) || root().join(path).exists()
    }
}

fn walk(root: &Path, folder: &Path, files: &mut Vec<File>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        if kind.is_dir() && !is_foreign(root, &path) {
            walk(root, &path, files)?;
        }
        let ending = path.extension().map_or(String::new(), |ending| ending.to_string_lossy().into_owned());
        if !kind.is_file() || !TEXT.contains(&ending.as_str()) {
            continue;
        }
        let bytes = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let Ok(text) = String::from_utf8(bytes) else { continue };
        let path = path.strip_prefix(root).expect("invariant: the walk stays under the root");
        files.push(File { path: path.to_string_lossy().into_owned(), text });
    }
    Ok(())
}

fn is_foreign(root: &Path, folder: &Path) -> bool {
    let way = folder.strip_prefix(root).unwrap_or(folder);
    let name = way.file_name().map(Path::new).unwrap_or(way);
    NOT_OURS.iter().any(|foreign| way == Path::new(foreign) || name == Path::new(foreign))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_that_tools_fill_are_foreign() {
        let foreign = |way: &str| is_foreign(Path::new("/r"), &Path::new("/r").join(way));
        assert!(foreign("target") && foreign("crates/x/target") && foreign("fuzz/corpus"));
        assert!(!foreign("crates/x/tests/corpus") && !foreign("crates/x/src"));
    }
}
