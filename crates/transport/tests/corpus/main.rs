//! Replays the seeds of this crate's fuzz targets: what the fuzzer checks of any bytes holds for these without a fuzzer.
//!
//! A decoder that refused everything would pass every such check, so what each form must decode to is tested beside it.

mod frame;
#[path = "../../../../fuzz/seeds.rs"]
mod seeds;

use farandole_transport::Tag;
use farandole_transport::frame::{Checksum, Header, Trailer};
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
