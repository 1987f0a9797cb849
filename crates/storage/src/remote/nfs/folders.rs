//! All files below a folder of an NFS server: [`list`].
//!
//! As with files of this machine (`local`), links are followed, but never into a folder that the walk is already in,
//! and what is hidden is passed over. Folders that no wanted path can lie in are not looked at.

use super::super::patience::Patience;
use super::failure::{Failure, status};
use super::protocol::{Attributes, Entry, FileKind};
use super::server::{Located, Server, holds};
use super::transfer::insist;
use crate::ObjectVersion;
use crate::counters::StorageCounters;

/// Folders within folders, at most. Nobody keeps data deeper.
const DEPTH: usize = 64;
/// What is asked of a folder at once: some hundred names with their attributes.
const PAGE_BYTES: u32 = 64 << 10;
/// What is asked for after connections broke within answers: a name or two of any length.
const MIN_PAGE_BYTES: u32 = 1 << 10;

/// What a walk needs at every step.
struct Walk<'a> {
    server: &'a Server,
    patience: Patience,
    counters: &'a StorageCounters,
    prefix: &'a str,
    found: Vec<(String, ObjectVersion)>,
}

/// A folder that is still to be looked at, and the numbers of those that lead to it.
struct Ahead {
    path: String,
    within: Vec<u64>,
}

/// All files whose path begins with `prefix`, in the order of their paths' bytes, and their contents.
pub(super) async fn list(
    server: &Server,
    patience: Patience,
    counters: &StorageCounters,
    prefix: &str,
) -> Result<Vec<(String, ObjectVersion)>, Failure> {
    let prefix = prefix.trim_start_matches('/');
    let mut walk = Walk { server, patience, counters, prefix, found: Vec::new() };
    let mut ahead = Vec::new();
    for path in walk.starts().await? {
        ahead.push(Ahead { path, within: Vec::new() });
    }
    while let Some(folder) = ahead.pop() {
        walk.folder(folder, &mut ahead).await?;
    }
    walk.found.sort_by(|one, other| one.0.as_bytes().cmp(other.0.as_bytes()));
    walk.found.dedup_by(|one, other| one.0 == other.0);
    Ok(walk.found)
}

impl Walk<'_> {
    /// The folders that the walk begins in: the last one that the prefix names, or the exports that begin with it.
    async fn starts(&self) -> Result<Vec<String>, Failure> {
        let folder = self.prefix.rsplit_once('/').map_or("", |(folder, _)| folder);
        let exports = self.insist(|| self.server.exports_below(self.prefix)).await?;
        // Of an export within another one only the outer one is walked.
        let is_outer = |export: &&String| !exports.iter().any(|other| other != *export && holds(other, export));
        let mut starts: Vec<String> = exports.iter().filter(is_outer).cloned().collect();
        match self.locate(folder).await {
            Ok(_) => starts.push(folder.to_owned()),
            Err(failure) if failure.is_missing() => {}
            // The folder is above all exports; perhaps the whole prefix is one that the server does not list.
            Err(Failure::NoExport { .. } | Failure::MountRefused { .. }) if !starts.is_empty() => {}
            Err(failure @ (Failure::NoExport { .. } | Failure::MountRefused { .. })) => {
                match self.locate(self.prefix.trim_end_matches('/')).await {
                    Ok(located) if located.attributes.kind == FileKind::Folder => {
                        starts.push(self.prefix.trim_end_matches('/').to_owned());
                    }
                    Ok(_) => return Err(failure),
                    Err(inner) => return Err(inner),
                }
            }
            Err(failure) => return Err(failure),
        }
        Ok(starts)
    }

    async fn folder(&mut self, folder: Ahead, ahead: &mut Vec<Ahead>) -> Result<(), Failure> {
        let Ahead { path: folder, mut within } = folder;
        let located = self.locate(&folder).await?;
        let number = located.attributes.file_id;
        if located.attributes.kind != FileKind::Folder || within.contains(&number) || within.len() == DEPTH {
            return Ok(());
        }
        within.push(number);
        for entry in self.entries(&folder).await? {
            if entry.name.starts_with(b".") {
                continue;
            }
            let join = |name: &str| if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
            let Ok(name) = std::str::from_utf8(&entry.name) else {
                return Err(Failure::NotUtf8(join(&String::from_utf8_lossy(&entry.name))));
            };
            let path = join(name);
            if !path.starts_with(self.prefix) && !holds(&path, self.prefix) {
                continue;
            }
            let Some(attributes) = self.attributes(&entry, &path).await? else { continue };
            match attributes.kind {
                FileKind::Folder => ahead.push(Ahead { path, within: within.clone() }),
                FileKind::File if path.starts_with(self.prefix) => self.found.push((path, attributes.version())),
                _ => {}
            }
        }
        Ok(())
    }

    /// What an entry is, links followed; nothing for a file that has gone meanwhile, or a link that leads nowhere.
    async fn attributes(&self, entry: &Entry, path: &str) -> Result<Option<Attributes>, Failure> {
        match entry.attributes {
            Some(attributes) if attributes.kind != FileKind::Link => Ok(Some(attributes)),
            _ => match self.locate(path).await {
                Ok(located) => Ok(Some(located.attributes)),
                Err(failure) if failure.is_missing() => Ok(None),
                // A link to something that is not exported leads nowhere, too.
                Err(Failure::Links | Failure::NoExport { .. } | Failure::MountRefused { .. }) => Ok(None),
                Err(failure) => Err(failure),
            },
        }
    }

    /// All names of a folder, page by page. A page is asked for again, and a smaller one, when its answer broke.
    async fn entries(&self, path: &str) -> Result<Vec<Entry>, Failure> {
        let mut entries: Vec<Entry> = Vec::new();
        let (mut cookie, mut verifier) = (0, [0; 8]);
        loop {
            let mut attempts = 0;
            let page = self.insist(|| {
                let most_bytes = (PAGE_BYTES >> u32::min(attempts, 31)).max(MIN_PAGE_BYTES);
                attempts += 1;
                async move {
                    let folder = self.server.locate(path).await?.handle;
                    self.server.page(&folder, cookie, verifier, most_bytes).await
                }
            });
            let page = match page.await {
                // The folder has changed, and the server cannot go on in it.
                Err(Failure::Status(status::BAD_COOKIE)) if cookie != 0 => {
                    (cookie, verifier) = (0, [0; 8]);
                    entries.clear();
                    continue;
                }
                page => page?,
            };
            verifier = page.verifier;
            let last = page.entries.last().map(|entry| entry.cookie);
            entries.extend(page.entries);
            match last {
                Some(last) if !page.at_end => cookie = last,
                _ => return Ok(entries),
            }
        }
    }

    async fn locate(&self, path: &str) -> Result<Located, Failure> {
        self.insist(|| self.server.locate(path)).await
    }

    async fn insist<T, F: Future<Output = Result<T, Failure>>>(
        &self,
        attempt: impl FnMut() -> F,
    ) -> Result<T, Failure> {
        insist(self.server, self.patience, self.counters, attempt).await
    }
}
