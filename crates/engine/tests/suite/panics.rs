//! A panic inside the engine: every ticket resolves, with an error that names it.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use crate::harness::{Transport, ranks, reduce, request};
use farandole_engine::Submission;
use farandole_plan::request::Batch;
use farandole_plan::{Dtype, Rank, ReduceOp};
use farandole_tensor::Region;

/// The owner of a tensor that cannot be dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("the owner of a tensor panics");
    }
}

/// Five tensors travel together. Nobody waits for the third, so that its memory is dropped where its ticket is
/// fulfilled, in the middle of the others.
#[test]
fn tickets_are_resolved_when_the_owner_of_another_tensor_panics() {
    const TENSORS: usize = 5;
    for transport in [Transport::Memory, Transport::Shm] {
        ranks(2, transport, |engine| {
            let mut tickets: Vec<_> = (0..TENSORS)
                .map(|index| {
                    let mut request = request(&format!("tensor{index}"), reduce(ReduceOp::Sum), Dtype::F32, &[4]);
                    request.batch = Some(Batch { name: "together".into(), members: TENSORS as u32 });
                    let region = Region::from_vec(vec![1f32; 4]);
                    let explodes = index == 2 && engine.rank() == Rank(0);
                    let region = if explodes { region.keeping(Bomb) } else { region };
                    let ticket = engine.submit(Submission::new(request, region)).unwrap();
                    (index != 2).then_some(ticket)
                })
                .collect();
            let outcomes: Vec<_> = tickets
                .drain(..)
                .flatten()
                .map(|ticket| ticket.wait_for(Duration::from_secs(20)).map(drop).map_err(|error| error.to_string()))
                .collect();
            if engine.rank() == Rank(0) {
                let failed: Vec<&String> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
                assert!(!failed.is_empty(), "the panic came between two tickets");
                for error in failed {
                    assert!(error.contains("the owner of a tensor panics"), "{error}");
                }
            } else {
                // Its bucket was done; the next one is not.
                for error in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
                    assert!(error.contains("the owner of a tensor panics"), "{error}");
                }
            }
            let late = request("late", reduce(ReduceOp::Sum), Dtype::F32, &[4]);
            let error = match engine.submit(Submission::new(late, Region::from_vec(vec![1f32; 4]))) {
                Ok(ticket) => ticket.wait_for(Duration::from_secs(20)).unwrap_err(),
                Err(error) => error,
            };
            assert!(error.to_string().contains("the owner of a tensor panics"), "{error}");
        });
    }
}
