//! Replays the seeds of this crate's fuzz targets, and mutations of them: what the fuzzer checks of any bytes holds for
//! these without a fuzzer.
//!
//! `FARANDOLE_MUTATIONS=1000000` tries so many for each target instead of a few.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bodies;
#[path = "../memory/counting.rs"]
mod counting;
#[path = "../memory/parquet_file.rs"]
mod parquet_file;
#[path = "../../../../fuzz/seeds.rs"]
mod seeds;

use std::sync::{Mutex, PoisonError};

use counting::peak_of;
use farandole_data::limit::Limit;
use seeds::{Seed, replay};

/// The limit of one item in these tests.
const LIMIT: usize = 8 << 20;

/// What one input may allocate at once. All of them have less than a megabyte.
const ALLOWED: usize = 8 * LIMIT;

/// Mutations of each target where nothing is said: a second or so in all.
const MUTATIONS: usize = 4_000;

/// Random numbers that are the same in every run (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// Changes some bytes as fuzzers do: single ones, numbers, parts that are cut, doubled or moved.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(5) {
        if bytes.is_empty() {
            bytes.push(0);
        }
        let (at, other) = (random.below(bytes.len()), random.below(bytes.len()));
        let (begin, end) = (at.min(other), at.max(other));
        match random.below(8) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next() as u8,
            2 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff, b'0', b'9', b','][random.below(8)],
            3 => bytes.truncate(at.max(1)),
            4 => {
                let width = [2, 4, 8][random.below(3)].min(bytes.len() - at);
                let number = [0, 1, u64::MAX, 1 << 31, 1 << 20, 0xffff][random.below(6)];
                bytes[at..at + width].copy_from_slice(&number.to_le_bytes()[..width]);
            }
            5 if bytes.len() < 1 << 16 => {
                let part = bytes[begin..end].to_vec();
                bytes.splice(at..at, part);
            }
            6 => {
                bytes.drain(begin..end);
            }
            _ => bytes[begin..end].rotate_left((end - begin) / 2),
        }
    }
}

/// Replays the seeds of a target, and tries what they become when they are damaged.
fn try_all(target: &str, made: &[Seed], check: impl Fn(&[u8]) -> usize) {
    // Tests measure one at a time where they share a process. A test that has failed is no reason for others to.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // A backtrace of a panic that a decoder's guard catches needs more memory than decoders may.
    std::panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
    assert_eq!(Limit::set(LIMIT as u64), Limit::of(LIMIT as u64));
    let check = |bytes: &[u8]| {
        let (read, peak) = peak_of(|| check(bytes));
        assert!(peak <= ALLOWED, "{target}: {peak} bytes were allocated at once for {} bytes", bytes.len());
        read
    };
    assert!(check(&made[0].1) > 0, "the first seed is a good file");
    replay(target, made, |bytes| {
        check(bytes);
    });
    let count = std::env::var("FARANDOLE_MUTATIONS").map_or(MUTATIONS, |text| text.parse().unwrap());
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for number in 0..count {
        let mut bytes = match made.get(number % (made.len() + 1)) {
            Some((_, seed)) => seed.clone(),
            None => (0..random.below(300)).map(|_| random.next() as u8).collect(),
        };
        mutate(&mut bytes, &mut random);
        check(&bytes);
    }
}

fn seed(name: &'static str, bytes: &[u8]) -> Seed {
    (name, bytes.to_vec())
}

#[test]
fn jpeg() {
    let made = [
        seed("colours", include_bytes!("../images/ramp.jpg")),
        seed("progressive", include_bytes!("../images/grey-progressive.jpg")),
        seed("for-printers", include_bytes!("../images/cmyk.jpg")),
        seed("empty", b""),
        seed("bare-pixels", b"P5\n2 1\n255\n\x01\x02"),
    ];
    try_all("data_jpeg", &made, bodies::jpeg);
}

#[test]
fn tfrecord() {
    let file = include_bytes!("../foreign/images.tfrecord");
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let made = [seed("file", file), seed("example", &file[12..12 + length]), seed("empty", b"")];
    try_all("data_tfrecord", &made, bodies::tfrecord);
}

#[test]
fn tar() {
    let file = include_bytes!("../foreign/images.tar");
    try_all("data_tar", &[seed("file", file), seed("header", &file[..1024]), seed("empty", b"")], bodies::tar);
}

#[test]
fn npy() {
    let array = farandole_data::format::npy::encode("|u1", &[3, 4, 4, 3], &[7; 144]);
    let made = [
        seed("stored", include_bytes!("../foreign/stored.npz")),
        seed("packed", include_bytes!("../foreign/packed.npz")),
        seed("array", &array),
        seed("empty", b""),
    ];
    try_all("data_npy", &made, bodies::npy);
}

#[test]
fn parquet() {
    use parquet_file::*;
    let (plain, packed) = (plain_image(), gzip(&plain_image()));
    let page = |stored: &[u8], values, encoding| data_page(stored, plain.len() as i64, values, encoding);
    let dictionary = dictionary_page(&plain, plain.len() as i64, 1);
    // A run of one index of no bits.
    let run = Column {
        pages: vec![dictionary, data_page(&[0, 2, 0], 3, 1, RLE_DICTIONARY)],
        has_dictionary: true,
        compression: 0,
    };
    // One length in a block of 128, of no bits, and its value.
    let lengths = [&[0x80, 1, 4, 1], varint(2 * (plain.len() as u64 - 4)).as_slice(), &plain[4..]].concat();
    let made = [
        seed("snappy", include_bytes!("../foreign/snappy.parquet")),
        seed("names", include_bytes!("../foreign/names.parquet")),
        seed("lists", include_bytes!("../foreign/lists.parquet")),
        seed("zstd", include_bytes!("../foreign/zstd.parquet")),
        seed("empty", b""),
        seed("small", &file(&images(), &labels(), 1, 1)),
        seed("gzip", &file(&column(vec![page(&packed, 1, PLAIN)], GZIP), &labels(), 1, 1)),
        seed("two-billion-rows", &file(&column(vec![page(&packed, i32::MAX.into(), PLAIN)], GZIP), &labels(), 1, 1)),
        seed("dictionary", &file(&run, &labels(), 1, 1)),
        seed("lengths", &file(&column(vec![page(&lengths, 1, DELTA_LENGTH)], 0), &labels(), 1, 1)),
    ];
    try_all("data_parquet", &made, bodies::parquet);
}

#[test]
fn tiff() {
    let made = [
        seed("plain", include_bytes!("../foreign/band-plain.tif")),
        seed("deflate", include_bytes!("../foreign/band-deflate.tif")),
        seed("lzw", include_bytes!("../foreign/band-lzw.tif")),
        seed("empty", b""),
    ];
    try_all("data_tiff", &made, bodies::tiff_band);
}

#[test]
fn table() {
    let made = [
        seed("classes", b"file,class\na.png,dog\ndeep/c.pgm,cat\n"),
        seed("labels", b"file,labels,split\na.png,1;3,train\nb.jpg,,test\n"),
        seed("values", b"\xef\xbb\xbffile,age\n\"a.png\",34.5\nb.jpg,61\n"),
        seed("outside", b"file,class\n../a.png,dog\n"),
        seed("empty", b""),
    ];
    try_all("data_table", &made, bodies::table);
}

#[test]
fn index() {
    let made = [seed("index", &farandole_data::source::any_index()), seed("empty", b"")];
    try_all("data_index", &made, bodies::index);
}
