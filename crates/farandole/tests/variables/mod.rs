//! The environment of a rank that a test starts.

use farandole_cluster::{Address, environment};
use farandole_transport::Key;

/// What makes a process that rank of a job whose ranks meet at `at`.
pub(crate) fn of_rank(rank: usize, ranks: usize, at: &Address, key: &Key) -> [(&'static str, String); 4] {
    [
        (environment::RANK, rank.to_string()),
        (environment::SIZE, ranks.to_string()),
        (environment::RENDEZVOUS, at.to_string()),
        (environment::KEY, key.to_hex()),
    ]
}
