//! Replays the seeds of this crate's fuzz targets: what the fuzzer checks of any bytes holds for these without a
//! fuzzer.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod agree;
mod message;
mod note;
#[path = "../../../../fuzz/seeds.rs"]
mod seeds;
mod stall;
mod table;

use std::sync::Arc;
use std::time::Duration;

use farandole_plan::item::{Item, Placement};
use farandole_plan::message::{Agreed, Announcement, Message};
use farandole_plan::p2p::{self, Note};
use farandole_plan::request::Batch;
use farandole_plan::stall::{
    DirectCall, DirectWait, GroupState, Interpreter, Lately, MainThread, RankStatus, RunningBucket, StallFinding,
    ThreadStack, Word,
};
use farandole_plan::table::{Class, Form, Measurement, Table, TableFile, Way};
use farandole_plan::{
    Algorithm, Collective, Device, Dtype, Exit, GroupId, Rank, RankDeparture, RankProgress, ReduceOp, Request,
};
use seeds::{Seed, replay};

fn encoded(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    assert_eq!(Message::decode(&bytes).as_ref(), Ok(message));
    bytes
}

fn announce(requests: impl IntoIterator<Item = Request>) -> Message {
    let requests = requests
        .into_iter()
        .map(|request| Announcement { request, seen: 0, waited: Duration::from_millis(300) })
        .collect();
    Message::Announce { round: 0, requests }
}

fn item(name: &str, rows: Vec<u64>, collective: Collective) -> Arc<Item> {
    Arc::new(Item {
        name: name.into(),
        collective,
        dtype: Dtype::F32,
        shape: vec![if rows.is_empty() { 6 } else { 0 }, 2],
        device: Placement::Cpu,
        rows,
        joined: Vec::new(),
        batch: None,
        priority: 0,
    })
}

fn agreed(items: impl IntoIterator<Item = Arc<Item>>) -> Message {
    Message::Agreed { round: 0, items: items.into_iter().map(|item| Agreed { item, seen: 0 }).collect() }
}

fn sum() -> Collective {
    Collective::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 }
}

fn departure() -> RankDeparture {
    let progress = RankProgress { steps: 39, step: 40, collectives: 117 };
    RankDeparture { rank: Rank(1), exit: Exit { code: Some(-1), cause: Some("raised KeyError: 'x'".into()) }, progress }
}

#[test]
fn messages_of_the_corpus_decode_or_are_refused() {
    let everything = Request {
        batch: Some(Batch { name: "batch".into(), members: 3 }),
        device: Device::Gpu(7),
        priority: -5,
        collective: Collective::Alltoall { splits: Some(vec![1, 2, 1 << 40]) },
        dtype: Dtype::BF16,
        shape: vec![3 + (1 << 40), 1],
        ..agree::request(0)
    };
    let mut made: Vec<Seed> = [
        ("announce", announce((0..6).map(agree::request))),
        ("announce_everything", announce([everything])),
        ("agreed", agreed([item("a", vec![], sum()), item("d", vec![6, 0, 1], Collective::Allgather)])),
        ("refuse", Message::Refuse { names: vec!["a".into(), "b".into()], reason: "they differ".into() }),
        ("joined", Message::Joined { last: Rank(2) }),
        ("replay", Message::Replay { round: 1, items: 2, hash: u64::MAX }),
        ("halt", Message::Halt { round: 300 }),
        ("stopped", Message::Stopped { round: 300, entered: 1 << 39, completed: 5 }),
        ("resume", Message::Resume { round: 301, until: 6 }),
        ("close", Message::Close { departure: None }),
        ("close_of_a_rank_that_leaves", Message::Close { departure: Some(departure()) }),
        ("closed", Message::Closed { cause: "the program is done".into(), departure: Some(departure()) }),
        ("reduces", Message::Reduces { names: vec!["a".into(), "b".into()] }),
    ]
    .map(|(name, message)| (name, encoded(&message)))
    .into();
    made.extend([
        ("empty", Vec::new()),
        ("unknown_kind", vec![99, 0, 0, 0, 0]),
        ("wrong_length", vec![10, 1, 0, 0, 0]),
        ("a_number_that_is_too_long", vec![7, 3, 0, 0, 0, 0x80, 0x80, 0x00]),
        ("a_list_longer_than_the_message", vec![3, 5, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f]),
    ]);
    replay("message", &made, message::check);
}

#[test]
fn notes_of_the_corpus_decode_or_are_refused() {
    let form = p2p::Form { dtype: Dtype::BF16, bytes: 1 << 40 };
    let notes = [
        ("offer", Note::Offer { number: 300, tag: 7, form }),
        ("accept", Note::Accept { number: 0 }),
        ("piece", Note::Piece { number: 1 << 40 }),
        ("refuse", Note::Refuse { number: 1, form }),
    ];
    let mut made: Vec<Seed> = notes
        .map(|(name, note)| {
            let mut bytes = Vec::new();
            note.encode(&mut bytes);
            bytes.extend_from_slice(b"bytes");
            (name, bytes)
        })
        .into();
    made.extend([("empty", Vec::new()), ("unknown_kind", vec![4, 0]), ("unknown_type", vec![0, 0, 0, 13, 0])]);
    replay("note", &made, note::check);
}

#[test]
fn words_about_stalls_of_the_corpus_decode_or_are_refused() {
    let lately = |what: &str, ms: u64| Lately { what: what.into(), ago: Duration::from_millis(ms) };
    let running = RunningBucket {
        tensor: lately("w", 300),
        operation: 1 << 45 | 9,
        place: "step 1 of 6 of an allreduce".into(),
        still: Duration::from_millis(299),
        peer: Some(Rank(3)),
    };
    let threads = vec![ThreadStack { name: "MainThread".into(), frames: vec!["a.py:3 in f: g()".into(), "ü".into()] }];
    let full = RankStatus {
        pid: 4_000_000,
        records: true,
        phase: Some(lately("evaluation", 61_000)),
        epoch: Some(2),
        iteration: Some((310, Duration::from_secs(61))),
        finished: Some(lately("w", 61_001)),
        submitted: Some(lately("v", 1)),
        direct: Some(DirectCall { call: lately("barrier", 5), operation: 1 << 40, peer: None }),
        direct_done: Some(lately("allreduce", 7)),
        groups: vec![GroupState { group: GroupId(3), pending: 9, names: vec!["w".into()], running: Some(running) }],
        main_thread: MainThread::Disk,
        interpreter: Interpreter::Answered(threads.clone()),
    };
    let silent =
        RankStatus { interpreter: Interpreter::Silent(Duration::from_secs(1), threads), ..RankStatus::default() };
    let answer = |rank_status: RankStatus| Word::Answer { number: 3, rank_status: Box::new(rank_status) };
    let (verdict, text) = ("rank 1 is stopped".into(), "Stall: rank 1 is stopped".into());
    let finding = StallFinding { tensor: "w".into(), missing: 1, first: Rank(1), verdict, text };
    let wait = DirectWait {
        operation: 17,
        call: "barrier".into(),
        waited: Duration::from_millis(60_250),
        limit: Duration::from_secs(60),
        missing: vec![Rank(1), Rank(300)],
    };
    let mut made: Vec<Seed> = [
        ("ask", Word::Ask { number: u64::MAX }),
        ("answer", answer(full)),
        ("answer_with_nothing", answer(RankStatus::default())),
        ("answer_of_a_silent_interpreter", answer(silent)),
        ("report", Word::Report(finding)),
        ("direct", Word::Direct(wait)),
        ("heard", Word::Heard),
    ]
    .map(|(name, word)| {
        let mut bytes = Vec::new();
        word.encode(&mut bytes);
        assert_eq!(Word::decode(&bytes), Ok(word));
        (name, bytes)
    })
    .into();
    made.extend([
        ("empty", Vec::new()),
        ("unknown_kind", vec![9]),
        ("neither_yes_nor_no", vec![2, 3, 77, 2]),
        ("a_list_longer_than_the_word", vec![2, 3, 77, 1, 0, 0, 0, 0, 0, 0, 0, 0xff, 0x0f]),
        ("an_unknown_state", vec![2, 3, 77, 1, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0]),
        ("more_missing_ranks_than_bytes", vec![4, 17, 1, b'b', 0, 0, 0xff, 0x0f]),
    ]);
    replay("stall", &made, stall::check);
}

/// A conversation: who listens, then turns as `agree` reads them.
fn talk(listener: u8, turns: &[Turn]) -> Vec<u8> {
    let mut bytes = vec![listener];
    for turn in turns {
        match turn {
            Turn::Asks(which) => bytes.push(8 * which),
            Turn::Finishes => bytes.push(2),
            Turn::Hears(from, message) => {
                let message = encoded(message);
                bytes.extend([4, *from, u8::try_from(message.len()).unwrap()]);
                bytes.extend(message);
            }
        }
    }
    bytes
}

enum Turn {
    Asks(u8),
    Finishes,
    Hears(u8, Message),
}

#[test]
fn conversations_of_the_corpus_end_in_peace_or_with_a_name() {
    use Turn::{Asks, Finishes, Hears};
    let a = || announce([agree::request(0)]);
    let stream = |items| Hears(0, agreed(items));
    let made: [Seed; 5] = [
        ("coordinator_agrees", talk(0, &[Asks(0), Hears(1, a()), Hears(2, a()), Finishes])),
        ("coordinator_joins", talk(0, &[Asks(5), Hears(1, announce([agree::request(5)])), Hears(2, a())])),
        ("member_runs", talk(1, &[Asks(0), stream([item("a", vec![], sum())]), Finishes])),
        ("member_hears_of_a_stranger", talk(2, &[stream([item("z", vec![], sum())])])),
        (
            "member_is_halted",
            talk(1, &[Hears(0, Message::Halt { round: 0 }), Hears(0, Message::Resume { round: 1, until: 0 })]),
        ),
    ];
    replay("agree", &made, agree::check);
}

#[test]
fn tables_of_the_corpus_parse_or_are_refused() {
    let mut table = Table::new(Class { ranks: 3, hosts: 2, smallest: 1, largest: 2 });
    for (index, algorithm) in Algorithm::ALL.into_iter().enumerate() {
        table.insert(Measurement {
            way: Way::Allreduce(algorithm),
            bytes: 4 << (4 * index),
            time_us: 1.5 * (index + 1) as f64,
        });
    }
    for (index, form) in [Form::FewSteps, Form::FewBytes].into_iter().enumerate() {
        table.insert(Measurement { way: Way::Allgather(form), bytes: 64, time_us: 2.5 + index as f64 });
        table.insert(Measurement { way: Way::Broadcast(form), bytes: 64, time_us: 3.5 - index as f64 });
    }
    assert_eq!(Table::parse(&table.to_text()), Ok(table.clone()));
    let file = TableFile { machine: "a machine, 2 cores".to_owned(), table: table.clone() }.to_text();
    let made: [Seed; 9] = [
        ("every_algorithm", table.to_text().into()),
        ("two_tables", format!("{0}{0}", table.to_text()).into()),
        ("file", file.clone().into()),
        ("file_of_the_next_version", file.replacen(" 1\n", " 2\n", 1).into()),
        ("file_cut_off", file[..file.len() / 2].into()),
        ("no_class", b"point ring 4 1.0\n".to_vec()),
        ("no_number", b"class ranks 3 hosts 2 local 1 2\npoint ring many 1.0\n".to_vec()),
        ("no_time", b"class ranks 3 hosts 2 local 1 2\npoint ring 4 NaN\n".to_vec()),
        ("no_text", vec![0xff, 0xfe]),
    ];
    replay("table", &made, table::check);
}
