//! Publishes what the launcher knows of its job to live views.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use super::job_spec::JobSpec;
use super::message::AgentReport;
use crate::error::Result;
use crate::live::{JobState, JobView, LiveEndpoint, LiveState};
use crate::rendezvous::Generation;

/// A command is shown up to so many characters: a line of a screen.
const MOST_COMMAND_CHARS: usize = 200;

/// The state of a job, and the endpoint that serves it.
#[derive(Debug)]
pub(super) struct LivePublisher {
    state: Arc<JobState>,
    /// Without it the job runs without live views.
    endpoint: Option<LiveEndpoint>,
}

impl LivePublisher {
    /// Opens the endpoint of a job that is about to start. Only an address for metrics, which was asked for, can fail.
    pub(super) fn open(spec: &JobSpec) -> Result<LivePublisher> {
        let placement = &spec.placement;
        let command: Vec<String> = spec.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let job = JobView {
            pid: std::process::id(),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            launcher: "farandole run".to_owned(),
            command: command.join(" ").chars().take(MOST_COMMAND_CHARS).collect(),
            size: placement.size(),
            ..JobView::default()
        };
        let mut hosts = vec![String::new(); placement.size()];
        for (number, host) in placement.hosts().iter().enumerate() {
            placement.ranks_on(number).iter().for_each(|rank| hosts[rank.index()].clone_from(&host.name));
        }
        let state = Arc::new(JobState::new(job, &hosts));
        let endpoint = match LiveEndpoint::open(Arc::clone(&state), spec.metrics) {
            Ok(endpoint) => Some(endpoint),
            Err(error) if spec.metrics.is_some() => return Err(error),
            Err(_) => None,
        };
        Ok(LivePublisher { state, endpoint })
    }

    /// Where metrics are shown.
    pub(super) fn metrics(&self) -> Option<SocketAddr> {
        self.endpoint.as_ref()?.metrics()
    }

    /// A member of an elastic job is about to be started.
    pub(super) fn add(&self, member: u32, host: &str) {
        self.state.add(member, host);
    }

    /// An elastic job is in this generation.
    pub(super) fn entered(&self, generation: &Generation) {
        self.state.entered(generation.number, generation.members.len());
    }

    /// Records what an agent reports of its ranks.
    pub(super) fn hear(&self, report: &AgentReport, now: Instant) {
        match report {
            AgentReport::Started { rank, process } => self.state.started(*rank, process.pid, None),
            AgentReport::Stopped { rank, .. } => self.state.stopped(*rank),
            AgentReport::Continued { rank } => self.state.continued(*rank),
            AgentReport::Ended { rank, how, .. } => self.state.ended(*rank, LiveState::Ended, how.to_string()),
            AgentReport::Samples(samples) => {
                samples.iter().for_each(|(rank, sample)| self.state.sampled(*rank, sample, now));
            }
            AgentReport::Entering(generation) => self.entered(generation),
            _ => {}
        }
    }
}
