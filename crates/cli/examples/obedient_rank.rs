//! A rank that does what its words say: the program that tests and benchmarks of the launcher start.
//!
//! | words | what it does |
//! |---|---|
//! | `once` | one allreduce of four bytes, then the end |
//! | `sum` | allreduces of several sizes, by both doors; says so when all were right |
//! | `work MS` | says `working`, then named and direct allreduces for so many milliseconds; says so when all were right |
//! | `loop` | says `dancing`, and allreduces until that fails; says why, and ends with code 1 |
//! | `exit RANK CODE` | the same, but after a while this rank says `enough of pid …` and ends with this code |
//! | `again TIMES` | joins, sums and leaves so many times, now this rank first, now that; says so if nothing has piled up |
//! | `without RANK` | joins and leaves; then all but this rank, which has had enough, want to join again, and say who is missing |
//! | `send TEXT` | rank 0 broadcasts a text many times over, by both doors, and all reduce it; says so when everybody has it |
//! | `show NAME…` | says what these variables are, without joining anybody |
//! | `speak LINES` | says that many long lines on both streams |
//!
//! A wrong result ends it with code 70, which nothing else uses.

#![allow(clippy::print_stdout, reason = "what a rank says is how it is heard")]

use std::process::exit;
use std::time::{Duration, Instant};

use farandole::{Error, Pending, ReduceOp, Setup, World};

/// A result was wrong.
const WRONG: i32 = 70;
/// Peers are gone, or never came.
const FAILED: i32 = 1;

/// How long all dance before one has had enough: long enough that nobody is still starting.
const A_WHILE: Duration = Duration::from_millis(200);

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["once"] => joined(|world| reduce(world, 1)),
        ["sum"] => joined(sum),
        ["work", time] => {
            let time = Duration::from_millis(time.parse().expect("a number of milliseconds"));
            joined(|world| work(world, time))
        }
        ["loop"] => joined(|world| dance(world, None)),
        ["exit", rank, code] => {
            let (rank, code) = (rank.parse().expect("a rank"), code.parse().expect("a code"));
            joined(|world| dance(world, Some((rank, code))))
        }
        ["send", text] => joined(|world| send(world, text)),
        ["again", times] => again(times.parse().expect("a number of times")),
        ["without", rank] => without(rank.parse().expect("a rank")),
        ["show", ref names @ ..] => {
            for name in names {
                println!("{name}={}", std::env::var(name).unwrap_or_else(|_| "(unset)".to_owned()));
            }
            Ok(())
        }
        ["speak", lines] => {
            speak(lines.parse().expect("a number of lines"));
            Ok(())
        }
        _ => panic!("no such thing to do: {words:?}"),
    };
    if let Err(error) = outcome {
        eprintln!("failed: {error}");
        exit(FAILED);
    }
}

fn joined(task: impl FnOnce(&mut World) -> Result<(), Error>) -> Result<(), Error> {
    let mut world = farandole::init()?;
    task(&mut world)?;
    world.shutdown();
    Ok(())
}

/// Joins and leaves again and again. Ranks take turns in being late, so that some come for the next meeting while
/// others are still at the last one.
fn again(times: usize) -> Result<(), Error> {
    let mut before = Holdings::default();
    for time in 0..times {
        let mut world = farandole::init()?;
        let (rank, size) = (world.rank(), world.size());
        reduce(&mut world, 1000)?;
        let data = vec![rank as f32 + 1.0; 1000];
        let ticket = world.named("data").allreduce(data, ReduceOp::Average)?;
        check(&ticket.wait()?, (size as f32 + 1.0) / 2.0);
        match (time % size == rank, time % 3) {
            (true, 0) => std::thread::sleep(Duration::from_millis(20)),
            (false, 1) => expect_shutdown(&world),
            _ => {}
        }
        world.shutdown();
        if time == 0 {
            before = Holdings::count();
        }
    }
    let after = Holdings::settled(&before);
    if after.exceed(&before) {
        eprintln!("{before:?} after the first time, {after:?} after the last");
        exit(WRONG);
    }
    println!("met {times} times");
    Ok(())
}

/// Asks for something that one rank, which leaves, will never ask for.
fn expect_shutdown(world: &World) {
    let answer = world.named("too late").allreduce(vec![1.0f32], ReduceOp::Sum).and_then(Pending::wait);
    if !matches!(answer, Err(Error::Engine(farandole_engine::Error::PeerLeft(_)))) {
        eprintln!("wrong: {answer:?} instead of the news that a rank has left");
        exit(WRONG);
    }
}

fn without(absent: usize) -> Result<(), Error> {
    let mut rank = 0;
    joined(|world| {
        rank = world.rank();
        reduce(world, 1)
    })?;
    if rank == absent {
        return Ok(());
    }
    match Setup::new().patience(Duration::from_secs(1)).init() {
        Ok(_) => exit(WRONG),
        Err(error) => {
            println!("{error}");
            Ok(())
        }
    }
}

/// What a process could pile up: descriptors, threads, and memory that it shares.
#[derive(Debug, Default)]
struct Holdings {
    descriptors: usize,
    threads: usize,
    shared: usize,
}

impl Holdings {
    fn count() -> Holdings {
        let entries = |folder| std::fs::read_dir(folder).map_or(0, Iterator::count);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let shared = maps.lines().filter(|line| line.contains("memfd:") || line.contains("/dev/shm")).count();
        Holdings { descriptors: entries("/proc/self/fd"), threads: entries("/proc/self/task"), shared }
    }

    /// What is left. A thread that has been joined may be listed for a moment longer, so what exceeds `before` is
    /// looked at again.
    fn settled(before: &Holdings) -> Holdings {
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let now = Holdings::count();
            if !now.exceed(before) || Instant::now() > deadline {
                return now;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn exceed(&self, before: &Holdings) -> bool {
        self.descriptors > before.descriptors || self.threads > before.threads || self.shared > before.shared
    }
}

/// One allreduce whose result is known.
fn reduce(world: &mut World, elems: usize) -> Result<(), Error> {
    let size = world.size() as f32;
    let mut data = vec![world.rank() as f32 + 1.0; elems];
    world.allreduce(&mut data, ReduceOp::Sum)?;
    check(&data, size * (size + 1.0) / 2.0);
    Ok(())
}

fn sum(world: &mut World) -> Result<(), Error> {
    let mean = (world.size() as f32 + 1.0) / 2.0;
    for elems in [1, 1000, 300_000] {
        reduce(world, elems)?;
        let data = vec![world.rank() as f32 + 1.0; elems];
        let ticket = world.named("data").allreduce(data, ReduceOp::Average)?;
        check(&ticket.wait()?, mean);
    }
    let (rank, size) = (world.rank(), world.size());
    println!("rank {rank} of {size}, {} of {} here: right", world.local_rank(), world.local_size());
    Ok(())
}

/// Both kinds of collectives until rank 0 has had enough: small and large, waited for at once and later.
fn work(world: &mut World, time: Duration) -> Result<(), Error> {
    let began = Instant::now();
    let (rank, size) = (world.rank() as f32, world.size() as f32);
    println!("working");
    loop {
        let tickets = [1, 1000, 30_000].map(|elems: usize| {
            let data = vec![rank + 1.0; elems];
            world.named(&format!("data {elems}")).allreduce(data, ReduceOp::Average)
        });
        reduce(world, 1)?;
        reduce(world, 30_000)?;
        for ticket in tickets {
            check(&ticket?.wait()?, (size + 1.0) / 2.0);
        }
        let mut enough = [if world.rank() == 0 && began.elapsed() > time { 1.0f32 } else { 0.0 }];
        world.allreduce(&mut enough, ReduceOp::Sum)?;
        if enough[0] > 0.0 {
            println!("worked, and all was right");
            return Ok(());
        }
    }
}

/// Has one text travel between all ranks, many times over: broadcast directly, and reduced by name (the greatest of
/// equal bytes).
fn send(world: &mut World, text: &str) -> Result<(), Error> {
    let whole = text.repeat(1000).into_bytes();
    let mut data = if world.rank() == 0 { whole.clone() } else { vec![0; whole.len()] };
    world.broadcast(&mut data, 0)?;
    let ticket = world.named("text").allreduce(data, ReduceOp::Max)?;
    if ticket.wait()? != whole {
        eprintln!("wrong: the text was garbled");
        exit(WRONG);
    }
    println!("sent");
    Ok(())
}

fn dance(world: &mut World, tired: Option<(usize, i32)>) -> Result<(), Error> {
    let began = Instant::now();
    reduce(world, 1000)?;
    println!("dancing");
    loop {
        reduce(world, 1000)?;
        if let Some((rank, code)) = tired
            && rank == world.rank()
            && began.elapsed() > A_WHILE
        {
            eprintln!("enough of pid {}", std::process::id());
            exit(code);
        }
    }
}

fn speak(lines: usize) {
    for line in 0..lines {
        println!("out {line} {}", "o".repeat(200));
        eprintln!("err {line} {}", "e".repeat(200));
    }
}

fn check(data: &[f32], expected: f32) {
    if data.iter().any(|&found| found != expected) {
        eprintln!("wrong: {:?} instead of {expected}", &data[..data.len().min(8)]);
        exit(WRONG);
    }
}
