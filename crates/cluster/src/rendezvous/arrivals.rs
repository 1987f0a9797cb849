//! The ranks that have arrived in one epoch, with their messages. Values only: no sockets, no clock.
//!
//! All ranks of the world arrive here or, where an agent gathers those of its host, some of them. When all have arrived
//! their messages can be passed on; clearing begins the next epoch, since a job may come together more than once.

use std::collections::{BTreeMap, BTreeSet};

use farandole_plan::Rank;
use farandole_transport::JobId;

/// The number of a connection, in the order in which they came.
pub(super) type ConnectionId = u64;

/// Where messages are gathered.
#[derive(Debug)]
pub(super) struct Arrivals {
    /// The job. Other jobs may have the same key.
    job: JobId,
    /// How many ranks the job has, here and elsewhere.
    world: usize,
    ranks: BTreeMap<Rank, Option<Arrived>>,
    /// Who was here in this epoch and did not wait for the others. Ranks that come together give up together, a moment
    /// apart; whom they have waited for is who never came.
    gave_up: BTreeSet<Rank>,
}

/// A rank that has come.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) connection: ConnectionId,
    pub(super) blob: Vec<u8>,
}

impl Arrivals {
    pub(super) fn new(job: JobId, world: usize, ranks: impl Iterator<Item = Rank>) -> Arrivals {
        Arrivals { job, world, ranks: ranks.map(|rank| (rank, None)).collect(), gave_up: BTreeSet::new() }
    }

    /// How many ranks arrive here.
    pub(super) fn expected(&self) -> usize {
        self.ranks.len()
    }

    /// Why a process of this job is at the wrong place, if it is.
    pub(super) fn refuses_job(&self, job: JobId) -> Option<String> {
        let own = self.job;
        (job != own).then(|| {
            format!(
                "this is job '{own}', and this process belongs to job '{job}': both jobs have the same key and were told \
                 the same address"
            )
        })
    }

    /// Admits a rank, or says why it is refused.
    pub(super) fn admit(
        &mut self,
        rank: Rank,
        job: JobId,
        believed_ranks: u32,
        arrived: Arrived,
    ) -> Result<(), String> {
        let world = self.world;
        if let Some(why) = self.refuses_job(job) {
            return Err(why.replace("this process", &format!("rank {rank}")));
        }
        if believed_ranks as usize != world {
            return Err(format!("rank {rank} believes in {believed_ranks} ranks, but the job has {world}"));
        }
        match self.ranks.get_mut(&rank) {
            None if rank.index() >= world => Err(format!("there is no rank {rank} in a job of {world}")),
            None => Err(format!("rank {rank} belongs to another host")),
            Some(Some(_)) => Err(format!("another process is rank {rank} already")),
            Some(empty) => {
                *empty = Some(arrived);
                Ok(())
            }
        }
    }

    /// Removes a rank whose connection has ended.
    pub(super) fn remove(&mut self, rank: Rank, connection: ConnectionId) {
        if let Some(arrived) = self.ranks.get_mut(&rank)
            && arrived.as_ref().is_some_and(|arrived| arrived.connection == connection)
        {
            *arrived = None;
            self.gave_up.insert(rank);
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.ranks.values().all(Option::is_some)
    }

    /// All messages so far, in rank order.
    pub(super) fn blobs(&self) -> Vec<(Rank, Vec<u8>)> {
        self.ranks.iter().filter_map(|(rank, arrived)| Some((*rank, arrived.as_ref()?.blob.clone()))).collect()
    }

    /// Who has not come in this epoch, nor been here for a while.
    pub(super) fn missing(&self) -> Vec<Rank> {
        let absent = self.ranks.iter().filter(|(_, arrived)| arrived.is_none()).map(|(rank, _)| *rank);
        absent.filter(|rank| !self.gave_up.contains(rank)).collect()
    }

    /// Lays the table anew; says who sat there.
    pub(super) fn clear(&mut self) -> Vec<ConnectionId> {
        self.gave_up.clear();
        self.ranks.values_mut().filter_map(|arrived| arrived.take().map(|arrived| arrived.connection)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> JobId {
        JobId::named("Slurm step 7.0")
    }

    fn arrived(connection: ConnectionId) -> Arrived {
        Arrived { connection, blob: vec![connection as u8] }
    }

    #[test]
    fn a_table_for_some_ranks_fills_and_empties() {
        let mut arrivals = Arrivals::new(job(), 6, [2, 5].map(Rank).into_iter());
        assert_eq!(arrivals.missing(), [Rank(2), Rank(5)]);
        arrivals.admit(Rank(5), job(), 6, arrived(1)).unwrap();
        assert!(!arrivals.is_full());
        arrivals.admit(Rank(2), job(), 6, arrived(2)).unwrap();
        assert!(arrivals.is_full());
        assert_eq!(arrivals.blobs(), [(Rank(2), vec![2]), (Rank(5), vec![1])]);
        assert_eq!(arrivals.clear(), [2, 1]);
        assert_eq!(arrivals.missing(), [Rank(2), Rank(5)]);
    }

    #[test]
    fn whoever_does_not_belong_is_told_why() {
        let mut arrivals = Arrivals::new(job(), 6, [2, 5].map(Rank).into_iter());
        arrivals.admit(Rank(5), job(), 6, arrived(1)).unwrap();
        for (rank, believed, why) in [
            (5, 6, "another process is rank 5 already"),
            (0, 6, "rank 0 belongs to another host"),
            (6, 6, "there is no rank 6 in a job of 6"),
            (2, 7, "rank 2 believes in 7 ranks, but the job has 6"),
        ] {
            assert_eq!(arrivals.admit(Rank(rank), job(), believed, arrived(9)), Err(why.to_string()));
        }
        let other = arrivals.admit(Rank(2), JobId::named("Slurm step 8.0"), 6, arrived(9)).unwrap_err();
        assert!(
            other.starts_with("this is job 'Slurm step 7.0', and rank 2 belongs to job 'Slurm step 8.0'"),
            "{other}"
        );
        arrivals.remove(Rank(5), 9);
        assert!(
            arrivals.admit(Rank(5), job(), 6, arrived(9)).is_err(),
            "only the connection that has arrived can be removed"
        );
        arrivals.remove(Rank(5), 1);
        assert_eq!(arrivals.missing(), [Rank(2)], "who did not wait is not the one who was waited for");
        arrivals.admit(Rank(5), job(), 6, arrived(3)).unwrap();
    }
}
