//! Whether all ranks mean the same, before they rely on it: lists of parameters, compared.
//!
//! A rank whose module has one layer more would wait for the others at a name that they never use. So ranks compare
//! lists before they send anything by them. Where the lists are equal that costs one small message, otherwise everybody
//! gets all lists and the error names the first difference.

use farandole_engine::{Engine, Submission};
use farandole_plan::{Collective, ReduceOp, Request};
use farandole_tensor::{Element, Region};

use crate::error::{Error, Result};
use crate::named::elements;

/// Finds out whether all ranks have the same list, a line for each entry. All ranks call this together, with the same
/// name.
pub(crate) fn agree(engine: &Engine, name: &str, list: String) -> Result<()> {
    let number = fingerprint(list.as_bytes());
    let collective = Collective::allreduce(ReduceOp::Max);
    // The largest of the numbers and, turned around, the smallest.
    let extremes: Vec<u64> = run(engine, name, collective, vec![number, !number])?;
    if extremes[0] == !extremes[1] {
        return Ok(());
    }
    let length = vec![list.len() as u64];
    let lengths = run(engine, &format!("{name}.lengths"), Collective::Allgather, length)?;
    let lists = run(engine, &format!("{name}.lists"), Collective::Allgather, list.into_bytes())?;
    let mut rest = &lists[..];
    let mut texts = Vec::new();
    for length in lengths {
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

fn run<T: Element + Default>(engine: &Engine, name: &str, collective: Collective, own: Vec<T>) -> Result<Vec<T>> {
    let request = Request::new(name, collective, T::DTYPE, [own.len() as u64]);
    Ok(elements(engine.run(Submission::new(request, Region::from_vec(own)))?))
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
