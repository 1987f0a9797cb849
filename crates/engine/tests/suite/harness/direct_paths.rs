//! One call on every direct path: small, window, mapped, and over links by each algorithm. Each result is compared with
//! the one right result, bit by bit.
#![allow(unreachable_pub, clippy::unwrap_used)]

use farandole_engine::{Communicator, DirectSettings};
use farandole_plan::algorithm::Algorithm;
use farandole_plan::{Collective, Dtype, ReduceOp};
use farandole_tensor::Element;
use farandole_tensor::element::{as_bytes, with_bytes_mut};
use half::{bf16, f16};

use super::reference::Solved;

/// Small enough that tensors of some kilobytes take every path, and have several tiles.
pub fn settings() -> DirectSettings {
    let deadline = std::time::Duration::from_secs(20);
    DirectSettings { deadline, small_bytes: 2048, tile_bytes: 4096, ..DirectSettings::default() }
}

/// Makes a call, of all ranks of the world, on every direct path that there is for it. Says how many there were.
pub fn check(communicator: &mut Communicator, solved: &Solved) -> usize {
    let (call, me) = (&solved.call, communicator.rank().index());
    let Some(expected) = &solved.expected else { return 0 };
    let (input, expected) = (&solved.inputs[me][..], &expected[me][..]);
    let right =
        |path: &str, result: &[u8]| assert!(result == expected, "rank {me} got a wrong result by {path} of {call:?}");
    match call.collective {
        Collective::Allreduce { op, prescale, postscale } => {
            let mut paths = 0;
            let ways = std::iter::once(None).chain(Algorithm::ALL.into_iter().map(Some));
            for algorithm in ways {
                if algorithm.is_some_and(|algorithm| !algorithm.fits(communicator.topology())) {
                    continue;
                }
                communicator.set_algorithm(algorithm);
                let mut data = input.to_vec();
                communicator.allreduce_bytes(&mut data, call.dtype, op, prescale, postscale).unwrap();
                right(algorithm.map_or("a direct call", Algorithm::word), &data);
                paths += 1;
            }
            communicator.set_algorithm(None);
            if prescale == 1.0 && postscale == 1.0 {
                let mut buffer = communicator.shared_buffer(input.len()).unwrap();
                buffer.bytes_mut().copy_from_slice(input);
                communicator.allreduce_shared(&mut buffer, call.dtype, op).unwrap();
                right("a shared buffer", buffer.bytes());
                communicator.drop_shared_buffer(buffer);
                paths += 1;
            }
            paths
        }
        Collective::ReduceScatter { op, prescale: 1.0, postscale: 1.0 } => {
            let elems_of = |rank: usize| solved.expected.as_ref().unwrap()[rank].len() / call.dtype.size_bytes();
            let counts: Vec<usize> = (0..communicator.size()).map(elems_of).collect();
            right("direct reducescatter", &reduce_scatter(communicator, call.dtype, input, &counts, op));
            1
        }
        Collective::Allgather => {
            let counts: Vec<usize> = solved.inputs.iter().map(Vec::len).collect();
            let mut all = vec![0; counts.iter().sum()];
            communicator.allgather(input, &counts, &mut all).unwrap();
            right("direct allgather", &all);
            1
        }
        Collective::Broadcast { root } => {
            let mut data = if root == communicator.rank() { input.to_vec() } else { vec![0xee; input.len()] };
            communicator.broadcast(&mut data, root).unwrap();
            right("direct broadcast", &data);
            1
        }
        _ => 0,
    }
}

fn reduce_scatter(
    communicator: &mut Communicator,
    dtype: Dtype,
    input: &[u8],
    counts: &[usize],
    op: ReduceOp,
) -> Vec<u8> {
    fn of<T: Element>(
        communicator: &mut Communicator,
        zero: T,
        input: &[u8],
        counts: &[usize],
        op: ReduceOp,
    ) -> Vec<u8> {
        let mut data = vec![zero; input.len() / size_of::<T>()];
        with_bytes_mut(&mut data, |bytes| bytes.copy_from_slice(input));
        let mut own = vec![zero; counts[communicator.rank().index()]];
        communicator.reduce_scatter(&data, counts, &mut own, op).unwrap();
        as_bytes(&own).to_vec()
    }
    match dtype {
        Dtype::Bool => of(communicator, false, input, counts, op),
        Dtype::U8 => of(communicator, 0u8, input, counts, op),
        Dtype::I8 => of(communicator, 0i8, input, counts, op),
        Dtype::U16 => of(communicator, 0u16, input, counts, op),
        Dtype::I16 => of(communicator, 0i16, input, counts, op),
        Dtype::U32 => of(communicator, 0u32, input, counts, op),
        Dtype::I32 => of(communicator, 0i32, input, counts, op),
        Dtype::U64 => of(communicator, 0u64, input, counts, op),
        Dtype::I64 => of(communicator, 0i64, input, counts, op),
        Dtype::F16 => of(communicator, f16::ZERO, input, counts, op),
        Dtype::BF16 => of(communicator, bf16::ZERO, input, counts, op),
        Dtype::F32 => of(communicator, 0f32, input, counts, op),
        Dtype::F64 => of(communicator, 0f64, input, counts, op),
        _ => unreachable!("invariant: every element type has an arm"),
    }
}
