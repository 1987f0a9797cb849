//! Replays the seeds of this crate's fuzz targets: what the fuzzer checks of any bytes holds for these without a
//! fuzzer.
//!
//! A decoder that refused everything would pass every such check, so what each form must decode to is tested beside it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod contact;
mod frame;
mod hello;
#[path = "../../../../fuzz/seeds.rs"]
mod seeds;

use farandole_plan::Rank;
use farandole_transport::ProcessId;
use farandole_transport::contact::Contact;
use farandole_transport::frame::{Checksum, Header, Trailer};
use farandole_transport::hello::{Hello, Purpose, Seal};
use farandole_transport::{JobId, Tag};
use seeds::{Seed, replay};

fn header(operation: u64, payload_bytes: u64, (stripe, stripes): (u16, u16), checksum: Checksum) -> Header {
    let tag = Tag { operation, message: 3, descriptor: 0xfeed_f00d };
    Header { tag, payload_bytes, stripe, stripes, checksum }
}

#[test]
fn frames_of_the_corpus_decode_or_are_refused() {
    let good = [
        ("one_stripe", header(1, 4096, (0, 1), Checksum::Off)),
        ("stripe_of_four_with_checksum", header((2 << 40) | 7, 1 << 20, (1, 4), Checksum::Crc32c)),
        ("beyond_4_gib", header(9, 5 << 32, (3, 8), Checksum::Off)),
        ("largest_numbers", header(u64::MAX, u64::MAX, (u16::MAX - 1, u16::MAX), Checksum::Crc32c)),
    ];
    for (name, header) in &good {
        assert_eq!(Header::decode(&header.encode()), Ok(*header), "{name}");
    }
    let spoilt = |at: usize, byte: u8| {
        let mut bytes = good[0].1.encode();
        bytes[at] = byte;
        bytes.to_vec()
    };
    let mut made: Vec<Seed> = good.iter().map(|(name, header)| (*name, header.encode().to_vec())).collect();
    made.extend([
        ("another_version", spoilt(4, 99)),
        ("unknown_kind", spoilt(6, 99)),
        ("unknown_flags", spoilt(7, 0xfe)),
        ("stripe_beyond_stripes", spoilt(20, 1)),
        ("no_stripes", spoilt(22, 0)),
        ("short", b"FRDL".to_vec()),
        ("http", b"GET / HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\n\r\n".to_vec()),
        ("trailer_whole", Trailer::Whole { crc: 0xdead_beef }.encode().to_vec()),
        ("trailer_void", Trailer::Void.encode().to_vec()),
    ]);
    replay("frame", &made, frame::check);
}

#[test]
fn hellos_of_the_corpus_decode_or_are_refused() {
    let control = Hello {
        job: JobId::named("Slurm step 7.0"),
        mesh: 7,
        from: Rank(0),
        to: Rank(3),
        purpose: Purpose::Control,
        seal: Seal::Off,
        connections: 4,
        stripe_from_bytes: 1 << 20,
        nonce: *b"thirty-two bytes of fresh chance",
    };
    let data = Hello { purpose: Purpose::Data { connection: 3 }, seal: Seal::On, ..control };
    for hello in [control, data] {
        assert_eq!(Hello::decode(&hello.encode()), Some(hello));
    }
    let spoilt = |at: usize, byte: u8| {
        let mut bytes = control.encode();
        bytes[at] = byte;
        bytes.to_vec()
    };
    let made: [Seed; 10] = [
        ("control", control.encode().to_vec()),
        ("data_sealed", data.encode().to_vec()),
        ("another_version", spoilt(8, 99)),
        ("unknown_purpose", spoilt(10, 99)),
        ("unknown_seal", spoilt(11, 99)),
        ("control_with_a_place", spoilt(12, 1)),
        ("no_job", spoilt(72, 0)),
        ("job_with_a_gap", spoilt(75, 0)),
        ("short", b"FARANDOL".to_vec()),
        ("http", b"GET / HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\n\r\n".to_vec()),
    ];
    replay("hello", &made, hello::check);
}

#[test]
fn contacts_of_the_corpus_decode_or_are_refused() {
    let everywhere = Contact {
        host: "node-7".to_owned(),
        unix: Some("farandole-1".to_owned()),
        addresses: vec!["10.0.0.7:4000".parse().unwrap(), "[fe80::1%3]:4001".parse().unwrap()],
        connections: 4,
        process: ProcessId { pid: 77, namespace: 4_026_531_836, start_time: 4711 },
    };
    let process = ProcessId { pid: 1, namespace: 0, start_time: 0 };
    let nowhere = Contact { host: String::new(), unix: None, addresses: Vec::new(), connections: 0, process };
    for contact in [&everywhere, &nowhere] {
        assert_eq!(Contact::decode(&contact.encode()).as_ref(), Some(contact));
    }
    let whole = everywhere.encode();
    let without_pid = [&whole[..3], &[0; 4], &whole[7..]].concat();
    let made: [Seed; 7] = [
        ("everywhere", whole.clone()),
        ("nowhere", nowhere.encode()),
        ("cut_off", whole[..whole.len() - 1].to_vec()),
        ("more_behind", [&whole[..], &[0]].concat()),
        ("another_format", [&[9], &whole[1..]].concat()),
        ("without_pid", without_pid),
        ("longer_than_it_is", [&whole[..23], &[0xff, 0xff, b'a']].concat()),
    ];
    replay("contact", &made, contact::check);
}
