//! What the launcher tells those who watch its job.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use super::message::Report;
use super::order::Order;
use crate::error::Result;
use crate::live::{Board, JobView, Stand, State};

/// A command is shown up to so many characters: a line of a screen.
const MOST_COMMAND_CHARS: usize = 200;

/// The board of a job and the stand where it is shown.
#[derive(Debug)]
pub(super) struct Onlookers {
    board: Arc<Board>,
    /// Without it the job goes on unseen.
    stand: Option<Stand>,
}

impl Onlookers {
    /// Opens a stand for a job that is about to be started. Only what was asked for, an address for metrics, can fail.
    pub(super) fn receive(order: &Order) -> Result<Onlookers> {
        let placement = &order.placement;
        let command: Vec<String> = order.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let job = JobView {
            pid: std::process::id(),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            launcher: "farandole run".to_owned(),
            command: command.join(" ").chars().take(MOST_COMMAND_CHARS).collect(),
            size: placement.size(),
            running_seconds: 0.0,
        };
        let mut hosts = vec![String::new(); placement.size()];
        for (number, host) in placement.hosts().iter().enumerate() {
            placement.ranks_on(number).iter().for_each(|rank| hosts[rank.index()].clone_from(&host.name));
        }
        let board = Arc::new(Board::new(job, &hosts));
        let stand = match Stand::open(Arc::clone(&board), order.metrics) {
            Ok(stand) => Some(stand),
            Err(error) if order.metrics.is_some() => return Err(error),
            Err(_) => None,
        };
        Ok(Onlookers { board, stand })
    }

    /// Where metrics are shown.
    pub(super) fn metrics(&self) -> Option<SocketAddr> {
        self.stand.as_ref()?.metrics()
    }

    /// Writes up what an agent says of its ranks.
    pub(super) fn hear(&self, report: &Report, now: Instant) {
        match report {
            Report::Started { rank, pid } => self.board.started(*rank, *pid, None),
            Report::Stopped { rank, .. } => self.board.stopped(*rank),
            Report::Continued { rank } => self.board.continued(*rank),
            Report::Ended { rank, how, .. } => self.board.ended(*rank, State::Ended, how.to_string()),
            Report::Samples(samples) => {
                samples.iter().for_each(|(rank, sample)| self.board.sampled(*rank, sample, now));
            }
            _ => {}
        }
    }
}
