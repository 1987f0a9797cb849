//! Paths of this machine, as people write them: which storage they are in, and whether shards lie there.

use std::path::Path;
use std::sync::Arc;

use super::find::{Format, PARTS, by_head, by_name};
use super::pattern;
use crate::storage::{LocalFiles, Object, Storage};

/// The storage that a path or a pattern of this machine is in, and the path within it.
pub fn local(path: &str) -> (Arc<dyn Storage>, String) {
    let storage = |root: &str| -> Arc<dyn Storage> { Arc::new(LocalFiles::new(root)) };
    // A folder with a brace in its name is a folder.
    if Path::new(path).is_dir() {
        return (storage(path), String::new());
    }
    let fixed = &path[..path.find(['*', '?', '{']).unwrap_or(path.len())];
    let folder = fixed.rfind('/').map_or("", |slash| &path[..=slash]);
    (storage(if folder.is_empty() { "." } else { folder }), path[folder.len()..].to_owned())
}

/// Whether a path or a pattern of this machine leads to shards, and not to a folder of images or to nothing. Of a
/// folder, the names of the files right in it and in its parts (`train`, `test`, …) tell.
pub fn is_sharded(path: &str) -> bool {
    let at = Path::new(path);
    if at.is_dir() {
        return holds_shards(at) || PARTS.iter().any(|part| holds_shards(&at.join(part)));
    }
    if let Ok(about) = std::fs::metadata(at) {
        let (storage, path) = local(path);
        let object = Object { path, bytes: about.len() };
        let is_known = |format: Option<Format>| format.is_some_and(|format| format != Format::Images);
        // What is compressed is told so when it is opened.
        return about.is_file()
            && (by_name(&object.path).map_or(true, is_known) || by_head(&storage, &object).is_ok_and(is_known));
    }
    pattern::is_pattern(path)
}

fn holds_shards(folder: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        let format = if name.starts_with('.') { None } else { by_name(&name).ok().flatten() };
        format.is_some_and(|format| format != Format::Images) && path.is_file()
    })
}

#[cfg(test)]
mod tests {
    use farandole_testing::Folder;

    use super::*;

    #[test]
    fn shards_are_told_from_folders_of_images_and_from_nothing() {
        let folder = Folder::new();
        for name in ["images/cat/1.jpg", "shards/README", "shards/a.tar", "parts/train/a.parquet", "odd{1}/a.npz"] {
            std::fs::create_dir_all(folder.join(name).parent().unwrap()).unwrap();
            std::fs::write(folder.join(name), "x").unwrap();
        }
        for (path, is) in [
            ("images", false),
            ("images/cat/1.jpg", false),
            ("shards", true),
            ("shards/a.tar", true),
            ("shards/README", false),
            ("shards/*.tar", true),
            ("parts", true),
            ("odd{1}", true),
            ("nothing", false),
        ] {
            assert_eq!(is_sharded(&folder.file(path)), is, "{path}");
        }
    }

    #[test]
    fn paths_are_divided_before_the_first_sign_of_a_pattern() {
        for (path, within) in [("/no/a-{0..3}.tar", "a-{0..3}.tar"), ("/no/{a,b}/c", "{a,b}/c"), ("x*", "x*")] {
            assert_eq!(local(path).1, within);
        }
        assert_eq!(local("/").1, "");
        assert_eq!(local("/no/a.tar").0.describe(), "files below /no/");
    }
}
