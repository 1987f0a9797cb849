//! Where the job's key can be had when ranks are on several hosts.
//!
//! In this order: the descriptor that `FARANDOLE_KEY_FD` names, `FARANDOLE_KEY` itself, the file that
//! `FARANDOLE_KEY_FILE` names, the user's own file `~/.config/farandole/key`. A file that others may read is refused: a
//! key that everybody knows is none. Making a key up is no way out, because ranks on different hosts would make up
//! different ones.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use farandole_transport::Key;

use super::launcher::Launcher;
use super::variables::{Variables, wrong};
use super::{KEY, KEY_FD, KEY_FILE};
use crate::error::Result;

/// A key has 64 digits; a file with more than this is something else.
const MOST_KEY_BYTES: u64 = 128;

/// The key, wherever it is.
pub(super) fn find(variables: Variables<'_>, launcher: Launcher) -> Result<Key> {
    if let Some(number) = variables.value::<u32>(KEY_FD, "the number of a descriptor")? {
        return from_descriptor(number);
    }
    if let Some(text) = variables.text(KEY) {
        return text.parse().map_err(|not_a_key| wrong(KEY, format!("{not_a_key}")));
    }
    if let Some(path) = variables.text(KEY_FILE) {
        let path = PathBuf::from(path);
        let file = File::open(&path).map_err(|error| wrong(KEY_FILE, format!("{}: {error}", path.display())))?;
        return from_file(KEY_FILE, &path, file);
    }
    let own = own_file(variables);
    match own.as_ref().map(|path| (path, File::open(path))) {
        Some((path, Ok(file))) => from_file(KEY_FILE, path, file),
        Some((path, Err(error))) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(wrong(KEY_FILE, format!("is not set, and {} cannot be read: {error}", path.display())))
        }
        _ => Err(wrong(KEY, how_to_give_one(launcher))),
    }
}

/// The file of the user's own, where configuration lies.
fn own_file(variables: Variables<'_>) -> Option<PathBuf> {
    let configuration = variables.text("XDG_CONFIG_HOME").map(PathBuf::from);
    let configuration = configuration.or_else(|| Some(PathBuf::from(variables.text("HOME")?).join(".config")))?;
    Some(configuration.join("farandole/key"))
}

/// Opening the descriptor anew, instead of taking it over, leaves it where it is: the process may initialise again.
fn from_descriptor(number: u32) -> Result<Key> {
    let file = File::open(format!("/proc/self/fd/{number}"));
    let text =
        file.and_then(read).map_err(|error| wrong(KEY_FD, format!("descriptor {number} cannot be read: {error}")))?;
    parse_key(KEY_FD, &text)
}

fn from_file(variable: &'static str, path: &Path, file: File) -> Result<Key> {
    let path = path.display();
    let unreadable = |error| wrong(variable, format!("{path}: {error}"));
    // Asked of the open file, which cannot be exchanged for another one in between.
    let about = file.metadata().map_err(unreadable)?;
    if about.mode() & 0o077 != 0 {
        return Err(wrong(variable, format!("{path} can be read by others: chmod 600 {path}, and make a new key")));
    }
    parse_key(variable, &read(file).map_err(unreadable)?)
        .map_err(|_| wrong(variable, format!("{path} does not hold a key: farandole key > {path}")))
}

fn read(file: File) -> std::io::Result<String> {
    let mut text = String::new();
    file.take(MOST_KEY_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

fn parse_key(variable: &'static str, text: &str) -> Result<Key> {
    text.trim().parse().map_err(|not_a_key| wrong(variable, format!("{not_a_key}")))
}

fn how_to_give_one(launcher: Launcher) -> String {
    let pass_on = match launcher {
        Launcher::OpenMpi => " and mpirun -x FARANDOLE_KEY",
        Launcher::Mpich => " and mpirun -genvlist FARANDOLE_KEY",
        Launcher::Slurm => " and srun --export=ALL",
        Launcher::Torchrun => ", the same for torchrun on every host",
        Launcher::Nobody | Launcher::Farandole | Launcher::Horovod | Launcher::Store => ", the same for every rank",
    };
    format!(
        "is not set, and the ranks of this job, on several hosts, need a common key. Once for all jobs, in a home that all hosts \
         share: (umask 077; mkdir -p ~/.config/farandole; farandole key > ~/.config/farandole/key). For this job alone: \
         export FARANDOLE_KEY=$(farandole key){pass_on}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::PermissionsExt;

    fn find_with(set: &[(&'static str, &str)]) -> std::result::Result<Key, (&'static str, String)> {
        let lookup =
            |name: &'static str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_string());
        find(Variables::new(&lookup), Launcher::OpenMpi).map_err(|error| match error {
            Error::Environment { variable, problem } => (variable, problem),
            other => panic!("{other}"),
        })
    }

    /// A home with a key in it.
    struct Home(farandole_testing::Folder);

    impl Home {
        fn with_key(text: &str, mode: u32) -> Home {
            let home = Home(farandole_testing::Folder::new());
            let path = home.key_path();
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            home
        }

        fn key_path(&self) -> PathBuf {
            self.0.join(".config/farandole/key")
        }
    }

    #[test]
    fn the_key_may_come_through_a_descriptor_and_be_read_twice() {
        let key = Key::random().unwrap();
        let file = rustix::fs::memfd_create("key", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = File::from(file);
        writeln!(file, "{}", key.to_hex()).unwrap();
        let number = file.as_raw_fd().to_string();
        for _ in 0..2 {
            assert_eq!(find_with(&[(KEY_FD, &number)]), Ok(key.clone()));
        }
    }

    #[test]
    fn the_users_own_file_comes_last() {
        let (own, named, direct) = (Key::random().unwrap(), Key::random().unwrap(), Key::random().unwrap().to_hex());
        let home = Home::with_key(&format!("{}\n", own.to_hex()), 0o600);
        let other = Home::with_key(&named.to_hex(), 0o400);
        let (home, file) = (home.0.to_str().unwrap(), other.key_path());
        let set = [("HOME", home), (KEY_FILE, file.to_str().unwrap()), (KEY, &direct)];
        assert_eq!(find_with(&set[..1]), Ok(own));
        assert_eq!(find_with(&set[..2]), Ok(named));
        assert_eq!(find_with(&set), Ok(direct.parse().unwrap()));
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        for mode in [0o640, 0o604, 0o620] {
            let home = Home::with_key(&"0".repeat(64), mode);
            let (variable, problem) = find_with(&[("HOME", home.0.to_str().unwrap())]).unwrap_err();
            assert_eq!(variable, KEY_FILE);
            assert!(problem.contains("chmod 600"), "{problem}");
        }
    }

    #[test]
    fn what_is_no_key_is_not_repeated() {
        let secret = "0123456789abcdef-secret";
        let home = Home::with_key(secret, 0o600);
        for set in [&[(KEY, secret)][..], &[("HOME", home.0.to_str().unwrap())]] {
            let (_, problem) = find_with(set).unwrap_err();
            assert!(!problem.contains("0123"), "{problem}");
        }
        assert_eq!(find_with(&[(KEY_FD, "987654")]).unwrap_err().0, KEY_FD);
        assert_eq!(find_with(&[(KEY_FILE, "/no/such/file")]).unwrap_err().0, KEY_FILE);
    }

    #[test]
    fn without_a_key_the_error_says_how_to_give_one() {
        let (variable, problem) = find_with(&[("HOME", "/no/such/home")]).unwrap_err();
        assert_eq!(variable, KEY);
        assert!(problem.contains("export FARANDOLE_KEY=$(farandole key) and mpirun -x FARANDOLE_KEY"), "{problem}");
        assert!(!problem.contains('\n'));
    }
}
