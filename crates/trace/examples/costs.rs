//! Prints what the parts of recording cost on this machine: looks at clocks, and records.
//!
//! Run it as `cargo run --release -p farandole-trace --example costs`.

#![allow(clippy::print_stdout, reason = "it is what the example is for")]

use std::hint::black_box;
use std::time::Instant;

use farandole_trace::clock::now_ns;
use farandole_trace::event::{Collective, Dtype, GroupNumber, NameId, OperationNumber, TemplateEntry};
use farandole_trace::{BucketTimes, Event, Identity, Recorder};

/// Times that something is done in a row; more than a ring has room for, so that it is written over and over.
const TIMES: u64 = 1_000_000;

/// Rows, of which the middle one counts.
const ROWS: usize = 15;

/// As many as a rank keeps by default.
const RECORDS: usize = 1 << 18;

fn main() {
    let recorder = Recorder::new(Identity::default(), RECORDS);
    let mut writer = recorder.ring_writer();
    let group = GroupNumber::WORLD;
    let packed = |number| Event::Packed { group, operation: OperationNumber(number) };
    // The first round of a ring also takes its memory.
    say("a record, the first time around its ring", one_row(RECORDS as u64, |n| writer.write(n, packed(n))));
    say("a record", typical(|number| writer.write(number, packed(number))));
    let members = [TemplateEntry { name: NameId(1), bytes: 4 }];
    if let Some(template) = recorder.template(members, 4) {
        let (collective, dtype, bytes, requests) = (Collective::Allreduce, Dtype::F32, 4, 1);
        let whole = |number| {
            let started =
                Event::Started { group, operation: OperationNumber(number), collective, dtype, requests, bytes };
            let way = BucketTimes { entered: false, packed_ns: number, finished_ns: number + 900 };
            writer.write_bucket(number, started, template, way);
        };
        say("a record of a whole bucket", typical(whole));
    }
    recorder.pause();
    say("a record while the recorder is off", typical(|number| writer.write(number, packed(number))));
    say("a look at the kernel's clock", typical(|_| _ = black_box(Instant::now())));
    say("one reading of a thread's TSC clock", typical(|_| _ = black_box(now_ns())));
}

fn typical(mut act: impl FnMut(u64)) -> f64 {
    let mut rows: Vec<f64> = (0..ROWS).map(|_| one_row(TIMES, &mut act)).collect();
    rows.sort_unstable_by(f64::total_cmp);
    rows[ROWS / 2]
}

/// Nanoseconds for each time.
fn one_row(times: u64, mut act: impl FnMut(u64)) -> f64 {
    let begun = Instant::now();
    (0..times).for_each(|number| act(black_box(number)));
    begun.elapsed().as_nanos() as f64 / times as f64
}

fn say(what: &str, ns: f64) {
    println!("{ns:6.1} ns  {what}");
}
