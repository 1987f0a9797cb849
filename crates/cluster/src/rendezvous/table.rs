//! The seats of one epoch: who has come, and with what. Values only: no sockets, no clock.
//!
//! A table seats all ranks of the world or, where an agent gathers those of its host, some of them. When it is full its
//! messages can be handed on; when it is cleared the next epoch begins, since a job may come together more than once.

use std::collections::{BTreeMap, BTreeSet};

use farandole_plan::Rank;
use farandole_transport::JobId;

/// The number of a connection, in the order in which they came.
pub(super) type GuestId = u64;

/// Where messages are gathered.
#[derive(Debug)]
pub(super) struct Table {
    /// Whose seats these are. Other jobs may have the same key.
    job: JobId,
    /// How many ranks the job has, here and elsewhere.
    world: usize,
    seats: BTreeMap<Rank, Option<Seat>>,
    /// Who was here in this epoch and did not wait for the others. Ranks that come together give up together, a moment
    /// apart; whom they have waited for is who never came.
    gave_up: BTreeSet<Rank>,
}

/// A rank that has come.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) guest: GuestId,
    pub(super) blob: Vec<u8>,
}

impl Table {
    pub(super) fn new(job: JobId, world: usize, seats: impl Iterator<Item = Rank>) -> Table {
        Table { job, world, seats: seats.map(|rank| (rank, None)).collect(), gave_up: BTreeSet::new() }
    }

    /// How many ranks sit here when all have come.
    pub(super) fn seats(&self) -> usize {
        self.seats.len()
    }

    /// Gives a rank its seat, or says why it gets none.
    pub(super) fn sit_down(&mut self, rank: Rank, job: JobId, believed_ranks: u32, seat: Seat) -> Result<(), String> {
        let (world, own) = (self.world, self.job);
        if job != own {
            return Err(format!(
                "this is job '{own}', and rank {rank} belongs to job '{job}': both jobs have the same key and were \
                 told the same address"
            ));
        }
        if believed_ranks as usize != world {
            return Err(format!("rank {rank} believes in {believed_ranks} ranks, but the job has {world}"));
        }
        match self.seats.get_mut(&rank) {
            None if rank.index() >= world => Err(format!("there is no rank {rank} in a job of {world}")),
            None => Err(format!("rank {rank} belongs to another host")),
            Some(Some(_)) => Err(format!("another process is rank {rank} already")),
            Some(empty) => {
                *empty = Some(seat);
                Ok(())
            }
        }
    }

    /// Takes a rank's seat back from a guest that has left.
    pub(super) fn stand_up(&mut self, rank: Rank, guest: GuestId) {
        if let Some(seat) = self.seats.get_mut(&rank)
            && seat.as_ref().is_some_and(|seat| seat.guest == guest)
        {
            *seat = None;
            self.gave_up.insert(rank);
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.seats.values().all(Option::is_some)
    }

    /// All messages so far, in rank order.
    pub(super) fn blobs(&self) -> Vec<(Rank, Vec<u8>)> {
        self.seats.iter().filter_map(|(rank, seat)| Some((*rank, seat.as_ref()?.blob.clone()))).collect()
    }

    /// Who has not come in this epoch, nor been here for a while.
    pub(super) fn missing(&self) -> Vec<Rank> {
        let absent = self.seats.iter().filter(|(_, seat)| seat.is_none()).map(|(rank, _)| *rank);
        absent.filter(|rank| !self.gave_up.contains(rank)).collect()
    }

    /// Lays the table anew; says who sat there.
    pub(super) fn clear(&mut self) -> Vec<GuestId> {
        self.gave_up.clear();
        self.seats.values_mut().filter_map(|seat| seat.take().map(|seat| seat.guest)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> JobId {
        JobId::named("Slurm step 7.0")
    }

    fn seat(guest: GuestId) -> Seat {
        Seat { guest, blob: vec![guest as u8] }
    }

    #[test]
    fn a_table_for_some_ranks_fills_and_empties() {
        let mut table = Table::new(job(), 6, [2, 5].map(Rank).into_iter());
        assert_eq!(table.missing(), [Rank(2), Rank(5)]);
        table.sit_down(Rank(5), job(), 6, seat(1)).unwrap();
        assert!(!table.is_full());
        table.sit_down(Rank(2), job(), 6, seat(2)).unwrap();
        assert!(table.is_full());
        assert_eq!(table.blobs(), [(Rank(2), vec![2]), (Rank(5), vec![1])]);
        assert_eq!(table.clear(), [2, 1]);
        assert_eq!(table.missing(), [Rank(2), Rank(5)]);
    }

    #[test]
    fn whoever_does_not_belong_is_told_why() {
        let mut table = Table::new(job(), 6, [2, 5].map(Rank).into_iter());
        table.sit_down(Rank(5), job(), 6, seat(1)).unwrap();
        for (rank, believed, why) in [
            (5, 6, "another process is rank 5 already"),
            (0, 6, "rank 0 belongs to another host"),
            (6, 6, "there is no rank 6 in a job of 6"),
            (2, 7, "rank 2 believes in 7 ranks, but the job has 6"),
        ] {
            assert_eq!(table.sit_down(Rank(rank), job(), believed, seat(9)), Err(why.to_string()));
        }
        let other = table.sit_down(Rank(2), JobId::named("Slurm step 8.0"), 6, seat(9)).unwrap_err();
        assert!(
            other.starts_with("this is job 'Slurm step 7.0', and rank 2 belongs to job 'Slurm step 8.0'"),
            "{other}"
        );
        table.stand_up(Rank(5), 9);
        assert!(table.sit_down(Rank(5), job(), 6, seat(9)).is_err(), "only who sits there can stand up");
        table.stand_up(Rank(5), 1);
        assert_eq!(table.missing(), [Rank(2)], "who did not wait is not the one who was waited for");
        table.sit_down(Rank(5), job(), 6, seat(3)).unwrap();
    }
}
