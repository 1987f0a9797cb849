//! Direct calls that look alike and are not the same: different shared buffers of one size, different counts of one
//! sum. Every rank gets an error that names what differs; nobody gets data that do not belong together.
#![allow(clippy::unwrap_used)]

use crate::harness::{Transport, direct_ranks};
use farandole_engine::{Communicator, DirectSettings};
use farandole_plan::{Dtype, ErrorClass, Rank, ReduceOp};

fn settings() -> DirectSettings {
    DirectSettings { deadline: std::time::Duration::from_secs(20), ..DirectSettings::default() }
}

/// Runs a call on two ranks of one host that must fail on both, with these words in each error.
fn fails_on_both(words: &[&'static str], call: impl Fn(&mut Communicator) -> String + Send + Sync + 'static) {
    for error in direct_ranks(2, Transport::Shm, settings(), move |mut communicator| call(&mut communicator)) {
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}

#[test]
fn equal_sized_shared_buffers_that_are_mixed_up_are_not_added() {
    fails_on_both(
        &["shared buffer number 1", "shared buffer number 2", "same calls in the same order"],
        |communicator| {
            let mut buffers = [communicator.shared_buffer(64).unwrap(), communicator.shared_buffer(64).unwrap()];
            buffers[0].elements_mut::<f32>().fill(1.0);
            buffers[1].elements_mut::<f32>().fill(2.0);
            // In the same order, all is well.
            for buffer in &mut buffers {
                communicator.allreduce_shared(buffer, Dtype::F32, ReduceOp::Sum).unwrap();
            }
            assert!(buffers[0].elements::<f32>().iter().all(|&x| x == 2.0));
            assert!(buffers[1].elements::<f32>().iter().all(|&x| x == 4.0));
            let mixed_up = &mut buffers[communicator.rank().index()];
            communicator.allreduce_shared(mixed_up, Dtype::F32, ReduceOp::Sum).unwrap_err().to_string()
        },
    );
}

#[test]
fn shared_buffers_that_are_mixed_up_across_hosts_are_not_added() {
    for transport in [Transport::Memory, Transport::Tcp] {
        let errors = direct_ranks(2, transport, settings(), |mut communicator| {
            let mut buffers = [communicator.shared_buffer(64).unwrap(), communicator.shared_buffer(64).unwrap()];
            let mixed_up = &mut buffers[communicator.rank().index()];
            communicator.allreduce_shared(mixed_up, Dtype::F32, ReduceOp::Sum).unwrap_err()
        });
        for error in errors {
            assert!(error.to_string().contains("same calls in the same order"), "{error}");
            assert_eq!(error.class(), ErrorClass::Mismatch, "the same class on both: {error}");
        }
    }
}

#[test]
fn counts_of_an_allgather_are_compared() {
    fails_on_both(&["allgather of 3 int32", "they differ in the counts"], |communicator| {
        let counts = [[2, 1], [1, 2]][communicator.rank().index()];
        communicator.allgather(&[7i32; 2], &counts, &mut [0; 3]).unwrap_err().to_string()
    });
}

#[test]
fn counts_of_a_reduce_scatter_are_compared() {
    fails_on_both(&["reducescatter (Max) of 3 float64", "they differ in the counts"], |communicator| {
        let counts = [[2, 1], [1, 2]][communicator.rank().index()];
        communicator.reduce_scatter(&[7f64; 3], &counts, &mut [0.0; 2], ReduceOp::Max).unwrap_err().to_string()
    });
}

/// Ranks that are ahead used to overwrite what others had yet to see.
#[test]
fn empty_shared_buffers_keep_the_ranks_together() {
    direct_ranks(4, Transport::Shm, settings(), |mut communicator| {
        for round in 0..300 {
            let mut empty = communicator.shared_buffer(0).unwrap();
            communicator.allreduce_shared(&mut empty, Dtype::F32, ReduceOp::Sum).unwrap();
            communicator.drop_shared_buffer(empty);
            let mut data = [round; 3];
            communicator.allreduce(&mut data, ReduceOp::Sum).unwrap();
            assert_eq!(data, [4 * round; 3]);
        }
    });
}

#[test]
fn a_shared_buffer_of_another_communicator_is_refused() {
    let buffers =
        direct_ranks(2, Transport::Shm, settings(), |mut communicator| communicator.shared_buffer(64).unwrap());
    let buffers = std::sync::Mutex::new(buffers);
    direct_ranks(2, Transport::Shm, settings(), move |mut communicator| {
        let mut foreign = buffers.lock().unwrap().pop().unwrap();
        let error = communicator.allreduce_shared(&mut foreign, Dtype::F32, ReduceOp::Sum).unwrap_err().to_string();
        assert!(error.contains("made by another communicator"), "{error}");
        communicator.drop_shared_buffer(foreign);
        // It costs nothing.
        let mut own = communicator.shared_buffer(64).unwrap();
        own.elements_mut::<i32>().fill(1);
        communicator.allreduce_shared(&mut own, Dtype::I32, ReduceOp::Sum).unwrap();
        assert!(own.elements::<i32>().iter().all(|&x| x == 2));
        assert!(communicator.allreduce_shared(&mut own, Dtype::F32, ReduceOp::Adasum).is_err());
        communicator.broadcast(&mut [0u8; 4], Rank(0)).unwrap();
    });
}
