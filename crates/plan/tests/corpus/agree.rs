//! What must hold for a member whose peers say anything that decodes: it goes on or names who broke the protocol.
//!
//! The bytes are read as a conversation in a group of three: the first says which rank listens, then come turns. A turn
//! is a byte that says what happens and, if a peer speaks, who, a length (one byte) and the message.

use std::time::Duration;

use farandole_plan::agree::{Action, Member, Operation, Settings};
use farandole_plan::message::Message;
use farandole_plan::{Collective, Dtype, Rank, ReduceOp, Request};

/// Ranks of the group.
const SIZE: usize = 3;

/// Holds the conversation; a violation ends it, as it would end the group.
pub(crate) fn check(bytes: &[u8]) {
    let Some((first, mut rest)) = bytes.split_first() else { return };
    let mut member = Member::new(Rank::from(usize::from(*first) % SIZE), SIZE, Settings::default());
    let mut now = Duration::ZERO;
    let mut running = None;
    while let Some((turn, behind)) = rest.split_first() {
        rest = behind;
        now += Duration::from_millis(7);
        match turn % 8 {
            // The program asks for one of a few things; being refused is an answer.
            0 => drop(member.submit(request(turn / 8), now)),
            1 => member.handle_timeout(now),
            2 => finish(&mut member, &mut running, now),
            3 if turn / 8 == 0 => member.close(None),
            _ => {
                let [from, len, behind @ ..] = rest else { return };
                let Some((message, behind)) = behind.split_at_checked(usize::from(*len)) else { return };
                rest = behind;
                let Ok(message) = Message::decode(message) else { return };
                if member.receive(Rank::from(usize::from(*from) % SIZE), message, now).is_err() {
                    return;
                }
            }
        }
        drain(&mut member, &mut running, now);
    }
}

/// Takes everything that the member wants sent or done. It must come to an end by itself.
fn drain(member: &mut Member, running: &mut Option<Operation>, now: Duration) {
    for _ in 0..10_000 {
        let sent = member.poll_send(now).is_some();
        let action = member.poll_action(now);
        match &action {
            Some(Action::Run(bucket)) => {
                assert_eq!(*running, None, "one bucket at a time");
                *running = Some(bucket.operation);
            }
            Some(Action::Abandon { operation }) => {
                assert_eq!(running.take(), Some(*operation), "what is abandoned was running");
            }
            Some(Action::Closed { .. }) => *running = None,
            _ => {}
        }
        if !sent && action.is_none() {
            return;
        }
    }
    panic!("a member that is asked again and again comes to rest");
}

fn finish(member: &mut Member, running: &mut Option<Operation>, now: Duration) {
    if let Some(operation) = running.take() {
        member.finished(operation, now);
    }
}

/// One of a few requests.
pub(crate) fn request(which: u8) -> Request {
    let sum = Collective::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 };
    let (name, collective) = match which % 6 {
        0 => ("a", sum),
        1 => ("b", sum),
        2 => ("c", Collective::Broadcast { root: Rank(1) }),
        3 => ("d", Collective::Allgather),
        4 => ("e", Collective::Alltoall { splits: None }),
        _ => ("join", Collective::Join),
    };
    let shape = if matches!(collective, Collective::Join) { Vec::new() } else { vec![6, 2] };
    Request::new(name, collective, Dtype::F32, shape)
}
