//! Folders that only this user can enter, made below folders that other users may write to: [`PrivateFolder`] has a
//! known name, [`TemporaryFolder`] a random one.
//!
//! **Invariant:** a [`PrivateFolder`] is the descriptor of a directory that belongs to the effective user and has no
//! permission for group and others; its path did not end in a symbolic link. These properties are read from the
//! descriptor, and all operations are relative to it, so replacing the path later has no effect. Files in it are
//! regular files; links are never followed.
//!
//! Left out: the components above the last one. The user names them, and they may be links.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;

/// The permissions of group and others, all of which a private folder denies.
const OF_OTHER_USERS: u32 = 0o077;

/// Number of random names that are tried. With 2^32 names, a second try is already unlikely.
const ATTEMPTS: u32 = 100;

/// A folder of this user alone, held open.
#[derive(Debug)]
pub struct PrivateFolder(OwnedFd);

impl PrivateFolder {
    /// Creates the folder, or opens the existing one.
    ///
    /// # Errors
    /// If the folder cannot be created or opened, or is a symbolic link, not a directory, another user's, or accessible
    /// to other users. The message leaves out the path.
    pub fn create(path: &Path) -> io::Result<PrivateFolder> {
        create(CWD, without_slash(path))
    }

    /// Opens an existing folder.
    ///
    /// # Errors
    /// As those of [`PrivateFolder::create`].
    pub fn open(path: &Path) -> io::Result<PrivateFolder> {
        open(CWD, without_slash(path))
    }

    /// Creates a private folder in this one, or opens the existing one.
    ///
    /// # Errors
    /// As those of [`PrivateFolder::create`].
    pub fn create_folder(&self, name: &str) -> io::Result<PrivateFolder> {
        create(&self.0, Path::new(name))
    }

    /// Opens a private folder in this one.
    ///
    /// # Errors
    /// As those of [`PrivateFolder::create`].
    pub fn open_folder(&self, name: &str) -> io::Result<PrivateFolder> {
        open(&self.0, Path::new(name))
    }

    /// The names of all entries that are valid UTF-8.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.0)? {
            match entry?.file_name().to_str() {
                Ok("." | "..") | Err(_) => {}
                Ok(name) => names.push(name.to_owned()),
            }
        }
        Ok(names)
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// If there is no regular file with this name, or it cannot be opened.
    pub fn open_file(&self, name: &str) -> io::Result<File> {
        self.file(name, OFlags::RDONLY)
    }

    /// Opens a file for reading and writing, and creates it if it is missing.
    ///
    /// # Errors
    /// If the name belongs to something other than a regular file, or the file cannot be opened.
    pub fn open_or_create_file(&self, name: &str) -> io::Result<File> {
        self.file(name, OFlags::RDWR | OFlags::CREATE)
    }

    /// Creates a file, for writing.
    ///
    /// # Errors
    /// If the name exists, or the file cannot be created.
    pub fn create_file(&self, name: &str) -> io::Result<File> {
        self.file(name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)
    }

    fn file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        // NONBLOCK: opening a pipe must not wait for its other end. It has no effect on regular files.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.0, name, flags, Mode::RUSR | Mode::WUSR)?;
        if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != FileType::RegularFile {
            return Err(refused("it is not a regular file; remove it"));
        }
        Ok(file.into())
    }

    /// Whether a regular file has this name.
    pub fn has_file(&self, name: &str) -> bool {
        let found = rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW);
        found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::RegularFile)
    }

    /// Removes a regular file.
    ///
    /// # Errors
    /// If there is no regular file with this name, or it cannot be removed.
    pub fn remove_file(&self, name: &str) -> io::Result<()> {
        if !self.has_file(name) {
            return Err(refused("it is not a regular file; remove it"));
        }
        Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::empty())?)
    }

    /// Moves a file to another private folder, where it replaces a file with its new name.
    ///
    /// # Errors
    /// If the file cannot be moved.
    pub fn move_file(&self, name: &str, to: &PrivateFolder, new_name: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.0, name, &to.0, new_name)?)
    }
}

fn create(parent: impl AsFd, name: &Path) -> io::Result<PrivateFolder> {
    match rustix::fs::mkdirat(parent.as_fd(), name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => open(parent, name),
        Err(error) => Err(error.into()),
    }
}

fn open(parent: impl AsFd, name: &Path) -> io::Result<PrivateFolder> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(parent, name, flags, Mode::empty()) {
        Ok(folder) => check(&folder).map(|()| PrivateFolder(folder)),
        // Linux reports a link as NOTDIR here.
        Err(Errno::NOTDIR | Errno::LOOP) => Err(refused("it is a symbolic link or not a directory; remove it")),
        Err(error) => Err(error.into()),
    }
}

fn check(folder: &OwnedFd) -> io::Result<()> {
    let found = rustix::fs::fstat(folder)?;
    let own = rustix::process::geteuid().as_raw();
    if found.st_uid != own {
        let owner = found.st_uid;
        return Err(refused(&format!("it belongs to user {owner}, not to user {own}; use a folder of user {own}")));
    }
    if found.st_mode & OF_OTHER_USERS != 0 {
        let mode = found.st_mode & 0o7777;
        return Err(refused(&format!("its mode {mode:04o} gives access to other users; set mode 0700")));
    }
    Ok(())
}

/// A path that ends in a slash follows a link in its last component.
fn without_slash(path: &Path) -> &Path {
    path.components().as_path()
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// A new private folder with a random name, removed with its contents on drop.
#[derive(Debug)]
pub struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    /// Makes a folder among the temporary files.
    ///
    /// # Errors
    /// If no folder can be created there; the message has the path.
    pub fn new(prefix: &str) -> io::Result<TemporaryFolder> {
        TemporaryFolder::new_in(&std::env::temp_dir(), prefix)
    }

    /// Makes a folder in another one.
    ///
    /// # Errors
    /// As those of [`TemporaryFolder::new`].
    pub fn new_in(parent: &Path, prefix: &str) -> io::Result<TemporaryFolder> {
        let mut attempt = 1;
        loop {
            let path = parent.join(format!("{prefix}-{:08x}", random()?));
            // An existing entry of any kind, a link included, is EXIST, so the folder is always a new one.
            match rustix::fs::mkdir(&path, Mode::RWXU) {
                Ok(()) => return Ok(TemporaryFolder(path)),
                Err(Errno::EXIST) if attempt < ATTEMPTS => attempt += 1,
                Err(error) => {
                    let error = io::Error::from(error);
                    return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display())));
                }
            }
        }
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Leaves the folder in place.
    pub fn keep(mut self) -> PathBuf {
        // Drop then finds an empty path, which does not exist.
        std::mem::take(&mut self.0)
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // A file that cannot be removed stays among the temporary files, which the system cleans.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A number that other users cannot predict.
fn random() -> io::Result<u32> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u32::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};

    use farandole_testing::Folder;

    use super::*;

    /// An arbitrary user other than the one that runs tests, which is root or a person.
    const ANOTHER_USER: u32 = 65534;

    fn refusal(path: &Path) -> String {
        let [created, opened] = [PrivateFolder::create(path), PrivateFolder::open(path)].map(Result::unwrap_err);
        assert_eq!(created.to_string(), opened.to_string());
        created.to_string()
    }

    #[test]
    fn a_link_a_foreign_folder_and_an_open_one_are_refused() {
        let all = Folder::new();
        let own = all.join("own");
        PrivateFolder::create(&own).unwrap();
        assert_eq!(fs::metadata(&own).unwrap().mode() & 0o7777, 0o700);
        PrivateFolder::create(&own).unwrap();
        symlink(&own, all.join("link")).unwrap();
        assert!(refusal(&all.join("link")).contains("a symbolic link"));
        assert!(refusal(&all.join("link/")).contains("a symbolic link"));
        fs::set_permissions(&own, fs::Permissions::from_mode(0o750)).unwrap();
        assert_eq!(refusal(&own), "its mode 0750 gives access to other users; set mode 0700");
        let foreign = all.join("foreign");
        PrivateFolder::create(&foreign).unwrap();
        chown(&foreign, Some(ANOTHER_USER), None).expect("this test needs root");
        assert!(refusal(&foreign).starts_with("it belongs to user 65534, not to user "));
    }

    #[test]
    fn only_regular_files_are_opened_and_removed() {
        let all = Folder::new();
        let folder = PrivateFolder::create(&all.join("own")).unwrap();
        let victim = all.join("victim");
        fs::write(&victim, "kept").unwrap();
        symlink(&victim, all.join("own/link")).unwrap();
        rustix::fs::mkfifoat(&folder.0, "pipe", Mode::RWXU).unwrap();
        fs::create_dir(all.join("own/folder")).unwrap();
        folder.create_file("file").unwrap();
        for name in ["link", "pipe", "folder"] {
            assert!(folder.open_file(name).is_err() && folder.open_or_create_file(name).is_err(), "{name}");
            assert!(folder.create_file(name).is_err() && folder.remove_file(name).is_err(), "{name}");
            assert!(!folder.has_file(name), "{name}");
        }
        assert!(folder.has_file("file"));
        let mut names = folder.names().unwrap();
        names.sort();
        assert_eq!(names, ["file", "folder", "link", "pipe"]);
        folder.remove_file("file").unwrap();
        assert_eq!(folder.names().unwrap().len(), 3);
        assert_eq!(fs::read_to_string(&victim).unwrap(), "kept");
    }

    #[test]
    fn a_temporary_folder_is_new_private_and_removed_unless_it_is_kept() {
        let all = Folder::new();
        let one = TemporaryFolder::new_in(&all, "some").unwrap();
        let other = TemporaryFolder::new_in(&all, "some").unwrap();
        assert_ne!(one.path(), other.path());
        let found = fs::symlink_metadata(one.path()).unwrap();
        assert!(found.is_dir() && found.mode() & 0o7777 == 0o700);
        fs::write(one.path().join("file"), "text").unwrap();
        let (path, kept) = (one.path().to_owned(), other.keep());
        drop(one);
        assert!(!path.exists() && kept.exists());
        let missing = TemporaryFolder::new_in(&all.join("missing"), "some").unwrap_err().to_string();
        assert!(missing.contains("missing/some-") && missing.contains("No such file"), "{missing}");
    }
}
