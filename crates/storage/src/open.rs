//! From what people write, a path or a URL, to a storage and a path within it: [`open`].
//!
//! **Invariant:** no query, user name or password of a URL is in an error.
//!
//! What is deliberately not here: what lies at the path. `records` finds out.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use farandole_settings as settings;

use super::cache::peers::PeerCaches;
use super::cache::{AskPeers, CacheOptions};
#[cfg(feature = "remote")]
use super::counters::StorageCounters;
use super::{LocalFiles, Storage, StorageError, StorageErrorKind};

/// How storages are read. The defaults suit a rank of a training job.
#[derive(Clone, Debug)]
pub struct StorageOptions {
    /// Larger reads are split into ranges of this many bytes.
    pub part_bytes: usize,
    /// How many ranges of one read are under way at once.
    pub parts_at_once: usize,
    /// How many requests are under way at once, of all reads.
    pub connections: usize,
    /// How long connecting to an address may take.
    pub connect_timeout: Duration,
    /// How long a server may be silent within a request.
    pub silence_timeout: Duration,
    /// How long a read may take with all its attempts.
    pub deadline: Duration,
    /// How often a range is asked for again while no byte of it arrives.
    pub retries: u32,
    /// The pause before the first repetition; each one doubles it, up to 64 times.
    pub first_pause: Duration,
    /// The largest object that is read as a whole where a server cannot serve ranges.
    pub whole_bytes: u64,
    /// What is kept of remote objects.
    pub cache: CacheOptions,
    /// Where credentials, endpoints and proxies are looked up: the environment of the process, unless somebody sets it.
    pub variables: StorageVariables,
}

impl Default for StorageOptions {
    fn default() -> StorageOptions {
        StorageOptions {
            // A connection to a store carries 50 to 100 MB/s: a tenth of a second, many times the time to first byte.
            part_bytes: 8 << 20,
            parts_at_once: 4,
            connections: settings::STORAGE_CONNECTIONS.default_value::<u64>() as usize,
            // Longer than the second repetition of a lost SYN (3 s).
            connect_timeout: Duration::from_secs(5),
            // Stores answer within a second; under load they say so (503) and are not silent.
            silence_timeout: Duration::from_secs(20),
            deadline: settings::STORAGE_TIMEOUT_SECONDS.default_value(),
            retries: 8,
            first_pause: Duration::from_millis(100),
            // An image or a table, but no shard: each read of a part would fetch all of it.
            whole_bytes: 64 << 20,
            cache: CacheOptions::default(),
            variables: StorageVariables::of_this_process(),
        }
    }
}

impl StorageOptions {
    /// The defaults with what the environment says (docs/settings.md).
    ///
    /// # Errors
    /// If a setting has a value that it cannot have.
    pub fn from_environment() -> Result<StorageOptions, settings::Wrong> {
        let read = |name: &'static str| std::env::var(name).ok();
        let shares: Option<bool> = settings::DATA_PEERS.read(read)?;
        let cache = CacheOptions {
            folder: settings::DATA_CACHE.in_environment().map(Into::into),
            disk_bytes: settings::DATA_CACHE_BYTES.read(read)?,
            memory_bytes: settings::DATA_MEMORY_BYTES.read(read)?,
            peers: (shares != Some(false)).then(|| Arc::clone(PeerCaches::of_this_process())),
            ask_peers: if shares == Some(true) { AskPeers::Always } else { AskPeers::WhereFaster },
            ..CacheOptions::default()
        };
        Ok(StorageOptions {
            connections: settings::STORAGE_CONNECTIONS.read::<u64>(read)?.clamp(1, 4096) as usize,
            deadline: settings::STORAGE_TIMEOUT_SECONDS.read(read)?,
            cache,
            ..StorageOptions::default()
        })
    }
}

/// StorageVariables by name. They hold secrets, so nothing shows their values.
#[derive(Clone, Default)]
pub struct StorageVariables(BTreeMap<String, String>);

impl StorageVariables {
    /// The environment of this process.
    pub fn of_this_process() -> StorageVariables {
        settings::of_this_process().into_iter().collect()
    }

    /// What a variable says; set to nothing is not set.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// All that are set to something.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str())).filter(|(_, value)| !value.is_empty())
    }
}

impl FromIterator<(String, String)> for StorageVariables {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(pairs: I) -> StorageVariables {
        StorageVariables(pairs.into_iter().collect())
    }
}

impl std::fmt::Debug for StorageVariables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} variables", self.0.len())
    }
}

/// The storage that a path or URL is about, and the path within it.
///
/// A plain path or `file://`: files of this machine and of what is mounted. `s3://BUCKET/PATH`, `gs://BUCKET/PATH`,
/// `az://CONTAINER/PATH`, `abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH`, `http://HOST/PATH`,
/// `https://HOST/PATH`: remote objects, through a cache. `nfs://HOST/EXPORT/PATH`: files of an NFS server that need not
/// be mounted, through a cache, too.
///
/// # Errors
/// If there is no such kind of storage, credentials or settings for it are missing, or a path of this machine leads to
/// nothing. Nothing is asked of others yet: that a bucket or an object is not there shows when it is read.
pub fn open(url: &str, options: &StorageOptions) -> Result<(Arc<dyn Storage>, String), StorageError> {
    match url.split_once("://") {
        None => open_local(url),
        Some(("file", rest)) => {
            let path = rest.strip_prefix("localhost").filter(|path| path.starts_with('/')).unwrap_or(rest);
            if !path.starts_with('/') {
                return Err(cannot(url, "a file:// URL has three slashes and an absolute path: file:///data/train"));
            }
            open_local(path)
        }
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
            if authority.is_empty() {
                return Err(cannot(url, &format!("a name is missing: {scheme}://NAME/PATH")));
            }
            open_remote(url, scheme, authority, path, options)
        }
    }
}

/// The storage begins with the folder that everything meant lies in, so that nothing beside it is looked at: the
/// folder itself and nothing within it, the folder of a file and the file, or the last folder before a pattern and the
/// pattern.
fn open_local(path: &str) -> Result<(Arc<dyn Storage>, String), StorageError> {
    let (path, shown) = (Path::new(path), path);
    if path.is_dir() {
        return Ok((Arc::new(LocalFiles::new(path)), String::new()));
    }
    // A pattern may have characters of its own in any part of a path.
    let is_plain = |part: &Path| !part.to_string_lossy().contains(['*', '?', '[', '{']);
    if is_plain(path) && matches!(path.try_exists(), Ok(false)) {
        let cause = "there is no such file or folder".to_owned();
        return Err(StorageError { path: shown.to_owned(), offset: None, kind: StorageErrorKind::NotFound, cause });
    }
    let folder = path.ancestors().skip(1).find(|folder| is_plain(folder)).unwrap_or(Path::new(""));
    let rest = path.strip_prefix(folder).unwrap_or(path).to_string_lossy().into_owned();
    let root = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    Ok((Arc::new(LocalFiles::new(root)), rest))
}

#[cfg(feature = "remote")]
fn open_remote(
    url: &str,
    scheme: &str,
    authority: &str,
    path: &str,
    options: &StorageOptions,
) -> Result<(Arc<dyn Storage>, String), StorageError> {
    let opened = super::remote::open(scheme, authority, path, options).map_err(|cause| cannot(url, &cause))?;
    Ok((with_cache(opened.storage, &opened.identity, opened.counters, options), opened.path))
}

/// A storage through a cache, unless the options keep nothing.
#[cfg(feature = "remote")]
fn with_cache(
    storage: Arc<dyn Storage>,
    identity: &str,
    counters: Arc<StorageCounters>,
    options: &StorageOptions,
) -> Arc<dyn Storage> {
    use super::cache::CachedStorage;

    match options.cache.is_off() {
        true => storage,
        false => Arc::new(CachedStorage::new(storage, identity, &options.cache, counters)),
    }
}

#[cfg(not(feature = "remote"))]
fn open_remote(
    url: &str,
    scheme: &str,
    _authority: &str,
    _path: &str,
    _options: &StorageOptions,
) -> Result<(Arc<dyn Storage>, String), StorageError> {
    Err(cannot(url, &format!("this build reads files only; {scheme}:// needs one with the feature `remote`")))
}

/// That a URL cannot be opened, and why.
fn cannot(url: &str, cause: &str) -> StorageError {
    StorageError { path: shown(url), offset: None, kind: StorageErrorKind::Failed, cause: cause.to_owned() }
}

/// A URL without what may be secret: user name, password and query of http, and passwords of all others.
pub(super) fn shown(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let is_web = scheme == "http" || scheme == "https";
    let authority = match authority.rsplit_once('@') {
        Some((_, host)) if is_web => host.to_owned(),
        Some((user, host)) => format!("{}@{host}", user.split(':').next().unwrap_or_default()),
        None => authority.to_owned(),
    };
    let path = if is_web { path.split(['?', '#']).next().unwrap_or_default() } else { path };
    format!("{scheme}://{authority}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open_one(url: &str) -> Result<(Arc<dyn Storage>, String), StorageError> {
        open(url, &StorageOptions { variables: StorageVariables::default(), ..StorageOptions::default() })
    }

    #[test]
    fn paths_and_file_urls_are_files() {
        let folder = farandole_testing::Folder::new();
        std::fs::write(folder.join("one"), "text").unwrap();
        let root = folder.display();
        for url in [folder.file("one"), format!("file://{root}/one"), format!("file://localhost{root}/one")] {
            let (storage, path) = open_one(&url).unwrap();
            let mut text = [0; 4];
            storage.read_at(&path, 0, &mut text).unwrap();
            assert_eq!(&text, b"text");
        }
        let (storage, path) = open_one(&root.to_string()).unwrap();
        assert_eq!((storage.list(&path).unwrap()[0].path.as_str(), path.as_str()), ("one", ""));
        assert!(open_one("file://relative/path").unwrap_err().to_string().contains("three slashes"));
    }

    #[test]
    fn a_path_that_leads_to_nothing_is_named_and_a_pattern_may() {
        let folder = farandole_testing::Folder::new();
        std::fs::write(folder.join("odd[1].tar"), "text").unwrap();
        for url in [folder.file("nothing/one"), format!("file://{}", folder.file("nothing/one"))] {
            let error = open_one(&url).unwrap_err();
            assert_eq!(error.kind, StorageErrorKind::NotFound);
            assert_eq!(error.to_string(), format!("{}: there is no such file or folder", folder.file("nothing/one")));
        }
        for there in ["odd[1].tar", "*.tar", "{a,b}.tar", "s-??/x", ""] {
            assert!(open_one(&folder.file(there)).is_ok(), "{there}");
        }
    }

    #[test]
    fn what_is_not_known_is_named() {
        let error = open_one("ftp://host/path").unwrap_err().to_string();
        assert!(error.starts_with("ftp://host/path: "), "{error}");
        assert!(open_one("s3://").unwrap_err().to_string().contains("a name is missing"));
    }

    #[test]
    fn no_secret_of_a_url_is_shown() {
        assert_eq!(shown("https://me:pass@host:1/a/b?sig=secret#part"), "https://host:1/a/b");
        assert_eq!(shown("abfs://c@a.dfs.core.windows.net/x"), "abfs://c@a.dfs.core.windows.net/x");
        assert_eq!(shown("abfs://c:pass@a.dfs.core.windows.net/x"), "abfs://c@a.dfs.core.windows.net/x");
        assert_eq!(shown("s3://bucket/what?"), "s3://bucket/what?");
        let error = open_one("https://me:pass@host/a?sig=secret").unwrap_err().to_string();
        assert!(!error.contains("pass") && !error.contains("secret"), "{error}");
        let set = StorageVariables::from_iter([("AWS_SECRET_ACCESS_KEY".to_owned(), "hidden".to_owned())]);
        assert!(!format!("{set:?}").contains("hidden"));
    }
}
