//! Measures how fast each format is read from the first record to the last, against reading the same file plainly.
//!
//! Files are in the page cache, so what is compared is the work of reading, and not a disk. Seconds are those of the
//! processor that this thread took, in the kernel and outside of it: other programs on the machine do not count. Plain
//! reading and a format take turns; the median of the ratios of neighbours is printed. The numbers of the last column
//! are of [`records`]: each record by its number, in order. Before the table, the two crates that compute CRC32C are
//! compared.
//!
//! ```console
//! $ cargo run --release -p farandole-data --example read_rate -- [megabytes] [bytes of a record]
//! ```

#![allow(clippy::print_stdout, reason = "a program that prints a table")]

use std::error::Error;
use std::hint::black_box;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use farandole_data::format::parquet::ParquetFile;
use farandole_data::format::tar::TarReader;
use farandole_data::format::tfrecord::TfRecordReader;
use farandole_data::format::{NewRecord, PIECE_BYTES, ParquetShard, ShardWriter, StoredFile, TarShard, TfRecordShard};
use farandole_data::sample::Label;
use farandole_data::source::{self, Records, RecordsConfig};
use farandole_data::storage::{LocalFiles, Storage};
use farandole_trace::TemporaryFolder;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Turns of plain reading and a format.
const ROUNDS: usize = 15;

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let megabytes: usize = arguments.next().map_or(Ok(256), |text| text.parse())?;
    let record_bytes: usize = arguments.next().map_or(Ok(110_000), |text| text.parse())?;
    measure(TemporaryFolder::new("farandole-read-rate")?.path(), megabytes, record_bytes)
}

fn measure(folder: &Path, megabytes: usize, record_bytes: usize) -> Outcome<()> {
    println!("{megabytes} MB in records of {record_bytes} bytes, warm; medians of {ROUNDS} rounds");
    compare_checksums(record_bytes)?;
    println!("format     plain GB/s   one after another GB/s (of plain)   by number GB/s (of plain)");
    let shards: [(&str, Box<dyn ShardWriter>); 3] = [
        ("tfrecord", Box::new(TfRecordShard::create(&folder.join("a.tfrecord"), &[])?)),
        ("tar", Box::new(TarShard::create(&folder.join("a.tar"))?)),
        ("parquet", Box::new(ParquetShard::create(&folder.join("a.parquet"), &[])?)),
    ];
    for (format, mut shard) in shards {
        let mut image = vec![0xff; record_bytes];
        image[1] = 0xd8;
        for number in 0..(megabytes << 20) / record_bytes {
            // Anything but zeros: nothing here looks at pixels.
            image[2..10].copy_from_slice(&number.to_le_bytes());
            let name = format!("{number:08}.jpg");
            shard.write(&NewRecord { name: &name, encoded: &image, label: &Label::Class(number as u32 % 10) })?;
        }
        shard.finish()?;
        let storage: Arc<dyn Storage> = Arc::new(LocalFiles::new(folder));
        let name = format!("a.{format}");
        let file = StoredFile::open(Arc::clone(&storage), &name)?;
        let records = source::open(storage, &name, &RecordsConfig::default())?;
        let path = folder.join(&name);
        let (mut plain, mut turns) = (Vec::new(), [Vec::new(), Vec::new()]);
        for _ in 0..ROUNDS {
            let first = rate(file.bytes(), || read_plainly(&path))?;
            let in_order = rate(file.bytes(), || read_in_order(format, &file))?;
            let second = rate(file.bytes(), || read_plainly(&path))?;
            let by_number = rate(file.bytes(), || read_by_number(records.as_ref()))?;
            plain.extend([first, second]);
            turns[0].push((in_order / first, in_order));
            turns[1].push((by_number / second, by_number));
        }
        let [in_order, by_number] = turns.map(|turns| {
            let (ratios, rates) = turns.into_iter().unzip();
            (median(rates), median(ratios))
        });
        println!(
            "{format:9} {:11.2} {:17.2} ({:4.2}) {:27.2} ({:4.2})",
            median(plain),
            in_order.0,
            in_order.1,
            by_number.0,
            by_number.1
        );
    }
    Ok(())
}

/// Gigabytes in a second.
fn rate(bytes: u64, read: impl FnOnce() -> Outcome<u64>) -> Outcome<f64> {
    let began = processor_seconds();
    black_box(read()?);
    Ok(bytes as f64 / (processor_seconds() - began) / 1e9)
}

/// Seconds of the processor that this thread has taken so far.
fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// How fast CRC32C is computed: by the crate `crc32c` with the instruction of SSE 4.2, and by `crc-fast` with
/// carry-less multiplication, on as many bytes at a time as the processor has registers for.
fn compare_checksums(record_bytes: usize) -> Outcome<()> {
    let data: Vec<u8> = (0..record_bytes).map(|at| (at * 31 + at / 7) as u8).collect();
    let times = (1 << 26) / record_bytes.max(1);
    let of = |checksum: &dyn Fn(&[u8]) -> u32| {
        let once = || {
            rate((times * record_bytes) as u64, || {
                Ok((0..times).map(|_| checksum(black_box(&data))).fold(0, |all, one| all ^ u64::from(one)))
            })
        };
        (0..ROUNDS).map(|_| once()).collect::<Outcome<Vec<f64>>>().map(median)
    };
    let (plain, fast) = (of(&crc32c::crc32c)?, of(&crc_fast::crc32_iscsi)?);
    println!("CRC32C: crc32c {plain:.1} GB/s, crc-fast {fast:.1} GB/s");
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Reads all of a file in pieces, into one buffer.
fn read_plainly(path: &Path) -> Outcome<u64> {
    let file = std::fs::File::open(path)?;
    let mut buffer = vec![0; PIECE_BYTES];
    let mut offset = 0;
    loop {
        match file.read_at(&mut buffer, offset)? {
            0 => return Ok(offset),
            count => offset += count as u64,
        }
        black_box(&buffer);
    }
}

fn read_in_order(format: &str, file: &StoredFile) -> Outcome<u64> {
    let mut bytes = 0;
    match format {
        "tfrecord" => {
            let mut reader = TfRecordReader::new(file);
            while let Some((_, data)) = reader.next()? {
                bytes += black_box(data).len() as u64;
            }
        }
        "tar" => {
            let mut reader = TarReader::new(file, PIECE_BYTES);
            while let Some(entry) = reader.next()? {
                bytes += black_box(reader.contents(&entry)?).len() as u64;
            }
        }
        _ => ParquetFile::open(file, None, None)?.each_image(|_, _, image| {
            bytes += black_box(image).len() as u64;
            Ok(())
        })?,
    }
    Ok(bytes)
}

fn read_by_number(records: &dyn Records) -> Outcome<u64> {
    let (mut bytes, mut encoded) = (0, Vec::new());
    for number in 0..records.len() {
        records.read(number, &mut encoded)?;
        bytes += black_box(&encoded).len() as u64;
    }
    Ok(bytes)
}
