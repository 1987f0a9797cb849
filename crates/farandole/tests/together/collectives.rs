//! Every collective of a world and of process sets, direct and named, with uneven shares.

use farandole::{EngineError, Error, ReduceOp, Setup};

use super::job;

#[test]
fn all_collectives_work_on_slices_and_by_name() {
    for ranks in [1, 2, 3] {
        job::play(ranks, "collectives");
    }
}

#[test]
fn process_sets_work_among_their_members() {
    job::play(3, "sets");
}

pub(crate) fn play() {
    let mut world = farandole::init().expect("ranks find each other");
    let (rank, size) = (world.rank(), world.size());
    let expected_rows: Vec<u32> = (0..size).flat_map(|rank| vec![rank as u32; rank + 1]).collect();

    let own = vec![rank as u32; rank + 1];
    let (all, counts) = world.allgather_counted(&own).expect("gather");
    assert_eq!(all, expected_rows);
    assert_eq!(counts, (1..=size).collect::<Vec<_>>());
    assert!(world.allgather::<u8>(&[]).expect("gather nothing").is_empty());

    let data: Vec<i64> = (0..7).map(|place| place + rank as i64).collect();
    let part = world.reduce_scatter(&data, ReduceOp::Sum).expect("scatter");
    let start: usize = (0..rank).map(|rank| 7 / size + usize::from(rank < 7 % size)).sum();
    let others: i64 = (0..size as i64).sum();
    let expected: Vec<i64> = (start..start + part.len()).map(|place| (place * size) as i64 + others).collect();
    assert_eq!(part, expected);

    // Rank r sends r + 1 copies of its number to each rank after it, and nothing to the others.
    let send: Vec<usize> = (0..size).map(|to| if to > rank { rank + 1 } else { 0 }).collect();
    let sent = vec![rank as f64; send.iter().sum()];
    let (received, from) = world.alltoallv(&sent, &send).expect("exchange");
    assert_eq!(from, (0..size).map(|from| if from < rank { from + 1 } else { 0 }).collect::<Vec<_>>());
    assert_eq!(received, (0..rank).flat_map(|from| vec![from as f64; from + 1]).collect::<Vec<_>>());
    let even = world.alltoall(&(0..size as u16).collect::<Vec<_>>()).expect("exchange");
    assert_eq!(even, vec![rank as u16; size]);

    let text = if rank == size - 1 { "told".to_owned() } else { String::new() };
    let told = world.broadcast_vec(text.into_bytes(), size - 1).expect("broadcast");
    assert_eq!(told, b"told");
    let (mut weights, mut bias) = (vec![rank as f32; 5], vec![rank as f32; 2]);
    world.broadcast_parameters([&mut weights[..], &mut bias[..]], size - 1).expect("broadcast");
    assert_eq!((weights, bias), (vec![(size - 1) as f32; 5], vec![(size - 1) as f32; 2]));

    let gathered = world.named("gathered").allgather(own).expect("submit");
    let reduced = world.named("scaled").scaled(2.0, 0.5).allreduce(vec![1.0f32; 3], ReduceOp::Sum).expect("submit");
    let exchanged = world.named("exchanged").alltoallv(sent, &send).expect("submit");
    let root = world.named("root").broadcast(vec![rank as u8], size - 1).expect("submit");
    let scattered =
        world.named("scattered").rows_of(2).reduce_scatter(vec![1i32; 2 * size], ReduceOp::Sum).expect("submit");
    let grouped =
        world.named("grouped").grouped_allreduce(vec![vec![1u64], vec![2, 3]], ReduceOp::Sum).expect("submit");
    world.named("barrier").barrier().expect("submit").wait().expect("everybody comes");
    assert_eq!(gathered.wait().expect("gather"), expected_rows);
    assert_eq!(reduced.wait().expect("reduce"), [size as f32; 3]);
    assert_eq!(exchanged.wait().expect("exchange"), (received, from));
    assert_eq!(root.wait().expect("broadcast"), [(size - 1) as u8]);
    assert_eq!(scattered.wait().expect("scatter"), [size as i32; 2]);
    let grouped: Vec<Vec<u64>> = grouped.into_iter().map(|one| one.wait().expect("reduce")).collect();
    assert_eq!(grouped, [vec![size as u64], vec![2 * size as u64, 3 * size as u64]]);

    // The last rank has one batch more than the others, who have joined meanwhile.
    if rank == size - 1 {
        let last = world.named("last").allreduce(vec![8.0f64], ReduceOp::Sum).expect("submit");
        assert_eq!(last.wait().expect("the others count as nothing"), [8.0]);
    }
    assert_eq!(world.join().expect("all join"), size - 1);
}

pub(crate) fn play_sets() {
    let setup = Setup::new().process_sets(vec![vec![0, 2]]);
    let mut world = setup.init().expect("ranks find each other");
    let rank = world.rank();
    let outer = world.process_sets().remove(1);
    let inner = world.add_process_set(&[1, 2]).expect("a set is made");
    assert_eq!(outer.ranks().collect::<Vec<_>>(), [0, 2]);
    assert_eq!((outer.rank_of(2), outer.rank_of(1)), (Some(1), None));
    for (set, sum) in [(&outer, 2.0f32), (&inner, 3.0)] {
        if set.rank_of(rank).is_none() {
            let refused = world.named("foreign").within(set).allreduce(vec![1.0f32], ReduceOp::Sum);
            assert!(refused.is_err(), "who is no member is told so");
            continue;
        }
        let data = vec![rank as f32];
        let address = data.as_ptr();
        let data = set.allreduce(data, ReduceOp::Sum).expect("reduce");
        assert_eq!(data, [sum]);
        assert_eq!(data.as_ptr(), address, "the caller's own vector comes back");
        assert_eq!(set.allgather(vec![rank as u8; rank]).expect("gather").len(), sum as usize);
        assert_eq!(set.broadcast(vec![rank as u32], 2).expect("broadcast"), [2]);
        assert_eq!(set.reduce_scatter(vec![1i32, 2], ReduceOp::Max).expect("scatter").len(), 1);
        let (received, from) = set.alltoallv(vec![rank as i64; 2], &[1, 1]).expect("exchange");
        assert_eq!((received.iter().sum::<i64>(), from), (sum as i64, vec![1, 1]));
        set.barrier().expect("everybody comes");
    }
    world.remove_process_set(&inner).expect("a set is removed");
    assert_eq!(world.process_sets().len(), 2);
    assert!(inner.barrier().is_err(), "a set that was removed is gone");
    let first = world.add_process_set(&[0, 1]).expect("a set is added");
    assert_eq!(first.group(), inner.group(), "its number is used again");
    assert!(inner.barrier().is_err(), "and does not bring it back");
    assert!(world.remove_process_set(&inner).is_err());
    if first.rank_of(rank).is_some() {
        first.barrier().expect("both members come");
    }
    // A rank that leaves ends what the others have under way.
    world.barrier().expect("everybody is done");
    drop(world);
    assert!(matches!(outer.barrier(), Err(Error::Engine(EngineError::ShutDown))), "a set does not keep its world");
}
