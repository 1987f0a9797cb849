//! A temporary folder that goes away with its test.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// An empty folder of a test's own. It is removed when this is dropped, also when the test fails.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Makes a folder. Its name has the process and a number, so that no two tests share one.
    #[expect(clippy::new_without_default, reason = "a default value should not touch the disk")]
    pub fn new() -> Folder {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("farandole-test-{}-{number}", std::process::id()));
        // A process with the same number may have been killed.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// The path of a file in it, as text.
    pub fn file(&self, name: &str) -> String {
        self.join(name).to_str().unwrap().to_owned()
    }
}

impl Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for Folder {
    fn as_ref(&self) -> &Path {
        self
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_different_empty_and_gone_at_the_end() {
        let (one, other) = (Folder::new(), Folder::new());
        assert_ne!(&*one, &*other);
        std::fs::write(one.join("file"), "text").unwrap();
        assert_eq!(std::fs::read_to_string(one.file("file")).unwrap(), "text");
        assert_eq!(std::fs::read_dir(&other).unwrap().count(), 0);
        let path = one.to_path_buf();
        drop(one);
        assert!(!path.exists() && other.exists());
    }
}
