//! Whole meshes: ranks as threads, joined by TCP, Unix sockets, shared memory and pipes.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests may panic")]

mod support;

use std::time::Duration;

use farandole_plan::{ErrorClass, Rank};
use farandole_transport::fault::{At, Fault, FaultAction, Faults};
use farandole_transport::frame::Checksum;
use farandole_transport::hello::Seal;
use farandole_transport::stream::FrameOptions;
use farandole_transport::{
    Bell, Contact, Error, Key, Listener, Local, Mesh, Options, Progress, RecvCursor, Result, SendCursor, Waiter, memory,
};
use support::{PATIENCE, drive, next_message, pattern, tag};

/// Runs `rank` on a thread for each of `size` ranks that build a mesh. `host` says on which host a rank is.
fn ranks<T: Send>(
    size: usize,
    options: Options,
    host: impl Fn(usize) -> String + Sync,
    rank: impl Fn(Mesh, Waiter) -> T + Sync,
) -> Vec<T> {
    let key = Key::random().unwrap();
    let listeners: Vec<Listener> =
        (0..size).map(|_| Listener::bind(Some("127.0.0.1:0".parse().unwrap()), &key).unwrap()).collect();
    let contacts: Vec<_> = listeners.iter().enumerate().map(|(me, listener)| listener.contact(host(me))).collect();
    std::thread::scope(|scope| {
        let spawn = |(me, listener)| {
            let (contacts, rank) = (&contacts, &rank);
            scope.spawn(move || {
                let waiter = Waiter::new().unwrap();
                let me = Rank::from(me);
                rank(Mesh::connect(9, me, contacts, listener, &options, &waiter, PATIENCE).unwrap(), waiter)
            })
        };
        let threads: Vec<_> = listeners.iter().enumerate().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// What rank `from` sends to rank `to`.
fn parcel(from: Rank, to: Rank, len: usize) -> Vec<u8> {
    pattern(len, u64::from(from.0 * 1000 + to.0))
}

/// Whether control lines are read for news of deaths while data moves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lifeline {
    Watched,
    LeftAlone,
}

/// Everybody sends to everybody at the same time.
fn all_to_all(mesh: &mut Mesh, waiter: &Waiter, operation: u64, len: usize, lifeline: Lifeline) -> Result<()> {
    let (me, size) = (mesh.me(), mesh.size());
    let out: Vec<Vec<u8>> = (0..size).map(|to| parcel(me, Rank::from(to), len)).collect();
    let mut into = vec![vec![0xee; len]; size];
    let mut cursors = vec![(SendCursor::default(), RecvCursor::default(), false, false); size];
    drive(waiter, || {
        let (mut moved, mut done) = (false, true);
        for peer in mesh.peers_mut() {
            let index = peer.rank.index();
            let (sent, received, all_sent, all_received) = &mut cursors[index];
            if !*all_sent {
                let progress = peer.link.send(tag(operation, 0), &out[index], sent)?;
                *all_sent = progress == Progress::Done;
                moved |= progress != Progress::Pending;
            }
            if !*all_received {
                let progress = peer.link.recv_into(tag(operation, 0), &mut into[index], received)?;
                *all_received = progress == Progress::Done;
                moved |= progress != Progress::Pending;
            }
            done &= *all_sent && *all_received;
            // A dead peer speaks through its control line, whatever the link is made of.
            if lifeline == Lifeline::Watched {
                peer.control.recv()?;
            }
        }
        Ok(if done {
            Progress::Done
        } else if moved {
            Progress::Moved
        } else {
            Progress::Pending
        })
    })?;
    for peer in (0..size).filter(|&peer| peer != me.index()) {
        assert!(into[peer] == parcel(Rank::from(peer), me, len), "rank {me} got something else from {peer}");
    }
    Ok(())
}

fn full_round(mut mesh: Mesh, waiter: Waiter) -> (Mesh, Waiter) {
    for (operation, len) in [0, 1, 4096, 300_001].into_iter().enumerate() {
        all_to_all(&mut mesh, &waiter, operation as u64 + 1, len, Lifeline::LeftAlone).unwrap();
    }
    let me = mesh.me();
    for peer in mesh.peers_mut() {
        peer.control.send(format!("{me} greets {}", peer.rank).as_bytes()).unwrap();
    }
    for peer in mesh.peers_mut() {
        let message = next_message(&waiter, &mut *peer.control).unwrap();
        assert_eq!(message, format!("{} greets {me}", peer.rank).into_bytes());
    }
    (mesh, waiter)
}

fn small_stripes(checksum: Checksum) -> FrameOptions {
    FrameOptions { stripe_from_bytes: 4096, checksum }
}

#[test]
fn eight_ranks_over_tcp() {
    let options = Options { connections: Some(2), shape: small_stripes(Checksum::Crc32c), ..Options::default() };
    let meshes = ranks(8, options, |me| format!("host {me}"), full_round);
    assert_eq!(meshes[3].0.topology().hosts(), 8);
    assert!(meshes[3].0.windows.is_none());
}

#[test]
fn eight_ranks_over_unix_sockets() {
    let options = Options { local: Local::Stream, ..Options::default() };
    let meshes = ranks(8, options, |_| "one host".to_owned(), full_round);
    assert!(meshes.iter().all(|(mesh, _)| mesh.windows.is_none() && mesh.topology().hosts() == 1));
}

#[test]
fn five_ranks_over_shared_memory() {
    let meshes = ranks(
        5,
        Options::default(),
        |_| "one host".to_owned(),
        |mesh, waiter| {
            // Links only: windows have tests of their own.
            mesh.windows.as_ref().unwrap().raise_asleep();
            full_round(mesh, waiter)
        },
    );
    for (mesh, _) in &meshes {
        let windows = mesh.windows.as_ref().unwrap();
        assert_eq!((windows.size(), windows.rank(windows.me())), (5, mesh.me()));
    }
}

#[test]
fn uneven_hosts_mix_shared_memory_and_sealed_tcp() {
    let options =
        Options { seal: Seal::On, connections: Some(3), shape: small_stripes(Checksum::Off), ..Options::default() };
    let host = |me: usize| format!("host {}", me % 2);
    let meshes = ranks(5, options, host, |mesh, waiter| {
        mesh.windows.as_ref().unwrap().raise_asleep();
        full_round(mesh, waiter)
    });
    let sizes: Vec<usize> = meshes.iter().map(|(mesh, _)| mesh.windows.as_ref().unwrap().size()).collect();
    assert_eq!(sizes, [3, 2, 3, 2, 3]);
}

#[test]
fn several_meshes_form_in_any_order_over_one_listener() {
    // Ranks suggest different numbers of connections, as machines of different size do.
    let key = Key::random().unwrap();
    let bind = || Listener::bind(Some("127.0.0.1:0".parse().unwrap()), &key).unwrap();
    let listeners = [bind(), bind(), bind()];
    let contact = |(me, listener): (usize, &Listener)| Contact {
        connections: 1 + me as u16,
        ..listener.contact(format!("host {me}"))
    };
    let contacts: Vec<Contact> = listeners.iter().enumerate().map(contact).collect();
    let orders = [[1, 2, 3, 4], [4, 3, 2, 1], [2, 4, 1, 3]];
    std::thread::scope(|scope| {
        for (me, listener) in listeners.iter().enumerate() {
            for id in orders[me] {
                let contacts = &contacts;
                // One thread for each mesh: a rank that builds them one after another waits for the others in turn.
                scope.spawn(move || {
                    let waiter = Waiter::new().unwrap();
                    let options = Options::default();
                    let me = Rank::from(me);
                    let mesh = Mesh::connect(id, me, contacts, listener, &options, &waiter, PATIENCE).unwrap();
                    full_round(mesh, waiter)
                });
            }
        }
    });
}

#[test]
fn a_rank_alone_is_a_mesh() {
    let meshes = ranks(1, Options::default(), |_| "one host".to_owned(), full_round);
    assert_eq!(meshes[0].0.size(), 1);
}

fn memory_ranks<T: Send>(size: usize, faults: &Faults, rank: impl Fn(Mesh, Waiter) -> T + Sync) -> Vec<T> {
    let waiters: Vec<Waiter> = (0..size).map(|_| Waiter::new().unwrap()).collect();
    let bells: Vec<Bell> = waiters.iter().map(Waiter::bell).collect();
    let settings = memory::MemoryOptions {
        capacity_bytes: 1000,
        connections: 2,
        shape: FrameOptions { stripe_from_bytes: 500, checksum: Checksum::Crc32c },
        is_apart: false,
    };
    let meshes = memory::meshes(&bells, &settings);
    std::thread::scope(|scope| {
        let spawn = |(mesh, waiter): (Mesh, Waiter)| {
            let (mesh, rank) = (faults.wrap(mesh, &waiter.bell()), &rank);
            scope.spawn(move || rank(mesh, waiter))
        };
        let threads: Vec<_> = meshes.into_iter().zip(waiters).map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn six_ranks_in_memory() {
    memory_ranks(6, &Faults::default(), full_round);
}

/// All ranks exchange; whoever fails tells all others why, as an engine does. Meshes stay open until all have ended.
fn until_the_end(mesh: Mesh, waiter: Waiter) -> (Result<()>, Mesh) {
    let mut mesh = mesh;
    let outcome = (1..4).try_for_each(|operation| all_to_all(&mut mesh, &waiter, operation, 2000, Lifeline::Watched));
    let outcome = outcome.map_err(|error| {
        let error = mesh.first_cause(error, &waiter, Duration::from_millis(200));
        mesh.abort(None, error.class(), &error.to_string());
        error
    });
    (outcome, mesh)
}

fn outcomes(size: usize, faults: &Faults) -> Vec<Result<()>> {
    memory_ranks(size, faults, until_the_end).into_iter().map(|(outcome, _)| outcome).collect()
}

#[test]
fn a_fault_at_any_event_ends_in_a_named_error_everywhere() {
    let size = 3;
    for action in [FaultAction::Kill, FaultAction::Cut, FaultAction::Corrupt] {
        for victim in 0..size {
            let mut event = 0;
            loop {
                let fault = Fault { rank: Rank::from(victim), at: At::Event(event), action };
                let faults = Faults::new([fault]);
                let outcomes = outcomes(size, &faults);
                if !faults.has_struck() {
                    assert!(outcomes.iter().all(Result::is_ok));
                    break;
                }
                assert_eq!(faults.is_killed(Rank::from(victim)), action == FaultAction::Kill);
                for (rank, outcome) in outcomes.iter().enumerate() {
                    match outcome {
                        // In the last exchange a rank may have had all it needed before the fault. What a receiving
                        // event damages is sent in the exchange after it.
                        Ok(()) => {
                            let last_exchange = if action == FaultAction::Corrupt { 4 } else { 8 };
                            assert!(event >= last_exchange, "rank {rank} noticed nothing of {action:?} at {event}");
                        }
                        Err(error) if action == FaultAction::Kill => {
                            let says = error.to_string();
                            assert!(says.contains(&format!("rank {victim}")), "rank {rank} says: {says}");
                        }
                        Err(_) => {}
                    }
                }
                let unharmed = outcomes[victim].is_ok() && action != FaultAction::Corrupt;
                assert!(!unharmed, "{action:?} at {event} did nothing to rank {victim}");
                event += 1;
            }
            assert!(event >= 12, "three exchanges with two peers are twelve events, not {event}");
        }
    }
}

#[test]
fn a_delay_costs_its_time_and_nothing_else() {
    let delay = Duration::from_millis(150);
    let fault =
        Fault { rank: Rank(1), at: At::Operation { operation: 2, event: 1 }, action: FaultAction::Delay(delay) };
    let faults = Faults::new([fault]);
    let outcomes = farandole_testing::at_least(delay, || outcomes(3, &faults));
    assert!(faults.has_struck() && outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}

#[test]
fn a_dropped_frame_is_missed_by_its_receiver() {
    let faults = Faults::new([Fault { rank: Rank(0), at: At::Event(0), action: FaultAction::Drop }]);
    let outcomes = memory_ranks(2, &faults, |mut mesh, waiter| {
        let me = mesh.me();
        let peer = mesh.peers_mut().next().unwrap();
        if me == Rank(0) {
            for message in 0..2 {
                let mut cursor = SendCursor::default();
                drive(&waiter, || peer.link.send(tag(1, message), b"hello", &mut cursor))?;
            }
            // Stay alive until the other has seen it.
            next_message(&waiter, &mut *peer.control).map(drop)
        } else {
            let mut cursor = RecvCursor::default();
            let outcome = drive(&waiter, || peer.link.recv_into(tag(1, 0), &mut [0; 5], &mut cursor));
            peer.control.send(b"seen")?;
            outcome
        }
    });
    assert!(outcomes[0].is_ok(), "{outcomes:?}");
    let error = outcomes[1].as_ref().unwrap_err();
    assert!(error.to_string().contains("message 1 of operation 1, expected message 0"), "{error}");
}

#[test]
fn the_first_cause_reaches_ranks_that_see_only_the_consequence() {
    let outcomes = memory_ranks(3, &Faults::default(), |mut mesh, waiter| {
        if mesh.me() == Rank(2) {
            mesh.abort(None, ErrorClass::Other, "rank 2: the disk is full");
            return Ok(());
        }
        until_the_end(mesh, waiter).0
    });
    for outcome in &outcomes[..2] {
        let error = outcome.as_ref().unwrap_err();
        assert!(matches!(error, Error::PeerAborted { cause, .. } if cause == "rank 2: the disk is full"), "{error}");
    }
}
