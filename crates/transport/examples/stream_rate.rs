//! Measures links between two ranks on this machine: `cargo run --release --example stream_rate [address]`.
//!
//! Two threads build a mesh over TCP on the given address (loopback unless told otherwise) and play ping-pong with
//! small payloads, then send a large one forth and back. Variants are interleaved, round by round, so that a busy
//! machine disturbs all of them alike; times are medians over the rounds.
//!
//! With `serve <address>` and `reach <address>` the two ranks are two processes, for links between network namespaces.

#![allow(clippy::print_stdout, missing_docs, reason = "an example prints")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use farandole_plan::Rank;
use farandole_transport::ProcessId;
use farandole_transport::stream::FrameOptions;
use farandole_transport::{
    Contact, Key, Listener, Local, Mesh, Options, Progress, Protection, RecvCursor, Result, SendCursor, Tag, Waiter,
};

const ROUNDS: usize = 7;
const LARGE_BYTES: usize = 64 << 20;
const SIZES: [(usize, usize); 5] = [(8, 200), (4 << 10, 200), (64 << 10, 50), (1 << 20, 10), (LARGE_BYTES, 1)];

struct Variant {
    name: &'static str,
    options: Options,
    same_host: bool,
}

fn variants() -> Vec<Variant> {
    let base = Options { local: Local::Stream, ..Options::default() };
    let tcp = |name, options| Variant { name, options, same_host: false };
    let striped = |connections, stripe_from_bytes| Options {
        connections: Some(connections),
        shape: FrameOptions { stripe_from_bytes, ..FrameOptions::default() },
        ..base
    };
    vec![
        tcp("tcp, 1 connection", striped(1, 256 << 10)),
        tcp("tcp, 2 connections", striped(2, 256 << 10)),
        tcp("tcp, 4 connections", striped(4, 256 << 10)),
        tcp("tcp, 2, stripes from 32 KiB", striped(2, 32 << 10)),
        tcp("tcp, 1, buffers 1 MiB", Options { socket_buffer_bytes: Some(1 << 20), ..striped(1, 256 << 10) }),
        tcp("tcp, 1, buffers 4 MiB", Options { socket_buffer_bytes: Some(4 << 20), ..striped(1, 256 << 10) }),
        tcp("tcp, 1, checksum", striped(1, 256 << 10).with_protection(Protection::Checksum)),
        tcp("tcp, 1, encrypt", striped(1, 256 << 10).with_protection(Protection::Encrypt)),
        tcp("tcp, 2, checksum", striped(2, 256 << 10).with_protection(Protection::Checksum)),
        tcp("tcp, 2, encrypt", striped(2, 256 << 10).with_protection(Protection::Encrypt)),
        Variant { name: "unix", options: base, same_host: true },
    ]
}

struct Rig {
    mesh: Mesh,
    waiter: Waiter,
    operation: u64,
}

impl Rig {
    fn drive(&mut self, mut call: impl FnMut(&mut Mesh) -> Result<Progress>) {
        loop {
            match call(&mut self.mesh).expect("the peer is there") {
                Progress::Done => return,
                Progress::Moved => {}
                Progress::Pending => drop(self.waiter.wait(Duration::from_secs(10)).expect("waiting works")),
            }
        }
    }

    fn send(&mut self, peer: Rank, payload: &[u8]) {
        let tag = Tag { operation: self.operation, message: 0, descriptor: 0 };
        let mut cursor = SendCursor::default();
        self.drive(|mesh| mesh.peer_mut(peer).link.send(tag, payload, &mut cursor));
    }

    fn recv(&mut self, peer: Rank, target: &mut [u8]) {
        let tag = Tag { operation: self.operation, message: 0, descriptor: 0 };
        let mut cursor = RecvCursor::default();
        self.drive(|mesh| mesh.peer_mut(peer).link.recv_into(tag, target, &mut cursor));
    }
}

/// One rank's part: rank 0 begins and takes the time, in microseconds for one way.
fn ping_pong(rig: &mut Rig, buffer: &mut [u8], times: usize) -> f64 {
    let me = rig.mesh.me();
    let peer = Rank(1 - me.0);
    let began = Instant::now();
    for _ in 0..times {
        rig.operation += 1;
        if me == Rank(0) {
            rig.send(peer, buffer);
            rig.recv(peer, buffer);
        } else {
            rig.recv(peer, buffer);
            rig.send(peer, buffer);
        }
    }
    began.elapsed().as_secs_f64() * 1e6 / (2 * times) as f64
}

fn rank(me: Rank, contacts: &[Contact], listener: &Listener) {
    let variants = variants();
    let build = |(id, variant): (usize, &Variant)| {
        let waiter = Waiter::new().expect("a waiter");
        let mut contacts = contacts.to_vec();
        if variant.same_host {
            contacts.iter_mut().for_each(|contact| contact.host = "here".to_owned());
        }
        let at_most = Duration::from_secs(30);
        let mesh = Mesh::connect(id as u64, me, &contacts, listener, &variant.options, &waiter, at_most)
            .expect("the ranks find each other");
        Rig { mesh, waiter, operation: 0 }
    };
    let usable: Vec<&Variant> =
        variants.iter().filter(|variant| !variant.same_host || contacts[0].unix.is_some()).collect();
    let mut rigs: Vec<Rig> = usable.iter().copied().enumerate().map(build).collect();
    let mut buffer = vec![1; LARGE_BYTES];
    let mut times = vec![vec![Vec::new(); SIZES.len()]; usable.len()];
    for round in 0..=ROUNDS {
        for (variant, rig) in rigs.iter_mut().enumerate() {
            for (index, &(bytes, count)) in SIZES.iter().enumerate() {
                let time = ping_pong(rig, &mut buffer[..bytes], count);
                if round > 0 {
                    times[variant][index].push(time);
                }
            }
        }
    }
    if me == Rank(1) {
        return;
    }
    println!(
        "{:<28} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8}",
        "one way, µs", "8 B", "4 KiB", "64 KiB", "1 MiB", "64 MiB", "GB/s"
    );
    for (variant, times) in usable.iter().zip(&mut times) {
        let mut medians = times.iter_mut().map(|times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        });
        let line: Vec<f64> = medians.by_ref().collect();
        let rate = LARGE_BYTES as f64 / line[SIZES.len() - 1] / 1e3;
        let cells: String = line.iter().map(|time| format!(" {time:>9.1}")).collect();
        println!("{:<28}{cells} {rate:>8.2}", variant.name);
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let address = |text: &str| -> SocketAddr { text.parse().expect("an address such as 10.0.0.1:4000") };
    let apart = |host: &str, addresses| Contact {
        host: host.to_owned(),
        unix: None,
        addresses,
        connections: 1,
        process: ProcessId::own(),
    };
    // Both processes must know the key; this is a measurement on the user's own machine.
    let shared = Key::from_bytes([1; 32]);
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", at] => {
            let listener = Listener::bind(Some(address(at)), &shared).expect("listening");
            rank(Rank(0), &[apart("zero", vec![address(at)]), apart("one", Vec::new())], &listener);
        }
        ["reach", at] => {
            let listener = Listener::bind(None, &shared).expect("listening");
            rank(Rank(1), &[apart("zero", vec![address(at)]), apart("one", Vec::new())], &listener);
        }
        _ => {
            let at = arguments.first().map_or("127.0.0.1:0", String::as_str);
            let key = Key::random().expect("randomness");
            let bind = || Listener::bind(Some(address(at)), &key).expect("listening");
            let listeners = [bind(), bind()];
            let contacts = [listeners[0].contact("zero"), listeners[1].contact("one")];
            std::thread::scope(|scope| {
                scope.spawn(|| rank(Rank(1), &contacts, &listeners[1]));
                rank(Rank(0), &contacts, &listeners[0]);
            });
        }
    }
}
