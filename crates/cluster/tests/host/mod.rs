//! Hosts a rendezvous for tests of this crate and of `farandole`: nobody watches the job.

use std::sync::Arc;

use farandole_cluster::live::{JobState, JobView};
use farandole_cluster::{Address, Server};
use farandole_transport::{JobId, Key};

/// Hosts the rendezvous of `ranks` ranks that hold `key`, which was made for their job alone.
pub(crate) fn serve(at: &Address, ranks: usize, key: &Key) -> Server {
    let state = Arc::new(JobState::new(JobView::default(), &[]));
    Server::serve(at, JobId::of_key(key), ranks, key, state).expect("a rendezvous can be hosted")
}
