//! Handshakes: peers with the key get in, everybody else is turned away and disturbs nobody.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests may panic")]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use farandole_plan::Rank;
use farandole_testing::{Deadline, Sleeper, wait_for};
use farandole_transport::frame::PROTOCOL_VERSION;
use farandole_transport::hello::{HELLO_BYTES, Handshake, Hello, Purpose, Seal};
use farandole_transport::{Contact, Error, JobId, Key, Listener, Local, Mesh, Options, Waiter};
use proptest::prelude::*;
use support::{Make, PATIENCE, socket_pair};

fn hello() -> Hello {
    Hello {
        job: job(),
        mesh: 77,
        from: Rank(3),
        to: Rank(1),
        purpose: Purpose::Data { connection: 2 },
        seal: Seal::On,
        connections: 4,
        stripe_from_bytes: 1 << 18,
        nonce: [9; 32],
    }
}

fn job() -> JobId {
    JobId::named("Slurm step 7.0")
}

fn key(byte: u8) -> Key {
    Key::from_bytes([byte; 32])
}

fn listener(key: &Key) -> Listener {
    Listener::bind(Some("127.0.0.1:0".parse().unwrap()), key).unwrap()
}

/// Two ranks on two hosts build a mesh; the outcome of each.
fn two_ranks(zero: &Listener, one: &Listener, at_most: Duration) -> (Result<Mesh, Error>, Result<Mesh, Error>) {
    let contacts = [zero.contact("here"), one.contact("there")];
    let join = |rank: u32, listener: &Listener| {
        Mesh::connect(5, Rank(rank), &contacts, listener, &Options::default(), &Waiter::new().unwrap(), at_most)
    };
    std::thread::scope(|scope| {
        let second = scope.spawn(|| join(1, one));
        (join(0, zero), second.join().unwrap())
    })
}

#[test]
fn both_sides_get_the_same_keys_and_the_connectors_hello() {
    let (one, other) = socket_pair(Make::Unix);
    let mut connector = Handshake::connect(one, "there".to_owned(), &key(1), &hello()).unwrap();
    let mut acceptor = Handshake::accept(other, "here".to_owned(), &key(1), job());
    for _ in 0..4 {
        let _ = (connector.advance().unwrap(), acceptor.advance().unwrap());
    }
    assert!(connector.advance().unwrap() && acceptor.advance().unwrap());
    let (connector, acceptor) = (connector.finish(), acceptor.finish());
    assert_eq!(connector.keys.sending, acceptor.keys.receiving);
    assert_eq!(connector.keys.receiving, acceptor.keys.sending);
    assert_ne!(connector.keys.sending, connector.keys.receiving);
    assert_eq!(connector.hello, acceptor.hello);
    assert_ne!(connector.hello.nonce, hello().nonce, "every connection has a fresh nonce");
    assert_eq!(Hello { nonce: [9; 32], ..connector.hello }, hello());
}

#[test]
fn a_wrong_key_is_untrusted_on_both_sides() {
    let (one, other) = socket_pair(Make::Unix);
    let mut connector = Handshake::connect(one, "there".to_owned(), &key(1), &hello()).unwrap();
    let mut acceptor = Handshake::accept(other, "here".to_owned(), &key(2), job());
    assert!(!connector.advance().unwrap());
    assert!(!acceptor.advance().unwrap());
    assert!(matches!(connector.advance().unwrap_err(), Error::Untrusted { .. }));

    // A connector that goes on regardless with a made-up proof.
    let (mut raw, other) = socket_pair(Make::Unix);
    let mut acceptor = Handshake::accept(other, "here".to_owned(), &key(2), job());
    raw.write_all(&hello().encode()).unwrap();
    assert!(!acceptor.advance().unwrap());
    raw.write_all(&[7; 32]).unwrap();
    assert!(matches!(acceptor.advance().unwrap_err(), Error::Untrusted { .. }));
}

#[test]
fn a_proof_cannot_be_mirrored() {
    let (mut raw, other) = socket_pair(Make::Unix);
    let mut acceptor = Handshake::accept(other, "here".to_owned(), &key(2), job());
    raw.write_all(&hello().encode()).unwrap();
    assert!(!acceptor.advance().unwrap());
    let mut answer = [0; HELLO_BYTES + 32];
    raw.read_exact(&mut answer).unwrap();
    raw.write_all(&answer[HELLO_BYTES..]).unwrap();
    assert!(matches!(acceptor.advance().unwrap_err(), Error::Untrusted { .. }));
}

#[test]
fn garbage_at_every_stage_is_turned_away() {
    for cut in [0, 7, 10, 40, 100, HELLO_BYTES, HELLO_BYTES + 31] {
        let (mut raw, other) = socket_pair(Make::Unix);
        let mut acceptor = Handshake::accept(other, "here".to_owned(), &key(2), job());
        let good = [&hello().encode()[..], &[0; 32]].concat();
        raw.write_all(&good[..cut]).unwrap();
        assert!(!acceptor.advance().unwrap());
        raw.write_all(&[0x5a; 300]).unwrap();
        assert!(matches!(acceptor.advance().unwrap_err(), Error::Untrusted { .. }), "garbage after {cut} bytes");
    }
}

#[test]
fn both_sides_learn_of_another_version() {
    let (mut raw, other) = socket_pair(Make::Unix);
    let mut acceptor = Handshake::accept(other, "here".to_owned(), &key(2), job());
    let mut newer = hello().encode();
    newer[8..10].copy_from_slice(&99u16.to_le_bytes());
    raw.write_all(&newer[..20]).unwrap();
    let error = acceptor.advance().unwrap_err();
    assert!(matches!(error, Error::Version { ours: PROTOCOL_VERSION, theirs: 99, .. }), "{error}");
    let mut answer = [0; 10];
    raw.read_exact(&mut answer).unwrap();
    assert_eq!(answer[8..], PROTOCOL_VERSION.to_le_bytes());

    let (mut raw, one) = socket_pair(Make::Unix);
    let mut connector = Handshake::connect(one, "there".to_owned(), &key(1), &hello()).unwrap();
    assert!(!connector.advance().unwrap());
    raw.write_all(&newer[..10]).unwrap();
    let error = connector.advance().unwrap_err();
    assert!(matches!(error, Error::Version { ours: PROTOCOL_VERSION, theirs: 99, .. }), "{error}");
}

mod timings {
    use std::time::Instant;

    use super::*;

    #[test]
    fn strangers_do_not_disturb_peers() {
        let key = Key::random().unwrap();
        let (zero, one) = (listener(&key), listener(&key));
        let address = zero.addresses()[0];
        // Silent ones, slow ones, loud ones, ones that vanish.
        let mut strangers: Vec<TcpStream> = (0..60).map(|_| TcpStream::connect(address).unwrap()).collect();
        for (index, stranger) in strangers.iter_mut().enumerate() {
            let _ = match index % 4 {
                0 => Ok(()),
                1 => stranger.write_all(&hello().encode()[..30]),
                2 => stranger.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
                _ => stranger.shutdown(std::net::Shutdown::Both),
            };
        }
        let began = Instant::now();
        let (first, second) = two_ranks(&zero, &one, PATIENCE);
        first.unwrap();
        second.unwrap();
        // Strangers are waited for longer than that; two ranks alone need milliseconds.
        assert!(began.elapsed() < Duration::from_millis(4500), "peers were held up for {:?}", began.elapsed());
        assert!(zero.refusals().iter().any(|refusal| refusal.why.contains("127.0.0.1")), "refusals name their origin");
        drop(strangers);
    }
}

#[test]
fn a_flood_of_strangers_does_not_keep_peers_out() {
    let key = Key::random().unwrap();
    let (zero, one) = (listener(&key), listener(&key));
    let address = zero.addresses()[0];
    let strangers: Vec<TcpStream> = (0..600).map_while(|_| TcpStream::connect(address).ok()).collect();
    let (first, second) = two_ranks(&zero, &one, PATIENCE);
    first.unwrap();
    second.unwrap();
    drop(strangers);
}

#[test]
fn a_rank_with_another_key_is_told_and_the_others_say_who_is_missing() {
    let (zero, one) = (listener(&key(1)), listener(&key(2)));
    let (first, second) = two_ranks(&zero, &one, Duration::from_millis(600));
    assert!(matches!(second.unwrap_err(), Error::Untrusted { .. }));
    let error = first.unwrap_err();
    assert!(matches!(error, Error::Deadline { peer: Some(Rank(1)), .. }), "{error}");
}

#[test]
fn a_rank_of_another_job_with_the_same_key_is_told_both_jobs_and_takes_no_seat() {
    let bind =
        |job: &str| Listener::bind_for(JobId::named(job), Some("127.0.0.1:0".parse().unwrap()), &key(1)).unwrap();
    let (zero, one, other) = (bind("Slurm step 7.0"), bind("Slurm step 7.0"), bind("Slurm step 8.0"));
    // Rank 1 of the other job has an address at which rank 0 of its own job was before.
    let (first, refused) = two_ranks(&zero, &other, Duration::from_secs(2));
    let refused = refused.unwrap_err();
    let Error::OtherJob { ours, theirs, .. } = &refused else { panic!("{refused}") };
    assert_eq!((ours.as_str(), theirs.as_str()), ("Slurm step 8.0", "Slurm step 7.0"));
    let says = refused.to_string();
    assert!(
        says.contains("'Slurm step 7.0' is at 127.0.0.1") && says.contains("belongs to job 'Slurm step 8.0'"),
        "{says}"
    );
    let waited = first.unwrap_err();
    assert!(matches!(waited, Error::Deadline { peer: Some(Rank(1)), .. }), "{waited}");
    assert!(waited.to_string().contains("'Slurm step 8.0'"), "{waited}");
    let (first, second) = two_ranks(&zero, &one, PATIENCE);
    first.unwrap();
    second.unwrap();
}

#[test]
fn only_a_holder_of_the_key_learns_the_job_and_believes_a_refusal() {
    let (mut raw, other) = socket_pair(Make::Unix);
    let mut acceptor = Handshake::accept(other, "here".to_owned(), &key(2), JobId::named("a secret project"));
    raw.write_all(&hello().encode()).unwrap();
    assert!(!acceptor.advance().unwrap());
    raw.write_all(&[7; 32]).unwrap();
    assert!(matches!(acceptor.advance().unwrap_err(), Error::Untrusted { .. }));
    drop(acceptor);
    let mut heard = Vec::new();
    raw.read_to_end(&mut heard).unwrap();
    assert!(!heard.windows(8).any(|window| window == b"a secret"), "a stranger learns the job");

    // A refusal that somebody on the way has changed: all of the acceptor's answer passes but its job.
    let (connector_end, mut to_connector) = socket_pair(Make::Unix);
    let (mut to_acceptor, acceptor_end) = socket_pair(Make::Unix);
    let mut connector = Handshake::connect(connector_end, "there".to_owned(), &key(1), &hello()).unwrap();
    let mut acceptor = Handshake::accept(acceptor_end, "here".to_owned(), &key(1), JobId::named("another"));
    assert!(!connector.advance().unwrap());
    let pass = |from: &mut dyn Read, to: &mut dyn Write, spoil: Option<usize>| {
        let mut bytes = [0; 512];
        let count = from.read(&mut bytes).unwrap();
        if let Some(at) = spoil {
            bytes[at] ^= 1;
        }
        to.write_all(&bytes[..count]).unwrap();
    };
    pass(&mut to_connector, &mut to_acceptor, None);
    assert!(!acceptor.advance().unwrap());
    pass(&mut to_acceptor, &mut to_connector, None);
    assert!(!connector.advance().unwrap());
    pass(&mut to_connector, &mut to_acceptor, None);
    assert!(matches!(acceptor.advance().unwrap_err(), Error::OtherJob { .. }));
    pass(&mut to_acceptor, &mut to_connector, Some(1));
    assert!(matches!(connector.advance().unwrap_err(), Error::Untrusted { .. }));
}

/// Connects to a listener as rank 1 of mesh 5 and goes as far as to be welcomed; what follows is up to the caller.
fn welcomed(listener: &Listener, key: &Key) -> TcpStream {
    let stream = TcpStream::connect(listener.addresses()[0]).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let hello = Hello {
        job: listener.job(),
        mesh: 5,
        from: Rank(1),
        to: Rank(0),
        purpose: Purpose::Control,
        seal: Seal::On,
        connections: listener.contact("").connections,
        stripe_from_bytes: Options::default().shape.stripe_from_bytes,
        nonce: [0; 32],
    };
    // Writes its side, but not the thanks.
    struct Thankless(TcpStream, usize);
    impl Read for Thankless {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            self.0.read(buffer)
        }
    }
    impl Write for Thankless {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if self.1 == 2 {
                return Ok(bytes.len());
            }
            self.1 += 1;
            self.0.write_all(bytes).map(|()| bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut handshake = Handshake::connect(Thankless(stream, 0), "there".to_owned(), key, &hello).unwrap();
    assert!(handshake.advance().unwrap(), "the stream blocks until the welcome is there");
    handshake.finish().stream.0
}

#[test]
fn a_connection_that_was_given_up_takes_no_seat_from_the_one_that_follows() {
    let key = Key::random().unwrap();
    let (zero, one) = (listener(&key), listener(&key));
    // A connector that was not welcomed in time has closed its connection; the welcome came too late.
    drop(welcomed(&zero, &key));
    let contacts = [zero.contact("here"), one.contact("there")];
    let join = |rank: u32, listener: &Listener| {
        let waiter = Waiter::new().unwrap();
        Mesh::connect(5, Rank(rank), &contacts, listener, &Options::default(), &waiter, PATIENCE)
            .map(|mesh| (mesh, waiter))
    };
    let (first, second) = std::thread::scope(|scope| {
        let (teller, looking) = std::sync::mpsc::channel();
        let (join, zero) = (&join, &zero);
        let first = scope.spawn(move || {
            teller.send(Sleeper::this_thread()).unwrap();
            join(0, zero)
        });
        // Rank 0 looks for rank 1 while only the dead connection could be there.
        looking.recv().unwrap().wait_until_asleep();
        let second = join(1, &one);
        (first.join().unwrap(), second)
    });
    let (mut first, _) = first.unwrap();
    let (mut second, _) = second.unwrap();
    second.peer_mut(Rank(0)).control.send(b"are you there?").unwrap();
    let heard = wait_for("rank 0 to hold the same connection as rank 1", PATIENCE, || {
        let _ = second.peer_mut(Rank(0)).control.flush().unwrap();
        first.peer_mut(Rank(1)).control.recv().unwrap()
    });
    assert_eq!(heard, b"are you there?");
}

#[test]
fn a_rank_of_another_version_is_named_by_the_one_that_waits() {
    let key = Key::random().unwrap();
    let zero = listener(&key);
    let mut newer = hello().encode();
    newer[8..10].copy_from_slice(&99u16.to_le_bytes());
    let there = Contact { unix: None, addresses: Vec::new(), ..zero.contact("there") };
    let contacts = [zero.contact("here"), there];
    let waiter = Waiter::new().unwrap();
    let at_most = Duration::from_secs(2);
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut raw = TcpStream::connect(zero.addresses()[0]).unwrap();
            raw.write_all(&newer).unwrap();
            let mut answer = [0; 10];
            raw.read_exact(&mut answer).unwrap();
        });
        Mesh::connect(1, Rank(0), &contacts, &zero, &Options::default(), &waiter, at_most).unwrap_err()
    });
    assert!(matches!(error, Error::Version { theirs: 99, .. }), "{error}");
}

#[test]
fn an_unreachable_rank_is_named_with_its_addresses() {
    let one = listener(&key(1));
    // A port that nobody listens on: bound, then closed.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let absent = Contact { unix: None, addresses: vec![closed], ..one.contact("elsewhere") };
    let contacts = [absent, one.contact("here")];
    let waiter = Waiter::new().unwrap();
    let at_most = Duration::from_millis(300);
    let error = Mesh::connect(1, Rank(1), &contacts, &one, &Options::default(), &waiter, at_most).unwrap_err();
    let says = error.to_string();
    assert!(matches!(error, Error::Deadline { peer: Some(Rank(0)), .. }), "{says}");
    assert!(says.contains(&closed.to_string()) && says.contains("refused"), "{says}");
}

#[test]
fn different_options_are_an_error_and_not_a_hang() {
    let key = Key::random().unwrap();
    let (zero, one) = (listener(&key), listener(&key));
    let contacts = [zero.contact("here"), one.contact("here")];
    let join = |rank: u32, listener: &Listener, local: Local| {
        let options = Options { local, ..Options::default() };
        Mesh::connect(5, Rank(rank), &contacts, listener, &options, &Waiter::new().unwrap(), PATIENCE)
    };
    let deadline = Deadline::after(PATIENCE);
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| join(1, &one, Local::Stream));
        (join(0, &zero, Local::Shm), second.join().unwrap())
    });
    let error = first.unwrap_err();
    assert!(error.to_string().contains("its options differ"), "{error}");
    // The other one may have connected before; then it hears of it on its control line.
    let error = match second {
        Err(error) => error,
        Ok(mut mesh) => loop {
            if let Err(error) = mesh.peer_mut(Rank(0)).control.recv() {
                break error;
            }
            deadline.pause("the word of rank 0");
        },
    };
    assert!(matches!(error, Error::PeerAborted { .. } | Error::PeerGone { .. }), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn decoding_a_hello_never_panics(random in proptest::collection::vec(any::<u8>(), HELLO_BYTES)) {
        let mut bytes: [u8; HELLO_BYTES] = random.try_into().unwrap();
        prop_assert!(Hello::decode(&bytes).is_none());
        bytes[..10].copy_from_slice(&hello().encode()[..10]);
        bytes[10] %= 4;
        bytes[11] %= 3;
        if let Some(hello) = Hello::decode(&bytes) {
            prop_assert_eq!(hello.encode(), bytes);
        }
    }
}
