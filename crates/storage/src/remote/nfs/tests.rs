//! Servers that are unlike the one that `tests/nfs.rs` starts: a server of a few lines that answers as a test wants.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::failure::status;
use super::protocol::{self, MOUNT};
use super::rpc::LAST_FRAGMENT;
use super::xdr::{Decoder, Encoder};
use crate::{StorageError, StorageErrorKind, StorageOptions, StorageVariables, open};

/// How the server differs from others.
#[derive(Clone, Debug, Default)]
struct Manner {
    /// What the next reads are answered with, if it is not 0.
    statuses: VecDeque<u32>,
    /// A read has no more bytes than this.
    most_bytes: usize,
    /// Bytes of an answer's fragments, if it has several.
    fragment_bytes: usize,
    /// Answers to reads have no attributes.
    without_attributes: bool,
    /// The file changes its time with each read.
    changes: bool,
    /// How often the file was read.
    reads: u32,
    /// Calls of NFS are answered by this status of RPC and its words.
    refusal: Option<Vec<u32>>,
}

/// One file, `/exported/there/file`, of an export that no list has.
const EXPORT: &str = "/exported/there";

fn contents() -> Vec<u8> {
    (0..10_000_u32).map(|at| (at % 253) as u8).collect()
}

fn start(manner: Manner) -> (u16, Arc<Mutex<Manner>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let manner = Arc::new(Mutex::new(manner));
    let of_thread = Arc::clone(&manner);
    // It ends with the process, which runs one test.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let manner = Arc::clone(&of_thread);
            std::thread::spawn(move || serve(&stream, &manner));
        }
    });
    (port, manner)
}

fn serve(mut stream: &TcpStream, manner: &Mutex<Manner>) {
    let mut mark = [0; 4];
    while stream.read_exact(&mut mark).is_ok() {
        let mut call = vec![0; (u32::from_be_bytes(mark) & !LAST_FRAGMENT) as usize];
        stream.read_exact(&mut call).unwrap();
        let mut call = Decoder::new(call.into());
        let xid = call.u32().unwrap();
        call.fixed(8).unwrap();
        let (program, _version, procedure) = (call.u32().unwrap(), call.u32().unwrap(), call.u32().unwrap());
        call.u32().unwrap();
        call.opaque(400).unwrap();
        call.u64().unwrap();
        let mut manner = manner.lock().unwrap();
        let head = Encoder::default().u32(xid).u32(1).u32(0).u64(0);
        let answer = match &manner.refusal {
            Some(words) if program != MOUNT.number => {
                words.iter().fold(head, |answer, word| answer.u32(*word)).finish()
            }
            _ if program == MOUNT.number => [head.u32(0).finish(), mount(procedure, &mut call)].concat(),
            _ => [head.u32(0).finish(), nfs(procedure, &mut call, &mut manner)].concat(),
        };
        let bytes = if manner.fragment_bytes == 0 { answer.len() } else { manner.fragment_bytes };
        let fragments = answer.chunks(bytes);
        let last = fragments.len() - 1;
        for (number, fragment) in fragments.enumerate() {
            let mark = fragment.len() as u32 | if number == last { LAST_FRAGMENT } else { 0 };
            stream.write_all(&[&mark.to_be_bytes(), fragment].concat()).unwrap();
        }
    }
}

/// MOUNT lists nothing, and mounts one folder.
fn mount(procedure: u32, call: &mut Decoder) -> Vec<u8> {
    if procedure == protocol::EXPORT {
        return Encoder::default().u32(0).finish();
    }
    match &call.opaque(1024).unwrap()[..] {
        path if path == EXPORT.as_bytes() => Encoder::default().u32(0).opaque(b"root").u32(1).u32(1).finish(),
        _ => Encoder::default().u32(status::ACCES).finish(),
    }
}

fn nfs(procedure: u32, call: &mut Decoder, manner: &mut Manner) -> Vec<u8> {
    let handle = call.opaque(64).unwrap();
    manner.reads += u32::from(procedure == protocol::READ);
    let time = if manner.changes { manner.reads } else { 0 };
    match procedure {
        protocol::FSINFO => Encoder::default().u32(0).u32(0).u32(1 << 20).u32(1 << 16).finish(),
        protocol::GETATTR => attributes(Encoder::default().u32(0), &handle, time).finish(),
        protocol::LOOKUP if &call.opaque(255).unwrap()[..] == b"file" => {
            // Neither the file's attributes nor the folder's.
            Encoder::default().u32(0).opaque(b"file").u32(0).u32(0).finish()
        }
        protocol::READ => {
            match manner.statuses.pop_front() {
                Some(status) if status != 0 => return Encoder::default().u32(status).u32(0).finish(),
                _ => {}
            }
            let (offset, count) = (call.u64().unwrap() as usize, call.u32().unwrap() as usize);
            let contents = contents();
            let end = contents.len().min(offset + count.min(manner.most_bytes));
            let answer = Encoder::default().u32(0);
            let answer = match manner.without_attributes {
                true => answer.u32(0),
                false => attributes(answer.u32(1), &handle, time),
            };
            let answer = answer.u32((end - offset) as u32).u32(u32::from(end == contents.len()));
            answer.opaque(&contents[offset..end]).finish()
        }
        _ => Encoder::default().u32(status::NOENT).u32(0).finish(),
    }
}

fn attributes(answer: Encoder, handle: &[u8], time: u32) -> Encoder {
    let (kind, bytes) = if handle == b"root" { (2, 0) } else { (1, 10_000) };
    let answer = answer.u32(kind).fixed(&[0; 16]).u64(bytes).fixed(&[0; 24]).u64(7).fixed(&[0; 8]);
    answer.u32(time).u32(0).fixed(&[0; 8])
}

fn read(port: u16, path: &str) -> Result<Vec<u8>, StorageError> {
    let mut options = StorageOptions { variables: StorageVariables::default(), ..StorageOptions::default() };
    options.first_pause = Duration::from_millis(1);
    options.retries = 3;
    options.cache.memory_bytes = 0;
    let (storage, path) = open(&format!("nfs://127.0.0.1:{port}{path}?mountport={port}"), &options).unwrap();
    let mut buffer = vec![0; storage.size(&path)? as usize];
    storage.read_at(&path, 0, &mut buffer).map(|()| buffer)
}

fn manner() -> Manner {
    Manner { most_bytes: usize::MAX, ..Manner::default() }
}

#[test]
fn an_export_that_no_list_has_is_found() {
    let (port, _) = start(manner());
    assert!(read(port, "/exported/there/file").unwrap() == contents());
    let error = read(port, "/exported/elsewhere/file").unwrap_err();
    assert!(error.cause.contains("holds /exported/elsewhere/file, as far as it tells"), "{error}");
}

#[test]
fn answers_may_be_short_in_fragments_and_without_attributes() {
    for manner in [
        Manner { most_bytes: 777, ..manner() },
        Manner { fragment_bytes: 100, ..manner() },
        Manner { without_attributes: true, ..manner() },
    ] {
        let (port, _) = start(manner.clone());
        assert!(read(port, "/exported/there/file").unwrap() == contents(), "{manner:?}");
    }
}

#[test]
fn a_file_that_changes_is_noticed_with_and_without_attributes() {
    for without_attributes in [false, true] {
        let (port, _) = start(Manner { changes: true, without_attributes, ..manner() });
        let error = read(port, "/exported/there/file").unwrap_err();
        assert!(error.cause.contains("has changed"), "{error}");
    }
}

#[test]
fn what_passes_is_waited_for_and_what_does_not_is_told() {
    let (port, served) = start(Manner { statuses: [status::JUKEBOX, status::STALE, status::IO].into(), ..manner() });
    assert!(read(port, "/exported/there/file").unwrap() == contents());
    assert_eq!(served.lock().unwrap().reads, 4);
    let (port, served) = start(Manner { statuses: [status::JUKEBOX; 4].into(), ..manner() });
    let error = read(port, "/exported/there/file").unwrap_err();
    assert!(error.cause.contains("NFS3ERR_JUKEBOX") && served.lock().unwrap().reads == 4, "{error}");
    let (port, served) = start(Manner { statuses: [status::ACCES].into(), ..manner() });
    let error = read(port, "/exported/there/file").unwrap_err();
    assert!(error.kind == StorageErrorKind::Denied && served.lock().unwrap().reads == 1, "{error}");
    let (port, _) = start(Manner { most_bytes: 0, ..manner() });
    let error = read(port, "/exported/there/file").unwrap_err();
    assert!(error.cause.contains("no bytes"), "{error}");
}

#[test]
fn servers_of_other_versions_are_told() {
    let (port, _) = start(Manner { refusal: Some(vec![2, 4, 4]), ..manner() });
    let error = read(port, "/exported/there/file").unwrap_err();
    assert!(error.cause.contains("versions 4 to 4 of NFS"), "{error}");
    let (port, _) = start(Manner { refusal: Some(vec![9]), ..manner() });
    let error = read(port, "/exported/there/file").unwrap_err();
    assert!(error.cause.contains("an answer of the server's NFS cannot be read"), "{error}");
}
