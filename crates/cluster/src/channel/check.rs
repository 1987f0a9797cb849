//! What must hold for any bytes that come to a session. The fuzzer calls it, and a test with the fuzzer's seeds.
//!
//! Key pairs are fixed here, so that an input does the same in every run, and so that seeds can hold real handshakes.

use farandole_transport::Key;

use super::{ChannelFault, ChannelPurpose, Session};

const CALLER: u32 = 7;

/// Feeds the bytes to both sides, before and after they know each other, cut in pieces of the first byte's length; and
/// carries them as a message.
#[doc(hidden)]
pub fn check_any_session(bytes: &[u8]) {
    let (piece_bytes, bytes) = match bytes.split_first() {
        Some((&first, rest)) => (usize::from(first).max(1), rest),
        None => (1, bytes),
    };
    let (mut initiator, mut responder) = strangers();
    let answered = feed(&mut initiator, bytes, piece_bytes);
    assert!(!initiator.is_established() || answered.is_ok() || bytes.len() > 56, "an answer has 56 bytes");
    let _ = feed(&mut responder, bytes, piece_bytes);
    for session in [&mut initiator, &mut responder] {
        assert!(session.take_outgoing().len() <= 64 + 19, "nothing but a handshake is sent to a stranger");
    }

    let (mut initiator, mut responder) = friends();
    for session in [&mut initiator, &mut responder] {
        let fed = feed(session, bytes, piece_bytes);
        if fed.is_err() {
            assert_eq!(session.feed(&[0]), fed, "the first fault stays");
            assert_eq!(session.send(b"late"), fed, "nothing is sent after a fault");
        }
        assert_eq!(session.take_outgoing(), b"", "nobody answers bytes that no friend has sent");
    }

    let (mut initiator, mut responder) = friends();
    for _ in 0..2 {
        initiator.send(bytes).expect("it is short enough");
        feed(&mut responder, &initiator.take_outgoing(), piece_bytes).expect("frames of a friend open");
        assert_eq!(responder.next_message().as_deref(), Some(bytes), "a message arrives as it was sent");
    }
}

fn feed(session: &mut Session, bytes: &[u8], piece_bytes: usize) -> Result<(), ChannelFault> {
    bytes.chunks(piece_bytes).try_for_each(|piece| session.feed(piece))
}

fn strangers() -> (Session, Session) {
    Session::predictable_pair(&Key::from_bytes([1; 32]), ChannelPurpose::Rendezvous, CALLER)
}

/// Two sides that have shaken hands.
fn friends() -> (Session, Session) {
    let (mut initiator, mut responder) = strangers();
    responder.feed(&initiator.take_outgoing()).expect("an opening is understood");
    initiator.feed(&responder.take_outgoing()).expect("an answer is understood");
    responder.feed(&initiator.take_outgoing()).expect("a confirmation is understood");
    assert!(initiator.is_established() && responder.is_established(), "three messages make a channel");
    (initiator, responder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeds;

    /// With the byte that says how a check cuts it: whole.
    fn seed(bytes: &[u8]) -> Vec<u8> {
        [&[255], bytes].concat()
    }

    #[test]
    fn sessions_survive_the_bytes_of_the_corpus() {
        let (mut initiator, mut responder) = strangers();
        let opening = initiator.take_outgoing();
        responder.feed(&opening).unwrap();
        let answer = responder.take_outgoing();
        initiator.feed(&answer).unwrap();
        let confirmation = initiator.take_outgoing();
        initiator.send(b"gently").unwrap();
        let frame = initiator.take_outgoing();
        let mut altered = answer.clone();
        altered[20] ^= 1;
        let mut another_version = opening.clone();
        another_version[7] = 200;
        assert_eq!((opening.len(), answer.len(), confirmation.len()), (64, 56, 19));
        let made = [
            ("opening", seed(&opening)),
            ("answer", seed(&answer)),
            ("confirmation", seed(&confirmation)),
            ("opening_and_confirmation", seed(&[&opening[..], &confirmation].concat())),
            ("whole_conversation", seed(&[&opening[..], &confirmation, &frame].concat())),
            ("byte_by_byte", [&[1], &opening[..], &confirmation, &frame].concat()),
            ("next_frame", seed(&frame)),
            ("repeated_frame", seed(&[&frame[..], &frame].concat())),
            ("altered_answer", seed(&altered)),
            ("another_version", seed(&another_version)),
            ("web_browser", seed(b"GET / HTTP/1.1\r\nHost: rendezvous\r\n\r\n")),
            ("frame_too_short", seed(&[16, 0, 1, 2, 3])),
            ("longest_frame", seed(&[255; 300])),
            ("empty", Vec::new()),
        ];
        seeds::replay("session", &made, check_any_session);
    }

    #[test]
    fn a_recorded_opening_gets_an_answer_but_no_channel() {
        let (mut initiator, _) = strangers();
        let recorded = initiator.take_outgoing();
        let mut responder = Session::respond(&Key::from_bytes([1; 32]), ChannelPurpose::Rendezvous);
        responder.feed(&recorded).unwrap();
        assert_eq!(responder.take_outgoing().len(), 56);
        let (mut initiator, mut other) = strangers();
        other.feed(&initiator.take_outgoing()).unwrap();
        initiator.feed(&other.take_outgoing()).unwrap();
        assert_eq!(
            responder.feed(&initiator.take_outgoing()),
            Err(ChannelFault::Stranger),
            "a confirmation fits one answer"
        );
        assert!(!responder.is_established());
    }
}
