//! An NFS server: its ports, its exports, and the way from a path to a file: [`Server`].
//!
//! NFSv3 keeps no state for clients: a handle that was once looked up names its file on every connection, also after
//! the server was started again. So a broken connection is replaced by a new one and nothing else. What was learned
//! (ports, exports, handles of folders and files) is kept, and forgotten when the server says that a handle is stale.
//!
//! **Invariant:** each function makes one attempt; what it learned on the way is kept, so that the next attempt goes on
//! from there. At most so many calls are under way as the options allow.
//!
//! What is deliberately not here: locks, writing, and telling the server that an export is no longer in use (UMNT),
//! which only a list for people would show.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::Semaphore;

use super::super::super::StorageOptions;
use super::super::super::counters::{Count, StorageCounters};
use super::super::key;
use super::connection::{Connection, dial};
use super::failure::{Failure, status};
use super::place::NfsPlace;
use super::protocol::{self, Attributes, FileKind, Found, Handle, Page, ReadBytes};
use super::rpc::{AUTH_NONE, AUTH_SYS, Caller, Program};

/// Where a portmapper always is.
const PORTMAP_PORT: u16 = 111;
/// What is asked for at once: a server that prefers more gets no faster, and an answer must fit a record.
const MAX_READ_BYTES: u32 = 1 << 20;
/// A server that prefers less than a page is not believed.
const MIN_READ_BYTES: u32 = 4 << 10;
/// Handles that are kept: some 10 MB. What is beyond costs a question more.
const MAX_HANDLES: usize = 1 << 16;
/// Links on one way, as Linux counts.
const MAX_LINKS: u32 = 40;

/// See the module's text.
pub(super) struct Server {
    place: NfsPlace,
    options: StorageOptions,
    caller: Caller,
    counters: Arc<StorageCounters>,
    permits: Semaphore,
    /// Whoever finds no connection makes one, and the others wait for it.
    line: tokio::sync::Mutex<Line>,
    /// Tasks of the one thread that drives requests add and look up.
    learned: Mutex<Learned>,
}

/// The connection that all calls of NFS share.
#[derive(Default)]
struct Line {
    connection: Option<Arc<Connection>>,
    /// When connecting failed last, and why.
    failed: Option<(Instant, Failure)>,
}

#[derive(Default)]
struct Learned {
    nfs_port: Option<u16>,
    exports: Option<Vec<String>>,
    /// The folders of exports that were mounted, by the export's path.
    roots: HashMap<String, Handle>,
    /// By a hash of the path.
    handles: HashMap<u128, Handle>,
    read_bytes: Option<u32>,
}

/// A file at the end of a path.
#[derive(Clone, Debug)]
pub(super) struct Located {
    pub(super) handle: Handle,
    pub(super) attributes: Attributes,
    /// Its path without links.
    real: String,
}

impl Server {
    pub(super) fn new(place: NfsPlace, options: &StorageOptions, counters: Arc<StorageCounters>) -> Server {
        Server {
            caller: place.caller(),
            place,
            options: options.clone(),
            counters,
            permits: Semaphore::new(options.connections.max(1)),
            line: tokio::sync::Mutex::default(),
            learned: Mutex::default(),
        }
    }

    /// Follows a path to its end.
    pub(super) async fn locate(&self, path: &str) -> Result<Located, Failure> {
        self.locate_within(normal(path), MAX_LINKS).await
    }

    /// The handle of a file: one that is known, or the one at the end of its path, with attributes.
    pub(super) async fn handle(&self, path: &str) -> Result<Found, Failure> {
        if let Some(handle) = self.learned().handles.get(&key(path)) {
            return Ok(Found { handle: handle.clone(), attributes: None });
        }
        let located = self.locate(path).await?;
        self.keep_handle(path, &located.handle);
        Ok(Found { handle: located.handle, attributes: Some(located.attributes) })
    }

    pub(super) async fn attributes(&self, handle: &Handle) -> Result<Attributes, Failure> {
        let results = self.ask(protocol::GETATTR, &protocol::name_file(handle)).await?;
        protocol::attributes_of(results)?.map_err(Failure::Status)
    }

    /// Reads some bytes: as many as the server likes to send at once, or fewer.
    pub(super) async fn read(&self, handle: &Handle, offset: u64, bytes: u64) -> Result<ReadBytes, Failure> {
        let most = self.learned().read_bytes.unwrap_or(MAX_READ_BYTES);
        let count = u32::try_from(bytes).unwrap_or(most).min(most);
        let results = self.ask(protocol::READ, &protocol::read(handle, offset, count)).await?;
        protocol::read_bytes(results)?.map_err(Failure::Status)
    }

    /// A part of a folder, of at most so many bytes.
    pub(super) async fn page(
        &self,
        folder: &Handle,
        cookie: u64,
        verifier: [u8; 8],
        most_bytes: u32,
    ) -> Result<Page, Failure> {
        let arguments = protocol::list(folder, cookie, verifier, most_bytes);
        let results = self.ask(protocol::READDIRPLUS, &arguments).await?;
        protocol::page(results)?.map_err(Failure::Status)
    }

    /// How many bytes the server likes to send at once; learned with the first file.
    pub(super) fn read_bytes(&self) -> u64 {
        u64::from(self.learned().read_bytes.unwrap_or(MAX_READ_BYTES))
    }

    /// The exports whose folders lie below what begins with this path.
    pub(super) async fn exports_below(&self, prefix: &str) -> Result<Vec<String>, Failure> {
        let exports = self.exports().await?;
        Ok(exports.iter().map(|export| normal(export)).filter(|export| export.starts_with(prefix)).collect())
    }

    /// Forgets handles: the server does not know one of them any more.
    pub(super) fn forget_handles(&self) {
        let mut learned = self.learned();
        learned.roots.clear();
        learned.handles.clear();
    }

    fn learned(&self) -> MutexGuard<'_, Learned> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep_handle(&self, path: &str, handle: &Handle) {
        let mut learned = self.learned();
        if learned.handles.len() >= MAX_HANDLES {
            learned.handles.clear();
        }
        learned.handles.insert(key(path), handle.clone());
    }

    /// The file at the end of a path that has no empty parts and no dots.
    async fn locate_within(&self, path: String, links: u32) -> Result<Located, Failure> {
        let export = self.export_of(&path).await?;
        if path == normal(&export) {
            let handle = self.root(&export).await?;
            let attributes = self.attributes(&handle).await?;
            return Ok(Located { handle, attributes, real: path });
        }
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", &path));
        let known = self.learned().handles.get(&key(parent)).cloned();
        let (folder, real) = match known {
            Some(folder) => (folder, parent.to_owned()),
            None => {
                let located = Box::pin(self.locate_within(parent.to_owned(), links)).await?;
                match located.attributes.kind {
                    FileKind::Folder if located.real == parent => self.keep_handle(parent, &located.handle),
                    FileKind::Folder => {}
                    _ => return Err(Failure::Status(status::NOTDIR)),
                }
                (located.handle, located.real)
            }
        };
        let results = self.ask(protocol::LOOKUP, &protocol::look_up(&folder, name)).await?;
        let Found { handle, attributes } = protocol::found(results)?.map_err(Failure::Status)?;
        let attributes = match attributes {
            Some(attributes) => attributes,
            None => self.attributes(&handle).await?,
        };
        if attributes.kind != FileKind::Link {
            let real = if real.is_empty() { name.to_owned() } else { format!("{real}/{name}") };
            return Ok(Located { handle, attributes, real });
        }
        let links = links.checked_sub(1).ok_or(Failure::Links)?;
        let target = self.link_target(&handle).await?;
        // An absolute one is a path of the server.
        let target = if target.starts_with('/') { normal(&target) } else { normal(&format!("{real}/{target}")) };
        Box::pin(self.locate_within(target, links)).await
    }

    async fn link_target(&self, link: &Handle) -> Result<String, Failure> {
        let results = self.ask(protocol::READLINK, &protocol::name_file(link)).await?;
        let target = protocol::link(results)?.map_err(Failure::Status)?;
        String::from_utf8(target.to_vec()).map_err(|error| Failure::NotUtf8(error.to_string()))
    }

    /// The export that holds a path: the longest one that the server lists, or else the shortest beginning of the path
    /// that can be mounted, for servers that do not say what they export.
    async fn export_of(&self, path: &str) -> Result<String, Failure> {
        let exports = self.exports().await?;
        let holding = exports.iter().filter(|export| holds(&normal(export), path));
        if let Some(export) = holding.max_by_key(|export| export.len()) {
            return Ok(export.clone());
        }
        let mounted = self.learned().roots.keys().find(|export| holds(&normal(export), path)).cloned();
        if let Some(export) = mounted {
            return Ok(export);
        }
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        for end in ends.filter(|end| *end > 0) {
            let export = format!("/{}", &path[..end]);
            match self.root(&export).await {
                Ok(_) => return Ok(export),
                // Servers answer alike for what is not there, what is no export, and what is none for this machine.
                Err(Failure::MountRefused { .. }) => {}
                Err(other) => return Err(other),
            }
        }
        // The next one who asks sees what was exported meanwhile.
        self.learned().exports = None;
        Err(Failure::NoExport { path: format!("/{path}"), exports })
    }

    async fn exports(&self) -> Result<Vec<String>, Failure> {
        if let Some(exports) = self.learned().exports.clone() {
            return Ok(exports);
        }
        let results = self.ask_mount(protocol::EXPORT, &[]).await?;
        let exports = protocol::exports(results)?;
        self.learned().exports = Some(exports.clone());
        Ok(exports)
    }

    /// The folder of an export.
    async fn root(&self, export: &str) -> Result<Handle, Failure> {
        if let Some(handle) = self.learned().roots.get(export) {
            return Ok(handle.clone());
        }
        let results = self.ask_mount(protocol::MNT, &protocol::name_path(export)).await?;
        let refused = |status| Failure::MountRefused { export: export.to_owned(), status };
        let (handle, flavors) = protocol::mounted(results)?.map_err(refused)?;
        if !flavors.is_empty() && !flavors.iter().any(|flavor| *flavor == AUTH_NONE || *flavor == AUTH_SYS) {
            return Err(Failure::OtherProof(export.to_owned()));
        }
        let results = self.ask(protocol::FSINFO, &protocol::name_file(&handle)).await?;
        // A server that does not say what it likes gets what most like.
        let preferred = protocol::preferred_read_bytes(results)?.unwrap_or(MAX_READ_BYTES);
        let mut learned = self.learned();
        let before = learned.read_bytes.unwrap_or(MAX_READ_BYTES);
        learned.read_bytes = Some(preferred.clamp(MIN_READ_BYTES, before));
        learned.roots.insert(export.to_owned(), handle.clone());
        Ok(handle)
    }

    /// A call of NFS, on the connection that all share.
    async fn ask(&self, procedure: u32, arguments: &[u8]) -> Result<Bytes, Failure> {
        let _permit = self.permits.acquire().await.expect("invariant: nobody closes the semaphore");
        let connection = self.connection().await?;
        self.counters.count(Count::Request);
        connection.call(protocol::NFS, procedure, &self.caller, arguments).await
    }

    async fn connection(&self) -> Result<Arc<Connection>, Failure> {
        let asked = Instant::now();
        let mut line = self.line.lock().await;
        if let Some(connection) = line.connection.as_ref().filter(|connection| !connection.has_ended()) {
            return Ok(Arc::clone(connection));
        }
        // Whoever waited while another one tried in vain does not try, too: all of them would do so in turn.
        if let Some((_, failure)) = line.failed.as_ref().filter(|(at, _)| *at >= asked) {
            return Err(failure.clone());
        }
        let connected = self.connect().await.map(Arc::new);
        line.connection = connected.as_ref().ok().cloned();
        line.failed = connected.as_ref().err().map(|failure| (Instant::now(), failure.clone()));
        connected
    }

    async fn connect(&self) -> Result<Connection, Failure> {
        let known = self.place.nfs_port.or(self.learned().nfs_port);
        let port = match known {
            Some(port) => port,
            None => self.port_of(protocol::NFS).await?,
        };
        let connection = self.dial(port).await;
        // A server that is started again may have another port.
        self.learned().nfs_port = connection.as_ref().ok().map(|_| port);
        connection
    }

    /// A call of MOUNT, on a connection of its own: there are few.
    async fn ask_mount(&self, procedure: u32, arguments: &[u8]) -> Result<Bytes, Failure> {
        let port = match self.place.mount_port {
            Some(port) => port,
            None => self.port_of(protocol::MOUNT).await?,
        };
        let connection = self.dial(port).await?;
        self.counters.count(Count::Request);
        connection.call(protocol::MOUNT, procedure, &self.caller, arguments).await
    }

    async fn port_of(&self, program: Program) -> Result<u16, Failure> {
        let connection = self.dial(PORTMAP_PORT).await?;
        self.counters.count(Count::Request);
        let arguments = protocol::ask_port(program);
        let asked = connection.call(protocol::PORTMAP, protocol::GETPORT, &self.caller, &arguments);
        let port = protocol::port(asked.await?)?;
        u16::try_from(port).ok().filter(|port| *port != 0).ok_or(Failure::NotRegistered(program.name))
    }

    async fn dial(&self, port: u16) -> Result<Connection, Failure> {
        let stream = dial(&self.place.host, port, self.options.connect_timeout).await?;
        Ok(Connection::new(stream, self.options.silence_timeout))
    }
}

/// A path without a slash at either end, empty parts and dots.
pub(super) fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Whether a path is a folder, or lies in it.
pub(super) fn holds(folder: &str, path: &str) -> bool {
    folder.is_empty() || path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_brought_into_one_form() {
        assert_eq!(normal("/a//b/./c/"), "a/b/c");
        assert_eq!(normal("a/../../b"), "b");
        assert_eq!(normal("/"), "");
        assert!(holds("a/b", "a/b") && holds("a/b", "a/b/c") && holds("", "a"));
        assert!(!holds("a/b", "a/bc") && !holds("a/b", "a"));
    }
}
