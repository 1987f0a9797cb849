//! Which vectors an Adasum combines with each other, for any number of ranks.
//!
//! Let `power` be the largest power of two that is at most `size`. Of the first `2 (size - power)` ranks the even ones
//! are *extras*: each gives its vector to its *stand-in*, the next rank. The other ranks are *active* and have *seats*,
//! counted in rank order. After extras and stand-ins, active ranks whose seats differ in bit 0 combine what they have,
//! then those that differ in bit 1, and so on. A combination does not depend on which of two comes first, so both
//! partners have the same afterwards, and in the end all do.
//!
//! Not here: the arithmetic (`farandole_tensor::adasum`), and who carries it out where.

/// The seats of a group of ranks. See the module's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seats {
    power: usize,
    extras: usize,
}

/// What a rank has to do with seats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It has none.
    Extra {
        /// Who stands in for it.
        stand_in: usize,
    },
    /// It has a seat.
    Active {
        /// Which one.
        seat: usize,
        /// For whom it stands in.
        extra: Option<usize>,
    },
}

impl Seats {
    /// Those of this many ranks.
    ///
    /// # Panics
    /// If there are none.
    pub fn new(size: usize) -> Seats {
        assert!(size > 0, "an Adasum has at least one rank");
        let power = 1 << size.ilog2();
        Seats { power, extras: size - power }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.power
    }

    /// Who has a seat.
    pub fn rank_of(&self, seat: usize) -> usize {
        if seat < self.extras { 2 * seat + 1 } else { seat + self.extras }
    }

    /// What a rank has to do with them.
    pub fn role(&self, rank: usize) -> Role {
        match rank < 2 * self.extras {
            true if rank.is_multiple_of(2) => Role::Extra { stand_in: rank + 1 },
            true => Role::Active { seat: rank / 2, extra: Some(rank - 1) },
            false => Role::Active { seat: rank - self.extras, extra: None },
        }
    }

    /// The combinations that give the result, for whoever makes all of them: rounds of pairs of ranks. The vector of
    /// the first of a pair becomes the combination of both, and that of the second is used no more. Pairs of a round
    /// have no rank in common, and the last round is one pair, unless there is only one rank.
    pub fn rounds(&self) -> Vec<Vec<(usize, usize)>> {
        let mut rounds = Vec::new();
        if self.extras > 0 {
            rounds.push((0..self.extras).map(|seat| (self.rank_of(seat), self.rank_of(seat) - 1)).collect());
        }
        let mut distance = 1;
        while distance < self.power {
            let pair = |seat: usize| (self.rank_of(seat), self.rank_of(seat + distance));
            rounds.push((0..self.power).step_by(2 * distance).map(pair).collect());
            distance *= 2;
        }
        rounds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_a_seat_or_a_stand_in() {
        for size in 1..40 {
            let seats = Seats::new(size);
            let mut taken = vec![false; seats.count()];
            for rank in 0..size {
                match seats.role(rank) {
                    Role::Extra { stand_in } => {
                        assert!(matches!(seats.role(stand_in), Role::Active { extra: Some(of), .. } if of == rank));
                    }
                    Role::Active { seat, .. } => {
                        assert_eq!(seats.rank_of(seat), rank);
                        taken[seat] = true;
                    }
                }
            }
            assert!(taken.iter().all(|taken| *taken), "{size} ranks");
        }
    }

    #[test]
    fn every_vector_is_combined_once() {
        for size in 1..40 {
            let mut parts: Vec<Option<usize>> = vec![Some(1); size];
            let rounds = Seats::new(size).rounds();
            for pairs in &rounds {
                for &(into, from) in pairs {
                    let both = parts[into].unwrap() + parts[from].take().expect("nobody has used it");
                    parts[into] = Some(both);
                }
            }
            let left: Vec<usize> = parts.into_iter().flatten().collect();
            assert_eq!(left, [size]);
            assert!(rounds.last().is_none_or(|pairs| pairs.len() == 1));
        }
        let rounds = Seats::new(5).rounds();
        assert_eq!(rounds, [vec![(1, 0)], vec![(1, 2), (3, 4)], vec![(1, 3)]]);
    }
}
