//! A temporary folder that goes away with its test.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::ops::Deref;
use std::path::{Path, PathBuf};

/// An empty folder of a test's own. It is removed when this is dropped, also when the test fails.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Makes a folder with a random name. A name that exists, which another user may have made, is an error.
    #[expect(clippy::new_without_default, reason = "a default value should not touch the disk")]
    pub fn new() -> Folder {
        let random = RandomState::new().build_hasher().finish() as u32;
        let path = std::env::temp_dir().join(format!("farandole-test-{}-{random:08x}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
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
