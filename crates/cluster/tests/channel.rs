//! Channels between processes that hold the key, and what everybody else gets.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use farandole_cluster::channel::{
    Channel, ChannelFault, ChannelPurpose, Flushed, Patient, Polled, Received, Session, VERSION,
};
use farandole_testing::lapse;
use farandole_transport::{Countdown, Key};

const PATIENCE: Duration = Duration::from_secs(20);

fn soon() -> Countdown {
    Countdown::new(PATIENCE)
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

/// Two sessions that have shaken hands.
fn friends(key: &Key) -> (Session, Session) {
    let mut initiator = Session::initiate(key, ChannelPurpose::Agent, 5).unwrap();
    let mut responder = Session::respond(key, ChannelPurpose::Agent);
    assert!(!initiator.is_established() && responder.caller().is_none());
    responder.feed(&initiator.take_outgoing()).unwrap();
    assert!(!responder.is_established(), "an opening may be a recording");
    initiator.feed(&responder.take_outgoing()).unwrap();
    responder.feed(&initiator.take_outgoing()).unwrap();
    assert!(initiator.is_established() && responder.is_established());
    assert_eq!(responder.caller(), Some(5));
    (initiator, responder)
}

/// Once a stream could hold a whole message while the next one waited, and its end looked clean to the other side.
#[test]
fn a_message_that_waits_shows_in_the_one_before_it() {
    let (mut near, mut far) = friends(&Key::random().unwrap());
    near.send(b"first").unwrap();
    near.send(b"second").unwrap();
    let written = near.next_write().to_vec();
    near.sent(written.len());
    assert!(near.is_mid_message());
    far.feed(&written).unwrap();
    assert_eq!(far.next_message(), None);
    let rest = near.next_write().to_vec();
    assert_eq!(rest.len(), near.outgoing().len(), "the last byte goes with the message behind it");
    near.sent(rest.len());
    assert!(!near.is_mid_message() && near.outgoing().is_empty());
    far.feed(&rest).unwrap();
    assert_eq!([far.next_message(), far.next_message()], [Some(b"first".to_vec()), Some(b"second".to_vec())]);
    near.send(b"third").unwrap();
    near.send(b"fourth").unwrap();
    let written = near.next_write().to_vec();
    far.feed(&written).unwrap();
    assert_eq!(far.feed_end(), Err(ChannelFault::Truncated));
}

/// Sends messages of several lengths there and back over blocking channels.
fn talk<S: Patient + Send + 'static>(near: S, far: S) {
    let key = Key::random().unwrap();
    let far_key = key.clone();
    let echo = thread::spawn(move || -> io::Result<()> {
        let mut channel = Channel::accept(far, &far_key, ChannelPurpose::Rendezvous, &soon())?;
        assert_eq!(channel.caller(), 3);
        while let Some(message) = channel.receive(&soon())? {
            channel.send(&message, &soon())?;
        }
        Ok(())
    });
    let mut channel = Channel::connect(near, &key, ChannelPurpose::Rendezvous, 3, &soon()).unwrap();
    for bytes in [0, 1, 65_517, 65_518, 65_519, 200_000, 3 << 20] {
        let message: Vec<u8> = (0..bytes).map(|i| (i * 7 + i / 251) as u8).collect();
        channel.send(&message, &soon()).unwrap();
        assert!(channel.receive(&soon()).unwrap().as_deref() == Some(&message), "{bytes} bytes came back changed");
    }
    drop(channel);
    echo.join().unwrap().unwrap();
}

#[test]
fn messages_of_any_length_arrive_whole_over_tcp_and_unix_sockets() {
    let (near, far) = tcp_pair();
    talk(near, far);
    let (near, far) = UnixStream::pair().unwrap();
    talk(near, far);
}

/// Turns the loops of two polled channels until the near one has received something.
fn turn(near: &mut Polled<UnixStream>, far: &mut Polled<UnixStream>) -> (Vec<Vec<u8>>, usize) {
    let (mut arrived, mut partly) = (Vec::new(), 0);
    let end = soon();
    while arrived.is_empty() || near.wants_write() || far.wants_write() {
        assert!(!end.is_over(), "nothing moves");
        for channel in [&mut *near, &mut *far] {
            partly += usize::from(channel.flush().unwrap() == Flushed::Partly);
            while let Received::Message(message) = channel.receive().unwrap() {
                arrived.push(message);
            }
        }
    }
    (arrived, partly)
}

#[test]
fn polled_channels_carry_what_was_queued_before_and_after_the_handshake() {
    let key = Key::random().unwrap();
    let (near, far) = UnixStream::pair().unwrap();
    let mut near = Polled::connect(near, &key, ChannelPurpose::Agent, 9).unwrap();
    let mut far = Polled::accept(far, &key, ChannelPurpose::Agent).unwrap();
    assert_eq!(far.receive().unwrap(), Received::NothingYet);
    far.queue(b"queued before anything").unwrap();
    assert_eq!(turn(&mut near, &mut far).0, [b"queued before anything"]);
    assert_eq!(far.caller(), Some(9));
    let long = vec![77; 8 << 20];
    near.queue(&long).unwrap();
    let (arrived, partly) = turn(&mut near, &mut far);
    assert!(arrived == [long] && partly > 0, "a full socket is not waited for");
    drop(near);
    assert_eq!(far.receive().unwrap(), Received::Closed);
}

#[test]
fn whoever_holds_another_key_or_means_another_purpose_is_a_stranger_on_both_sides() {
    let key = Key::random().unwrap();
    for (their_key, their_purpose) in
        [(Key::random().unwrap(), ChannelPurpose::Agent), (key.clone(), ChannelPurpose::Rendezvous)]
    {
        let mut initiator = Session::initiate(&their_key, their_purpose, 0).unwrap();
        let mut responder = Session::respond(&key, ChannelPurpose::Agent);
        assert_eq!(responder.feed(&initiator.take_outgoing()), Err(ChannelFault::Stranger));
        let answer = responder.take_outgoing();
        assert_eq!(answer, [&b"FRNDCHN"[..], &[VERSION]].concat(), "a stranger learns the version and nothing else");
        initiator.feed(&answer).unwrap();
        assert_eq!(initiator.feed_end(), Err(ChannelFault::Stranger), "and knows why");
        let mut friend = Session::initiate(&key, ChannelPurpose::Agent, 0).unwrap();
        let mut impostor = Session::respond(&their_key, their_purpose);
        let _ = impostor.feed(&friend.take_outgoing());
        // An impostor cannot even open the first message; were it to answer all the same, its answer would not open.
        let preamble = [&b"FRNDCHN"[..], &[VERSION]].concat();
        assert_eq!(friend.feed(&[&preamble[..], &[9; 48]].concat()), Err(ChannelFault::Stranger));
    }
}

#[test]
fn a_changed_caller_does_not_open() {
    let key = Key::random().unwrap();
    let mut opening = Session::initiate(&key, ChannelPurpose::Agent, 1).unwrap().take_outgoing();
    opening[12] = 2;
    assert_eq!(Session::respond(&key, ChannelPurpose::Agent).feed(&opening), Err(ChannelFault::Stranger));
}

#[test]
fn another_version_is_named_on_both_sides() {
    let key = Key::random().unwrap();
    let mut initiator = Session::initiate(&key, ChannelPurpose::Agent, 0).unwrap();
    let mut opening = initiator.take_outgoing();
    opening[7] = VERSION + 1;
    let mut responder = Session::respond(&key, ChannelPurpose::Agent);
    let fault = responder.feed(&opening).unwrap_err();
    assert_eq!(fault, ChannelFault::Version { theirs: VERSION + 1 });
    assert!(fault.to_string().contains("install the same farandole everywhere"), "{fault}");
    let mut answer = responder.take_outgoing();
    assert_eq!(answer.len(), 8);
    answer[7] = VERSION + 7;
    assert_eq!(initiator.feed(&answer), Err(ChannelFault::Version { theirs: VERSION + 7 }));
}

#[test]
fn what_is_no_channel_gets_no_answer() {
    let mut responder = Session::respond(&Key::random().unwrap(), ChannelPurpose::Agent);
    assert_eq!(responder.feed(b"GET / HTTP/1.1\r\n"), Err(ChannelFault::NotAChannel));
    assert_eq!(responder.take_outgoing(), b"");
    assert_eq!(responder.feed(b"x"), Err(ChannelFault::NotAChannel), "the first fault stays");
}

#[test]
fn repeated_reordered_altered_and_missing_frames_end_the_session() {
    let key = Key::random().unwrap();
    let frames = || {
        let (mut initiator, responder) = friends(&key);
        let frames = [&b"one"[..], b"two", b"three"].map(|message| {
            initiator.send(message).unwrap();
            initiator.take_outgoing()
        });
        (frames, responder)
    };
    for order in [&[0, 0][..], &[1], &[0, 2], &[0, 1, 0]] {
        let (frames, mut responder) = frames();
        let (last, good) = order.split_last().unwrap();
        for &frame in good {
            responder.feed(&frames[frame]).unwrap();
        }
        assert_eq!(responder.feed(&frames[*last]), Err(ChannelFault::Damaged), "{order:?}");
        for _ in good {
            assert!(responder.next_message().is_some(), "what came before the fault counts");
        }
        assert_eq!(responder.next_message(), None);
    }
    let (frames, _) = frames();
    for at in 2..frames[0].len() {
        let (mut initiator, mut responder) = friends(&key);
        initiator.send(b"one").unwrap();
        let mut frame = initiator.take_outgoing();
        frame[at] ^= 0x40;
        assert_eq!(responder.feed(&frame), Err(ChannelFault::Damaged), "byte {at}");
    }
}

#[test]
fn an_end_is_a_fault_unless_it_comes_between_two_messages() {
    let key = Key::random().unwrap();
    let (mut initiator, mut responder) = friends(&key);
    initiator.send(&[1; 70_000]).unwrap();
    let bytes = initiator.take_outgoing();
    responder.feed(&bytes).unwrap();
    assert_eq!(responder.feed_end(), Ok(()));
    for cut in [1, 2, 100, 65_537, 65_538, bytes.len() - 1] {
        let (mut initiator, mut responder) = friends(&key);
        initiator.send(&[1; 70_000]).unwrap();
        responder.feed(&initiator.take_outgoing()[..cut]).unwrap();
        assert_eq!(responder.feed_end(), Err(ChannelFault::Truncated), "cut after {cut} bytes");
    }
    assert_eq!(Session::respond(&key, ChannelPurpose::Agent).feed_end(), Err(ChannelFault::Truncated));
}

#[test]
fn a_message_beyond_the_limit_is_neither_sent_nor_gathered() {
    let key = Key::random().unwrap();
    let (mut initiator, responder) = friends(&key);
    let mut responder = responder.with_most_bytes(100_000);
    assert_eq!(initiator.send(&vec![0; (16 << 20) + 1]), Err(ChannelFault::TooLong { most_bytes: 16 << 20 }));
    initiator.send(&[1; 100_000]).unwrap();
    responder.feed(&initiator.take_outgoing()).unwrap();
    assert_eq!(responder.next_message().map(|message| message.len()), Some(100_000));
    initiator.send(&[1; 100_001]).unwrap();
    assert_eq!(responder.feed(&initiator.take_outgoing()), Err(ChannelFault::TooLong { most_bytes: 100_000 }));
}

#[test]
fn a_peer_that_trickles_or_stays_silent_ends_at_the_deadline() {
    let key = Key::random().unwrap();
    let (mut trickle, served) = tcp_pair();
    let opening = Session::initiate(&key, ChannelPurpose::Agent, 0).unwrap().take_outgoing();
    let server = thread::spawn(move || {
        Channel::accept(served, &key, ChannelPurpose::Agent, &Countdown::new(Duration::from_millis(300))).unwrap_err()
    });
    for byte in opening {
        if trickle.write_all(&[byte]).is_err() {
            break;
        }
        lapse("the peer that trickles", Duration::from_millis(50));
    }
    assert_eq!(server.join().unwrap().kind(), io::ErrorKind::TimedOut);
    trickle.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = Vec::new();
    let _ = trickle.read_to_end(&mut answer);
    assert_eq!(answer, b"");
}
