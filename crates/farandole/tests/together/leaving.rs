//! Ranks of Rust programs that leave while others wait for them: what the others are told, by named requests and by
//! direct calls.

use std::fs;
use std::os::unix::process::parent_id;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Duration;

use farandole::{Exit, ReduceOp, World};
use farandole_testing::wait_until;

use super::job;

/// How rank 1 leaves after two iterations, and what ranks 0 and 2 are told.
const LEAVES: [(&str, &str); 4] = [
    (
        "drop",
        "rank 1 left the job after 2 steps while rank RANK waits in step 3: ranks have different numbers of batches; see \
         join, drop_last, DistributedSampler",
    ),
    (
        "end",
        "rank 1 ended (exit code 0) after 2 steps while rank RANK waits in step 3: ranks have different numbers of \
         batches; see join, drop_last, DistributedSampler",
    ),
    ("raise", "rank 1 raised BadBatch: number 3 (after 2 steps)"),
    ("panic", "rank 1 panicked: a bad batch (after 2 steps)"),
];

#[test]
fn ranks_that_wait_for_one_that_left_name_it_and_how_far_it_was() {
    for (how, _) in LEAVES {
        for calls in ["named", "direct"] {
            job::play(3, &format!("leaving.{how}.{calls}"));
        }
    }
}

pub(crate) fn play(role: &str) {
    let mut words = role.split('.').skip(1);
    let (how, calls) = (words.next().expect("how"), words.next().expect("by which calls"));
    let mut world = farandole::init().expect("ranks find each other");
    let rank = world.rank();
    for number in 0..2 {
        world.mark_iteration(number);
        reduce(&mut world, calls).expect("all ranks come");
    }
    if rank == 1 {
        // A failure ends calls that peers have not finished.
        let others = [finished(role, 0), finished(role, 2)];
        wait_until("the second step of the other ranks", Duration::from_secs(90), || {
            others.iter().all(|file| file.exists())
        });
        others.iter().for_each(|file| fs::remove_file(file).expect("a file of this test"));
        return leave(world, how);
    }
    fs::write(finished(role, rank), "").expect("a temporary folder");
    world.mark_iteration(2);
    let told = reduce(&mut world, calls).expect_err("rank 1 has left").to_string();
    let (_, expected) = LEAVES.iter().find(|(name, _)| *name == how).expect("a way to leave");
    // In direct calls the rank that notices first tells the other one, which repeats its words.
    let waiting = if calls == "named" { vec![rank] } else { vec![0, 2] };
    let words: Vec<String> = waiting.iter().map(|rank| expected.replace("RANK", &rank.to_string())).collect();
    assert!(words.contains(&told), "{told} is none of {words:?}");
}

/// The file by which a rank says that it has finished the steps that all ranks make.
fn finished(role: &str, rank: usize) -> PathBuf {
    std::env::temp_dir().join(format!("farandole-{}-{role}-{rank}", parent_id()))
}

fn leave(world: World, how: &str) {
    match how {
        "end" => world.leave(Exit { code: Some(0), cause: None }),
        "raise" => world.leave(Exit { code: Some(1), cause: None }.because("raised BadBatch: number 3")),
        "panic" => {
            let unwound = catch_unwind(AssertUnwindSafe(move || {
                let _world = world;
                panic!("a bad batch");
            }));
            assert!(unwound.is_err());
        }
        _ => drop(world),
    }
}

fn reduce(world: &mut World, calls: &str) -> farandole::Result<()> {
    match calls {
        "named" => world.named("gradient").allreduce(vec![1.0f32], ReduceOp::Sum)?.wait().map(drop),
        _ => world.allreduce(&mut [1.0f32], ReduceOp::Sum),
    }
}
