//! Messages survive encoding, and nothing else is taken for a message.

use std::sync::Arc;

use farandole_plan::item::{Item, Placement};
use farandole_plan::message::{Agreed, Announcement, Message};
use farandole_plan::request::Batch;
use farandole_plan::{Collective, Device, Dtype, Exit, Rank, RankDeparture, RankProgress, ReduceOp, Request};
use proptest::prelude::*;

fn name() -> impl Strategy<Value = Arc<str>> {
    "[a-zß/.0-9]{0,20}".prop_map(Arc::from)
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..200_u64, any::<u64>()]
}

fn reduction() -> impl Strategy<Value = (ReduceOp, f64, f64)> {
    (0..6_usize, -1e9..1e9_f64, prop_oneof![Just(1.0), Just(f64::INFINITY), -1.0..1.0_f64])
        .prop_map(|(op, prescale, postscale)| (ReduceOp::ALL[op], prescale, postscale))
}

fn collective() -> impl Strategy<Value = Collective> {
    prop_oneof![
        reduction().prop_map(|(op, prescale, postscale)| Collective::Allreduce { op, prescale, postscale }),
        reduction().prop_map(|(op, prescale, postscale)| Collective::ReduceScatter { op, prescale, postscale }),
        Just(Collective::Allgather),
        any::<u32>().prop_map(|root| Collective::Broadcast { root: Rank(root) }),
        proptest::option::of(proptest::collection::vec(number(), 0..5))
            .prop_map(|splits| Collective::Alltoall { splits }),
        Just(Collective::Barrier),
        Just(Collective::Join),
    ]
}

fn batch() -> impl Strategy<Value = Option<Batch>> {
    proptest::option::of((name(), any::<u32>()).prop_map(|(name, members)| Batch { name, members }))
}

fn dtype() -> impl Strategy<Value = Dtype> {
    (0..Dtype::ALL.len()).prop_map(|number| Dtype::ALL[number])
}

fn request() -> impl Strategy<Value = Request> {
    let device = prop_oneof![Just(Device::Cpu), any::<u32>().prop_map(Device::Gpu)];
    let shape = proptest::collection::vec(number(), 0..5);
    (name(), collective(), dtype(), shape, device, batch(), any::<i32>()).prop_map(
        |(name, collective, dtype, shape, device, batch, priority)| Request {
            name,
            collective,
            dtype,
            shape,
            device,
            batch,
            priority,
        },
    )
}

fn item() -> impl Strategy<Value = Item> {
    let device = prop_oneof![Just(Placement::Cpu), Just(Placement::Gpu)];
    let shape = proptest::collection::vec(0..1000_u64, 0..4);
    let rows = proptest::collection::vec(0..1000_u64, 0..10);
    let joined = proptest::collection::vec(any::<u32>().prop_map(Rank), 0..3);
    (name(), collective(), dtype(), shape, device, rows, joined, batch(), any::<i32>()).prop_map(
        |(name, collective, dtype, shape, device, rows, joined, batch, priority)| Item {
            name,
            collective,
            dtype,
            shape,
            device,
            rows,
            joined,
            batch,
            priority,
        },
    )
}

fn message() -> impl Strategy<Value = Message> {
    let announcement = (request(), any::<u64>(), any::<u64>()).prop_map(|(request, seen, waited_us)| {
        let waited = std::time::Duration::from_micros(waited_us);
        Announcement { request, seen, waited }
    });
    let agreed = (item(), any::<u64>()).prop_map(|(item, seen)| Agreed { item: Arc::new(item), seen });
    let g = any::<u32>;
    prop_oneof![
        (g(), proptest::collection::vec(announcement, 0..4))
            .prop_map(|(round, requests)| Message::Announce { round, requests }),
        (g(), proptest::collection::vec(agreed, 0..4)).prop_map(|(round, items)| Message::Agreed { round, items }),
        (proptest::collection::vec(name(), 0..4), name()).prop_map(|(names, reason)| Message::Refuse { names, reason }),
        g().prop_map(|last| Message::Joined { last: Rank(last) }),
        (g(), g(), any::<u64>()).prop_map(|(round, items, hash)| Message::Replay { round, items, hash }),
        g().prop_map(|round| Message::Halt { round }),
        (g(), number(), number()).prop_map(|(round, entered, completed)| Message::Stopped {
            round,
            entered,
            completed
        }),
        (g(), number()).prop_map(|(round, until)| Message::Resume { round, until }),
        departure().prop_map(|departure| Message::Close { departure }),
        (name(), departure()).prop_map(|(cause, departure)| Message::Closed { cause, departure }),
        proptest::collection::vec(name(), 0..4).prop_map(|names| Message::Reduces { names }),
    ]
}

fn departure() -> impl Strategy<Value = Option<RankDeparture>> {
    let exit = (proptest::option::of(any::<i32>()), proptest::option::of(name()));
    let exit = exit.prop_map(|(code, cause)| Exit { code, cause });
    let progress = (number(), number(), number());
    let progress = progress.prop_map(|(steps, step, collectives)| RankProgress { steps, step, collectives });
    let made = (any::<u32>(), exit, progress);
    proptest::option::of(made.prop_map(|(rank, exit, progress)| RankDeparture { rank: Rank(rank), exit, progress }))
}

fn encoded(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_encoded_is_decoded(message in message()) {
        prop_assert_eq!(Message::decode(&encoded(&message)), Ok(message));
    }

    #[test]
    fn a_message_cut_short_or_made_longer_is_malformed(message in message(), extra in any::<u8>()) {
        let mut bytes = encoded(&message);
        for len in 0..bytes.len() {
            prop_assert!(Message::decode(&bytes[..len]).is_err());
        }
        bytes.push(extra);
        prop_assert!(Message::decode(&bytes).is_err());
    }

    #[test]
    fn damaged_messages_are_refused_or_mean_what_they_say(message in message(), at in any::<usize>(), to in any::<u8>()) {
        let mut bytes = encoded(&message);
        let at = at % bytes.len();
        bytes[at] = to;
        // Each value has one encoding, so whatever is accepted encodes to the same bytes.
        if let Ok(other) = Message::decode(&bytes) {
            prop_assert_eq!(encoded(&other), bytes);
        }
    }

    #[test]
    fn garbage_is_never_a_panic(kind in 0..14_u8, body in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = vec![kind];
        bytes.extend(u32::try_from(body.len()).unwrap().to_le_bytes());
        bytes.extend(body);
        let _ = Message::decode(&bytes);
    }
}

#[test]
fn lengths_that_lie_allocate_nothing() {
    // An announcement that claims 2^60 requests.
    let mut body = vec![0];
    body.extend([0x80; 8]);
    body.push(0x10);
    let mut bytes = vec![1];
    bytes.extend(u32::try_from(body.len()).unwrap().to_le_bytes());
    bytes.extend(body);
    assert_eq!(Message::decode(&bytes).unwrap_err().expected, "a number of requests");
}

#[test]
fn items_whose_sizes_overflow_are_malformed() {
    let item = |shape: Vec<u64>, rows: Vec<u64>| Item {
        name: "x".into(),
        collective: Collective::Allgather,
        dtype: Dtype::F64,
        shape,
        device: Placement::Cpu,
        rows,
        joined: vec![],
        batch: None,
        priority: 0,
    };
    let decodes = |item| {
        let items = vec![Agreed { item: Arc::new(item), seen: 0 }];
        Message::decode(&encoded(&Message::Agreed { round: 0, items })).is_ok()
    };
    assert!(decodes(item(vec![0, 1 << 30], vec![1 << 20, 1 << 20])));
    assert!(!decodes(item(vec![0, 1 << 40], vec![1 << 20, 1 << 20])));
    assert!(!decodes(item(vec![0, 1], vec![u64::MAX, 1])));
    assert!(!decodes(item(vec![0, 1 << 32, 1 << 32], vec![0])));
}
