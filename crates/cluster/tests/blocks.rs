//! Blocks of data sets, over sockets: they arrive as they are, and whoever does not answer costs little time.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farandole_cluster::blocks::{Answer, BlockContact, BlockExchange, BlockListener, BlockPeer, CurrentExchange};
use farandole_testing::{NEVER, lapse, wait_until};
use farandole_transport::{JobId, Key};

const DEADLINE: Duration = Duration::from_secs(20);

fn peer(rank: usize) -> BlockPeer {
    BlockPeer { key: Key::from_bytes([0x5a; 32]), job: JobId::named("blocks"), rank }
}

fn contact(host: &str, listener: &BlockListener) -> BlockContact {
    BlockContact { host: host.to_owned(), place: listener.contact().to_vec() }
}

fn listener(host: &str) -> BlockListener {
    BlockListener::reserve(host, &["127.0.0.1:0".parse().unwrap()]).unwrap()
}

/// The exchanges of rank 0 on a host, which answers, and of rank 1, which asks from this host.
fn pair(host: &str) -> (BlockExchange, BlockExchange) {
    pair_with(host, peer(1))
}

fn pair_with(host: &str, asking: BlockPeer) -> (BlockExchange, BlockExchange) {
    let (first, second) = (listener("here"), listener(host));
    let contacts = vec![contact("here", &first), contact(host, &second)];
    (BlockExchange::new(peer(0), first, contacts.clone()), BlockExchange::new(asking, second, contacts))
}

/// Blocks of as many bytes as the question has, or as it says.
fn blocks() -> Answer {
    Arc::new(|question| {
        let bytes: usize = std::str::from_utf8(question).ok()?.parse().ok()?;
        Some(Arc::new(pattern(bytes)))
    })
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 % 251) as u8).collect()
}

#[test]
fn blocks_of_any_length_come_within_a_host_and_between_hosts() {
    for host in ["here", "there"] {
        let (answering, asking) = pair(host);
        answering.serve(blocks()).unwrap();
        answering.serve(Arc::new(|_| panic!("the first call counts"))).unwrap();
        for bytes in [0, 1, (1 << 20) - 1, 1 << 20, (4 << 20) + 3] {
            let answer = asking.ask(0, bytes.to_string().as_bytes(), bytes, DEADLINE).unwrap().unwrap();
            assert_eq!(answer.block, pattern(bytes));
        }
        assert_eq!(asking.ask(0, b"what is that", 5, DEADLINE).unwrap(), None);
        // A block of another length is not what was asked for; the next question is answered.
        assert_eq!(asking.ask(0, b"7", 8, DEADLINE).unwrap_err().kind(), ErrorKind::InvalidData);
        assert_eq!(asking.ask(0, b"7", 7, DEADLINE).unwrap().unwrap().block, pattern(7));
    }
}

#[test]
fn whoever_does_not_serve_refuses_at_once() {
    for host in ["here", "there"] {
        let (answering, asking) = pair(host);
        assert_eq!(asking.ask(0, b"1", 1, NEVER).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        assert!(asking.ask(7, b"1", 1, NEVER).unwrap_err().to_string().contains("where it listens"));
        drop(answering);
        assert!(asking.ask(0, b"1", 1, DEADLINE).is_err());
    }
}

#[test]
fn a_rank_that_fetches_is_waited_for_and_that_is_no_time_on_the_way() {
    let (answering, asking) = pair("there");
    answering
        .serve(Arc::new(|_| {
            // Longer than a rank may be silent.
            lapse("the rank that fetches", Duration::from_millis(2600));
            Some(Arc::new(vec![7]))
        }))
        .unwrap();
    let answer = asking.ask(0, b"slow", 1, DEADLINE).unwrap().unwrap();
    assert_eq!(answer.block, [7]);
    assert!(answer.on_its_way < Duration::from_millis(2600), "{:?}", answer.on_its_way);
    let error = asking.ask(0, b"slow", 1, Duration::from_millis(600)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
}

#[test]
fn an_answer_that_panics_is_no_block_and_the_next_question_is_answered() {
    let (answering, asking) = pair("here");
    let asked = AtomicUsize::new(0);
    answering
        .serve(Arc::new(move |_| {
            assert!(asked.fetch_add(1, Ordering::Relaxed) > 0, "this panic is part of the test");
            Some(Arc::new(vec![7]))
        }))
        .unwrap();
    assert_eq!(asking.ask(0, b"x", 1, DEADLINE).unwrap(), None);
    assert_eq!(asking.ask(0, b"x", 1, DEADLINE).unwrap().unwrap().block, [7]);
}

#[test]
fn strangers_and_other_jobs_get_nothing() {
    let other_key = BlockPeer { key: Key::from_bytes([1; 32]), ..peer(1) };
    let other_job = BlockPeer { job: JobId::named("another"), ..peer(1) };
    for asking in [other_key, other_job] {
        let (answering, asking) = pair_with("here", asking);
        answering.serve(Arc::new(|_| panic!("nobody of this job asks"))).unwrap();
        assert!(asking.ask(0, b"1", 1, DEADLINE).is_err());
    }
}

/// Rank 0 of this host, which answers, rank 1 of another one, and the TCP address of rank 0.
fn pair_over_tcp() -> (BlockExchange, BlockExchange, SocketAddr) {
    let reserved = listener("here");
    let contacts = vec![contact("here", &reserved), contact("there", &listener("there"))];
    // The address is the last text of a contact.
    let text = String::from_utf8_lossy(&contacts[0].place).into_owned();
    let address: SocketAddr = text[text.find("127.0.0.1:").unwrap()..].parse().unwrap();
    let answering = BlockExchange::new(peer(0), reserved, contacts.clone());
    answering.serve(blocks()).unwrap();
    (answering, BlockExchange::new(peer(1), listener("there"), contacts), address)
}

#[test]
fn silent_strangers_do_not_keep_out_a_rank() {
    let (_answering, asking, address) = pair_over_tcp();
    // More than the server has connections for. They are accepted before the rank, which connects last.
    let _crowd: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(address).unwrap()).collect();
    assert_eq!(asking.ask(0, b"9", 9, DEADLINE).unwrap().unwrap().block, pattern(9));
}

#[test]
fn garbage_on_the_socket_ends_that_connection_alone() {
    let (_answering, asking, address) = pair_over_tcp();
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 4096], &[0xff; 100_000]] {
        let mut stream = TcpStream::connect(address).unwrap();
        // The other side may close it before everything is written.
        let _ = stream.write_all(garbage);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    }
    assert_eq!(asking.ask(0, b"9", 9, DEADLINE).unwrap().unwrap().block, pattern(9));
}

#[test]
fn a_rank_that_comes_back_is_asked_over_a_new_connection() {
    let (answering, asking) = pair("here");
    answering.serve(blocks()).unwrap();
    asking.ask(0, b"3", 3, DEADLINE).unwrap().unwrap();
    drop(answering);
    assert!(asking.ask(0, b"3", 3, NEVER).is_err(), "nobody is there");
}

#[test]
fn many_ask_at_once_and_dropping_ends_all_threads() {
    let (answering, asking) = pair("here");
    answering.serve(blocks()).unwrap();
    std::thread::scope(|scope| {
        for number in 0..24usize {
            let asking = &asking;
            scope.spawn(move || {
                for bytes in [1000 * number, 100_000] {
                    let answer = asking.ask(0, bytes.to_string().as_bytes(), bytes, DEADLINE).unwrap().unwrap();
                    assert_eq!(answer.block, pattern(bytes));
                }
            });
        }
    });
    drop(answering);
    wait_until("the end of all threads of connections", DEADLINE, || threads_named("block-server") == 0);
}

/// Threads of this process with this name; other tests of this program run in processes of their own.
fn threads_named(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks.filter(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(|own| own.trim() == name)).count()
}

#[test]
fn watchers_hear_of_every_exchange_of_the_process() {
    let current = CurrentExchange::default();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let note = Arc::clone(&heard);
    let (first, second) = pair("here");
    let (first, second) = (Arc::new(first), Arc::new(second));
    current.set(Arc::clone(&first));
    current.watch(move |exchange| note.lock().unwrap().push(exchange.map(|exchange| exchange.rank())));
    current.set(Arc::clone(&second));
    current.clear(&first);
    current.clear(&second);
    assert_eq!(*heard.lock().unwrap(), [Some(0), Some(1), None]);
}
