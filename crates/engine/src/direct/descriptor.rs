//! What a rank takes a direct operation to be, in one word that travels with it.
//!
//! Direct collectives are matched by their order alone, as in MPI. A program that is not the same on all ranks would
//! add up things that do not belong together; so each rank shows this word when it begins, and a difference becomes an
//! error that says, in words, what each of the two ranks called.
//!
//! From the top: kind (4 bits), element type (4), operation (4), and 52 bits for the number of elements. Kinds that
//! have a
//! [`Detail`] keep it in the upper 20 of these; the number of elements then has 32, and one that does not fit is
//! mixed into the detail.

use farandole_plan::{Dtype, ReduceOp};

/// A direct operation, packed: kind, element type, operation, detail, elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor(u64);

/// What else the ranks must agree on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Detail<'a> {
    Nothing,
    /// The rank that the data come from. Told apart in worlds of up to a million ranks.
    Root(usize),
    /// How many elements each rank has. A hash stands for them, which two lists share once in a million.
    Counts(&'a [usize]),
    /// The number of a shared buffer. Told apart among a million that follow each other.
    Buffer(u64),
}

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

/// Bits of everything behind kind, element type and operation.
const BODY_BITS: u32 = 52;

/// Bits of the number of elements beside a detail: four billion, which few calls exceed.
const BESIDE_DETAIL_BITS: u32 = 32;

/// Bits of a detail.
const DETAIL_BITS: u32 = BODY_BITS - BESIDE_DETAIL_BITS;

/// The number of elements beside a detail that stands for itself and all larger ones.
const MANY_ELEMS: u64 = mask(BESIDE_DETAIL_BITS);

const fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

impl Descriptor {
    pub(crate) fn new(kind: Kind, dtype: Dtype, op: Option<ReduceOp>, detail: Detail<'_>, elems: u64) -> Descriptor {
        let op = op.map_or(NO_OP, |op| op as u64);
        let detail = match detail {
            Detail::Nothing => None,
            Detail::Root(root) => Some(root as u64),
            Detail::Counts(counts) => Some(counts.iter().fold(0, |hash, &count| mix(hash ^ count as u64))),
            Detail::Buffer(number) => Some(number),
        };
        let body = match detail {
            None => elems & mask(BODY_BITS),
            Some(detail) => {
                let beyond = if elems >= MANY_ELEMS { mix(elems) } else { 0 };
                ((detail ^ beyond) & mask(DETAIL_BITS)) << BESIDE_DETAIL_BITS | elems.min(MANY_ELEMS)
            }
        };
        Descriptor((kind as u64) << 60 | (dtype as u64) << 56 | op << BODY_BITS | body)
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
        if word >> 60 == Kind::Barrier as u64 {
            return (*kind).to_owned();
        }
        let dtype = Dtype::from_wire((word >> 56 & 0xf) as u8).map_or("?", Dtype::name);
        let op = ReduceOp::from_wire((word >> BODY_BITS & 0xf) as u8).map_or(String::new(), |op| format!(" ({op})"));
        let body = word & mask(BODY_BITS);
        if !has_detail(word) {
            return format!("{kind}{op} of {body} {dtype}");
        }
        let (detail, elems) = (body >> BESIDE_DETAIL_BITS, body & MANY_ELEMS);
        if elems == MANY_ELEMS {
            return format!("{kind}{op} of {elems} or more {dtype}");
        }
        match word >> 60 {
            kind_code if kind_code == Kind::Broadcast as u64 => format!("{kind} of {elems} {dtype} from rank {detail}"),
            kind_code if kind_code == Kind::MappedAllreduce as u64 => {
                format!("{kind}{op} of {elems} {dtype}, the communicator's shared buffer number {detail}")
            }
            _ => format!("{kind}{op} of {elems} {dtype}"),
        }
    }

    /// What two ranks have called that should have called the same. Names what differs where the calls alone do not
    /// show it.
    pub(crate) fn describe_both(theirs: (u32, u64), ours: (u32, u64)) -> String {
        let (their_call, our_call) = (Descriptor::describe(theirs.1), Descriptor::describe(ours.1));
        let hint = if their_call != our_call {
            ""
        } else if theirs.1 & MANY_ELEMS == MANY_ELEMS {
            "; they differ in the number of elements, in its root or in its counts"
        } else {
            "; they differ in the counts, which say how many elements each rank has"
        };
        format!("rank {} called {their_call}, rank {} called {our_call}{hint}", theirs.0, ours.0)
    }
}

fn has_detail(word: u64) -> bool {
    let kinds = [Kind::Allgather, Kind::Broadcast, Kind::ReduceScatter, Kind::MappedAllreduce];
    kinds.iter().any(|&kind| kind as u64 == word >> 60)
}

/// Spreads the bits of a number (the finaliser of splitmix64).
fn mix(number: u64) -> u64 {
    let mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broadcast(root: usize, elems: u64) -> Descriptor {
        Descriptor::new(Kind::Broadcast, Dtype::U8, None, Detail::Root(root), elems)
    }

    fn allgather(counts: &[usize]) -> Descriptor {
        let elems = counts.iter().sum::<usize>() as u64;
        Descriptor::new(Kind::Allgather, Dtype::F32, None, Detail::Counts(counts), elems)
    }

    #[test]
    fn a_word_says_what_was_called() {
        let allreduce = Descriptor::new(Kind::Allreduce, Dtype::F32, Some(ReduceOp::Sum), Detail::Nothing, 1024);
        assert_eq!(Descriptor::describe(allreduce.word()), "allreduce (Sum) of 1024 float32");
        assert_eq!(Descriptor::describe(broadcast(3, 7).word()), "broadcast of 7 uint8 from rank 3");
        let barrier = Descriptor::new(Kind::Barrier, Dtype::U8, None, Detail::Nothing, 0);
        assert_eq!(Descriptor::describe(barrier.word()), "barrier");
        let other = Descriptor::new(Kind::Allreduce, Dtype::F32, Some(ReduceOp::Max), Detail::Nothing, 1024);
        assert_ne!(allreduce, other);
        let huge = Descriptor::new(Kind::Allreduce, Dtype::F32, Some(ReduceOp::Sum), Detail::Nothing, 1 << 45);
        assert_eq!(Descriptor::describe(huge.word()), format!("allreduce (Sum) of {} float32", 1u64 << 45));
        assert_eq!(huge.kind(), Some(Kind::Allreduce));
    }

    #[test]
    fn roots_beyond_4095_are_told_apart() {
        assert_ne!(broadcast(0, 7), broadcast(4096, 7));
        assert_ne!(broadcast(4095, 7), broadcast(8191, 7));
        assert_eq!(Descriptor::describe(broadcast(70_000, 7).word()), "broadcast of 7 uint8 from rank 70000");
    }

    #[test]
    fn large_numbers_of_elements_are_told_apart_beside_a_detail() {
        let sizes = [MANY_ELEMS - 1, MANY_ELEMS, MANY_ELEMS + 1, 1 << 40];
        for a in sizes {
            for b in sizes {
                assert_eq!(broadcast(1, a) == broadcast(1, b), a == b, "{a} {b}");
            }
        }
        assert_ne!(broadcast(1, 1 << 40), broadcast(2, 1 << 40));
        assert_eq!(Descriptor::describe(broadcast(1, 1 << 40).word()), "broadcast of 4294967295 or more uint8");
    }

    #[test]
    fn counts_of_equal_sum_are_told_apart_and_named() {
        let (ours, theirs) = (allgather(&[3, 4]), allgather(&[4, 3]));
        assert_ne!(ours, theirs);
        let words = Descriptor::describe_both((1, theirs.word()), (0, ours.word()));
        assert!(words.contains("they differ in the counts"), "{words}");
        // No two of many lists with the same sum look alike.
        let mut seen = std::collections::HashSet::new();
        assert!((0..=500).all(|first| seen.insert(allgather(&[first, 500 - first]).word())));
    }
}
