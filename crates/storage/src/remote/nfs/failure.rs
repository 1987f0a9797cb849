//! What can go wrong with an NFS server, as a type and in words: [`Failure`].
//!
//! **Invariant:** each text names what was tried and, where there is something, what the user can do.

use std::time::Duration;

use bytes::Bytes;

use super::super::super::StorageErrorKind;
use super::protocol::FileKind;
use super::rpc::Refusal;
use super::xdr::Garbled;

/// Statuses of NFS version 3 and of MOUNT that mean something here; those of errno have its numbers.
pub(super) mod status {
    pub(in super::super) const PERM: u32 = 1;
    pub(in super::super) const NOENT: u32 = 2;
    pub(in super::super) const IO: u32 = 5;
    pub(in super::super) const ACCES: u32 = 13;
    pub(in super::super) const NOTDIR: u32 = 20;
    pub(in super::super) const STALE: u32 = 70;
    pub(in super::super) const BADHANDLE: u32 = 10_001;
    pub(in super::super) const BAD_COOKIE: u32 = 10_003;
    pub(in super::super) const SERVERFAULT: u32 = 10_006;
    pub(in super::super) const JUKEBOX: u32 = 10_008;
}

/// Why there are no bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// A host name has no address.
    NoAddress(String),
    /// No connection to an address.
    Connect(String),
    /// Nothing arrived for so long.
    Silent(Duration),
    /// A connection broke.
    Broken(String),
    /// A connection ended, for this cause, within an answer that begins like this.
    Begun(Box<Failure>, Bytes),
    /// The portmapper knows no such program.
    NotRegistered(&'static str),
    /// A program did not carry out a call.
    Refused(&'static str, Refusal),
    /// No export has the path; these are there.
    NoExport { path: String, exports: Vec<String> },
    /// An export may not be mounted.
    MountRefused { export: String, status: u32 },
    /// An export takes no user's number as proof.
    OtherProof(String),
    /// NFS answers with this status.
    Status(u32),
    /// The path leads to something else than it should.
    NotA { wanted: FileKind, found: FileKind },
    /// A link leads to links without end.
    Links,
    /// A name that could not be found again by its path.
    NotUtf8(String),
    /// The file has another content than before.
    Changed,
    /// The file ends at this byte, and that is within the range.
    Ends(u64),
    /// An answer without bytes, and without the end of the file.
    Empty,
    /// Time is over.
    TimedOut,
}

impl Failure {
    pub(super) fn broken(cause: &str) -> Failure {
        Failure::Broken(cause.to_owned())
    }

    /// Whether another attempt may succeed.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Failure::NoAddress(_) | Failure::Connect(_) | Failure::Silent(_) | Failure::Broken(_) => true,
            Failure::Begun(..) | Failure::Empty => true,
            // A server that is being started registers its programs one after the other.
            Failure::NotRegistered(_) | Failure::Refused(_, Refusal::NoProgram | Refusal::SystemError) => true,
            Failure::Status(found) => {
                [status::IO, status::SERVERFAULT, status::JUKEBOX].contains(found) || self.is_stale()
            }
            _ => false,
        }
    }

    /// Whether a connection is at fault, and not what was asked for on it.
    pub(super) fn is_about_connection(&self) -> bool {
        matches!(self, Failure::Connect(_) | Failure::Silent(_) | Failure::Broken(_) | Failure::Begun(..))
    }

    /// Whether the server no longer knows a handle: the path must be looked up again.
    pub(super) fn is_stale(&self) -> bool {
        [Failure::Status(status::STALE), Failure::Status(status::BADHANDLE)].contains(self)
    }

    /// Whether there is nothing of that name.
    pub(super) fn is_missing(&self) -> bool {
        [Failure::Status(status::NOENT), Failure::Status(status::NOTDIR)].contains(self)
    }

    /// The kind of a failure, and its cause in words.
    pub(super) fn explain(&self) -> (StorageErrorKind, String) {
        use StorageErrorKind::{Denied, Failed, NotFound, TimedOut, Truncated};
        match self {
            Failure::NoAddress(cause) => (Failed, format!("no address is known for {cause}; is the host right?")),
            Failure::Connect(cause) => (
                Failed,
                format!(
                    "no connection to {cause}; is the host right, does NFS run there, and does a firewall let its \
                     ports through (111, 2049 and that of mountd, or those of ?nfsport= and ?mountport=)?"
                ),
            ),
            Failure::Silent(limit) => {
                (TimedOut, format!("the server was silent for {} seconds, again and again", limit.as_secs_f32()))
            }
            Failure::Broken(cause) => (Failed, format!("the connection broke: {cause}")),
            Failure::Begun(failure, _) => failure.explain(),
            Failure::NotRegistered(program) => (
                Failed,
                format!(
                    "the server's portmapper knows no {program} version 3 on TCP: is NFSv3 switched on there? A \
                     server without a portmapper needs ?nfsport=2049&mountport=PORT"
                ),
            ),
            Failure::Refused(program, refusal) => explain_refusal(program, *refusal),
            Failure::NoExport { path, exports } if exports.is_empty() => {
                (NotFound, format!("the server exports nothing to this machine that holds {path}, as far as it tells"))
            }
            Failure::NoExport { path, exports } => {
                let exports = exports.join(", ");
                (
                    NotFound,
                    format!("the server exports nothing to this machine that holds {path}; it exports {exports}"),
                )
            }
            Failure::MountRefused { export, status: status::ACCES | status::PERM } => (
                Denied,
                format!(
                    "the server does not let this machine mount {export}: its exports name who may (some also ask \
                     for a port that only root has)"
                ),
            ),
            Failure::MountRefused { export, status } => {
                (Failed, format!("the server does not mount {export}: {}", name(*status)))
            }
            Failure::OtherProof(export) => (
                Denied,
                format!(
                    "the server does not take a user's number as proof for {export}: an export with sec=krb5 can be \
                     read where it is mounted only"
                ),
            ),
            Failure::Status(status::NOENT) => (NotFound, "there is no such file".to_owned()),
            Failure::Status(status::NOTDIR) => (NotFound, "a part of its path is no folder".to_owned()),
            Failure::Status(status @ (status::ACCES | status::PERM)) => (
                Denied,
                format!(
                    "the server does not let this user read it ({}); the user is the one that runs this process, or \
                     that of ?uid=NUMBER&gid=NUMBER, and servers take root for nobody (root_squash)",
                    name(*status)
                ),
            ),
            Failure::Status(status) => (Failed, format!("the server answers {}", name(*status))),
            Failure::NotA { wanted, found } => (Failed, format!("it is {}, and not {}", words(*found), words(*wanted))),
            Failure::Links => (Failed, "links lead to links without end".to_owned()),
            Failure::NotUtf8(name) => (Failed, format!("the name {name} is not written in UTF-8: rename it")),
            Failure::Changed => (
                Failed,
                "the file has changed since it was first looked at; start again, and write new versions of a data \
                 set under new names"
                    .to_owned(),
            ),
            Failure::Ends(bytes) => (Truncated, format!("the file has only {bytes} bytes")),
            Failure::Empty => (Failed, "answers have no bytes, again and again".to_owned()),
            Failure::TimedOut => (
                TimedOut,
                "no complete answer in time, with all attempts (FARANDOLE_STORAGE_TIMEOUT_SECONDS)".to_owned(),
            ),
        }
    }
}

impl From<Garbled> for Failure {
    fn from(garbled: Garbled) -> Failure {
        Failure::Refused("NFS", Refusal::Garbled(garbled.0))
    }
}

fn explain_refusal(program: &str, refusal: Refusal) -> (StorageErrorKind, String) {
    match refusal {
        // RPCSEC_GSS, and credentials that are too weak.
        Refusal::Credentials(number) => (
            StorageErrorKind::Denied,
            format!(
                "the server's {program} does not take a user's number as proof (error {number} of RPC): it wants a \
                 port that only root has, or Kerberos (sec=krb5), with which an export can be read where it is mounted \
                 only"
            ),
        ),
        Refusal::NoProgram => (StorageErrorKind::Failed, format!("the server has no {program} on this port")),
        Refusal::OtherVersions { low, high } => (
            StorageErrorKind::Failed,
            format!(
                "the server has the versions {low} to {high} of {program}, and this is a client of NFSv3: switch it \
                 on there, or mount the export and name the files by their path"
            ),
        ),
        Refusal::NoProcedure => {
            (StorageErrorKind::Failed, format!("the server's {program} cannot do what reading needs"))
        }
        Refusal::Misunderstood => (StorageErrorKind::Failed, format!("the server's {program} does not understand us")),
        Refusal::SystemError => (StorageErrorKind::Failed, format!("the server's {program} is in trouble itself")),
        Refusal::Garbled(cause) => {
            (StorageErrorKind::Failed, format!("an answer of the server's {program} cannot be read: {cause}"))
        }
    }
}

fn words(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "a file",
        FileKind::Folder => "a folder",
        FileKind::Link => "a link",
        FileKind::Other => "a pipe or a device",
    }
}

/// What RFC 1813 calls a status.
fn name(number: u32) -> String {
    let name = match number {
        status::PERM => "NFS3ERR_PERM",
        status::NOENT => "NFS3ERR_NOENT",
        status::IO => "NFS3ERR_IO",
        status::ACCES => "NFS3ERR_ACCES",
        status::NOTDIR => "NFS3ERR_NOTDIR",
        status::STALE => "NFS3ERR_STALE",
        status::BADHANDLE => "NFS3ERR_BADHANDLE",
        status::BAD_COOKIE => "NFS3ERR_BAD_COOKIE",
        status::SERVERFAULT => "NFS3ERR_SERVERFAULT",
        status::JUKEBOX => "NFS3ERR_JUKEBOX",
        _ => return format!("status {number} of NFSv3"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_is_tried_again_and_what_does_not_is_not() {
        for passes in [
            Failure::broken("reset"),
            Failure::Silent(Duration::from_secs(1)),
            Failure::Status(status::JUKEBOX),
            Failure::Status(status::STALE),
            Failure::NotRegistered("NFS"),
            Failure::Begun(Box::new(Failure::broken("reset")), Bytes::new()),
        ] {
            assert!(passes.may_pass(), "{passes:?}");
        }
        for stays in [
            Failure::Status(status::NOENT),
            Failure::Status(status::ACCES),
            Failure::Changed,
            Failure::Refused("NFS", Refusal::OtherVersions { low: 4, high: 4 }),
            Failure::NoExport { path: "/a".to_owned(), exports: Vec::new() },
        ] {
            assert!(!stays.may_pass(), "{stays:?}");
        }
    }

    #[test]
    fn words_name_the_cause() {
        let (kind, text) = Failure::Refused("NFS", Refusal::OtherVersions { low: 4, high: 4 }).explain();
        assert!(kind == StorageErrorKind::Failed && text.contains("NFSv3"), "{text}");
        let (kind, text) = Failure::Status(status::ACCES).explain();
        assert!(kind == StorageErrorKind::Denied && text.contains("NFS3ERR_ACCES"), "{text}");
        assert_eq!(Failure::Status(28).explain().1, "the server answers status 28 of NFSv3");
    }
}
