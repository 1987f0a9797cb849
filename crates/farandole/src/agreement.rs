//! Whether all ranks mean the same, before they rely on it: lists of parameters, compared.
//!
//! A rank whose module has one layer more would wait for the others at a name that they never use. So ranks compare
//! lists before they send anything by them. Where the lists are equal that costs one small message, otherwise everybody
//! gets all lists and the error names the first difference.

use farandole_engine::{Engine, Submission};
use farandole_plan::{Collective, Device, Dtype, ReduceOp, Request};
use farandole_tensor::Region;

use crate::error::{Error, Result};

/// Finds out whether all ranks have the same list, a line for each entry. All ranks call this together, with the same
/// name.
pub(crate) fn agree(engine: &Engine, name: &str, list: String) -> Result<()> {
    let number = fingerprint(list.as_bytes());
    let collective = Collective::Allreduce { op: ReduceOp::Max, prescale: 1.0, postscale: 1.0 };
    // The largest of the numbers and, turned around, the smallest.
    let extremes = run(engine, name, collective, Dtype::U64, Region::from_vec(vec![number, !number]))?;
    let extremes = extremes.into_vec::<u64>().map_err(|_| Error::WrongElement)?;
    if extremes[0] == !extremes[1] {
        return Ok(());
    }
    let length = Region::from_vec(vec![list.len() as u64]);
    let lengths = run(engine, &format!("{name}.lengths"), Collective::Allgather, Dtype::U64, length)?;
    let own = Region::from_vec(list.into_bytes());
    let lists = run(engine, &format!("{name}.lists"), Collective::Allgather, Dtype::U8, own)?;
    let mut rest = lists.as_bytes();
    let mut texts = Vec::new();
    for length in lengths.as_bytes().chunks_exact(size_of::<u64>()) {
        let length = u64::from_ne_bytes(length.try_into().expect("invariant: chunks have this size"));
        let (list, others) = rest.split_at((length as usize).min(rest.len()));
        texts.push(String::from_utf8_lossy(list).into_owned());
        rest = others;
    }
    Err(Error::Parameters(difference(&texts)))
}

/// The first difference between the lists of ranks, in words.
fn difference(lists: &[String]) -> String {
    let Some((rank, other)) = lists.iter().enumerate().find(|(_, list)| *list != &lists[0]) else {
        return "the ranks have different parameters".to_owned();
    };
    let (mut ours, mut theirs) = (lists[0].lines(), other.lines());
    let (first, second) = loop {
        match (ours.next(), theirs.next()) {
            (first, second) if first == second && first.is_some() => {}
            (first, second) => break (first.unwrap_or("nothing"), second.unwrap_or("nothing")),
        }
    };
    format!("the ranks have different parameters: where rank 0 has {first}, rank {rank} has {second}")
}

/// FNV-1a: the same on all machines, and good enough to tell lists apart that differ by mistake.
fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn run(engine: &Engine, name: &str, collective: Collective, dtype: Dtype, input: Region) -> Result<Region> {
    let shape = vec![input.len_elems() as u64];
    let request =
        Request { name: name.into(), collective, dtype, shape, device: Device::Cpu, batch: None, priority: 0 };
    engine.run(Submission::new(request, input))?.into_result().ok_or(Error::WrongElement)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_named() {
        let lists = ["a F32 [2]\nb F32 [3]\n", "a F32 [2]\nb F32 [3]\n", "a F32 [2]\nb F32 [4]\n"].map(str::to_owned);
        assert_eq!(
            difference(&lists),
            "the ranks have different parameters: where rank 0 has b F32 [3], rank 2 has b F32 [4]"
        );
        let shorter = ["a F32 [2]\nb F32 [3]\n", "a F32 [2]\n"].map(str::to_owned);
        assert!(difference(&shorter).ends_with("where rank 0 has b F32 [3], rank 1 has nothing"));
    }
}
