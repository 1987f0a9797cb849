//! What a rank takes a direct operation to be, in one word that travels with it.
//!
//! Direct collectives are matched by their order alone, as in MPI. A program that is not the same on all ranks would add up
//! things that do not belong together; so each rank shows this word when it begins, and a difference becomes an error
//! that says, in words, what each of the two ranks called.

use farandole_plan::{Dtype, ReduceOp};

/// A direct operation, packed: kind, element type, operation, root, elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor(u64);

/// Which collective. The discriminants travel between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Allreduce = 1,
    Allgather = 2,
    Broadcast = 3,
    Alltoall = 4,
    ReduceScatter = 5,
    Barrier = 6,
    MappedAllreduce = 7,
    Reserve = 8,
}

const KINDS: [&str; 9] = [
    "nothing known",
    "allreduce",
    "allgather",
    "broadcast",
    "alltoall",
    "reducescatter",
    "barrier",
    "allreduce on a shared buffer",
    "making a shared buffer",
];

const NO_OP: u64 = 0xf;
const ELEMS_BITS: u32 = 40;

impl Descriptor {
    pub(crate) fn new(kind: Kind, dtype: Dtype, op: Option<ReduceOp>, root: usize, elems: u64) -> Descriptor {
        let op = op.map_or(NO_OP, |op| op as u64);
        let elems = elems & ((1 << ELEMS_BITS) - 1);
        let root = (root as u64) & 0xfff;
        Descriptor((kind as u64) << 60 | (dtype as u64) << 56 | op << 52 | root << ELEMS_BITS | elems)
    }

    pub(crate) fn word(self) -> u64 {
        self.0
    }

    /// Which collective it is.
    pub(crate) fn kind(self) -> Option<Kind> {
        use Kind::{Allgather, Allreduce, Alltoall, Barrier, Broadcast, MappedAllreduce, ReduceScatter, Reserve};
        let kinds = [Allreduce, Allgather, Broadcast, Alltoall, ReduceScatter, Barrier, MappedAllreduce, Reserve];
        kinds.into_iter().find(|kind| *kind as u64 == self.0 >> 60)
    }

    /// The number of its element type.
    pub(crate) fn dtype_code(self) -> u8 {
        (self.0 >> 56 & 0xf) as u8
    }

    /// The call that a word stands for, as a user would write it.
    pub(crate) fn describe(word: u64) -> String {
        let kind = KINDS.get((word >> 60) as usize).unwrap_or(&KINDS[0]);
        let dtype = Dtype::from_wire((word >> 56 & 0xf) as u8).map_or("?", Dtype::name);
        let elems = word & ((1 << ELEMS_BITS) - 1);
        match ReduceOp::from_wire((word >> 52 & 0xf) as u8) {
            Some(op) => format!("{kind} ({op}) of {elems} {dtype}"),
            None if word >> 60 == Kind::Barrier as u64 => (*kind).to_owned(),
            None if word >> 60 == Kind::Broadcast as u64 => {
                format!("{kind} of {elems} {dtype} from rank {}", word >> ELEMS_BITS & 0xfff)
            }
            None => format!("{kind} of {elems} {dtype}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_says_what_was_called() {
        let allreduce = Descriptor::new(Kind::Allreduce, Dtype::F32, Some(ReduceOp::Sum), 0, 1024);
        assert_eq!(Descriptor::describe(allreduce.word()), "allreduce (Sum) of 1024 float32");
        let broadcast = Descriptor::new(Kind::Broadcast, Dtype::U8, None, 3, 7);
        assert_eq!(Descriptor::describe(broadcast.word()), "broadcast of 7 uint8 from rank 3");
        let barrier = Descriptor::new(Kind::Barrier, Dtype::U8, None, 0, 0);
        assert_eq!(Descriptor::describe(barrier.word()), "barrier");
        assert_ne!(allreduce, Descriptor::new(Kind::Allreduce, Dtype::F32, Some(ReduceOp::Max), 0, 1024));
    }
}
